//! The data and the responses of commands: Data-In, R2T and SCSI Response (RFC 7143 §4.2.5.2, §11.4, §11.7,
//! §11.8).
//!
//! No field that a target sends can move a byte outside the buffer of the command that it names: offset and
//! length of each Data-In are checked before a byte of it is read, those of each R2T before a byte is sent.

use core::ops::Range;

use base::time::Instant;
use transport::initiator::{CommandResponse, ServiceResponse, TaskResult};

use super::connection_slot::{Incoming, QueuedPdu, Timer};
use super::contract::Slot;
use super::protocol_error::ProtocolError;
use super::session::{Session, TAG_TASK, find};
use super::task::{DataOutSequence, Number, TaskState};
use crate::framing::{DataSink, ReceivedPdu};
use crate::pdu::data_in::DataIn;
use crate::pdu::r2t::R2t;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::{Bhs, Itt, PduHeader, Ttt};
use crate::serial::{DataSn, StatSn};
use crate::target::arena::Key;

impl Session {
    /// Finds the task of a PDU that a connection received. Returns `None` if the task has legitimately ended.
    pub(super) fn task_of(&self, slot: Slot, itt: Itt) -> Result<Option<Key>, ProtocolError> {
        let Some(key) = find(&self.tasks, TAG_TASK, itt) else {
            // PDUs of an aborted task may still arrive on another connection, and PDUs that were requested
            // twice arrive twice.
            let old =
                self.stale_tags.contains(&itt) || (self.level().may_receive_twice() && self.was_task(itt));
            return if old { Ok(None) } else { Err(ProtocolError::UnknownTask) };
        };
        match self.tasks.get(key).map(|task| task.state) {
            Some(TaskState::Sent(at)) if at == slot => Ok(Some(key)),
            //= rfc7143#section-4.2.5.1
            //# For any iSCSI request issued over a TCP connection, the corresponding response and/or
            //# other related PDU(s) MUST be sent over the same connection.
            Some(TaskState::Sent(_)) => Err(ProtocolError::OtherConnection),
            _ => Err(ProtocolError::UnknownTask),
        }
    }

    /// Returns whether a tag may once have named a task.
    fn was_task(&self, itt: Itt) -> bool {
        itt.0 >> 30 == TAG_TASK
            && usize::try_from(itt.0 & 0xffff).is_ok_and(|index| index < self.tasks.slots())
    }

    pub(super) fn data_in_sink(&mut self, slot: Slot, bhs: &Bhs) -> Result<DataSink, ProtocolError> {
        let pdu = DataIn::decode(bhs)?;
        let key = self.task_of(slot, pdu.itt)?;
        let (level, parameters) = (self.level(), self.parameters);
        let repairs = level.requests_missing_pdus();
        let on_gap = self.unless_requested_again(ProtocolError::DataSnOutOfOrder);
        let incoming = match key.and_then(|key| Some((key, self.tasks.get_mut(key)?))) {
            None => Incoming::Stray,
            Some((key, task)) => {
                if task.request.data_in_len == 0 {
                    return Err(ProtocolError::DataInNotExpected);
                }
                //= rfc7143#section-11.7.2
                //# The initiator MUST ignore the A bit set to 1 for sessions with ErrorRecoveryLevel=0.
                let asks_for_ack = pdu.acknowledge && level.retains_data();
                //= rfc7143#section-4.2.5.3
                //# the iSCSI initiator and target MUST verify that all other fields used in task-related PDUs
                //# have values that are consistent with the values used at the task instantiation
                // Without the A bit the LUN is reserved (§11.7.4), and targets fill it with whatever they
                // like: Linux with ones, others with zeros.
                if asks_for_ack && pdu.lun != task.request.lun {
                    return Err(ProtocolError::DataInOtherLun);
                }
                let in_order = parameters.data_pdu_in_order && parameters.data_sequence_in_order && !repairs;
                task.data_in.check(pdu.buffer_offset, bhs.data_len(), !repairs, in_order)?;
                match task.data_sns.judge(pdu.data_sn.0) {
                    _ if task.resegmentation.is_some() => Incoming::Data(key),
                    //= rfc7143#section-7.9
                    //# When an initiator receives duplicate R2TSNs (due to proactive retransmission of R2Ts
                    //# by the target) or duplicate DataSNs (due to proactive SNACKs by the initiator), it
                    //# MUST discard the duplicates.
                    Number::Seen => on_gap.map(|()| Incoming::Stray)?,
                    Number::Ahead | Number::Missing => on_gap.map(|()| Incoming::Data(key))?,
                    Number::Next => Incoming::Data(key),
                }
            }
        };
        let sink = match incoming {
            Incoming::Data(key) if bhs.data_len() > 0 => {
                self.tasks.get_mut(key).map_or(DataSink::Discard, |task| {
                    task.data_in.sink_for(&self.pool, pdu.buffer_offset, bhs.data_len())
                })
            }
            _ => DataSink::Discard,
        };
        if let Some(connection) = self.connection_mut(slot) {
            connection.incoming = incoming;
        }
        Ok(sink)
    }

