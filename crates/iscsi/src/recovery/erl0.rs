//! ErrorRecoveryLevel 0 (RFC 7143 §7.1.5): the response to each broken rule where nothing that was lost is
//! sent again.
//!
//! The two roles answer differently. A target serves many initiators and has little to lose: it rejects the
//! PDU or fails one task where it can, and drops the connection where it cannot. An initiator must know what
//! became of its commands. It distinguishes damage from misbehaviour: after damage (a digest error, silence)
//! it gives up the connection; a target that breaks rules has a state that cannot be trusted, so the session
//! ends, and nothing of it is recovered.

use super::{InitiatorAction, TargetAction, TargetResponse, TransportSense};
use crate::initiator::protocol_error::ProtocolError as TargetFault;
use crate::pdu::reject::RejectReason;
use crate::target::protocol_error::ProtocolError;

/// Returns the response of a target to the rule `why` that the initiator broke. The match is exhaustive: a
/// new error does not compile without its response.
//= rfc7143#section-7.1.5
//# Implementations MUST support error recovery level "0", while the rest are OPTIONAL to implement.
pub const fn target_response(why: ProtocolError) -> TargetResponse {
    match why {
        // §7.8: without a trustworthy header the start of the next PDU is unknown (framing lost).
        ProtocolError::HeaderDigestMismatch | ProtocolError::DataSegmentTooLong => drop_connection(),
        // `docs/iscsi-aead.md` §7: whatever the level repairs would be damaged again.
        ProtocolError::PdusModified => end_session(),
        // §7.8: the target rejects the PDU. A rejected command leaves a gap in the CmdSNs, which the
        // initiator must fill in time or lose its session. For a rejected Data-Out the task fails.
        //= rfc7143#section-7.8
        //# When a target receives any iSCSI PDU with a payload digest error, it
        //# MUST answer with a Reject PDU with a reason code of Data-Digest-Error
        //# and discard the PDU.
        ProtocolError::DataDigestMismatch => reject(RejectReason::DATA_DIGEST_ERROR),
        ProtocolError::DataOutDigestMismatch | ProtocolError::RefusedDataOutDigestMismatch => {
            reject_and_fail_task(RejectReason::DATA_DIGEST_ERROR, TransportSense::CrcError)
        }
        ProtocolError::Malformed(_)
        | ProtocolError::AhsNotAllowed
        | ProtocolError::DataNotAllowed
        | ProtocolError::ReservedTaskTag => reject(RejectReason::INVALID_PDU_FIELD),
        ProtocolError::BidirectionalWithoutLength => reject(RejectReason::INVALID_PDU_FIELD),

        // §6.3: only a login is legal before the login.
        ProtocolError::NotALogin | ProtocolError::LoginTooSlow | ProtocolError::Login(_) => drop_connection(),
        ProtocolError::LoginAfterLogin
        | ProtocolError::TargetPdu
        | ProtocolError::NotInDiscovery
        | ProtocolError::SnackWithoutRecovery => reject(RejectReason::PROTOCOL_ERROR),
        ProtocolError::UnknownOpcode => reject(RejectReason::COMMAND_NOT_SUPPORTED),
        ProtocolError::AfterLogout => reject(RejectReason::WAITING_FOR_LOGOUT),
        ProtocolError::PingUnanswered
        | ProtocolError::LogoutTooSlow
        | ProtocolError::DataTooSlow
        | ProtocolError::AnswersUnread => drop_connection(),

        // §4.2.2.1: silently ignored.
        //= rfc7143#section-4.2.2.1
        //# The target MUST silently ignore any non-immediate command outside of this range or
        //# non-immediate duplicates within the range.
        ProtocolError::CmdSnOutsideWindow | ProtocolError::DuplicateCmdSn => nothing(),
        // §7.1.5: level 0 has no other way to get the missing command.
        ProtocolError::CmdSnHole => end_session(),
        ProtocolError::TaskTagInUse => reject(RejectReason::TASK_IN_PROGRESS),
        ProtocolError::TooManyImmediate => reject(RejectReason::TOO_MANY_IMMEDIATE),

        // §11.4.7.2.
        ProtocolError::ImmediateDataNotNegotiated
        | ProtocolError::ImmediateDataWithoutWrite
        | ProtocolError::UnsolicitedNotNegotiated
        | ProtocolError::UnsolicitedNotExpected => fail(TransportSense::UnexpectedUnsolicitedData),
        ProtocolError::UnsolicitedBeyondLimit
        | ProtocolError::NotEnoughUnsolicited
        | ProtocolError::DataOutBeyondR2t
        | ProtocolError::DataOutShort => fail(TransportSense::IncorrectAmountOfData),

        ProtocolError::DataOutUnknownTag | ProtocolError::DataOutOtherLun => {
            reject_and_fail_task(RejectReason::INVALID_PDU_FIELD, TransportSense::InvalidTransferTag)
        }
        ProtocolError::DataOutOtherConnection => reject(RejectReason::PROTOCOL_ERROR),
        // §7.9: a gap implies a digest error on the missing PDU.
        ProtocolError::DataSnOutOfOrder => fail(TransportSense::CrcError),
        ProtocolError::DataOutOffset => fail(TransportSense::DataOffsetError),

        // §11.16: PDUs that were not sent or are already acknowledged cannot be requested.
        ProtocolError::SnackUnknownTask | ProtocolError::SnackNotSent => reject(RejectReason::PROTOCOL_ERROR),
        ProtocolError::SnackUnserved => {
            reject_and_fail_task(RejectReason::SNACK_REJECT, TransportSense::SnackRejected)
        }
        // §7.8: once the status is sent, no further action is necessary for the target.
        ProtocolError::SnackUnservedAfterStatus => reject(RejectReason::SNACK_REJECT),
        ProtocolError::SnackIllegal => reject(RejectReason::INVALID_PDU_FIELD),
        ProtocolError::DataAckUnknown => reject(RejectReason::INVALID_DATA_ACK),

        //= rfc7143#section-6.4
        //# If such an attempt is detected by the target, the target MUST respond with a Reject
        //# PDU with a reason of "Protocol Error".
        ProtocolError::Text(_) => reject(RejectReason::PROTOCOL_ERROR),
        ProtocolError::NoRoom => reject(RejectReason::LONG_OPERATION_REJECT),
        ProtocolError::Bug => drop_connection(),
    }
}

