//! Pings and Asynchronous Messages (RFC 7143 §11.9, §11.18, §11.19).

use alloc::vec::Vec;

use base::time::{Duration, Instant};
use transport::initiator::TaskResult;

use super::connection_slot::{ControlPdu, Timer};
use super::contract::{AsyncNotice, ConnectionDown, Event, Slot};
use super::protocol_error::ProtocolError;
use super::session::{Session, TAG_SMALL};
use super::task::TaskState;
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::{Itt, Ttt};
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
                self.send_ping(now, slot);
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
        let has_unacked = connection.acknowledged() != connection.acked_stat_sn;
        let due = now.since(since) >= after;
        if !has_unacked && !held_back {
            connection.unacked_since = None;
        }
        if has_unacked && due && connection.controls < MAX_CONTROLS {
            //= rfc7143#section-11.18
            // A NOP-Out may report ExpStatSN when no other PDU does for a long time. It requests no answer,
            // and is immediate.
            self.stats.status_acks += 1;
            self.queue_control(slot, ControlPdu::Nop(nop(Itt::NONE, Ttt::NONE, 0)), Vec::new());
        }
        if (held_back || (has_unacked && !due))
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
                self.send_ping(now, slot);
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
    pub(super) fn send_ping(&mut self, now: Instant, slot: Slot) {
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
                    //= rfc7143#section-7.14
                    //# Either side may choose to escalate to session recovery (via the initiator dropping all
                    //# the connections or via an Async Message that announces the similar intent from a
                    //# target), and the other side MUST give it precedence.
                    self.lose_session(now, ConnectionDown::Dropped, wait);
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
}

//= rfc7143#section-11.18.1
//# Otherwise, the Initiator Task Tag MUST be set to 0xffffffff.
//= rfc7143#section-11.18.1
//# If the Initiator Task Tag contains 0xffffffff, the I bit MUST be set to 1, and the CmdSN is not advanced
//# after this PDU is sent.
const fn nop(itt: Itt, ttt: Ttt, lun: u64) -> NopOut {
    NopOut { immediate: true, lun, itt, ttt, cmd_sn: CmdSn(0), exp_stat_sn: StatSn(0) }
}
