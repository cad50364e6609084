//! Pings, Asynchronous Messages, Rejects and logouts (RFC 7143 §11.9, §11.14 to §11.19).

use alloc::vec::Vec;

use base::time::{Duration, Instant};
use transport::initiator::TaskResult;
use transport::task_management::{TmfFunction, TmfResult};

use super::connection_slot::{ConnectionSlot, ConnectionState, ControlPdu, QueuedPdu, RecoveryLogout, Timer};
use super::contract::{AsyncNotice, ConnectionDown, Event, SessionEnd, Slot};
use super::protocol_error::{ProtocolError, RejectText};
use super::session::{Phase, Session, TAG_SMALL, TAG_TASK, TAG_TMF, find, tag};
use super::task::TaskState;
use super::tmf::{Tmf, TmfOrigin};
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::{BHS_LEN, Bhs, Itt, Opcode, PduHeader, Ttt};
use crate::serial::{CmdSn, StatSn};

/// The most small PDUs that may wait to be sent on a connection. A target that requests more and reads none
/// is treated as faulty.
const MAX_CONTROLS: usize = 4096;

impl Session {
    pub(super) fn nop_in(&mut self, now: Instant, slot: Slot, pdu: &NopIn) -> Result<(), ProtocolError> {
        if pdu.itt == Itt::NONE {
            self.note_window(pdu.sn);
            self.status_is_due(now, slot, pdu.sn.stat_sn);
            if !self.level().requests_missing_pdus()
                && self
                    .connection(slot)
                    .is_some_and(|connection| pdu.sn.stat_sn.after(connection.exp_stat_sn))
            {
                // A status seems to be lost. The StatSN of the answer to a ping proves it.
                self.ping(now, slot);
            }
        } else {
            if !self.take_status(now, slot, pdu.sn)? {
                return Ok(());
            }
            let twice = self.level().may_receive_twice();
            let Some(connection) = self.connection_mut(slot) else { return Err(ProtocolError::Bug) };
            match connection.ping.take_if(|(itt, _)| *itt == pdu.itt) {
                Some((_, sent)) => connection.last_answered_ping = sent,
                // A second ping was sent before the answer to the first was received.
                None if twice && pdu.itt.0 >> 30 == TAG_SMALL => {}
                None => return Err(ProtocolError::UnknownTask),
            }
            if self.is_command_lost(slot) {
                // If it is retried, the check for lost PDUs does that.
                self.unless_retried(ProtocolError::CommandLost)?;
            }
            if !self.level().requests_missing_pdus() {
                let synced =
                    self.connection(slot).map_or(Instant::ORIGIN, |connection| connection.last_answered_ping);
                self.fail_lost_text(slot, synced);
            }
        }
        if pdu.ttt == Ttt::NONE {
            return Ok(());
        }
        if self.connection(slot).is_some_and(|connection| connection.controls >= MAX_CONTROLS) {
            return Err(ProtocolError::AnswersUnread);
        }
        //= rfc7143#section-11.18.2
        // The answer to a ping carries its transfer tag and LUN, is immediate, and requests no answer.
        //= rfc7143#section-11.18
        //# Upon receipt of a NOP-In with the Target Transfer Tag set to a valid value (not the reserved value
        //# 0xffffffff), the initiator MUST respond with a NOP-Out.
        //= rfc7143#section-11.18
        //# In this case, the NOP-Out Target Transfer Tag MUST contain a copy of the NOP-In Target Transfer
        //# Tag.
        //= rfc7143#section-11.18.2
        //# When the Target Transfer Tag is set to a value other than 0xffffffff, the LUN field MUST also be
        //# copied from the NOP-In.
        self.queue_control(slot, ControlPdu::Nop(nop(Itt::NONE, pdu.ttt, pdu.lun)), Vec::new());
        Ok(())
    }

