//! Retransmission of PDUs that were lost within a connection, from ErrorRecoveryLevel 1 on (RFC 7143 §7.1.5,
//! §11.16).
//!
//! A gap that is visible is requested immediately by the code that sees it ([`super::data`]). This module
//! does the rest: it checks a connection every [`Limits::repair_after`](super::contract::Limits), for as long
//! as the connection has open requests. A PDU that was requested and not received is requested again. A ping
//! finds out what the target has received, and a command that certainly did not arrive is sent again.
//!
//! At level 0 nothing is requested again, but one loss must be detected here all the same. Of all losses at
//! the target, only that of a single command leaves no trace: its owner would wait forever. So a command that
//! is not acknowledged in time is followed by a ping, and if the answer to the ping still expects the
//! command, the session is lost ([`ProtocolError::CommandLost`]).

use alloc::vec::Vec;

use base::time::Instant;

use super::connection_slot::{ConnectionSlot, ControlPdu, QueuedPdu};
use super::contract::Slot;
use super::open_tmf::{Tmf, TmfOrigin};
use super::protocol_error::ProtocolError;
use super::session::{Session, TAG_TASK, tag};
use super::task::TaskState;
use crate::pdu::Ttt;
use crate::pdu::snack::{Snack, SnackKind};
use crate::serial::StatSn;
use crate::target::arena::Key;

impl Session {
    /// Records the loss of a PDU whose header cannot be trusted.
    pub(super) fn damaged_header(&mut self, now: Instant, slot: Slot) {
        self.stats.header_digest_errors += 1;
        if let Some(connection) = self.connection_mut(slot) {
            connection.damaged = true;
        }
        // The answer to the ping shows which statuses are missing, and those show which data is missing.
        self.send_ping(now, slot);
        self.arm_retransmit(now, slot);
    }

    /// Checks a connection for missing PDUs, and requests them again, if its level does that.
    pub(super) fn retransmit_missing(&mut self, now: Instant, slot: Slot) {
        let is_up = self.connection_slot(slot).is_some_and(ConnectionSlot::is_up);
        if !self.level().requests_missing_pdus() || !is_up || self.is_closing(slot) {
            return;
        }
        let limits = self.plan.limits;
        let overdue = |sent_at| now.since(sent_at) >= limits.repair_after;
        let Some(connection) = self.connection_mut(slot) else { return };
        let progressed = core::mem::take(&mut connection.progressed);
        // On a slow path, what was requested comes behind other data. To request it again would only add to
        // that. But a SNACK can be lost, so on a path that is never at rest it is repeated at times.
        let request = !progressed || connection.unrequested >= limits.repairs_max;
        connection.unrequested = if request { 0 } else { connection.unrequested.saturating_add(1) };
        let mut missing = !connection.ahead.is_empty();
        if request {
            connection.statuses_asked = connection.exp_stat_sn;
            self.snack_statuses(now, slot, None);
        }
        missing |= self.snack_missing_data(now, slot, request);
        missing |= self.resend_r_data_snacks(now, slot, request);
        self.resend_lost_requests(now, slot);
        let synced =
            self.connection(slot).map_or(Instant::ORIGIN, |connection| connection.last_answered_ping);
        self.fail_lost_text(slot, synced);
        let talks = self.has_text_on(slot);
        let Some(connection) = self.connection_mut(slot) else { return };
        let unanswered = connection.ping.is_some_and(|(_, sent)| now.since(sent) >= limits.repair_after);
        if unanswered {
            // The lost PDU may be the ping or its answer.
            connection.ping = None;
            missing = true;
        } else if connection.ping.is_none() && !missing {
            connection.damaged = false;
        }
        connection.repairs = if missing && !progressed { connection.repairs.saturating_add(1) } else { 0 };
        let again = (connection.damaged || unanswered) && connection.ping.is_none();
        let idle = connection.tasks == 0 && connection.open_reassigns == 0;
        if connection.repairs > limits.repairs_max {
            return self.handle_protocol_error(now, slot, ProtocolError::NotRepaired);
        }
        let unacknowledged = self.oldest_unacknowledged(slot, overdue).is_some();
        let unsure = self.tmfs.iter().any(|(_, tmf)| {
            tmf.slot == slot && !tmf.numbered && tmf.sent && now.since(tmf.sent_at) >= limits.repair_after
        });
        if self.tmfs.iter().any(|(_, tmf)| tmf.slot == slot && tmf.tries > limits.repairs_max) {
            return self.handle_protocol_error(now, slot, ProtocolError::NotRepaired);
        }
        if again || unacknowledged || unsure || talks {
            self.send_ping(now, slot);
        }
        self.send_reassigns(now, slot);
        if !idle || missing || again || talks || !self.tmfs.is_empty() {
            self.arm_retransmit(now, slot);
        }
    }

