//! SCSI commands: from the PDU to the layer above, and the end of a task (RFC 7143 §4.2.2.1, §11.3).

use alloc::collections::VecDeque;

use base::int_cast::to_usize;
use base::state_machine::ConnId;
use security::Level;
use transport::quota::DataInReservation;
use transport::target::{Command, SessionId, TaskRef};

use super::allegiance::Allegiance;
use super::arena::Key;
use super::connection::index;
use super::contract::Event;
use super::data_in::DataIn;
use super::data_out_sequence::Sequence;
use super::data_out_transfer::DataOutTransfer;
use super::dispatch::PduContext;
use super::engine::Engine;
use super::incoming::{Incoming, IncomingCommand};
use super::output::Output;
use super::protocol_error::ProtocolError;
use super::sequence_progress::SequenceProgress;
use super::session::{PendingCommand, Ready, Request, Session};
use super::task::{Holder, Task, TaskResult};
use super::window::CmdSnOrder;
use crate::fault_injection::{self, Bug};
use crate::framing::{DataSink, ReceivedPdu};
use crate::pdu::ahs::Ahs;
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::{Bhs, Itt, Malformed, PduHeader};
use crate::recovery::{TargetAction, TransportSense};
use crate::serial::DataSn;

impl Engine {
    /// Decodes the header of a command, checks its unsolicited data, and returns the sink for its immediate
    /// data: a buffer large enough for the unsolicited data that follows it too.
    pub(super) fn command_header(
        &mut self,
        conn: ConnId,
        session: Key,
        bhs: &Bhs,
    ) -> Result<DataSink, ProtocolError> {
        let Some(state) = self.sessions.get(session) else { return Err(ProtocolError::impossible()) };
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else {
            return Err(ProtocolError::impossible());
        };
        let immediate_len = bhs.data_len();
        let incoming = ScsiCommand::decode(bhs).map(|command| IncomingCommand {
            immediate_len,
            unsolicited_len: unsolicited_len(state, &command, immediate_len),
            broken: check_unsolicited(state, &command, immediate_len).err(),
            command,
        });
        let takes_data = immediate_len > 0 && !state.is_discovery();
        let wanted = incoming.as_ref().ok().filter(|incoming| takes_data && incoming.broken.is_none());
        let len = wanted.map(|incoming| to_usize(incoming.unsolicited_len));
        connection.incoming = Some(Incoming::Command(incoming));
        Ok(len.map_or(DataSink::Discard, |len| self.reserve_unsolicited(conn, len)))
    }

    /// Handles a completely received command.
    pub(super) fn handle_command(
        &mut self,
        context: PduContext<'_>,
        session: Key,
        incoming: &Result<IncomingCommand, Malformed>,
        segment: ReceivedPdu,
        ahs: &[u8],
        reserved: usize,
    ) -> Result<(), ProtocolError> {
        let bhs = segment.bhs;
        let (immediate_data, intact) = (segment.sink, segment.digest_ok);
        let taken = if intact {
            self.check_command((context.conn, session), incoming, ahs)
        } else {
            Err(ProtocolError::DataDigestMismatch)
        };
        match taken {
            Ok((incoming, ahs)) => {
                self.create_task(context, session, (&bhs, incoming, &ahs), immediate_data, reserved)
            }
            Err(why) => {
                //= rfc7143#section-7.3
                //# The CmdSN of the rejected command PDU (if it is a non-immediate command) MUST NOT be
                //# considered received by the target (i.e., a command sequence gap must be assumed for the
                //# CmdSN), even though the CmdSN of the rejected command PDU may be reliably ascertained.
                self.discard(session, immediate_data, reserved);
                self.handle_violation(context.conn, &bhs, why)
            }
        }
    }

    fn discard(&mut self, session: Key, landing: DataSink, reserved: usize) {
        self.release_unsolicited(Some(session), reserved);
        if let DataSink::Append(buf) | DataSink::Overwrite { buf, .. } = landing {
            self.pool.recycle_buf(buf);
        }
    }

