//! Bugs planted on purpose, to see whether the simulator finds them: a judge that never finds anything proves nothing.
//!
//! Only a build with the feature `planted` can have them, and none has one unless `plant` was called. Everywhere else
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
    /// HyperSCSI: a request that comes again is carried out again.
    FramesRunTwice,
    /// HyperSCSI: a frame with a wrong CRC is taken for good.
    FramesSkipCrc,
    /// HyperSCSI: a frame that came before is taken again.
    FramesForgetReplays,
    /// HyperSCSI: data is acknowledged and not kept.
    FramesAckUnkept,
    /// HyperSCSI: what was lost of a message is not sent again.
    FramesForgetRange,
    /// HyperSCSI: of a frame that was lost, only the first part is sent again.
    FramesForgetParts,
    /// HyperSCSI: late data of an exchange that is over goes to the one that has its slot.
    FramesTakeLate,
    /// HyperSCSI: keys are kept for ever.
    FramesKeepKeys,
    /// HyperSCSI: a packet number, and so a nonce, is used twice.
    FramesReuseNumber,
    /// HyperSCSI: more is sent than the receiver has room for.
    FramesIgnoreLimit,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 19] = [
        Self::SkipHeaderDigest,
        Self::SkipDataDigest,
        Self::ExecuteTwice,
        Self::ForgetReassign,
        Self::ReplayWrites,
        Self::AckBeforeWrite,
        Self::FlushNothing,
        Self::IgnoreFua,
        Self::ForgetFence,
        Self::FramesRunTwice,
        Self::FramesSkipCrc,
        Self::FramesForgetReplays,
        Self::FramesAckUnkept,
        Self::FramesForgetRange,
        Self::FramesForgetParts,
        Self::FramesTakeLate,
        Self::FramesKeepKeys,
        Self::FramesReuseNumber,
        Self::FramesIgnoreLimit,
    ];

    /// Returns whether it is one of HyperSCSI, which worlds of other transports cannot show.
    pub const fn is_of_frames(self) -> bool {
        self as u8 >= Self::FramesRunTwice as u8
    }
}

#[cfg(feature = "planted")]
static PLANTED: core::sync::atomic::AtomicU8 = core::sync::atomic::AtomicU8::new(0);

/// Plants a bug in place of the one before, or none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8), core::sync::atomic::Ordering::Relaxed);
}

/// Returns whether this bug is planted.
#[cfg(feature = "planted")]
pub fn is(bug: Bug) -> bool {
    PLANTED.load(core::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Returns whether this bug is planted: never.
#[cfg(not(feature = "planted"))]
pub const fn is(_: Bug) -> bool {
    false
}