    /// Requests missing data again, if `request`; returns whether there was any.
    fn snack_missing_data(&mut self, now: Instant, slot: Slot, request: bool) -> bool {
        let damaged = self.connection(slot).is_some_and(|connection| connection.damaged);
        let after = self.plan.limits.repair_after;
        let mine = self.tasks.iter().filter(|(_, task)| task.state == TaskState::Sent(slot));
        let (mut gaps, mut stalled) = (Vec::new(), Vec::new());
        for (key, task) in mine {
            if !task.data_sns.missing.is_empty() {
                gaps.push(key);
            } else if damaged
                && task.data_out.requested_end < task.data_out_len
                && task.data_out.bursts.is_empty()
                && now.since(task.sent_at) >= after
            {
                stalled.push(key);
            }
        }
        for key in gaps.iter().filter(|_| request) {
            self.snack_data(now, slot, *key, 0..u32::MAX);
        }
        for key in stalled {
            // The lost PDU may be an R2T: request all R2Ts that are not acknowledged (RFC 7143 §11.16.7).
            let snack = Snack {
                kind: SnackKind::DATA_OR_R2T,
                lun: 0,
                itt: tag(TAG_TASK, key),
                tag: Ttt::NONE.0,
                exp_stat_sn: StatSn(0),
                beg_run: 0,
                run_length: 0,
            };
            self.stats.data_snacks += 1;
            self.queue_control(slot, ControlPdu::Snack(snack), Vec::new());
        }
        !gaps.is_empty()
    }

    /// Sends requests again that certainly did not arrive.
    fn resend_lost_requests(&mut self, now: Instant, slot: Slot) {
        let synced =
            self.connection(slot).map_or(Instant::ORIGIN, |connection| connection.last_answered_ping);
        let after = self.plan.limits.repair_after;
        match self.oldest_unacknowledged(slot, |sent_at| now.since(sent_at) >= after) {
            //= rfc7143#section-7.2.1
            //# Retry MUST NOT be used for reasons other than plugging command sequence gaps and, in
            //# particular, cannot be used for requesting PDU retransmissions from a target.
            //= rfc7143#section-7.2.1
            //# The command being retried MUST be sent on the same connection as the original command, unless
            //# the original connection was already successfully logged out.
            Some((Oldest::Task(key), sent_at)) if synced > sent_at => {
                if let Some(task) = self.tasks.get_mut(key) {
                    task.sent_at = now;
                }
                self.stats.retries += 1;
                self.queue(slot, QueuedPdu::Command(key));
            }
            Some((Oldest::Manage(key), sent_at)) if synced > sent_at => self.resend_tmf(now, slot, key),
            _ => {}
        }
        // An immediate request has no number that could be missed. The target answers a TASK REASSIGN
        // immediately; other functions take time, and executing them twice does no harm.
        let resend_after = self.plan.limits.repair_after.saturating_mul(TMF_RESEND_FACTOR);
        let lost = |tmf: &Tmf| {
            let due = tmf.origin != TmfOrigin::Owner || now.since(tmf.sent_at) >= resend_after;
            !tmf.numbered && tmf.slot == slot && tmf.sent && synced > tmf.sent_at && due
        };
        let keys: Vec<_> = self.tmfs.iter().filter(|(_, tmf)| lost(tmf)).map(|(key, _)| key).collect();
        for key in keys {
            self.resend_tmf(now, slot, key);
        }
    }

    fn resend_tmf(&mut self, now: Instant, slot: Slot, key: Key) {
        if let Some(tmf) = self.tmfs.get_mut(key) {
            (tmf.again, tmf.sent_at) = (true, now);
            tmf.tries += 1;
            self.stats.retries += 1;
            self.queue(slot, QueuedPdu::Tmf(key));
        }
    }

    /// Where no command is retried, returns when the command was sent on this connection whose CmdSN the
    /// target expects next, or when a text was sent that is not answered; `None` if a ping has already
    /// followed it.
    pub(super) fn unconfirmed_since(&self, slot: Slot) -> Option<Instant> {
        if self.level().retries_commands() {
            return None;
        }
        let synced = self.connection(slot)?.last_answered_ping;
        let command = self.oldest_unacknowledged(slot, |sent_at| sent_at >= synced);
        command.map(|(_, sent_at)| sent_at).or_else(|| self.text_sent_at(slot).filter(|said| *said >= synced))
    }

    /// Returns whether a command certainly did not arrive on this connection.
    pub(super) fn is_command_lost(&self, slot: Slot) -> bool {
        let Some(synced) = self.connection(slot).map(|connection| connection.last_answered_ping) else {
            return false;
        };
        self.oldest_unacknowledged(slot, |sent_at| sent_at < synced).is_some()
    }

    /// Returns the request whose CmdSN the target expects next, if it was sent on this connection at a time
    /// that `fits`.
    fn oldest_unacknowledged(&self, slot: Slot, fits: impl Fn(Instant) -> bool) -> Option<(Oldest, Instant)> {
        if self.exp_cmd_sn == self.cmd_sn {
            return None;
        }
        let task = self.tasks.iter().find(|(_, task)| {
            task.state == TaskState::Sent(slot) && task.numbered && task.cmd_sn == self.exp_cmd_sn
        });
        let tmf = self
            .tmfs
            .iter()
            .find(|(_, tmf)| tmf.slot == slot && tmf.numbered && tmf.cmd_sn == self.exp_cmd_sn);
        let task = task.map(|(key, task)| (Oldest::Task(key), task.sent_at));
        let tmf = tmf.map(|(key, tmf)| (Oldest::Manage(key), tmf.sent_at));
        task.or(tmf).filter(|(_, sent_at)| fits(*sent_at))
    }
}

/// How many times [`Limits::repair_after`](super::contract::Limits) an immediate function may take before it
/// counts as lost.
const TMF_RESEND_FACTOR: u32 = 5;

/// A request that has a CmdSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Oldest {
    Task(Key),
    Manage(Key),
}
