//! Output: Data-In cut to the initiator's MaxRecvDataSegmentLength, responses, R2Ts and control PDUs, built
//! when the driver has free space for them (RFC 7143 §4.2.2.2, §11.4, §11.7).
//!
//! PDUs are not built in advance. The send queue of a connection holds only references, so a slow reader
//! occupies no more memory than one batch of the driver, and every PDU carries the counters of the moment at
//! which it is sent.

use base::buffer::Bytes;
use base::int_cast::to_usize;
use base::state_machine::ConnId;
use base::time::Instant;
use base::transmit::Transmit;
use transport::initiator::{Residual, ServiceResponse};

use super::arena::Key;
use super::data_in::{DataInLimits, Sent as SentData};
use super::engine::{Engine, take_ttt};
use super::output::{Body, Control, Output};
use super::status_log::LoggedStatus;
use super::task::{SentStatus, Task, TaskResult};
use crate::pdu::data_in::{DataIn, DataInStatus};
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::{Bhs, Itt, MAX_DATA_SEGMENT, PduHeader, TargetSn, Ttt};
use crate::pdu_writer::PduWriter;
use crate::serial::{DataSn, StatSn};

impl Engine {
    /// Appends the queued output of a connection to `out` until it is full or nothing is left.
    pub fn transmit(&mut self, now: Instant, conn: ConnId, out: &mut Transmit) {
        self.now = now;
        if let Some(connection) = self.conn_mut(conn) {
            connection.transmit_requested = false;
        }
        while !out.is_full() {
            let unacked_max = self.unacked_max();
            let Some(connection) = self.conn_mut(conn) else { return };
            let Some(output) = connection.send_queue.pop_front() else { return };
            let is_full = connection.status_log.is_full(unacked_max);
            //= rfc7143#section-4.2.2.3.3
            //# those Response PDUs MUST be held and queued at the iSCSI layer until the fence is
            //# cleared.
            if (is_full || self.is_held_up(conn)) && !output.may_leave_unacknowledged() {
                // Nothing more is sent until something is acknowledged; the acknowledgement requests a new
                // transmission. It may need what was asked for again, which overtakes the rest.
                let Some(connection) = self.conn_mut(conn) else { return };
                connection.send_queue.push_front(output);
                let resent = connection.send_queue.iter().position(Output::is_sent_again);
                let Some(resent) = resent.and_then(|at| connection.send_queue.remove(at)) else { return };
                self.send_output(now, conn, resent, out);
                continue;
            }
            self.send_output(now, conn, output, out);
        }
        // More is left than fits. The driver calls again when it has free space, because `is_full` is set.
        if let Some(connection) = self.conn_mut(conn) {
            connection.transmit_requested = !connection.send_queue.is_empty();
        }
    }

    fn send_output(&mut self, now: Instant, conn: ConnId, output: Output, out: &mut Transmit) {
        match output {
            Output::Task(key) => self.send_task(now, conn, key, out),
            Output::ResendData(key) => self.send_again(now, conn, key, out),
            Output::ResendStatus => self.send_statuses_again(conn, out),
            Output::FenceMark(mark) => self.handle_fence_mark(conn, mark),
            Output::R2t(key, ttt) => self.send_r2t(now, conn, (key, ttt), out),
            Output::Control(control) => {
                let (control, body) = *control;
                self.send_control(now, conn, control, body, out);
            }
        }
    }

    fn send_control(&mut self, now: Instant, conn: ConnId, control: Control, body: Body, out: &mut Transmit) {
        let sn = self.counters(conn);
        let Some(connection) = self.conn_mut(conn) else { return self.impossible(None) };
        connection.control_queued = connection.control_queued.saturating_sub(1);
        let uses_stat_sn = self.put_control(conn, control, &body, sn, out);
        let retains = self.conn(conn).is_some_and(|connection| connection.level.retains_statuses());
        let kept = match control {
            _ if !retains => None,
            // No initiator asks for the last Login Response again.
            Control::Login(_) => Some(LoggedStatus::Nothing),
            control => Some(LoggedStatus::Control(alloc::boxed::Box::new((control, body.again())))),
        };
        // A retained PDU stays counted.
        if !uses_stat_sn || !matches!(kept, Some(LoggedStatus::Control(_))) {
            self.uncount(conn, &body);
        }
        if uses_stat_sn {
            self.log_status(now, conn, kept.unwrap_or(LoggedStatus::Nothing));
        }
        if let Body::Echo(bytes) = body {
            self.pool.recycle(bytes);
        }
    }

