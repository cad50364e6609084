//! The reservations of a unit for its operator, who can see them and remove those of a host that cannot do so
//! itself any more.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use base::time::Instant;
use scsi::pr::ReservationType;
use scsi::sense::Asc;
use scsi::transport_id::TransportId;

use super::LogicalUnit;
use crate::contract::NexusId;
use crate::pr::operator::{OperatorRemoval, StagedRemoval};
use crate::pr::{NexusName, PersistentReservations, PrRole};
use crate::task::TaskId;

/// The most holders of a reservation that a report names.
pub const HOLDERS_NAMED_MAX: usize = 16;

/// The reservations of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationReport {
    /// The kind of the reservation; `None` if there are only registrations.
    pub kind: Option<ReservationKind>,
    /// How many nexuses are registered.
    pub registrations: usize,
    /// The initiators that hold the reservation, at most [`HOLDERS_NAMED_MAX`] of them, each once.
    pub holders: Vec<String>,
    /// Whether it survives a restart (APTPL).
    pub persists: bool,
    /// Whether the saved state could not be read, so that nearly every command is refused.
    pub is_lost: bool,
}

/// The kind of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationKind {
    /// A persistent reservation of this type.
    Persistent(ReservationType),
    /// A reservation by RESERVE (SPC-2).
    Spc2,
}

/// A port of an initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitiatorPortReport {
    /// The name of the initiator.
    pub initiator: String,
    /// The ISID; `None` for a port of a protocol without ISIDs.
    pub isid: Option<[u8; 6]>,
    /// The relative identifier of the target port.
    pub target_port: u16,
    /// Whether the nexus exists now: the initiator is logged in.
    pub is_logged_in: bool,
}

/// A registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrantReport {
    /// The nexus.
    pub port: InitiatorPortReport,
    /// Its reservation key.
    pub key: u64,
    /// Whether it holds the reservation.
    pub is_holder: bool,
}

/// Every reservation and registration of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationDetails {
    /// The summary; `None` if there is neither a reservation nor a registration.
    pub summary: Option<ReservationReport>,
    /// PRGENERATION.
    pub generation: u32,
    /// The registrations.
    pub registrants: Vec<RegistrantReport>,
    /// The nexus that reserved the unit with RESERVE (SPC-2).
    pub reserved_by: Option<InitiatorPortReport>,
}

/// The reservations and registrations that an operator removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationRemoval {
    /// All, and saved ones that could not be read.
    All,
    /// Those of an initiator.
    Initiator {
        /// Its name.
        name: String,
        /// Only those of its port with this ISID.
        isid: Option<[u8; 6]>,
    },
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedReservations {
    /// How many registrations.
    pub registrations: usize,
    /// Whether a reservation ended.
    pub has_released: bool,
}

/// Why nothing was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalError {
    /// There is nothing to remove.
    Nothing,
    /// These initiators are logged in, and removal was not forced.
    LoggedIn(Vec<String>),
    /// The saved reservations could not be read, so that nobody knows which hosts are fenced, and removal was
    /// not forced.
    Lost,
    /// Another change of the saved state is being stored.
    Busy,
}

/// How far a removal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalProgress {
    /// The new state is being stored; the old one is in force.
    Storing,
    /// The new state is in force. Commands that were aborted, which can still change the medium, have not all
    /// ended.
    Ending,
    /// The removal is in force.
    Done,
    /// The new state could not be stored. Nothing has changed.
    NotStored,
}

impl ReservationRemoval {
    fn selects(&self, nexus: &NexusName) -> bool {
        let Self::Initiator { name, isid } = self else { return true };
        match TransportId::from_bytes(&nexus.initiator_port) {
            Ok(TransportId::IscsiPort { name: known, isid: port }) => {
                known.eq_ignore_ascii_case(name) && isid.is_none_or(|isid| isid == port)
            }
            Ok(TransportId::IscsiDevice { name: known }) => {
                known.eq_ignore_ascii_case(name) && isid.is_none()
            }
            _ => false,
        }
    }
}

