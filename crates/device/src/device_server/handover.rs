//! Hands the state of a device server over to the next process.

use alloc::boxed::Box;

use base::time::{Duration, Instant};
use scsi::sense::Asc;
use security::random::HmacDrbg;

use super::{DeviceServer, Retiring, UnitInfo};
use crate::contract::TaskRules;
use crate::copy_manager::CopyManager;
use crate::copy_manager::operations::Operations;
use crate::copy_manager::tokens::Tokens;
use crate::data_buffer::DataBuffers;
use crate::document::{IndexOf, NexusOf, RestoreError};
use crate::drain::Drain;
use crate::handover::counters::{ErrorsState, StatisticsState, StatsState};
use crate::handover::{DrainState, ReportedState, ServerState, SpcSection, UnitBusy};
use crate::identifying_info::IdentifyingInformation;
use crate::medium_removal::MediaEvent;
use crate::nexus::handover::RestoredNexuses;
use crate::orw_generation::OrwGenerations;
use crate::passed_device::PassedDevice;
use crate::pr::PersistentReservations;
use crate::recorder::Recorder;
use crate::sanitizer::Sanitizer;
use crate::self_test::SelfTestResults;
use crate::settings::{NexusSettings, Settings};
use crate::spc_state::SpcState;
use crate::spc2_reserve::Spc2Reservation;
use crate::tape_drive::TapeDrive;
use crate::timestamp::Timestamp;

/// The state of a document, checked.
pub(crate) struct RestoredServer {
    nexuses: RestoredNexuses,
    settings: Settings,
    spc: SpcState,
    orw_generations: OrwGenerations,
    operations: Operations,
    tokens: Tokens,
    recorder: Option<Box<Recorder>>,
    tape: Option<Box<TapeDrive>>,
    sanitizer: Sanitizer,
}

impl DeviceServer {
    /// Returns what keeps the device server from being handed over, apart from tasks.
    pub(crate) fn busy(&self) -> Option<UnitBusy> {
        let is_moving = self.changer.as_ref().is_some_and(|changer| changer.is_moving());
        [
            (!matches!(self.retiring, Retiring::No), UnitBusy::Retiring),
            (self.sanitizer.is_running(), UnitBusy::Sanitizing),
            (!self.saves.is_idle(), UnitBusy::Saving),
            (!matches!(self.drain, Drain::No | Drain::Ended { .. }), UnitBusy::Draining),
            (self.withheld, UnitBusy::Withheld),
            (is_moving, UnitBusy::Motion),
            (self.copy_manager.operations.running() > 0 || !self.spawned.is_empty(), UnitBusy::Background),
            (!self.medium.is_at_rest() || !self.refused.is_empty(), UnitBusy::Medium),
            (!self.calls.is_empty() || !self.peer_fetches.is_empty(), UnitBusy::Commands),
            (!self.woken.is_empty() || !self.drains.is_empty(), UnitBusy::Commands),
            (!self.closing_cache.is_empty(), UnitBusy::Commands),
            (!self.events.is_empty(), UnitBusy::Events),
        ]
        .into_iter()
        .find_map(|(is_busy, why)| is_busy.then_some(why))
        .or_else(|| self.tape.as_ref()?.busy())
    }

    /// Returns whether the device server has done nothing yet but know its nexuses.
    pub(crate) fn is_untouched(&self) -> bool {
        let has_work = !self.events.is_empty() || !self.calls.is_empty() || !self.spawned.is_empty();
        !has_work && self.saves.is_idle() && self.medium.is_at_rest()
    }

    /// Returns the state of a device server that is not busy.
    pub(crate) fn export(&self, now: Instant, index_of: IndexOf<'_>) -> ServerState {
        // Every field is named here, so that a new one is not forgotten; `handover` has the decisions.
        let Self {
            now: _,
            info: _,
            settings,
            spc,
            sanitizer,
            orw_generations,
            nexuses,
            tape,
            recorder,
            changer,
            pass_through,
            command_set: _,
            table: _,
            pool: _,
            stats,
            slow: _,
            medium,
            copy_manager: CopyManager { operations, tokens, secrets: _ },
            spawned: _,
            events: _,
            peer_fetches: _,
            woken: _,
            refused: _,
            calls: _,
            call_next: _,
            withheld: _,
            drain,
            flush_failed,
            errors,
            idle: _,
            idle_since: _,
            full_at,
            space_threshold,
            saves: _,
            operator_removal: _,
            closing_cache: _,
            drains: _,
            retiring: _,
        } = self;
        let idle = self.idle_since.map_or(self.idle, |since| self.idle.saturating_add(now.since(since)));
        ServerState {
            reported: self.reported(),
            nexuses: nexuses.export(index_of),
            settings: settings.export(),
            owes_flush: self.owes_flush(),
            spc: spc.export(now, sanitizer, index_of),
            orw_generations: orw_generations.export(),
            copies: operations.export(index_of),
            tokens: tokens.export(now),
            stats: StatsState::of(stats),
            errors: ErrorsState::of(errors),
            idle_ns: nanoseconds(idle),
            flush_failed: *flush_failed || medium.has_late_flush_failure(),
            full_at: *full_at,
            space_threshold: *space_threshold,
            drain: match drain {
                Drain::Ended { flush_failed } => Some(DrainState { flush_failed: *flush_failed }),
                Drain::No | Drain::Ending | Drain::Saving | Drain::Flushing => None,
            },
            recorder: recorder.as_ref().map(|recorder| recorder.export()),
            pass_through: pass_through.as_ref().map(|passed| passed.export()),
            tape: tape.as_ref().map(|drive| drive.export(index_of)),
            unusable_cartridges: changer
                .as_ref()
                .map(|changer| changer.unusable.iter().cloned().collect())
                .unwrap_or_default(),
        }
    }

