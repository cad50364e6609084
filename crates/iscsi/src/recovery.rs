//! Error recovery (RFC 7143 §7): what a target answers to each broken rule, by ErrorRecoveryLevel.
//!
//! At level 0 every error is answered by refusing the PDU, failing its task, or ending the session. The levels above
//! add to it: level 1 repairs within a connection (SNACK, recovery R2Ts), level 2 moves tasks between connections.
//!
//! What stands here are decisions without state: which answer a broken rule gets, which numbers a SNACK may ask for.
//! The state is kept by the sessions of each role.

pub mod erl0;
pub mod erl1;
pub mod erl2;

use crate::pdu::reject::RejectReason;
use crate::target::protocol_error::ProtocolError;

/// What a target does about a broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorResponse {
    /// The reason of a Reject to send, if any.
    pub reject: Option<RejectReason>,
    /// What else.
    pub action: RecoveryAction,
}

/// What a target does beside rejecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryAction {
    /// Nothing: the PDU is passed over.
    Nothing,
    /// The task that the PDU belongs to fails once its data sequences have ended.
    FailTask(TransportSense),
    /// The data that is missing is asked for again; where that cannot be, the task fails.
    RequestAgain(TransportSense),
    /// The connection ends, and with it, at level 0, the session.
    Drop,
}

/// The sense that a task fails with when the transport is the cause: ABORTED COMMAND with one of these additional
/// codes (RFC 7143 §11.4.7.2, SPC-5 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportSense {
    /// Unexpected unsolicited data.
    UnexpectedUnsolicitedData,
    /// Incorrect amount of data.
    IncorrectAmountOfData,
    /// Protocol service CRC error.
    CrcError,
    /// Data offset error.
    DataOffsetError,
    /// Invalid target port transfer tag received.
    InvalidTransferTag,
    /// Initiator response timeout.
    InitiatorResponseTimeout,
}

impl TransportSense {
    /// Returns ASC and ASCQ.
    pub const fn code(self) -> (u8, u8) {
        match self {
            Self::UnexpectedUnsolicitedData => (0x0c, 0x0c),
            Self::IncorrectAmountOfData => (0x0c, 0x0d),
            Self::CrcError => (0x47, 0x05),
            Self::DataOffsetError => (0x4b, 0x05),
            Self::InvalidTransferTag => (0x4b, 0x01),
            Self::InitiatorResponseTimeout => (0x4b, 0x06),
        }
    }

    /// Returns the sense data, in fixed format.
    pub const fn sense(self) -> [u8; 18] {
        let (asc, ascq) = self.code();
        [0x70, 0, 0x0b, 0, 0, 0, 0, 10, 0, 0, 0, 0, asc, ascq, 0, 0, 0, 0]
    }
}

/// Returns what a target of the given ErrorRecoveryLevel does about `protocol_error`.
pub const fn error_response(level: u8, why: ProtocolError) -> ErrorResponse {
    match level {
        0 => erl0::error_response(why),
        _ => erl1::error_response(why),
    }
}
