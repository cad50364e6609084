//! Recovers connections, sessions and tasks from errors (RFC 7143 §7): within a connection, by reassigning
//! tasks to another connection, by establishing a session again.
//!
//! [`crate::recovery::initiator_response`] decides what a broken rule costs; this module carries out the loss
//! of a connection, of a session and of tasks.

use alloc::vec::Vec;

use base::state_machine::Action;
use base::time::{Duration, Instant};
use transport::initiator::TaskResult;
use transport::task_management::{TmfFunction, TmfResult};

use super::connection_slot::{Connection, ConnectionState, Incoming, QueuedPdu, RecoveryLogout, Timer};
use super::contract::{ConnectionDown, ConnectionLoss, Event, MAX_CONNECTIONS, SessionEnd, Slot};
use super::login::may_pass;
use super::open_tmf::{Tmf, TmfOrigin};
use super::protocol_error::ProtocolError;
use super::session::{Phase, Session, TAG_TASK, tag};
use super::task::TaskState;
use crate::fault_injection::{self, Bug};
use crate::login::Status;
use crate::login::initiator::InitiatorLoginError;
use crate::pdu::logout_request::LogoutReason;
use crate::recovery::{self, InitiatorAction};
use crate::target::arena::Key;

/// How often a task may be executed again, or its reassignment be retried, before the initiator gives it up.
/// A target under which a task is lost each time gets no more attempts.
const MAX_REPLAYS: u8 = 8;

/// The most tasks that are reassigned at a time: targets bound their immediate requests.
const MAX_MOVING: u32 = 8;

impl Session {
    /// Ends a connection whose target broke a rule, or that is damaged beyond repair.
    pub(super) fn handle_protocol_error(&mut self, now: Instant, slot: Slot, why: ProtocolError) {
        if why == ProtocolError::Bug {
            self.stats.bugs += 1;
        }
        let up = self.connection_slot(slot).is_some_and(|connection_slot| {
            connection_slot.connection.as_ref().is_some_and(|connection| connection.login.is_none())
        });
        let down = ConnectionDown::ProtocolError(why);
        let action = recovery::initiator_response(self.level(), why);
        match action {
            // A connection in login has no session to lose.
            _ if !up => return self.connection_lost(now, slot, down),
            InitiatorAction::DropConnection => return self.connection_lost(now, slot, down),
            InitiatorAction::EndSession => {}
            // The code that sees a loss carries the repair out, and passes no error on.
            InitiatorAction::RequestMissing | InitiatorAction::RetryCommand => self.bug(),
        }
        if let Some(connection) = self.remove_connection(slot, down) {
            self.detach_requests(slot, connection);
        }
        self.lose_session(now, down, self.time2wait());
    }

    /// Returns how long no recovery may be attempted after a connection ended, unless the target asked for
    /// another time (DefaultTime2Wait).
    pub(super) fn time2wait(&self) -> Duration {
        Duration::from_secs(self.parameters.default_time2wait.into())
    }

    /// Removes the connection from a slot, and reports that. Its tasks keep their state until
    /// [`Self::detach_requests`] removes them.
    #[must_use = "its tasks, and what never left, are to be taken off"]
    fn remove_connection(&mut self, slot: Slot, why: ConnectionDown) -> Option<Connection> {
        let connection_slot = self.connection_slot_mut(slot)?;
        connection_slot.deadlines.clear_all();
        connection_slot.logout = None;
        connection_slot.state = ConnectionState::Idle;
        let connection = connection_slot.connection.take().map(|connection| *connection);
        if let Some(connection) = &connection {
            //= rfc7143#section-7.1.4.3
            //# The initiator MUST close the connection.
            if !connection.gone {
                let close = why == ConnectionDown::LoggedOut;
                let action =
                    if close { Action::Close(connection.conn) } else { Action::Abort(connection.conn) };
                self.actions.push_back(action);
            }
            match connection.login {
                None if why != ConnectionDown::LoggedOut => self.stats.connections_lost += 1,
                Some(_) => self.stats.logins_failed += 1,
                None => {}
            }
        }
        if why != ConnectionDown::SessionEnded {
            self.last = why;
        }
        self.events.push_back(Event::ConnectionDown { slot, why });
        // Recovery logouts that were sent on this connection for others must be sent again.
        for connection_slot in &mut self.slots {
            if matches!(connection_slot.recovery_logout, RecoveryLogout::Asked { by, .. } if by == slot) {
                connection_slot.recovery_logout = RecoveryLogout::None;
                connection_slot.deadlines.clear(Timer::Logout);
            }
        }
        connection
    }

