//! Data from the initiator: unsolicited, or in answer to R2Ts (RFC 7143 §4.2.5.2, §11.7, §11.8).
//!
//! Unsolicited data that is complete when its command is delivered goes up with the command. The layer above
//! fetches all other ranges. A range is assembled from unsolicited data and from R2Ts for the rest.
//! Every sequence that the initiator owes is a [`Sequence`]: it knows which bytes may arrive and in what
//! order, and owns the buffer that they are received into, so that a payload is copied at most once and a
//! large one not at all.

use base::buffer::Buf;
use base::int_cast::to_usize;
use base::memory_quota::WAITERS_PER_TURN;
use base::state_machine::ConnId;
use transport::target::TaskRef;

use super::arena::Key;
use super::contract::Event;
use super::data_out_sequence::{IssuedR2t, PduDisposition, SequenceEnd};
use super::data_out_transfer::{Completion, FetchStep, Freed, R2tLimits, R2tStep};
use super::engine::Engine;
use super::incoming::DataOutCheck;
use super::output::Output;
use super::protocol_error::ProtocolError;
use super::recovery_r2t::is_gap_repaired;
use super::task::TaskResult;
use crate::framing::{DataSink, ReceivedPdu};
use crate::pdu::data_out::DataOut;
use crate::pdu::r2t::R2t;
use crate::pdu::{Bhs, PduHeader, TargetSn, Ttt};
use crate::recovery::{TargetAction, TransportSense};

/// The longest range that one R2T asks for, whatever MaxBurstLength allows: the largest buffer that is
/// pooled.
const MAX_R2T: u32 = 1 << 20;

impl Engine {
    /// Queues the R2Ts that a task may send now, and delivers the fetches that are complete. Returns whether
    /// the task waits for memory.
    pub(super) fn advance_fetches(&mut self, key: Key) -> bool {
        let mut at = 0;
        loop {
            let Some(task) = self.tasks.get_mut(key) else { return false };
            let (session, is_detached) = (task.session, task.is_detached());
            let Some(step) = task.data_out.next_step(at) else { return false };
            match step {
                FetchStep::Deliver => self.deliver_data_out(key, at),
                FetchStep::Reserve(need) => {
                    if need > 0 && is_detached {
                        // No R2T can be sent before the task has a connection again.
                        return false;
                    }
                    if !self.reserve_for_fetch(session, key, need) {
                        return true;
                    }
                    if let Some(task) = self.tasks.get_mut(key) {
                        task.data_out.record_reservation(at, need);
                    }
                }
                FetchStep::Request if !self.queue_r2ts(session, key, at) => return false,
                FetchStep::Request | FetchStep::AwaitData => at += 1,
                FetchStep::AwaitRevoked => return false,
            }
        }
    }

    /// Reserves memory for a fetch, or enqueues its task and session for it.
    fn reserve_for_fetch(&mut self, session: Key, key: Key, need: usize) -> bool {
        if need == 0 {
            return true;
        }
        let Some(state) = self.sessions.get_mut(session) else {
            self.impossible(Some(session));
            return false;
        };
        // Within a session, memory is given in the order of the requests.
        let is_first = state.quota_waiters.front().is_none_or(|first| *first == key);
        // A session with a fetch whose memory was revoked gets no memory before that fetch's data is received
        // or the fetch ends.
        let may = state.revoked == 0;
        let passes = may && is_first && state.deprioritized_until.is_none_or(|until| until <= self.now);
        if passes && self.quotas.solicited.try_reserve(self.now, &mut state.shares.solicited, need) {
            return true;
        }
        if self.tasks.get_mut(key).is_some_and(|task| !task.data_out.wait_for_quota()) {
            self.stats.withheld += 1;
            state.quota_waiters.push_back(key);
        }
        if may {
            self.quotas.solicited.enqueue_waiter(self.now, session, &mut state.shares.solicited);
        }
        false
    }

