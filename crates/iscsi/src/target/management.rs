//! Task management functions (RFC 7143 §4.2.3, §11.5, RFC 7144): which of them the transport carries out
//! itself, and when the others are passed to the layer above.
//!
//! A function that ends many tasks must first know all of them, so it waits for the commands numbered before
//! it. A function that concerns the whole target waits for none, but considers them received (§4.2.3.3 b).
//! Then, unless FastAbort was negotiated, it waits for the answers to the R2Ts that are open for the tasks it
//! will end (§4.2.3.3 a). Meanwhile no further R2T is sent and no later command is executed. On one
//! connection, the order of the send queue is the response fence.
//!
//! No function waits for memory. A command that waits for memory for its Data-In is unknown to the layer
//! above, so the transport ends it: ABORT TASK removes it, and a function that ends many tasks ends it with
//! BUSY before that function is passed on.

use alloc::vec::Vec;

use base::state_machine::ConnId;
use base::time::Instant;
use transport::target::{SessionId, TargetTransport, TaskRef, TmfIndication, TmfRef};
use transport::task_management::{TmfFunction, TmfResult};

use super::arena::Key;
use super::contract::Event;
use super::dispatch::PduContext;
use super::engine::Engine;
use super::output::{Body, Control, Output};
use super::protocol_error::ProtocolError;
use super::session::{Ready, Request, Tmf};
use super::task::{Holder, Task, TaskResult};
use super::timer::{Owner, Timer};
use crate::negotiate::TaskReporting;
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::{Itt, TargetSn};

impl Engine {
    /// Handles a task management request.
    pub(super) fn tmf_request(
        &mut self,
        context: PduContext<'_>,
        session: Key,
        request: &TmfRequest,
    ) -> Result<(), ProtocolError> {
        let Some(state) = self.sessions.get_mut(session) else { return Err(ProtocolError::impossible()) };
        if state.is_discovery() {
            return Err(ProtocolError::NotInDiscovery);
        }
        if !request.immediate {
            state.window.check(request.cmd_sn)?;
        }
        if request.itt == Itt::NONE {
            return Err(ProtocolError::ReservedTaskTag);
        }
        if state.find_open(&self.tasks, request.itt).is_some() {
            return Err(ProtocolError::TaskTagInUse);
        }
        // TASK REASSIGN is answered at once, so the limit does not apply to it. If it were refused, it could
        // wait for ever for immediate tasks that are to be reassigned themselves.
        let is_reassign = request.function == TmfFunction::TASK_REASSIGN;
        let may_open = state.may_open_tmf(&self.tmfs, context.conn, self.limits.immediate_max);
        let is_too_many = !may_open && !is_reassign;
        if is_too_many && request.immediate {
            return Err(ProtocolError::TooManyImmediate);
        }
        state.immediate += 1;
        self.stats.management += 1;
        let tmf = self.tmfs.insert_with(|_| Tmf {
            session,
            conn: context.conn,
            itt: request.itt,
            function: request.function,
            lun: request.lun,
            referenced: (request.referenced_task_tag, request.ref_cmd_sn),
            task: None,
            exp_data_sn: request.exp_data_sn,
            immediate: request.immediate,
            cmd_sn: request.cmd_sn,
            waits_for_commands: false,
            data_wait_expired: false,
            is_too_many,
        });
        state.tmfs.push(tmf);
        self.sequence_request(context, session, (request.immediate, request.cmd_sn), Request::Tmf(tmf))
    }

