//! What is asked of a logical unit, and what comes of it.

use std::time::Duration;

use base::buffer::{Bytes, DataList};
use iscsi::initiator::contract::{CommandResponse, Request, SubmitError};
use iscsi::pdu::Residual;
use iscsi::pdu::reject::RejectReason;
use iscsi::pdu::scsi_command::TaskAttribute;
use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::opcode::{self, variable_length as variable};
use scsi::sense::{Asc, Sense};

use crate::future::Stopped;
use crate::identity::OtherDevice;
use crate::session_error::{SessionError, SessionLoss, because, ended};

/// A SCSI command to be carried out.
#[derive(Clone, Debug)]
pub struct Command {
    /// The logical unit.
    pub lun: Lun,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// How the task set treats it.
    pub attribute: TaskAttribute,
    /// Its priority, 1 (first) to 15, or 0 for none; sent only if the target speaks RFC 7144.
    pub priority: u8,
    /// The data to send. Empty: the command does not write.
    pub data_out: DataList,
    /// How many bytes are expected. Zero: the command does not read.
    pub data_in_len: u32,
    /// Whether it does no harm if it is carried out twice with nothing else in between. Then it is tried again when
    /// nobody can know whether it was carried out: its session was lost, or the target aborted it. True for reads
    /// and plain writes, false for reservations, COMPARE AND WRITE, copies.
    pub repeatable: bool,
    /// Whether unit attentions are reported as events and the command is tried again, as users of disks want it. Else
    /// they are its result.
    pub absorbs_attentions: bool,
    /// How long it may go without an answer and without data being moved, if not as long as the session's commands are
    /// allowed to ([`crate::client::Session::limit_commands`]). FORMAT UNIT, SANITIZE, EXTENDED COPY and an
    /// extended self-test may take any time unless this is set, and commands that concern much of a unit, or its firmware,
    /// take four times as long as others.
    pub answer_within: Option<Duration>,
}

/// SEND DIAGNOSTIC: the self-test code of an extended self-test that the command waits for.
const EXTENDED_SELF_TEST: u8 = 0b110;

/// The commands of 32 bytes that concern much of a unit.
const LONG_ACTIONS: [u16; 2] = [variable::VERIFY_32, variable::WRITE_SAME_32];

/// Says what ended the commands of a unit.
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
    /// Makes a simple command without data that is not repeatable.
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

    /// The same, expecting `len` bytes.
    #[must_use]
    pub const fn reading(mut self, len: u32) -> Self {
        self.data_in_len = len;
        self
    }

    /// The same, sending `data`.
    #[must_use]
    pub fn writing(mut self, data: DataList) -> Self {
        self.data_out = data;
        self
    }

    /// The same, allowed to be carried out twice.
    #[must_use]
    pub const fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }

    /// The same, with so long for an answer.
    #[must_use]
    pub const fn answered_within(mut self, limit: Duration) -> Self {
        self.answer_within = Some(limit);
        self
    }

    /// Returns how long it may go without an answer, if others may go for `limit`; `None` for any time.
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

    /// Returns what the session is asked for.
    pub(crate) fn request(&self) -> Request {
        let bytes = self.cdb.bytes();
        let (head, rest) = bytes
            .split_first_chunk::<16>()
            .map_or(([0; 16], None), |(head, rest)| (*head, Some(rest).filter(|rest| !rest.is_empty())));
        let mut request = Request::new(self.lun.0, iscsi::pdu::ahs::Cdb::new(head, rest));
        request.attribute = self.attribute;
        request.priority = self.priority;
        request.data_out = self.data_out.clone();
        request.data_in_len = self.data_in_len;
        request.replay = self.repeatable;
        request
    }
}

/// A command that was carried out.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// The data that came, at most as much as was expected.
    pub data: Option<Bytes>,
    /// How far the data missed what was expected.
    pub residual: Residual,
}

impl Reply {
    /// Returns the data that came.
    pub fn bytes(&self) -> &[u8] {
        self.data.as_deref().unwrap_or_default()
    }
}

/// Why a command was not carried out, or not as it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The device server says why.
    #[error("{0}")]
    Sense(Sense),
    /// The device server says that there is a reason, and not which.
    #[error("check condition without sense data")]
    NoSense,
    /// Another initiator holds a reservation.
    #[error("reservation conflict: another initiator holds a reservation")]
    ReservationConflict,
    /// The unit was busy for longer than we wait.
    #[error("the unit stays busy")]
    Busy,
    /// Somebody aborted it.
    #[error("the command was aborted")]
    Aborted,
    /// A reset, or another initiator, ended the commands of the unit, as its unit attention says.
    #[error(
        "the commands of the unit were ended ({}: {:02x}h/{:02x}h); whether this one was carried out is not known",
        cleared_by(*.0), .0.0 >> 8, .0.0 & 0xff
    )]
    Cleared(Asc),
    /// The target did not answer in time, and the command was ended.
    #[error("the target did not answer in time; whether the command was carried out is not known")]
    Silence,
    /// A status that should not come.
    #[error("the target answered with status {0:02x}h")]
    Status(u8),
    /// The target failed.
    #[error("the target failed and gave no status")]
    TargetFailure,
    /// The target refused the PDU that carried it.
    #[error("the target rejected the command (reason {:02x}h)", .0.0)]
    Rejected(RejectReason),
    /// Less data came than the command is to bring.
    #[error("the target sent {came} bytes of {wanted}")]
    Short {
        /// How many came.
        came: usize,
        /// How many should have.
        wanted: usize,
    },
    /// The data that came makes no sense.
    #[error("the target answered nonsense: {0}")]
    Nonsense(&'static str),
    /// The target refused a text, or the connection was lost before its answer was whole.
    #[error("the target refused the text, or its answer did not come whole")]
    NoText,
    /// The session was lost, and nobody knows whether the command was carried out.
    #[error("the session was lost{}; whether the command was carried out is not known", because(.0.as_ref()))]
    Lost(Option<SessionLoss>),
    /// Behind the LUN there is another device than before. The command was not carried out there.
    #[error("{0}")]
    OtherDevice(Box<OtherDevice>),
    /// The session does not take it.
    #[error(transparent)]
    Refused(#[from] SubmitError),
    /// The session has ended. The command was not carried out.
    #[error("{}", ended(.0))]
    Down(SessionError),
    /// The thread that should have carried it out has ended.
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

    /// Makes an error of what the target said at the end of a task.
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
