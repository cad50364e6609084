//! A transport whose initiators are in the same process. A request is a value in a queue, and data is copied.
//! It checks that each fetch is within the data that did not go with the command, that Data-In is in order
//! and fits, and that tasks end once.

use std::collections::{BTreeMap, VecDeque};

use base::arena::{Arena, Key};
use base::buffer::{Bytes, DataList};
use base::time::Instant;
use security::Level;
use transport::command::{Cdb, TaskAttribute};
use transport::status::SENSE_MAX;
use transport::target::{
    Command, Event, Finish, Protocol, SessionId, TargetTransport, TaskRef, TmfIndication, TmfRef,
};
use transport::task_management::{TmfFunction, TmfResult};

/// The in-process transport protocol.
#[derive(Debug)]
pub(crate) enum InProcess {}

impl Protocol for InProcess {
    type SessionUp = SessionUp;
    type SessionEnd = SessionEnd;
    type Notice = std::convert::Infallible;
}

/// The begin of a session.
#[derive(Debug)]
pub(crate) struct SessionUp {
    pub(crate) session: SessionId,
    /// The name of the initiator, which is also its port.
    pub(crate) initiator: String,
    /// The number of the target.
    pub(crate) target: u32,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    LoggedOut,
    Lost,
    Closed,
}

/// A SCSI command of an initiator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) lun: u64,
    pub(crate) attribute: TaskAttribute,
    pub(crate) cdb: &'a [u8],
    /// The length of the Data-Out buffer, and its bytes. None if the initiator has them later.
    pub(crate) out_len: usize,
    pub(crate) out: &'a [u8],
    /// The length of the Data-In buffer.
    pub(crate) room: usize,
}

/// Names a request of an initiator. No later request has the same ticket, and none has the default one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TaskEnd {
    /// With a response.
    Response(Response),
    /// Without a response, because of task management.
    Aborted,
    /// Its session ended, or the transport dropped the task.
    Gone,
}

/// The response to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u8,
    pub(crate) sense: Vec<u8>,
    /// The Data-In buffer, as far as it was filled.
    pub(crate) data: Vec<u8>,
    /// How many bytes the command would have transferred beyond the initiator's buffer. Negative if it
    /// transferred fewer bytes than the buffer has.
    pub(crate) residual: i64,
}

/// The target role of the transport, with the buffers of its initiators.
#[derive(Debug, Default)]
pub(crate) struct InProcessTransport {
    /// For each session, whether its initiator leaves fetches unanswered at present.
    sessions: Arena<bool>,
    tasks: Arena<Task>,
    tmfs: Arena<(Ticket, SessionId)>,
    /// What the target handles next.
    pub(crate) events: VecDeque<Event<InProcess>>,
    next_ticket: u64,
    /// The protection of commands; `None` for one that never is below that of the session.
    pub(crate) command_level: Option<Level>,
    /// How tasks ended, in that order.
    pub(crate) task_ends: Vec<(Ticket, TaskEnd)>,
    pub(crate) tmf_results: BTreeMap<Ticket, TmfResult>,
    /// How many calls named a task or a request that no longer exists.
    pub(crate) ignored: usize,
    pub(crate) fenced: usize,
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) ticket: Ticket,
    session: SessionId,
    lun: u64,
    out_len: usize,
    out: Vec<u8>,
    /// How many bytes of `out` went with the command.
    unsolicited: usize,
    room: usize,
    data: Vec<u8>,
    /// The offset and the length of each fetch that is not answered.
    fetches: VecDeque<(u32, u32)>,
}

/// How many bytes of Data-Out go with the command, unless the initiator holds its data back.
const FIRST_BURST: usize = 4096;

/// The role of the initiators.
impl InProcessTransport {
    pub(crate) fn login(&mut self, initiator: &str, target: u32) -> SessionId {
        let session = SessionId(self.sessions.insert_with(|_| false));
        let initiator = initiator.into();
        self.events.push_back(Event::SessionUp(Box::new(SessionUp { session, initiator, target })));
        session
    }

    /// Ends a session with all that it has, if it exists.
    pub(crate) fn end_session(&mut self, session: SessionId, why: SessionEnd) {
        let Some(_) = self.sessions.remove(session.0) else { return };
        self.drop_tasks(|task| task.session == session);
        for key in keys(&self.tmfs, |(_, known)| *known == session) {
            self.tmfs.discard(key);
        }
        self.events.push_back(Event::SessionDown { session, why });
    }

    /// Ends the tasks that a session has for a LUN, because of an event of the transport.
    pub(crate) fn clear_tasks(&mut self, session: SessionId, lun: u64) {
        self.drop_tasks(|task| task.session == session && task.lun == lun);
        self.events.push_back(Event::TasksCleared { session, lun, code: [0x47, 0x7f] });
    }

    pub(crate) fn drop_tasks(&mut self, chosen: impl Fn(&Task) -> bool) {
        for key in keys(&self.tasks, chosen) {
            self.end_task(TaskRef(key), |_| TaskEnd::Gone);
            self.events.push_back(Event::TaskGone { task: TaskRef(key) });
        }
    }

    pub(crate) fn send_command(&mut self, session: SessionId, request: Request<'_>) -> Ticket {
        let (ticket, Request { lun, attribute, cdb, out_len, out, room }) = (self.ticket(), request);
        let holds = self.sessions.get(session.0) == Some(&true);
        let unsolicited = if holds { 0 } else { out.len().min(FIRST_BURST) };
        let task = TaskRef(self.tasks.insert_with(|_| Task {
            ticket,
            session,
            lun,
            out_len,
            out: out.to_vec(),
            unsolicited,
            room,
            data: vec![],
            fetches: VecDeque::new(),
        }));
        let (cdb, priority, level) =
            (Cdb::new(cdb).unwrap(), 0, self.command_level.unwrap_or(Level::Encrypt));
        let [data_in_len, data_out_len] = [room, out_len].map(|len| u32::try_from(len).unwrap());
        let data_out = (unsolicited > 0).then(|| Bytes::copied_from(&out[..unsolicited]));
        #[rustfmt::skip]
        let command = Command {
            task, session, lun, level, attribute, priority, cdb, data_in_len, data_out_len, data_out,
        };
        self.events.push_back(Event::Command(command));
        ticket
    }