    /// Starts a task management request whose turn has come, and determines what it still has to wait for.
    pub(super) fn start_tmf(&mut self, context: PduContext<'_>, key: Key) -> Result<(), ProtocolError> {
        let Some(tmf) = self.tmfs.get(key).copied() else { return Ok(()) };
        let Some(state) = self.sessions.get_mut(tmf.session) else { return Err(ProtocolError::impossible()) };
        let level = state.parameters.protocol_level;
        if tmf.is_too_many {
            return self.answer_tmf(key, TmfResult::REJECTED);
        }
        match tmf.function {
            TmfFunction::TASK_REASSIGN => return self.handle_task_reassign(context.now, key, &tmf),
            TmfFunction::ABORT_TASK => return self.abort_task(context, key, &tmf),
            TmfFunction::QUERY_TASK if level >= 2 => return self.query_task(key, &tmf),
            TmfFunction::QUERY_TASK_SET
            | TmfFunction::I_T_NEXUS_RESET
            | TmfFunction::QUERY_ASYNCHRONOUS_EVENT
                if level >= 2 => {}
            TmfFunction::ABORT_TASK_SET
            | TmfFunction::CLEAR_ACA
            | TmfFunction::CLEAR_TASK_SET
            | TmfFunction::LOGICAL_UNIT_RESET
            | TmfFunction::TARGET_WARM_RESET
            | TmfFunction::TARGET_COLD_RESET => {}
            _ => return self.answer_tmf(key, TmfResult::NOT_SUPPORTED),
        }
        let is_early = tmf.immediate && state.window.exp_cmd_sn().before(tmf.cmd_sn);
        //= rfc7143#section-4.2.2.1
        //# The initiator and target MUST ensure that the SCSI task management functions specified
        //# in [SAM2] act in accordance with the [SAM2] specification.
        if is_early && tmf.is_multi_task() {
            if !tmf.is_target_wide() {
                if let Some(tmf) = self.tmfs.get_mut(key) {
                    //= rfc7143#section-4.2.3.3
                    //# b) MUST wait (concurrent with the wait in Step a) for all commands of the
                    //# affected tasks to be received based on the CmdSN ordering.
                    //= rfc7143#section-4.2.3.4
                    //# a) MUST wait for all commands of the affected tasks to be received based on the
                    //# CmdSN ordering on the issuing session.
                    tmf.waits_for_commands = true;
                }
                return Ok(());
            }
            let skipped = state.window.skip_until(tmf.cmd_sn);
            self.execute_skipped(context, tmf.session, skipped)?;
            self.enqueue_tmf(context.now, key, &tmf);
            // The next commands may have come already.
            return self.execute_in_order(context, tmf.session);
        }
        self.enqueue_tmf(context.now, key, &tmf);
        Ok(())
    }

    /// Executes requests that a function takes as received. The error of one does not keep the others, which
    /// came on any connection, from being executed.
    fn execute_skipped(
        &mut self,
        context: PduContext<'_>,
        session: Key,
        skipped: Vec<Request>,
    ) -> Result<(), ProtocolError> {
        let mut first_error = Ok(());
        for request in skipped {
            if self.sessions.get(session).is_some_and(|state| !state.is_logging_out()) {
                first_error = first_error.and(self.execute_early(context, session, request));
            } else {
                self.drop_request(session, request);
            }
        }
        first_error
    }

    /// Queues the task management requests for the layer above whose earlier commands are all received now.
    pub(super) fn release_tmfs(&mut self, now: Instant, session: Key) {
        let Some(state) = self.sessions.get(session) else { return };
        let exp = state.window.exp_cmd_sn();
        let due: smallvec::SmallVec<[Key; 4]> = state
            .tmfs
            .iter()
            .copied()
            .filter(|key| {
                self.tmfs.get(*key).is_some_and(|tmf| tmf.waits_for_commands && !exp.before(tmf.cmd_sn))
            })
            .collect();
        for key in due {
            if let Some(tmf) = self.tmfs.get_mut(key) {
                tmf.waits_for_commands = false;
                let tmf = *tmf;
                self.enqueue_tmf(now, key, &tmf);
            }
        }
    }

    fn enqueue_tmf(&mut self, now: Instant, key: Key, tmf: &Tmf) {
        // A logout that the function takes as received may have ended the session.
        let Some(state) = self.sessions.get_mut(tmf.session) else { return };
        if tmf.is_multi_task() {
            let at = now.after(self.limits.fence_within);
            self.timers.set(Owner::Session(tmf.session), &mut state.deadlines, Timer::TmfData, at);
        }
        state.ready.push_back(Ready::Tmf(key));
        self.drain_ready(tmf.session);
    }

    /// Returns whether a request must wait for data of the tasks that it ends. If so, R2Ts are held back.
    pub(super) fn tmf_must_wait(&mut self, session: Key, key: Key) -> bool {
        let Some(tmf) = self.tmfs.get(key) else { return false };
        let Some(state) = self.sessions.get_mut(session) else {
            self.impossible(Some(session));
            return false;
        };
        let open = state
            .tasks(&self.tasks)
            // A task without a connection receives no data.
            .filter(|(_, task)| task.result.is_none() && !task.is_detached())
            .any(|(_, task)| task.data_out.has_r2ts() && tmf.affects(task.lun));
        let fast = state.parameters.task_reporting == TaskReporting::FastAbort;
        //= rfc7143#section-4.2.3.3
        //# All iSCSI implementations MUST support the protocol behavior defined in this section
        //# as the default behavior.
        state.holds_r2ts = open && !fast && !tmf.data_wait_expired;
        state.holds_r2ts
    }

