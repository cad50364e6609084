//! Every rule that an initiator can break once it is logged in, one variant each.
//! [`crate::recovery::target_response`] alone decides how a target responds. Where the response depends on
//! how much of the PDU is still known, the rule has several variants.

use crate::negotiate::full_feature::TextNegotiationError;
use crate::pdu::Malformed;

/// A rule that the peer broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    // The byte stream.
    /// The digest of a header is wrong, so no field of the header can be trusted, not even its length.
    #[error("header digest error")]
    HeaderDigestMismatch,
    /// The digest of a data segment is wrong, and the PDU belongs to no task: it is not a Data-Out, or one
    /// that no sequence expects.
    #[error("data digest error")]
    DataDigestMismatch,
    /// The digest of the data of a Data-Out is wrong, and its sequence is known.
    #[error("data digest error")]
    DataOutDigestMismatch,
    /// The digest of the data of a Data-Out is wrong, and its header broke a rule too, so its place in the
    /// data is not certain.
    #[error("data digest error")]
    RefusedDataOutDigestMismatch,
    /// A data segment is longer than the target's MaxRecvDataSegmentLength.
    #[error("data segment longer than MaxRecvDataSegmentLength")]
    DataSegmentTooLong,
    /// A header is illegal by itself.
    #[error("illegal header: {0}")]
    Malformed(#[from] Malformed),
    /// Additional header segments on a PDU type that has none.
    #[error("additional header segments on a PDU that has none")]
    AhsNotAllowed,
    /// A data segment on a PDU type that has none.
    #[error("data segment on a PDU that has none")]
    DataNotAllowed,

    // PDUs in the wrong phase or session, and time limits.
    /// Something other than a Login Request before the login is over.
    #[error("PDU other than a Login Request during login")]
    NotALogin,
    /// A Login Request after the login is over.
    #[error("Login Request in full feature phase")]
    LoginAfterLogin,
    /// A PDU that only targets send.
    #[error("PDU of a target sent by an initiator")]
    TargetPdu,
    /// A PDU with an opcode that no standard defines.
    #[error("unknown opcode")]
    UnknownOpcode,
    /// A PDU that is not allowed in a discovery session.
    #[error("PDU not allowed in a discovery session")]
    NotInDiscovery,
    /// A SNACK at ErrorRecoveryLevel 0.
    #[error("SNACK at ErrorRecoveryLevel 0")]
    SnackWithoutRecovery,
    /// A request after a Logout Request on the same connection.
    #[error("request after logout")]
    AfterLogout,
    /// The login took too long.
    #[error("login not complete in time")]
    LoginTooSlow,
    /// Nothing was received in answer to the target's ping.
    #[error("no answer to a ping")]
    PingUnanswered,
    /// Data that the target asked for, or that a command announced, was not received in time.
    #[error("data does not come")]
    DataTooSlow,
    /// The logout that the target asked for was not received in time.
    #[error("no logout in time")]
    LogoutTooSlow,
    /// More control PDUs wait to be read than a sane peer leaves unread.
    #[error("answers pile up unread")]
    AnswersUnread,

    // Commands and their numbers.
    /// A command number before ExpCmdSN or after MaxCmdSN.
    #[error("CmdSN outside the command window")]
    CmdSnOutsideWindow,
    /// A command number that was already received.
    #[error("CmdSN received twice")]
    DuplicateCmdSn,
    /// A command number was missing for too long.
    #[error("gap in the CmdSNs not filled in time")]
    CmdSnHole,
    /// The tag of a task that is still open.
    #[error("initiator task tag in use")]
    TaskTagInUse,
    /// The reserved initiator task tag on a request that needs a tag.
    #[error("reserved initiator task tag")]
    ReservedTaskTag,
    /// More immediate requests than the target accepts.
    #[error("too many immediate requests")]
    TooManyImmediate,
    /// A bidirectional command without a bidirectional read length.
    #[error("bidirectional command without a read length")]
    BidirectionalWithoutLength,

    // Unsolicited data.
    /// Immediate data although ImmediateData=No.
    #[error("immediate data although ImmediateData=No")]
    ImmediateDataNotNegotiated,
    /// Immediate data with a command that does not write.
    #[error("immediate data with a command that does not write")]
    ImmediateDataWithoutWrite,
    /// Unsolicited Data-Out although InitialR2T=Yes.
    #[error("unsolicited data although InitialR2T=Yes")]
    UnsolicitedNotNegotiated,
    /// More unsolicited data than FirstBurstLength, or than the command writes.
    #[error("more unsolicited data than allowed")]
    UnsolicitedBeyondLimit,
    /// Less unsolicited data than FirstBurstLength although the command writes more (RFC 7143 §11.4.7.2).
    #[error("not enough unsolicited data")]
    NotEnoughUnsolicited,
    /// Unsolicited data for a task that expects none, or no more.
    #[error("unsolicited data where none is expected")]
    UnsolicitedNotExpected,

    // Data-Out.
    /// The transfer tag is not one of the task's open R2Ts.
    #[error("Data-Out with a transfer tag that is not open")]
    DataOutUnknownTag,
    /// The LUN is not that of the R2T.
    #[error("Data-Out with another LUN than its R2T")]
    DataOutOtherLun,
    /// The task is allegiant to another connection.
    #[error("Data-Out on another connection than its command")]
    DataOutOtherConnection,
    /// The DataSN is not the next one: an earlier PDU is lost.
    #[error("DataSN out of order")]
    DataSnOutOfOrder,
    /// The offset is not where the last PDU ended, although DataPDUInOrder=Yes, or the data was already
    /// received.
    #[error("Data-Out at an offset out of order")]
    DataOutOffset,
    /// The data goes beyond what the R2T asked for.
    #[error("Data-Out beyond its R2T")]
    DataOutBeyondR2t,
    /// The sequence ended before all data was sent that the R2T asked for.
    #[error("Data-Out sequence shorter than its R2T")]
    DataOutShort,

    // SNACK.
    /// A SNACK for a task that does not exist, or that belongs to another connection.
    #[error("SNACK for a task that is not on this connection")]
    SnackUnknownTask,
    /// A SNACK for numbers that were not sent or are already acknowledged.
    #[error("SNACK for what was not sent or is acknowledged")]
    SnackNotSent,
    /// A SNACK that cannot be served although it is legal, for a task whose status is not sent yet.
    #[error("SNACK that cannot be served")]
    SnackUnserved,
    /// The same for a task whose status was sent.
    #[error("SNACK that cannot be served")]
    SnackUnservedAfterStatus,
    /// A SNACK with a field that has an illegal value.
    #[error("SNACK with an illegal field")]
    SnackIllegal,
    /// An acknowledgement of data with a tag that was not assigned, or of data that was not sent.
    #[error("acknowledgement of data that asked for none")]
    DataAckUnknown,

    // Text, login, memory and internal errors.
    /// A text negotiation broke its rules.
    #[error("text: {0}")]
    Text(TextNegotiationError),
    /// A login that breaks the rules; the login error gives the details.
    #[error("login refused: {0}")]
    Login(crate::login::LoginError),
    /// A ping or a Text Request was received while memory for its data was short. The peer broke no rule.
    #[error("no room for the data of a request")]
    NoRoom,
    /// An internal error: a state was reached that should be impossible.
    #[error("internal error")]
    Bug,
}

impl ProtocolError {
    /// Returns [`Self::Bug`]. Every state that must not occur is handled here: tests and the simulator panic,
    /// and elsewhere the connection or session on which it occurred ends, and is counted.
    #[cold]
    #[track_caller]
    pub(super) fn impossible() -> Self {
        debug_assert!(false, "a state of the engine that cannot be");
        Self::Bug
    }

    /// Returns whether the digest of a data segment was wrong.
    pub(crate) const fn is_data_digest(self) -> bool {
        matches!(
            self,
            Self::DataDigestMismatch | Self::DataOutDigestMismatch | Self::RefusedDataOutDigestMismatch
        )
    }
}