    /// Arms the timer by which a status is acknowledged even if no other PDU is sent.
    pub(super) fn acknowledge_in_time(&mut self, now: Instant, slot: Slot) {
        let after = self.plan.limits.acknowledge_after;
        if let Some(connection_slot) = self.connection_slot_mut(slot)
            && !after.is_zero()
            && !connection_slot.deadlines.is_set(Timer::Acknowledge)
        {
            connection_slot.deadlines.set(Timer::Acknowledge, now.after(after));
        }
    }

    /// Acknowledges statuses that no other PDU acknowledged in time.
    pub(super) fn acknowledge_statuses(&mut self, now: Instant, slot: Slot) {
        let after = self.plan.limits.acknowledge_after;
        if self.is_closing(slot) {
            return;
        }
        let Some(connection) = self.connection_mut(slot) else { return };
        let Some(since) = connection.unacked_since else { return };
        let held_back = connection.holds_back();
        let news = connection.acknowledged() != connection.acked_stat_sn;
        let due = now.since(since) >= after;
        if !news && !held_back {
            connection.unacked_since = None;
        }
        if news && due && connection.controls < MAX_CONTROLS {
            //= rfc7143#section-11.18
            // A NOP-Out may report ExpStatSN when no other PDU does for a long time. It requests no answer,
            // and is immediate.
            self.stats.status_acks += 1;
            self.queue_control(slot, ControlPdu::Nop(nop(Itt::NONE, Ttt::NONE, 0)), Vec::new());
        }
        if (held_back || (news && !due))
            && let Some(connection_slot) = self.connection_slot_mut(slot)
        {
            let from = if due { now } else { since };
            connection_slot.deadlines.set(Timer::Acknowledge, from.after(after));
        }
    }

    /// Checks a connection that may be silent for some time, or whose oldest command the target does not
    /// acknowledge. Sends a ping, or gives the connection up if a ping was not answered in time.
    pub(super) fn check_silence(&mut self, now: Instant, slot: Slot) {
        let limits = self.plan.limits;
        if self.is_closing(slot) {
            // The logout has a deadline of its own.
            return;
        }
        let overdue = self.unconfirmed_since(slot).map(|sent| sent.after(limits.ping_after));
        let Some(connection) = self.connection(slot) else { return };
        let next = match connection.ping {
            // Other PDUs may have arrived since the ping, but none within the time limit.
            Some((_, sent)) if now.since(sent.max(connection.heard)) >= limits.pong_within => {
                return self.handle_protocol_error(now, slot, ProtocolError::PingUnanswered);
            }
            Some((_, sent)) => sent.max(connection.heard).after(limits.pong_within),
            None if now.since(connection.heard) >= limits.ping_after
                || overdue.is_some_and(|at| at <= now) =>
            {
                self.ping(now, slot);
                now.after(limits.pong_within)
            }
            None => {
                let silent = connection.heard.after(limits.ping_after);
                overdue.map_or(silent, |at| at.min(silent))
            }
        };
        if let Some(connection_slot) = self.connection_slot_mut(slot) {
            connection_slot.deadlines.set(Timer::Silence, next);
        }
    }

    /// Sends a ping, unless one is unanswered or a Logout Request was sent.
    pub(super) fn ping(&mut self, now: Instant, slot: Slot) {
        if self.is_closing(slot) {
            return;
        }
        let itt = self.next_tag();
        let Some(connection) = self.connection_mut(slot) else { return };
        if connection.ping.is_none() {
            connection.ping = Some((itt, now));
            //= rfc7143#section-11.18.1
            //# The NOP-Out MUST have the Initiator Task Tag set to a valid value only if a response in the
            //# form of a NOP-In is requested (i.e., the NOP-Out is used as a ping request).
            //= rfc7143#section-11.18.2
            //# The NOP-Out MUST only have the Target Transfer Tag set if it is issued in response to a NOP-In
            //# with a valid Target Transfer Tag.
            //= rfc7143#section-11.18.2
            //# Otherwise, the Target Transfer Tag MUST be set to 0xffffffff.
            // A long queue must not look like silence.
            self.queue_control_first(slot, ControlPdu::Nop(nop(itt, Ttt::NONE, 0)), Vec::new());
            self.watch_request(now, slot);
        }
    }