    /// Handles the end of a connection, or of an attempt to establish one.
    pub(super) fn connection_lost(&mut self, now: Instant, slot: Slot, why: ConnectionDown) {
        let stage = self.connection_state(slot);
        if matches!(stage, ConnectionState::Idle | ConnectionState::Waiting) || self.phase == Phase::Down {
            return;
        }
        let wait = self.connection_slot_mut(slot).and_then(|connection_slot| connection_slot.wait.take());
        // Only a Logout Response says that the target has ended the tasks of the connection. Without one, it
        // may execute them later.
        let may_execute = self.tasks.iter().any(|(_, task)| task.state == TaskState::Sent(slot));
        let is_failure = why == ConnectionDown::LoggedOut && may_execute && !self.level().reassigns_tasks();
        let why = if is_failure { ConnectionDown::Lost(ConnectionLoss::Closed) } else { why };
        let connection = self.remove_connection(slot, why);
        let was_up = connection.as_ref().is_some_and(|connection| connection.login.is_none());
        let logged_out = why == ConnectionDown::LoggedOut;
        if !was_up {
            return self.attempt_failed(now, slot, why);
        }
        let others = self.any_up(None).is_some();
        // Also when the session is lost with the connection: unsent tasks wait for the next session.
        if let Some(connection) = connection {
            self.detach_requests(slot, connection);
        }
        //= rfc7143#section-7.14
        //# On connection failure, the initiator and target MUST do one of the following:
        if !self.level().reassigns_tasks() && !logged_out {
            self.reset_place(slot);
            return self.lose_session(now, why, wait.unwrap_or(self.time2wait()));
        }
        if !others && (self.session_logout.is_some() || self.is_ready_to_log_out()) {
            return self.end_session(SessionEnd::LoggedOut);
        }
        if !others && logged_out && !self.has_detached_requests(slot) {
            // The last connection was closed in order, and the session with it.
            return self.lose_session(now, why, wait.unwrap_or_default());
        }
        let retain = Duration::from_secs(self.parameters.default_time2retain.into());
        // The session goes on over its other connections, so only a wait that the target asked for applies.
        let wait = wait.unwrap_or(if others { Duration::ZERO } else { self.time2wait() });
        if !others {
            self.phase = Phase::NoConnection;
            self.events.push_back(Event::Recovering);
            //= rfc7143#section-7.5
            //# Recovery attempts for the connection and/or task(s) SHOULD NOT be made before Time2Wait
            //# seconds but MUST be completed within Time2Retain seconds after that initial Time2Wait waiting
            //# period.
            self.retain_deadline = Some(now.after(wait).after(retain));
        }
        let has_orphans = self.has_detached_requests(slot);
        if others && has_orphans {
            if let Some(connection_slot) = self.connection_slot_mut(slot) {
                connection_slot.state = ConnectionState::Waiting;
            }
            self.log_out_lost_connections(now);
        } else if slot.0 < self.connections_wanted && !self.is_ready_to_log_out() {
            self.try_again(now, slot, why, true, wait);
        }
        if !others {
            self.log_out_lost_connections(now);
        }
    }

