//! Resegmentation of data by R-Data SNACK (RFC 7143 §11.16.1, §11.16.3), at ErrorRecoveryLevel 1 and up.
//!
//! A SNACK for data gets exact replicas of the lost PDUs, and those may be longer than the limit that the
//! initiator has declared since. So once MaxRecvDataSegmentLength has changed under a command whose data has
//! gaps, the initiator requests all unacknowledged data of the command again, cut to the new length and with
//! new numbers.
//!
//! PDUs of the old cut may still arrive, and both cuts use the same numbers. From then on the numbers are
//! meaningless: data is stored at its offset, and it is complete when all bytes have arrived. The status
//! counts only in a SCSI Response with the tag of the last R-Data SNACK; before that, no status of the
//! command is acknowledged.

use base::time::Instant;

use super::connection_slot::ControlPdu;
use super::contract::Slot;
use super::protocol_error::ProtocolError;
use super::session::{Session, TAG_TASK, find, tag};
use super::task::{Resegmentation, TaskState};
use crate::framing::DataSink;
use crate::pdu::data_in::DataIn;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::snack::{Snack, SnackKind};
use crate::serial::StatSn;
use crate::target::arena::Key;

impl Session {
    /// Returns whether the data of a task was cut to another length than the initiator receives now.
    pub(super) fn is_segment_len_changed(&self, slot: Slot, key: Key) -> bool {
        let received = self.connection(slot).map(|connection| connection.parameters.initiator_max_recv);
        let cut =
            self.tasks.get(key).filter(|task| task.request.data_in_len > 0).map(|task| task.segment_max);
        cut.is_some_and(|cut| received.is_some_and(|received| received != cut))
    }

    /// Requests all unacknowledged data of a task, resegmented.
    pub(super) fn send_r_data_snack(&mut self, now: Instant, slot: Slot, key: Key) {
        //= rfc7143#section-11.16.3
        //# If the initiator MaxRecvDataSegmentLength changed between the
        //# original transmission and the time the initiator requests
        //# retransmission, the initiator MUST issue a R-Data SNACK
        let fresh = self.next_tag().0;
        let received = self.connection(slot).map(|connection| connection.parameters.initiator_max_recv);
        if self.tasks.get(key).is_some_and(|task| task.status.is_some()) {
            self.withhold_status_ack(key);
        }
        let Some(task) = self.tasks.get_mut(key) else { return };
        let tries = task.resegmentation.map_or(0, |anew| anew.tries).saturating_add(1);
        task.resegmentation = Some(Resegmentation { tag: fresh, heard: now, tries });
        task.segment_max = received.unwrap_or(task.segment_max);
        // A status that was received before no longer counts.
        (task.status, task.ack) = (None, None);
        task.data_sns.missing.clear();
        let snack = Snack {
            //= rfc7143#section-11.16.5
            //# For a R-Data SNACK, this field MUST contain a value that is different from 0 or 0xffffffff and
            //# is unique for the task (identified by the Initiator Task Tag).
            //= rfc7143#section-11.16.6
            //# BegRun MUST be 0 for a R-Data SNACK.
            //= rfc7143#section-11.16.7
            //# The RunLength MUST also be 0 for a DataACK SNACK in addition to a R-Data SNACK.
            kind: SnackKind::R_DATA,
            lun: 0,
            itt: tag(TAG_TASK, key),
            tag: fresh,
            exp_stat_sn: StatSn(0),
            beg_run: 0,
            run_length: 0,
        };
        self.stats.data_snacks += 1;
        self.queue_control(slot, ControlPdu::Snack(snack), alloc::vec::Vec::new());
        self.arm_retransmit(now, slot);
    }