    /// Returns the buffer to its task without the segment that was being read.
    pub(super) fn return_sink(&mut self, incoming: Incoming, sink: DataSink) {
        match incoming {
            Incoming::Data(key) if self.tasks.get(key).is_some() => {
                if let Some(task) = self.tasks.get_mut(key) {
                    task.data_in.restore(&self.pool, sink);
                }
            }
            _ => {
                if let DataSink::Append(buf) | DataSink::Overwrite { buf, .. } = sink {
                    self.pool.recycle_buf(buf);
                }
            }
        }
    }

    pub(super) fn handle_data_in(
        &mut self,
        now: Instant,
        slot: Slot,
        incoming: Incoming,
        segment: ReceivedPdu,
    ) -> Result<(), ProtocolError> {
        let ReceivedPdu { bhs, sink, digest_ok: intact } = segment;
        let pdu = DataIn::decode(&bhs)?;
        let key = match incoming {
            Incoming::Data(key) if self.tasks.get(key).is_some() => key,
            _ => {
                self.return_sink(incoming, sink);
                if !intact {
                    self.stats.data_digest_errors += 1;
                    return Ok(());
                }
                // The data arrived before, or no task waits for it; its status uses a StatSN in any case.
                let key = self.task_of(slot, pdu.itt)?;
                self.data_in_status(now, slot, key, &pdu)?;
                return key.map_or(Ok(()), |key| self.finish_if_complete(key));
            }
        };
        if self.tasks.get(key).is_some_and(|task| task.resegmentation.is_some()) {
            return self.handle_resegmented_data(now, slot, key, &pdu, (bhs.data_len(), sink, intact));
        }
        let sn = pdu.data_sn.0;
        let Some(task) = self.tasks.get_mut(key) else { return Err(ProtocolError::Bug) };
        let known = task.data_sns.next;
        if !intact {
            self.stats.data_digest_errors += 1;
            //= rfc7143#section-7.8
            //# When an initiator receives any iSCSI PDU with a payload digest error, it MUST discard the PDU.
            task.data_in.restore(&self.pool, sink);
            self.unless_requested_again(ProtocolError::DataDigestMismatch)?;
            let end = sn.checked_add(1).ok_or(ProtocolError::DataSnBeyondEnd)?;
            if let Some(task) = self.tasks.get_mut(key) {
                task.expect_numbers(end)?;
            }
            //= rfc7143#section-7.8
            //# If the discarded PDU is an iSCSI data PDU, the initiator MUST do one of the following:
            self.snack_data(now, slot, key, known.min(sn)..end);
            return Ok(());
        }
        let len = bhs.data_len();
        task.take_number(sn)?;
        //= rfc7143#section-11.7.7
        //# The sending of 0-length data segments should be avoided, but initiators and targets MUST be able
        //# to properly receive 0-length data segments.
        if len > 0 {
            task.data_in.commit(&self.pool, sink, pdu.buffer_offset, len);
        }
        self.stats.data_in_bytes += u64::from(len);
        self.record_progress(slot);
        self.data_in_status(now, slot, Some(key), &pdu)?;
        if pdu.acknowledge
            && self.level().retains_data()
            && let Some(task) = self.tasks.get_mut(key)
        {
            task.ack = Some((pdu.lun, pdu.ttt));
        }
        //= rfc7143#section-7.9
        //# The initiator MUST address these implied digest errors as described in Section 7.8.
        if sn > known {
            self.snack_data(now, slot, key, known..sn);
        }
        self.acknowledge_data(slot, key);
        self.finish_if_complete(key)
    }

