//! Builds the PDUs to send when the driver can take them: commands with their unsolicited data, answers to
//! R2Ts, and small PDUs (RFC 7143 §4.2.5.2, §11.3, §11.7).
//!
//! No PDU is built in advance: the queue of a connection holds references, and every PDU gets its numbers
//! when it is sent. The CmdSNs of a session therefore rise in the order in which its commands are sent,
//! whatever connection they use. ORDERED and HEAD OF QUEUE tasks are assigned to a connection only when that
//! cannot change their order.

use alloc::vec::Vec;

use base::int_cast::{to_u32, to_usize};
use base::state_machine::ConnId;
use base::time::Instant;
use base::transmit::Transmit;

use super::connection_slot::{ControlPdu, QueuedPdu};
use super::contract::Slot;
use super::session::{Phase, Session, TAG_TASK, tag};
use super::task::{DataOutSequence, TaskState};
use crate::pdu::ahs::Ahs;
use crate::pdu::data_out::DataOut;
use crate::pdu::login_request::LoginRequest;
use crate::pdu::logout_request::LogoutRequest;
use crate::pdu::nop_out::NopOut;
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::snack::Snack;
use crate::pdu::text_request::TextRequest;
use crate::pdu::{Bhs, PduHeader, Ttt};
use crate::serial::{CmdSn, DataSn, StatSn};
use crate::target::arena::Key;

impl Session {
    /// Appends the queued PDUs of a connection to `out` until `out` is full or the queue is empty.
    pub fn transmit(&mut self, now: Instant, conn: ConnId, out: &mut Transmit) {
        let Some(slot) = self.slot_of(conn) else { return };
        if let Some(connection) = self.connection_mut(slot) {
            connection.transmit_requested = false;
        }
        let unnumbered = self.unnumbered;
        while !out.is_full() {
            let Some(output) = self.connection_mut(slot).and_then(|connection| connection.out.pop_front())
            else {
                break;
            };
            match output {
                QueuedPdu::Command(key) => self.send_command(now, slot, key, out),
                QueuedPdu::Unsolicited(key) => self.send_unsolicited(slot, key, out),
                QueuedPdu::SolicitedData(key, r2t_sn) => self.send_solicited(slot, key, r2t_sn, out),
                QueuedPdu::Tmf(key) => self.send_tmf(now, slot, key, out),
                QueuedPdu::Control(control) => {
                    let (control, data) = *control;
                    self.send_control(slot, control, &data, out);
                }
            }
        }
        // More is queued than fits: the driver calls again when it has free space, because `is_full` is set.
        if let Some(connection) = self.connection_mut(slot) {
            connection.transmit_requested = !connection.out.is_empty();
        }
        if self.phase == Phase::Up && unnumbered > 0 && self.unnumbered == 0 {
            // A task that must keep its order may have waited for these CmdSNs.
            self.assign_waiting();
        }
    }