/// Returns the response of an initiator to the rule `why` that the target broke. The match is exhaustive: a
/// new error does not compile without its response.
pub const fn initiator_response(why: TargetFault) -> InitiatorAction {
    match why {
        // Damage. §7.8: without a trustworthy header the start of the next PDU is unknown, and level 0 has no
        // way to get discarded data again.
        TargetFault::HeaderDigestMismatch | TargetFault::DataDigestMismatch => DROP,
        // `docs/iscsi-aead.md` §7: whatever the level repairs would be damaged again.
        TargetFault::PdusModified => END,
        // §7.1.4.3: a connection that is silent is lost. The same holds for one that swallows requests.
        TargetFault::PingUnanswered | TargetFault::CommandLost => DROP,
        // §4.2.2.2, §7.8: a repair that does not succeed is not tried for ever on the same connection.
        TargetFault::NotRepaired | TargetFault::StatSnFarAhead => DROP,

        // §7.7: a PDU that contradicts the standard by itself is a format error.
        //= rfc7143#section-7.7
        //# All initiator-detected PDU construction errors MUST be considered as format errors.
        TargetFault::DataSegmentTooLong
        | TargetFault::Malformed(_)
        | TargetFault::AhsNotAllowed
        | TargetFault::DataNotAllowed
        | TargetFault::BadSense => END,

        // PDUs that no correct target sends in this state.
        TargetFault::NotALogin
        | TargetFault::LoginAfterLogin
        | TargetFault::InitiatorPdu
        | TargetFault::UnknownOpcode
        | TargetFault::UnknownTask
        | TargetFault::OtherConnection
        | TargetFault::OtherAnswer
        | TargetFault::TextNotExpected => END,

        // §7.9: TCP loses nothing, and at level 0 a damaged PDU ends the connection. A gap is therefore not a
        // loss, but a target that does not count.
        TargetFault::StatSnOutOfOrder
        | TargetFault::DataSnOutOfOrder
        | TargetFault::DataSnBeyondEnd
        | TargetFault::R2tSnOutOfOrder => END,

        // §4.2.5.2, §11.7: data that does not fit its command.
        TargetFault::DataInNotExpected
        | TargetFault::DataInBeyondBuffer
        | TargetFault::DataInOffset
        | TargetFault::DataInScattered
        | TargetFault::DataInShort
        | TargetFault::DataInOtherLun => END,

        // §11.8: requests for data that no correct target makes.
        TargetFault::R2tNotExpected
        | TargetFault::R2tOtherLun
        | TargetFault::R2tBeyondData
        | TargetFault::R2tBeyondBurst
        | TargetFault::R2tOffset
        | TargetFault::TooManyR2ts
        | TargetFault::R2tReservedTag => END,

        // §6.4: a negotiation whose result the two sides may see differently.
        TargetFault::TextNegotiation(_) | TargetFault::Text(_) | TargetFault::TextKeyTwice => END,

        // §7.3: a refused request leaves a gap in the CmdSNs that cannot be filled.
        TargetFault::CommandDamaged | TargetFault::Rejected(_) | TargetFault::RejectWithoutHeader => END,
        // §7.2.2: without the logout for recovery no task can be reassigned.
        TargetFault::NotRecoverable => END,
        TargetFault::AnswersUnread | TargetFault::Bug => END,
    }
}

const DROP: InitiatorAction = InitiatorAction::DropConnection;
const END: InitiatorAction = InitiatorAction::EndSession;

const fn nothing() -> TargetResponse {
    TargetResponse { reject: None, action: TargetAction::Nothing }
}

const fn reject(reason: RejectReason) -> TargetResponse {
    TargetResponse { reject: Some(reason), action: TargetAction::Nothing }
}

const fn fail(condition: TransportSense) -> TargetResponse {
    TargetResponse { reject: None, action: TargetAction::FailTask(condition) }
}

const fn reject_and_fail_task(reason: RejectReason, condition: TransportSense) -> TargetResponse {
    TargetResponse { reject: Some(reason), action: TargetAction::FailTask(condition) }
}

const fn drop_connection() -> TargetResponse {
    TargetResponse { reject: None, action: TargetAction::DropConnection }
}

const fn end_session() -> TargetResponse {
    TargetResponse { reject: None, action: TargetAction::EndSession }
}
