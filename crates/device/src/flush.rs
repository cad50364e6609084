//! Making what was acknowledged durable, honestly.

use base::fault_injection::{self, Bug};
use scsi::sense::Sense;
use store::api::{Failure, OpAction, OpOutput};

use crate::device_server::{DeviceServer, LOST_WRITES};
use crate::outcome::{Job, JobInput, JobStep, Outcome};
use crate::task::TaskInfo;

/// Makes everything that was acknowledged durable, then goes on.
pub(crate) struct FlushThen {
    /// With what.
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
    /// Judges a flush that is to vouch for every write acknowledged before it. Once one has failed, the medium may
    /// have dropped what it held, and a later success says nothing about that.
    ///
    /// # Errors
    /// The sense data to answer with.
    pub(crate) fn flushed(&mut self, result: Result<OpOutput, Failure>) -> Result<(), Sense> {
        self.flushed_since(result)?;
        if self.is_flush_trusted() { Ok(()) } else { Err(LOST_WRITES) }
    }

    /// Judges a flush that is only to vouch for writes of the same task: an older failure does not concern them.
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
