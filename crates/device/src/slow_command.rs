//! Slow commands: which took longer than the operator's limit, and where their time went.

use base::time::{Duration, Instant};

use crate::contract::NexusId;

/// A command that took longer than the limit.
///
/// The times overlap where a command does several things at once: they are no parts of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowCommand {
    /// The nexus that sent it.
    pub nexus: NexusId,
    /// The operation code.
    pub opcode: u8,
    /// The name of the command in its standard; empty if the unit does not know it.
    pub name: &'static str,
    /// The bytes that the initiator expected or sent.
    pub bytes: u32,
    /// The time from its arrival at the unit to its status.
    pub took: Duration,
    /// How long it waited for its turn in the task set.
    pub queued: Duration,
    /// How long an operation of the medium was under way for it, with the waits for overlapping commands.
    pub medium: Duration,
    /// How long it waited for data of the initiator.
    pub network: Duration,
    /// How many more commands were slow since the unit reported one last.
    pub unreported: u64,
}

/// The slow commands of a unit.
#[derive(Debug, Default)]
pub(crate) struct SlowCommands {
    /// From which time on a command is slow; `None` for no limit.
    pub(crate) limit: Option<Duration>,
    /// The command to report.
    pub(crate) report: Option<SlowCommand>,
    /// How many were slow since the last one that was reported.
    pub(crate) unreported: u64,
    /// When the next one may be reported.
    pub(crate) next_report: Instant,
}