    /// Returns what initiators know of the configuration and of the medium.
    fn reported(&self) -> ReportedState {
        let UnitInfo { config, capabilities: _, writable: _, tells_space: _, makes_tokens: _ } = &self.info;
        let TaskRules { nexus_task_sets, task_aborted_status } = config.tasks;
        ReportedState {
            device_type: self.command_set.device_type.0,
            is_pass_through: self.pass_through.is_some(),
            block_len: config.block_size.bytes(),
            capacity: self.info.capacity().0,
            write_cache: config.write_cache,
            read_only: config.read_only,
            nexus_task_sets,
            task_aborted_status,
        }
    }

    /// Checks the state of a document.
    ///
    /// # Errors
    /// [`RestoreError`] for state that no unit like this one has.
    pub(crate) fn check(
        &self,
        now: Instant,
        state: &ServerState,
        nexus_of: NexusOf<'_>,
    ) -> Result<RestoredServer, RestoreError> {
        let (was, is) = (&state.reported, self.reported());
        if (was.device_type, was.is_pass_through) != (is.device_type, is.is_pass_through) {
            return Err(RestoreError::DeviceType);
        }
        if was.block_len != is.block_len {
            return Err(RestoreError::BlockLength);
        }
        if state.pass_through.is_some() != self.pass_through.is_some() {
            return Err(RestoreError::DeviceType);
        }
        let image_len = self.medium.capabilities().len;
        let recorder = match (&state.recorder, &self.recorder) {
            (None, None) => None,
            (Some(state), Some(known)) => Some(Box::new(known.restored(state, image_len)?)),
            _ => return Err(RestoreError::DiscRecord),
        };
        let tape = match (&state.tape, &self.tape) {
            (None, None) => None,
            (Some(state), Some(_)) => {
                Some(Box::new(TapeDrive::restored(state, self.info.has_medium(), nexus_of)?))
            }
            _ => return Err(RestoreError::DeviceType),
        };
        let (spc, sanitizer) = self.check_spc(now, &state.spc, nexus_of)?;
        let mut settings = Settings::restore(&state.settings, self.info.config.tasks.nexus_task_sets)?;
        let of_nexuses = core::mem::take(&mut settings.nexus);
        Ok(RestoredServer {
            nexuses: RestoredNexuses::of(&state.nexuses, of_nexuses, nexus_of)?,
            settings,
            spc,
            orw_generations: OrwGenerations::restore(&state.orw_generations),
            operations: Operations::restore(&state.copies, nexus_of)?,
            tokens: Tokens::restore(now, &state.tokens)?,
            recorder,
            tape,
            sanitizer,
        })
    }

    fn check_spc(
        &self,
        now: Instant,
        state: &SpcSection,
        nexus_of: NexusOf<'_>,
    ) -> Result<(SpcState, Sanitizer), RestoreError> {
        let nexus_task_sets = self.info.config.tasks.nexus_task_sets;
        // Settings of nexuses are not saved; earlier releases kept those of all hosts with the others.
        let settings = |state| {
            let settings = Settings::restore(state, nexus_task_sets)?;
            Ok::<_, RestoreError>(Settings { nexus: NexusSettings::DEFAULT, ..settings })
        };
        let (sanitizer, sanitize_journal) = Sanitizer::restore(state.sanitize_failure.as_ref());
        let spc = SpcState {
            pr: PersistentReservations::restore(&state.reservations)?,
            spc2_reservation: Spc2Reservation::of_holder(state.spc2_holder.and_then(nexus_of)),
            removal: self.spc.removal.restored(&state.removal, self.info.has_medium(), nexus_of)?,
            identifying: IdentifyingInformation::restore(&state.identifying)?,
            data_buffers: DataBuffers::restore(&state.data_buffers, nexus_of)?,
            self_tests: SelfTestResults::restore(&state.self_tests)?,
            timestamp: Timestamp::restore(now, state.timestamp).ok_or(RestoreError::Timestamp)?,
            saved_settings: state.saved_settings.as_ref().map(settings).transpose()?,
            sanitize_journal,
            counted_before: state.counted_before.restore(),
            ..SpcState::started_before(now, Duration::from_nanos(state.uptime_ns))
        };
        Ok((spc, sanitizer))
    }

