//! A SCSI task in the initiator: its state, the data that was received, the data that the target requested.

use alloc::vec::Vec;
use core::mem;

use base::buffer::{Buf, Bytes, Pool};
use base::int_cast::to_usize;
use base::time::Instant;
use smallvec::SmallVec;
use transport::initiator::{CommandResponse, Request, Residual};

use super::contract::Slot;
use super::protocol_error::ProtocolError;
use crate::fault_injection::{self, Bug};
use crate::framing::DataSink;
use crate::pdu::Ttt;
use crate::serial::{CmdSn, DataSn, StatSn};

/// A task.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) request: Request,
    pub(super) data_out_len: u32,
    pub(super) state: TaskState,
    pub(super) cmd_sn: CmdSn,
    /// Whether the task used up a CmdSN (`cmd_sn`).
    pub(super) numbered: bool,
    /// Whether it was sent again under its number, so that copies of it may be on their way.
    pub(super) resent: bool,
    /// The position of the task in the sending order of all requests of the session.
    pub(super) order: u64,
    pub(super) sent_at: Instant,
    /// The longest data segment that the initiator received when the task was sent: its data is cut to that.
    pub(super) segment_max: u32,
    pub(super) data_sns: DataSnTracker,
    pub(super) data_in: DataInBuffer,
    /// What had arrived when the first of the present gaps in the numbers opened.
    before_gap: Option<BeforeGap>,
    /// The data whose receipt the target knows of.
    acknowledged: Coverage,
    pub(super) data_out: Outbound,
    /// The response of the target, while some data of the task is missing.
    pub(super) status: Option<CommandResponse>,
    /// The StatSN of the response, and whether its acknowledgement is withheld because data is missing.
    pub(super) stat_sn: StatSn,
    pub(super) ack_withheld: bool,
    /// Whether the target refused to send missing PDUs again.
    pub(super) unrepairable: bool,
    /// Set while the data is being resegmented: then only a response with this tag counts (0: a response
    /// without one). See [`super::resegmentation`].
    pub(super) resegmentation: Option<Resegmentation>,
    /// The data acknowledgement that the target waits for: its LUN and transfer tag.
    pub(super) ack: Option<(u64, Ttt)>,
    /// How often the task was executed again.
    pub(super) replays: u8,
}

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskState {
    /// In the session's queue.
    Waiting,
    /// In the queue of a connection.
    Assigned(Slot),
    /// Sent, with allegiance to a connection.
    Sent(Slot),
    /// Sent, but its connection is lost.
    Detached(Slot),
}

/// The state of a task whose data is being resegmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resegmentation {
    /// The tag that its response must have; 0 once the task was reassigned to another connection.
    pub(super) tag: u32,
    /// When the data was requested, or data last arrived.
    pub(super) heard: Instant,
    /// How often the data was requested.
    pub(super) tries: u32,
}

impl Task {
    /// Records that the connection of the task is lost: the target forgets the SNACK tag (RFC 7143 §7.2.2).
    pub(super) const fn lose_tag(&mut self) {
        if let Some(anew) = &mut self.resegmentation {
            anew.tag = 0;
        }
    }

    pub(super) fn new(request: Request, data_out_len: u32) -> Self {
        let len = request.data_in_len;
        Self {
            request,
            data_out_len,
            state: TaskState::Waiting,
            cmd_sn: CmdSn(0),
            numbered: false,
            resent: false,
            order: 0,
            sent_at: Instant::ORIGIN,
            segment_max: 0,
            data_sns: DataSnTracker::default(),
            data_in: DataInBuffer::new(len),
            before_gap: None,
            acknowledged: Coverage::default(),
            data_out: Outbound::default(),
            status: None,
            stat_sn: StatSn(0),
            ack_withheld: false,
            unrepairable: false,
            resegmentation: None,
            ack: None,
            replays: 0,
        }
    }

    /// Returns the load of the task on its connection: its bytes of data, and 4096 for the task itself.
    pub(super) fn weight(&self) -> u64 {
        4096 + u64::from(self.data_out_len) + u64::from(self.request.data_in_len)
    }