    /// Records that data arrived on a connection.
    pub(super) fn record_progress(&mut self, slot: Slot) {
        if let Some(connection) = self.connection_mut(slot) {
            connection.progressed = true;
        }
    }

    /// Handles the status that a Data-In carries, if there is one.
    pub(super) fn data_in_status(
        &mut self,
        now: Instant,
        slot: Slot,
        key: Option<Key>,
        pdu: &DataIn,
    ) -> Result<(), ProtocolError> {
        let Some(status) = pdu.status else {
            self.note_window(pdu.sn);
            return Ok(());
        };
        if self.take_status(now, slot, pdu.sn)?
            && let Some(key) = key
            && !self.is_outdated(key, 0, pdu.sn.stat_sn)
            && let Some(task) = self.tasks.get_mut(key)
        {
            //= rfc7143#section-11.7
            //# Although targets MAY choose to send even non-exception status in separate responses,
            //# initiators MUST support non-exception status in Data-In PDUs.
            let ending = CommandResponse {
                status: status.status,
                residual: status.residual,
                ..CommandResponse::default()
            };
            task.status = Some(ending);
            task.stat_sn = pdu.sn.stat_sn;
        }
        Ok(())
    }

    /// Sends the data acknowledgement that the target waits for, once all earlier data has arrived (RFC 7143
    /// §11.7.2).
    fn acknowledge_data(&mut self, slot: Slot, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        //= rfc7143#section-11.7.2
        //# If the initiator has detected holes in the read data prior to that Data-In PDU, it MUST postpone
        //# issuing the SNACK of type DataACK until the holes are filled.
        //= rfc7143#section-11.16.2
        //# However, if the initiator has detected holes in the input sequence, it MUST postpone issuing the
        //# SNACK of type DataACK until the holes are filled.
        if !task.data_sns.missing.is_empty() {
            return;
        }
        //= rfc7143#section-11.7.2
        //# the initiator MUST issue a SNACK of type DataACK
        //= rfc7143#section-11.16.2
        //# If an initiator operates at ErrorRecoveryLevel 1 or higher, it MUST issue a SNACK of type DataACK
        //# after receiving a Data-In PDU with the A bit set to 1.
        let Some((lun, ttt)) = task.ack.take() else { return };
        task.acknowledge_data_in();
        let snack = Snack {
            //= rfc7143#section-11.16.4
            //# For a Status SNACK and DataACK, the Initiator Task Tag MUST be set to the reserved value
            //# 0xffffffff.
            //= rfc7143#section-11.16.5
            //# For DataACK, the Target Transfer Tag MUST contain a copy of the Target Transfer Tag and LUN
            //# provided with the SCSI Data-In PDU with the A bit set to 1.
            kind: SnackKind::DATA_ACK,
            lun,
            itt: Itt::NONE,
            tag: ttt.0,
            exp_stat_sn: StatSn(0),
            beg_run: task.data_sns.next,
            run_length: 0,
        };
        self.stats.data_acks += 1;
        self.queue_control(slot, super::connection_slot::ControlPdu::Snack(snack), alloc::vec::Vec::new());
    }