    pub(super) fn async_message(
        &mut self,
        now: Instant,
        slot: Slot,
        message: AsyncMessage,
        data: &[u8],
    ) -> Result<(), ProtocolError> {
        if !self.take_status(now, slot, message.sn)? {
            return Ok(());
        }
        let is_scsi = message.event == AsyncEventCode::SCSI;
        let sense = if is_scsi { super::data::sense_of(data)? } else { None };
        let seconds = |count: u16| Duration::from_secs(count.into());
        let lun = message.lun;
        let (wait, retain) = (seconds(message.parameter2), seconds(message.parameter3));
        self.events.push_back(Event::AsyncMessage(AsyncNotice { slot, message, sense }));
        match message.event {
            AsyncEventCode::LOGOUT_REQUEST => self.handle_logout_request(now, slot, retain),
            //= rfc7143#section-7.1.4.3
            //# The initiator MUST handle it as a TCP connection failure for the connection(s) referred to in
            //# the message.
            AsyncEventCode::CONNECTION_DROP => {
                let dropped = Slot(message.parameter1);
                if self
                    .connection_slot(dropped)
                    .is_some_and(|connection_slot| connection_slot.connection.is_some())
                {
                    self.wait(dropped, wait);
                    self.connection_lost(now, dropped, ConnectionDown::Dropped);
                }
            }
            AsyncEventCode::SESSION_DROP => {
                if retain.is_zero() || !self.level().reassigns_tasks() {
                    self.wait(Slot(0), wait);
                    //= rfc7143#section-7.14
                    //# Either side may choose to escalate to session recovery (via the initiator dropping all
                    //# the connections or via an Async Message that announces the similar intent from a
                    //# target), and the other side MUST give it precedence.
                    self.lose_session(now, ConnectionDown::Dropped);
                } else {
                    for slot in (0..super::contract::MAX_CONNECTIONS).map(Slot) {
                        if self.connection(slot).is_some() {
                            self.wait(slot, wait);
                            self.connection_lost(now, slot, ConnectionDown::Dropped);
                        }
                    }
                }
            }
            AsyncEventCode::NEGOTIATION_REQUEST => self.start_requested_text(now, slot),
            AsyncEventCode::TASKS_TERMINATED => {
                //= rfc7143#section-11.9.1
                //# The receiving initiator iSCSI layer MUST respond to this message by taking the following
                //# steps, in order:
                let ended = |standing| matches!(standing, TaskState::Sent(_) | TaskState::Detached(_));
                let keys = self.tasks.iter().filter(|(_, task)| ended(task.state) && task.request.lun == lun);
                for key in keys.map(|(key, _)| key).collect::<Vec<_>>() {
                    self.finish(key, TaskResult::Aborted);
                }
                //= rfc7143#section-4.2.3.4
                // The target waits until the event is acknowledged by a NOP-Out that names the logical unit
                // (§11.9.1).
                //= rfc7143#section-4.2.3.4
                //# c) MUST respond to each Async Message PDU with a Task Termination AsyncEvent (5) as
                //# defined in Section 11.9.
                //= rfc7143#section-4.2.3.5
                //# If the third-party affected session is a FastAbort session and the issuing session
                //# is a FastAbort session, the initiator in the third-party role MUST respond to each
                //# Async Message PDU with AsyncEvent=5 as defined in Section 11.9.
                self.queue_control(slot, ControlPdu::Nop(nop(Itt::NONE, Ttt::NONE, lun)), Vec::new());
            }
            _ => {}
        }
        Ok(())
    }

    fn wait(&mut self, slot: Slot, wait: Duration) {
        if let Some(connection_slot) = self.connection_slot_mut(slot) {
            connection_slot.wait = Some(wait);
        }
    }