    /// Returns the slot of the connection on which the PDUs of the task are sent and received.
    pub(super) const fn slot(&self) -> Option<Slot> {
        match self.state {
            TaskState::Assigned(slot) | TaskState::Sent(slot) => Some(slot),
            TaskState::Waiting | TaskState::Detached(_) => None,
        }
    }

    /// Returns whether the target may know the task.
    pub(super) const fn was_sent(&self) -> bool {
        matches!(self.state, TaskState::Sent(_) | TaskState::Detached(_)) || self.numbered
    }

    /// Returns the place of the task in the order in which tasks were sent, if it was sent.
    pub(super) fn send_order(&self) -> Option<u64> {
        self.was_sent().then_some(self.order)
    }

    /// Resets the task to the state before it was sent.
    pub(super) fn start_over(&mut self, pool: &Pool) {
        self.forget_data_in(pool);
        self.data_out = Outbound::default();
        (self.status, self.ack, self.unrepairable, self.ack_withheld) = (None, None, false, false);
        self.resegmentation = None;
        (self.state, self.numbered, self.resent) = (TaskState::Waiting, false, false);
    }

    /// Discards all received data and its numbers.
    pub(super) fn forget_data_in(&mut self, pool: &Pool) {
        self.data_in.clear(pool);
        self.data_sns = DataSnTracker::default();
        (self.before_gap, self.acknowledged) = (None, Coverage::default());
    }

    /// Records that a number was received, and what had arrived before if it opens a gap.
    pub(super) fn take_number(&mut self, sn: u32) -> Result<(), ProtocolError> {
        self.open_gap(sn);
        self.data_sns.take(sn)
    }

    /// Records that all numbers before `end` were sent.
    pub(super) fn expect_numbers(&mut self, end: u32) -> Result<(), ProtocolError> {
        self.open_gap(end);
        self.data_sns.expect_up_to(end)
    }

    fn open_gap(&mut self, end: u32) {
        let DataSnTracker { next, r2ts, missing } = &self.data_sns;
        if missing.is_empty() && end > *next {
            self.before_gap = Some(BeforeGap { next: *next, r2ts: *r2ts, data: self.data_in.coverage() });
        }
    }

    /// Records that the target is told of all data that has arrived.
    pub(super) fn acknowledge_data_in(&mut self) {
        self.acknowledged = self.data_in.coverage();
    }

    /// Discards all data that the target does not know as received, and everything behind the first gap.
    /// Returns the number from which on the target sends the data again: that of the gap.
    pub(super) fn rewind(&mut self) -> DataSn {
        //= rfc7143#section-11.5.6
        //# The initiator MUST discard any data PDUs from the previous execution that it did not acknowledge
        if self.resegmentation.is_some() {
            // The numbers are meaningless: the data begins where the target knows it as acknowledged.
            self.data_in.keep_only(&self.acknowledged);
            return DataSn(0);
        }
        //= rfc7143#section-11.16.2
        //# An initiator MUST NOT request retransmission for any data it had already acknowledged.
        match self.before_gap.take().filter(|_| !self.data_sns.missing.is_empty()) {
            Some(gap) if self.request.data_in_len > 0 => {
                (self.data_sns.next, self.data_sns.r2ts) = (gap.next, gap.r2ts);
                self.data_in.keep_only(&gap.data);
            }
            _ => self.data_sns.next = self.data_sns.contiguous(),
        }
        self.data_sns.missing.clear();
        self.acknowledge_data_in();
        DataSn(self.data_sns.next)
    }

    /// Checks whether the received data matches the residual count of the response.
    pub(super) fn check_end(&self, ending: &CommandResponse) -> Result<(), ProtocolError> {
        if ending.status != 0 || self.data_in.len == 0 {
            return Ok(());
        }
        let residual = if self.data_out_len > 0 { ending.read_residual } else { ending.residual };
        let under = if let Residual::Underflow(by) = residual { by } else { 0 };
        if self.data_in.received.checked_add(under) == Some(self.data_in.len) {
            Ok(())
        } else {
            Err(ProtocolError::DataInShort)
        }
    }
}