    /// Passes a request to the layer above, and stops holding R2Ts back.
    pub(super) fn deliver_tmf(&mut self, session: Key, key: Key) {
        if self.queries_waiting_commands(session, key) {
            return self.finish_tmf(TmfRef(key), TmfResult::SUCCEEDED);
        }
        if let Some(tmf) = self.tmfs.get(key) {
            //= rfc7143#section-4.2.3.3
            //# c) MUST propagate the TMF Request to, and receive the response from, the target SCSI
            //# layer.
            //= rfc7143#section-4.2.3.4
            //# b) MUST propagate the TMF Request to, and receive the response from, the target SCSI
            //# layer.
            self.events.push_back(Event::Tmf(TmfIndication {
                tmf: TmfRef(key),
                session: SessionId(session),
                function: tmf.function,
                lun: tmf.lun,
                task: tmf.task.map(TaskRef),
            }));
        }
        let Some(state) = self.sessions.get_mut(session) else { return self.impossible(Some(session)) };
        state.holds_r2ts = false;
        let tmf = self.tmfs.get(key).copied();
        if let Some(tmf) = tmf.filter(Tmf::is_multi_task) {
            let tasks: Vec<Key> = state.tasks(&self.tasks).map(|(key, _)| key).collect();
            for key in tasks {
                if let Some(task) = self.tasks.get_mut(key) {
                    task.ending |= task.holder != Holder::Session && tmf.affects(task.lun);
                }
            }
        }
        self.advance_all_fetches(session, |lun| tmf.is_none_or(|tmf| !tmf.affects(lun)));
    }

    /// Returns whether a request asks for tasks of a logical unit of which commands wait for memory. The
    /// layer above does not know these.
    fn queries_waiting_commands(&self, session: Key, key: Key) -> bool {
        let waiters = self.sessions.get(session).map(|state| &state.memory_waiters);
        self.tmfs.get(key).zip(waiters).is_some_and(|(tmf, waiters)| {
            tmf.function == TmfFunction::QUERY_TASK_SET && waiters.contains(tmf.lun)
        })
    }

    /// Sends the R2Ts that were held back.
    fn advance_all_fetches(&mut self, session: Key, of: impl Fn(u64) -> bool) {
        let Some(state) = self.sessions.get(session) else { return self.impossible(Some(session)) };
        let held: Vec<Key> = state
            .tasks(&self.tasks)
            .filter(|(_, task)| task.data_out.has_fetches() && of(task.lun))
            .map(|(key, _)| key)
            .collect();
        for task in held {
            self.advance_fetches(task);
        }
    }

    /// Records that the requests have waited long enough for data.
    pub(super) fn on_tmf_data_timer(&mut self, session: Key) {
        let Some(state) = self.sessions.get(session) else { return self.impossible(Some(session)) };
        for key in &state.tmfs {
            if let Some(tmf) = self.tmfs.get_mut(*key) {
                tmf.data_wait_expired = true;
            }
        }
        self.drain_ready(session);
    }

