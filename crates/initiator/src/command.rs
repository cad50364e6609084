//! Commands for a logical unit, and their results.

use std::time::Duration;

use base::buffer::{Bytes, DataList};
use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::opcode::{self, variable_length as variable};
use scsi::sense::{Asc, Sense};
use transport::command::TaskAttribute;
use transport::initiator::{CommandResponse, Request, Residual, SubmitError};

use crate::future::Stopped;
use crate::identity::{OtherDevice, UnconfirmedDevice};
use crate::session_error::{SessionError, SessionLoss, because, ended};

/// A SCSI command.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Command {
    /// The logical unit.
    pub lun: Lun,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// The task attribute, by which the task set orders the command.
    pub attribute: TaskAttribute,
    /// The command priority, 1 (highest) to 15, or 0 for none; sent only if the target supports RFC 7144.
    pub priority: u8,
    /// The data to send. Empty: the command does not write.
    pub data_out: DataList,
    /// How many bytes of data-in are expected. Zero: the command does not read.
    pub data_in_len: u32,
    /// Whether it does no harm to execute the command twice with no other command in between. Then the
    /// command is retried when it is unknown whether it was executed, because its session was lost or the
    /// target aborted it. True for reads and plain writes, false for reservations, COMPARE AND WRITE, copies.
    pub repeatable: bool,
    /// Whether unit attentions are reported as events and the command is retried, as users of disks want it.
    /// Otherwise a unit attention is the result of the command.
    pub absorbs_attentions: bool,
    /// The command timeout: how long the command may go without a response and without data being moved.
    /// `None` for the timeout of the session ([`crate::client::Session::limit_commands`]). FORMAT UNIT,
    /// SANITIZE, EXTENDED COPY and an extended self-test have no timeout unless this is set. Commands that
    /// process much of a unit, or its firmware, have four times the timeout of others.
    pub answer_within: Option<Duration>,
}

/// SEND DIAGNOSTIC: the self-test code of an extended self-test in the foreground, whose end the command
/// waits for.
const EXTENDED_SELF_TEST: u8 = 0b110;

/// The service actions of the 32-byte commands that process much of a unit.
const LONG_ACTIONS: [u16; 2] = [variable::VERIFY_32, variable::WRITE_SAME_32];

/// Returns what ended the commands of a unit, for display.
fn cleared_by(asc: Asc) -> &'static str {
    match asc {
        Asc::POWER_ON_OCCURRED => "power on",
        Asc::I_T_NEXUS_LOSS_OCCURRED => "I_T nexus loss",
        Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR => "cleared by another initiator",
        Asc::RESERVATIONS_PREEMPTED | Asc::REGISTRATIONS_PREEMPTED => "preempted by another initiator",
        Asc(code) if code >> 8 == 0x2f => "cleared by the device server",
        _ => "reset",
    }
}

impl Command {
    /// Creates a SIMPLE command without data that is not repeatable.
    pub fn new(lun: Lun, cdb: Cdb) -> Self {
        Self {
            lun,
            cdb,
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            data_out: DataList::new(),
            data_in_len: 0,
            repeatable: false,
            absorbs_attentions: true,
            answer_within: None,
        }
    }

    /// Returns the command with an expected data-in length of `len` bytes.
    #[must_use]
    pub const fn reading(mut self, len: u32) -> Self {
        self.data_in_len = len;
        self
    }

    /// Returns the command with `data` to send.
    #[must_use]
    pub fn writing(mut self, data: impl Into<DataList>) -> Self {
        self.data_out = data.into();
        self
    }

    /// Returns the command as repeatable.
    #[must_use]
    pub const fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }

    /// Returns the command with this timeout.
    #[must_use]
    pub const fn answered_within(mut self, limit: Duration) -> Self {
        self.answer_within = Some(limit);
        self
    }

    /// Returns the timeout of the command, where `limit` is that of the session; `None` for no timeout.
    pub(crate) fn limit(&self, limit: Option<Duration>) -> Option<Duration> {
        let code = self.cdb.opcode();
        let action = self.cdb.u16(8);
        match code {
            _ if self.answer_within.is_some() => self.answer_within,
            opcode::FORMAT_UNIT | opcode::SANITIZE | opcode::THIRD_PARTY_COPY_OUT => None,
            opcode::SEND_DIAGNOSTIC if self.cdb.u8(1) >> 5 == EXTENDED_SELF_TEST => None,
            opcode::VARIABLE_LENGTH if !LONG_ACTIONS.contains(&action) => limit,
            opcode::WRITE_SAME_10
            | opcode::WRITE_SAME_16
            | opcode::UNMAP
            | opcode::VERIFY_10
            | opcode::VERIFY_12
            | opcode::VERIFY_16
            | opcode::VARIABLE_LENGTH
            | opcode::SEND_DIAGNOSTIC
            | opcode::WRITE_BUFFER
            | opcode::REASSIGN_BLOCKS
            | opcode::START_STOP_UNIT
            | opcode::SYNCHRONIZE_CACHE_10
            | opcode::SYNCHRONIZE_CACHE_16 => limit.map(|limit| limit * 4),
            _ => limit,
        }
    }

    /// Returns the request for the iSCSI session; `None` if no CDB has this length.
    pub(crate) fn request(&self, cdb: transport::command::Cdb) -> Request {
        Request {
            attribute: self.attribute,
            priority: self.priority,
            data_out: self.data_out.clone(),
            data_in_len: self.data_in_len,
            replay: self.repeatable,
            ..Request::new(self.lun.0, cdb)
        }
    }
}