impl LogicalUnit {
    /// Returns every reservation and registration.
    pub fn reservation_details(&self) -> ReservationDetails {
        let state = &self.server.spc;
        let report = |(name, key): (&NexusName, u64)| RegistrantReport {
            port: self.port_report(name),
            key,
            is_holder: state.pr.role_of(name) == PrRole::Holder,
        };
        let spc2 = state.spc2_reservation.holder().and_then(|id| self.server.nexuses.find(id));
        ReservationDetails {
            summary: self.reservations(),
            generation: state.pr.keys().generation,
            registrants: state.pr.registrants().map(report).collect(),
            reserved_by: spc2.map(|holder| self.port_report(&NexusName::of(&holder.nexus))),
        }
    }

    /// Removes reservations and registrations for the operator. [`Self::removal_progress`] says when that is
    /// in force. The tasks of an initiator whose registrations are removed are aborted, so that none of its
    /// writes follows.
    ///
    /// # Errors
    /// Why nothing is removed.
    pub fn remove_reservations(
        &mut self,
        now: Instant,
        selection: ReservationRemoval,
        is_forced: bool,
    ) -> Result<RemovedReservations, RemovalError> {
        self.server.now = now;
        let pr = &self.server.spc.pr;
        let spc2 = self.selected_spc2_holder(&selection);
        let affected: Vec<NexusName> = pr
            .registrants()
            .map(|(nexus, _)| nexus.clone())
            .chain(spc2.and_then(|id| self.server.nexuses.find(id)).map(|state| NexusName::of(&state.nexus)))
            .filter(|nexus| selection.selects(nexus))
            .collect();
        let is_lost = selection == ReservationRemoval::All && pr.is_lost();
        if affected.is_empty() && !is_lost {
            return Err(RemovalError::Nothing);
        }
        if !is_forced {
            let mut present: Vec<String> =
                affected.iter().filter(|nexus| self.is_present(nexus)).map(initiator).collect();
            present.sort();
            present.dedup();
            if !present.is_empty() {
                return Err(RemovalError::LoggedIn(present));
            }
            if is_lost {
                return Err(RemovalError::Lost);
            }
        }
        if !self.server.saves.is_idle() {
            return Err(RemovalError::Busy);
        }
        let mut reservations = pr.clone();
        let effects = match &selection {
            ReservationRemoval::All => reservations.clear_for_operator(),
            ReservationRemoval::Initiator { .. } => {
                reservations.remove_for_operator(|nexus| selection.selects(nexus))
            }
        };
        let removed = RemovedReservations {
            registrations: pr.registrations().saturating_sub(reservations.registrations()),
            has_released: spc2.is_some() || (pr.kind().is_some() && reservations.kind().is_none()),
        };
        let save = effects.save.then(|| self.server.spc.to_save_with(&reservations));
        let has_selected_all = selection == ReservationRemoval::All;
        let staged = StagedRemoval { reservations, effects, spc2_holder: spc2, has_selected_all };
        self.server.operator_removal = OperatorRemoval::Storing(Box::new(staged));
        match save {
            Some(state) => self.server.save(TaskId::OPERATOR, state),
            None => self.finish_operator_removal(true),
        }
        self.process_pending();
        Ok(removed)
    }

    /// Returns how far the last [`Self::remove_reservations`] is.
    pub fn removal_progress(&self) -> RemovalProgress {
        match self.server.operator_removal {
            OperatorRemoval::Done if self.removal_wait.is_some_and(|wait| !self.tasks.is_over(wait)) => {
                RemovalProgress::Ending
            }
            OperatorRemoval::Done => RemovalProgress::Done,
            OperatorRemoval::Storing(_) => RemovalProgress::Storing,
            OperatorRemoval::NotStored => RemovalProgress::NotStored,
        }
    }

