//! Making what was acknowledged durable, honestly.

use base::fault_injection::{self, Bug};
use scsi::sense::Sense;
use store::api::{Failure, OpAction, OpOutput};

use crate::server::{Core, LOST_WRITES};
use crate::task::TaskInfo;
use crate::verdict::{Job, JobInput, JobStep, Verdict};

/// Makes everything that was acknowledged durable, then goes on.
pub(crate) struct FlushThen {
    /// With what.
    pub(crate) then: fn(&mut Core, &TaskInfo) -> Verdict,
}

impl Job for FlushThen {
    fn step(&mut self, core: &mut Core, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start if fault_injection::is_injected(Bug::FlushNothing) => {
                JobStep::Done((self.then)(core, task))
            }
            JobInput::Start => {
                core.submit(task, 0, OpAction::Flush);
                JobStep::Wait
            }
            JobInput::Store { result, .. } => JobStep::Done(match core.flushed(result) {
                Ok(()) => (self.then)(core, task),
                Err(sense) => Verdict::Check(sense),
            }),
            _ => JobStep::Wait,
        }
    }
}

impl Core {
    /// Judges a flush that is to vouch for every write acknowledged before it. Once one has failed, the medium may
    /// have dropped what it held, and a later success says nothing about that.
    ///
    /// # Errors
    /// The sense data to answer with.
    pub(crate) fn flushed(&mut self, result: Result<OpOutput, Failure>) -> Result<(), Sense> {
        self.flushed_since(result)?;
        if self.can_vouch() { Ok(()) } else { Err(LOST_WRITES) }
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
