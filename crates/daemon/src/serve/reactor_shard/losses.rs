//! Writes that disks have lost, and the operator's acceptance of that.

use std::sync::Arc;

use base::state_machine::{MediumId, StreamMachine as _};
use base::time::Instant;
use target::units::UnitId;

use super::ReactorShard;
use crate::config::Unit;
use crate::serve::media::known_loss::{NotAccepted, RecordLoss, RecordProgress, SyncSender};
use crate::serve::media::lost_writes::{LossRecord, LossSubject};
use crate::serve::media::served::ServedMedium;
use crate::serve::state_writer::{LossWrite, StateJob};

impl ReactorShard {
    /// Has the losses of the medium of a unit recorded. `known` is the reason of a loss that is recorded
    /// already.
    pub(super) fn record_losses_of(
        &self,
        id: UnitId,
        unit: &Unit,
        medium: &dyn ServedMedium,
        known: Option<&str>,
    ) {
        let recorder = |subject| -> RecordLoss { Box::new(self.loss_recorder(id, unit, subject)) };
        medium.record_losses(unit, &recorder, known);
    }

    fn loss_recorder(
        &self,
        id: UnitId,
        unit: &Unit,
        subject: LossSubject,
    ) -> impl Fn(&str, Arc<RecordProgress>) + use<> {
        let (reactor, state_writer, label) =
            (self.own.clone(), self.state_writer.clone(), unit.label.clone());
        move |why, progress| {
            let record = LossRecord::new(&subject, why);
            let (reactor, subject, label) = (reactor.clone(), subject.clone(), label.clone());
            // The state writer outlives every reactor, so sending cannot fail.
            let write = LossWrite { reactor, unit: id, label, subject, record, progress };
            let _ = state_writer.send(StateJob::Loss(write));
        }
    }

    /// Handles the end of the write of a record: hosts learn of the loss now.
    pub(in crate::serve) fn loss_recorded(&mut self, now: Instant, id: UnitId) {
        if self.media.get(&id).is_some_and(|medium| medium.health().lost_writes.is_some()) {
            self.shard.record_lost_writes(now, id);
        }
        self.medium_ready(now, MediumId(id.0));
    }

    /// Makes what a disk acknowledged durable, and sends the result. Units of other reactors are ignored.
    pub(in crate::serve) fn sync_disk(&mut self, now: Instant, id: UnitId, done: SyncSender) {
        if let Some(disk) = self.disk(id) {
            disk.begin_sync(done);
            self.medium_ready(now, MediumId(id.0));
        }
    }

    /// Begins to accept what a unit has lost; `None` if it is not a unit of this reactor. A unit without a
    /// file or device has nothing that must be flushed before.
    pub(in crate::serve) fn begin_acceptance(
        &mut self,
        now: Instant,
        id: UnitId,
        done: SyncSender,
    ) -> Option<Result<(), NotAccepted>> {
        self.state_files.get(&id)?;
        let reports = self.shard.units();
        let has_failed = reports.iter().any(|report| report.unit == id && report.has_failed_flush);
        if let Err(why) = self.media.get(&id)?.begin_acceptance(has_failed, done) {
            return Some(Err(why));
        }
        self.medium_ready(now, MediumId(id.0));
        Some(Ok(()))
    }

    /// Ends the acceptance; returns whether flushes of the unit succeed again, `None` if it is not a unit of
    /// this reactor.
    pub(in crate::serve) fn end_acceptance(
        &mut self,
        now: Instant,
        id: UnitId,
        is_accepted: bool,
    ) -> Option<bool> {
        self.state_files.get(&id)?;
        let is_sound = self.media.get(&id)?.end_acceptance(is_accepted);
        if is_sound {
            self.shard.accept_lost_writes(now, id);
        }
        Some(is_sound)
    }

    /// Returns why acknowledged writes of a unit of this reactor are lost, if some are.
    pub(in crate::serve) fn lost_writes(&self, id: UnitId) -> Option<String> {
        self.units().into_iter().find(|view| view.report.unit == id)?.health.lost_writes
    }

    /// Accepts the failures of the file or device of a unit of this reactor; returns which these were, if
    /// there were any.
    pub(in crate::serve) fn accept_failure(&self, id: UnitId) -> Option<String> {
        self.media.get(&id)?.accept_failure()
    }

    /// Describes the file, device or export of a unit of this reactor, for the record of a loss.
    pub(in crate::serve) fn loss_subject(&self, id: UnitId) -> Option<LossSubject> {
        self.media.get(&id)?.loss_subject(self.runtime.unit(id)?)
    }
}
