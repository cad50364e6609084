//! Bugs planted on purpose, to see whether the simulator finds them: a judge that never finds anything proves nothing.
//!
//! Only a build with `--cfg targe_planted` can have them, and none has one unless `plant` was called. Everywhere else
//! [`is`] is false at compile time, and nothing of this is left.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A header with a wrong digest is believed.
    SkipHeaderDigest = 1,
    /// Data with a wrong digest is taken for good.
    SkipDataDigest,
    /// A command that comes twice is executed twice.
    ExecuteTwice,
    /// A task that is moved to another connection is answered for and forgotten.
    ForgetReassign,
    /// A write that was lost with its session is carried out again, whoever wrote since.
    ReplayWrites,
    /// A write is acknowledged before the medium has it.
    AckBeforeWrite,
    /// A flush is acknowledged without one.
    FlushNothing,
    /// FUA is ignored.
    IgnoreFua,
    /// An aborted write may still reach the medium after later ones.
    ForgetFence,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 9] = [
        Self::SkipHeaderDigest,
        Self::SkipDataDigest,
        Self::ExecuteTwice,
        Self::ForgetReassign,
        Self::ReplayWrites,
        Self::AckBeforeWrite,
        Self::FlushNothing,
        Self::IgnoreFua,
        Self::ForgetFence,
    ];
}

#[cfg(targe_planted)]
static PLANTED: core::sync::atomic::AtomicU8 = core::sync::atomic::AtomicU8::new(0);

/// Plants a bug in place of the one before, or none.
#[cfg(targe_planted)]
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8), core::sync::atomic::Ordering::Relaxed);
}

/// Returns whether this bug is planted.
#[cfg(targe_planted)]
pub fn is(bug: Bug) -> bool {
    PLANTED.load(core::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Returns whether this bug is planted: never.
#[cfg(not(targe_planted))]
pub const fn is(_: Bug) -> bool {
    false
}
