//! SNACK (RFC 7143 §11.16): retransmission, and acknowledgement of Data-In.
//!
//! A SNACK sends nothing itself. The task or connection records the runs that were asked for, and they are
//! sent in the turn of its send queue, as far as the driver's batch has free space. So however often
//! something is asked for, only a few numbers are queued, and an initiator that does not read delays only
//! itself.
//!
//! Tags that have no meaning for the type of a SNACK are ignored: initiators should set them to the reserved
//! value (§11.16.4, §11.16.5), and not all do.

use base::state_machine::ConnId;
use base::time::Instant;
use base::transmit::Transmit;

use super::arena::Key;
use super::data_out_sequence::IssuedR2t;
use super::engine::Engine;
use super::output::Output;
use super::protocol_error::ProtocolError;
use super::status_log::LoggedStatus;
use super::task::Task;
use crate::pdu::r2t::R2t;
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::{Bhs, Itt, PduHeader, TargetSn, Ttt};
use crate::recovery::erl1;
use crate::serial::{DataSn, R2tSn, StatSn};

/// How many tags may have been assigned since a tag that can still be acknowledged.
const LATE: u32 = 1 << 16;

impl Engine {
    /// Handles a SNACK.
    pub(super) fn handle_snack(
        &mut self,
        conn: ConnId,
        session: Key,
        bhs: &Bhs,
        snack: &Snack,
    ) -> Result<(), ProtocolError> {
        let Some(state) = self.sessions.get(session) else { return Err(ProtocolError::impossible()) };
        if !state.parameters.error_recovery_level.serves_snacks() {
            return Err(ProtocolError::SnackWithoutRecovery);
        }
        if snack.kind == SnackKind::DATA_ACK {
            return self.data_ack(session, snack);
        }
        self.stats.snacks += 1;
        self.count_repair(conn, |repairs| repairs.snacks += 1);
        //= rfc7143#section-11.16
        //# If the implementation supports ErrorRecoveryLevel greater than zero, it MUST support all SNACK
        //# types.
        match snack.kind {
            SnackKind::STATUS => self.status_snack(conn, snack),
            SnackKind::DATA_OR_R2T => {
                let key = self.task_of_snack(conn, session, snack)?;
                self.data_snack(conn, key, snack).or_else(|why| self.reject_snack(conn, bhs, key, why))
            }
            SnackKind::R_DATA => {
                let key = self.task_of_snack(conn, session, snack)?;
                let legal =
                    snack.beg_run == 0 && snack.run_length == 0 && snack.tag != 0 && snack.tag != Ttt::NONE.0;
                if !legal {
                    return Err(ProtocolError::SnackIllegal);
                }
                self.r_data_snack(key, snack.tag).or_else(|why| self.reject_snack(conn, bhs, key, why))
            }
            _ => Err(ProtocolError::SnackIllegal),
        }
    }

    /// Finds the task that a SNACK names: a task of this connection, answered or not.
    fn task_of_snack(&self, conn: ConnId, session: Key, snack: &Snack) -> Result<Key, ProtocolError> {
        let key = self.sessions.get(session).and_then(|state| state.find(&self.tasks, snack.itt));
        let own = |key: &Key| self.tasks.get(*key).is_some_and(|task| task.is_on(conn));
        //= rfc7143#section-4.2.5.1
        //# Retransmission requests (SNACK PDUs), and the data and status that they generate, MUST
        //# also use the same connection.
        key.filter(own).ok_or(ProtocolError::SnackUnknownTask)
    }

    fn status_snack(&mut self, conn: ConnId, snack: &Snack) -> Result<(), ProtocolError> {
        let Some(connection) = self.conn_mut(conn) else { return Err(ProtocolError::impossible()) };
        //= rfc7143#section-11.16
        //# Any SNACK that requests a numbered response, data, or R2T that was not
        //# sent by the target or was already acknowledged by the initiator MUST be
        //# rejected with a reason code of "Protocol Error".
        let (first, next) = (connection.status_log.first().0, connection.stat_sn.0);
        let (from, count) = erl1::snack_run(first, next, snack.beg_run, snack.run_length)
            .ok_or(ProtocolError::SnackNotSent)?;
        if count > 0 && connection.status_log.request_resend(StatSn(from), count) {
            self.queue(conn, Output::ResendStatus);
        }
        Ok(())
    }