    /// Drains a connection for which the target requested a logout, and logs it out in time whether it is
    /// empty or not.
    fn handle_logout_request(&mut self, now: Instant, slot: Slot, within: Duration) {
        let Some(connection_slot) = self.connection_slot_mut(slot).filter(|slot| slot.is_up()) else {
            return;
        };
        connection_slot.state = ConnectionState::Draining;
        //= rfc7143#section-11.9.1
        //# The initiator MUST honor this request by issuing a Logout as early as possible but no later than
        //# Parameter3 seconds.
        let at = now.after(within.mul_f32(0.75));
        connection_slot.deadlines.set_earlier(Timer::Drain, at);
    }

    /// Drains connections that are not wanted any more, and logs out those without tasks.
    pub(super) fn drain_connections(&mut self, now: Instant) {
        for slot in (0..super::contract::MAX_CONNECTIONS).map(Slot) {
            let unwanted = slot.0 >= self.connections_wanted;
            let Some(connection_slot) = self.connection_slot_mut(slot) else { return };
            match connection_slot.state {
                ConnectionState::Up if unwanted => connection_slot.state = ConnectionState::Draining,
                ConnectionState::Waiting
                    if unwanted && connection_slot.recovery_logout == RecoveryLogout::None =>
                {
                    connection_slot.state = ConnectionState::Idle;
                    connection_slot.deadlines.clear(Timer::Retry);
                }
                _ => {}
            }
            let empty = connection_slot
                .connection
                .as_ref()
                .is_some_and(|connection| connection.tasks == 0 && connection.to_reassign.is_empty());
            if connection_slot.state == ConnectionState::Draining && empty && !self.is_used(slot) {
                self.log_out_connection(now, slot);
            }
        }
    }

    /// Returns whether a connection carries requests other than tasks.
    fn is_used(&self, slot: Slot) -> bool {
        self.tmfs.iter().any(|(_, tmf)| tmf.slot == slot)
            || self.has_text_on(slot)
            || self
                .slots
                .iter()
                .any(|connection_slot| matches!(connection_slot.recovery_logout, RecoveryLogout::Asked { by, .. } if by == slot))
    }

    /// Logs a connection out. The target ends the tasks that are still open on it.
    pub(super) fn log_out_connection(&mut self, now: Instant, slot: Slot) {
        if !self.connection_slot(slot).is_some_and(ConnectionSlot::is_up) {
            return;
        }
        //= rfc7143#section-11.9.1
        //# The initiator MUST send a Logout with a reason code of "close the connection" OR "close the
        //# session" to close all the connections.
        let itt = self.send_logout(slot, LogoutReason::CloseConnection, slot);
        let within = now.after(self.plan.limits.logout_within);
        if let Some(connection_slot) = self.connection_slot_mut(slot) {
            connection_slot.state = ConnectionState::LoggingOut;
            connection_slot.logout = Some(itt);
            connection_slot.deadlines.clear(Timer::Drain);
            connection_slot.deadlines.set(Timer::Logout, within);
        }
    }

    /// Returns whether a Logout Request was sent for a connection, or for the session. From then on no
    /// requests are sent on the connection. Answers to the target's pings and messages still are.
    pub(super) fn is_closing(&self, slot: Slot) -> bool {
        //= rfc7143#section-11.14
        //# After sending the Logout Request PDU, an initiator MUST NOT send any new iSCSI requests on the
        //# closing connection.
        //= rfc7143#section-11.14
        //# If the Logout Request is intended to close the session, new iSCSI requests MUST NOT be sent on any
        //# of the connections participating in the session.
        let logs_out =
            self.connection_slot(slot).is_some_and(|connection_slot| connection_slot.logout.is_some());
        logs_out || self.session_logout.is_some()
    }

