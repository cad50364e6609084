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
    #[error("the target received a PDU with a wrong header digest")]
    HeaderDigestMismatch,
    /// The digest of a data segment is wrong, and the PDU belongs to no task: it is not a Data-Out, or one
    /// that no sequence expects.
    #[error("the target received a PDU with a wrong data digest")]
    DataDigestMismatch,
    /// The digest of the data of a Data-Out is wrong, and its sequence is known.
    #[error("the target received a Data-Out with a wrong data digest")]
    DataOutDigestMismatch,
    /// The digest of the data of a Data-Out is wrong, and its header broke a rule too, so its place in the
    /// data is not certain.
    #[error("the target received a Data-Out with a wrong data digest")]
    RefusedDataOutDigestMismatch,
    /// So many data segments had a wrong tag of an AEAD digest that somebody must be modifying them.
    #[error("somebody modifies PDUs on the way to the target: too many had a wrong data digest")]
    PdusModified,
    /// A data segment is longer than the target's MaxRecvDataSegmentLength.
    #[error("the initiator sent a data segment longer than MaxRecvDataSegmentLength")]
    DataSegmentTooLong,
    /// A header is illegal by itself.
    #[error("the initiator sent an illegal header: {0}")]
    Malformed(#[from] Malformed),
    /// Additional header segments on a PDU type that has none.
    #[error("the initiator sent additional header segments in a PDU that must have none")]
    AhsNotAllowed,
    /// A data segment on a PDU type that has none.
    #[error("the initiator sent a data segment in a PDU that must have none")]
    DataNotAllowed,

    // PDUs in the wrong phase or session, and time limits.
    /// Something other than a Login Request before the login is over.
    #[error("the initiator sent a PDU other than a Login Request during login")]
    NotALogin,
    /// A Login Request after the login is over.
    #[error("the initiator sent a Login Request in full feature phase")]
    LoginAfterLogin,
    /// A PDU that only targets send.
    #[error("the initiator sent a PDU that only targets send")]
    TargetPdu,
    /// A PDU with an opcode that no standard defines.
    #[error("the initiator sent an unknown opcode")]
    UnknownOpcode,
    /// A PDU that is not allowed in a discovery session.
    #[error("the initiator sent a PDU that is not allowed in a discovery session")]
    NotInDiscovery,
    /// A SNACK at ErrorRecoveryLevel 0.
    #[error("the initiator sent a SNACK at ErrorRecoveryLevel 0")]
    SnackWithoutRecovery,
    /// A request after a Logout Request on the same connection.
    #[error("the initiator sent a request after its Logout Request")]
    AfterLogout,
    /// The login took too long.
    #[error("the initiator did not complete the login in time")]
    LoginTooSlow,
    /// Nothing was received in answer to the target's ping.
    #[error("the initiator did not answer a ping")]
    PingUnanswered,
    /// Data that the target asked for, or that a command announced, was not received in time.
    #[error("the initiator did not send data in time")]
    DataTooSlow,
    /// The logout that the target asked for was not received in time.
    #[error("the initiator did not log out in time")]
    LogoutTooSlow,
    /// More control PDUs wait to be read than a sane peer leaves unread.
    #[error("the initiator does not read the responses of the target")]
    AnswersUnread,

    // Commands and their numbers.
    /// A command number before ExpCmdSN or after MaxCmdSN.
    #[error("the initiator sent a CmdSN outside the command window")]
    CmdSnOutsideWindow,
    /// A command number that was already received.
    #[error("the initiator sent a CmdSN twice")]
    DuplicateCmdSn,
    /// A command number was missing for too long.
    #[error("the initiator did not fill a gap in the CmdSNs in time")]
    CmdSnHole,
    /// The tag of a task that is still open.
    #[error("the initiator used the task tag of an open task again")]
    TaskTagInUse,
    /// The reserved initiator task tag on a request that needs a tag.
    #[error("the initiator used the reserved task tag")]
    ReservedTaskTag,
    /// More immediate requests than the target accepts.
    #[error("the initiator sent too many immediate requests")]
    TooManyImmediate,
    /// A bidirectional command without a bidirectional read length.
    #[error("the initiator sent a bidirectional command without a read length")]
    BidirectionalWithoutLength,

    // Unsolicited data.
    /// Immediate data although ImmediateData=No.
    #[error("the initiator sent immediate data although ImmediateData=No")]
    ImmediateDataNotNegotiated,
    /// Immediate data with a command that does not write.
    #[error("the initiator sent immediate data with a command that does not write")]
    ImmediateDataWithoutWrite,
    /// Unsolicited Data-Out although InitialR2T=Yes.
    #[error("the initiator sent unsolicited data although InitialR2T=Yes")]
    UnsolicitedNotNegotiated,
    /// More unsolicited data than FirstBurstLength, or than the command writes.
    #[error("the initiator sent more unsolicited data than allowed")]
    UnsolicitedBeyondLimit,
    /// Less unsolicited data than FirstBurstLength although the command writes more (RFC 7143 §11.4.7.2).
    #[error("the initiator sent less unsolicited data than required")]
    NotEnoughUnsolicited,
    /// Unsolicited data for a task that expects none, or no more.
    #[error("the initiator sent unsolicited data for a task that expects none")]
    UnsolicitedNotExpected,

    // Data-Out.
    /// The transfer tag is not one of the task's open R2Ts.
    #[error("the initiator sent a Data-Out with a transfer tag that is not open")]
    DataOutUnknownTag,
    /// The LUN is not that of the R2T.
    #[error("the initiator sent a Data-Out with another LUN than its R2T")]
    DataOutOtherLun,
    /// The task is allegiant to another connection.
    #[error("the initiator sent a Data-Out on another connection than its command")]
    DataOutOtherConnection,
    /// The DataSN is not the next one: an earlier PDU is lost.
    #[error("the initiator sent a DataSN out of order")]
    DataSnOutOfOrder,
    /// The offset is not where the last PDU ended, although DataPDUInOrder=Yes, or the data was already
    /// received.
    #[error("the initiator sent a Data-Out with an offset out of order")]
    DataOutOffset,
    /// The data goes beyond what the R2T asked for.
    #[error("the initiator sent a Data-Out beyond its R2T")]
    DataOutBeyondR2t,
    /// The sequence ended before all data was sent that the R2T asked for.
    #[error("the initiator sent less data than the R2T asked for")]
    DataOutShort,

    // SNACK.
    /// A SNACK for a task that does not exist, or that belongs to another connection.
    #[error("the initiator sent a SNACK for a task that is not on this connection")]
    SnackUnknownTask,
    /// A SNACK for numbers that were not sent or are already acknowledged.
    #[error("the initiator sent a SNACK for PDUs that were not sent or are acknowledged")]
    SnackNotSent,
    /// A SNACK that cannot be served although it is legal, for a task whose status is not sent yet.
    #[error("the target cannot serve a SNACK")]
    SnackUnserved,
    /// The same for a task whose status was sent.
    #[error("the target cannot serve a SNACK")]
    SnackUnservedAfterStatus,
    /// A SNACK with a field that has an illegal value.
    #[error("the initiator sent a SNACK with an illegal field")]
    SnackIllegal,
    /// An acknowledgement of data with a tag that was not assigned, or of data that was not sent.
    #[error("the initiator acknowledged data that asked for no acknowledgement")]
    DataAckUnknown,

    // Text, login, memory and internal errors.
    /// A text negotiation broke its rules.
    #[error("the initiator broke a rule of text negotiation: {0}")]
    Text(TextNegotiationError),
    /// A login that breaks the rules; the login error gives the details.
    #[error("the target refused the login: {0}")]
    Login(crate::login::LoginError),
    /// A ping or a Text Request was received while memory for its data was short. The peer broke no rule.
    #[error("the target has no memory for the data of a request")]
    NoRoom,
    /// An internal error: a state was reached that should be impossible.
    #[error("the target had an internal error")]
    Bug,
}

impl ProtocolError {
    /// Returns [`Self::Bug`]. Every state that must not occur is handled here: tests and the simulator panic,
    /// and elsewhere the connection or session on which it occurred ends, and is counted.
    #[cold]
    #[track_caller]
    pub(super) fn impossible() -> Self {
        debug_assert!(false, "the target engine reached an impossible state");
        Self::Bug
    }

    /// Returns whether the digest of a data segment was wrong.
    pub(crate) const fn is_data_digest(self) -> bool {
        matches!(
            self,
            Self::DataDigestMismatch
                | Self::DataOutDigestMismatch
                | Self::RefusedDataOutDigestMismatch
                | Self::PdusModified
        )
    }
}
