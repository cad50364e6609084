//! ErrorRecoveryLevel 0 (RFC 7143 §7.1.5): an error that cannot be handled by a Reject or by failing one task
//! ends the session.

use super::{ErrorResponse, RecoveryAction, TransportSense};
use crate::pdu::reject::RejectReason;
use crate::target::protocol_error::ProtocolError;

/// Returns the reaction of a target to the protocol error `why`. The match is exhaustive: a new error does
/// not compile without its reaction.
//= rfc7143#section-7.1.5
//# Implementations MUST support error recovery level "0", while the rest are OPTIONAL to implement.
pub const fn error_response(why: ProtocolError) -> ErrorResponse {
    match why {
        // §7.8: without a trustworthy header the start of the next PDU is unknown (framing lost).
        ProtocolError::HeaderDigestMismatch | ProtocolError::DataSegmentTooLong => drop_connection(),
        // §7.8: the target rejects the PDU. A rejected command leaves a gap in the CmdSNs, which the
        // initiator must fill in time or lose its session. For a rejected Data-Out the task fails.
        ProtocolError::DataDigestMismatch => {
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
        ProtocolError::CmdSnHole => drop_connection(),
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

const fn nothing() -> ErrorResponse {
    ErrorResponse { reject: None, action: RecoveryAction::Nothing }
}

const fn reject(reason: RejectReason) -> ErrorResponse {
    ErrorResponse { reject: Some(reason), action: RecoveryAction::Nothing }
}

const fn fail(condition: TransportSense) -> ErrorResponse {
    ErrorResponse { reject: None, action: RecoveryAction::FailTask(condition) }
}

const fn reject_and_fail_task(reason: RejectReason, condition: TransportSense) -> ErrorResponse {
    ErrorResponse { reject: Some(reason), action: RecoveryAction::FailTask(condition) }
}

const fn drop_connection() -> ErrorResponse {
    ErrorResponse { reject: None, action: RecoveryAction::Drop }
}
