//! The commands that every device type has (SPC-5 §6): identity, settings, reservations, reports.
//!
//! The values they use are defined in modules of their own ([`crate::inquiry`], [`crate::mode`],
//! [`crate::pr`], …); this module connects these with CDBs and with the rest of the unit.

mod buffer;
mod diagnostic;
mod identity;
mod information;
mod medium_removal;
mod mode;
mod report;
mod reservation;
mod table;

use alloc::vec::Vec;

use base::time::Instant;
use scsi::sense::{Asc, Sense};

use crate::contract::NexusId;
use crate::data_buffer::DataBuffers;
use crate::device_server::DeviceServer;
use crate::identifying_info::IdentifyingInformation;
use crate::log::Statistics;
use crate::medium_removal::MediumRemoval;
use crate::outcome::Outcome;
use crate::persistent_state::{self, PersistentState};
use crate::pr::{NexusName, PersistentReservations, PrRole};
use crate::sbc::sanitize::SanitizeJournal;
use crate::self_test::SelfTestResults;
use crate::settings::Settings;
use crate::spc2_reserve::Spc2Reservation;
use crate::timestamp::Timestamp;

pub(crate) use table::ROWS;

/// The state that these commands keep in a unit.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) pr: PersistentReservations,
    pub(crate) spc2_reservation: Spc2Reservation,
    pub(crate) removal: MediumRemoval,
    identifying: IdentifyingInformation,
    data_buffers: DataBuffers,
    self_tests: SelfTestResults,
    timestamp: Timestamp,
    /// The settings that a reset and the next start restore.
    pub(crate) saved_settings: Option<Settings>,
    /// A SANITIZE or FORMAT UNIT operation that is in progress or has failed.
    pub(crate) sanitize_journal: Option<SanitizeJournal>,
    started: Instant,
    /// The values of the counters when LOG SELECT last reset them.
    counted_before: Statistics,
    /// The role of each nexus in the persistent reservation, by number: read for every command, changed
    /// rarely.
    pr_roles: Vec<(NexusId, PrRole)>,
}

impl State {
    /// Creates the state of a unit from its saved state.
    pub(crate) fn new(saved: PersistentState) -> Self {
        let PersistentState {
            reservations: pr,
            information: identifying,
            settings: saved_settings,
            sanitize_journal: medium_work,
        } = saved;
        Self {
            pr,
            saved_settings,
            sanitize_journal: medium_work,
            spc2_reservation: Spc2Reservation::default(),
            removal: MediumRemoval::default(),
            identifying,
            data_buffers: DataBuffers::default(),
            self_tests: SelfTestResults::default(),
            timestamp: Timestamp::started(Instant::ORIGIN),
            started: Instant::ORIGIN,
            counted_before: Statistics::default(),
            pr_roles: Vec::new(),
        }
    }

    /// Returns the state to be saved.
    pub(crate) fn to_save(&self) -> Vec<u8> {
        self.to_save_with(&self.pr)
    }

    /// Returns the state to be saved with other registrations and another reservation.
    fn to_save_with(&self, pr: &PersistentReservations) -> Vec<u8> {
        let (settings, work) = (self.saved_settings.as_ref(), self.sanitize_journal.as_ref());
        persistent_state::encode(pr, &self.identifying, settings, work)
    }

    /// Returns the state to be saved with other saved mode parameters.
    fn to_save_with_settings(&self, settings: &Settings) -> Vec<u8> {
        persistent_state::encode(&self.pr, &self.identifying, Some(settings), self.sanitize_journal.as_ref())
    }

    /// Returns the state to be saved with other identifying information.
    fn to_save_with_information(&self, information: &IdentifyingInformation) -> Vec<u8> {
        let (settings, work) = (self.saved_settings.as_ref(), self.sanitize_journal.as_ref());
        persistent_state::encode(&self.pr, information, settings, work)
    }

    /// Returns the state to be saved without a sanitize journal.
    pub(crate) fn to_save_without_work(&self) -> Vec<u8> {
        persistent_state::encode(&self.pr, &self.identifying, self.saved_settings.as_ref(), None)
    }

    /// Returns the role of a nexus in the persistent reservation.
    fn pr_role(&self, nexus: NexusId) -> PrRole {
        match self.pr_roles.binary_search_by_key(&nexus, |(id, _)| *id) {
            Ok(at) => self.pr_roles.get(at).map_or(PrRole::Unregistered, |(_, standing)| *standing),
            Err(_) => PrRole::Unregistered,
        }
    }

    /// Returns why the medium cannot be used, or `None` if it can.
    pub(crate) const fn not_ready(&self) -> Option<Sense> {
        self.removal.not_ready()
    }

    /// Applies the effects of a nexus loss (SAM-5 §6.3.4): the state of the session ends, registrations stay.
    pub(crate) fn nexus_lost(&mut self, nexus: NexusId) {
        self.release_holds(nexus);
        self.data_buffers.lose(nexus);
    }

    /// Ends the reservation and the prevention of medium removal of a nexus that may hold them no longer.
    pub(crate) fn release_holds(&mut self, nexus: NexusId) {
        self.spc2_reservation.lose(nexus);
        self.removal.allow(nexus);
    }

    /// Applies the effects of a reset (SAM-5 §6.3.3), which are the same for every nexus. The medium stays
    /// loaded or ejected.
    pub(crate) fn reset(&mut self) {
        self.spc2_reservation.reset();
        self.removal.reset();
        self.data_buffers.reset();
    }
}

impl DeviceServer {
    /// Recomputes the roles after a nexus was added or removed, or the persistent reservation changed.
    pub(crate) fn refresh_pr_roles(&mut self) {
        let pr = &self.spc.pr;
        let standing = |nexus| pr.role_of(&NexusName::of(nexus));
        self.spc.pr_roles =
            self.nexuses.iter().map(|state| (state.nexus.id, standing(&state.nexus))).collect();
    }

    /// Returns the default settings of the unit.
    pub(crate) const fn default_settings(&self) -> Settings {
        Settings::new(self.info.config.write_cache, self.info.config.tasks)
    }

    /// Returns the settings after a start or a reset: the saved ones, or else the defaults. A write cache
    /// that the configuration disables stays disabled.
    pub(crate) fn power_on_settings(&self) -> Settings {
        let default = self.default_settings();
        match &self.spc.saved_settings {
            Some(saved) => Settings {
                write_cache: saved.write_cache && default.write_cache,
                nexus_task_sets: default.nexus_task_sets,
                ..saved.clone()
            },
            None => default,
        }
    }
}

/// Returns parameter data with an allocation length.
const fn data(bytes: Vec<u8>, allocation: u32) -> Outcome {
    Outcome::ParameterData { bytes, allocation: allocation as u64 }
}

/// Returns parameter data, or CHECK CONDITION with the sense data in `Err`.
fn data_or(bytes: Result<Vec<u8>, Sense>, allocation: u32) -> Outcome {
    bytes.map_or_else(Outcome::CheckCondition, |bytes| data(bytes, allocation))
}

/// Returns GOOD, or CHECK CONDITION with the sense data in `Err`.
fn good_or(result: Result<(), Sense>) -> Outcome {
    result.map_or_else(Outcome::CheckCondition, |()| Outcome::Good)
}

const fn length_error() -> Outcome {
    Outcome::CheckCondition(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR))
}

/// Refuses a parameter list whose length differs from the length in the CDB: nothing is cut or padded.
fn whole(list: &[u8], announced: u32) -> Result<&[u8], Outcome> {
    if u32::try_from(list.len()) == Ok(announced) { Ok(list) } else { Err(length_error()) }
}

#[cfg(test)]
mod tests;