    /// Applies a removal whose state was stored, or drops it.
    pub(super) fn finish_operator_removal(&mut self, is_stored: bool) {
        let end = if is_stored { OperatorRemoval::Done } else { OperatorRemoval::NotStored };
        let staged = core::mem::replace(&mut self.server.operator_removal, end);
        let OperatorRemoval::Storing(staged) = staged else { return };
        if !is_stored {
            return;
        }
        let StagedRemoval { reservations, effects, spc2_holder, has_selected_all } = *staged;
        let before = core::mem::replace(&mut self.server.spc.pr, reservations);
        self.server.refresh_pr_roles();
        for (nexus, asc) in &effects.attentions {
            self.server.nexuses.establish_ua_at_ports(&nexus.initiator_port, nexus.target_port, *asc);
        }
        let mut aborted: Vec<NexusId> = self
            .server
            .nexuses
            .iter()
            .filter(|state| effects.abort.contains(&NexusName::of(&state.nexus)))
            .map(|state| state.nexus.id)
            .collect();
        // The holder can have released the unit, or be lost, meanwhile.
        let present_holder = self.server.spc.spc2_reservation.holder();
        if let Some(holder) = spc2_holder.filter(|holder| present_holder == Some(*holder)) {
            self.server.spc.spc2_reservation.lose(holder);
            self.server.nexuses.establish_ua(holder, Asc::RESERVATIONS_PREEMPTED);
            if !has_selected_all {
                aborted.push(holder);
            }
        }
        self.server.forget_keys_of_reservations(None, Some(&before));
        for nexus in &aborted {
            self.server.spc.removal.allow(*nexus);
        }
        let tasks = self.tasks.select_live(|task| aborted.contains(&task.nexus));
        self.abort_for(None, &tasks);
        // As for PREEMPT AND ABORT, a write that was aborted before, or whose session is lost, can also reach
        // the medium late.
        let ending = self.tasks.select_all(|_| true);
        self.removal_wait = Some(self.tasks.wait_for(&ending));
    }

    /// Returns the holder of the SPC-2 reservation, if the operator selects it.
    fn selected_spc2_holder(&self, selection: &ReservationRemoval) -> Option<NexusId> {
        let id = self.server.spc.spc2_reservation.holder()?;
        let holder = self.server.nexuses.find(id)?;
        selection.selects(&NexusName::of(&holder.nexus)).then_some(id)
    }

    fn is_present(&self, name: &NexusName) -> bool {
        self.server.nexuses.iter().any(|state| NexusName::of(&state.nexus) == *name)
    }

    fn port_report(&self, name: &NexusName) -> InitiatorPortReport {
        let isid = match TransportId::from_bytes(&name.initiator_port) {
            Ok(TransportId::IscsiPort { isid, .. }) => Some(isid),
            _ => None,
        };
        InitiatorPortReport {
            initiator: initiator(name),
            isid,
            target_port: name.target_port.0,
            is_logged_in: self.is_present(name),
        }
    }

    /// Returns the reservations and registrations; `None` if there are none.
    pub fn reservations(&self) -> Option<ReservationReport> {
        let state = &self.server.spc;
        let spc2 = state.spc2_reservation.holder().and_then(|id| self.server.nexuses.find(id));
        let report = match spc2 {
            Some(holder) => ReservationReport {
                kind: Some(ReservationKind::Spc2),
                holders: [NexusName::of(&holder.nexus)].iter().map(initiator).collect(),
                ..persistent(&state.pr)
            },
            None => persistent(&state.pr),
        };
        (report.kind.is_some() || report.registrations > 0 || report.is_lost).then_some(report)
    }
}

fn persistent(pr: &PersistentReservations) -> ReservationReport {
    let mut holders: Vec<String> = Vec::new();
    for holder in pr.holders() {
        let name = initiator(holder);
        if holders.len() < HOLDERS_NAMED_MAX && !holders.contains(&name) {
            holders.push(name);
        }
    }
    ReservationReport {
        kind: pr.kind().map(ReservationKind::Persistent),
        registrations: pr.registrations(),
        holders,
        persists: pr.persists(),
        is_lost: pr.is_lost(),
    }
}

/// Returns the name of the initiator of a nexus.
fn initiator(nexus: &NexusName) -> String {
    match TransportId::from_bytes(&nexus.initiator_port) {
        Ok(TransportId::IscsiDevice { name } | TransportId::IscsiPort { name, .. }) => name,
        _ => format!("a port of another protocol, at target port {}", nexus.target_port.0),
    }
}
