//! What lies between initiators and logical units: the only part of a world that knows a transport.
//!
//! The world above it speaks SCSI: it submits [`ScsiCommand`]s in the name of initiators and hears of [`TransportEvent`]s. A fabric owns
//! the machines of both ends and everything between them, and is moved through time by [`Transport::advance`].

pub mod direct;
mod disks;
pub mod hyperscsi;
pub mod iscsi;

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
    /// How many bytes are expected.
    pub data_in_len: u32,
    /// Its place in the task set.
    pub attribute: Attribute,
    /// Whether it goes ahead of others.
    pub immediate: bool,
    /// Whether the machine may carry it out again by itself in a new nexus.
    pub replay: bool,
}

/// Task attributes (SAM-5 §8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// In any order.
    Simple,
    /// After everything before it, and before everything after it.
    Ordered,
    /// First.
    HeadOfQueue,
}

/// Names an order or a management request; chosen by the world, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How an order ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// With a SCSI status.
    Status {
        /// The status.
        status: u8,
        /// Sense data, if there is any.
        sense: Vec<u8>,
        /// The data that came.
        data: Vec<u8>,
    },
    /// The transport says that the target failed to carry it out, in whole or in part.
    Failed,
    /// A task management function ended it.
    Aborted,
    /// It was refused and not carried out.
    Refused,
    /// Nobody knows.
    Lost,
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

/// What a fabric reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportEvent {
    /// An order ended; reported once for each that was accepted.
    Ended {
        /// Whose.
        initiator: usize,
        /// Which.
        ticket: Ticket,
        /// How.
        ended: CommandOutcome,
    },
    /// A management request ended; reported once for each that was accepted.
    TmfDone {
        /// Whose.
        initiator: usize,
        /// Which.
        ticket: Ticket,
        /// Whether it was answered, and with success.
        answer: Option<bool>,
    },
    /// An initiator reaches its units.
    Up {
        /// Which.
        initiator: usize,
        /// Whether all that the target knew of it before is gone, so that nothing lost can be carried out any more.
        is_new_nexus: bool,
    },
    /// An initiator does not reach its units; with `is_final`, it has given up for good.
    Down {
        /// Which.
        initiator: usize,
        /// Whether it has given up.
        is_final: bool,
    },
    /// From now on, LUNs lead to these disks.
    ConfigApplied(Layout),
}

/// Everything between initiators and logical units.
pub trait Transport {
    /// Sends a command. Returns whether the machine took it.
    fn submit(&mut self, now: Instant, initiator: usize, ticket: Ticket, order: ScsiCommand) -> bool;

    /// Asks for task management. Returns whether the machine took it.
    fn task_management(
        &mut self,
        now: Instant,
        initiator: usize,
        ticket: Ticket,
        function: TaskManagement,
    ) -> bool;

    /// Returns the next thing that happened.
    fn poll(&mut self) -> Option<TransportEvent>;

    /// Returns when something happens by itself.
    fn next_deadline(&self) -> Option<Instant>;

    /// Returns who waits for what moment, in words.
    fn pending_deadlines(&self) -> String;

    /// Lets everything happen that is due; also after media have completions.
    fn advance(&mut self, now: Instant);

    /// An initiator ends its nexus at once and begins a new one: the last resort of block layers when task management is not
    /// answered.
    fn reset_nexus(&mut self, now: Instant, initiator: usize);

    /// Throws no dice from now on.
    fn stop_faults(&mut self, now: Instant);

    /// Has every initiator leave in order.
    fn close(&mut self, now: Instant);

    /// The target loses its power: machine, nexuses, everything. It comes back at once on what its media kept.
    fn crash(&mut self, now: Instant);

    /// Changes which disks stand under which LUNs. Where a disk is not closed yet that is to be served again, this waits; a
    /// change that still waits is forgotten.
    fn reload(&mut self, _now: Instant, _layout: Layout) {}

    /// Returns how many bytes of data the target holds for commands.
    fn data_held(&self) -> usize {
        0
    }

    /// Returns when something last went wrong between the ends: an order may have to wait for what mends it.
    fn last_fault(&self) -> Instant;

    /// Returns what of the target still holds something for somebody, in words; `None` when it is idle.
    fn busy_reason(&self) -> Option<String>;

    /// Returns how often a machine found itself in a state that cannot be.
    fn bugs(&self) -> u64;

    /// Returns what a transport owed and did not do, since the last call.
    fn take_violations(&mut self) -> Vec<PropertyViolation>;

    /// Returns how often each thing happened that a run may bring; zeros included, so that what never happens shows.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Returns what the run did, in words.
    fn summary(&self) -> String;
}