    fn send_command(&mut self, now: Instant, slot: Slot, key: Key, out: &mut Transmit) {
        let (parameters, cmd_sn, order) = (self.parameters, self.cmd_sn, self.order);
        let connection_slot = self.slots.get_mut(usize::from(slot.0));
        let Some(connection) =
            connection_slot.and_then(|connection_slot| connection_slot.connection.as_deref_mut())
        else {
            return;
        };
        let (max_recv, exp_stat_sn) = (connection.segment_max(), connection.acknowledged());
        let segment_max = connection.parameters.initiator_max_recv;
        let Some(task) = self.tasks.get_mut(key) else { return };
        if !matches!(task.state, TaskState::Assigned(at) | TaskState::Sent(at) if at == slot) {
            return;
        }
        let (len, read_len) = (task.data_out_len, task.request.data_in_len);
        //= rfc7143#section-11.3.4
        //# If the Expected Data Transfer Length is higher than the FirstBurstLength (the negotiated maximum
        //# amount of unsolicited data the target will accept), the initiator MUST send the maximum amount of
        //# unsolicited data OR ONLY the immediate data, if any.
        let first = parameters.first_burst_length.min(len);
        let immediate_len = if parameters.immediate_data { first.min(max_recv) } else { 0 };
        //= rfc7143#section-11.8
        //# In order to allow write operations without an explicit initial R2T, the initiator and target MUST
        //# have negotiated the key InitialR2T to No during login.
        let unsolicited = !parameters.initial_r2t && first > immediate_len;
        //= rfc7143#section-4.2.2.1
        //# On any connection, the iSCSI initiator MUST send the commands in increasing order of
        //# CmdSN, except for commands that are retransmitted due to digest error recovery and
        //# connection recovery.
        let takes_number = !task.request.immediate && !task.numbered;
        //= rfc7143#section-4.2.2.1
        //# Commands meant for immediate delivery are marked with an immediate delivery flag; they
        //# MUST also carry the current CmdSN.
        //= rfc7143#section-7.2.1
        //# When an iSCSI command is retried, the command PDU MUST carry the original Initiator Task Tag and
        //# the original operational attributes (e.g., flags, function names, LUN, CDB, etc.) as well as the
        //# original CmdSN.
        if !task.numbered {
            task.cmd_sn = cmd_sn;
        }
        task.resent |= task.numbered;
        task.numbered = !task.request.immediate;
        task.segment_max = segment_max;
        if !task.resent {
            task.order = order;
        }
        (task.state, task.sent_at) = (TaskState::Sent(slot), now);
        let cdb = &task.request.cdb;
        let mut head = [0; 16];
        for (to, from) in head.iter_mut().zip(cdb.iter()) {
            *to = *from;
        }
        let command = ScsiCommand {
            immediate: task.request.immediate,
            //= rfc7143#section-11.3.1
            //# At least one of the W and F bits MUST be set to 1.
            //= rfc7143#section-11.3.4
            //# In this case, the F bit MUST be set to 1.
            is_final: !unsolicited,
            //= rfc7143#section-11.3.1
            //# they MUST NOT both be 0 when the Expected Data Transfer Length and/or Bidirectional Read
            //# Expected Data Transfer Length are not 0
            read: read_len > 0,
            write: len > 0,
            attribute: task.request.attribute,
            priority: if parameters.protocol_level >= 2 { task.request.priority & 0x0f } else { 0 },
            lun: task.request.lun,
            itt: tag(TAG_TASK, key),
            expected_data_transfer_length: if len > 0 { len } else { read_len },
            cmd_sn: task.cmd_sn,
            exp_stat_sn,
            cdb: head,
        };
        let ahs = Ahs {
            //= rfc7143#section-11.2.2.3
            //# This type of AHS MUST NOT be used if the CDBLength is less than 17.
            //= rfc7143#section-11.3.5
            //# Whenever the CDB is larger than 16 bytes, an Extended CDB AHS MUST be used to contain the CDB
            //# spillover.
            extended_cdb: cdb.get(16..).filter(|rest| !rest.is_empty()),
            //= rfc7143#section-11.3.4
            //# For bidirectional operations, an additional header segment MUST be present in the header
            //# sequence that indicates the Bidirectional Read Expected Data Transfer Length.
            bidirectional_read_length: (len > 0 && read_len > 0).then_some(read_len),
        };
        let bhs = command.encode().with_data_len(to_usize(immediate_len));
        if ahs == Ahs::default() {
            connection.writer.header(&bhs, out);
        } else {
            let ahs = ahs.to_bytes();
            connection.writer.long_header(&bhs.with_ahs_len(ahs.len()), &ahs, out);
        }
        if immediate_len > 0 {
            let len = to_usize(immediate_len);
            connection.writer.shared(len, task.request.data_out.slice(0, len).into_parts(), out);
        }
        task.data_out.requested_end = if unsolicited { first } else { immediate_len };
        task.data_out.unsolicited = unsolicited.then_some(DataOutSequence {
            r2t_sn: 0,
            ttt: Ttt::NONE,
            lun: 0,
            at: immediate_len,
            //= rfc7143#section-4.2.5.2
            //# the total unsolicited data MUST be either FirstBurstLength or all of the data, if the
            //# total amount is less than the FirstBurstLength.
            end: first,
            data_sn: DataSn(0),
        });
        self.order += 1;
        //= rfc7143#section-4.2.2.1
        //# The CmdSN MUST NOT advance after a command marked for immediate delivery is sent.
        if takes_number {
            //= rfc7143#section-4.2.2.1
            //# the CmdSN MUST be incremented by 1 in a Serial Number Arithmetic sense, as defined in
            //# [RFC1982], for every non-immediate command issued afterwards.
            self.cmd_sn = cmd_sn.next();
            self.unnumbered = self.unnumbered.saturating_sub(1);
        }
        self.stats.pdus_out += 1;
        self.stats.data_out_bytes += u64::from(immediate_len);
        if let Some(connection) = self.connection_mut(slot) {
            connection.record_ack(exp_stat_sn);
        }
        self.watch_request(now, slot);
        if unsolicited {
            // Unsolicited data is sent in the order of the commands (RFC 7143 §4.2.5.2).
            //= rfc7143#section-4.2.5.2
            //# In addition, iSCSI initiators and targets MUST enforce some ordering rules.
            //= rfc7143#section-4.2.5.2
            //# When unsolicited data is used, the order of the unsolicited data on each connection
            //# MUST match the order in which the commands on that connection are sent.
            self.send_unsolicited(slot, key, out);
        }
    }