    /// Appends a control PDU. Returns whether it takes a status number.
    pub(super) fn put_control(
        &mut self,
        conn: ConnId,
        control: Control,
        body: &Body,
        sn: TargetSn,
        out: &mut Transmit,
    ) -> bool {
        let Some(connection) = self.conn_mut(conn) else {
            self.impossible(None);
            return false;
        };
        let data = body.bytes();
        let (bhs, uses_stat_sn) = control.encode(sn);
        // The last PDU of the login, which negotiates the digests, carries none itself (§13.1).
        let mut plain = PduWriter::default();
        let is_login = matches!(control, Control::Login(_));
        if is_login {
            plain.trace = connection.writer.trace.take();
        }
        let writer = if is_login { &mut plain } else { &mut connection.writer };
        writer.header(&bhs.with_data_len(data.len()), out);
        writer.copied(data, out);
        if is_login {
            connection.writer.trace = plain.trace;
        }
        self.stats.pdus_out += 1;
        uses_stat_sn
    }

    fn send_r2t(&mut self, now: Instant, conn: ConnId, (key, ttt): (Key, Ttt), out: &mut Transmit) {
        let sn = self.counters(conn);
        if let Some(bhs) = self.r2t(key, ttt, sn)
            && let Some(connection) = self.conn_mut(conn)
        {
            connection.writer.header(&bhs, out);
            self.stats.pdus_out += 1;
            self.watch_data(now, conn);
        }
    }

    /// Sends the data of a task as far as it fits, and its status if the task has ended.
    fn send_task(&mut self, now: Instant, conn: ConnId, key: Key, out: &mut Transmit) {
        loop {
            //= rfc7143#section-4.2.5.1
            //# For any iSCSI request issued over a TCP connection, the corresponding response and/or
            //# other related PDU(s) MUST be sent over the same connection.
            //= rfc7143#section-4.2.5.1
            //# the target MUST send the requested data, if any, followed by the status, to the
            //# initiator over the same TCP connection that was used to deliver the SCSI command.
            let Some(task) = self.tasks.get(key).filter(|task| task.is_on(conn)) else { return };
            let may_end = task.result.is_some() && !task.data_out.is_expecting();
            if !task.data_in.has_queued() {
                if may_end {
                    self.send_response(now, conn, key, out);
                } else if let Some(task) = self.tasks.get_mut(key) {
                    task.in_send_queue = false;
                }
                return;
            }
            if out.is_full() {
                return self.send_later(conn, key, true);
            }
            match self.send_data(now, conn, key, may_end, out) {
                SendProgress::More => {}
                SendProgress::SequenceEnd => return self.send_later(conn, key, false),
                SendProgress::TaskDone => return,
            }
        }
    }

    fn send_later(&mut self, conn: ConnId, key: Key, first: bool) {
        let Some(connection) = self.conn_mut(conn) else { return self.impossible(None) };
        let queue = &mut connection.send_queue;
        // What is sent behind all earlier output stays behind the rest of this task.
        let at = if first { Some(0) } else { queue.iter().position(Output::follows_all) };
        queue.insert(at.unwrap_or(queue.len()), Output::Task(key));
    }

