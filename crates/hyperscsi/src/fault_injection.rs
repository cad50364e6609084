//! Bugs that can be planted in HyperSCSI. See [`base::fault_injection`].

base::bugs! {
    /// A retransmitted request is executed again.
    FramesRunTwice,
    /// A frame with a wrong CRC is accepted.
    FramesSkipCrc,
    /// A replayed frame is accepted again.
    FramesForgetReplays,
    /// Data is acknowledged and not kept.
    FramesAckUnkept,
    /// The lost part of a message is not retransmitted.
    FramesForgetRange,
    /// Of a lost frame, only the first part is retransmitted.
    FramesForgetParts,
    /// Late data of an exchange that has ended is delivered to the exchange that now has its slot.
    FramesTakeLate,
    /// Keys are never updated.
    FramesKeepKeys,
    /// A packet number, and so a nonce, is used twice.
    FramesReuseNumber,
    /// A session that moved to another process goes on with packet numbers that were used already.
    FramesMoveBack,
    /// More is sent than the receiver has credit for.
    FramesIgnoreLimit,
    /// A write that is begun again in a new session takes the requests for its data for those of the session
    /// before, and sends none.
    FramesReplayUnready,
    /// The memory quota taken for data is not released when a command is aborted.
    FramesKeepMemory,
}