    pub(super) fn r2t(&mut self, now: Instant, slot: Slot, pdu: &R2t) -> Result<(), ProtocolError> {
        self.note_window(pdu.sn);
        self.status_is_due(now, slot, pdu.sn.stat_sn);
        let (repairs, parameters) = (self.level().requests_missing_pdus(), self.parameters);
        let on_gap = self.unless_requested_again(ProtocolError::R2tSnOutOfOrder);
        let Some(key) = self.task_of(slot, pdu.itt)? else { return Ok(()) };
        let Some(task) = self.tasks.get_mut(key) else { return Err(ProtocolError::Bug) };
        if task.data_out_len == 0 {
            return Err(ProtocolError::R2tNotExpected);
        }
        //= rfc7143#section-4.2.5.3
        //# (e.g., the LUN used in an R2T PDU MUST be the same as the one used in the SCSI Command PDU used to
        //# instantiate the task)
        if pdu.lun != task.request.lun {
            return Err(ProtocolError::R2tOtherLun);
        }
        if pdu.ttt == Ttt::NONE {
            return Err(ProtocolError::R2tReservedTag);
        }
        let (offset, len) = (pdu.buffer_offset, pdu.desired_data_transfer_length);
        //= rfc7143#section-11.8
        // No data exists beyond the command's data, whatever the sum wraps around to.
        let end = offset
            .checked_add(len)
            .filter(|end| *end <= task.data_out_len)
            .ok_or(ProtocolError::R2tBeyondData)?;
        if len > parameters.max_burst_length {
            return Err(ProtocolError::R2tBeyondBurst);
        }
        let number = task.data_sns.judge(pdu.r2t_sn.0);
        if number != Number::Next {
            on_gap?;
        }
        //= rfc7143#section-7.9
        //# When an initiator receives duplicate R2TSNs (due to proactive retransmission of R2Ts by the
        //# target) or duplicate DataSNs (due to proactive SNACKs by the initiator), it MUST discard the
        //# duplicates.
        if number == Number::Seen {
            return Ok(());
        }
        if !repairs && parameters.data_sequence_in_order && offset != task.data_out.requested_end {
            return Err(ProtocolError::R2tOffset);
        }
        if repairs {
            // The target considers data lost that it requests again: an answer to the earlier R2T would be
            // useless.
            let replaced = |burst: &DataOutSequence| {
                burst.data_sn == DataSn(0) && offset <= burst.at && burst.end <= end
            };
            task.data_out.bursts.retain(|burst| !replaced(burst));
        }
        // Recovery R2Ts come in addition, and a target that receives no data may request the same data
        // several times.
        let most = usize::from(parameters.max_outstanding_r2t) + if repairs { MAX_RECOVERY_R2TS } else { 0 };
        if task.data_out.bursts.len() >= most {
            return Err(ProtocolError::TooManyR2ts);
        }
        let known = task.data_sns.next;
        task.take_number(pdu.r2t_sn.0)?;
        task.data_sns.r2ts = task.data_sns.r2ts.saturating_add(1);
        task.data_out.requested_end = task.data_out.requested_end.max(end);
        task.data_out.bursts.push(DataOutSequence {
            r2t_sn: pdu.r2t_sn.0,
            ttt: pdu.ttt,
            lun: pdu.lun,
            at: offset,
            end,
            data_sn: DataSn(0),
        });
        //= rfc7143#section-4.2.5.2
        //# An initiator MUST honor an R2T data request for a valid outstanding command (i.e.,
        //# carrying a valid Initiator Task Tag) and deliver all the requested data, provided the
        //# command is supposed to deliver outgoing data and the R2T specifies data within the
        //# command bounds.
        //= rfc7143#section-11.8
        //# Within a task, outstanding R2Ts MUST be fulfilled by the initiator in the order in which they were
        //# received.
        self.queue(slot, QueuedPdu::SolicitedData(key, pdu.r2t_sn.0));
        if number == Number::Ahead {
            self.snack_data(now, slot, key, known..pdu.r2t_sn.0);
        }
        Ok(())
    }