    /// Sends a Logout Request on `by` for the connection in slot `about`.
    pub(super) fn send_logout(&mut self, by: Slot, reason: LogoutReason, about: Slot) -> Itt {
        let itt = self.next_tag();
        let request = LogoutRequest {
            immediate: true,
            reason,
            itt,
            cid: about.0,
            cmd_sn: CmdSn(0),
            exp_stat_sn: StatSn(0),
        };
        self.queue_control(by, ControlPdu::Logout(request), Vec::new());
        itt
    }

    /// Accepts no more requests and logs out once all open ones have ended. [`Event::Down`] follows.
    ///
    /// Each connection is logged out by a logout of its own, and the last logout closes the session. After
    /// the response to a logout no more PDUs arrive on that connection, so every PDU that the target sent
    /// before was received and checked, on all connections.
    pub fn logout(&mut self, now: Instant) {
        self.logout_requested = true;
        self.process_pending(now);
    }

    /// Returns whether a logout was requested and no request is open.
    pub(super) fn is_ready_to_log_out(&self) -> bool {
        self.logout_requested && self.tasks.is_empty() && self.tmfs.is_empty() && !self.has_text()
    }

    /// Logs out if a logout was requested and no request is open.
    pub(super) fn log_out_if_done(&mut self, now: Instant) {
        if self.phase == Phase::Down || !self.is_ready_to_log_out() || self.session_logout.is_some() {
            return;
        }
        let last = self.any_up(None);
        for slot in (0..super::contract::MAX_CONNECTIONS).map(Slot).filter(|slot| Some(*slot) != last) {
            if matches!(self.connection_state(slot), ConnectionState::Up | ConnectionState::Draining) {
                self.log_out_connection(now, slot);
            }
        }
        if self.slots.iter().any(|connection_slot| connection_slot.state == ConnectionState::LoggingOut) {
            return;
        }
        match last {
            Some(slot) => {
                let itt = self.send_logout(slot, LogoutReason::CloseSession, slot);
                self.session_logout = Some((itt, now.after(self.plan.limits.logout_within)));
            }
            None => self.end_session(SessionEnd::LoggedOut),
        }
    }

    pub(super) fn logout_response(
        &mut self,
        now: Instant,
        slot: Slot,
        pdu: &LogoutResponse,
    ) -> Result<(), ProtocolError> {
        if !self.take_status(now, slot, pdu.sn)? {
            return Ok(());
        }
        if self.session_logout.is_some_and(|(itt, _)| itt == pdu.itt) {
            self.end_session(SessionEnd::LoggedOut);
            return Ok(());
        }
        let wait = Duration::from_secs(pdu.time2wait.into());
        if self.connection_slot(slot).is_some_and(|connection_slot| connection_slot.logout == Some(pdu.itt)) {
            self.wait(slot, wait);
            if pdu.response == LogoutResult::CLOSED {
                self.end_terminated_tasks(slot);
            }
            //= rfc7143#section-11.14
            //# After receiving the Logout Response and attempting to receive the FIN (if still possible), the
            //# initiator MUST completely close the logging-out connection.
            self.connection_lost(now, slot, ConnectionDown::LoggedOut);
            return Ok(());
        }
        let asked = |connection_slot: &ConnectionSlot| matches!(connection_slot.recovery_logout, RecoveryLogout::Asked { by, itt } if by == slot && itt == pdu.itt);
        let Some(connection_slot) = self.slots.iter_mut().find(|connection_slot| asked(connection_slot))
        else {
            // A request that was sent twice, or arrived twice, is answered twice.
            return if self.stale_tags.contains(&pdu.itt) { Ok(()) } else { Err(ProtocolError::UnknownTask) };
        };
        connection_slot.deadlines.clear(Timer::Logout);
        //= rfc7143#section-7.2.2
        //# Before the allegiance reassignment is attempted for a task, an implicit or explicit Logout with
        //# the reason code "remove the connection for recovery" (see Section 11.14.1) MUST be successfully
        //# completed for the previous connection to which the task was allegiant.
        if matches!(pdu.response, LogoutResult::CLOSED | LogoutResult::NO_CID) {
            connection_slot.recovery_logout = RecoveryLogout::Time2Wait;
            connection_slot.deadlines.set(Timer::Reassign, now.after(wait));
        } else {
            self.lose_session(now, ConnectionDown::ProtocolError(ProtocolError::NotRecoverable));
        }
        self.remember(pdu.itt);
        Ok(())
    }

