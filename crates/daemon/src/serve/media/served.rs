//! Media on their reactor, as the daemon deals with them: each kind implements what it needs of
//! [`ServedMedium`].

use std::any::Any;
use std::borrow::Cow;
use std::path::PathBuf;

use backends::store::FileSpace;
use base::units::ByteLen;
use scsi::sense::{Asc, Sense};
use store::Store;
use store::null::Null;
use target::target::UnitReport;

use super::handed_over::{MovingMedium, Obstacle};
use super::known_loss::{NotAccepted, RecordLoss, SyncSender};
use super::lost_writes::LossSubject;
use crate::config::Unit;

/// Notifies the reactor of a medium, from another thread, that the medium has results.
pub(in crate::serve) type Wake = Box<dyn Fn() + Send>;

/// Makes the function that has the losses of a medium recorded.
pub(in crate::serve) type LossRecorder<'a> = &'a dyn Fn(LossSubject) -> RecordLoss;

/// A medium on its reactor. The logical unit uses its store, and the daemon asks the rest of it. The reactor
/// finds by its type what only one kind can do.
pub(in crate::serve) trait ServedMedium: Any {
    /// Makes the store that the unit uses.
    fn store(&self) -> Box<dyn Store>;

    /// Lets it execute operations. Called once the process serves its unit, and again when a live upgrade has
    /// failed.
    fn start(&self, _wake: Wake) {}

    /// Applies the settings of its unit, except that it does not enable the write cache.
    fn configure(&self, _unit: &Unit) {}

    /// Lets it acknowledge writes before they are durable.
    fn enable_write_cache(&self) {}

    /// Opens what was removed from this host again, or accepts an export that is withheld as it is now.
    /// Returns whether it was withheld. What a device finds is logged later.
    fn reopen(&self, _unit: &Unit) -> bool {
        false
    }

    /// Returns its state and its failures.
    fn health(&self) -> MediumHealth {
        MediumHealth::default()
    }

    /// Returns its capacity in bytes, if the unit does not know it.
    fn capacity(&self) -> Option<u64> {
        None
    }

    /// Says why hosts find the unit not ready, if they do.
    fn why_not_ready(&self, report: &UnitReport) -> Option<Cow<'static, str>> {
        report.not_ready.map(|sense| describe_not_ready(sense).into())
    }

    /// Has lost writes recorded. `known` is the reason of a loss that is recorded already.
    fn record_losses(&self, _unit: &Unit, _recorder: LossRecorder<'_>, _known: Option<&str>) {}

    /// Returns by what a later process recognises what has lost writes.
    fn loss_subject(&self, _unit: &Unit) -> Option<LossSubject> {
        None
    }

    /// Begins to accept what is lost. `has_failed_flush` says whether the unit knows of a loss. Sends the
    /// result when everything else is durable. The caller polls the medium then.
    ///
    /// # Errors
    /// [`NotAccepted`]
    fn begin_acceptance(&self, has_failed_flush: bool, done: SyncSender) -> Result<(), NotAccepted> {
        accept_of_unit(has_failed_flush, &done)
    }

    /// Ends the acceptance. `is_accepted` says whether the flush has succeeded and the record is removed.
    /// Returns whether it serves without a loss now.
    fn end_acceptance(&self, is_accepted: bool) -> bool {
        is_accepted
    }

    /// Accepts its failures. Returns which these were, if there were any.
    fn accept_failure(&self) -> Option<String> {
        None
    }

    /// Returns why another process cannot serve it as this one does, if that is so.
    fn obstacle(&self) -> Option<Obstacle> {
        None
    }

    /// Returns which process does not answer, if the medium is one of another process.
    fn away(&self) -> Option<String> {
        None
    }

    /// Returns what is under way, if anything is.
    fn busy(&self) -> Option<Obstacle> {
        None
    }

    /// Returns it for another process. Nothing is under way.
    ///
    /// # Errors
    /// A sentence that says why it cannot move.
    fn export(&self, _unit: &str) -> Result<Option<MovingMedium>, String> {
        Ok(None)
    }

    /// Lets go of a process that another process is about to use.
    fn leave_process(&self) {}
}

/// Begins to accept a loss that only the unit knows of: nothing has to be flushed before.
///
/// # Errors
/// [`NotAccepted`]
pub(in crate::serve) fn accept_of_unit(has_failed_flush: bool, done: &SyncSender) -> Result<(), NotAccepted> {
    if !has_failed_flush {
        return Err(NotAccepted::NothingLost);
    }
    // The thread may have given up.
    let _ = done.send(Ok(()));
    Ok(())
}

/// The state and the failures of a medium.
#[derive(Clone, Debug, Default)]
pub(in crate::serve) struct MediumHealth {
    /// How many operations failed so far.
    pub(in crate::serve) errors: u64,
    /// Why it is withheld or gone, if it is.
    pub(in crate::serve) withheld: Option<String>,
    /// Why acknowledged writes are lost, if some are.
    pub(in crate::serve) lost_writes: Option<String>,
    /// Which operations have failed that nothing has made good, if any have.
    pub(in crate::serve) failure: Option<String>,
    /// The path of its file, and what that takes from its file system, if that is known.
    pub(in crate::serve) space: Option<(PathBuf, FileSpace)>,
    /// Whether it is a drive without a disc that can be written.
    pub(in crate::serve) is_rom: bool,
}

/// No storage: reads return zeros.
#[derive(Debug)]
pub(in crate::serve) struct NoStorage(pub(in crate::serve) ByteLen);

impl ServedMedium for NoStorage {
    fn store(&self) -> Box<dyn Store> {
        Box::new(Null::new(self.0.0))
    }
}

/// Says why hosts find a unit not ready that its medium has no reason for.
pub(in crate::serve) const fn describe_not_ready(sense: Sense) -> &'static str {
    match sense.asc {
        Asc::NOT_READY_INITIALIZING_COMMAND_REQUIRED => "an initiator has stopped it",
        Asc::NOT_READY_BECOMING_READY => "it is becoming ready",
        Asc::NOT_READY_MANUAL_INTERVENTION_REQUIRED => "its medium is withheld",
        Asc::LOGICAL_UNIT_DOES_NOT_RESPOND_TO_SELECTION => "its medium does not answer",
        Asc::SANITIZE_IN_PROGRESS => "SANITIZE erases it",
        Asc::FORMAT_IN_PROGRESS => "FORMAT UNIT erases it",
        Asc::SANITIZE_COMMAND_FAILED => "SANITIZE has failed",
        _ => "hosts find it not ready",
    }
}