/// Tracks the numbers of the Data-In and R2T PDUs of a task, which share one number space (RFC 7143
/// §4.2.2.4).
#[derive(Debug, Default)]
pub(super) struct DataSnTracker {
    pub(super) next: u32,
    /// Ranges below `next` that are missing: the first number, and the one after the last.
    pub(super) missing: SmallVec<[(u32, u32); 1]>,
    /// How many of the received PDUs were R2Ts.
    pub(super) r2ts: u32,
}

/// The relation of a number to those received before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Next,
    Ahead,
    Missing,
    Seen,
}

/// How far ahead a number may be: more PDUs than one loss affects.
const MAX_AHEAD: u32 = 1 << 16;

/// The most ranges that may be missing at a time.
const MAX_MISSING: usize = 64;

impl DataSnTracker {
    pub(super) fn judge(&self, sn: u32) -> Number {
        if sn == self.next {
            Number::Next
        } else if sn > self.next {
            Number::Ahead
        } else if self.missing.iter().any(|(from, to)| (*from..*to).contains(&sn)) {
            Number::Missing
        } else {
            Number::Seen
        }
    }

    /// Records that a number was received.
    pub(super) fn take(&mut self, sn: u32) -> Result<(), ProtocolError> {
        match self.judge(sn) {
            Number::Next => self.next = sn.wrapping_add(1),
            Number::Ahead => {
                self.expect_up_to(sn)?;
                self.next = sn.wrapping_add(1);
            }
            Number::Missing => {
                let Some(at) = self.missing.iter().position(|(from, to)| (*from..*to).contains(&sn)) else {
                    return Ok(());
                };
                let (from, to) = self.missing.remove(at);
                for run in [(from, sn), (sn.wrapping_add(1), to)] {
                    if run.0 < run.1 {
                        self.missing.push(run);
                    }
                }
                self.missing.sort_unstable();
            }
            Number::Seen => {}
        }
        Ok(())
    }

    /// Records that all numbers before `end` were sent.
    pub(super) fn expect_up_to(&mut self, end: u32) -> Result<(), ProtocolError> {
        if end <= self.next {
            return Ok(());
        }
        if end - self.next > MAX_AHEAD || self.missing.len() >= MAX_MISSING {
            return Err(ProtocolError::NotRepaired);
        }
        self.missing.push((self.next, end));
        self.next = end;
        Ok(())
    }

    /// Returns the first number that was not received.
    pub(super) fn contiguous(&self) -> u32 {
        self.missing.first().map_or(self.next, |(from, _)| *from)
    }
}

/// The state of a task when the first gap in its numbers opened.
#[derive(Debug)]
struct BeforeGap {
    next: u32,
    r2ts: u32,
    data: Coverage,
}

/// Which bytes of the data have arrived: as in [`DataInBuffer`].
#[derive(Clone, Debug, Default)]
struct Coverage {
    received: u32,
    spans: Vec<(u32, u32)>,
}

/// The data that a task receives.
#[derive(Debug)]
pub(super) struct DataInBuffer {
    /// The receive buffer; `None` while a PDU of the task is being read.
    buf: Option<Buf>,
    /// How many bytes are expected.
    pub(super) len: u32,
    /// How many bytes have arrived from the start without a gap.
    pub(super) received: u32,
    /// The ranges that have arrived after a gap: sorted, not adjacent.
    spans: Vec<(u32, u32)>,
    /// Whether the buffer is filled to its end, so that data can be stored at any offset.
    placed: bool,
}

/// The most separate ranges that may exist after gaps.
const MAX_SPANS: usize = 256;

impl DataInBuffer {
    const fn new(len: u32) -> Self {
        Self { buf: None, len, received: 0, spans: Vec::new(), placed: false }
    }

    /// Checks a data segment before it is read. With `strict` it must not cover received data; with
    /// `in_order` it must begin where the last one ended.
    pub(super) fn check(
        &self,
        offset: u32,
        len: u32,
        strict: bool,
        in_order: bool,
    ) -> Result<(), ProtocolError> {
        let end = offset
            .checked_add(len)
            .filter(|end| *end <= self.len)
            .ok_or(ProtocolError::DataInBeyondBuffer)?;
        if in_order && offset != self.received {
            return Err(ProtocolError::DataInOffset);
        }
        let covers = |from: u32, to: u32| offset < to && from < end;
        if strict && (covers(0, self.received) || self.spans.iter().any(|(from, to)| covers(*from, *to))) {
            return Err(ProtocolError::DataInOffset);
        }
        if self.spans.len() >= MAX_SPANS { Err(ProtocolError::DataInScattered) } else { Ok(()) }
    }

