//! Bugs planted on purpose, to see whether the simulator, the tests and the rigs find them: a judge that never finds anything
//! proves nothing.
//!
//! Only a build with the feature `planted` can have them, and none has one unless `inject` was called. Everywhere else
//! [`is_injected`] is false at compile time, and nothing of this is left.

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
    /// iSCSI: Data-In that comes again is received over bytes that count, whether its digest is right or not.
    LandOverCounted,
    /// iSCSI: what came of a Data-Out sequence counts on after the buffer that had it is gone.
    CountWithoutBuffer,
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
    /// HyperSCSI: what was taken of the memory for data stays taken when a command is aborted.
    FramesKeepMemory,
    /// Files: a stable write is written without `RWF_DSYNC`.
    FilesDropDsync,
    /// Files: a flush is acknowledged without `fdatasync`.
    FilesSkipFdatasync,
    /// Files: a flush after nothing but deallocations and zeroing is acknowledged without `fdatasync`.
    FilesForgetUnsynced,
    /// A persistent reservation is in force before it is saved, and stays when it cannot be.
    ReserveUnsaved,
    /// Mode parameters are in force before they are saved, and stay when they cannot be.
    SettingsUnsaved,
    /// A PREEMPT AND ABORT that is aborted while it is saved removes the registrations and aborts no task.
    SpareVictims,
    /// Two changes of what is saved are computed from the same state.
    SaveTogether,
    /// Commands to a LUN that is removed are never answered.
    RemovalForgetsCommands,
    /// A LUN that means another disk after a reload than when it was opened is served.
    RemapReachesOther,
    /// A persistent reservation lets a nexus write that is not registered.
    ReserveAdmitsStranger,
    /// PREEMPT removes the registration of the holder and leaves the reservation with it.
    PreemptKeepsHolder,
    /// PREEMPT AND ABORT is answered while tasks that it aborted still write.
    PreemptWaitsForNone,
    /// COMPARE AND WRITE compares before it takes its range: another write can come between.
    CompareUnlocked,
    /// COMPARE AND WRITE writes also when what it compared differs.
    MiscompareWrites,
    /// MISCOMPARE tells of the byte behind the first that differs.
    MiscompareElsewhere,
    /// An ORDERED task starts while older ones run.
    OrderedStartsEarly,
    /// A SIMPLE task starts while older ORDERED and HEAD OF QUEUE tasks run.
    SimplePassesOrdered,
    /// iSCSI: what was taken of the memory for data stays taken when a command is aborted.
    KeepMemory,
    /// WRITE AND VERIFY compares nothing.
    VerifyNothing,
    /// The oracle believes that a signed block stands where it belongs, whatever address it says.
    BelieveAddress,
}

impl Bug {
    /// Every bug that the simulator can show.
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

    /// Bugs of the code that reaches files and block devices, which only the loss of a machine's power can show.
    pub const OF_FILES: &[Self] =
        &[Self::FilesDropDsync, Self::FilesSkipFdatasync, Self::FilesForgetUnsynced];

    /// Bugs of a logical unit that its own tests look for.
    pub const OF_UNITS: &[Self] =
        &[Self::ReserveUnsaved, Self::SettingsUnsaved, Self::SpareVictims, Self::SaveTogether];

    /// Bugs of removing and remapping LUNs: the target's own tests look for them as well.
    pub const OF_REMOVAL: &[Self] = &[Self::RemovalForgetsCommands, Self::RemapReachesOther];

    /// Returns whether it is one of HyperSCSI, which worlds of other transports cannot show.
    pub const fn is_hyperscsi(self) -> bool {
        self as u8 >= Self::FramesRunTwice as u8 && (self as u8) < Self::FilesDropDsync as u8
    }

    /// Finds a bug by the name that `Debug` prints.
    #[cfg(feature = "planted")]
    pub fn named(name: &str) -> Option<Self> {
        let mut every = Self::ALL.iter().chain(Self::OF_FILES).chain(Self::OF_REMOVAL).copied();
        every.find(|bug| alloc::format!("{bug:?}") == name)
    }
}

#[cfg(feature = "planted")]
static PLANTED: core::sync::atomic::AtomicU8 = core::sync::atomic::AtomicU8::new(0);

/// Plants a bug in place of the one before, or none.
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
