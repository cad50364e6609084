//! What leaves: Data-In cut to the peer's measure, responses, R2Ts and the small PDUs, built when the driver has
//! room for them (RFC 7143 §4.2.2.2, §11.4, §11.7).
//!
//! Nothing is built ahead: the queue of a connection holds names, so a slow reader holds no more of us than the
//! driver's batch, and every PDU carries the counters as they are when it leaves.

use base::buffer::{Bytes, DataList};
use base::machine::ConnId;
use base::time::Instant;
use base::transmit::Transmit;

use super::arena::Key;
use super::connection::{Body, Connection, Control, Output};
use super::contract::TaskRef;
use super::engine::Engine;
use super::task::{Ending, Task};
use crate::digest::{Crc32c, DIGEST_LEN};
use crate::negotiate::Digest;
use crate::pdu::data_in::{DataIn, DataInStatus};
use crate::pdu::scsi_response::{ScsiResponse, ServiceResponse};
use crate::pdu::{BHS_LEN, Bhs, MAX_DATA_SEGMENT, Message, Residual, TargetSn, Ttt};
use crate::serial::DataSn;

impl Engine {
    /// Queues `data` for the initiator, at `offset` of a task's data. Pieces of a task follow one another without
    /// gaps, and end within `data_in_len`. A name that means nothing any more is ignored.
    pub fn data_in(&mut self, task: TaskRef, offset: u32, data: DataList) {
        let key = task.0;
        let Some(state) = self.tasks.get_mut(key).filter(|task| task.ending.is_none()) else { return };
        let len = u64::try_from(data.len()).unwrap_or(u64::MAX);
        let (end, session) = (state.inn.end(), state.session);
        if u64::from(offset) != end || end.saturating_add(len) > u64::from(state.data_in_len) {
            return self.bug(session);
        }
        for part in data.into_parts() {
            state.inn.push(part);
        }
        if !state.listed && state.inn.queued > 0 {
            state.listed = true;
            let conn = state.conn;
            self.queue(conn, Output::Task(key));
        }
    }

    /// Appends what a connection has to send until `out` is full or nothing is left.
    pub fn transmit(&mut self, now: Instant, conn: ConnId, out: &mut Transmit) {
        if let Some(connection) = self.conn_mut(conn) {
            connection.asked = false;
        }
        while !out.is_full() {
            let Some(output) = self.conn_mut(conn).and_then(|connection| connection.out.pop_front()) else {
                return;
            };
            match output {
                Output::Task(key) => self.send_task(conn, key, out),
                Output::R2t(key, ttt) => self.send_r2t(now, conn, (key, ttt), out),
                Output::Control(control) => {
                    let (control, body) = *control;
                    self.send_control(conn, control, &body, out);
                    if let Body::Echo(bytes) = body {
                        self.pool.recycle(bytes);
                    }
                }
            }
        }
        // More is left than fits: the driver comes again when it has room, as `is_full` tells it.
        if let Some(connection) = self.conn_mut(conn) {
            connection.asked = !connection.out.is_empty();
        }
    }

    fn send_control(&mut self, conn: ConnId, control: Control, body: &Body, out: &mut Transmit) {
        let sn = self.counters(conn);
        let Some(connection) = self.conn_mut(conn) else { return };
        let data = body.bytes();
        connection.control_queued = connection.control_queued.saturating_sub(1);
        connection.control_bytes = connection.control_bytes.saturating_sub(data.len());
        let (bhs, uses_stat_sn) = control.encode(sn);
        if uses_stat_sn {
            connection.use_stat_sn();
        }
        // The last PDU of the login, which agrees on digests, carries none itself (§13.1).
        let digests =
            if matches!(control, Control::Login(_)) { Digests::NONE } else { Digests::of(connection) };
        digests.header(bhs.with_data_len(data.len()), out);
        out.put(data);
        digests.trailer(data.len(), digests.data.then(|| crc_of(data)), out);
        self.stats.pdus_out += 1;
    }