    fn data_snack(&mut self, conn: ConnId, key: Key, snack: &Snack) -> Result<(), ProtocolError> {
        let Some(connection) = self.conn(conn) else { return Err(ProtocolError::impossible()) };
        let most = connection.parameters.initiator_max_recv;
        let Some(task) = self.tasks.get_mut(key) else { return Err(ProtocolError::impossible()) };
        let (first, next) = task.unacked_sn_range();
        let (from, count) = erl1::snack_run(first, next, snack.beg_run, snack.run_length)
            .ok_or(ProtocolError::SnackNotSent)?;
        if task.data_in.longest(DataSn(from), DataSn(from).plus(count)) > most {
            // After the initiator lowered its MaxRecvDataSegmentLength, it must ask for resegmented data
            // (§11.16.3).
            //= rfc7143#section-7.8
            //# In response to the SNACK, the target MUST either resend the data PDU or reject the SNACK with
            //# a Reject PDU with a reason code of "SNACK reject", in which case:
            return Err(ProtocolError::SnackUnserved);
        }
        let is_first = task.resend_runs.is_empty();
        if task.data_in_len == 0 && task.data_out.first_r2t(from, count).is_none() && snack.run_length > 0 {
            // The data that answers an R2T acknowledges the R2T.
            return Err(ProtocolError::SnackNotSent);
        }
        task.request_resend(from, count);
        if is_first && !task.resend_runs.is_empty() {
            self.queue(conn, Output::ResendData(key));
        }
        Ok(())
    }

    /// Rejects a SNACK for data of a task. If the SNACK was legal, the task fails, because the initiator
    /// cannot get the data.
    ///
    /// # Errors
    /// Returns the broken rule if the SNACK was not legal.
    fn reject_snack(
        &mut self,
        conn: ConnId,
        bhs: &Bhs,
        key: Key,
        why: ProtocolError,
    ) -> Result<(), ProtocolError> {
        let is_unanswered = |task: &&mut Task| task.sent_status.is_none();
        if why != ProtocolError::SnackUnserved {
            return Err(why);
        }
        let task = self.tasks.get_mut(key).filter(is_unanswered);
        let task = task.ok_or(ProtocolError::SnackUnservedAfterStatus)?;
        //= rfc7143#section-7.8
        //# a.1) If the status has not already been sent for the command, the target MUST terminate
        //# the command with a CHECK CONDITION Status and an iSCSI Condition of "SNACK rejected"
        //# (Section 11.4.7.2).
        // This also replaces the result of a task that ended while its data was still queued.
        task.result = None;
        self.handle_task_violation(conn, bhs, key, why)
    }

    /// Sends the unacknowledged data of a task again, resegmented to the initiator's present
    /// MaxRecvDataSegmentLength, and then its response with this tag (§11.16.3).
    fn r_data_snack(&mut self, key: Key, tag: u32) -> Result<(), ProtocolError> {
        let Some(task) = self.tasks.get_mut(key) else { return Err(ProtocolError::impossible()) };
        if task.is_bidirectional() {
            // Data-In and R2T PDUs are numbered in one sequence, in which the R2Ts keep their numbers.
            return Err(ProtocolError::SnackUnserved);
        }
        task.data_in.rewind();
        task.resend_runs.clear();
        //= rfc7143#section-11.16.3
        //# A target that has received a R-Data SNACK MUST return a SCSI Response that contains a copy of the
        //# SNACK Tag field from the R-Data SNACK in the SCSI Response SNACK Tag field as its last or only
        //# Response.
        //= rfc7143#section-11.16.5
        //# This value MUST be copied by the iSCSI target in the last or only SCSI Response PDU it issues for
        //# the command.
        task.snack_tag = tag;
        let to_send = task.data_in.has_queued() || task.result.is_some();
        if to_send && let Some(conn) = task.enter_send_queue() {
            self.queue(conn, Output::Task(key));
        }
        Ok(())
    }

    /// Handles an acknowledgement of Data-In: the retained data before it can be dropped (§11.16.2).
    fn data_ack(&mut self, session: Key, snack: &Snack) -> Result<(), ProtocolError> {
        if snack.run_length != 0 || snack.tag == Ttt::NONE.0 {
            return Err(ProtocolError::SnackIllegal);
        }
        let Some(state) = self.sessions.get(session) else { return Err(ProtocolError::impossible()) };
        let named = state.tasks(&self.tasks).find(|(_, task)| task.data_in.ack_ttt() == Some(Ttt(snack.tag)));
        let Some((key, _)) = named else {
            // The acknowledgement of the task's status also acknowledged its data (§11.7.2), and may have
            // overtaken this SNACK.
            let is_late = self.next_ttt.wrapping_sub(snack.tag).wrapping_sub(1) < LATE;
            self.stats.ignored += u64::from(is_late);
            return if is_late { Ok(()) } else { Err(ProtocolError::DataAckUnknown) };
        };
        let fits =
            |task: &&mut Task| task.lun == snack.lun && (snack.itt == Itt::NONE || snack.itt == task.itt);
        let Some(task) = self.tasks.get_mut(key).filter(fits) else {
            return Err(ProtocolError::DataAckUnknown);
        };
        let freed = task.data_in.acknowledge_sent(DataSn(snack.beg_run), &self.pool);
        let freed = freed.ok_or(ProtocolError::DataAckUnknown)?;
        self.release_data_in(session, freed);
        self.drain_ready(session);
        Ok(())
    }