    /// Returns the destination of a data segment whose header was accepted.
    ///
    /// The digest of a segment is known only after its last byte was written, so no segment overwrites valid
    /// bytes: a segment of which every byte has arrived is read and discarded, and for any other segment the
    /// bytes that have arrived become invalid until the digest proves right.
    pub(super) fn sink_for(&mut self, pool: &Pool, offset: u32, len: u32) -> DataSink {
        let end = offset.saturating_add(len);
        if self.buf.is_some() && self.has(offset, end) && !fault_injection::is_injected(Bug::LandOverCounted)
        {
            return DataSink::Discard;
        }
        let mut buf = match self.buf.take() {
            Some(buf) => buf,
            None => {
                // A new buffer: the contents of an earlier one, if any, are lost.
                (self.received, self.placed) = (0, false);
                self.spans.clear();
                pool.take(to_usize(self.len))
            }
        };
        if !self.placed && offset == self.received {
            return DataSink::Append(buf);
        }
        if !self.placed {
            buf.append_zeros(to_usize(self.len).saturating_sub(buf.len()));
            self.placed = true;
        }
        if !fault_injection::is_injected(Bug::LandOverCounted) {
            self.invalidate(offset, end);
        }
        DataSink::Overwrite { buf, at: to_usize(offset) }
    }

    /// Returns whether every byte of a range is valid.
    fn has(&self, from: u32, to: u32) -> bool {
        to <= self.received || self.spans.iter().any(|(start, end)| *start <= from && to <= *end)
    }

    /// Marks the bytes of a range as invalid.
    fn invalidate(&mut self, from: u32, to: u32) {
        if from < self.received {
            if to < self.received {
                self.spans.push((to, self.received));
            }
            self.received = from;
        }
        if self.spans.iter().any(|(start, end)| from < *end && *start < to) {
            let spans = mem::take(&mut self.spans);
            let around = |(start, end): (u32, u32)| [(start, end.min(from)), (start.max(to), end)];
            self.spans.extend(spans.into_iter().flat_map(around).filter(|(start, end)| start < end));
        }
        self.spans.sort_unstable();
    }

    /// Takes the buffer back; a segment that is incomplete or damaged counts as never received.
    pub(super) fn restore(&mut self, pool: &Pool, sink: DataSink) {
        if let DataSink::Append(mut buf) | DataSink::Overwrite { mut buf, .. } = sink {
            if !self.placed {
                buf.truncate(to_usize(self.received));
            }
            if let Some(old) = self.buf.replace(buf) {
                pool.recycle_buf(old);
            }
        }
    }

    /// Takes the buffer back with a valid segment. The bytes of a discarded segment were already valid.
    pub(super) fn commit(&mut self, pool: &Pool, sink: DataSink, offset: u32, len: u32) {
        if matches!(sink, DataSink::Discard | DataSink::TakenByDriver { .. }) {
            return;
        }
        let end = offset.saturating_add(len);
        if offset <= self.received {
            self.received = self.received.max(end);
        } else if len > 0 {
            self.spans.push((offset, end));
            self.spans.sort_unstable();
        }
        if !self.spans.is_empty() {
            self.merge();
        }
        self.restore(pool, sink);
    }

    fn merge(&mut self) {
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(self.spans.len());
        for (from, to) in self.spans.drain(..) {
            if from <= self.received {
                self.received = self.received.max(to);
                continue;
            }
            match merged.last_mut() {
                Some((_, end)) if *end >= from => *end = (*end).max(to),
                _ => merged.push((from, to)),
            }
        }
        self.spans = merged;
    }

    /// Returns how many bytes have arrived, those after gaps included.
    pub(super) fn landed(&self) -> u64 {
        let behind = self.spans.iter().map(|(from, to)| u64::from(to.saturating_sub(*from)));
        behind.fold(u64::from(self.received), u64::saturating_add)
    }