    pub(super) fn logout_too_slow(&mut self, now: Instant, slot: Slot) {
        let Some(connection_slot) = self.connection_slot_mut(slot) else { return };
        if connection_slot.logout.is_some() {
            return self.connection_lost(now, slot, ConnectionDown::LoggedOut);
        }
        if let RecoveryLogout::Asked { itt, .. } = connection_slot.recovery_logout {
            connection_slot.recovery_logout = RecoveryLogout::None;
            self.remember(itt);
            self.log_out_lost_connections(now);
        }
    }

    pub(super) fn reject(
        &mut self,
        now: Instant,
        slot: Slot,
        pdu: &Reject,
        data: &[u8],
    ) -> Result<(), ProtocolError> {
        if !self.take_status(now, slot, pdu.sn)? {
            return Ok(());
        }
        self.stats.rejects += 1;
        let bhs = data.first_chunk::<BHS_LEN>().ok_or(ProtocolError::RejectWithoutHeader)?;
        let bhs = Bhs::from_bytes(*bhs);
        match bhs.opcode() {
            Opcode::SCSI_COMMAND => self.command_rejected(slot, &bhs, pdu.reason),
            Opcode::TMF_REQUEST => self.tmf_rejected(now, slot, &bhs, pdu.reason),
            Opcode::TEXT_REQUEST => {
                self.text_refused(slot, bhs.itt());
                Ok(())
            }
            Opcode::NOP_OUT => {
                // The ping is refused, but the target is alive.
                if let Some(connection) = self.connection_mut(slot) {
                    connection.ping.take_if(|(itt, _)| *itt == bhs.itt());
                }
                Ok(())
            }
            Opcode::SNACK => self.snack_rejected(slot, &Snack::decode(&bhs)?),
            // The target requests the data again, or ends the task.
            Opcode::DATA_OUT => Ok(()),
            // The login is complete: its last request arrived twice.
            Opcode::LOGIN_REQUEST if self.level().may_receive_twice() => Ok(()),
            Opcode::LOGOUT_REQUEST if self.session_logout.is_some_and(|(itt, _)| itt == bhs.itt()) => {
                self.end_session(SessionEnd::LoggedOut);
                Ok(())
            }
            _ => Err(ProtocolError::Rejected(RejectText(pdu.reason))),
        }
    }