    fn send_unsolicited(&mut self, slot: Slot, key: Key, out: &mut Transmit) {
        let Some(task) = self.tasks.get(key).filter(|task| task.state == TaskState::Sent(slot)) else {
            return;
        };
        let Some(mut burst) = task.data_out.unsolicited else { return };
        if self.is_data_out_stopped(slot, task) {
            return;
        }
        let done = self.send_sequence(slot, key, &mut burst, out);
        if let Some(task) = self.tasks.get_mut(key) {
            task.data_out.unsolicited = (!done).then_some(burst);
        }
        if !done && let Some(connection) = self.connection_mut(slot) {
            //= rfc7143#section-4.2.5.2
            //# but the unsolicited Data-Out PDUs for command N MUST precede the unsolicited Data-Out
            //# PDUs of command N + 1
            connection.out.push_front(QueuedPdu::Unsolicited(key));
        }
    }

    fn send_solicited(&mut self, slot: Slot, key: Key, r2t_sn: u32, out: &mut Transmit) {
        let Some(task) = self.tasks.get(key).filter(|task| task.state == TaskState::Sent(slot)) else {
            return;
        };
        if self.is_data_out_stopped(slot, task) {
            return;
        }
        //= rfc7143#section-4.2.3.3
        //# a) MUST continue to respond to each TTT received for the affected tasks.
        //= rfc7143#section-4.2.5.1
        //# the initiator MUST send the data, if any, for that command over the same TCP
        //# connection that was used to deliver the SCSI command.
        let Some(at) = task.data_out.bursts.iter().position(|burst| burst.r2t_sn == r2t_sn) else { return };
        let Some(mut burst) = task.data_out.bursts.get(at).copied() else { return };
        let done = self.send_sequence(slot, key, &mut burst, out);
        if let Some(task) = self.tasks.get_mut(key) {
            if done {
                task.data_out.bursts.remove(at);
            } else if let Some(connection_slot) = task.data_out.bursts.get_mut(at) {
                *connection_slot = burst;
            }
        }
        if !done && let Some(connection) = self.connection_mut(slot) {
            connection.out.push_front(QueuedPdu::SolicitedData(key, r2t_sn));
        }
    }

