//! SCSI commands: from the PDU to the layer above, and the end of a task (RFC 7143 §4.2.2.1, §11.3).

use alloc::collections::VecDeque;

use base::machine::{Action, ConnId};
use base::planted::{self, Bug};
use base::time::Instant;

use super::arena::Key;
use super::connection::{Output, index};
use super::contract::{Command, Down, Event, Finish, MAX_SENSE, SessionId, TaskRef};
use super::data_in::DataIn;
use super::dispatch::Cx;
use super::engine::Engine;
use super::run::Run;
use super::session::{Ready, Request, Session};
use super::stall::Pace;
use super::states::{ConnectionEvent, SessionEvent};
use super::task::{DataOut, Ending, Holder, Task};
use super::why::Why;
use super::window::Turn;
use crate::negotiate::full_feature::TargetText;
use crate::pdu::ahs::{Ahs, Cdb};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::{Bhs, Itt, Message, Ttt};
use crate::receive::{Landing, Segment};
use crate::recovery::{Condition, Then};
use crate::serial::DataSn;

impl Engine {
    /// Says where immediate data belongs: into a buffer with room for the unsolicited data that follows it.
    pub(super) fn begin_command(&mut self, conn: ConnId, session: Key, bhs: &Bhs) -> Landing {
        let Some(state) = self.sessions.get(session) else { return Landing::Discard };
        let Ok(command) = ScsiCommand::decode(bhs) else { return Landing::Discard };
        if state.is_discovery() || check_unsolicited(state, &command, bhs.data_len()).is_err() {
            return Landing::Discard;
        }
        let len = unsolicited_len(state, &command, bhs.data_len());
        self.room_for(conn, usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// Acts on a command that came whole.
    pub(super) fn end_command(
        &mut self,
        cx: Cx<'_>,
        session: Key,
        segment: Segment,
        ahs: &[u8],
        reserved: usize,
    ) -> Result<(), Why> {
        let bhs = segment.bhs;
        let (immediate_data, intact) = (segment.landing, segment.intact);
        let taken = if intact { self.admit(session, &bhs, ahs) } else { Err(Why::DataDigestMismatch) };
        match taken {
            Ok((command, ahs)) => self.open(cx, session, (&bhs, &command, &ahs), immediate_data, reserved),
            Err(why) => {
                self.discard(session, immediate_data, reserved);
                self.refuse(cx.conn, &bhs, why)
            }
        }
    }

    fn discard(&mut self, session: Key, landing: Landing, reserved: usize) {
        self.give_unasked(Some(session), reserved);
        if let Landing::Append(buf) | Landing::Place { buf, .. } = landing {
            self.pool.recycle_buf(buf);
        }
    }

    /// Judges a command by everything but its unsolicited data.
    fn admit<'a>(&self, session: Key, bhs: &Bhs, ahs: &'a [u8]) -> Result<(ScsiCommand, Ahs<'a>), Why> {
        let state = self.sessions.get(session).ok_or(Why::Bug)?;
        if state.is_discovery() {
            return Err(Why::NotInDiscovery);
        }
        let command = ScsiCommand::decode(bhs)?;
        if !command.immediate {
            state.window.check(command.cmd_sn)?;
        }
        if command.itt == Itt::NONE {
            return Err(Why::ReservedTaskTag);
        }
        if state.find_open(&self.tasks, command.itt).is_some() {
            return Err(Why::TaskTagInUse);
        }
        if command.immediate && state.immediate >= self.limits.immediate_max {
            return Err(Why::TooManyImmediate);
        }
        let ahs = Ahs::parse(ahs)?;
        if command.read && command.write && ahs.bidirectional_read_length.is_none() {
            return Err(Why::BidirectionalWithoutLength);
        }
        Ok((command, ahs))
    }

    /// Makes a task of a command and gives it its turn.
    fn open(
        &mut self,
        cx: Cx<'_>,
        session: Key,
        (bhs, command, ahs): (&Bhs, &ScsiCommand, &Ahs<'_>),
        immediate_data: Landing,
        reserved: usize,
    ) -> Result<(), Why> {
        // A tag is used again only by who has the answer.
        if let Some(old) = self.sessions.get(session).and_then(|state| state.find(&self.tasks, command.itt)) {
            self.retire(old);
        }
        let brought = self.brought(cx.conn);
        let Some(state) = self.sessions.get_mut(session) else { return Err(Why::Bug) };
        let keeps = state.parameters.error_recovery_level > 0;
        let broken = check_unsolicited(state, command, bhs.data_len()).err();
        let starved = broken.is_none() && bhs.data_len() > 0 && matches!(immediate_data, Landing::Discard);
        let (data_in_len, data_out_len) = lengths(command, ahs);
        let mut out = DataOut { reserved, ..DataOut::default() };
        if command.write && (bhs.data_len() > 0 || !command.is_final) {
            let mut run = Run::new(Ttt::NONE, 0, unsolicited_len(state, command, bhs.data_len()));
            run.sent = true;
            run.pace = Some(Pace::new(cx.now, brought));
            run.took(DataSn(0), 0, bhs.data_len(), state.parameters.data_pdu_in_order);
            run.data_sn = DataSn(0);
            if let Landing::Append(buf) = immediate_data {
                run.buf = Some(buf);
            }
            out.unsolicited = Some(run);
        }
        let key = self.tasks.insert_with(|_| Task {
            session,
            conn: cx.conn,
            itt: command.itt,
            lun: command.lun,
            immediate: command.immediate,
            counted: false,
            holder: Holder::Session,
            data_in_len,
            data_out_len,
            out,
            inn: DataIn::default(),
            ending: None,
            fenced: is_preempt_and_abort(&command.cdb),
            keeps,
            answer: None,
            snack_tag: 0,
            wanted: smallvec::SmallVec::new(),
            listed: false,
            next: None,
        });
        if !keeps && let Some(connection) = self.conns.get_mut(index(cx.conn)).and_then(Option::as_deref_mut)
        {
            // It is as good a sign that data gets through as Data-Out is.
            connection.data_out_bytes += u64::from(bhs.data_len());
            connection.commanded = true;
        }
        state.enter(&mut self.tasks, key);
        state.immediate += u32::from(command.immediate);
        state.traffic.commands += 1;
        state.traffic.data_out_bytes += u64::from(bhs.data_len());
        self.stats.commands += 1;
        self.stats.data_out_bytes += u64::from(bhs.data_len());
        if let Some(why) = broken {
            self.fail_by_verdict(cx.conn, bhs, key, why)?;
        } else if starved {
            self.stats.busy += 1;
            self.end_early(key, Ending::busy());
        }
        if command.is_final {
            self.close_unsolicited(key);
        } else {
            self.watch_data(cx.now, cx.conn);
        }
        let up = Command {
            task: TaskRef(key),
            session: SessionId(session),
            lun: command.lun,
            attribute: command.attribute,
            priority: command.priority,
            cdb: Cdb::new(command.cdb, ahs.extended_cdb),
            data_in_len,
            data_out_len,
        };
        self.turn(cx, session, command, up)
    }

    /// Gives a new task its turn.
    fn turn(&mut self, cx: Cx<'_>, session: Key, command: &ScsiCommand, up: Command) -> Result<(), Why> {
        if command.immediate {
            self.deliver(session, up);
            return Ok(());
        }
        let Some(state) = self.sessions.get_mut(session) else { return Err(Why::Bug) };
        match state.window.take(command.cmd_sn, Request::Command(up)) {
            Turn::Now(Request::Command(up)) => {
                self.deliver(session, up);
                self.turn_others(cx, session)
            }
            Turn::Later => self.turn_others(cx, session),
            // `admit` judged the number, and nothing came between.
            Turn::Now(_) | Turn::Duplicate(_) | Turn::Outside(_) => Err(Why::Bug),
        }
    }

    fn turn_others(&mut self, cx: Cx<'_>, session: Key) -> Result<(), Why> {
        if self.sessions.get(session).is_some_and(|state| state.window.has_gap() || !state.tmfs.is_empty()) {
            return self.go_on(cx, session);
        }
        Ok(())
    }

    /// Hands a task up, or puts it behind what waits already.
    pub(super) fn deliver(&mut self, session: Key, command: Command) {
        let key = command.task.0;
        let Some(state) = self.sessions.get_mut(session) else { return };
        let Some(task) = self.tasks.get_mut(key) else { return };
        if !task.immediate && !task.counted {
            task.counted = true;
            state.window.opened();
        }
        if task.ending.is_some() {
            return;
        }
        if state.ready.is_empty() && self.may_answer(session, command.data_in_len) {
            self.hand_up_command(command);
        } else if let Some(state) = self.sessions.get_mut(session) {
            state.ready.push_back(Ready::Command(command));
        }
    }

    fn hand_up_command(&mut self, command: Command) {
        if let Some(task) = self.tasks.get_mut(command.task.0).filter(|task| task.ending.is_none()) {
            task.holder = Holder::Above;
            let claim = self.answers.claim(to_usize(command.data_in_len), self.limits.unsent_bytes_max);
            task.inn.open(claim, command.data_in_len);
            self.events.push_back(Event::Command(command));
        }
    }

    /// Takes room for the answer to a command, as much of it as is here at a time, or lines its session up for it. What the
    /// initiator expects at most is only its word, and may be far more than the command brings.
    fn may_answer(&mut self, session: Key, data_in_len: u32) -> bool {
        let Some(state) = self.sessions.get_mut(session) else { return false };
        let held = state.answers.held();
        let len = self.answers.claim(to_usize(data_in_len), self.limits.unsent_bytes_max);
        if held > 0 && held.saturating_add(len) > self.limits.unsent_bytes_max {
            // Its own answers must leave first, and be acknowledged if they are kept until then.
            self.ask_session_for_ack(session);
            return false;
        }
        let fits = self.answers.take(self.now, &mut state.answers, len);
        if !fits {
            self.stats.held_back += 1;
            self.answers.wait(self.now, session, &mut state.answers);
            self.ask_session_for_ack(session);
        }
        fits
    }

    /// Gives back room for answers.
    pub(super) fn give_answers(&mut self, session: Key, len: usize) {
        self.answers.give(self.sessions.get_mut(session).map(|state| &mut state.answers), len);
    }

    /// Hands up what waits, as far as it may go.
    pub(super) fn drain_ready(&mut self, session: Key) {
        loop {
            let Some(state) = self.sessions.get_mut(session) else { return };
            match state.ready.front() {
                None => return,
                Some(Ready::Manage(tmf)) => {
                    let tmf = *tmf;
                    if self.is_fenced(session, tmf) {
                        return;
                    }
                    self.pop_ready(session);
                    self.hand_up_tmf(session, tmf);
                }
                Some(Ready::Command(command)) => {
                    let len = command.data_in_len;
                    let is_live = self.tasks.get(command.task.0).is_some_and(|task| task.ending.is_none());
                    if is_live && !self.may_answer(session, len) {
                        return;
                    }
                    if let Some(Ready::Command(command)) = self.pop_ready(session) {
                        self.hand_up_command(command);
                    }
                }
            }
        }
    }

    fn pop_ready(&mut self, session: Key) -> Option<Ready> {
        let state = self.sessions.get_mut(session)?;
        let ready = state.ready.pop_front();
        if state.ready.is_empty() {
            state.ready = VecDeque::new();
        }
        ready
    }

    /// Takes the end of a task. What is queued for it is sent first; the status goes with the last data if it is
    /// GOOD. A name that means nothing any more is ignored.
    pub fn finish(&mut self, task: TaskRef, finish: Finish<'_>) {
        let key = task.0;
        let Some(state) = self.tasks.get_mut(key).filter(|task| task.holder == Holder::Above) else { return };
        state.holder = Holder::Nobody;
        let sense = finish.sense.get(..MAX_SENSE).unwrap_or(finish.sense);
        state.ending = Some(Ending {
            status: finish.status,
            sense: (!sense.is_empty()).then(|| sense.into()),
            transferable: finish.transferable,
        });
        // What did not come will not.
        let spare = state.inn.close();
        let session = state.session;
        self.give_answers(session, spare);
        self.stop_data_out(key);
        self.conclude(key);
        self.drain_ready(session);
    }

    /// Takes note that the layer above ended a task without a response (task management). Nothing of it that is not
    /// sent yet will be.
    ///
    /// Where the initiator did not ask for that itself and FastAbort is in use, it is told (RFC 7143 §4.2.3.4).
    pub fn abort(&mut self, task: TaskRef) {
        let key = task.0;
        let Some(state) = self.tasks.get_mut(key).filter(|task| task.holder == Holder::Above) else { return };
        state.holder = Holder::Nobody;
        let (session, conn, lun) = (state.session, state.conn, state.lun);
        self.retire(key);
        self.tell_of_abort(session, conn, lun);
    }

    /// Fails a task because of a rule that a PDU of it broke, after a Reject if the rule asks for one.
    pub(super) fn fail_by_verdict(&mut self, conn: ConnId, bhs: &Bhs, key: Key, why: Why) -> Result<(), Why> {
        let answer = self.verdict(conn, why);
        if let Some(reason) = answer.reject {
            self.reject(conn, bhs, reason, DataSn(0))?;
        }
        match answer.then {
            Then::Nothing => Ok(()),
            Then::FailTask(condition) | Then::Recover(condition) => {
                self.fail(key, condition);
                Ok(())
            }
            Then::Drop => Err(why),
        }
    }

    /// Fails a task.
    pub(super) fn fail(&mut self, key: Key, condition: Condition) {
        self.end_early(key, Ending::condition(condition));
    }

    /// Ends a task from our side: the layer above is told, and the response goes out once the initiator has ended
    /// its sequences.
    pub(super) fn end_early(&mut self, key: Key, ending: Ending) {
        let Some(task) = self.tasks.get_mut(key).filter(|task| task.ending.is_none()) else { return };
        task.ending = Some(ending);
        if task.holder == Holder::Above {
            self.events.push_back(Event::TaskGone { task: TaskRef(key) });
        }
        task.holder = Holder::Nobody;
        let session = task.session;
        let unsent = if task.is_adrift() {
            task.inn.drop_unacknowledged(&self.pool)
        } else {
            task.inn.stop(&self.pool)
        };
        self.give_answers(session, unsent);
        self.stop_data_out(key);
        self.conclude(key);
    }

    /// Queues the end of a task, once nothing more is expected from the initiator for it (§11.4.2: the target waits
    /// for the last sequence to end).
    pub(super) fn conclude(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if task.ending.is_some() && !task.out.is_expecting() && !task.listed {
            task.listed = true;
            let conn = task.conn;
            if !self.fence_answer(key) {
                self.queue(conn, Output::Task(key));
            }
        }
    }

    /// Forgets a task: its tag is free again.
    pub(super) fn retire(&mut self, key: Key) {
        let Some(session) = self.tasks.get(key).map(|task| task.session) else { return };
        if let Some(state) = self.sessions.get_mut(session) {
            state.leave(&mut self.tasks, key);
        }
        // The task is large: it is dropped where it lies.
        let Some(task) = self.tasks.get_mut(key) else { return };
        let freed = task.out.stop(&self.pool);
        let unsent = task.inn.stop(&self.pool);
        let (immediate, counted, was_answered) = (task.immediate, task.counted, task.answer.is_some());
        let gives = task.ending.is_some() || !planted::is(Bug::KeepMemory);
        self.tasks.discard(key);
        self.stir_logouts(session);
        if gives {
            self.give_data_out(session, freed);
            self.give_answers(session, unsent);
        }
        if was_answered {
            self.forget_answer(session);
        }
        if let Some(state) = self.sessions.get_mut(session) {
            if immediate {
                state.immediate = state.immediate.saturating_sub(1);
            }
            if counted {
                state.window.closed();
            }
            if !state.ready.is_empty() {
                self.drain_ready(session);
            }
        }
    }

    /// Takes a task that is answered out of the count of those that are open.
    pub(super) fn leave_window(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let (immediate, counted) = (core::mem::take(&mut task.immediate), core::mem::take(&mut task.counted));
        let Some(state) = self.sessions.get_mut(task.session) else { return };
        if immediate {
            state.immediate = state.immediate.saturating_sub(1);
        }
        if counted {
            state.window.closed();
        }
    }

    /// Ends the tasks of a session, or those of one of its connections, and tells the layer above.
    pub(super) fn end_tasks(&mut self, session: Key, of: Option<ConnId>) {
        if let Some(conn) = of {
            self.discard_early(session, conn);
        }
        let Some(state) = self.sessions.get(session) else { return };
        let keys: alloc::vec::Vec<Key> = state
            .tasks(&self.tasks)
            .filter(|(_, task)| of.is_none_or(|conn| task.conn == conn))
            .map(|(key, _)| key)
            .collect();
        for key in keys {
            self.end_task(key);
        }
        self.end_requests(session, of);
    }

    /// Ends a task that nobody waits for any more.
    pub(super) fn end_task(&mut self, key: Key) {
        let held = self.tasks.get(key).is_some_and(|task| task.holder == Holder::Above);
        self.retire(key);
        if held {
            self.events.push_back(Event::TaskGone { task: TaskRef(key) });
        }
    }

    /// Ends a session with everything in it.
    pub(super) fn end_session(&mut self, session: Key, down: Down) {
        let Some(state) = self.sessions.get_mut(session) else { return };
        // What waits must not be handed up while the tasks are ended one by one.
        state.ready.clear();
        // Below level 2 nothing is kept for a session that lost its connections, so nobody can continue it.
        state.state = match down {
            Down::ConnectionLost | Down::HalfClosed => {
                let lost = state.state.on(SessionEvent::ConnectionsLost).unwrap_or(state.state);
                lost.on(SessionEvent::TimedOut)
            }
            _ => state.state.on(SessionEvent::Closed),
        }
        .unwrap_or(state.state);
        let next = state.window.exp_cmd_sn();
        let conns = core::mem::take(&mut state.conns);
        self.end_tasks(session, None);
        for conn in conns {
            let Some(connection) = self.conn_mut(conn) else { continue };
            connection.session = None;
            connection.login_cmd_sn = next;
            connection.text = TargetText::new();
            let event =
                if down == Down::LoggedOut { ConnectionEvent::LoggedOut } else { ConnectionEvent::Lost };
            connection.state = connection.state.on(event).unwrap_or(connection.state);
            if !connection.closing {
                connection.closing = true;
                self.actions.push_back(
                    if matches!(down, Down::LoggedOut | Down::Closed | Down::HalfClosed) {
                        Action::Close(conn)
                    } else {
                        Action::Abort(conn)
                    },
                );
            }
        }
        if let Some(state) = self.sessions.remove(session)
            && state.up
        {
            self.events.push_back(Event::SessionDown { session: SessionId(session), why: down });
        }
    }

    /// Ends a session because the layer above wants it: the initiator is told with an asynchronous message, what is
    /// queued is sent, and the connections are closed.
    pub fn close_session(&mut self, _now: Instant, session: SessionId) {
        self.announce_drop(session.0);
        self.end_session(session.0, Down::Closed);
    }
}

/// Judges the unsolicited data that a command announces or brings (RFC 7143 §4.2.5.2, §13.10, §13.11, §13.14).
fn check_unsolicited(state: &Session, command: &ScsiCommand, immediate_len: u32) -> Result<(), Why> {
    let parameters = &state.parameters;
    let most = parameters.first_burst_length.min(command.expected_data_transfer_length);
    if immediate_len > 0 && !command.write {
        Err(Why::ImmediateDataWithoutWrite)
    } else if immediate_len > 0 && !parameters.immediate_data {
        Err(Why::ImmediateDataNotNegotiated)
    } else if !command.is_final && parameters.initial_r2t {
        Err(Why::UnsolicitedNotNegotiated)
    } else if immediate_len > most {
        Err(Why::UnsolicitedBeyondLimit)
    } else {
        Ok(())
    }
}

/// Returns how much data of a command comes unsolicited, at most.
fn unsolicited_len(state: &Session, command: &ScsiCommand, immediate_len: u32) -> u32 {
    if command.is_final {
        return immediate_len;
    }
    state.parameters.first_burst_length.min(command.expected_data_transfer_length).max(immediate_len)
}

/// Returns whether a command is PERSISTENT RESERVE OUT with PREEMPT AND ABORT (SPC-5 §6.14), which ends tasks of others.
const fn is_preempt_and_abort(cdb: &[u8; 16]) -> bool {
    cdb[0] == 0x5f && cdb[1] & 0x1f == 0x05
}

/// Returns how many bytes a command reads and writes.
fn lengths(command: &ScsiCommand, ahs: &Ahs<'_>) -> (u32, u32) {
    let expected = command.expected_data_transfer_length;
    match (command.read, command.write) {
        (true, true) => (ahs.bidirectional_read_length.unwrap_or(0), expected),
        (true, false) => (expected, 0),
        (false, true) => (0, expected),
        (false, false) => (0, 0),
    }
}

fn to_usize(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
