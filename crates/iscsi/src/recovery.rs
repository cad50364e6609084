//! Error recovery (RFC 7143 §7): the response of each role to each broken rule, by ErrorRecoveryLevel.
//!
//! A session settles its ErrorRecoveryLevel at login (§13.20), and [`RecoveryLevel`] is that value. Each
//! level adds to the one below:
//!
//! * Level 0 ([`erl0`]), *session recovery*: a rejected PDU or a failed task at best. A lost PDU ends the
//!   session, and the initiator establishes another one.
//! * Level 1 ([`erl1`]), *digest failure recovery*: a PDU that a digest error destroyed is sent again on the
//!   same connection.
//! * Level 2 ([`erl2`]), *connection recovery*: the tasks of a lost connection move to another one.
//!
//! Two things depend on the level, and both are answered here and nowhere else:
//!
//! * What a broken rule becomes: [`target_response`] and [`initiator_response`]. The tables are in [`erl0`],
//!   which lists every rule, and in [`erl1`], which lists what level 1 answers differently. Level 2 changes
//!   no row: it changes what the loss of a connection means ([`RecoveryLevel::reassigns_tasks`]). The session
//!   that noticed the broken rule carries the response out as it stands.
//! * What a session does so that it can recover: the questions of [`RecoveryLevel`]. No other module compares
//!   levels.
//!
//! `recovery/responses.snap` holds every row of every table, for comparison by a test. This module has no
//! state; the sessions of each role keep it.

pub mod erl0;
pub mod erl1;
pub mod erl2;

use transport::status;

use crate::initiator::protocol_error::ProtocolError as TargetFault;
use crate::pdu::reject::RejectReason;
use crate::target::protocol_error::ProtocolError as InitiatorFault;

/// The ErrorRecoveryLevel of a session (RFC 7143 §7.1.5, §13.20).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryLevel {
    /// Level 0: session recovery.
    #[default]
    SessionRecovery,
    /// Level 1: digest failure recovery, and what level 0 has.
    DigestRecovery,
    /// Level 2: connection recovery, and what level 1 has.
    ConnectionRecovery,
}

impl RecoveryLevel {
    /// Every level, from 0 on.
    pub const ALL: [Self; 3] = [Self::SessionRecovery, Self::DigestRecovery, Self::ConnectionRecovery];

    /// Returns the level of this number. No level is higher than 2.
    pub const fn new(number: u32) -> Self {
        match number {
            0 => Self::SessionRecovery,
            1 => Self::DigestRecovery,
            _ => Self::ConnectionRecovery,
        }
    }

    /// Returns the number of the level, as the key ErrorRecoveryLevel states it.
    pub const fn number(self) -> u8 {
        match self {
            Self::SessionRecovery => 0,
            Self::DigestRecovery => 1,
            Self::ConnectionRecovery => 2,
        }
    }

    /// Returns whether a receiver asks for PDUs again that did not arrive: the initiator with a SNACK, the
    /// target with a recovery R2T (§7.8, §7.9).
    pub const fn requests_missing_pdus(self) -> bool {
        self.has_digest_recovery()
    }

    /// Returns whether the target serves SNACKs (§11.16: all types from level 1 on).
    pub const fn serves_snacks(self) -> bool {
        self.has_digest_recovery()
    }

    /// Returns whether the target keeps each status until ExpStatSN acknowledges it (§4.2.2.2, §11.16).
    pub const fn retains_statuses(self) -> bool {
        self.has_digest_recovery()
    }

    /// Returns whether the target keeps Data-In until the initiator acknowledges it, with the status or with
    /// a SNACK of type DataACK, and whether the initiator therefore answers the A bit (§11.7.2, §11.16.2).
    pub const fn retains_data(self) -> bool {
        self.has_digest_recovery()
    }

    /// Returns whether the initiator sends a request again, under the same CmdSN, that did not reach the
    /// target, and whether the target therefore waits for it (§7.2.1).
    pub const fn retries_commands(self) -> bool {
        self.has_digest_recovery()
    }

    /// Returns whether a PDU may legitimately arrive twice, because it was asked for twice (§7.9).
    pub const fn may_receive_twice(self) -> bool {
        self.has_digest_recovery()
    }