    /// Handles ABORT TASK (§11.5.1) for one task of this session, whether it waits, executes or has ended.
    fn abort_task(&mut self, context: PduContext<'_>, key: Key, tmf: &Tmf) -> Result<(), ProtocolError> {
        let (itt, ref_cmd_sn) = tmf.referenced;
        let Some(state) = self.sessions.get(tmf.session) else { return Err(ProtocolError::impossible()) };
        let Some(task) = state.find_open(&self.tasks, itt) else {
            if self.is_control_tag(tmf.session, itt) {
                //= rfc7143#section-11.5.1
                //# At the target, an ABORT TASK function MUST NOT be executed on a task management request;
                //# such a request MUST result in a task management response of "Function rejected".
                return self.answer_tmf(key, TmfResult::REJECTED);
            }
            //= rfc7143#section-7.11
            //# If the abort request is received and the original command is missing, targets MUST consider
            //# the original command with that RefCmdSN as received and issue a task management response with
            //# the response code "Function complete".
            // A task that was never received counts as aborted, and its number as received.
            if state.window.awaits(ref_cmd_sn) && ref_cmd_sn.before(tmf.cmd_sn) {
                self.answer_tmf(key, TmfResult::COMPLETE)?;
                return self.sequence_request(
                    context,
                    tmf.session,
                    (false, ref_cmd_sn),
                    Request::AbortedSlot,
                );
            }
            //= rfc7143#section-7.11
            //# If the abort request is received and the target can determine (based on the Referenced Task
            //# Tag) that the command was received and executed, and also that the response was sent prior to
            //# the abort, then the target MUST respond with the response code "Task Does Not Exist".
            return self.answer_tmf(key, TmfResult::NO_TASK);
        };
        let Some((holder, expecting, lun, reports)) = self.tasks.get(task).map(|task| {
            let reports = task.result.as_ref().is_some_and(TaskResult::reports_once);
            (task.holder, task.data_out.is_expecting(), task.lun, reports && !task.is_detached())
        }) else {
            return Ok(());
        };
        match holder {
            //= rfc7143#section-4.2.5.3
            //# As the Initiator Task Tag is used to identify a task during its execution, the iSCSI
            //# initiator and target MUST verify that all other fields used in task-related PDUs have
            //# values that are consistent with the values used at the task instantiation, based on
            //# the Initiator Task Tag (e.g., the LUN used in an R2T PDU MUST be the same as the one
            //# used in the SCSI Command PDU used to instantiate the task).
            _ if lun != tmf.lun => self.answer_tmf(key, TmfResult::REJECTED),
            Holder::DeviceServer => {
                if let Some(tmf) = self.tmfs.get_mut(key) {
                    tmf.task = Some(task);
                }
                self.enqueue_tmf(context.now, key, tmf);
                Ok(())
            }
            // The task failed, and the initiator need not send the rest of its data (§7.8).
            Holder::Nobody if !expecting => self.answer_tmf(key, TmfResult::NO_TASK),
            // Nothing else would report the condition: it is no longer pending.
            Holder::Nobody if reports => {
                self.stop_expecting(task);
                self.queue_response(task);
                self.answer_tmf(key, TmfResult::NO_TASK)
            }
            Holder::Session | Holder::Nobody => {
                let waiting = self.sessions.get_mut(tmf.session).map(|state| state.window.early_mut());
                for request in waiting.into_iter().flatten() {
                    if matches!(request, Request::Command(command) if command.task == task) {
                        *request = Request::AbortedSlot;
                    }
                }
                self.remove_task(task);
                self.answer_tmf(key, TmfResult::COMPLETE)
            }
        }
    }

    /// Returns whether a tag is that of an open task management request, text negotiation or logout of a
    /// session: not that of a SCSI task.
    pub(super) fn is_control_tag(&self, session: Key, itt: Itt) -> bool {
        let Some(state) = self.sessions.get(session) else { return false };
        let is_tmf = |key: &Key| self.tmfs.get(*key).is_some_and(|tmf| tmf.itt == itt);
        let is_text = |conn: &ConnId| self.conn(*conn).is_some_and(|conn| conn.text.itt() == Some(itt.0));
        state.tmfs.iter().any(is_tmf)
            || state.conns.iter().any(is_text)
            || state.logouts.iter().any(|logout| logout.itt() == Some(itt))
            || state.window.early().any(|request| match request {
                Request::Text(_, text, _) => text.itt == itt,
                Request::Logout(_, logout) => logout.itt == itt,
                Request::Command(_) | Request::Tmf(_) | Request::Ping(..) | Request::AbortedSlot => false,
            })
    }

    /// Handles QUERY TASK (RFC 7144 §6.3).
    fn query_task(&mut self, key: Key, tmf: &Tmf) -> Result<(), ProtocolError> {
        let Some(state) = self.sessions.get_mut(tmf.session) else { return Err(ProtocolError::impossible()) };
        let task = state.find_open(&self.tasks, tmf.referenced.0);
        let named = task.and_then(|task| Some((task, self.tasks.get(task)?)));
        if named.is_some_and(|(_, task)| task.lun != tmf.lun) {
            return self.answer_tmf(key, TmfResult::REJECTED);
        }
        match named.map(|(key, task)| (key, task.holder)) {
            Some((task, Holder::DeviceServer)) => {
                if let Some(tmf) = self.tmfs.get_mut(key) {
                    tmf.task = Some(task);
                }
                state.ready.push_back(Ready::Tmf(key));
                self.drain_ready(tmf.session);
                Ok(())
            }
            Some((_, Holder::Session)) => self.answer_tmf(key, TmfResult::SUCCEEDED),
            Some((_, Holder::Nobody)) | None => self.answer_tmf(key, TmfResult::COMPLETE),
        }
    }