    pub(super) fn response(
        &mut self,
        now: Instant,
        slot: Slot,
        pdu: &ScsiResponse,
        data: &[u8],
    ) -> Result<(), ProtocolError> {
        // A response with a SNACK tag has the StatSN of the response before it.
        if !self.take_status(now, slot, pdu.sn)? && !self.is_awaited(slot, pdu) {
            return Ok(());
        }
        let Some(key) = self.task_of(slot, pdu.itt)? else { return Ok(()) };
        if self.is_outdated(key, pdu.snack_tag, pdu.sn.stat_sn) {
            return Ok(());
        }
        let sense = sense_of(data)?;
        if pdu.response != ServiceResponse::COMPLETED {
            self.finish(key, TaskResult::Failed(pdu.response));
            return Ok(());
        }
        let repairs = self.level().requests_missing_pdus();
        let Some(task) = self.tasks.get_mut(key) else { return Err(ProtocolError::Bug) };
        task.status = Some(CommandResponse {
            status: pdu.status,
            qualifier: pdu.status_qualifier,
            residual: pdu.residual,
            read_residual: pdu.bidirectional_read_residual,
            sense,
        });
        task.stat_sn = pdu.sn.stat_sn;
        if task.resegmentation.is_some() {
            return self.finish_resegmentation(now, slot, key);
        }
        if repairs {
            // Only the R2Ts of a command that only writes can be missing for good: its data was written, or
            // the status would report that.
            if task.request.data_in_len == 0 {
                task.data_sns.missing.clear();
            } else {
                // ExpDataSN counts the Data-In PDUs (§11.4.8), and the R2Ts of a bidirectional command share
                // their numbers. In RFC 3720 it counted both: once all bytes have arrived, no PDU of that sum
                // is missing.
                let shares = task.data_out_len > 0;
                let is_whole = task.status.as_ref().is_some_and(|ending| task.check_end(ending).is_ok());
                let r2ts = if shares { task.data_sns.r2ts } else { 0 };
                let end = pdu.exp_data_sn.0.saturating_add(r2ts);
                let known = task.data_sns.next;
                if !(shares && is_whole) {
                    task.expect_numbers(end)?;
                }
                self.snack_data(now, slot, key, known..end);
            }
        }
        self.finish_if_complete(key)
    }

    /// Requests the missing Data-In and R2T PDUs of a task, of the numbers in `among` (RFC 7143 §11.16.3).
    pub(super) fn snack_data(&mut self, now: Instant, slot: Slot, key: Key, among: Range<u32>) {
        let Some(task) = self.tasks.get(key) else { return };
        let itt = super::session::tag(TAG_TASK, key);
        let shares_numbers = task.request.data_in_len > 0 && task.data_out_len > 0;
        let runs: smallvec::SmallVec<[(u32, u32); 1]> = task.data_sns.missing.clone();
        let is_cut_otherwise = self.is_segment_len_changed(slot, key);
        if is_cut_otherwise
            && shares_numbers
            && !runs.is_empty()
            && let Some(connection) = self.connection_mut(slot)
        {
            // The R2Ts of a bidirectional command keep their numbers, so its data cannot be numbered again.
            // The data is requested on another connection, from the first missing number on.
            connection.repairs = u32::MAX;
            return self.arm_retransmit(now, slot);
        }
        for (from, to) in runs {
            let (from, to) = (from.max(among.start), to.min(among.end));
            if from >= to {
                continue;
            }
            if is_cut_otherwise {
                return self.send_r_data_snack(now, slot, key);
            }
            let snack = Snack {
                //= rfc7143#section-11.16.4
                //# In all other cases, the Initiator Task Tag field MUST be set to the Initiator Task Tag of
                //# the referenced command.
                //= rfc7143#section-11.16.5
                //# In all other cases, the Target Transfer Tag field MUST be set to the reserved value
                //# 0xffffffff.
                kind: SnackKind::DATA_OR_R2T,
                lun: 0,
                itt,
                tag: Ttt::NONE.0,
                exp_stat_sn: StatSn(0),
                beg_run: from,
                run_length: to.wrapping_sub(from),
            };
            self.stats.data_snacks += 1;
            self.queue_control(
                slot,
                super::connection_slot::ControlPdu::Snack(snack),
                alloc::vec::Vec::new(),
            );
        }
        self.arm_retransmit(now, slot);
    }

