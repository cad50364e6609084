//! The target role: what a transport reports to the layer above it, and what it accepts from there.

use alloc::boxed::Box;

use base::buffer::{Bytes, DataList};
use base::time::Instant;
use security::Level;

use crate::command::{Cdb, TaskAttribute};
use crate::handle::handle;
use crate::status;
use crate::task_management::{TmfFunction, TmfResult};

handle! {
    /// Names a task from [`Event::Command`] until the layer above finishes or aborts it, or
    /// [`Event::TaskGone`].
    pub struct TaskRef;
}

handle! {
    /// Names a session of a transport, which is an I_T nexus, from its begin to its end.
    pub struct SessionId;
}

handle! {
    /// Names a task management request from [`Event::Tmf`] until it is answered or its session ends.
    pub struct TmfRef;
}

/// What the events of one transport hold beyond the services that all transports have. After any call, the
/// owner of a transport polls its events until there is none.
pub trait Protocol {
    /// How a session began.
    type SessionUp;
    /// Why a session ended.
    type SessionEnd;
    /// Something that happened to a session and that only an operator needs to know.
    type Notice;
}

/// Something that the layer above must execute or record. The events of one session are in the order that its
/// initiator prescribed; requests that the initiator marked for immediate delivery come at once.
#[derive(Debug)]
pub enum Event<P: Protocol> {
    /// A session began: an I_T nexus.
    SessionUp(Box<P::SessionUp>),
    /// SCSI Command Received (SAM-5 §5.4): the layer above must execute a command.
    Command(Command),
    /// Data-Out Received (SAM-5 §5.4): all the bytes that one call of [`fetch`](TargetTransport::fetch)
    /// asked for.
    DataOut {
        /// The task.
        task: TaskRef,
        /// The offset of the bytes from the start of the command's data.
        offset: u32,
        /// The bytes.
        data: DataList,
    },
    /// Task Management Request Received (SAM-5 §7.12): the layer above must carry out a task management
    /// function. It calls [`abort`](TargetTransport::abort) for each task that the function ended without a
    /// response, and then [`finish_tmf`](TargetTransport::finish_tmf).
    ///
    /// After TARGET COLD RESET, the layer above answers, and then closes the requester's session and every
    /// other session of the target that sees a unit which the requester sees, and none that requires more
    /// protection than the requester's session has.
    Tmf(TmfIndication),
    /// The transport gave the task up. The layer above must abort it; its handle is no longer valid.
    TaskGone {
        /// The task.
        task: TaskRef,
    },
    /// Tasks of a session for this logical unit ended without a response because of an event of the transport
    /// protocol, and the session continues. The initiator must learn of it with its next command.
    TasksCleared {
        /// The session.
        session: SessionId,
        /// The logical unit, as SAM-5 §4.7 encodes it.
        lun: u64,
        /// The additional sense code and qualifier of the unit attention condition that reports it.
        code: [u8; 2],
    },
    /// Something happened that needs no action.
    Notice(P::Notice),
    /// A session ended: the I_T nexus is lost (SAM-5 §6.3.4). [`Event::TaskGone`] was reported before for
    /// every task of it.
    SessionDown {
        /// The session.
        session: SessionId,
        /// The reason.
        why: P::SessionEnd,
    },
}

/// A SCSI command.
#[derive(Clone, Debug)]
pub struct Command {
    /// The task's handle.
    pub task: TaskRef,
    /// The session that sent the command.
    pub session: SessionId,
    /// The logical unit, as SAM-5 §4.7 encodes it.
    pub lun: u64,
    /// The protection of the command itself, which can be below that of its session.
    pub level: Level,
    /// The task attribute.
    pub attribute: TaskAttribute,
    /// Its priority, 1 (first) to 15, or 0 for none.
    pub priority: u8,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// How many bytes the initiator expects to receive. The transport sends no more than these.
    pub data_in_len: u32,
    /// How many bytes the initiator expects to send. The layer above can fetch no more than these. A
    /// bidirectional command sets both lengths.
    pub data_out_len: u32,
    /// The first of these bytes, if the initiator sent them with the command and the transport has received
    /// all that it sent so. The layer above need not fetch them. Until it fetches bytes behind them or the
    /// task ends, they count against the quota of the transport.
    pub data_out: Option<Bytes>,
}

/// A task management request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmfIndication {
    /// The request's handle.
    pub tmf: TmfRef,
    /// The session that sent the request.
    pub session: SessionId,
    /// The function. It is never TASK REASSIGN, which iSCSI carries out itself, and a function of RFC 7144
    /// only if the session has these.
    pub function: TmfFunction,
    /// The logical unit. It has no meaning for functions that concern the whole target or I_T nexus.
    pub lun: u64,
    /// The task that ABORT TASK or QUERY TASK refers to: `Some` for those two functions, else `None`.
    pub task: Option<TaskRef>,
}

/// The outcome of a task: status, sense data and transferable length.
#[derive(Clone, Copy, Debug)]
pub struct Finish<'a> {
    /// The SCSI status.
    pub status: u8,
    /// Sense data, at most [`status::SENSE_MAX`] bytes; empty for none.
    pub sense: &'a [u8],
    /// How many bytes the command would have transferred had the initiator expected enough. The residual
    /// counts are computed from it.
    pub transferable: u64,
    /// Whether the sense data reports a unit attention condition. iSCSI orders such a response with those of
    /// the session's other connections (RFC 7143 §4.2.2.3.3).
    pub is_unit_attention: bool,
}

impl Finish<'_> {
    /// Returns the outcome of a task that ended with status GOOD, with `transferable` bytes transferred.
    pub const fn good(transferable: u64) -> Self {
        Self { status: status::GOOD, sense: &[], transferable, is_unit_attention: false }
    }
}

/// The services of a transport for the layer above it. Every method ignores a handle that is no longer valid,
/// since a session can end while the layer above executes its commands.
pub trait TargetTransport {
    /// Receive Data-Out (SAM-5 §5.4): asks for bytes of the initiator's data; one [`Event::DataOut`]
    /// returns them all.
    fn fetch(&mut self, task: TaskRef, offset: u32, len: u32);

    /// Send Data-In (SAM-5 §5.4): accepts data, which must begin where the data given before ended.
    fn data_in(&mut self, task: TaskRef, offset: u32, data: DataList);

    /// Records that the command of a task may end tasks of other initiators: its response must not overtake
    /// the responses of those tasks on another connection. A transport whose responses arrive in order has
    /// nothing to do.
    fn fence_response(&mut self, _: TaskRef) {}

    /// Send Command Complete (SAM-5 §5.4): accepts the outcome of a task.
    fn finish(&mut self, task: TaskRef, outcome: Finish<'_>);

    /// Records that the layer above ended a task without a response, because of task management.
    fn abort(&mut self, task: TaskRef);

    /// Task Management Function Executed (SAM-5 §7.12): accepts the result of a request.
    fn finish_tmf(&mut self, tmf: TmfRef, result: TmfResult);

    /// Ends a session at once.
    fn close_session(&mut self, now: Instant, session: SessionId);
}