    /// Queues R2Ts for one fetch. Returns whether the whole range is asked for.
    fn queue_r2ts(&mut self, session: Key, key: Key, at: usize) -> bool {
        let Some(state) = self.sessions.get(session) else {
            self.impossible(Some(session));
            return false;
        };
        let repairs = state.parameters.error_recovery_level.requests_missing_pdus();
        let one_at_a_time = repairs && state.parameters.data_sequence_in_order;
        //= rfc7143#section-13.19
        //# if ErrorRecoveryLevel is not 0 and DataSequenceInOrder is set to Yes,
        //# then MaxOutstandingR2T MUST be set to 1.
        let open_max = if one_at_a_time { 1 } else { usize::from(state.parameters.max_outstanding_r2t) };
        let len_max = state.parameters.max_burst_length.clamp(1, MAX_R2T);
        if state.holds_r2ts {
            return false;
        }
        let limits = R2tLimits { open_max, len_max, one_at_a_time };
        loop {
            //= rfc7143#section-11.8.5
            //# There is no protocol rule about the Target Transfer Tag except that the value 0xffffffff is
            //# reserved and MUST NOT be sent by a target in an R2T.
            let ttt = self.new_ttt();
            let Some(task) = self.tasks.get_mut(key) else {
                self.impossible(Some(session));
                return false;
            };
            match task.data_out.add_r2t(at, ttt, &limits) {
                R2tStep::AllRequested => return true,
                R2tStep::MustWait => return false,
                R2tStep::Added => {
                    //= rfc7143#section-4.2.5.1
                    //# The target MUST return Ready To Transfer (R2T), if any, and the status over the same
                    //# TCP connection that was used to deliver the SCSI command.
                    // The reassignment of a detached task queues its R2Ts.
                    if let Some(conn) = task.allegiance.connection() {
                        self.queue(conn, Output::R2t(key, ttt));
                    }
                }
            }
        }
    }

    fn deliver_data_out(&mut self, key: Key, at: usize) {
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        let (offset, data, freed) = task.data_out.take_fetch(at);
        let session = task.session;
        self.release_data_out(session, freed);
        self.events.push_back(Event::DataOut { task: TaskRef(key), offset, data });
    }

    /// Serves the sessions that wait for memory, as far as some is free now.
    pub(super) fn serve_quota_waiters(&mut self) {
        for _ in 0..WAITERS_PER_TURN {
            let Some(session) = self.quotas.solicited.next_waiter(self.now) else { break };
            self.serve(session);
        }
        for _ in 0..WAITERS_PER_TURN {
            let Some(session) = self.quotas.data_in.next_waiter(self.now) else { break };
            if let Some(state) = self.sessions.get_mut(session) {
                state.shares.data_in.mark_dequeued();
                self.drain_ready(session);
            }
        }
    }

    /// Continues with the tasks of a session that wait for memory, until one finds none.
    fn serve(&mut self, session: Key) {
        if let Some(state) = self.sessions.get_mut(session) {
            state.shares.solicited.mark_dequeued();
        }
        while let Some(key) =
            self.sessions.get(session).and_then(|state| state.quota_waiters.front().copied())
        {
            if self.advance_fetches(key) {
                return;
            }
            if let Some(task) = self.tasks.get_mut(key) {
                task.data_out.end_quota_wait();
            }
            if let Some(state) = self.sessions.get_mut(session) {
                state.quota_waiters.pop_front();
            }
        }
    }

    /// Builds the R2T of a sequence, if the sequence still exists.
    pub(super) fn r2t(&mut self, key: Key, ttt: Ttt, sn: TargetSn) -> Option<Bhs> {
        let conn = self.tasks.get(key).and_then(|task| task.allegiance.connection());
        let brought = conn.map_or(0, |conn| self.data_out_received(conn));
        let now = self.now;
        let task = self.tasks.get_mut(key)?;
        if !task.data_out.sequences_mut().any(|sequence| sequence.ttt() == ttt) {
            return None;
        }
        //= rfc7143#section-4.2.2.4
        //# Data and R2T PDUs transferred as part of some command execution MUST be sequenced.
        let (lun, itt, r2t_sn) = (task.lun, task.itt, task.use_r2t_sn());
        let sequence = task.data_out.sequences_mut().find(|sequence| sequence.ttt() == ttt)?;
        let IssuedR2t { start, len, .. } = sequence.record_r2t(r2t_sn, now, brought);
        let r2t = R2t { lun, itt, ttt, sn, r2t_sn, buffer_offset: start, desired_data_transfer_length: len };
        Some(r2t.encode())
    }

