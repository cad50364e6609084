//! How a server can break the protocol after the negotiation.

use core::fmt;

/// How a server broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The bytes where a reply should begin are no reply.
    NotAReply,
    /// The reply is to no request that is under way.
    UnknownCookie,
    /// A structured reply came although none was negotiated.
    UnexpectedChunk,
    /// A simple reply came where only a structured one is allowed.
    UnexpectedSimpleReply,
    /// The kind of the chunk is unknown, or does not fit the request.
    WrongChunk,
    /// The length of the chunk is illegal.
    ChunkLength,
    /// A chunk lies outside the range of its request.
    ChunkOutsideRequest,
    /// A byte was sent twice.
    ChunksOverlap,
    /// A read came in too many pieces.
    TooManyChunks,
    /// A reply ended before everything was sent.
    DataMissing,
    /// A block status describes nothing, or another context.
    BadBlockStatus,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAReply => "the server sent bytes that are no reply",
            Self::UnknownCookie => "the server answered a request that was not sent",
            Self::UnexpectedChunk => "the server sent a structured reply, which was not negotiated",
            Self::UnexpectedSimpleReply => "the server sent a simple reply where a structured one must be",
            Self::WrongChunk => "the server sent a chunk that does not fit its request",
            Self::ChunkLength => "the server sent a chunk of an illegal length",
            Self::ChunkOutsideRequest => "the server sent a chunk outside the range that was requested",
            Self::ChunksOverlap => "the server sent chunks that overlap",
            Self::TooManyChunks => "the server sent a read in too many pieces",
            Self::DataMissing => "the server ended a reply before all of its data",
            Self::BadBlockStatus => "the server sent a malformed block status",
        })
    }
}
