//! The reasons why a session is not resumed.

use base::state_machine::ConnId;

/// The reason why [`Engine::resume`](crate::target::engine::Engine::resume) refuses a state. Nothing was
/// changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    /// The name of the target or of the initiator is malformed.
    #[error("the name of the {0} is malformed")]
    Name(&'static str),
    /// A text for display is too long or has control characters.
    #[error("the {0} is too long or has control characters")]
    Text(&'static str),
    /// A session parameter or connection parameter is outside the range that RFC 7143 defines, or what this
    /// engine supports.
    #[error("the value of {0} is outside its range")]
    Parameter(&'static str),
    /// A counter is so high that it could overflow.
    #[error("the counter {0} is too high")]
    Counter(&'static str),
    /// The TSIH is zero.
    #[error("the TSIH is zero")]
    NoTsih,
    /// Another session of this engine has the TSIH.
    #[error("another session has the TSIH {0}")]
    TsihInUse(u16),
    /// The initiator port has a session with the target port already.
    #[error("the initiator port has a session with the target port already")]
    SessionExists,
    /// The command window is deeper than any window of this engine.
    #[error("the command window is too deep")]
    Window,
    /// There are fewer or more connections than the state describes, none, or more than the session may have.
    #[error("the state has {state} connections and {given} were given, at most {max} are allowed")]
    ConnectionCount {
        /// Connections in the state.
        state: usize,
        /// Connections that were given.
        given: usize,
        /// The most that the session may have.
        max: usize,
    },
    /// Two connections have the same CID.
    #[error("two connections have the CID {0}")]
    DuplicateCid(u16),
    /// A connection does not exist, was given twice, or something was received on it.
    #[error("connection {} is not a new connection", .0.0)]
    NotNew(ConnId),
    /// A connection does not come from the address in the state.
    #[error("connection {} comes from another address", .0.0)]
    Peer(ConnId),
    /// There are unacknowledged statuses at ErrorRecoveryLevel 1 or 2.
    #[error("the connection with the CID {0} has unacknowledged statuses")]
    Unacknowledged(u16),
    /// The keys of an AEAD digest are missing, malformed, or present without such a digest.
    #[error("the record keys of the connection with the CID {0} are missing or malformed")]
    RecordKeys(u16),
    /// The session has a protection that does not move, or a connection has a lower one than the session.
    #[error("the protection of the session is malformed, or higher than that of a connection")]
    Protection,
    /// There are more lost connections than a session remembers.
    #[error("the session has too many lost connections")]
    LostConnections,
}
