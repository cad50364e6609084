//! The transports between initiators and logical units: the only part of a world that knows a transport
//! protocol.
//!
//! The world above a transport speaks SCSI: it submits [`ScsiCommand`]s on behalf of initiators and receives
//! [`TransportEvent`]s. A transport owns the state machines of both ends and everything between them.
//! [`Transport::advance`] moves it through time.

pub mod direct;
mod disks;
pub mod hyperscsi;
pub mod iscsi;

use ::transport::initiator::{Residual, TaskResult};
use base::time::Instant;

use crate::layout::Layout;
use crate::property::PropertyViolation;

/// A command to be sent.
#[derive(Clone, Debug)]
pub struct ScsiCommand {
    /// The logical unit.
    pub unit: u16,
    /// The command descriptor block.
    pub cdb: Vec<u8>,
    /// The data to send.
    pub data_out: Vec<u8>,
    /// How many bytes of data-in the initiator expects.
    pub data_in_len: u32,
    /// The task attribute.
    pub attribute: Attribute,
    /// Whether the command is immediate: it is delivered ahead of earlier commands.
    pub immediate: bool,
    /// Whether the initiator's state machine may execute the command again by itself in a new I_T nexus.
    pub replay: bool,
}

/// Task attributes (SAM-5 §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// The task may run in any order.
    Simple,
    /// The task runs after all earlier tasks, and before all later ones.
    Ordered,
    /// The task runs first.
    HeadOfQueue,
}

/// Identifies a command or a management request. The world assigns it and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// The command ended with a SCSI status.
    Status {
        /// The status.
        status: u8,
        /// Sense data, if there are any.
        sense: Vec<u8>,
        /// The data-in that was received.
        data: Vec<u8>,
    },
    /// The transport reports that the target failed to execute the command, in whole or in part.
    Failed,
    /// A task management function ended the command.
    Aborted,
    /// The command was refused and not executed.
    Refused,
    /// The command was lost: its outcome is unknown.
    Lost,
}

impl CommandOutcome {
    /// Translates what an initiator's session reports.
    fn of(end: TaskResult, data: Vec<u8>) -> Self {
        match end {
            TaskResult::Status(ending) => {
                let sense = ending.sense.map(|sense| sense.to_vec()).unwrap_or_default();
                Self::Status { status: ending.status, sense, data }
            }
            TaskResult::Failed(_) => Self::Failed,
            TaskResult::Aborted => Self::Aborted,
            TaskResult::Rejected(_) | TaskResult::NotSent => Self::Refused,
            TaskResult::Lost => Self::Lost,
        }
    }
}

/// Checks the residual count of a command that reads: what it expected and did not receive, whatever its
/// status is.
fn wrong_residual(ticket: Ticket, end: &TaskResult, expected: u32, received: usize) -> Option<String> {
    let TaskResult::Status(response) = end else { return None };
    let left = match response.residual {
        Residual::Underflow(left) => left,
        Residual::None | Residual::Overflow(_) => 0,
    };
    let is_right = usize::try_from(left).ok().and_then(|left| left.checked_add(received))
        == usize::try_from(expected).ok();
    let how = || format!("order {} expected {expected} bytes, received {received}", ticket.0);
    (expected > 0 && !is_right).then(|| format!("{}, and the residual is {:?}", how(), response.residual))
}

/// A task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskManagement {
    /// ABORT TASK.
    AbortTask(Ticket),
    /// ABORT TASK SET.
    AbortTaskSet(u16),
    /// CLEAR TASK SET.
    ClearTaskSet(u16),
    /// LOGICAL UNIT RESET.
    UnitReset(u16),
    /// TARGET WARM RESET.
    WarmReset,
    /// TARGET COLD RESET.
    ColdReset,
    /// QUERY TASK.
    QueryTask(Ticket),
}

/// An event that a transport reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportEvent {
    /// A command ended. Reported once for each command that was accepted.
    Ended {
        /// The initiator that sent the command.
        initiator: usize,
        /// The command.
        ticket: Ticket,
        /// The outcome.
        ended: CommandOutcome,
    },
    /// A management request ended. Reported once for each request that was accepted.
    TmfDone {
        /// The initiator that sent the request.
        initiator: usize,
        /// The request.
        ticket: Ticket,
        /// Whether the function succeeded; `None` if the request was not answered.
        answer: Option<bool>,
    },
    /// An initiator has a session and reaches its units.
    Up {
        /// The initiator.
        initiator: usize,
        /// Whether the I_T nexus is new: the target has lost all state of the former one, so that no lost
        /// command can be executed any more.
        is_new_nexus: bool,
    },
    /// An initiator has no session and does not reach its units.
    Down {
        /// The initiator.
        initiator: usize,
        /// Whether the initiator has given up for good.
        is_final: bool,
    },
    /// An end of a connection of a session lost it. The session may live on.
    ConnectionLost {
        /// The initiator.
        initiator: usize,
    },
    /// A new configuration is in force: from now on, LUNs lead to the disks of this layout.
    ConfigApplied(Layout),
}

/// A transport: everything between initiators and logical units.
pub trait Transport {
    /// Sends a command. Returns whether the initiator's state machine accepted it.
    fn submit(&mut self, now: Instant, initiator: usize, ticket: Ticket, order: ScsiCommand) -> bool;

    /// Requests a task management function. Returns whether the initiator's state machine accepted it.
    fn task_management(
        &mut self,
        now: Instant,
        initiator: usize,
        ticket: Ticket,
        function: TaskManagement,
    ) -> bool;

    /// Returns the next event.
    fn poll(&mut self) -> Option<TransportEvent>;

    /// Returns when the next timer or I/O event of the transport is due.
    fn next_deadline(&self) -> Option<Instant>;

    /// Returns a text that lists which part waits for which deadline.
    fn pending_deadlines(&self) -> String;

    /// Processes everything that is due. Also called when media have completions.
    fn advance(&mut self, now: Instant);

    /// Ends the I_T nexus of an initiator at once and begins a new one: the last resort of block layers when
    /// task management is not answered.
    fn reset_nexus(&mut self, now: Instant, initiator: usize);

    /// Stops fault injection from now on.
    fn stop_faults(&mut self, now: Instant);

    /// Logs out every initiator.
    fn close(&mut self, now: Instant);

    /// Cuts the power of the target: its state machine and all its I_T nexuses are lost. The target restarts
    /// with the contents that its media kept; initiators reach it after a delay.
    fn crash(&mut self, now: Instant);

    /// Changes which disks the LUNs lead to. If a disk that is to be served again is not closed yet, the
    /// reload waits until it is. A new reload replaces one that still waits.
    fn reload(&mut self, _now: Instant, _layout: Layout) {}

    /// Returns how many bytes of data the target holds for commands.
    fn data_held(&self) -> usize {
        0
    }

    /// Returns when the last fault happened between the two ends. A command may have to wait until recovery
    /// has repaired it.
    fn last_fault(&self) -> Instant;

    /// Returns a text that says which part of the target still holds tasks, sessions or memory; `None` when
    /// the target is idle.
    fn busy_reason(&self) -> Option<String>;

    /// Returns how often a state machine found itself in an impossible state.
    fn bugs(&self) -> u64;

    /// Takes the broken properties that the transport found since the last call.
    fn take_violations(&mut self) -> Vec<PropertyViolation>;

    /// Returns how often each counted event happened. Counters of zero are included, so that an event that
    /// never happens shows.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Returns a text that summarises the run.
    fn summary(&self) -> String;
}