    /// Requests a task management function. The transport itself answers for a task that has ended.
    pub(crate) fn send_tmf(
        &mut self,
        session: SessionId,
        function: TmfFunction,
        lun: u64,
        of: Option<Ticket>,
    ) -> Ticket {
        let ticket = self.ticket();
        let task = of.and_then(|of| self.task_of(of));
        if of.is_some() && task.is_none() {
            let is_query = function == TmfFunction::QUERY_TASK;
            self.tmf_results.insert(ticket, if is_query { TmfResult::COMPLETE } else { TmfResult::NO_TASK });
            return ticket;
        }
        let tmf = TmfRef(self.tmfs.insert_with(|_| (ticket, session)));
        self.events.push_back(Event::Tmf(TmfIndication { tmf, session, function, lun, task }));
        ticket
    }

    /// Leaves the fetches of a session unanswered from now on, or answers them.
    pub(crate) fn hold_data_out(&mut self, session: SessionId, holds: bool) {
        *self.sessions.get_mut(session.0).unwrap() = holds;
        for key in keys(&self.tasks, |task| task.session == session) {
            self.answer_fetches(TaskRef(key));
        }
    }

    fn answer_fetches(&mut self, task: TaskRef) {
        let Some(entry) = self.tasks.get_mut(task.0) else { return };
        let holds = self.sessions.get(entry.session.0) == Some(&true);
        while !holds && let Some((offset, len)) = entry.fetches.pop_front() {
            let from = usize::try_from(offset).unwrap();
            let bytes = &entry.out[from..from + usize::try_from(len).unwrap()];
            // Two parts, as from a transport where a PDU ends in between.
            let mut data = DataList::new();
            bytes.chunks(bytes.len().div_ceil(2)).for_each(|part| data.push(Bytes::copied_from(part)));
            self.events.push_back(Event::DataOut { task, offset, data });
        }
    }

    /// Returns the handle of a task that has not ended.
    pub(crate) fn task_of(&self, ticket: Ticket) -> Option<TaskRef> {
        keys(&self.tasks, |task| task.ticket == ticket).pop().map(TaskRef)
    }

    /// Returns the offset and the length of each fetch of a task that is not answered.
    pub(crate) fn open_fetches(&mut self, ticket: Ticket) -> Option<&mut VecDeque<(u32, u32)>> {
        self.task_of(ticket).and_then(|task| Some(&mut self.tasks.get_mut(task.0)?.fetches))
    }

    const fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    fn end_task(&mut self, task: TaskRef, end: impl FnOnce(&mut Task) -> TaskEnd) {
        match self.tasks.remove(task.0) {
            Some(mut task) => self.task_ends.push((task.ticket, end(&mut task))),
            None => self.ignored += 1,
        }
    }
}

fn keys<T>(arena: &Arena<T>, chosen: impl Fn(&T) -> bool) -> Vec<Key> {
    arena.iter().filter(|(_, value)| chosen(value)).map(|(key, _)| key).collect()
}

impl TargetTransport for InProcessTransport {
    fn fetch(&mut self, task: TaskRef, offset: u32, len: u32) {
        let Some(entry) = self.tasks.get_mut(task.0) else { return self.ignored += 1 };
        let end = u64::from(offset) + u64::from(len);
        assert!(len > 0 && (entry.unsolicited as u64 + 1..=entry.out_len as u64).contains(&end));
        entry.fetches.push_back((offset, len));
        self.answer_fetches(task);
    }

    fn data_in(&mut self, task: TaskRef, offset: u32, data: DataList) {
        let Some(entry) = self.tasks.get_mut(task.0) else { return self.ignored += 1 };
        assert_eq!(usize::try_from(offset), Ok(entry.data.len()), "Data-In without gaps");
        data.parts().iter().for_each(|part| entry.data.extend_from_slice(part));
        assert!(entry.data.len() <= entry.room, "Data-In within the buffer");
    }

    fn fence_response(&mut self, _: TaskRef) {
        self.fenced += 1;
    }

    fn finish(&mut self, task: TaskRef, outcome: Finish<'_>) {
        assert!(outcome.sense.len() <= SENSE_MAX);
        assert_eq!(outcome.is_unit_attention, matches!(outcome.sense, [0x70, _, 6, ..] | [0x72, 6, ..]));
        self.end_task(task, |task| {
            let expected = task.room.max(task.out_len);
            TaskEnd::Response(Response {
                status: outcome.status,
                sense: outcome.sense.to_vec(),
                data: std::mem::take(&mut task.data),
                residual: i64::try_from(outcome.transferable).unwrap() - i64::try_from(expected).unwrap(),
            })
        });
    }

    fn abort(&mut self, task: TaskRef) {
        self.end_task(task, |_| TaskEnd::Aborted);
    }

    fn finish_tmf(&mut self, tmf: TmfRef, result: TmfResult) {
        match self.tmfs.remove(tmf.0) {
            Some((ticket, _)) => assert_eq!(self.tmf_results.insert(ticket, result), None),
            None => self.ignored += 1,
        }
    }

    fn close_session(&mut self, _now: Instant, session: SessionId) {
        self.end_session(session, SessionEnd::Closed);
    }
}
