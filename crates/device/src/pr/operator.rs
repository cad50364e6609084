//! The changes that an operator makes for hosts which cannot send PERSISTENT RESERVE OUT any more.

use alloc::boxed::Box;
use alloc::vec::Vec;

use scsi::sense::Asc;

use crate::contract::NexusId;

use super::{Effects, NexusName, PersistentReservations};

/// The operator's last removal.
#[derive(Debug, Default)]
pub(crate) enum OperatorRemoval {
    /// There was none, or it is in force.
    #[default]
    Done,
    /// The new state is being stored.
    Storing(Box<StagedRemoval>),
    /// The new state could not be stored.
    NotStored,
}

/// A removal that waits until its state is stored.
#[derive(Debug)]
pub(crate) struct StagedRemoval {
    /// The registrations and the reservation that remain.
    pub(crate) reservations: PersistentReservations,
    pub(crate) effects: Effects,
    /// The nexus whose SPC-2 reservation ends.
    pub(crate) spc2_holder: Option<NexusId>,
    /// Whether everything is removed, whosever it is.
    pub(crate) has_selected_all: bool,
}

impl PersistentReservations {
    /// Removes the registrations of the nexuses that `is_selected` names, as PREEMPT AND ABORT does, except
    /// that nobody takes over: a reservation that loses its last holder ends, as if the holder had
    /// unregistered (SPC-5 §5.14). Nothing changes if no nexus is selected.
    pub(crate) fn remove_for_operator(&mut self, is_selected: impl Fn(&NexusName) -> bool) -> Effects {
        let saved_before = self.persists();
        let (gone, released) = self.remove(|registrant| is_selected(&registrant.nexus));
        if gone.is_empty() {
            return Effects::default();
        }
        self.generation = self.generation.wrapping_add(1);
        let mut attentions = Vec::new();
        if released.is_some_and(|kind| kind.admits_registrants()) {
            let remaining = self.registrants.iter().map(|registrant| registrant.nexus.clone());
            attentions.extend(remaining.map(|nexus| (nexus, Asc::RESERVATIONS_RELEASED)));
        }
        attentions.extend(gone.iter().map(|nexus| (nexus.clone(), Asc::REGISTRATIONS_PREEMPTED)));
        Effects { attentions, abort: gone, save: saved_before }
    }

    /// Removes every registration and the reservation, as CLEAR does (SPC-5 §5.14), and what was saved and
    /// could not be read. Every registrant has a unit attention. Nothing changes if there is nothing.
    pub(crate) fn clear_for_operator(&mut self) -> Effects {
        if self.registrants.is_empty() && !self.lost {
            return Effects::default();
        }
        let save = self.persist || self.lost;
        let registrants = core::mem::take(&mut self.registrants).into_iter();
        let attentions =
            registrants.map(|registrant| (registrant.nexus, Asc::RESERVATIONS_PREEMPTED)).collect();
        self.reservation = None;
        self.lost = false;
        self.generation = self.generation.wrapping_add(1);
        Effects { attentions, save, ..Effects::default() }
    }
}
