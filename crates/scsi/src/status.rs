//! Status codes and task attributes (SAM-5 §5.3.1, §8.6).

/// The status of a finished command (SAM-5 §5.3.1). Unknown values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u8);

impl Status {
    /// The command completed without an error.
    pub const GOOD: Self = Self(0x00);
    /// Sense data tells what happened.
    pub const CHECK_CONDITION: Self = Self(0x02);
    /// The compare of a PRE-FETCH or another condition was met.
    pub const CONDITION_MET: Self = Self(0x04);
    /// The logical unit is busy; try later.
    pub const BUSY: Self = Self(0x08);
    /// Another initiator holds a reservation that forbids the command.
    pub const RESERVATION_CONFLICT: Self = Self(0x18);
    /// The task set has no room.
    pub const TASK_SET_FULL: Self = Self(0x28);
    /// An auto contingent allegiance condition exists.
    pub const ACA_ACTIVE: Self = Self(0x30);
    /// The task was aborted by another initiator and TAS is set.
    pub const TASK_ABORTED: Self = Self(0x40);
}

/// How a command is ordered in its task set (SAM-5 §8.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TaskAttribute {
    /// Any order among simple commands.
    #[default]
    Simple,
    /// After everything before it, before everything after it.
    Ordered,
    /// Before everything that has not started.
    HeadOfQueue,
    /// Only while an ACA condition exists.
    Aca,
}