    /// Checks a Data-Out whose header is complete, and returns the sink for its data.
    pub(super) fn check_data_out(
        &mut self,
        conn: ConnId,
        session: Key,
        bhs: &Bhs,
        pdu: &DataOut,
    ) -> (DataOutCheck, DataSink) {
        let Some(state) = self.sessions.get(session) else { return (DataOutCheck::Stale, DataSink::Discard) };
        let Some(key) = state.find_open(&self.tasks, pdu.itt) else {
            return (DataOutCheck::Stale, DataSink::Discard);
        };
        let in_order = state.parameters.data_pdu_in_order;
        let level = state.parameters.error_recovery_level;
        let refused = |why| (DataOutCheck::Refused(key, why), DataSink::Discard);
        let Some(task) = self.tasks.get_mut(key) else { return refused(ProtocolError::impossible()) };
        if !task.is_on(conn) {
            //= rfc7143#section-4.2.5.1
            //# the initiator MUST send the data, if any, for that command over the same TCP
            //# connection that was used to deliver the SCSI command.
            return refused(ProtocolError::DataOutOtherConnection);
        }
        if bhs.ahs_len() > 0 {
            return refused(ProtocolError::AhsNotAllowed);
        }
        if level.may_receive_twice() && task.data_out.is_over(pdu.ttt) {
            // The Data-Out answers an R2T that was replaced, or is a duplicate.
            return (DataOutCheck::Stale, DataSink::Discard);
        }
        let (lun, has_ended) = (task.lun, task.result.is_some());
        let Some(sequence) = task.data_out.select(pdu.ttt) else {
            if has_ended {
                // The Data-Out may belong to a sequence that was dropped.
                return (DataOutCheck::Stale, DataSink::Discard);
            }
            return refused(if pdu.ttt == Ttt::NONE {
                ProtocolError::UnsolicitedNotExpected
            } else {
                ProtocolError::DataOutUnknownTag
            });
        };
        let len = bhs.data_len();
        if has_ended {
            return (DataOutCheck::Accepted(key), DataSink::Discard);
        }
        if sequence.ttt() != Ttt::NONE && pdu.lun != lun {
            return refused(ProtocolError::DataOutOtherLun);
        }
        match sequence.check(pdu.data_sn, pdu.buffer_offset, len, (in_order, is_gap_repaired(level))) {
            Ok(PduDisposition::Accept) => {}
            Ok(PduDisposition::Skip) => return (DataOutCheck::Skipped(key), DataSink::Discard),
            Err(why) => return refused(why),
        }
        let (whole, unsolicited) = (to_usize(sequence.len()), sequence.is_unsolicited());
        //= rfc7143#section-11.7.7
        //# The sending of 0-length data segments should be avoided, but initiators and targets MUST be able
        //# to properly receive 0-length data segments.
        let is_first = sequence.needs_buffer(len);
        if is_first && !self.reserve_for_sequence(session, key, pdu.ttt, (whole, unsolicited)) {
            return (DataOutCheck::Accepted(key), DataSink::Discard);
        }
        let sequence = self.tasks.get_mut(key).and_then(|task| task.data_out.select(pdu.ttt));
        let Some(sequence) = sequence else { return refused(ProtocolError::impossible()) };
        if is_first {
            sequence.set_buffer(self.pool.take(whole));
        }
        (DataOutCheck::Accepted(key), sequence.start_reading(pdu.buffer_offset, in_order))
    }

    /// Reserves memory for a sequence when its first data is received. The memory of solicited data was
    /// reserved before the R2T was sent, and may have been revoked since.
    fn reserve_for_sequence(
        &mut self,
        session: Key,
        key: Key,
        ttt: Ttt,
        (len, unsolicited): (usize, bool),
    ) -> bool {
        if !unsolicited {
            return self.reserve_revoked_again(key, ttt);
        }
        let room = self.sessions.get_mut(session).map(|state| &mut state.shares.unsolicited);
        let found = room.is_some_and(|share| self.quotas.unsolicited.try_reserve(self.now, share, len));
        if let Some(task) = self.tasks.get_mut(key).filter(|_| found) {
            task.data_out.record_unsolicited_reservation(len);
        }
        found
    }

