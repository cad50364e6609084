//! The drain of a unit by its operator.

/// How far a unit is that its operator drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// It is not drained.
    No,
    /// Tasks end, and whatever else is under way on the medium.
    Ending,
    /// Nothing is under way but the work that saves the record of a writable disc.
    Saving,
    /// Nothing is under way but the flush that makes durable what was acknowledged.
    Flushing,
    /// Nothing is under way.
    Ended {
        /// Whether the flush failed, or an earlier one did, or the record of a disc could not be saved, so
        /// that acknowledged writes may not be durable.
        flush_failed: bool,
    },
}