    fn send_r2t(&mut self, now: Instant, conn: ConnId, (key, ttt): (Key, Ttt), out: &mut Transmit) {
        let sn = self.counters(conn);
        if let Some(bhs) = self.r2t(key, ttt, sn)
            && let Some(connection) = self.conn(conn)
        {
            Digests::of(connection).header(bhs, out);
            self.stats.pdus_out += 1;
            self.watch_data(now, conn);
        }
    }

    /// Sends the data of a task as far as there is room, and its end if that is known.
    fn send_task(&mut self, conn: ConnId, key: Key, out: &mut Transmit) {
        loop {
            let Some(task) = self.tasks.get(key) else { return };
            let may_end = task.ending.is_some() && !task.out.is_expecting();
            if task.inn.queued == 0 {
                if may_end {
                    self.send_response(conn, key, out);
                } else if let Some(task) = self.tasks.get_mut(key) {
                    task.listed = false;
                }
                return;
            }
            if out.is_full() {
                return self.send_later(conn, key, true);
            }
            match self.send_data(conn, key, may_end, out) {
                Sent::More => {}
                Sent::Burst => return self.send_later(conn, key, false),
                Sent::All => return,
            }
        }
    }

    fn send_later(&mut self, conn: ConnId, key: Key, first: bool) {
        let Some(connection) = self.conn_mut(conn) else { return };
        if first {
            connection.out.push_front(Output::Task(key));
        } else {
            connection.out.push_back(Output::Task(key));
        }
    }

    /// Sends one Data-In.
    fn send_data(&mut self, conn: ConnId, key: Key, may_end: bool, out: &mut Transmit) -> Sent {
        let Some(connection) = self.conn(conn) else { return Sent::All };
        let digests = Digests::of(connection);
        let segment_max = to_usize(connection.parameters.initiator_max_recv.min(MAX_DATA_SEGMENT));
        let Some(task) = self.tasks.get_mut(key) else { return Sent::All };
        let Some(state) = self.sessions.get_mut(task.session) else { return Sent::All };
        let burst_max = to_usize(state.parameters.max_burst_length);
        let len = task.inn.queued.min(segment_max).min(burst_max.saturating_sub(task.inn.burst)).max(1);
        let last = len == task.inn.queued;
        task.inn.burst += len;
        let is_final = last || task.inn.burst >= burst_max;
        let (data_sn, buffer_offset, itt) = (task.inn.data_sn, task.inn.offset, task.itt);
        task.inn.data_sn = data_sn.next();
        if is_final {
            task.inn.burst = 0;
        }
        let status = task.ending.as_ref().filter(|ending| last && may_end && ending.is_good());
        let status =
            status.map(|ending| DataInStatus { status: ending.status, residual: residual(task, ending) });
        let mut parts: smallvec::SmallVec<[Bytes; 4]> = smallvec::SmallVec::new();
        task.inn.take(len, |part| parts.push(part));
        task.inn.reserved = task.inn.reserved.saturating_sub(len);
        self.answers.give(Some(&mut state.answers), len);
        let (moved, session) = (u64::try_from(len).unwrap_or(0), task.session);
        state.traffic.data_in_bytes += moved;
        let waiting = !state.ready.is_empty();
        self.stats.data_in_bytes += moved;
        let ends = status.is_some();
        if ends {
            // The tag is free once the status has left, and the window in this PDU shows it.
            self.retire(key);
        } else if waiting {
            self.drain_ready(session);
        }
        let sn = self.counters(conn);
        if ends && let Some(connection) = self.conn_mut(conn) {
            connection.use_stat_sn();
        }
        let header = DataIn {
            is_final,
            acknowledge: false,
            status,
            lun: 0,
            itt,
            ttt: Ttt::NONE,
            sn,
            data_sn,
            buffer_offset,
        };
        digests.header(header.encode().with_data_len(len), out);
        digests.data(len, parts, out);
        self.stats.pdus_out += 1;
        match (ends, is_final && !last) {
            (true, _) => Sent::All,
            (false, true) => Sent::Burst,
            (false, false) => Sent::More,
        }
    }