    fn coverage(&self) -> Coverage {
        Coverage { received: self.received, spans: self.spans.clone() }
    }

    /// Discards the bytes that are not in `kept`.
    fn keep_only(&mut self, kept: &Coverage) {
        let own = self.coverage();
        let mut spans = Vec::new();
        for (from, to) in own.ranges() {
            let both = kept.ranges().map(|(start, end)| (from.max(start), to.min(end)));
            spans.extend(both.filter(|(start, end)| start < end));
        }
        (self.received, self.spans) = (0, spans);
        self.merge();
        if let Some(buf) = self.buf.as_mut().filter(|_| !self.placed) {
            buf.truncate(to_usize(self.received));
        }
    }

    /// Returns the received data, without gaps.
    pub(super) fn finish(&mut self) -> Option<Bytes> {
        let mut buf = self.buf.take()?;
        buf.truncate(to_usize(self.received));
        Some(buf.freeze())
    }

    /// Discards the received data.
    pub(super) fn clear(&mut self, pool: &Pool) {
        if let Some(buf) = self.buf.take() {
            pool.recycle_buf(buf);
        }
        (self.received, self.placed) = (0, false);
        self.spans.clear();
    }

    /// Returns whether the buffer was lost with the connection that was receiving into it.
    pub(super) const fn lost_buffer(&self) -> bool {
        self.buf.is_none() && (self.received > 0 || !self.spans.is_empty())
    }
}

impl Coverage {
    fn ranges(&self) -> impl Iterator<Item = (u32, u32)> {
        [(0, self.received)].into_iter().chain(self.spans.iter().copied())
    }
}

/// The data that a task sends.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    /// The unsolicited data that follows the command.
    pub(super) unsolicited: Option<DataOutSequence>,
    /// The R2Ts that are not fully answered.
    pub(super) bursts: SmallVec<[DataOutSequence; 1]>,
    /// The end of the data that the target requested or that is sent unsolicited.
    pub(super) requested_end: u32,
}