/// The result of a command that was executed.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Reply {
    /// The data that was received, at most as much as was expected.
    pub data: Option<Bytes>,
    /// The residual count of the data.
    pub residual: Residual,
}

impl Reply {
    /// Returns the data that was received.
    pub fn bytes(&self) -> &[u8] {
        self.data.as_deref().unwrap_or_default()
    }
}

/// Why a command was not executed, or not as intended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// CHECK CONDITION, with the sense data.
    #[error("{0}")]
    Sense(Sense),
    /// CHECK CONDITION without sense data.
    #[error("check condition without sense data")]
    NoSense,
    /// Another initiator holds a reservation.
    #[error("reservation conflict: another initiator holds a reservation")]
    ReservationConflict,
    /// The unit was busy for longer than the command is retried.
    #[error("the unit stays BUSY")]
    Busy,
    /// Another initiator, or the owner of the command, aborted it.
    #[error("the command was aborted")]
    Aborted,
    /// A reset, or another initiator, ended the commands of the unit. The unit attention with this additional
    /// sense code reported it.
    #[error(
        "the unit ended its commands ({}: {:02x}h/{:02x}h); it is unknown whether this one was executed",
        cleared_by(*.0), .0.0 >> 8, .0.0 & 0xff
    )]
    Cleared(Asc),
    /// The target did not respond within the command timeout, and the command was aborted.
    #[error("the target did not respond in time; it is unknown whether the command was executed")]
    Silence,
    /// An unexpected status.
    #[error("the target returned status {0:02x}h")]
    Status(u8),
    /// The target reported a failure without a status.
    #[error("the target reported a failure without a status")]
    TargetFailure,
    /// The target rejected the PDU of the command.
    #[error("the target rejected the command (reason {0:02x}h)")]
    Rejected(u8),
    /// The target sent less data than the command needs.
    #[error("the target sent {came} bytes instead of {wanted}")]
    Short {
        /// How many bytes were received.
        came: usize,
        /// How many bytes the command needs.
        wanted: usize,
    },
    /// The target reports success, and that it took less data than the command has.
    #[error("the target took {taken} bytes instead of {wanted}")]
    Untaken {
        /// How many bytes were taken.
        taken: usize,
        /// How many bytes the command has.
        wanted: usize,
    },
    /// The data that was received is malformed.
    #[error("the target sent an invalid response: {0}")]
    Nonsense(&'static str),
    /// The target refused a text negotiation, or the connection was lost before its answer was complete.
    #[error("the target rejected the Text Request, or its Text Response is incomplete")]
    NoText,
    /// The session was lost, and it is unknown whether the command was executed.
    #[error("the session was lost{}; it is unknown whether the command was executed", because(.0.as_ref()))]
    Lost(Option<SessionLoss>),
    /// Another device is now behind the LUN. The command was not executed there.
    #[error("{0}")]
    OtherDevice(Box<OtherDevice>),
    /// The unit does not confirm that it is the same device as before. The command was not executed.
    #[error("{0}")]
    UnconfirmedDevice(Box<UnconfirmedDevice>),
    /// The session refused the command.
    #[error(transparent)]
    Refused(#[from] SubmitError),
    /// The session has ended. The command was not executed.
    #[error("{}", ended(.0))]
    Down(SessionError),
    /// The thread that was to execute the command has ended.
    #[error("the initiator was stopped")]
    Stopped,
}

impl CommandError {
    /// Returns the sense data, if the device server gave any.
    pub const fn sense(&self) -> Option<&Sense> {
        match self {
            Self::Sense(sense) => Some(sense),
            _ => None,
        }
    }

    /// Returns the error for the status and the sense data at the end of a task.
    pub(crate) fn of_ending(ending: &CommandResponse) -> Self {
        use scsi::status::Status;
        match Status(ending.status) {
            Status::CHECK_CONDITION => ending
                .sense
                .as_deref()
                .and_then(|bytes| Sense::parse(bytes).ok())
                .map_or(Self::NoSense, Self::Sense),
            Status::RESERVATION_CONFLICT => Self::ReservationConflict,
            Status::BUSY | Status::TASK_SET_FULL => Self::Busy,
            Status::TASK_ABORTED => Self::Aborted,
            Status(other) => Self::Status(other),
        }
    }
}

impl From<Stopped> for CommandError {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_may_take_longer() {
        let limit = Duration::from_secs(60);
        let of = |cdb: &[u8]| Command::new(Lun(0), Cdb::from_bytes(cdb).unwrap()).limit(Some(limit));
        let long = |action: u8| {
            let mut cdb = [0; 32];
            (cdb[0], cdb[7], cdb[9]) = (opcode::VARIABLE_LENGTH, 24, action);
            of(&cdb)
        };
        let four = Some(limit * 4);
        assert_eq!([0x09, 0x0a, 0x0b, 0x0d].map(long), [Some(limit), four, Some(limit), four]);
        for code in [opcode::WRITE_BUFFER, opcode::VERIFY_12, opcode::REASSIGN_BLOCKS, opcode::UNMAP] {
            let mut cdb = [0; 16];
            cdb[0] = code;
            assert_eq!(of(&cdb), four, "{code:02x}h");
        }
        let self_test = |code: u8| of(&[opcode::SEND_DIAGNOSTIC, code << 5, 0, 0, 0, 0]);
        assert_eq!([self_test(0b101), self_test(0b110)], [four, None]);
        assert_eq!(of(&[opcode::READ_10, 0, 0, 0, 0, 0, 0, 0, 1, 0]), Some(limit));
    }
}