    /// Handles a Data-In of a task whose data is being resegmented.
    pub(super) fn handle_resegmented_data(
        &mut self,
        now: Instant,
        slot: Slot,
        key: Key,
        pdu: &DataIn,
        (len, sink, intact): (u32, DataSink, bool),
    ) -> Result<(), ProtocolError> {
        let Some(task) = self.tasks.get_mut(key) else { return Err(ProtocolError::Bug) };
        if let Some(anew) = &mut task.resegmentation {
            anew.heard = now;
        }
        if !intact {
            // The response will show that the data is missing.
            task.data_in.restore(&self.pool, sink);
            self.stats.data_digest_errors += 1;
            self.arm_retransmit(now, slot);
            return Ok(());
        }
        if len > 0 {
            task.data_in.commit(&self.pool, sink, pdu.buffer_offset, len);
        }
        self.stats.data_in_bytes += u64::from(len);
        self.record_progress(slot);
        self.data_in_status(now, slot, Some(key), pdu)?;
        let rode = self.tasks.get(key).is_some_and(|task| task.status.is_some());
        if rode { self.finish_resegmentation(now, slot, key) } else { Ok(()) }
    }

    /// Returns whether a task still waits for a response with a StatSN that was received before: it has the
    /// SNACK tag now.
    pub(super) fn is_awaited(&self, slot: Slot, pdu: &ScsiResponse) -> bool {
        let task = find(&self.tasks, TAG_TASK, pdu.itt).and_then(|key| self.tasks.get(key));
        task.is_some_and(|task| {
            task.state == TaskState::Sent(slot)
                && task.resegmentation.is_some_and(|anew| anew.tag != 0 && anew.tag == pdu.snack_tag)
        })
    }

    /// Returns whether a status of a task is outdated, because its data was requested again after the status
    /// was sent. Such a status is not acknowledged either: the target would discard the data with it.
    pub(super) fn is_outdated(&mut self, key: Key, snack_tag: u32, stat_sn: StatSn) -> bool {
        //= rfc7143#section-11.4.4
        //# After issuing a R-Data SNACK, the initiator must discard any SCSI
        //# status unless contained in a SCSI Response PDU carrying the same
        //# SNACK Tag as the last issued R-Data SNACK for the SCSI command on the
        //# current connection.
        let Some(task) = self.tasks.get_mut(key) else { return false };
        if task.resegmentation.is_none_or(|anew| anew.tag == snack_tag) {
            return false;
        }
        task.stat_sn = stat_sn;
        self.withhold_status_ack(key);
        true
    }

    /// Ends a task with resegmented data, if all of the data has arrived.
    pub(super) fn finish_resegmentation(
        &mut self,
        now: Instant,
        slot: Slot,
        key: Key,
    ) -> Result<(), ProtocolError> {
        let most = self.plan.limits.repairs_max;
        let Some(task) = self.tasks.get_mut(key) else { return Ok(()) };
        let whole = task.status.as_ref().is_none_or(|ending| task.check_end(ending).is_ok());
        if whole {
            task.resegmentation = None;
            return self.finish_if_complete(key);
        }
        if task.resegmentation.is_some_and(|anew| anew.tries >= most) {
            return Err(ProtocolError::NotRepaired);
        }
        self.withhold_status_ack(key);
        self.send_r_data_snack(now, slot, key);
        Ok(())
    }

    /// Requests resegmented data again that did not arrive for a while, if `request`; returns whether there
    /// was any.
    pub(super) fn resend_r_data_snacks(&mut self, now: Instant, slot: Slot, request: bool) -> bool {
        let after = self.plan.limits.repair_after;
        let silent = |anew: Resegmentation| anew.tag != 0 && now.since(anew.heard) >= after;
        let mine = self.tasks.iter().filter(|(_, task)| task.state == TaskState::Sent(slot));
        let mine = mine.filter(|(_, task)| task.resegmentation.is_some_and(silent));
        let keys: alloc::vec::Vec<Key> = mine.map(|(key, _)| key).collect();
        for key in keys.iter().filter(|_| request) {
            self.send_r_data_snack(now, slot, *key);
        }
        !keys.is_empty()
    }

    /// Handles the rejection of an R-Data SNACK: a target that serves none leaves no other way to recover the
    /// data.
    pub(super) fn r_data_snack_rejected(&self, slot: Slot, snack: &Snack) -> Result<(), ProtocolError> {
        let task = find(&self.tasks, TAG_TASK, snack.itt).and_then(|key| self.tasks.get(key));
        let is_wanted = task.is_some_and(|task| {
            task.state == TaskState::Sent(slot)
                && task.resegmentation.is_some_and(|anew| anew.tag == snack.tag)
        });
        if is_wanted { Err(ProtocolError::NotRepaired) } else { Ok(()) }
    }
}
