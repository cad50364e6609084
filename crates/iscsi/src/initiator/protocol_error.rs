//! Every rule that a target can break once a login is over, one name each. What an initiator does about it is the
//! same for nearly all of them: it closes the connection. What it does then is `recover`'s affair.

use crate::negotiate::full_feature::TextNegotiationError;
use crate::pdu::Malformed;
use crate::text::BadText;

/// What a target did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    // The stream itself.
    /// The digest of a header is wrong, and its PDU's length is not certain.
    #[error("header digest error")]
    HeaderDigestMismatch,
    /// The digest of a data segment is wrong, and the session's ErrorRecoveryLevel is 0.
    #[error("data digest error")]
    DataDigestMismatch,
    /// A data segment is longer than our MaxRecvDataSegmentLength.
    #[error("data segment longer than MaxRecvDataSegmentLength")]
    DataSegmentTooLong,
    /// A header is illegal by itself.
    #[error("illegal header: {0}")]
    Malformed(#[from] Malformed),
    /// Additional header segments on a PDU that has none.
    #[error("additional header segments on a PDU that has none")]
    AhsNotAllowed,
    /// A data segment on a PDU that has none.
    #[error("data segment on a PDU that has none")]
    DataNotAllowed,

    // What may come when.
    /// Something other than a Login Response before the login is over.
    #[error("PDU other than a Login Response during login")]
    NotALogin,
    /// A Login Response after the login is over.
    #[error("Login Response in full feature phase")]
    LoginAfterLogin,
    /// A PDU that only initiators send.
    #[error("PDU of an initiator sent by a target")]
    InitiatorPdu,
    /// A PDU that no standard knows.
    #[error("unknown opcode")]
    UnknownOpcode,
    /// Nothing came in answer to our ping.
    #[error("no answer to a ping")]
    PingUnanswered,
    /// The target answers a ping that was sent after a command, and still waits for the command.
    #[error("a command did not arrive")]
    CommandLost,
    /// What was missing was asked for several times and did not come.
    #[error("what was lost on the way was not sent again")]
    NotRepaired,
    /// A status number that is not the next one, where nothing can be missing.
    #[error("StatSN out of order")]
    StatSnOutOfOrder,
    /// More statuses are missing than can be asked for.
    #[error("StatSN far ahead of what came")]
    StatSnFarAhead,
    /// An initiator task tag that names nothing that is open.
    #[error("answer to a request that is not open")]
    UnknownTask,
    /// An answer on another connection than its request.
    #[error("answer on another connection than its request")]
    OtherConnection,
    /// The answer is not of the kind that the request wants.
    #[error("answer of another kind than its request wants")]
    OtherAnswer,

    // Data-In.
    /// Data for a command that does not read.
    #[error("Data-In for a command that does not read")]
    DataInNotExpected,
    /// Data beyond what the command reads.
    #[error("Data-In beyond the data that the command reads")]
    DataInBeyondBuffer,
    /// The offset is not where the last data ended although data comes in order, or covers what is here already.
    #[error("Data-In at an offset out of order")]
    DataInOffset,
    /// The DataSN is not the next one, where nothing can be missing.
    #[error("DataSN out of order")]
    DataSnOutOfOrder,
    /// More pieces of data lie scattered than a target in its senses makes.
    #[error("Data-In in too many separate pieces")]
    DataInScattered,
    /// A status GOOD for a command whose data did not all come, beyond what the residual count admits.
    #[error("less Data-In than the status says")]
    DataInShort,
    /// An acknowledgement is asked for at ErrorRecoveryLevel 0.
    #[error("acknowledgement asked for at ErrorRecoveryLevel 0")]
    AckWithoutRecovery,

    // R2T.
    /// An R2T for a command that does not write.
    #[error("R2T for a command that does not write")]
    R2tNotExpected,
    /// An R2T that goes beyond the data of its command.
    #[error("R2T beyond the data of its command")]
    R2tBeyondData,
    /// An R2T for more than MaxBurstLength.
    #[error("R2T for more than MaxBurstLength")]
    R2tBeyondBurst,
    /// The R2TSN is not the next one, where nothing can be missing.
    #[error("R2TSN out of order")]
    R2tSnOutOfOrder,
    /// An R2T for other data than what comes next although sequences come in order.
    #[error("R2T at an offset out of order")]
    R2tOffset,
    /// More R2Ts than MaxOutstandingR2T.
    #[error("more R2Ts than MaxOutstandingR2T")]
    TooManyR2ts,
    /// The reserved transfer tag.
    #[error("R2T with the reserved transfer tag")]
    R2tReservedTag,

    // The ends of tasks.
    /// The sense data is longer than its data segment, or than any.
    #[error("sense data longer than its segment")]
    BadSense,

    // The rest.
    /// A text conversation broke its rules.
    #[error("text: {0}")]
    TextNegotiation(TextNegotiationError),
    /// A text is no text.
    #[error("text: {0}")]
    Text(BadText),
    /// A text while none was asked for.
    #[error("Text Response while none is due")]
    TextNotExpected,
    /// A Reject whose data is no header.
    #[error("Reject without the header of what it rejects")]
    RejectWithoutHeader,
    /// The target refused something without which the connection is of no use.
    #[error("a request was rejected: {0}")]
    Rejected(RejectText),
    /// The target does not let a lost connection go, so that its tasks cannot move.
    #[error("the target refused to clean up a lost connection")]
    NotRecoverable,
    /// More answers to pings wait to be sent than a target in its senses lets pile up.
    #[error("pings pile up, and their answers are not read")]
    AnswersUnread,
    /// We are wrong: a state was reached that cannot be.
    #[error("internal error")]
    Bug,
}

impl ProtocolError {
    /// Returns whether it may be damage on the way rather than a target that breaks rules.
    pub const fn is_damage(self) -> bool {
        matches!(
            self,
            Self::HeaderDigestMismatch
                | Self::DataDigestMismatch
                | Self::PingUnanswered
                | Self::CommandLost
                | Self::NotRepaired
                | Self::StatSnFarAhead
        )
    }
}

/// A Reject's reason, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectText(pub crate::pdu::reject::RejectReason);

impl core::fmt::Display for RejectText {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        use crate::pdu::reject::RejectReason as R;
        match self.0 {
            R::DATA_DIGEST_ERROR => f.write_str("data digest error"),
            R::SNACK_REJECT => f.write_str("SNACK cannot be served"),
            R::PROTOCOL_ERROR => f.write_str("protocol error"),
            R::COMMAND_NOT_SUPPORTED => f.write_str("command not supported"),
            R::TOO_MANY_IMMEDIATE => f.write_str("too many immediate requests"),
            R::TASK_IN_PROGRESS => f.write_str("task in progress"),
            R::INVALID_DATA_ACK => f.write_str("invalid data acknowledgement"),
            R::INVALID_PDU_FIELD => f.write_str("invalid PDU field"),
            R::LONG_OPERATION_REJECT => f.write_str("no room for a long operation"),
            R::WAITING_FOR_LOGOUT => f.write_str("waiting for logout"),
            R(other) => write!(f, "reason {other:#04x}"),
        }
    }
}
