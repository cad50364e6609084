//! Bugs that can be planted in logical units. See [`base::fault_injection`].

base::bugs! {
    /// A write is acknowledged before the medium has the data.
    AckBeforeWrite,
    /// A flush is acknowledged without being executed.
    FlushNothing,
    /// FUA is ignored.
    IgnoreFua,
    /// An aborted write may still reach the medium after later ones.
    ForgetFence,
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
    /// WRITE AND VERIFY compares nothing.
    VerifyNothing,
    /// WRITEs of some blocks end with MEDIUM ERROR although their medium has not failed.
    WritesFailUncaused,
    /// WRITEs of some blocks end with ABORTED COMMAND, PROTOCOL SERVICE CRC ERROR, although none of their
    /// data was damaged.
    WritesAbortedUncaused,
    /// WRITEs of some blocks end with BUSY although the unit executes commands.
    WritesBusyUncaused,
    /// WRITEs of some blocks end with TASK SET FULL although the task set is not full.
    WritesFullUncaused,
    /// WRITEs of some blocks end with RESERVATION CONFLICT although nothing is reserved.
    WritesConflictUncaused,
    /// A unit attention is reported a second time.
    AttentionsToldAgain,
    /// Resets and new nexuses establish no unit attention.
    ResetsUntold,
    /// PREEMPT and CLEAR establish no unit attention.
    PreemptionsUntold,
    /// The end of a reservation that registrants share establishes no unit attention.
    ReleasesUntold,
    /// A reset that occurs while another one is pending is reported as well.
    MergedResetsToldTwice,
    /// A reset establishes no unit attention for the nexus that requested it, if it aborts tasks of this
    /// nexus.
    ResetsUntoldToAborted,
    /// Commands to a LUN that is removed are never answered.
    RemovalForgetsCommands,
    /// A persistent reservation takes effect before it is saved, and stays in effect when saving fails.
    ReserveUnsaved,
    /// Mode parameters take effect before they are saved, and stay in effect when saving fails.
    SettingsUnsaved,
    /// A PREEMPT AND ABORT that is aborted while it is being saved removes the registrations and aborts no
    /// task.
    SpareVictims,
    /// Two changes of the persistent state are computed from the same old state.
    SaveTogether,
    /// A command that waited while another cartridge was put into the drive uses that one.
    OutdatedTurnRuns,
    /// WRITE FILEMARKS writes one filemark, whatever its count.
    FilemarksWrittenOnce,
    /// WRITE of a tape drive is acknowledged while the block is in memory only.
    WriteUndrained,
    /// A motion of a medium changer is answered, and forgotten, when it is requested.
    MotionAnsweredEarly,
    /// WRITE of a tape drive that does not buffer is acknowledged before the block is durable.
    UnbufferedUnsynced,
    /// A filemark that ends a READ of fixed-length blocks reports all of them as left.
    FixedLeftWhole,
    /// A LOGICAL UNIT RESET keeps the buffered mode and the block length of a tape drive.
    ResetKeepsMode,
    /// READ of a tape drive does not tell the transport how many bytes it has.
    ReadLengthUntold,
}

impl Bug {
    /// Returns whether only worlds of tape libraries can show the bug.
    pub const fn is_of_tapes(self) -> bool {
        matches!(
            self,
            Self::OutdatedTurnRuns
                | Self::FilemarksWrittenOnce
                | Self::WriteUndrained
                | Self::MotionAnsweredEarly
                | Self::UnbufferedUnsynced
                | Self::FixedLeftWhole
                | Self::ResetKeepsMode
                | Self::ReadLengthUntold
        )
    }

    /// The bugs of saving the persistent state, which only the unit's own tests look for.
    pub const OF_SAVING: &[Self] =
        &[Self::ReserveUnsaved, Self::SettingsUnsaved, Self::SpareVictims, Self::SaveTogether];
}
