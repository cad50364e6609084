//! ErrorRecoveryLevel 0 (RFC 7143 §7.1.5): what cannot be refused or failed alone ends the session.

use super::{ErrorResponse, RecoveryAction, TransportSense};
use crate::pdu::reject::RejectReason;
use crate::target::why::Why;

/// Returns what a target does about `why`. Total: a new rule does not compile without its answer.
pub const fn error_response(why: Why) -> ErrorResponse {
    match why {
        // §7.8: a header that cannot be trusted takes the framing with it.
        Why::HeaderDigestMismatch | Why::DataSegmentTooLong => drop_connection(),
        // §7.8: the PDU is refused. For a command that leaves a gap in the CmdSNs, which the initiator fills in
        // time or loses its session; for a Data-Out its task fails.
        Why::DataDigestMismatch => {
            reject_and_fail_task(RejectReason::DATA_DIGEST_ERROR, TransportSense::CrcError)
        }
        Why::Malformed(_) | Why::AhsNotAllowed | Why::DataNotAllowed | Why::ReservedTaskTag => {
            reject(RejectReason::INVALID_PDU_FIELD)
        }
        Why::BidirectionalWithoutLength => reject(RejectReason::INVALID_PDU_FIELD),

        // §6.3: nothing but a login before the login.
        Why::NotALogin | Why::LoginTooSlow | Why::Login(_) => drop_connection(),
        Why::LoginAfterLogin | Why::TargetPdu | Why::NotInDiscovery | Why::SnackWithoutRecovery => {
            reject(RejectReason::PROTOCOL_ERROR)
        }
        Why::UnknownOpcode => reject(RejectReason::COMMAND_NOT_SUPPORTED),
        Why::AfterLogout => reject(RejectReason::WAITING_FOR_LOGOUT),
        Why::PingUnanswered | Why::LogoutTooSlow | Why::DataTooSlow | Why::AnswersUnread => drop_connection(),

        // §4.2.2.1: silently ignored.
        Why::CmdSnOutsideWindow | Why::DuplicateCmdSn => nothing(),
        // §7.1.5: level 0 has no other way to get the missing command.
        Why::CmdSnHole => drop_connection(),
        Why::TaskTagInUse => reject(RejectReason::TASK_IN_PROGRESS),
        Why::TooManyImmediate => reject(RejectReason::TOO_MANY_IMMEDIATE),

        // §11.4.7.2.
        Why::ImmediateDataNotNegotiated
        | Why::ImmediateDataWithoutWrite
        | Why::UnsolicitedNotNegotiated
        | Why::UnsolicitedNotExpected => fail(TransportSense::UnexpectedUnsolicitedData),
        Why::UnsolicitedBeyondLimit
        | Why::NotEnoughUnsolicited
        | Why::DataOutBeyondR2t
        | Why::DataOutShort => fail(TransportSense::IncorrectAmountOfData),

        Why::DataOutUnknownTag | Why::DataOutOtherLun => {
            reject_and_fail_task(RejectReason::INVALID_PDU_FIELD, TransportSense::InvalidTransferTag)
        }
        Why::DataOutOtherConnection => reject(RejectReason::PROTOCOL_ERROR),
        // §7.9: a gap implies a digest error on what is missing.
        Why::DataSnOutOfOrder => fail(TransportSense::CrcError),
        Why::DataOutOffset => fail(TransportSense::DataOffsetError),

        // §11.16: what was not sent or is acknowledged already cannot be had again.
        Why::SnackUnknownTask | Why::SnackNotSent => reject(RejectReason::PROTOCOL_ERROR),
        Why::SnackUnserved => reject(RejectReason::SNACK_REJECT),
        Why::SnackIllegal => reject(RejectReason::INVALID_PDU_FIELD),
        Why::DataAckUnknown => reject(RejectReason::INVALID_DATA_ACK),

        Why::Text(_) => reject(RejectReason::PROTOCOL_ERROR),
        Why::NoRoom => reject(RejectReason::LONG_OPERATION_REJECT),
        Why::Bug => drop_connection(),
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
