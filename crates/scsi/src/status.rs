//! Status codes and task attributes (SAM-5 §5.3.1, §8).

/// The status of a completed command (SAM-5 §5.3.1). Unknown values are preserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u8);

impl Status {
    /// The command completed without an error.
    pub const GOOD: Self = Self(0x00);
    /// Sense data describes the error or condition.
    pub const CHECK_CONDITION: Self = Self(0x02);
    /// The condition that the command tested was met, such as that of a PRE-FETCH.
    pub const CONDITION_MET: Self = Self(0x04);
    /// The logical unit is busy; try later.
    pub const BUSY: Self = Self(0x08);
    /// Another initiator holds a reservation that forbids the command.
    pub const RESERVATION_CONFLICT: Self = Self(0x18);
    /// The task set is full.
    pub const TASK_SET_FULL: Self = Self(0x28);
    /// An auto contingent allegiance condition exists.
    pub const ACA_ACTIVE: Self = Self(0x30);
    /// The task was aborted by another initiator and TAS is set.
    pub const TASK_ABORTED: Self = Self(0x40);
}

/// How a command is ordered in its task set (SAM-5 §8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TaskAttribute {
    /// In any order among simple commands.
    #[default]
    Simple,
    /// After every command before it, and before every command after it.
    Ordered,
    /// Before every command that has not started.
    HeadOfQueue,
    /// Only while an ACA condition exists.
    Aca,
}