    /// Handles a completely received Data-Out.
    pub(super) fn handle_data_out(
        &mut self,
        conn: ConnId,
        session: Key,
        (pdu, check): (&DataOut, DataOutCheck),
        segment: ReceivedPdu,
    ) -> Result<(), ProtocolError> {
        let bhs = segment.bhs;
        if let Some(connection) = self.conn_mut(conn) {
            connection.data_out_bytes += u64::from(bhs.data_len());
        }
        let buf = match segment.sink {
            DataSink::Append(buf) | DataSink::Overwrite { buf, .. } => Some(buf),
            DataSink::Discard | DataSink::TakenByDriver { .. } => None,
        };
        self.stats.data_out_bytes += u64::from(bhs.data_len());
        if let Some(state) = self.sessions.get_mut(session) {
            state.traffic.data_out_bytes += u64::from(bhs.data_len());
            if state.is_discovery() {
                return self.handle_violation(conn, &bhs, ProtocolError::NotInDiscovery);
            }
        }
        let (key, verdict) = match check {
            DataOutCheck::Accepted(key) | DataOutCheck::Skipped(key) if !segment.digest_ok => {
                return self.handle_damaged_data_out((conn, session), key, (&bhs, pdu), buf);
            }
            DataOutCheck::Accepted(key) => (key, Ok(true)),
            DataOutCheck::Skipped(key) => (key, Ok(false)),
            DataOutCheck::Refused(_, why @ ProtocolError::DataOutOtherConnection) => {
                // The sequence belongs to another connection, and this Data-Out does not end it.
                return self.handle_violation(
                    conn,
                    &bhs,
                    if segment.digest_ok { why } else { ProtocolError::DataDigestMismatch },
                );
            }
            DataOutCheck::Refused(key, why) => {
                (key, Err(if segment.digest_ok { why } else { ProtocolError::RefusedDataOutDigestMismatch }))
            }
            DataOutCheck::Stale => {
                self.stats.ignored += 1;
                return if segment.digest_ok {
                    Ok(())
                } else {
                    self.handle_violation(conn, &bhs, ProtocolError::DataDigestMismatch)
                };
            }
        };
        match verdict {
            Ok(of_use) => self.take_data(key, (pdu, bhs.data_len()), buf, of_use),
            Err(why) => self.handle_task_violation(conn, &bhs, key, why)?,
        }
        self.end_sequence(conn, key, (&bhs, pdu))
    }

    /// Handles a Data-Out of a sequence with a wrong data digest.
    fn handle_damaged_data_out(
        &mut self,
        (conn, session): (ConnId, Key),
        key: Key,
        (bhs, pdu): (&Bhs, &DataOut),
        buf: Option<Buf>,
    ) -> Result<(), ProtocolError> {
        let why = ProtocolError::DataOutDigestMismatch;
        let again = matches!(self.response_to(conn, why).action, TargetAction::RequestAgain(_));
        let sequence = self.tasks.get_mut(key).and_then(|task| task.data_out.select(pdu.ttt));
        let wanted = sequence.filter(|_| again).zip(self.sessions.get(session));
        match (wanted, buf) {
            (Some((sequence, state)), Some(buf)) => {
                sequence.put_back_damaged(buf, state.parameters.data_pdu_in_order);
            }
            (_, buf) => self.recycle_buf(buf),
        }
        //= rfc7143#section-7.8
        //# If the discarded PDU is a solicited or unsolicited iSCSI data PDU (for immediate data in a command
        //# PDU, the non-data PDU rule below applies), the target MUST do one of the following:
        self.handle_task_violation(conn, bhs, key, why)?;
        self.end_sequence(conn, key, (bhs, pdu))
    }

    /// Stores the data of an accepted Data-Out, unless `of_use` is false.
    fn take_data(&mut self, key: Key, (pdu, len): (&DataOut, u32), buf: Option<Buf>, of_use: bool) {
        let Some(task) = self.tasks.get_mut(key).filter(|task| task.result.is_none()) else {
            return self.recycle_buf(buf);
        };
        let Some(state) = self.sessions.get(task.session) else {
            self.recycle_buf(buf);
            return self.impossible(None);
        };
        let in_order = state.parameters.data_pdu_in_order;
        let starved = of_use && buf.is_none() && len > 0;
        match task.data_out.select(pdu.ttt) {
            Some(sequence) => {
                if of_use {
                    sequence.record_data(pdu.data_sn, pdu.buffer_offset, len, in_order);
                } else {
                    sequence.record_skipped(pdu.data_sn);
                }
                if let Some(buf) = buf {
                    sequence.put_back(buf);
                }
            }
            // A recovery R2T replaced the sequence while the data was being read.
            None => self.recycle_buf(buf),
        }
        self.record_progress(key, pdu.ttt);
        if starved {
            // There was no memory for the data. For unsolicited data the status is BUSY, and the initiator
            // tries again. Solicited data may be only a part of the command's data, and earlier parts may
            // already be written, so the task fails.
            self.stats.busy += 1;
            let busy = pdu.ttt == Ttt::NONE;
            let late = || TaskResult::condition(TransportSense::InitiatorResponseTimeout);
            let ending = if busy { TaskResult::busy() } else { late() };
            self.terminate_task(key, ending);
        }
    }

