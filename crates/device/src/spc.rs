//! The commands that every kind of device has (SPC-5 §6): who it is, how it is set, who has reserved it.
//!
//! The values they work on stand in modules of their own ([`crate::inquiry`], [`crate::mode`], [`crate::pr`], …); here is
//! what connects them with CDBs and with the rest of the unit.

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

/// What these commands leave behind in a unit.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) pr: PersistentReservations,
    pub(crate) spc2_reservation: Spc2Reservation,
    pub(crate) removal: MediumRemoval,
    identifying: IdentifyingInformation,
    data_buffers: DataBuffers,
    self_tests: SelfTestResults,
    timestamp: Timestamp,
    /// The settings that a reset and the next start bring back.
    pub(crate) saved_settings: Option<Settings>,
    /// Work on the whole medium that is under way or has failed.
    pub(crate) sanitize_journal: Option<SanitizeJournal>,
    started: Instant,
    /// What had been counted when LOG SELECT last reset the counters.
    counted_before: Statistics,
    /// What each nexus is to the persistent reservation, by number: asked for every command, changed rarely.
    pr_roles: Vec<(NexusId, PrRole)>,
}

impl State {
    /// Starts a unit with what was saved of it.
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

    /// The same with other registrations and another reservation.
    fn to_save_with(&self, pr: &PersistentReservations) -> Vec<u8> {
        let (settings, work) = (self.saved_settings.as_ref(), self.sanitize_journal.as_ref());
        persistent_state::encode(pr, &self.identifying, settings, work)
    }

    /// The same with other saved mode parameters.
    fn to_save_with_settings(&self, settings: &Settings) -> Vec<u8> {
        persistent_state::encode(&self.pr, &self.identifying, Some(settings), self.sanitize_journal.as_ref())
    }

    /// The same with other identifying information.
    fn to_save_with_information(&self, information: &IdentifyingInformation) -> Vec<u8> {
        let (settings, work) = (self.saved_settings.as_ref(), self.sanitize_journal.as_ref());
        persistent_state::encode(&self.pr, information, settings, work)
    }

    /// The same without work on the whole medium.
    pub(crate) fn to_save_without_work(&self) -> Vec<u8> {
        persistent_state::encode(&self.pr, &self.identifying, self.saved_settings.as_ref(), None)
    }

    /// Returns what a nexus is to the persistent reservation.
    fn pr_role(&self, nexus: NexusId) -> PrRole {
        match self.pr_roles.binary_search_by_key(&nexus, |(id, _)| *id) {
            Ok(at) => self.pr_roles.get(at).map_or(PrRole::Unregistered, |(_, standing)| *standing),
            Err(_) => PrRole::Unregistered,
        }
    }

    /// Returns why the medium cannot be used.
    pub(crate) const fn not_ready(&self) -> Option<Sense> {
        self.removal.not_ready()
    }

    /// The effects of a nexus loss (SAM-5 §6.3.4): what belongs to the session goes, registrations stay.
    pub(crate) fn nexus_lost(&mut self, nexus: NexusId) {
        self.release_holds(nexus);
        self.data_buffers.lose(nexus);
    }

    /// Gives up what a nexus holds against others, and may not hold any more.
    pub(crate) fn release_holds(&mut self, nexus: NexusId) {
        self.spc2_reservation.lose(nexus);
        self.removal.allow(nexus);
    }

    /// The effects of a reset (SAM-5 §6.3.3): the same for every nexus. The medium stays in or out.
    pub(crate) fn reset(&mut self) {
        self.spc2_reservation.reset();
        self.removal.reset();
        self.data_buffers.reset();
    }
}

impl DeviceServer {
    /// Takes note that nexuses came or went, or that the persistent reservation changed.
    pub(crate) fn refresh_pr_roles(&mut self) {
        let pr = &self.spc.pr;
        let standing = |nexus| pr.role_of(&NexusName::of(nexus));
        self.spc.pr_roles =
            self.nexuses.iter().map(|state| (state.nexus.id, standing(&state.nexus))).collect();
    }

    /// The settings of a unit that nobody has touched.
    pub(crate) const fn default_settings(&self) -> Settings {
        Settings::new(self.info.config.write_cache, self.info.config.tasks)
    }

    /// What a start and a reset bring back: what was saved, or else the defaults. A write cache that the configuration
    /// forbids is not brought back.
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

/// Parameter data with an allocation length.
const fn data(bytes: Vec<u8>, allocation: u32) -> Outcome {
    Outcome::ParameterData { bytes, allocation: allocation as u64 }
}

/// Parameter data, or the sense that tells why there is none.
fn data_or(bytes: Result<Vec<u8>, Sense>, allocation: u32) -> Outcome {
    bytes.map_or_else(Outcome::CheckCondition, |bytes| data(bytes, allocation))
}

/// GOOD, or the sense that tells why not.
fn good_or(result: Result<(), Sense>) -> Outcome {
    result.map_or_else(Outcome::CheckCondition, |()| Outcome::Good)
}

const fn length_error() -> Outcome {
    Outcome::CheckCondition(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR))
}

/// Cuts nothing and invents nothing: a parameter list that is not as long as the CDB said is an error.
fn whole(list: &[u8], announced: u32) -> Result<&[u8], Outcome> {
    if u32::try_from(list.len()) == Ok(announced) { Ok(list) } else { Err(length_error()) }
}

#[cfg(test)]
mod tests;