    /// Sends the Data-Out PDUs of a sequence until it is complete or `out` is full; returns whether it is
    /// complete.
    fn send_sequence(
        &mut self,
        slot: Slot,
        key: Key,
        burst: &mut DataOutSequence,
        out: &mut Transmit,
    ) -> bool {
        let connection_slot = self.slots.get_mut(usize::from(slot.0));
        let Some(connection) =
            connection_slot.and_then(|connection_slot| connection_slot.connection.as_deref_mut())
        else {
            return true;
        };
        let (max_recv, exp_stat_sn) = (connection.segment_max(), connection.acknowledged());
        let Some(task) = self.tasks.get(key) else { return true };
        let (mut pdus, mut bytes) = (0, 0);
        while burst.at < burst.end && !out.is_full() {
            //= rfc7143#section-11.7.1
            //# DataSegmentLength MUST NOT exceed MaxRecvDataSegmentLength for the direction it is sent, and
            //# the total of all the DataSegmentLength of all PDUs in a sequence MUST NOT exceed
            //# MaxBurstLength (or FirstBurstLength for unsolicited data).
            let next = burst.at.saturating_add(max_recv.max(1)).min(burst.end);
            //= rfc7143#section-11.8
            //# If an R2T is answered with a single Data-Out PDU, the buffer offset in the data PDU MUST be
            //# the same as the one specified by the R2T, and the data length of the data PDU MUST be the same
            //# as the Desired Data Transfer Length specified in the R2T.
            //= rfc7143#section-11.8
            //# If the R2T is answered with a sequence of data PDUs, the buffer offset and length MUST be
            //# within the range of those specified by the R2T, and the last PDU MUST have the F bit set to 1.
            //= rfc7143#section-11.8
            //# If DataPDUInOrder is set to Yes, the buffer offsets and lengths for consecutive PDUs MUST form
            //# a continuous non-overlapping range, and the PDUs MUST be sent in increasing offset order.
            let header = DataOut {
                is_final: next == burst.end,
                lun: burst.lun,
                itt: tag(TAG_TASK, key),
                ttt: burst.ttt,
                exp_stat_sn,
                data_sn: burst.data_sn,
                buffer_offset: burst.at,
            };
            let len = to_usize(next - burst.at);
            connection.writer.header(&header.encode().with_data_len(len), out);
            let data = task.request.data_out.slice(to_usize(burst.at), to_usize(next));
            connection.writer.shared(len, data.into_parts(), out);
            pdus += 1;
            bytes += u64::from(next - burst.at);
            burst.at = next;
            //= rfc7143#section-4.2.2.4
            //# Data and R2T PDUs transferred as part of some command execution MUST be sequenced.
            burst.data_sn = burst.data_sn.next();
        }
        self.stats.pdus_out += pdus;
        self.stats.data_out_bytes += bytes;
        if pdus > 0 {
            connection.record_ack(exp_stat_sn);
        }
        burst.at >= burst.end
    }

    fn send_control(&mut self, slot: Slot, control: ControlPdu, data: &[u8], out: &mut Transmit) {
        let cmd_sn = self.cmd_sn;
        let stale = matches!(&control, ControlPdu::Snack(snack) if !self.is_missing(slot, snack));
        let Some(connection) = self.connection_mut(slot) else { return };
        connection.controls = connection.controls.saturating_sub(1);
        if stale {
            return;
        }
        let exp_stat_sn = connection.acknowledged();
        connection.record_ack(exp_stat_sn);
        let bhs = control.encode(cmd_sn, exp_stat_sn).with_data_len(data.len());
        connection.writer.header(&bhs, out);
        connection.writer.copied(data, out);
        self.order += 1;
        self.stats.pdus_out += 1;
    }

    /// Queues a small PDU, unless it is a request on a connection that is being closed.
    pub(super) fn queue_control(&mut self, slot: Slot, control: ControlPdu, data: Vec<u8>) {
        let is_request =
            matches!(control, ControlPdu::Text(_) | ControlPdu::Logout(_) | ControlPdu::Snack(_));
        if is_request && self.is_closing(slot) {
            return;
        }
        debug_assert!(to_u32(data.len()) <= crate::pdu::MAX_DATA_SEGMENT, "small PDUs are small");
        if let Some(connection) = self.connection_mut(slot) {
            connection.controls += 1;
            self.queue(slot, QueuedPdu::Control(alloc::boxed::Box::new((control, data))));
        }
    }

    /// Queues a small PDU ahead of everything that waits to be sent.
    pub(super) fn queue_control_first(&mut self, slot: Slot, control: ControlPdu, data: Vec<u8>) {
        if let Some(connection) = self.connection_mut(slot) {
            connection.controls += 1;
            connection.out.push_front(QueuedPdu::Control(alloc::boxed::Box::new((control, data))));
            self.request_transmit(slot);
        }
    }
}

impl ControlPdu {
    /// Sets the sequence numbers and returns the header.
    fn encode(self, cmd_sn: CmdSn, exp_stat_sn: StatSn) -> Bhs {
        match self {
            Self::Nop(pdu) => NopOut { cmd_sn, exp_stat_sn, ..pdu }.encode(),
            Self::Text(pdu) => TextRequest { cmd_sn, exp_stat_sn, ..pdu }.encode(),
            Self::Logout(pdu) => LogoutRequest { cmd_sn, exp_stat_sn, ..pdu }.encode(),
            Self::Login(pdu) => LoginRequest { cmd_sn, exp_stat_sn, ..pdu }.encode(),
            Self::Snack(pdu) => Snack { exp_stat_sn, ..pdu }.encode(),
        }
    }
}