    /// Checks everything of a command but its unsolicited data.
    fn check_command<'a>(
        &self,
        (conn, session): (ConnId, Key),
        incoming: &'a Result<IncomingCommand, Malformed>,
        ahs: &'a [u8],
    ) -> Result<(&'a IncomingCommand, Ahs<'a>), ProtocolError> {
        let state = self.sessions.get(session).ok_or_else(ProtocolError::impossible)?;
        if state.is_discovery() {
            return Err(ProtocolError::NotInDiscovery);
        }
        let incoming = incoming.as_ref().map_err(|malformed| ProtocolError::from(*malformed))?;
        let command = &incoming.command;
        if !command.immediate {
            state.window.check(command.cmd_sn)?;
        }
        if command.itt == Itt::NONE {
            return Err(ProtocolError::ReservedTaskTag);
        }
        //= rfc7143#section-4.2.2.1
        //# Testing for the execution state (represented by identifying the Initiator Task Tag)
        //# MUST precede any other action at the target.
        if state.find_open(&self.tasks, command.itt).is_some() {
            return Err(ProtocolError::TaskTagInUse);
        }
        if command.immediate && !state.may_open_immediate(&self.tasks, conn, self.limits.immediate_max) {
            return Err(ProtocolError::TooManyImmediate);
        }
        let ahs = Ahs::parse(ahs)?;
        //= rfc7143#section-11.3.4
        //# For bidirectional operations, an additional header segment MUST be present in the header sequence
        //# that indicates the Bidirectional Read Expected Data Transfer Length.
        if command.read && command.write && ahs.bidirectional_read_length.is_none() {
            return Err(ProtocolError::BidirectionalWithoutLength);
        }
        Ok((incoming, ahs))
    }

    /// Creates the task of a command and puts it in the order of the CmdSNs.
    fn create_task(
        &mut self,
        context: PduContext<'_>,
        session: Key,
        (bhs, incoming, ahs): (&Bhs, &IncomingCommand, &Ahs<'_>),
        immediate_data: DataSink,
        reserved: usize,
    ) -> Result<(), ProtocolError> {
        let (command, immediate_len) = (&incoming.command, incoming.immediate_len);
        let immediate_data = match immediate_data {
            // Otherwise bytes would be delivered that were never received.
            DataSink::Append(buf) if buf.len() != to_usize(immediate_len) => {
                self.discard(session, DataSink::Append(buf), reserved);
                return Err(ProtocolError::impossible());
            }
            DataSink::Append(buf) => Some(buf),
            _ => None,
        };
        let starved = incoming.broken.is_none() && immediate_len > 0 && immediate_data.is_none();
        // An initiator uses a tag again only after it has received the response to the old task.
        if let Some(old) = self.sessions.get(session).and_then(|state| state.find(&self.tasks, command.itt)) {
            self.remove_task(old);
        }
        let brought = self.data_out_received(context.conn);
        let Some(state) = self.sessions.get_mut(session) else { return Err(ProtocolError::impossible()) };
        let keeps = state.parameters.error_recovery_level.retains_data();
        let (data_in_len, data_out_len) = lengths(command, ahs);
        let key = self.tasks.insert_with(|_| Task {
            session,
            allegiance: Allegiance::to(context.conn),
            itt: command.itt,
            lun: command.lun,
            immediate: command.immediate,
            in_window: false,
            holder: Holder::Session,
            data_in_len,
            data_out_len,
            data_out: DataOutTransfer::default(),
            data_in: DataIn::default(),
            result: None,
            ending: false,
            needs_fence: false,
            retains_sent: keeps,
            sent_status: None,
            snack_tag: 0,
            resend_runs: smallvec::SmallVec::new(),
            in_send_queue: false,
            next: None,
        });
        if command.write
            && let Some(task) = self.tasks.get_mut(key)
        {
            if !command.is_final {
                let progress = SequenceProgress::new(context.now, brought);
                let in_order = state.parameters.data_pdu_in_order;
                let received = (immediate_len, immediate_data);
                let sequence = Sequence::unsolicited(incoming.unsolicited_len, received, in_order, progress);
                task.data_out.expect_unsolicited(sequence, reserved);
            } else if let Some(buf) = immediate_data {
                task.data_out.store_immediate_data(buf.freeze(), reserved);
            }
        }
        if !keeps
            && let Some(connection) = self.conns.get_mut(index(context.conn)).and_then(Option::as_deref_mut)
        {
            // A command shows as well as Data-Out does that the connection gets data through.
            connection.data_out_bytes += u64::from(immediate_len);
            connection.command_since_timeout = true;
        }
        state.link_task(&mut self.tasks, key);
        state.immediate += u32::from(command.immediate);
        state.traffic.commands += 1;
        state.traffic.data_out_bytes += u64::from(immediate_len);
        self.stats.commands += 1;
        self.stats.data_out_bytes += u64::from(immediate_len);
        if let Some(why) = incoming.broken {
            self.handle_task_violation(context.conn, bhs, key, why)?;
        } else if starved {
            self.stats.busy += 1;
            self.terminate_task(key, TaskResult::busy());
        }
        if !command.is_final {
            self.watch_data(context.now, context.conn);
        }
        let (attribute, priority, cdb) = (command.attribute, command.priority, ahs.join_cdb(command.cdb));
        let up = PendingCommand { task: key, attribute, priority, cdb };
        self.sequence_command(context, session, command, up)
    }

    /// Puts a new task in the order of the CmdSNs.
    fn sequence_command(
        &mut self,
        context: PduContext<'_>,
        session: Key,
        command: &ScsiCommand,
        up: PendingCommand,
    ) -> Result<(), ProtocolError> {
        if command.immediate {
            self.deliver_in_order(session, up);
            return Ok(());
        }
        let Some(state) = self.sessions.get_mut(session) else { return Err(ProtocolError::impossible()) };
        match state.window.receive(command.cmd_sn, Request::Command(up)) {
            CmdSnOrder::InOrder(Request::Command(up)) => {
                self.deliver_in_order(session, up);
                self.sequence_following(context, session)
            }
            CmdSnOrder::Early => self.sequence_following(context, session),
            // `check_command` checked the number, and nothing was received since.
            CmdSnOrder::InOrder(_) | CmdSnOrder::Duplicate(_) | CmdSnOrder::OutsideWindow(_) => {
                Err(ProtocolError::impossible())
            }
        }
    }

    fn sequence_following(&mut self, context: PduContext<'_>, session: Key) -> Result<(), ProtocolError> {
        if self.sessions.get(session).is_some_and(|state| state.window.has_gap() || !state.tmfs.is_empty()) {
            return self.execute_in_order(context, session);
        }
        Ok(())
    }

    /// Delivers a command to the layer above, or queues it behind a task management request or for memory.
    pub(super) fn deliver_in_order(&mut self, session: Key, command: PendingCommand) {
        // A logout whose turn came together with this command may have ended the session.
        let Some(state) = self.sessions.get_mut(session) else { return };
        let Some(task) = self.tasks.get_mut(command.task) else { return };
        if !task.immediate && !task.in_window {
            task.in_window = true;
            state.window.command_started();
        }
        if task.result.is_some() {
            return;
        }
        let (lun, data_in_len) = (task.lun, task.data_in_len);
        if !state.ready.is_empty() {
            state.ready.push_back(Ready::Command(command));
        } else if state.memory_waiters.is_empty() && self.reserve_data_in(session, data_in_len) {
            self.deliver_command(command);
        } else {
            self.await_memory(session, lun, command);
        }
    }

    /// Passes a command to the layer above, together with the unsolicited data that is received.
    pub(super) fn deliver_command(&mut self, command: PendingCommand) {
        let PendingCommand { task: key, attribute, priority, cdb } = command;
        let Some(task) = self.tasks.get_mut(key).filter(|task| task.result.is_none()) else { return };
        task.holder = Holder::DeviceServer;
        let claim = self.quotas.data_in_claim(task.data_in_len);
        task.data_in.set_reservation(DataInReservation::new(claim, task.data_in_len));
        let session = self.sessions.get(task.session);
        self.events.push_back(Event::Command(Command {
            task: TaskRef(key),
            session: SessionId(task.session),
            lun: task.lun,
            // No connection has a lower level than its session.
            level: session.map_or(Level::None, |session| session.protection.level()),
            attribute,
            priority,
            cdb,
            data_in_len: task.data_in_len,
            data_out_len: task.data_out_len,
            data_out: task.data_out.unsolicited_data(),
        }));
    }

    /// Releases memory for Data-In.
    pub(super) fn release_data_in(&mut self, session: Key, len: usize) {
        self.quotas
            .data_in
            .release(self.sessions.get_mut(session).map(|state| &mut state.shares.data_in), len);
    }

    /// Delivers the waiting requests to the layer above, as far as memory and task management permit.
    pub(super) fn drain_ready(&mut self, session: Key) {
        self.serve_memory_waiters(session);
        loop {
            let Some(state) = self.sessions.get_mut(session) else { return };
            match state.ready.front() {
                None => return,
                Some(Ready::Tmf(tmf)) => {
                    let tmf = *tmf;
                    if self.tmf_must_wait(session, tmf) {
                        return;
                    }
                    self.pop_ready(session);
                    let affected = self.take_affected(session, tmf);
                    self.deliver_tmf(session, tmf);
                    self.end_memory_waiters(affected);
                }
                Some(Ready::Command(_)) => {
                    if let Some(Ready::Command(command)) = self.pop_ready(session) {
                        let live = self.tasks.get(command.task).filter(|task| task.result.is_none());
                        if let Some(lun) = live.map(|task| task.lun) {
                            self.await_memory(session, lun, command);
                        }
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

    /// Fails a task because one of its PDUs broke a rule, and sends a Reject first if the rule requires one.
    pub(super) fn handle_task_violation(
        &mut self,
        conn: ConnId,
        bhs: &Bhs,
        key: Key,
        why: ProtocolError,
    ) -> Result<(), ProtocolError> {
        let answer = self.error_response(conn, why);
        if let Some(reason) = answer.reject {
            self.reject(conn, bhs, reason, DataSn(0))?;
        }
        //= rfc7143#section-7.3
        //# Targets MUST NOT implicitly terminate an active task by sending a Reject PDU for any PDU exchanged
        //# during the life of the task.
        //= rfc7143#section-11.17.1
        //# In all the cases in which a pre-instantiated SCSI task is terminated because of the reject, the
        //# target MUST issue a proper SCSI command response with CHECK CONDITION as described in Section
        //# 11.4.3.
        match answer.action {
            TargetAction::Nothing => {}
            TargetAction::FailTask(condition) => self.fail(key, condition),
            TargetAction::RequestAgain(condition) => self.mark_sequence_broken(key, bhs, condition),
            TargetAction::DropConnection => return Err(why),
            TargetAction::EndSession => self.end_session_of(conn, why),
        }
        Ok(())
    }

    /// Fails a task.
    pub(super) fn fail(&mut self, key: Key, condition: TransportSense) {
        self.terminate_task(key, TaskResult::condition(condition));
    }

    /// Ends a task from the transport's side. The layer above gets [`Event::TaskGone`], and the response is
    /// sent once the initiator has ended its sequences.
    pub(super) fn terminate_task(&mut self, key: Key, ending: TaskResult) {
        let Some(task) = self.tasks.get_mut(key).filter(|task| task.result.is_none()) else { return };
        task.result = Some(ending);
        let session = task.session;
        match core::mem::replace(&mut task.holder, Holder::Nobody) {
            Holder::DeviceServer => self.events.push_back(Event::TaskGone { task: TaskRef(key) }),
            Holder::Session => {
                if let Some(state) = self.sessions.get_mut(session) {
                    state.remove_undelivered(task.lun, key);
                }
            }
            Holder::Nobody => {}
        }
        let unsent = if task.is_detached() {
            task.data_in.drop_unacknowledged(&self.pool)
        } else {
            task.data_in.stop(&self.pool)
        };
        self.release_data_in(session, unsent);
        self.stop_data_out(key);
        self.queue_response(key);
    }

    /// Queues the response of a task, once no more data is expected from the initiator for it (§11.4.2: the
    /// target waits for the last sequence to end).
    pub(super) fn queue_response(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        //= rfc7143#section-7.8
        //# If the target chooses to implement this option, it MUST wait to receive all the data (signaled by
        //# a data PDU with the Final bit set for all outstanding R2Ts) before sending the SCSI Response PDU.
        //= rfc7143#section-11.4.2
        //# If a SCSI device error is detected while data from the initiator is still expected (the command
        //# PDU did not contain all the data and the target has not received a data PDU with the Final bit
        //# set), the target MUST wait until it receives a data PDU with the F bit set in the last expected
        //# sequence before sending the Response PDU.
        //= rfc7143#section-11.17.1
        //# the target MUST wait until it receives the last expected Data-Out PDUs with the F bit set to 1
        //# before sending the Response PDU.
        if task.result.is_some()
            && !task.data_out.is_expecting()
            && let Some(conn) = task.enter_send_queue()
            && !self.try_fence_response(key, conn)
        {
            self.queue(conn, Output::Task(key));
        }
    }

    /// Removes a task. Its tag is free again.
    pub(super) fn remove_task(&mut self, key: Key) {
        let Some(session) = self.tasks.get(key).map(|task| task.session) else { return };
        if let Some(state) = self.sessions.get_mut(session) {
            state.unlink_task(&mut self.tasks, key);
        }
        // The task is large, so it is dropped in place.
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(Some(session)) };
        let undelivered = (task.holder == Holder::Session).then_some(task.lun);
        let freed = task.data_out.stop(&self.pool);
        let unsent = task.data_in.stop(&self.pool);
        let (immediate, counted, was_answered) = (task.immediate, task.in_window, task.sent_status.is_some());
        let gives = task.result.is_some() || !fault_injection::is_injected(Bug::KeepMemory);
        self.tasks.discard(key);
        self.mark_logouts_dirty(session);
        if gives {
            if let Some(freed) = freed {
                self.release_data_out(session, freed);
            }
            self.release_data_in(session, unsent);
        }
        if was_answered {
            self.uncount_unacked_task(session);
        }
        if let Some(state) = self.sessions.get_mut(session) {
            if immediate {
                state.immediate = state.immediate.saturating_sub(1);
            }
            if counted {
                state.window.command_ended();
            }
            if let Some(lun) = undelivered {
                state.remove_undelivered(lun, key);
            }
            let (is_ready, may_wait) = (state.has_undelivered(), counted && state.window.looks_closed());
            if may_wait {
                self.mark_dirty(session);
            }
            if is_ready {
                self.drain_ready(session);
            }
        }
    }

    /// Removes an answered task from the count of open commands.
    pub(super) fn leave_window(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        let (immediate, counted) =
            (core::mem::take(&mut task.immediate), core::mem::take(&mut task.in_window));
        let Some(state) = self.sessions.get_mut(task.session) else { return };
        if immediate {
            state.immediate = state.immediate.saturating_sub(1);
        }
        if counted {
            state.window.command_ended();
        }
    }
}

/// Checks the unsolicited data that a command announces or carries (RFC 7143 §4.2.5.2, §13.10, §13.11,
/// §13.14).
fn check_unsolicited(
    state: &Session,
    command: &ScsiCommand,
    immediate_len: u32,
) -> Result<(), ProtocolError> {
    let parameters = &state.parameters;
    let most = parameters.first_burst_length.min(command.expected_data_transfer_length);
    if immediate_len > 0 && !command.write {
        Err(ProtocolError::ImmediateDataWithoutWrite)
    } else if immediate_len > 0 && !parameters.immediate_data {
        Err(ProtocolError::ImmediateDataNotNegotiated)
    } else if !command.is_final && parameters.initial_r2t {
        //= rfc7143#section-4.2.5.2
        //# All subsequent data MUST be solicited.
        Err(ProtocolError::UnsolicitedNotNegotiated)
    } else if immediate_len > most {
        Err(ProtocolError::UnsolicitedBeyondLimit)
    } else {
        Ok(())
    }
}

/// Returns the maximum length of a command's unsolicited data.
fn unsolicited_len(state: &Session, command: &ScsiCommand, immediate_len: u32) -> u32 {
    if command.is_final {
        return immediate_len;
    }
    state.parameters.first_burst_length.min(command.expected_data_transfer_length).max(immediate_len)
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