    pub(super) fn answer_tmf(&mut self, key: Key, response: TmfResult) -> Result<(), ProtocolError> {
        let Some(tmf) = self.drop_tmf(key) else { return Err(ProtocolError::impossible()) };
        if tmf.is_multi_task() {
            if response == TmfResult::COMPLETE {
                self.send_held_responses(&tmf);
            }
            // The tasks that the function did not end continue.
            self.advance_all_fetches(tmf.session, |lun| tmf.affects(lun));
        }
        //= rfc7143#section-11.5.1
        //# For all these functions, the Task Management Function Response MUST be returned as detailed in
        //# Section 11.6.
        self.send_tmf(&tmf, response)
    }

    /// Sends the responses that wait for data from the initiator, of the tasks that a function has ended.
    /// They ended before it, so their status stands, and the initiator must have it before the function's
    /// response: afterwards it takes them for aborted and sends no data for them.
    fn send_held_responses(&mut self, tmf: &Tmf) {
        let Some(state) = self.sessions.get(tmf.session) else { return };
        let is_held = |task: &Task| task.ending && task.result.is_some() && task.data_out.is_expecting();
        let held: Vec<Key> = state
            .tasks(&self.tasks)
            .filter(|(_, task)| tmf.affects(task.lun) && !task.is_detached() && is_held(task))
            .map(|(key, _)| key)
            .collect();
        for key in held {
            self.stop_expecting(key);
            self.queue_response(key);
        }
    }

    /// Removes a task management request.
    pub(super) fn drop_tmf(&mut self, key: Key) -> Option<Tmf> {
        let tmf = self.tmfs.remove(key)?;
        self.mark_logouts_dirty(tmf.session);
        if let Some(state) = self.sessions.get_mut(tmf.session) {
            state.tmfs.retain(|other| *other != key);
            state.immediate = state.immediate.saturating_sub(1);
        }
        Some(tmf)
    }

    /// Reports to a session with FastAbort that a task of it was terminated, unless the function that did so
    /// was requested on the connection of the task, or aborted only this task (§4.2.3.4 d). A detached task
    /// is reported on the leading connection.
    pub(super) fn report_abort(&mut self, session: Key, task: Key, conn: Option<ConnId>, lun: u64) {
        let Some(state) = self.sessions.get(session) else { return self.impossible(Some(session)) };
        let Some(conn) = conn.or_else(|| state.conns.first().copied()) else { return };
        let own = state.tmfs.iter().filter_map(|key| self.tmfs.get(*key)).any(|tmf| {
            let is_single = tmf.function == TmfFunction::ABORT_TASK && tmf.task == Some(task);
            is_single || tmf.conn == conn && tmf.affects(lun)
        });
        //= rfc7143#section-4.2.3.5
        //# If the issuing session is a FastAbort session, the iSCSI target implementation is
        //# FastAbort-capable, and the third-party affected session is an RFC 3720 session, the
        //# iSCSI target layer MUST NOT send Asynchronous Message PDUs on the third-party session
        //# to prompt the FastAbort behavior.
        //= rfc7143#section-11.9.1
        //# This value of AsyncEvent, however, MUST NOT be used on an iSCSI session unless the new
        //# TaskReporting text key defined in Section 13.23 was negotiated to FastAbort on the session.
        if own || state.parameters.task_reporting != TaskReporting::FastAbort {
            return;
        }
        let is_queued = self.conn(conn).is_some_and(|connection| {
            connection.send_queue.iter().any(|output| {
                matches!(output, Output::Control(control) if matches!(&control.0, Control::Async(message)
                    if message.event == AsyncEventCode::TASKS_TERMINATED && message.lun == lun))
            })
        });
        if is_queued {
            return;
        }
        //= rfc7143#section-4.2.3.4
        //# d) MUST send an Asynchronous Message PDU with AsyncEvent=5 (Section 11.9) on:
        //= rfc7143#section-4.2.3.4
        //# If there are multiple affected LUs (say, due to a target reset), then one Async Message
        //# PDU MUST be sent for each such LU on each connection that has at least one allegiant
        //# affected task.
        let message = AsyncMessage {
            lun,
            sn: TargetSn::default(),
            //= rfc7143#section-4.2.3.4
            //# The LUN field in the Asynchronous Message PDU MUST be set to match the LUN for each
            //# such LU.
            //= rfc7143#section-4.2.3.5
            //# When sent, the LUN field in the Asynchronous Message PDU MUST be set to match the LUN
            //# for each such LU.
            event: AsyncEventCode::TASKS_TERMINATED,
            vendor_code: 0,
            parameter1: 0,
            parameter2: 0,
            parameter3: 0,
        };
        if let Err(why) = self.queue_control(conn, Control::Async(message), Body::Empty) {
            self.drop_connection(conn, why);
        }
    }
}
