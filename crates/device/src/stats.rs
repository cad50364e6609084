//! The counters of a logical unit.

use crate::rate_limit::LimitStats;

/// Counters of a unit since its creation, and its present number of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitStats {
    /// Commands received.
    pub commands: u64,
    /// Commands that read blocks.
    pub reads: u64,
    /// Commands that wrote blocks.
    pub writes: u64,
    /// Bytes delivered by commands that read blocks.
    pub read_bytes: u64,
    /// Bytes received by commands that wrote blocks.
    pub write_bytes: u64,
    /// Commands that ended with CHECK CONDITION.
    pub check_conditions: u64,
    /// Commands that ended with RESERVATION CONFLICT.
    pub reservation_conflicts: u64,
    /// Commands that ended with TASK SET FULL.
    pub task_set_full: u64,
    /// Tasks aborted.
    pub aborts: u64,
    /// Failed operations of the medium.
    pub medium_failures: u64,
    /// Operations of the medium, and waits for a range of it, that took longer than the time limit.
    pub io_timeouts: u64,
    /// The commands that a limit of the unit or of their initiator delayed.
    pub delays: LimitStats,
    /// Commands that a limit delays now.
    pub waiting: u64,
    /// Tasks in the task set now.
    pub tasks: u64,
}