    /// Sends one Data-In.
    fn send_data(
        &mut self,
        now: Instant,
        conn: ConnId,
        key: Key,
        may_end: bool,
        out: &mut Transmit,
    ) -> SendProgress {
        let Some(connection) = self.conn(conn) else {
            self.impossible(None);
            return SendProgress::TaskDone;
        };
        let (writer_max, stat_sn) = (connection.writer.segment_max(), connection.stat_sn);
        //= rfc7143#section-11.7.1
        //# DataSegmentLength MUST NOT exceed MaxRecvDataSegmentLength for the direction it is sent, and the
        //# total of all the DataSegmentLength of all PDUs in a sequence MUST NOT exceed MaxBurstLength (or
        //# FirstBurstLength for unsolicited data).
        let segment_max = connection.parameters.initiator_max_recv.min(MAX_DATA_SEGMENT);
        // §11.7: segments are filled with whole words until the last of a sequence.
        let segment_max = to_usize(segment_max).min(writer_max).min(out.segment_max()) & !3;
        let Some(task) = self.tasks.get_mut(key) else {
            self.impossible(None);
            return SendProgress::TaskDone;
        };
        let Some(state) = self.sessions.get_mut(task.session) else {
            self.impossible(None);
            return SendProgress::TaskDone;
        };
        let limits = DataInLimits { segment_max, burst_max: to_usize(state.parameters.max_burst_length) };
        let keeps = task.retains_sent;
        let mut parts: smallvec::SmallVec<[Bytes; 4]> = smallvec::SmallVec::new();
        let sent = task.data_in.next_pdu(limits, keeps, |part| parts.push(part));
        let SentData { data_sn, offset: buffer_offset, len, is_final, acknowledge } = sent;
        let (last, itt, session) = (!task.data_in.has_queued(), task.itt, task.session);
        // A response that carries the tag of a SNACK is a PDU of its own (§11.16.3), and so is a response
        // that is sent again.
        //= rfc7143#section-11.7.3
        //# For bidirectional commands, the status MUST be sent in a SCSI Response PDU.
        let may_ride =
            last && may_end && !task.is_bidirectional() && task.snack_tag == 0 && task.sent_status.is_none();
        //= rfc7143#section-11.7.3
        //# If the command is completed with an error, then the response and sense data MUST be sent in a SCSI
        //# Response PDU (i.e., MUST NOT be sent in a SCSI data packet).
        let status = task.result.as_ref().filter(|ending| may_ride && ending.is_good());
        let status =
            status.map(|ending| DataInStatus { status: ending.status, residual: residual(task, ending) });
        let (mut ttt, mut lun) = (Ttt::NONE, 0);
        //= rfc7143#section-11.7.4
        //# On incoming data, the Target Transfer Tag and LUN MUST be provided by the target if the A bit is
        //# set to 1; otherwise, they are reserved.
        //= rfc7143#section-11.7.4
        //# If the Target Transfer Tag is provided, then the LUN field MUST hold a valid value and be
        //# consistent with whatever was specified with the command; otherwise, the LUN field is reserved.
        if acknowledge {
            ttt = task.data_in.ack_ttt_or_insert_with(|| take_ttt(&mut self.next_ttt));
            lun = task.lun;
        }
        if !keeps {
            self.quotas.data_in.release(Some(&mut state.shares.data_in), task.data_in.shrink_reservation());
        }
        state.traffic.data_in_bytes += u64::from(len);
        let waiting = state.has_undelivered();
        self.stats.data_in_bytes += u64::from(len);
        let ends = status.is_some();
        // The tag is free once the status is sent, and the command window in this PDU shows it.
        match (ends, keeps) {
            (true, true) => self.record_status_sent(key, SentStatus { stat_sn, phase_collapsed: true }),
            (true, false) => self.remove_task(key),
            (false, false) if waiting => self.drain_ready(session),
            (false, _) => {}
        }
        let sn = self.counters(conn);
        if ends {
            self.log_status(now, conn, LoggedStatus::Task(key));
        }
        let header = DataIn { is_final, acknowledge, status, lun, itt, ttt, sn, data_sn, buffer_offset };
        let Some(connection) = self.conn_mut(conn) else {
            self.impossible(None);
            return SendProgress::TaskDone;
        };
        connection.writer.header(&header.encode().with_data_len(to_usize(len)), out);
        connection.writer.shared(to_usize(len), parts, out);
        self.stats.pdus_out += 1;
        match (ends, is_final && !last) {
            (true, _) => SendProgress::TaskDone,
            (false, true) => SendProgress::SequenceEnd,
            (false, false) => SendProgress::More,
        }
    }