    /// Sends a SCSI Response; the task is over.
    fn send_response(&mut self, conn: ConnId, key: Key, out: &mut Transmit) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let Some(ending) = task.ending.take() else { return };
        let numbers = task.inn.data_sn.0.wrapping_add(task.out.r2t_sn.0);
        let mut response = ScsiResponse {
            response: ServiceResponse::COMPLETED,
            status: ending.status,
            status_qualifier: 0,
            itt: task.itt,
            snack_tag: 0,
            sn: TargetSn::default(),
            exp_data_sn: DataSn(numbers),
            bidirectional_read_residual: bidirectional_residual(task),
            residual: residual(task, &ending),
        };
        self.retire(key);
        response.sn = self.counters(conn);
        let Some(connection) = self.conn_mut(conn) else { return };
        connection.use_stat_sn();
        let digests = Digests::of(connection);
        match &ending.sense {
            None => digests.header(response.encode(), out),
            Some(sense) => {
                // §11.4.7: a length and the sense data.
                let len = u16::try_from(sense.len()).unwrap_or(0).to_be_bytes();
                let data = [&len, &**sense].concat();
                digests.header(response.encode().with_data_len(data.len()), out);
                out.put(&data);
                digests.trailer(data.len(), digests.data.then(|| crc_of(&data)), out);
            }
        }
        self.stats.pdus_out += 1;
    }
}

/// How far [`Engine::send_data`] came.
enum Sent {
    /// There may be more to send.
    More,
    /// A sequence ended and there is more: others go first.
    Burst,
    /// The task ended.
    All,
}

/// Returns the residual count of a task (§11.4.5.1). In a bidirectional command it is that of the write.
fn residual(task: &Task, ending: &Ending) -> Residual {
    let expected = if task.data_out_len > 0 { task.data_out_len } else { task.data_in_len };
    Residual::of(ending.transferable, expected)
}

fn bidirectional_residual(task: &Task) -> Residual {
    if task.data_out_len > 0 && task.data_in_len > 0 {
        Residual::of(u64::from(task.inn.offset), task.data_in_len)
    } else {
        Residual::None
    }
}

/// Which digests the PDUs of a connection carry.
#[derive(Clone, Copy)]
struct Digests {
    header: bool,
    data: bool,
}

impl Digests {
    const NONE: Self = Self { header: false, data: false };

    fn of(connection: &Connection) -> Self {
        Self {
            header: connection.parameters.header_digest == Digest::Crc32c,
            data: connection.parameters.data_digest == Digest::Crc32c,
        }
    }

    fn header(self, bhs: Bhs, out: &mut Transmit) {
        let bytes = bhs.bytes();
        if self.header {
            let mut whole = [0; BHS_LEN + DIGEST_LEN];
            let (header, digest) = whole.split_at_mut(BHS_LEN);
            header.copy_from_slice(bytes);
            digest.copy_from_slice(&Crc32c::of(bytes));
            out.put(&whole);
        } else {
            out.put(bytes);
        }
    }

    fn data(self, len: usize, parts: impl IntoIterator<Item = Bytes>, out: &mut Transmit) {
        let mut crc = Crc32c::new();
        for part in parts {
            if self.data {
                crc.update(&part);
            }
            out.share(part);
        }
        self.trailer(len, self.data.then_some(crc), out);
    }

    /// Appends the padding and the digest of a data segment.
    fn trailer(self, len: usize, crc: Option<Crc32c>, out: &mut Transmit) {
        let padding = len.wrapping_neg() % 4;
        let zeros = [0u8; 3];
        let padding = zeros.get(..padding).unwrap_or_default();
        match crc.filter(|_| len > 0) {
            Some(mut crc) => {
                let mut tail = [0; 3 + DIGEST_LEN];
                if !padding.is_empty() {
                    crc.update(padding);
                }
                let end = padding.len() + DIGEST_LEN;
                if let Some(room) = tail.get_mut(padding.len()..end) {
                    room.copy_from_slice(&crc.finish());
                }
                out.put(tail.get(..end).unwrap_or_default());
            }
            None => out.put(padding),
        }
    }
}

fn crc_of(data: &[u8]) -> Crc32c {
    let mut crc = Crc32c::new();
    crc.update(data);
    crc
}

fn to_usize(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
