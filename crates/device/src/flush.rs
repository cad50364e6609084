//! Flushes, which make acknowledged writes durable.

use scsi::sense::Sense;
use store::api::{Capabilities, Failure, OpAction, OpOutput};

use crate::contract::DeviceKind;
use crate::device_server::DeviceServer;
use crate::device_server::medium_failure::LOST_WRITES;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::fault_injection::{self, Bug};
use crate::task::TaskInfo;

/// Makes every acknowledged write durable, then continues.
pub(crate) struct FlushThen {
    /// Decides the outcome after the flush.
    pub(crate) then: fn(&mut DeviceServer, &TaskInfo) -> Outcome,
}

impl Job for FlushThen {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start if fault_injection::is_injected(Bug::FlushNothing) => {
                JobStep::Done((self.then)(server, task))
            }
            JobInput::Start => {
                server.submit(task, 0, OpAction::Flush);
                JobStep::Wait
            }
            JobInput::OpCompleted { result, .. } => JobStep::Done(match server.flushed(result) {
                Ok(()) => (self.then)(server, task),
                Err(sense) => Outcome::CheckCondition(sense),
            }),
            _ => JobStep::Wait,
        }
    }
}

impl DeviceServer {
    /// Returns whether a flush must succeed before every acknowledged write is durable. A disk that has no
    /// volatile cache any more still has to flush what it acknowledged while it had one, and until that has
    /// succeeded, what is lost must not be forgotten. Before the first flush it is not known what an earlier
    /// process acknowledged.
    pub(crate) fn has_to_flush(&self) -> bool {
        let Capabilities { volatile_cache, read_only, .. } = self.info.capabilities;
        let may_remain = self.medium.may_have_unflushed_changes() || !self.is_flush_trusted();
        volatile_cache || (!read_only && may_remain && self.is_disk())
    }

    /// Returns whether the write cache counts as enabled: it is enabled, or a flush is owed.
    pub(crate) fn has_write_cache(&self) -> bool {
        self.settings.write_cache || self.owes_flush()
    }

    /// Returns whether MODE SENSE reports the write cache as enabled. It does while writes are lost, too: a
    /// host that reads that it is disabled flushes no more, and would not learn of the loss.
    pub(crate) fn reports_write_cache(&self) -> bool {
        self.has_write_cache() || (self.is_disk() && !self.is_flush_trusted())
    }

    /// Returns whether the write cache is disabled, but was disabled without a flush, and something that was
    /// acknowledged under it is not known to be durable. A host that reads that it is disabled flushes no
    /// more.
    pub(crate) fn owes_flush(&self) -> bool {
        self.is_disk() && !self.settings.write_cache && self.medium.owes_flush()
    }

    /// Puts the power-on value of the write cache setting in force, without a flush.
    pub(crate) fn reset_write_cache(&mut self) {
        let is_enabled = self.power_on_settings().write_cache;
        if self.settings.write_cache && !is_enabled {
            self.medium.owe_flush();
        }
        self.settings.write_cache = is_enabled;
    }

    fn is_disk(&self) -> bool {
        self.info.config.device == DeviceKind::Disk
    }

    /// Checks the result of a flush that must make every write acknowledged before it durable. Once a flush
    /// has failed, the medium may have dropped its cached writes, and a later success does not prove
    /// otherwise.
    ///
    /// # Errors
    /// The sense data to answer with.
    pub(crate) fn flushed(&mut self, result: Result<OpOutput, Failure>) -> Result<(), Sense> {
        self.flushed_since(result)?;
        if self.is_flush_trusted() { Ok(()) } else { Err(LOST_WRITES) }
    }

    /// Checks the result of a flush that must make only writes of the same task durable: an older failure
    /// does not affect them.
    ///
    /// # Errors
    /// The sense data to answer with.
    pub(crate) fn flushed_since(&mut self, result: Result<OpOutput, Failure>) -> Result<(), Sense> {
        match result {
            Ok(_) => Ok(()),
            Err(failure) => Err(self.flush_failed(failure)),
        }
    }
}
