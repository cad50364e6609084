//! Fault injection: planted bugs, to check that the simulator, the tests and the rigs find them. A checker
//! that never finds anything proves nothing.
//!
//! Only a build with the feature `planted` can have such a bug, and it has none unless `inject` was called.
//! In every other build [`is_injected`] is false at compile time, and nothing of this module remains.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A header with a wrong digest is accepted.
    SkipHeaderDigest = 1,
    /// Data with a wrong digest is accepted.
    SkipDataDigest,
    /// A command that is received twice is executed twice.
    ExecuteTwice,
    /// A task that is reassigned to another connection is answered and forgotten.
    ForgetReassign,
    /// A write that was lost with its session is executed again, even if others wrote since.
    ReplayWrites,
    /// A write is acknowledged before the medium has the data.
    AckBeforeWrite,
    /// A flush is acknowledged without being executed.
    FlushNothing,
    /// FUA is ignored.
    IgnoreFua,
    /// An aborted write may still reach the medium after later ones.
    ForgetFence,
    /// iSCSI: retransmitted Data-In is received over bytes that were already accepted, whether its digest is
    /// right or not.
    LandOverCounted,
    /// iSCSI: received bytes of a Data-Out sequence still count after the buffer that held them was dropped.
    CountWithoutBuffer,
    /// HyperSCSI: a retransmitted request is executed again.
    FramesRunTwice,
    /// HyperSCSI: a frame with a wrong CRC is accepted.
    FramesSkipCrc,
    /// HyperSCSI: a replayed frame is accepted again.
    FramesForgetReplays,
    /// HyperSCSI: data is acknowledged and not kept.
    FramesAckUnkept,
    /// HyperSCSI: the lost part of a message is not retransmitted.
    FramesForgetRange,
    /// HyperSCSI: of a lost frame, only the first part is retransmitted.
    FramesForgetParts,
    /// HyperSCSI: late data of an exchange that has ended is delivered to the exchange that now has its slot.
    FramesTakeLate,
    /// HyperSCSI: keys are never updated.
    FramesKeepKeys,
    /// HyperSCSI: a packet number, and so a nonce, is used twice.
    FramesReuseNumber,
    /// HyperSCSI: more is sent than the receiver has credit for.
    FramesIgnoreLimit,
    /// HyperSCSI: the memory quota taken for data is not released when a command is aborted.
    FramesKeepMemory,
    /// Files: a stable write is written without `RWF_DSYNC`.
    FilesDropDsync,
    /// Files: a flush is acknowledged without `fdatasync`.
    FilesSkipFdatasync,
    /// Files: a flush after nothing but deallocations and zeroing is acknowledged without `fdatasync`.
    FilesForgetUnsynced,
    /// A persistent reservation takes effect before it is saved, and stays in effect when saving fails.
    ReserveUnsaved,
    /// Mode parameters take effect before they are saved, and stay in effect when saving fails.
    SettingsUnsaved,
    /// A PREEMPT AND ABORT that is aborted while it is being saved removes the registrations and aborts no
    /// task.
    SpareVictims,
    /// Two changes of the persistent state are computed from the same old state.
    SaveTogether,
    /// Commands to a LUN that is removed are never answered.
    RemovalForgetsCommands,
    /// A LUN is served although after a reload it means another disk than when it was opened.
    RemapReachesOther,
    /// A persistent reservation allows writes from a nexus that is not registered.
    ReserveAdmitsStranger,
    /// PREEMPT removes the registration of the reservation holder and leaves the reservation with it.
    PreemptKeepsHolder,
    /// PREEMPT AND ABORT is answered while tasks that it aborted still write.
    PreemptWaitsForNone,
    /// COMPARE AND WRITE compares before it locks its range: another write can happen in between.
    CompareUnlocked,
    /// COMPARE AND WRITE writes even if the compared data differs.
    MiscompareWrites,
    /// MISCOMPARE reports the offset of the byte after the first one that differs.
    MiscompareElsewhere,
    /// An ORDERED task starts while older ones run.
    OrderedStartsEarly,
    /// A SIMPLE task starts while older ORDERED and HEAD OF QUEUE tasks run.
    SimplePassesOrdered,
    /// iSCSI: the memory quota taken for data is not released when a command is aborted.
    KeepMemory,
    /// WRITE AND VERIFY compares nothing.
    VerifyNothing,
    /// The oracle assumes that a signed block is at the right address, whatever address it contains.
    BelieveAddress,
}

impl Bug {
    /// Every bug that the simulator can find.
    pub const ALL: &[Self] = &[
        Self::SkipHeaderDigest,
        Self::SkipDataDigest,
        Self::ExecuteTwice,
        Self::ForgetReassign,
        Self::ReplayWrites,
        Self::AckBeforeWrite,
        Self::FlushNothing,
        Self::IgnoreFua,
        Self::ForgetFence,
        Self::LandOverCounted,
        Self::CountWithoutBuffer,
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
        Self::ReserveAdmitsStranger,
        Self::PreemptKeepsHolder,
        Self::PreemptWaitsForNone,
        Self::CompareUnlocked,
        Self::MiscompareWrites,
        Self::MiscompareElsewhere,
        Self::OrderedStartsEarly,
        Self::SimplePassesOrdered,
        Self::FramesKeepMemory,
        Self::RemovalForgetsCommands,
        Self::RemapReachesOther,
        Self::KeepMemory,
        Self::VerifyNothing,
        Self::BelieveAddress,
    ];

    /// Bugs of the code that accesses files and block devices, which only a power loss of the machine can
    /// reveal.
    pub const OF_FILES: &[Self] =
        &[Self::FilesDropDsync, Self::FilesSkipFdatasync, Self::FilesForgetUnsynced];

    /// Bugs of a logical unit, which the unit's own tests look for.
    pub const OF_UNITS: &[Self] =
        &[Self::ReserveUnsaved, Self::SettingsUnsaved, Self::SpareVictims, Self::SaveTogether];

    /// Bugs of removing and remapping LUNs: the tests of the target look for them as well.
    pub const OF_REMOVAL: &[Self] = &[Self::RemovalForgetsCommands, Self::RemapReachesOther];

    /// Returns whether the bug is one of HyperSCSI, which simulations of other transports cannot find.
    pub const fn is_hyperscsi(self) -> bool {
        self as u8 >= Self::FramesRunTwice as u8 && (self as u8) < Self::FilesDropDsync as u8
    }

    /// Returns the bug with the name that `Debug` prints. Does not find the bugs of [`Self::OF_UNITS`].
    #[cfg(feature = "planted")]
    pub fn named(name: &str) -> Option<Self> {
        let mut every = Self::ALL.iter().chain(Self::OF_FILES).chain(Self::OF_REMOVAL).copied();
        every.find(|bug| alloc::format!("{bug:?}") == name)
    }
}

#[cfg(feature = "planted")]
static PLANTED: core::sync::atomic::AtomicU8 = core::sync::atomic::AtomicU8::new(0);

/// Plants a bug in place of the previous one, or removes it.
#[cfg(feature = "planted")]
pub fn inject(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8), core::sync::atomic::Ordering::Relaxed);
}

/// Returns whether this bug is planted.
#[cfg(feature = "planted")]
pub fn is_injected(bug: Bug) -> bool {
    PLANTED.load(core::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Returns whether this bug is planted: never.
#[cfg(not(feature = "planted"))]
pub const fn is_injected(_: Bug) -> bool {
    false
}
