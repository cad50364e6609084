//! Every rule that a target can break after the login, one variant each.
//! [`crate::recovery::initiator_response`] alone decides how an initiator responds; `session_recovery` ends
//! the connection or the session where that is the response.

use crate::negotiate::full_feature::TextNegotiationError;
use crate::pdu::Malformed;
use crate::text::BadText;

/// A rule that a target broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    // The stream itself.
    /// The digest of a header is wrong, and its PDU's length is not certain.
    #[error("the initiator received a PDU with a wrong header digest")]
    HeaderDigestMismatch,
    /// The digest of a data segment is wrong.
    #[error("the initiator received a PDU with a wrong data digest")]
    DataDigestMismatch,
    /// So many data segments had a wrong tag of an AEAD digest that somebody must be modifying them.
    #[error("somebody modifies PDUs on the way to the initiator: too many had a wrong data digest")]
    PdusModified,
    /// A data segment is longer than the initiator's MaxRecvDataSegmentLength.
    #[error("the target sent a data segment longer than MaxRecvDataSegmentLength")]
    DataSegmentTooLong,
    /// A header is illegal by itself.
    #[error("the target sent an illegal header: {0}")]
    Malformed(#[from] Malformed),
    /// Additional header segments on a PDU that has none.
    #[error("the target sent additional header segments in a PDU that must have none")]
    AhsNotAllowed,
    /// A data segment on a PDU that has none.
    #[error("the target sent a data segment in a PDU that must have none")]
    DataNotAllowed,

    // PDUs that are illegal in the present state.
    /// A PDU other than a Login Response before the login is complete.
    #[error("the target sent a PDU other than a Login Response during login")]
    NotALogin,
    /// A Login Response after the login is complete.
    #[error("the target sent a Login Response in full feature phase")]
    LoginAfterLogin,
    /// A PDU that only initiators send.
    #[error("the target sent a PDU that only initiators send")]
    InitiatorPdu,
    /// A PDU with an opcode that no standard defines.
    #[error("the target sent an unknown opcode")]
    UnknownOpcode,
    /// The target did not answer a ping.
    #[error("the target did not answer a ping")]
    PingUnanswered,
    /// The target answers a ping that was sent after a command, and still waits for the command.
    #[error("the target did not receive a command")]
    CommandLost,
    /// A missing PDU was requested several times and was not received.
    #[error("the target did not retransmit lost PDUs")]
    NotRepaired,
    /// A StatSN that is not the next one.
    #[error("the target sent a StatSN out of order")]
    StatSnOutOfOrder,
    /// More statuses are missing than can be requested.
    #[error("the target sent a StatSN too far ahead")]
    StatSnFarAhead,
    /// An initiator task tag that names no open request.
    #[error("the target answered a request that is not open")]
    UnknownTask,
    /// An answer on another connection than its request.
    #[error("the target answered on another connection than that of the request")]
    OtherConnection,
    /// An answer that is not of the kind that the request needs.
    #[error("the target answered with a PDU that does not fit the request")]
    OtherAnswer,

    // Data-In.
    /// Data for a command that does not read.
    #[error("the target sent a Data-In for a command that does not read")]
    DataInNotExpected,
    /// Data beyond what the command reads.
    #[error("the target sent a Data-In beyond the data that the command reads")]
    DataInBeyondBuffer,
    /// The offset is not the end of the last data although data must be in order, or it covers data that was
    /// received already.
    #[error("the target sent a Data-In with an offset out of order")]
    DataInOffset,
    /// The DataSN is not the next one.
    #[error("the target sent a DataSN out of order")]
    DataSnOutOfOrder,
    /// The last DataSN, which no command reaches.
    #[error("the target sent a DataSN larger than any command can need")]
    DataSnBeyondEnd,
    /// More separate pieces of data than a correct target sends.
    #[error("the target sent Data-In in too many separate pieces")]
    DataInScattered,
    /// A GOOD status for a command with missing data that the residual count does not account for.
    #[error("the target sent less Data-In than its status says")]
    DataInShort,
    /// The LUN is not that of the command.
    #[error("the target sent a Data-In with another LUN than its command")]
    DataInOtherLun,

    // R2T.
    /// An R2T for a command that does not write.
    #[error("the target sent an R2T for a command that does not write")]
    R2tNotExpected,
    /// The LUN is not that of the command.
    #[error("the target sent an R2T with another LUN than its command")]
    R2tOtherLun,
    /// An R2T that goes beyond the data of its command.
    #[error("the target sent an R2T beyond the data of its command")]
    R2tBeyondData,
    /// An R2T for more than MaxBurstLength.
    #[error("the target sent an R2T for more than MaxBurstLength")]
    R2tBeyondBurst,
    /// The R2TSN is not the next one.
    #[error("the target sent an R2TSN out of order")]
    R2tSnOutOfOrder,
    /// An R2T for data other than the next although sequences must be in order.
    #[error("the target sent an R2T with an offset out of order")]
    R2tOffset,
    /// More R2Ts than MaxOutstandingR2T.
    #[error("the target sent more R2Ts than MaxOutstandingR2T")]
    TooManyR2ts,
    /// The reserved transfer tag.
    #[error("the target sent an R2T with the reserved transfer tag")]
    R2tReservedTag,

    // The ends of tasks.
    /// The sense data is longer than its data segment, or than the longest legal one.
    #[error("the target sent sense data longer than its data segment")]
    BadSense,

    // Other PDUs.
    /// A rule of text negotiation.
    #[error("text: {0}")]
    TextNegotiation(TextNegotiationError),
    /// A text that is not legal.
    #[error("text: {0}")]
    Text(BadText),
    /// A key came twice in a text negotiation that cannot be reset.
    #[error("the target sent a key twice in one text negotiation")]
    TextKeyTwice,
    /// A text while no text negotiation is under way.
    #[error("the target sent a Text Response while none was due")]
    TextNotExpected,
    /// A Reject whose data is not a header.
    #[error("the target sent a Reject without the header of the PDU that it rejects")]
    RejectWithoutHeader,
    /// The target rejected a command because its data was damaged, and has not received its CmdSN.
    #[error("the target rejected a request: data digest error")]
    CommandDamaged,
    /// The target rejected a PDU without which the connection is useless.
    #[error("the target rejected a request: {0}")]
    Rejected(RejectText),
    /// The target refuses to end a lost connection, so that its tasks cannot be reassigned.
    #[error("the target refused to clean up a lost connection")]
    NotRecoverable,
    /// More answers to pings wait to be sent than a correct target lets accumulate.
    #[error("the target sends pings but does not read the answers")]
    AnswersUnread,
    /// An internal error: the initiator reached an impossible state.
    #[error("the initiator had an internal error")]
    Bug,
}

/// The reason of a Reject, for display.
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