    /// Ends a sequence if this PDU is its last.
    fn end_sequence(
        &mut self,
        conn: ConnId,
        key: Key,
        (bhs, pdu): (&Bhs, &DataOut),
    ) -> Result<(), ProtocolError> {
        let Some(task) = self.tasks.get_mut(key).filter(|_| pdu.is_final) else { return Ok(()) };
        let (whole, has_ended) = (task.data_out_len, task.result.is_some());
        let Some(state) = self.sessions.get(task.session) else { return Err(ProtocolError::impossible()) };
        let in_order = state.parameters.data_pdu_in_order;
        let Some(sequence) = task.data_out.select(pdu.ttt) else { return Ok(()) };
        let unsolicited = sequence.is_unsolicited();
        match sequence.check_end(whole, in_order) {
            _ if has_ended => {}
            Ok(SequenceEnd::Complete) => {}
            Ok(SequenceEnd::Recover) => {
                self.request_recovery_r2t(key, pdu.ttt);
                return Ok(());
            }
            Err(why) => self.handle_task_violation(conn, bhs, key, why)?,
        }
        if unsolicited {
            self.complete_unsolicited(key);
        } else {
            self.complete_solicited(key, pdu.ttt);
        }
        Ok(())
    }

    /// Completes the unsolicited data.
    pub(super) fn complete_unsolicited(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        let (session, is_wanted) = (task.session, task.result.is_none());
        let completion = task.data_out.complete_unsolicited(is_wanted, &self.pool);
        self.handle_completion(session, key, completion);
    }

    /// Completes the answer to an R2T.
    pub(super) fn complete_solicited(&mut self, key: Key, ttt: Ttt) {
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        let (session, is_wanted) = (task.session, task.result.is_none());
        let completion = task.data_out.complete_solicited(ttt, is_wanted);
        self.handle_completion(session, key, completion);
        if self.sessions.get(session).is_some_and(|session| session.holds_r2ts) {
            self.drain_ready(session);
        }
    }

    fn handle_completion(&mut self, session: Key, key: Key, completion: Completion) {
        match completion {
            Completion::Stored(freed) => {
                self.release_data_out(session, freed);
                self.advance_fetches(key);
            }
            Completion::Discarded(buf) => {
                self.recycle_buf(buf);
                self.queue_response(key);
            }
            Completion::Impossible => self.impossible(Some(session)),
        }
    }

    /// Stops fetching for a task that ended. Only the sequences that the initiator still has to end are kept.
    pub(super) fn stop_data_out(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        let session = task.session;
        if let Some(freed) = task.data_out.stop(&self.pool) {
            self.release_data_out(session, freed);
        }
    }

    /// Releases memory for Data-Out.
    pub(super) fn release_data_out(&mut self, session: Key, freed: Freed) {
        if freed == Freed::default() {
            return;
        }
        self.restore_turn(session, freed.revoked);
        let state = self.sessions.get_mut(session).map(|state| {
            state.overdraft = state.overdraft.saturating_sub(freed.overdraft);
            &mut state.shares.solicited
        });
        self.quotas.solicited.release(state, freed.solicited);
        self.release_unsolicited(Some(session), freed.unsolicited);
    }

    /// Releases memory for unsolicited data; `session` may have ended.
    pub(super) fn release_unsolicited(&mut self, session: Option<Key>, len: usize) {
        let state = session.and_then(|key| self.sessions.get_mut(key));
        self.quotas.unsolicited.release(state.map(|state| &mut state.shares.unsolicited), len);
    }

    pub(super) fn recycle_buf(&self, buf: Option<Buf>) {
        if let Some(buf) = buf {
            self.pool.recycle_buf(buf);
        }
    }
}