    /// Schedules the next step after a failed attempt.
    fn attempt_failed(&mut self, now: Instant, slot: Slot, why: ConnectionDown) {
        let unknown = why == ConnectionDown::Refused(Status::SESSION_DOES_NOT_EXIST);
        if unknown && self.phase != Phase::Up && self.tsih.is_some() {
            if let Some(connection_slot) = self.connection_slot_mut(slot) {
                connection_slot.addresses().note_working();
            }
            return self.lose_session(now, why, Duration::ZERO);
        }
        if self.has_detached_requests(slot) && self.any_up(None).is_some() {
            if let Some(connection_slot) = self.connection_slot_mut(slot) {
                connection_slot.state = ConnectionState::Waiting;
            }
            return self.log_out_lost_connections(now);
        }
        if (slot.0 < self.connections_wanted || self.has_detached_requests(slot))
            && !self.is_ready_to_log_out()
        {
            // A host that refuses the first login for good refuses it at its other addresses too.
            let elsewhere = why == ConnectionDown::Login(InitiatorLoginError::OtherPortalGroup);
            let may_differ = self.was_up || may_pass(why) || elsewhere;
            if !may_differ || !self.connect_next(now, slot) {
                self.try_again(now, slot, why, false, Duration::ZERO);
            }
        }
    }

    fn reset_place(&mut self, slot: Slot) {
        if let Some(connection_slot) = self.connection_slot_mut(slot) {
            connection_slot.deadlines.clear_all();
            connection_slot.recovery_logout = RecoveryLogout::None;
            connection_slot.logout = None;
            connection_slot.state = ConnectionState::Idle;
            connection_slot.stop_attempt();
        }
    }

    /// Returns whether the lost connection of a slot left requests.
    fn has_detached_requests(&self, slot: Slot) -> bool {
        self.tasks.iter().any(|(_, task)| task.state == TaskState::Detached(slot))
            || self.tmfs.iter().any(|(_, tmf)| tmf.slot == slot)
    }

    /// Removes the tasks from a lost connection: those that were not sent wait again, the others become
    /// detached tasks.
    fn detach_requests(&mut self, slot: Slot, mut connection: Connection) {
        if let (Some(receiver), Incoming::Data(key)) = (connection.receiver.as_mut(), connection.incoming) {
            let sink = receiver.discard_pdu();
            self.return_sink(Incoming::Data(key), sink);
        } else if let Some(receiver) = connection.receiver.take() {
            self.abandon(slot, receiver);
        }
        let mut unsent = Vec::new();
        for output in &connection.out {
            if let QueuedPdu::Command(key) = output
                && let Some(task) = self.tasks.get_mut(*key)
                && task.state == TaskState::Assigned(slot)
            {
                if !task.request.immediate && !task.numbered {
                    self.unnumbered = self.unnumbered.saturating_sub(1);
                }
                task.state = TaskState::Waiting;
                unsent.push(*key);
            }
        }
        for key in unsent.into_iter().rev() {
            self.waiting.push_front(key);
        }
        for key in connection.to_reassign {
            if let Some(task) = self.tasks.get_mut(key) {
                task.state = TaskState::Detached(slot);
            }
        }
        let sent = self.tasks.iter().filter(|(_, task)| task.state == TaskState::Sent(slot));
        for key in sent.map(|(key, _)| key).collect::<Vec<_>>() {
            let Some(task) = self.tasks.get_mut(key) else { continue };
            task.state = TaskState::Detached(slot);
            task.data_out.unsolicited = None;
            task.data_out.bursts.clear();
            (task.ack, task.status, task.ack_withheld) = (None, None, false);
            task.lose_tag();
            if task.data_in.lost_buffer() {
                task.forget_data_in(&self.pool);
            }
        }
        self.drop_tmfs(Some(slot));
        self.fail_text_on(Some(slot));
    }

