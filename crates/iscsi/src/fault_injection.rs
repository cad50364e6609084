//! Bugs that can be planted in iSCSI. See [`base::fault_injection`].

base::bugs! {
    /// A header with a wrong digest is accepted.
    SkipHeaderDigest,
    /// Data with a wrong digest is accepted.
    SkipDataDigest,
    /// A command that is received twice is executed twice.
    ExecuteTwice,
    /// A task that is reassigned to another connection is answered and forgotten.
    ForgetReassign,
    /// A write that was lost with its session is executed again, even if others wrote since.
    ReplayWrites,
    /// Retransmitted Data-In is received over bytes that were already accepted, whether its digest is
    /// right or not.
    LandOverCounted,
    /// Received bytes of a Data-Out sequence still count after the buffer that held them was dropped.
    CountWithoutBuffer,
    /// The memory quota taken for data is not released when a command is aborted.
    KeepMemory,
}
