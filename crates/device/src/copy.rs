//! The copy manager (SPC-4 §5.17): EXTENDED COPY, and copies by ROD tokens as Windows uses them (ODX).
//!
//! It reads and writes units, its own among them, only with [`crate::contract::ThirdPartyCall`]s on behalf of
//! the nexus that requested the copy. So a copy cannot do what that nexus may not do itself. The target
//! decides which unit a call reaches.
//!
//! `scsi::copy` defines the encodings; this module implements the copies and manages the tokens.

pub(crate) mod copy_limits;
mod executor;
mod extended;
mod results;
mod rod;
mod table;
pub(crate) mod transfer;

use alloc::boxed::Box;
use alloc::rc::Rc;

use base::units::Blocks;
use scsi::copy::ListId;
use scsi::copy::list::ListIdUsage;
use scsi::copy::rod::BlockRange;
use scsi::sense::{Asc, Sense};
use scsi::status::Status;

use crate::contract::{ThirdPartyUnit, UnitConfig};
use crate::copy_manager::operations::{BeginError, OperationHandle};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, Outcome};
use crate::task::TaskInfo;

pub(crate) use table::ROWS;

/// How the command identifies its copy.
#[derive(Clone, Copy, Debug)]
struct CopyIdentifier {
    list_id: ListId,
    usage: ListIdUsage,
    /// Whether the command is to be answered before the copy ends.
    immediate: bool,
}

/// Registers an operation.
///
/// # Errors
/// The outcome of a command that cannot begin an operation now.
fn register(
    server: &mut DeviceServer,
    task: &TaskInfo,
    named: CopyIdentifier,
) -> Result<OperationHandle, Outcome> {
    let action = task.cdb.u8(1) & 0x1f;
    let begun =
        server.copy_manager.operations.begin(task.nexus, named.list_id, named.usage, action, named.immediate);
    begun.map_err(|why| match why {
        BeginError::InUse => Outcome::CheckCondition(Sense::illegal(Asc::OPERATION_IN_PROGRESS)),
        BeginError::TooMany => Outcome::Status(Status::BUSY),
    })
}

/// Runs a copy in the task of its command, or in the background.
fn start(server: &mut DeviceServer, task: &TaskInfo, named: CopyIdentifier, job: Box<dyn Job>) -> Outcome {
    if named.immediate {
        server.spawn(task, job);
        Outcome::Good
    } else {
        Outcome::Run(job)
    }
}

/// Returns the name that a unit uses for itself in calls that may lead back to it.
fn own_unit(config: &UnitConfig) -> ThirdPartyUnit {
    let designator = scsi::vpd::Designator::naa(&config.identity.naa);
    ThirdPartyUnit::Designator {
        code_set: designator.code_set.0,
        kind: designator.kind.0,
        designator: designator.bytes,
    }
}

impl DeviceServer {
    /// Finds the blocks that a token of this unit represents.
    ///
    /// # Errors
    /// The sense data for a token that cannot be used.
    pub(crate) fn resolve_token(
        &mut self,
        token: &Rc<[u8]>,
        offset: Blocks,
        blocks: Blocks,
    ) -> Result<BlockRange, Sense> {
        self.copy_manager.tokens.resolve(self.now, token, offset, blocks)
    }
}

#[cfg(test)]
mod tests;