    /// Ends the tasks of a connection that the target has closed by request: it has terminated them, and no
    /// other connection can take them over.
    pub(super) fn end_terminated_tasks(&mut self, slot: Slot) {
        let ended = self.tasks.iter().filter(|(_, task)| task.state == TaskState::Sent(slot));
        let mut keys: Vec<_> = ended.map(|(key, task)| (task.order, key)).collect();
        keys.sort_unstable();
        for (_, key) in keys.into_iter().rev() {
            self.unassign(key);
            if let Some(task) = self.tasks.get_mut(key) {
                task.state = TaskState::Detached(slot);
            }
            self.replay_or_lose(key);
        }
    }

    /// Executes a task of unknown outcome again, if its owner allowed that; otherwise ends it as lost.
    fn replay_or_lose(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if (task.request.replay || fault_injection::is_injected(Bug::ReplayWrites))
            && task.replays < MAX_REPLAYS
        {
            task.replays += 1;
            task.start_over(&self.pool);
            self.stats.replays += 1;
            self.waiting.push_front(key);
        } else {
            self.finish(key, TaskResult::Lost);
        }
    }

    /// Gives the session up and begins, after `wait`, to establish it again (RFC 7143 §7.14 c, §7.1.4.4:
    /// session recovery).
    pub(super) fn lose_session(&mut self, now: Instant, why: ConnectionDown, wait: Duration) {
        if self.phase == Phase::Down {
            return;
        }
        for slot in (0..MAX_CONNECTIONS).map(Slot) {
            if self.connection_state(slot) == ConnectionState::Connecting {
                self.events.push_back(Event::CancelConnect { slot });
            }
            if self.connection(slot).is_some()
                && let Some(connection) = self.remove_connection(slot, ConnectionDown::SessionEnded)
            {
                self.detach_requests(slot, connection);
            }
            self.reset_place(slot);
        }
        //= rfc7143#section-7.15
        //# If the same I_T nexus is intended to be reestablished, the initiator MUST employ session
        //# reinstatement (see Section 6.3.5).
        self.tsih = None;
        (self.retain_deadline, self.unnumbered) = (None, 0);
        // Waiting tasks stay behind the tasks that were sent.
        let mut out: Vec<_> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.was_sent())
            .map(|(key, task)| (task.order, key))
            .collect();
        out.sort_unstable();
        for (_, key) in out.into_iter().rev() {
            self.replay_or_lose(key);
        }
        self.drop_tmfs(None);
        self.fail_text_on(None);
        if self.session_logout.is_some() || self.is_ready_to_log_out() {
            return self.end_session(SessionEnd::LoggedOut);
        }
        if self.phase == Phase::Up {
            self.phase = Phase::NoConnection;
            self.events.push_back(Event::Recovering);
        }
        self.try_again(now, Slot(0), why, true, wait);
    }

    /// Ends the session permanently.
    pub(super) fn end_session(&mut self, down: SessionEnd) {
        if self.phase == Phase::Down {
            return;
        }
        let why = if down == SessionEnd::LoggedOut {
            ConnectionDown::LoggedOut
        } else {
            ConnectionDown::SessionEnded
        };
        for slot in (0..MAX_CONNECTIONS).map(Slot) {
            if self.connection_state(slot) == ConnectionState::Connecting {
                self.events.push_back(Event::CancelConnect { slot });
            }
            if self.connection(slot).is_some()
                && let Some(connection) = self.remove_connection(slot, why)
            {
                self.detach_requests(slot, connection);
            }
            self.reset_place(slot);
        }
        self.phase = Phase::Down;
        //= rfc7143#section-6.3.5
        //# The initiator session state MUST be FAILED (Section 8.3) when the initiator attempts a
        //# session reinstatement.
        self.tsih = None;
        (self.retry_deadline, self.retain_deadline, self.session_logout) = (None, None, None);
        for (key, is_out) in self.tasks.iter().map(|(key, task)| (key, task.was_sent())).collect::<Vec<_>>() {
            self.finish(key, if is_out { TaskResult::Lost } else { TaskResult::NotSent });
        }
        self.waiting.clear();
        self.drop_tmfs(None);
        self.fail_text();
        self.events.push_back(Event::Down(down));
    }

    /// Ends connections at the target that are permanently lost, so that their tasks can be reassigned (RFC
    /// 7143 §7.2.2): by an explicit logout on another connection if there is one; otherwise the same slot
    /// logs in again.
    pub(super) fn log_out_lost_connections(&mut self, now: Instant) {
        for slot in (0..MAX_CONNECTIONS).map(Slot) {
            let idle = self.connection_slot(slot).is_some_and(|connection_slot| {
                matches!(connection_slot.state, ConnectionState::Waiting | ConnectionState::Idle)
                    && connection_slot.recovery_logout == RecoveryLogout::None
            });
            if !idle || !self.has_detached_requests(slot) {
                continue;
            }
            //= rfc7143#section-11.14
            //# If an initiator intends to start recovery for a failing connection, it MUST use the Logout
            //# Request to "clean up" the target end of a failing connection and enable recovery to start, or
            //# use the Login Request with a non-zero TSIH and the same CID on a new connection for the same
            //# effect.
            match self.any_up(Some(slot)) {
                Some(by) => {
                    //= rfc7143#section-7.1.4.3
                    //# It then MUST either implicitly or explicitly log out the failed connection with the
                    //# reason code "remove the connection for recovery" and reassign connection allegiance
                    //# for all commands still in progress
                    let itt = self.send_logout(by, LogoutReason::RemoveForRecovery, slot);
                    let within = now.after(self.plan.limits.logout_within);
                    if let Some(connection_slot) = self.connection_slot_mut(slot) {
                        connection_slot.state = ConnectionState::Waiting;
                        connection_slot.recovery_logout = RecoveryLogout::Asked { by, itt };
                        connection_slot.deadlines.clear(Timer::Retry);
                        connection_slot.deadlines.set(Timer::Logout, within);
                    }
                }
                None => {
                    let wait = self.time2wait();
                    if self
                        .connection_slot(slot)
                        .is_some_and(|connection_slot| !connection_slot.deadlines.is_set(Timer::Retry))
                        && let Some(connection_slot) = self.connection_slot_mut(slot)
                    {
                        connection_slot.state = ConnectionState::Waiting;
                        connection_slot.deadlines.set(Timer::Retry, now.after(wait));
                    }
                }
            }
        }
    }

    /// Reassigns the detached tasks of a slot, whose connection the target has ended, to the best available
    /// connection.
    pub(super) fn reassign_anywhere(&mut self, now: Instant, slot: Slot) {
        if let Some(connection_slot) = self.connection_slot_mut(slot) {
            connection_slot.recovery_logout = RecoveryLogout::None;
        }
        match self.least_loaded(None).or_else(|| self.any_up(None)) {
            Some(to) => {
                //= rfc7143#section-11.5.1
                //# TASK REASSIGN MUST ONLY be received by the target after the connection on which the
                //# command was previously executing has been successfully logged out.
                self.reassign_tasks(now, slot, to);
                if slot.0 < self.connections_wanted && self.connection_state(slot) == ConnectionState::Waiting
                {
                    self.start_connecting(now, slot);
                }
            }
            None => self.log_out_lost_connections(now),
        }
    }

    /// Reassigns the detached tasks of a slot to its own new connection, which replaced the old one.
    pub(super) fn reassign_to_successor(&mut self, now: Instant, slot: Slot) {
        if let Some(connection_slot) = self.connection_slot_mut(slot) {
            connection_slot.recovery_logout = RecoveryLogout::None;
        }
        self.reassign_tasks(now, slot, slot);
    }

    fn reassign_tasks(&mut self, now: Instant, from: Slot, to: Slot) {
        self.resend_tmfs(from, to);
        let orphans = self.tasks.iter().filter(|(_, task)| task.state == TaskState::Detached(from));
        let mut keys: Vec<_> = orphans.map(|(key, task)| (task.order, key)).collect();
        keys.sort_unstable();
        for (_, key) in keys {
            let exp_cmd_sn = self.exp_cmd_sn;
            let Some(task) = self.tasks.get_mut(key) else { continue };
            if task.numbered && !task.cmd_sn.before(exp_cmd_sn) {
                //= rfc7143#section-7.2.1
                // The command never arrived: the same command under the same CmdSN fills the gap.
                task.forget_data_in(&self.pool);
                task.resegmentation = None;
                self.set_allegiance(to, key);
                self.stats.retries += 1;
                self.queue(to, QueuedPdu::Command(key));
            } else {
                // From now on the task depends on the connection that it is reassigned to.
                task.state = TaskState::Detached(to);
                if let Some(connection) = self.connection_mut(to) {
                    connection.to_reassign.push_back(key);
                }
            }
        }
        self.send_reassigns(now, to);
    }

    /// Gives a task allegiance to a connection.
    fn set_allegiance(&mut self, slot: Slot, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        task.state = TaskState::Sent(slot);
        let weight = task.weight();
        if let Some(connection) = self.connection_mut(slot) {
            connection.tasks += 1;
            connection.weight += weight;
        }
    }

    /// Requests reassignment of the next tasks to a connection.
    pub(super) fn send_reassigns(&mut self, _now: Instant, slot: Slot) {
        if self.is_closing(slot) {
            return;
        }
        while let Some(connection) =
            self.connection_mut(slot).filter(|connection| connection.open_reassigns < MAX_MOVING)
        {
            let Some(key) = connection.to_reassign.pop_front() else { return };
            let Some(task) = self.tasks.get(key) else { continue };
            let tmf = Tmf {
                lun: task.request.lun,
                task: Some(key),
                referenced: (tag(TAG_TASK, key), Some(crate::serial::CmdSn(0))),
                ..Tmf::new(TmfOrigin::Reassign, TmfFunction::TASK_REASSIGN, slot)
            };
            self.set_allegiance(slot, key);
            if let Some(connection) = self.connection_mut(slot) {
                connection.open_reassigns += 1;
            }
            let tmf = self.tmfs.insert_with(|_| tmf);
            self.queue(slot, QueuedPdu::Tmf(tmf));
        }
    }

    /// Handles the response to a TASK REASSIGN.
    pub(super) fn reassigned(&mut self, now: Instant, tmf: &Tmf, key: Key, result: TmfResult) {
        let slot = tmf.slot;
        if let Some(connection) = self.connection_mut(slot) {
            connection.open_reassigns = connection.open_reassigns.saturating_sub(1);
        }
        if let Some(task) = self.tasks.get_mut(key) {
            match result {
                TmfResult::COMPLETE => self.stats.reassigns += 1,
                // The request was sent twice, and the first one had reassigned the task.
                TmfResult::STILL_ALLEGIANT if tmf.again => self.stats.reassigns += 1,
                TmfResult::STILL_ALLEGIANT if task.replays < MAX_REPLAYS => {
                    task.replays += 1;
                    self.unassign(key);
                    if let Some(task) = self.tasks.get_mut(key) {
                        task.state = TaskState::Detached(slot);
                    }
                    if let Some(connection) = self.connection_mut(slot) {
                        connection.to_reassign.push_back(key);
                    }
                    return self.arm_retransmit(now, slot);
                }
                TmfResult::NO_TASK => {
                    self.unassign(key);
                    if let Some(task) = self.tasks.get_mut(key) {
                        task.state = TaskState::Detached(slot);
                    }
                    self.replay_or_lose(key);
                }
                // The target may still execute the task. A new session ends it before it can be executed
                // again.
                _ => {
                    let why = ConnectionDown::ProtocolError(ProtocolError::NotRecoverable);
                    return self.lose_session(now, why, self.time2wait());
                }
            }
        }
        self.send_reassigns(now, slot);
    }
}
