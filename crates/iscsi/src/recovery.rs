//! Error recovery (RFC 7143 §7): the recovery action of a target for each protocol error, by
//! ErrorRecoveryLevel.
//!
//! At level 0 the target answers every error by rejecting the PDU, failing its task, or ending the session.
//! Level 1 adds recovery within a connection (SNACK, recovery R2Ts). Level 2 adds allegiance reassignment:
//! tasks move between connections.
//!
//! This module makes decisions without state: the recovery action for a protocol error, and the numbers that
//! a SNACK may request. The sessions of each role keep the state.

pub mod erl0;
pub mod erl1;
pub mod erl2;

use crate::pdu::reject::RejectReason;
use crate::target::protocol_error::ProtocolError;

/// The reaction of a target to a protocol error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorResponse {
    /// The reason of a Reject to send, if any.
    pub reject: Option<RejectReason>,
    /// The action besides the Reject.
    pub action: RecoveryAction,
}

/// The action of a target besides a Reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryAction {
    /// Nothing: the PDU is ignored.
    Nothing,
    /// The task that the PDU belongs to fails once its data sequences have ended.
    FailTask(TransportSense),
    /// The target requests the missing data again; if it cannot, the task fails.
    RequestAgain(TransportSense),
    /// The connection ends, and with it, at level 0, the session.
    Drop,
}

/// The sense data of a task that fails because of the transport: ABORTED COMMAND with one of these additional
/// sense codes (RFC 7143 §11.4.7.2, SPC-5 §4.5).
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
    /// SNACK rejected: data that was lost cannot be sent again.
    SnackRejected,
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
            Self::SnackRejected => (0x11, 0x13),
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

/// Returns the reaction of a target of the given ErrorRecoveryLevel to the protocol error `why`.
pub const fn error_response(level: u8, why: ProtocolError) -> ErrorResponse {
    match level {
        0 => erl0::error_response(why),
        _ => erl1::error_response(why),
    }
}