    /// Sends the Data-In and R2T PDUs of a task that were asked for again, as far as they fit.
    pub(super) fn send_again(&mut self, _now: Instant, conn: ConnId, key: Key, out: &mut Transmit) {
        loop {
            let Some(task) = self.tasks.get_mut(key).filter(|task| task.is_on(conn)) else { return };
            let Some((from, count)) = task.resend_runs.first().copied() else { return };
            if out.is_full() {
                if let Some(connection) = self.conn_mut(conn) {
                    connection.send_queue.push_front(Output::ResendData(key));
                }
                return;
            }
            let end = DataSn(from).plus(count);
            let data = task.data_in.sent_from(DataSn(from), end);
            let r2t = task.data_out.first_r2t(from, count);
            let data_first = |sent: &super::data_in::Sent| {
                r2t.is_none_or(|r2t| {
                    DataSn(from).distance_to(sent.data_sn) < R2tSn(from).distance_to(r2t.r2t_sn)
                })
            };
            let done = if let Some(sent) = data.filter(data_first) {
                self.put_data_again(conn, key, sent, out);
                sent.data_sn.0
            } else if let Some(IssuedR2t { r2t_sn, ttt, start, len }) = r2t {
                let (lun, itt) = (task.lun, task.itt);
                //= rfc7143#section-11.16
                //# R2T(s)requested by SNACK MUST also carry the current value of the StatSN.
                let sn = self.counters(conn);
                let again = R2t {
                    lun,
                    itt,
                    ttt,
                    sn,
                    r2t_sn,
                    buffer_offset: start,
                    desired_data_transfer_length: len,
                };
                self.put_r2t_again(conn, again.encode(), out);
                r2t_sn.0
            } else {
                end.minus(1).0
            };
            let left = DataSn(done).next().distance_to(end);
            let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
            if left == 0 {
                task.resend_runs.remove(0);
            } else if let Some(run) = task.resend_runs.first_mut() {
                *run = (done.wrapping_add(1), left);
            }
        }
    }

    /// Sends the statuses that were asked for again, as far as they fit.
    pub(super) fn send_statuses_again(&mut self, conn: ConnId, out: &mut Transmit) {
        loop {
            let Some(connection) = self.conn_mut(conn) else { return self.impossible(None) };
            if out.is_full() && connection.status_log.has_resends() {
                return connection.send_queue.push_front(Output::ResendStatus);
            }
            let Some(from) = connection.status_log.take_resend() else { return };
            self.send_status_again(conn, from, out);
        }
    }

    fn send_status_again(&mut self, conn: ConnId, stat_sn: StatSn, out: &mut Transmit) {
        //= rfc7143#section-11.4.9
        //# In the case of responses sent due to a retransmission request, the StatSN MUST be the same as the
        //# first time the PDU was sent, unless the connection has since been restarted.
        let sn = TargetSn { stat_sn, ..self.counters(conn) };
        let Some(connection) = self.conn(conn) else { return self.impossible(None) };
        let most = connection.parameters.initiator_max_recv;
        match connection.status_log.get(stat_sn) {
            Some(LoggedStatus::Control(control)) => {
                let (control, body) = (control.0, control.1.again());
                //= rfc7143#section-11.16
                //# The numbered response(s) or R2T(s) requested by a SNACK MUST be delivered as exact
                //# replicas of the ones that the target transmitted originally, except for the fields
                //# ExpCmdSN, MaxCmdSN, and ExpDataSN, which MUST carry the current values.
                self.put_control(conn, control, &body, sn, out);
            }
            Some(LoggedStatus::Task(key)) => {
                let key = *key;
                let Some(task) = self.tasks.get(key) else { return };
                if task.snack_tag != 0 && task.data_in.has_queued() {
                    // The response follows the resegmented data.
                    return;
                }
                let rode =
                    task.sent_status.is_some_and(|answer| answer.phase_collapsed) && task.snack_tag == 0;
                match task.data_in.last_sent().filter(|last| rode && last.len <= most) {
                    Some(last) => self.put_data_again(conn, key, last, out),
                    // This also applies if the status was sent in a Data-In that was acknowledged since, or
                    // that is longer than the initiator's present MaxRecvDataSegmentLength: the initiator
                    // asks for resegmented data (§11.16.3).
                    None => self.put_response(conn, key, stat_sn, out),
                }
            }
            Some(LoggedStatus::Nothing) | None => {}
        }
    }
}