    /// Requests the missing statuses (RFC 7143 §11.16.3).
    pub(super) fn snack_statuses(&mut self, now: Instant, slot: Slot, next: Option<StatSn>) {
        let Some(connection) = self.connection_mut(slot) else { return };
        let Some((from, count)) = connection.missing_statuses(next) else { return };
        let end = from.plus(count);
        if !end.after(connection.statuses_asked) {
            return;
        }
        connection.statuses_asked = end;
        let snack = Snack {
            //= rfc7143#section-11.16.4
            //# For a Status SNACK and DataACK, the Initiator Task Tag MUST be set to the reserved value
            //# 0xffffffff.
            kind: SnackKind::STATUS,
            lun: 0,
            itt: Itt::NONE,
            tag: Ttt::NONE.0,
            exp_stat_sn: StatSn(0),
            beg_run: from.0,
            run_length: count,
        };
        self.stats.status_snacks += 1;
        self.queue_control(slot, super::connection_slot::ControlPdu::Snack(snack), alloc::vec::Vec::new());
        self.arm_retransmit(now, slot);
    }

    /// Returns whether a PDU that a SNACK requests is still missing: several SNACKs can be unanswered for the
    /// same PDU.
    pub(super) fn is_missing(&self, slot: Slot, snack: &Snack) -> bool {
        match snack.kind {
            SnackKind::STATUS => self
                .connection(slot)
                .is_some_and(|connection| !StatSn(snack.beg_run).before(connection.exp_stat_sn)),
            SnackKind::DATA_OR_R2T | SnackKind::R_DATA => find(&self.tasks, TAG_TASK, snack.itt)
                .and_then(|key| self.tasks.get(key))
                .is_some_and(|task| {
                    let proactive = snack.run_length == 0 && task.state == TaskState::Sent(slot);
                    proactive || task.data_sns.judge(snack.beg_run) == Number::Missing
                }),
            _ => true,
        }
    }

    /// Arms the check for lost PDUs after a request was sent, if lost PDUs are requested again.
    pub(super) fn watch_request(&mut self, now: Instant, slot: Slot) {
        if self.level().requests_missing_pdus() {
            self.arm_retransmit(now, slot);
        }
    }

    /// Arms the check for missing PDUs.
    pub(super) fn arm_retransmit(&mut self, now: Instant, slot: Slot) {
        let at = now.after(self.plan.limits.repair_after);
        if let Some(connection_slot) = self.connection_slot_mut(slot)
            && !connection_slot.deadlines.is_set(Timer::Retransmit)
        {
            connection_slot.deadlines.set(Timer::Retransmit, at);
        }
    }
}

/// Parses the data segment of a SCSI Response: a length and that many bytes of sense data, then optionally
/// response data, which no standard uses (RFC 7143 §11.4.7).
pub(super) fn sense_of(data: &[u8]) -> Result<Option<alloc::boxed::Box<[u8]>>, ProtocolError> {
    let Some((len, rest)) = data.split_first_chunk::<2>() else {
        return if data.is_empty() { Ok(None) } else { Err(ProtocolError::BadSense) };
    };
    let len = usize::from(u16::from_be_bytes(*len));
    let sense = rest.get(..len).ok_or(ProtocolError::BadSense)?;
    // SPC-5 §4.4: 252 bytes at most; no standard defines the bytes beyond.
    let sense = sense.get(..MAX_SENSE).unwrap_or(sense);
    Ok((!sense.is_empty()).then(|| sense.into()))
}

const MAX_SENSE: usize = 252;

/// The most R2Ts of a task, beyond MaxOutstandingR2T, that may wait for their data. One SNACK can bring back
/// hundreds that were lost and that recovery R2Ts have replaced meanwhile. 512 take 16 KiB.
const MAX_RECOVERY_R2TS: usize = 512;
