//! The copy manager (SPC-4 §5.17): EXTENDED COPY, and copies by ROD tokens as Windows makes them (ODX).
//!
//! It reads and writes units, its own among them, by [`crate::contract::ThirdPartyCall`]s in the name of the nexus that asked,
//! and by no other way: what that nexus may not do itself is not done for it. The target decides which unit a call
//! reaches.
//!
//! What is bytes stands in `scsi::copy`; here is what copies do and what becomes of tokens.

pub(crate) mod copy_limits;
mod executor;
mod extended;
pub(crate) mod operations;
mod results;
mod rod;
mod table;
pub(crate) mod token_secret;
pub(crate) mod tokens;
pub(crate) mod transfer;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;

use base::units::Blocks;
use scsi::copy::ListId;
use scsi::copy::list::ListIdUsage;
use scsi::copy::rod::BlockRange;
use scsi::sense::{Asc, Sense};
use scsi::status::Status;

use crate::contract::{NexusId, ThirdPartyUnit, UnitConfig};
use crate::device_server::DeviceServer;
use crate::outcome::{Job, Outcome};
use crate::task::TaskInfo;
use operations::{BeginError, OperationHandle, Operations};
use token_secret::Secrets;
use tokens::Tokens;

pub(crate) use table::ROWS;

/// What the copy manager of a unit keeps.
#[derive(Default)]
pub(crate) struct CopyManager {
    /// What goes on and what ended.
    pub(crate) operations: Operations,
    /// The tokens given out.
    pub(crate) tokens: Tokens,
    /// Where the secrets of tokens come from. Without them there are no tokens.
    secrets: Option<Secrets>,
    /// Work that goes on when its command has been answered.
    spawned: VecDeque<(NexusId, Box<dyn Job>)>,
}

impl CopyManager {
    /// Takes the seed of the secrets.
    pub(crate) fn seed(&mut self, entropy: &[u8; 32]) {
        self.secrets = Some(Secrets::from_seed(entropy));
    }

    /// Takes the next work that is to go on without a command.
    pub(crate) fn take_spawned(&mut self) -> Option<(NexusId, Box<dyn Job>)> {
        self.spawned.pop_front()
    }
}

/// What a copy is known by, as its command says.
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
/// What answers a command that cannot begin one now.
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

/// Does a copy in the task of its command, or behind it.
fn start(server: &mut DeviceServer, task: &TaskInfo, named: CopyIdentifier, job: Box<dyn Job>) -> Outcome {
    if named.immediate {
        server.copy_manager.spawned.push_back((task.nexus, job));
        Outcome::Good
    } else {
        Outcome::Run(job)
    }
}

/// How a unit names itself in calls that may come back to it.
fn own_unit(config: &UnitConfig) -> ThirdPartyUnit {
    let designator = scsi::vpd::Designator::naa(&config.identity.naa);
    ThirdPartyUnit::Designator {
        code_set: designator.code_set.0,
        kind: designator.kind.0,
        designator: designator.bytes,
    }
}

impl DeviceServer {
    /// Finds the blocks that a token of this unit stands for.
    ///
    /// # Errors
    /// The sense that answers a token that cannot be used.
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