    fn command_rejected(&mut self, slot: Slot, bhs: &Bhs, reason: RejectReason) -> Result<(), ProtocolError> {
        let Some(key) = find(&self.tasks, TAG_TASK, bhs.itt()) else { return Ok(()) };
        let Some(task) = self.tasks.get(key).filter(|task| task.state == TaskState::Sent(slot)) else {
            return Ok(());
        };
        let (numbered, cmd_sn, lun) = (task.numbered, task.cmd_sn, task.request.lun);
        let resent = task.resent;
        if reason == RejectReason::TASK_IN_PROGRESS {
            // The command arrived twice, and the target rejects only the duplicate: reporting the command as
            // not executed would be wrong. The duplicate of a numbered command is to be silently ignored (RFC
            // 7143 §4.2.2.1).
            return if numbered { Err(ProtocolError::Rejected(RejectText(reason))) } else { Ok(()) };
        }
        let acknowledged = numbered && cmd_sn.before(self.exp_cmd_sn);
        if reason == RejectReason::DATA_DIGEST_ERROR && !acknowledged {
            self.unless_retried(ProtocolError::CommandDamaged)?;
            self.stats.retries += 1;
            self.queue(slot, QueuedPdu::Command(key));
            return Ok(());
        }
        if reason == RejectReason::DATA_DIGEST_ERROR && resent {
            // One copy was rejected, and the number counts because of another: that one has a response of its
            // own.
            return Ok(());
        }
        self.finish(key, TaskResult::Rejected(reason.0));
        if numbered && !acknowledged {
            //= rfc7143#section-7.3
            //# Upon receiving the Reject, the initiator MUST plug the CmdSN gap in order to continue to use the
            //# session.
            // The CmdSN counts as not received; the initiator fills the gap by aborting the command of that
            // number.
            let up = self.connection_slot(slot).is_some_and(ConnectionSlot::is_up).then_some(slot);
            let Some(slot) = up.or_else(|| self.any_up(None)) else { return Ok(()) };
            let tmf = Tmf {
                lun,
                referenced: (tag(TAG_TASK, key), Some(cmd_sn)),
                ..Tmf::new(TmfOrigin::FillCmdSnGap, TmfFunction::ABORT_TASK, slot)
            };
            let key = self.tmfs.insert_with(|_| tmf);
            self.queue(slot, QueuedPdu::Tmf(key));
        }
        Ok(())
    }

    fn tmf_rejected(
        &mut self,
        now: Instant,
        slot: Slot,
        bhs: &Bhs,
        reason: RejectReason,
    ) -> Result<(), ProtocolError> {
        let Some(key) = find(&self.tmfs, TAG_TMF, bhs.itt()) else { return Ok(()) };
        let Some(tmf) = self.tmfs.get(key).filter(|tmf| tmf.slot == slot) else { return Ok(()) };
        if tmf.origin == TmfOrigin::FillCmdSnGap {
            return Err(ProtocolError::Rejected(RejectText(reason)));
        }
        // A task that is being reassigned is tried again later: the target has too many immediate requests
        // now.
        let result = match (tmf.origin, reason) {
            (TmfOrigin::Reassign, RejectReason::TOO_MANY_IMMEDIATE) => TmfResult::STILL_ALLEGIANT,
            _ => TmfResult::REJECTED,
        };
        self.finish_tmf(now, key, result);
        Ok(())
    }

    fn snack_rejected(&mut self, slot: Slot, snack: &Snack) -> Result<(), ProtocolError> {
        if snack.kind == SnackKind::R_DATA {
            return self.r_data_snack_rejected(slot, snack);
        }
        // A PDU that arrived in the meantime need not be recovered, and a SNACK that requests all existing
        // PDUs may match none.
        if snack.run_length == 0 || !self.is_missing(slot, snack) {
            return Ok(());
        }
        match snack.kind {
            SnackKind::STATUS => Err(ProtocolError::NotRepaired),
            SnackKind::DATA_OR_R2T => {
                // The target ends the task with an error; a GOOD status would be wrong.
                let Some(key) = find(&self.tasks, TAG_TASK, snack.itt) else { return Ok(()) };
                let Some(task) = self.tasks.get_mut(key) else { return Ok(()) };
                task.unrepairable = true;
                if task.status.as_ref().is_some_and(|ending| ending.status == 0) {
                    return Err(ProtocolError::NotRepaired);
                }
                self.finish_if_complete(key)
            }
            _ => Ok(()),
        }
    }
}

//= rfc7143#section-11.18.1
//# Otherwise, the Initiator Task Tag MUST be set to 0xffffffff.
//= rfc7143#section-11.18.1
//# If the Initiator Task Tag contains 0xffffffff, the I bit MUST be set to 1, and the CmdSN is not advanced
//# after this PDU is sent.
const fn nop(itt: Itt, ttt: Ttt, lun: u64) -> NopOut {
    NopOut { immediate: true, lun, itt, ttt, cmd_sn: CmdSn(0), exp_stat_sn: StatSn(0) }
}