    /// Sends a Data-In once more, unchanged but for the counters of the session (§11.16).
    pub(super) fn put_data_again(&mut self, conn: ConnId, key: Key, sent: SentData, out: &mut Transmit) {
        let mut sn = self.counters(conn);
        let Some(task) = self.tasks.get(key) else { return self.impossible(None) };
        //= rfc7143#section-11.16
        //# The numbered Data-In PDUs requested by a Data SNACK MUST be delivered as exact replicas of the
        //# ones that the target transmitted originally, except for the fields ExpCmdSN and MaxCmdSN, which
        //# MUST carry the current values; and except for resegmentation (see Section 11.16.3).
        let rode = task.sent_status.filter(|answer| answer.phase_collapsed);
        let is_last = task.data_in.last_sent().is_some_and(|last| last.data_sn == sent.data_sn);
        let status = rode.filter(|_| is_last && task.snack_tag == 0).zip(task.result.as_ref());
        if let Some((answer, _)) = status {
            sn.stat_sn = answer.stat_sn;
        }
        let header = DataIn {
            is_final: sent.is_final,
            acknowledge: sent.acknowledge,
            status: status
                .map(|(_, ending)| DataInStatus { status: ending.status, residual: residual(task, ending) }),
            lun: if sent.acknowledge { task.lun } else { 0 },
            itt: task.itt,
            ttt: task.data_in.ack_ttt().filter(|_| sent.acknowledge).unwrap_or(Ttt::NONE),
            sn,
            data_sn: sent.data_sn,
            buffer_offset: sent.offset,
        };
        let mut parts: smallvec::SmallVec<[Bytes; 4]> = smallvec::SmallVec::new();
        task.data_in.read_sent(sent.offset, sent.len, |part| parts.push(part));
        let len = to_usize(sent.len);
        let Some(connection) = self.conn_mut(conn) else { return self.impossible(None) };
        connection.writer.header(&header.encode().with_data_len(len), out);
        connection.writer.shared(len, parts, out);
        self.stats.pdus_out += 1;
    }

    /// Sends an R2T once more.
    pub(super) fn put_r2t_again(&mut self, conn: ConnId, bhs: Bhs, out: &mut Transmit) {
        if let Some(connection) = self.conn_mut(conn) {
            connection.writer.header(&bhs, out);
            self.stats.pdus_out += 1;
        }
    }

    /// Sends a SCSI Response. That ends the task.
    fn send_response(&mut self, now: Instant, conn: ConnId, key: Key, out: &mut Transmit) {
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        if let Some(answer) = task.sent_status {
            // The task's data was sent again, resegmented.
            task.in_send_queue = false;
            return self.put_response(conn, key, answer.stat_sn, out);
        }
        if task.retains_sent {
            let Some(stat_sn) = self.conn(conn).map(|connection| connection.stat_sn) else {
                return self.impossible(None);
            };
            self.record_status_sent(key, SentStatus { stat_sn, phase_collapsed: false });
            self.put_response(conn, key, stat_sn, out);
            self.log_status(now, conn, LoggedStatus::Task(key));
            return;
        }
        let Some(ending) = task.result.take() else { return self.impossible(None) };
        let mut response = response_of(task, &ending);
        self.remove_task(key);
        response.sn = self.counters(conn);
        self.log_status(now, conn, LoggedStatus::Nothing);
        self.put_scsi_response(conn, &response, ending.sense.as_deref(), out);
    }

    /// Appends the response of a task that is retained, with this status number.
    pub(super) fn put_response(&mut self, conn: ConnId, key: Key, stat_sn: StatSn, out: &mut Transmit) {
        let sn = TargetSn { stat_sn, ..self.counters(conn) };
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        let Some(ending) = task.result.take() else { return self.impossible(None) };
        let response = ScsiResponse { sn, ..response_of(task, &ending) };
        self.put_scsi_response(conn, &response, ending.sense.as_deref(), out);
        if let Some(task) = self.tasks.get_mut(key) {
            task.result = Some(ending);
        }
    }

    fn put_scsi_response(
        &mut self,
        conn: ConnId,
        response: &ScsiResponse,
        sense: Option<&[u8]>,
        out: &mut Transmit,
    ) {
        let Some(connection) = self.conn_mut(conn) else { return self.impossible(None) };
        let writer = &mut connection.writer;
        match sense {
            None => writer.header(&response.encode(), out),
            //= rfc7143#section-4.6.1.2
            //# The use of Autosense ([SAM2]) is REQUIRED by iSCSI.
            Some(sense) => {
                //= rfc7143#section-11.4.7
                //# iSCSI targets MUST support and enable Autosense.
                //= rfc7143#section-11.4.7
                //# If Status is CHECK CONDITION (0x02), then the data segment MUST contain sense data for the
                //# failed command.
                // §11.4.7: the length of the sense data, then the sense data.
                let len = u16::try_from(sense.len()).unwrap_or(0).to_be_bytes();
                let data = [&len, sense].concat();
                writer.header(&response.encode().with_data_len(data.len()), out);
                writer.copied(&data, out);
            }
        }
        self.stats.pdus_out += 1;
    }
}