    /// Takes over the state of a document.
    pub(crate) fn adopt(&mut self, now: Instant, state: &ServerState, restored: RestoredServer) {
        let RestoredServer {
            nexuses,
            settings,
            spc,
            orw_generations,
            operations,
            tokens,
            recorder,
            tape,
            sanitizer,
        } = restored;
        self.now = now;
        self.nexuses.adopt(nexuses);
        self.settings = settings;
        if self.settings.write_cache || state.owes_flush {
            self.medium.assume_owed_flush();
        }
        self.spc = spc;
        self.sanitizer = sanitizer;
        self.orw_generations = orw_generations;
        self.copy_manager.operations = operations;
        self.copy_manager.tokens = tokens;
        self.stats = state.stats.restore();
        self.errors = state.errors.restore();
        self.idle = Duration::from_nanos(state.idle_ns);
        self.idle_since = Some(now);
        // The owner may have reported a loss already.
        self.flush_failed |= state.flush_failed;
        self.full_at = state.full_at;
        // The owner may have measured the storage already.
        self.space_threshold = state.space_threshold.or(self.space_threshold);
        self.drain = match state.drain {
            Some(DrainState { flush_failed }) => Drain::Ended { flush_failed },
            None => Drain::No,
        };
        self.info.capabilities = self.medium.adopt_capabilities();
        self.recorder = recorder;
        self.limit_to_disc();
        if let (Some(drive), Some(restored)) = (&mut self.tape, tape) {
            let random = core::mem::replace(&mut drive.encryption.random, HmacDrbg::empty());
            *drive = restored;
            drive.encryption.random = random;
        }
        if let Some(changer) = &mut self.changer {
            changer.unusable = state.unusable_cartridges.iter().cloned().collect();
        }
        if let (Some(passed), Some(state)) = (self.pass_through.as_deref_mut(), &state.pass_through) {
            PassedDevice::adopt(passed, state);
        }
        self.release_holds_of_readers();
        self.report_changes(state);
        self.refresh_pr_roles();
    }

    /// Releases what nexuses hold that have lost the right to hold it, because the configuration has changed.
    fn release_holds_of_readers(&mut self) {
        let readers: alloc::vec::Vec<_> = self
            .nexuses
            .iter()
            .filter(|state| state.nexus.access == crate::contract::Access::ReadOnly)
            .map(|state| state.nexus.id)
            .collect();
        for id in readers {
            self.spc.release_holds(id);
        }
    }

    /// Establishes the unit attentions for what has changed between both processes. INQUIRY DATA HAS CHANGED
    /// is none of them: the configuration is the same, so only another release can report other data. Linux
    /// fails the backup to a tape drive and the file system on a removable disk that receive it, and reads
    /// nothing anew.
    fn report_changes(&mut self, state: &ServerState) {
        let (was, is) = (&state.reported, self.reported());
        if (was.nexus_task_sets, was.task_aborted_status) != (is.nexus_task_sets, is.task_aborted_status) {
            let ReportedState { nexus_task_sets, task_aborted_status, .. } = *was;
            self.apply_task_rules(TaskRules { nexus_task_sets, task_aborted_status });
        }
        if was.write_cache != is.write_cache {
            self.reset_write_cache();
        }
        if (was.write_cache, was.read_only) != (is.write_cache, is.read_only) {
            self.nexuses.establish_ua_all(Asc::MODE_PARAMETERS_CHANGED, None);
        }
        if was.capacity != is.capacity {
            self.nexuses.establish_ua_all(Asc::CAPACITY_DATA_HAS_CHANGED, None);
        }
        match (state.spc.removal.is_loaded(), self.spc.removal.is_present()) {
            (false, true) => {
                self.nexuses.record_media_event(MediaEvent::NewMedia);
                self.nexuses.establish_ua_all(Asc::MEDIUM_MAY_HAVE_CHANGED, None);
            }
            (true, false) => self.nexuses.record_media_event(MediaEvent::MediaRemoval),
            (true, true) | (false, false) => {}
        }
    }
}

impl SpcState {
    fn export(&self, now: Instant, sanitizer: &Sanitizer, index_of: IndexOf<'_>) -> SpcSection {
        let uptime_ns = nanoseconds(self.uptime(now));
        let Self {
            pr,
            spc2_reservation,
            removal,
            identifying,
            data_buffers,
            self_tests,
            timestamp,
            saved_settings,
            sanitize_journal,
            started: _,
            ran_before: _,
            counted_before,
            pr_roles: _,
        } = self;
        SpcSection {
            reservations: pr.export(),
            spc2_holder: spc2_reservation.holder().and_then(index_of),
            removal: removal.export(index_of),
            identifying: identifying.export(),
            data_buffers: data_buffers.export(index_of),
            self_tests: self_tests.export(),
            timestamp: timestamp.export(now),
            saved_settings: saved_settings.as_ref().map(Settings::export),
            sanitize_failure: sanitizer.export(sanitize_journal.is_some()),
            uptime_ns,
            counted_before: StatisticsState::of(counted_before),
        }
    }
}

/// Returns a time in nanoseconds.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