/// A Data-Out sequence that is being sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataOutSequence {
    /// The R2TSN of its R2T.
    pub(super) r2t_sn: u32,
    pub(super) ttt: Ttt,
    pub(super) lun: u64,
    /// The offset of the next byte to send.
    pub(super) at: u32,
    pub(super) end: u32,
    pub(super) data_sn: DataSn,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn land(data_in: &mut DataInBuffer, pool: &Pool, offset: u32, data: &[u8]) {
        let len = base::int_cast::to_u32(data.len());
        let mut sink = data_in.sink_for(pool, offset, len);
        match &mut sink {
            DataSink::Append(buf) => {
                buf.append(data);
            }
            DataSink::Overwrite { buf, at } => buf.filled_mut()[*at..*at + data.len()].copy_from_slice(data),
            _ => assert!(data_in.has(offset, offset + len), "it must land"),
        }
        data_in.commit(pool, sink, offset, len);
    }

    #[test]
    fn data_lands_where_it_belongs_in_any_order() {
        let pool = Pool::new(1 << 20);
        let mut data_in = DataInBuffer::new(10);
        land(&mut data_in, &pool, 0, b"ab");
        land(&mut data_in, &pool, 8, b"ij");
        land(&mut data_in, &pool, 4, b"ef");
        assert_eq!(data_in.received, 2);
        assert_eq!(data_in.check(1, 2, true, false), Err(ProtocolError::DataInOffset));
        assert_eq!(data_in.check(5, 1, true, false), Err(ProtocolError::DataInOffset));
        assert_eq!(data_in.check(5, 1, false, false), Ok(()));
        assert_eq!(data_in.check(2, 2, true, true), Ok(()));
        land(&mut data_in, &pool, 2, b"cd");
        assert_eq!(data_in.received, 6);
        land(&mut data_in, &pool, 6, b"gh");
        assert_eq!(data_in.finish().as_deref(), Some(&b"abcdefghij"[..]));
    }

    #[test]
    fn a_damaged_piece_is_as_if_it_never_came() {
        let pool = Pool::new(1 << 20);
        let mut data_in = DataInBuffer::new(8);
        land(&mut data_in, &pool, 0, b"ab");
        let mut sink = data_in.sink_for(&pool, 2, 2);
        if let DataSink::Append(buf) = &mut sink {
            buf.append(b"XX");
        }
        data_in.restore(&pool, sink);
        land(&mut data_in, &pool, 4, b"ef");
        land(&mut data_in, &pool, 2, b"cd");
        assert_eq!(data_in.finish().as_deref(), Some(&b"abcdef"[..]));
    }

    /// Begins to receive a segment and writes bytes that will prove damaged.
    fn hurt(data_in: &mut DataInBuffer, pool: &Pool, offset: u32, len: u32) {
        let mut sink = data_in.sink_for(pool, offset, len);
        match &mut sink {
            DataSink::Append(buf) => {
                buf.append(&alloc::vec![b'X'; to_usize(len)]);
            }
            DataSink::Overwrite { buf, at } => buf.filled_mut()[*at..*at + to_usize(len)].fill(b'X'),
            _ => {}
        }
        data_in.restore(pool, sink);
    }

    #[test]
    fn damaged_bytes_never_count_wherever_they_stood() {
        let want: Vec<u8> = (0..40).map(|at| b'a' + at % 26).collect();
        for seed in 0..2000 {
            let mut rng = base::rng::Rng::from_seed(seed);
            let pool = Pool::new(1 << 20);
            let mut data_in = DataInBuffer::new(40);
            while data_in.received < 40 {
                let from = u32::try_from(rng.below(40)).unwrap();
                let len = 1 + u32::try_from(rng.below(u64::from(40 - from))).unwrap().min(12);
                let len = len.min(40 - from);
                let had = data_in.has(from, from + len);
                if rng.below(3) == 0 {
                    hurt(&mut data_in, &pool, from, len);
                    assert_eq!(
                        data_in.has(from, from + len),
                        had,
                        "seed {seed}: whole it stays, in part it goes"
                    );
                } else {
                    land(&mut data_in, &pool, from, &want[to_usize(from)..to_usize(from + len)]);
                    assert!(data_in.has(from, from + len), "seed {seed}");
                }
            }
            assert_eq!(data_in.finish().as_deref(), Some(&want[..]), "seed {seed}");
        }
    }

    #[test]
    fn a_piece_that_is_discarded_does_not_count_for_a_buffer_that_is_gone() {
        let pool = Pool::new(1 << 20);
        let mut data_in = DataInBuffer::new(8);
        land(&mut data_in, &pool, 0, b"abcd");
        let sink = data_in.sink_for(&pool, 0, 4);
        assert!(matches!(sink, DataSink::Discard));
        data_in.clear(&pool);
        data_in.commit(&pool, sink, 0, 4);
        assert_eq!(data_in.received, 0);
    }

    #[test]
    fn no_offset_leads_beyond_the_buffer() {
        let data_in = DataInBuffer::new(100);
        for (offset, len) in [(100, 1), (99, 2), (u32::MAX, 1), (u32::MAX, u32::MAX), (1, u32::MAX)] {
            assert_eq!(
                data_in.check(offset, len, false, false),
                Err(ProtocolError::DataInBeyondBuffer),
                "{offset} {len}"
            );
        }
    }

    #[test]
    fn missing_numbers_are_known_until_they_come() {
        let mut numbers = DataSnTracker::default();
        for sn in [0, 1, 5, 9] {
            numbers.take(sn).unwrap();
        }
        assert_eq!(numbers.missing.as_slice(), [(2, 5), (6, 9)]);
        assert_eq!((numbers.judge(3), numbers.judge(5)), (Number::Missing, Number::Seen));
        numbers.take(3).unwrap();
        assert_eq!(numbers.missing.as_slice(), [(2, 3), (4, 5), (6, 9)]);
        assert_eq!(numbers.contiguous(), 2);
        for sn in [2, 4, 6, 7, 8] {
            numbers.take(sn).unwrap();
        }
        assert_eq!((numbers.contiguous(), numbers.next), (10, 10));
        assert_eq!(numbers.take(u32::MAX), Err(ProtocolError::NotRepaired));
    }
}
