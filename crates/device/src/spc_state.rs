//! The state that the commands of every device type keep in a unit.

use alloc::vec::Vec;

use base::time::{Duration, Instant};
use scsi::sense::Sense;

use crate::contract::NexusId;
use crate::data_buffer::DataBuffers;
use crate::identifying_info::IdentifyingInformation;
use crate::log::Statistics;
use crate::medium_removal::MediumRemoval;
use crate::persistent_state::{self, PersistentState};
use crate::pr::{PersistentReservations, PrRole};
use crate::sanitizer::SanitizeJournal;
use crate::self_test::SelfTestResults;
use crate::settings::Settings;
use crate::spc2_reserve::Spc2Reservation;
use crate::timestamp::Timestamp;

/// The state that these commands keep in a unit.
#[derive(Debug)]
pub(crate) struct SpcState {
    pub(crate) pr: PersistentReservations,
    pub(crate) spc2_reservation: Spc2Reservation,
    pub(crate) removal: MediumRemoval,
    pub(crate) identifying: IdentifyingInformation,
    pub(crate) data_buffers: DataBuffers,
    pub(crate) self_tests: SelfTestResults,
    pub(crate) timestamp: Timestamp,
    /// The settings that a reset and the next start restore.
    pub(crate) saved_settings: Option<Settings>,
    /// A SANITIZE or FORMAT UNIT operation that is in progress or has failed.
    pub(crate) sanitize_journal: Option<SanitizeJournal>,
    /// Since when this object exists.
    pub(crate) started: Instant,
    /// For how long the unit had existed before, in the process that handed it over.
    pub(crate) ran_before: Duration,
    /// The values of the counters when LOG SELECT last reset them.
    pub(crate) counted_before: Statistics,
    /// The role of each nexus in the persistent reservation, by number: read for every command, changed
    /// rarely.
    pub(crate) pr_roles: Vec<(NexusId, PrRole)>,
}

impl SpcState {
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
            ran_before: Duration::ZERO,
            counted_before: Statistics::default(),
            pr_roles: Vec::new(),
        }
    }

    /// Returns the state of a unit of which nothing is saved, and that has existed for a time.
    pub(crate) fn started_before(now: Instant, ran_before: Duration) -> Self {
        Self { started: now, ran_before, ..Self::new(PersistentState::nothing()) }
    }

    /// Returns for how long the unit has existed.
    pub(crate) fn uptime(&self, now: Instant) -> Duration {
        self.ran_before.saturating_add(now.since(self.started))
    }

    /// Returns the state to be saved.
    pub(crate) fn to_save(&self) -> Vec<u8> {
        self.to_save_with(&self.pr)
    }

    /// Returns the state to be saved with other registrations and another reservation.
    pub(crate) fn to_save_with(&self, pr: &PersistentReservations) -> Vec<u8> {
        let (settings, work) = (self.saved_settings.as_ref(), self.sanitize_journal.as_ref());
        persistent_state::encode(pr, &self.identifying, settings, work)
    }

    /// Returns the state to be saved with other saved mode parameters.
    pub(crate) fn to_save_with_settings(&self, settings: &Settings) -> Vec<u8> {
        persistent_state::encode(&self.pr, &self.identifying, Some(settings), self.sanitize_journal.as_ref())
    }

    /// Returns the state to be saved with other identifying information.
    pub(crate) fn to_save_with_information(&self, information: &IdentifyingInformation) -> Vec<u8> {
        let (settings, work) = (self.saved_settings.as_ref(), self.sanitize_journal.as_ref());
        persistent_state::encode(&self.pr, information, settings, work)
    }

    /// Returns the state to be saved without a sanitize journal.
    pub(crate) fn to_save_without_work(&self) -> Vec<u8> {
        persistent_state::encode(&self.pr, &self.identifying, self.saved_settings.as_ref(), None)
    }

    /// Returns the role of a nexus in the persistent reservation.
    pub(crate) fn pr_role(&self, nexus: NexusId) -> PrRole {
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