impl Output {
    /// Returns whether this is a retransmission, in the place of which nothing else can be acknowledged.
    const fn is_sent_again(&self) -> bool {
        matches!(self, Self::ResendData(_) | Self::ResendStatus)
    }

    /// Returns whether all output that was queued before must be sent before this.
    fn follows_all(&self) -> bool {
        match self {
            Self::FenceMark(_) => true,
            Self::Control(control) => matches!(control.0, Control::Tmf(_)),
            Self::Task(_) | Self::ResendData(_) | Self::ResendStatus | Self::R2t(..) => false,
        }
    }

    /// Returns whether this output may be sent although no more statuses can be retained, or a response fence
    /// holds the connection: it takes no status number, or it is the last Login Response.
    fn may_leave_unacknowledged(&self) -> bool {
        match self {
            Self::R2t(..) | Self::ResendData(_) | Self::ResendStatus | Self::FenceMark(_) => true,
            Self::Task(_) => false,
            Self::Control(control) => match &control.0 {
                Control::NopIn(ping) => ping.itt == Itt::NONE,
                Control::Login(_) => true,
                _ => false,
            },
        }
    }
}

/// The progress that [`Engine::send_data`] made.
enum SendProgress {
    /// More data may be left to send.
    More,
    /// A sequence ended and more data is left: other output of the connection goes first.
    SequenceEnd,
    /// The task ended.
    TaskDone,
}

/// Returns the response of a task, without its counters.
fn response_of(task: &Task, ending: &TaskResult) -> ScsiResponse {
    ScsiResponse {
        response: ServiceResponse::COMPLETED,
        status: ending.status,
        status_qualifier: 0,
        itt: task.itt,
        snack_tag: task.snack_tag,
        sn: TargetSn::default(),
        //= rfc7143#section-11.4.8
        //# This field MUST be 0 if the response code is not Command Completed at
        //# Target or the target sent no Data-In PDUs for the command.
        exp_data_sn: DataSn(task.data_ins_sent()),
        bidirectional_read_residual: bidirectional_residual(task),
        residual: residual(task, ending),
    }
}

/// Returns the residual count of a task (§11.4.5.1). For a bidirectional command it is that of the write.
fn residual(task: &Task, ending: &TaskResult) -> Residual {
    let expected = if task.data_out_len > 0 { task.data_out_len } else { task.data_in_len };
    //= rfc7143#section-11.4.5.3
    //# If all of the LU inventory data presented to the iSCSI layer -- i.e., the data remaining after any
    //# SCSI truncation -- is transferred to the initiator by the iSCSI layer, an iSCSI Residual Overflow has
    //# not occurred and the iSCSI (O) bit MUST NOT be set in the SCSI Response or final SCSI Data-Out PDU.
    //= rfc7143#section-11.4.5.3
    //# However, if the iSCSI EDTL is larger than the ALLOCATION LENGTH in this scenario, note that the iSCSI
    //# Underflow MUST be signaled in the SCSI Response PDU.
    //= rfc7143#section-11.4.5.3
    //# An iSCSI Underflow MUST also be signaled when the iSCSI EDTL is equal to the ALLOCATION LENGTH but the
    //# LU inventory data presented to the iSCSI layer is smaller than the ALLOCATION LENGTH.
    let sent = if task.data_out_len > 0 { 0 } else { task.data_in.offset() };
    Residual::of(ending.transferable.unwrap_or(u64::from(sent)), expected)
}

fn bidirectional_residual(task: &Task) -> Residual {
    if task.data_out_len > 0 && task.data_in_len > 0 {
        //= rfc7143#section-11.4.6
        //# The Bidirectional Read Residual Count field MUST be valid in the case where either the u bit or
        //# the o bit is set.
        Residual::of(u64::from(task.data_in.offset()), task.data_in_len)
    } else {
        Residual::None
    }
}