    /// Returns whether a PDU with a damaged header is skipped, if its length is certain, instead of closing
    /// the connection (§7.8; [`crate::framing`]).
    pub const fn skips_damaged_headers(self) -> bool {
        self.has_digest_recovery()
    }

    /// Returns whether tasks survive the loss of their connection, and TASK REASSIGN moves them to another
    /// (§7.2.2). If not, they end with their connection, and the session ends with its last one; an initiator
    /// gives up the session with any (§7.14).
    pub const fn reassigns_tasks(self) -> bool {
        matches!(self, Self::ConnectionRecovery)
    }

    const fn has_digest_recovery(self) -> bool {
        match self {
            Self::SessionRecovery => false,
            Self::DigestRecovery | Self::ConnectionRecovery => true,
        }
    }
}

/// The response of a target to a rule that the initiator broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetResponse {
    /// The reason of a Reject to send, if any.
    pub reject: Option<RejectReason>,
    /// The action besides the Reject.
    pub action: TargetAction,
}

/// The action of a target besides a Reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetAction {
    /// Nothing: the PDU is ignored.
    Nothing,
    /// The task that the PDU belongs to fails once its data sequences have ended.
    FailTask(TransportSense),
    /// The target requests the missing data again with a recovery R2T. The task fails if no sequence expects
    /// the data.
    RequestAgain(TransportSense),
    /// The connection ends. [`RecoveryLevel::reassigns_tasks`] says what becomes of its tasks.
    DropConnection,
    /// The session ends with all its connections and tasks.
    EndSession,
}

/// The response of an initiator to a rule that the target broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitiatorAction {
    /// The initiator discards the PDU, and requests what is missing with a SNACK: nothing, if the PDU is a
    /// duplicate.
    RequestMissing,
    /// The initiator sends the command again under its CmdSN.
    RetryCommand,
    /// The connection ends. [`RecoveryLevel::reassigns_tasks`] says what becomes of its tasks.
    DropConnection,
    /// The session ends, and the initiator establishes another one. A connection that is still in login has
    /// no session to lose: only the login fails.
    EndSession,
}

/// The sense data of a task that fails because of the transport: ABORTED COMMAND with one of these additional
/// sense codes (RFC 7143 §11.4.7.2, SPC-5 §4.4).
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
    /// Returns the sense data, in fixed format.
    pub const fn sense(self) -> [u8; 18] {
        let code = match self {
            Self::UnexpectedUnsolicitedData => [0x0c, 0x0c],
            Self::IncorrectAmountOfData => [0x0c, 0x0d],
            Self::CrcError => [0x47, 0x05],
            Self::SnackRejected => [0x11, 0x13],
            Self::DataOffsetError => [0x4b, 0x05],
            Self::InvalidTransferTag => [0x4b, 0x01],
            Self::InitiatorResponseTimeout => [0x4b, 0x06],
        };
        status::sense(status::ABORTED_COMMAND, code)
    }
}

/// Returns the response of a target to the rule `why` that the initiator broke.
pub const fn target_response(level: RecoveryLevel, why: InitiatorFault) -> TargetResponse {
    match level {
        RecoveryLevel::SessionRecovery => erl0::target_response(why),
        RecoveryLevel::DigestRecovery | RecoveryLevel::ConnectionRecovery => erl1::target_response(why),
    }
}

/// Returns the response of an initiator to the rule `why` that the target broke.
pub const fn initiator_response(level: RecoveryLevel, why: TargetFault) -> InitiatorAction {
    match level {
        RecoveryLevel::SessionRecovery => erl0::initiator_response(why),
        RecoveryLevel::DigestRecovery | RecoveryLevel::ConnectionRecovery => erl1::initiator_response(why),
    }
}

/// Returns whether an error that an initiator noticed may be damage in transit rather than a target that
/// breaks rules: the state of such a target can still be trusted, so not all of the session is given up.
pub const fn is_damage(why: TargetFault) -> bool {
    matches!(erl0::initiator_response(why), InitiatorAction::DropConnection)
}

#[cfg(test)]
mod tests;
