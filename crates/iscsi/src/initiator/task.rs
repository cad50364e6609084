//! A SCSI task as the initiator sees it: where it stands, what data came, what data was asked for.

use alloc::vec::Vec;
use core::mem;

use base::buffer::{Buf, Bytes, Pool};
use base::planted::{self, Bug};
use base::time::Instant;
use smallvec::SmallVec;

use super::anew::Anew;
use super::contract::{Ending, Request, Slot};
use super::why::Why;
use crate::pdu::{Residual, Ttt};
use crate::receive::Landing;
use crate::serial::{CmdSn, DataSn, StatSn};

/// A task.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) request: Request,
    pub(super) data_out_len: u32,
    pub(super) standing: Standing,
    pub(super) cmd_sn: CmdSn,
    /// Whether `cmd_sn` was used up for it.
    pub(super) numbered: bool,
    /// Whether it was sent again under its number, so that copies of it may be on their way.
    pub(super) resent: bool,
    /// When it was sent, among all requests of the session.
    pub(super) order: u64,
    pub(super) sent_at: Instant,
    /// The longest data segment that we took when it was sent: its data is cut by that.
    pub(super) segment_max: u32,
    pub(super) numbers: Numbers,
    pub(super) inn: Inbound,
    pub(super) out: Outbound,
    /// How it ended, while some of its data is missing.
    pub(super) ending: Option<Ending>,
    /// The number of its status, and whether that is not acknowledged because data is missing.
    pub(super) stat_sn: StatSn,
    pub(super) held: bool,
    /// Whether the target refused to send again what is missing.
    pub(super) unrepairable: bool,
    /// Its data comes cut anew, and only a response with this tag counts (0: any without one); see [`super::anew`].
    pub(super) anew: Option<Anew>,
    /// The acknowledgement of data that the target waits for: its LUN and transfer tag.
    pub(super) ack: Option<(u64, Ttt)>,
    /// How often it was carried out again.
    pub(super) replays: u8,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// In the session's queue.
    Waiting,
    /// In the queue of a connection.
    Assigned(Slot),
    /// On the way, allegiant to a connection.
    Sent(Slot),
    /// On the way, but its connection is lost.
    Orphan(Slot),
}

impl Task {
    pub(super) fn new(request: Request, data_out_len: u32) -> Self {
        let len = request.data_in_len;
        Self {
            request,
            data_out_len,
            standing: Standing::Waiting,
            cmd_sn: CmdSn(0),
            numbered: false,
            resent: false,
            order: 0,
            sent_at: Instant::ORIGIN,
            segment_max: 0,
            numbers: Numbers::default(),
            inn: Inbound::new(len),
            out: Outbound::default(),
            ending: None,
            stat_sn: StatSn(0),
            held: false,
            unrepairable: false,
            anew: None,
            ack: None,
            replays: 0,
        }
    }

    /// Returns how much it weighs on its connection: its data, and something for being there.
    pub(super) fn weight(&self) -> u64 {
        4096 + u64::from(self.data_out_len) + u64::from(self.request.data_in_len)
    }

    /// Returns the slot that its PDUs come and go on.
    pub(super) const fn slot(&self) -> Option<Slot> {
        match self.standing {
            Standing::Assigned(slot) | Standing::Sent(slot) => Some(slot),
            Standing::Waiting | Standing::Orphan(_) => None,
        }
    }

    /// Returns whether the target may know of it.
    pub(super) const fn is_out(&self) -> bool {
        matches!(self.standing, Standing::Sent(_) | Standing::Orphan(_)) || self.numbered
    }

    /// Forgets everything that happened to it.
    pub(super) fn start_over(&mut self, pool: &Pool) {
        self.inn.clear(pool);
        self.out = Outbound::default();
        self.numbers = Numbers::default();
        (self.ending, self.ack, self.unrepairable, self.held) = (None, None, false, false);
        self.anew = None;
        (self.standing, self.numbered, self.resent) = (Standing::Waiting, false, false);
    }

    /// Judges whether as much data came as the status says.
    pub(super) fn check_end(&self, ending: &Ending) -> Result<(), Why> {
        if ending.status != 0 || self.inn.len == 0 {
            return Ok(());
        }
        let residual = if self.data_out_len > 0 { ending.read_residual } else { ending.residual };
        let under = if let Residual::Underflow(by) = residual { by } else { 0 };
        if self.inn.received.checked_add(under) == Some(self.inn.len) {
            Ok(())
        } else {
            Err(Why::DataInShort)
        }
    }
}

/// The numbers of the Data-In and R2T PDUs of a task, which share one space (RFC 7143 §4.2.2.4).
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) next: u32,
    /// Runs below `next` that did not come: first, and one behind the last.
    pub(super) missing: SmallVec<[(u32, u32); 1]>,
    /// How many of those that came are of R2Ts.
    pub(super) r2ts: u32,
}

/// How a number stands to those that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Next,
    Ahead,
    Missing,
    Seen,
}

/// How far ahead a number may be: more PDUs than one loss takes.
const MAX_AHEAD: u32 = 1 << 16;

/// How many runs may be missing at a time.
const MAX_MISSING: usize = 64;

impl Numbers {
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

    /// Notes that a number came.
    pub(super) fn take(&mut self, sn: u32) -> Result<(), Why> {
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

    /// Notes that all numbers before `end` were sent.
    pub(super) fn expect_up_to(&mut self, end: u32) -> Result<(), Why> {
        if end <= self.next {
            return Ok(());
        }
        if end - self.next > MAX_AHEAD || self.missing.len() >= MAX_MISSING {
            return Err(Why::NotRepaired);
        }
        self.missing.push((self.next, end));
        self.next = end;
        Ok(())
    }

    /// Returns the first number that did not come.
    pub(super) fn contiguous(&self) -> u32 {
        self.missing.first().map_or(self.next, |(from, _)| *from)
    }

    /// Forgets everything behind what came without a gap, and returns where that ends.
    pub(super) fn rewind(&mut self) -> DataSn {
        self.next = self.contiguous();
        self.missing.clear();
        DataSn(self.next)
    }
}

/// The data that a task receives.
#[derive(Debug)]
pub(super) struct Inbound {
    /// Where it lands; away while a PDU of it is being read.
    buf: Option<Buf>,
    /// How much is expected.
    pub(super) len: u32,
    /// How much is here from the start without a gap.
    pub(super) received: u32,
    /// What is here behind a gap: sorted, not touching.
    spans: Vec<(u32, u32)>,
    /// Whether the buffer is filled to its end, so that data can be put anywhere.
    placed: bool,
}

/// How many separate pieces may lie behind gaps.
const MAX_SPANS: usize = 256;

impl Inbound {
    const fn new(len: u32) -> Self {
        Self { buf: None, len, received: 0, spans: Vec::new(), placed: false }
    }

    /// Judges a piece before it is read. `strict`: it must not cover what is here; `in_order`: it must come where the
    /// last one ended.
    pub(super) fn check(&self, offset: u32, len: u32, strict: bool, in_order: bool) -> Result<(), Why> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len).ok_or(Why::DataInBeyondBuffer)?;
        if in_order && offset != self.received {
            return Err(Why::DataInOffset);
        }
        let covers = |from: u32, to: u32| offset < to && from < end;
        if strict && (covers(0, self.received) || self.spans.iter().any(|(from, to)| covers(*from, *to))) {
            return Err(Why::DataInOffset);
        }
        if self.spans.len() >= MAX_SPANS { Err(Why::DataInScattered) } else { Ok(()) }
    }

    /// Says where a piece goes whose header was judged good.
    ///
    /// The digest of a piece is known only when its last byte was written, so no piece is written over bytes that
    /// count: a piece of which every byte is here is read and discarded, and of any other the bytes that are here stop
    /// to count until the digest proves right.
    pub(super) fn land(&mut self, pool: &Pool, offset: u32, len: u32) -> Landing {
        let end = offset.saturating_add(len);
        if self.buf.is_some() && self.has(offset, end) && !planted::is(Bug::LandOverCounted) {
            return Landing::Discard;
        }
        let mut buf = match self.buf.take() {
            Some(buf) => buf,
            None => {
                // A new buffer: what was here before, if anything, is not any more.
                (self.received, self.placed) = (0, false);
                self.spans.clear();
                pool.take(to_usize(self.len))
            }
        };
        if !self.placed && offset == self.received {
            return Landing::Append(buf);
        }
        if !self.placed {
            buf.append_zeros(to_usize(self.len).saturating_sub(buf.len()));
            self.placed = true;
        }
        if !planted::is(Bug::LandOverCounted) {
            self.forget(offset, end);
        }
        Landing::Place { buf, at: to_usize(offset) }
    }

    /// Returns whether every byte of a range counts.
    fn has(&self, from: u32, to: u32) -> bool {
        to <= self.received || self.spans.iter().any(|(start, end)| *start <= from && to <= *end)
    }

    /// Stops to count the bytes of a range.
    fn forget(&mut self, from: u32, to: u32) {
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

    /// Takes the buffer back; a piece that is not whole and good is as if it never came.
    pub(super) fn restore(&mut self, pool: &Pool, landing: Landing) {
        if let Landing::Append(mut buf) | Landing::Place { mut buf, .. } = landing {
            if !self.placed {
                buf.truncate(to_usize(self.received));
            }
            if let Some(old) = self.buf.replace(buf) {
                pool.recycle_buf(old);
            }
        }
    }

    /// Takes the buffer back with a piece that is good. A piece that was discarded is here already.
    pub(super) fn took(&mut self, pool: &Pool, landing: Landing, offset: u32, len: u32) {
        if matches!(landing, Landing::Discard | Landing::Lent { .. }) {
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
        self.restore(pool, landing);
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

    /// Returns how many bytes came, those behind gaps included.
    pub(super) fn landed(&self) -> u64 {
        let behind = self.spans.iter().map(|(from, to)| u64::from(to.saturating_sub(*from)));
        behind.fold(u64::from(self.received), u64::saturating_add)
    }

    /// Returns what came, without gaps.
    pub(super) fn finish(&mut self) -> Option<Bytes> {
        let mut buf = self.buf.take()?;
        buf.truncate(to_usize(self.received));
        Some(buf.freeze())
    }

    /// Forgets what came.
    pub(super) fn clear(&mut self, pool: &Pool) {
        if let Some(buf) = self.buf.take() {
            pool.recycle_buf(buf);
        }
        (self.received, self.placed) = (0, false);
        self.spans.clear();
    }

    /// Returns whether its buffer was lost with the connection that was receiving into it.
    pub(super) const fn lost_buffer(&self) -> bool {
        self.buf.is_none() && (self.received > 0 || !self.spans.is_empty())
    }
}

/// The data that a task sends.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    /// What goes out unasked behind the command.
    pub(super) unsolicited: Option<Burst>,
    /// The R2Ts that are not answered to the end.
    pub(super) bursts: SmallVec<[Burst; 1]>,
    /// Up to where data was asked for, or goes out unasked.
    pub(super) asked: u32,
}

/// A run of data on its way out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    /// The number of its R2T.
    pub(super) r2t_sn: u32,
    pub(super) ttt: Ttt,
    pub(super) lun: u64,
    /// Where the next byte comes from.
    pub(super) at: u32,
    pub(super) end: u32,
    pub(super) data_sn: DataSn,
}

pub(super) fn to_usize(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

pub(super) fn to_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn land(inn: &mut Inbound, pool: &Pool, offset: u32, data: &[u8]) {
        let len = to_u32(data.len());
        let mut landing = inn.land(pool, offset, len);
        match &mut landing {
            Landing::Append(buf) => {
                buf.append(data);
            }
            Landing::Place { buf, at } => buf.filled_mut()[*at..*at + data.len()].copy_from_slice(data),
            _ => assert!(inn.has(offset, offset + len), "it must land"),
        }
        inn.took(pool, landing, offset, len);
    }

    #[test]
    fn data_lands_where_it_belongs_in_any_order() {
        let pool = Pool::new(1 << 20);
        let mut inn = Inbound::new(10);
        land(&mut inn, &pool, 0, b"ab");
        land(&mut inn, &pool, 8, b"ij");
        land(&mut inn, &pool, 4, b"ef");
        assert_eq!(inn.received, 2);
        assert_eq!(inn.check(1, 2, true, false), Err(Why::DataInOffset));
        assert_eq!(inn.check(5, 1, true, false), Err(Why::DataInOffset));
        assert_eq!(inn.check(5, 1, false, false), Ok(()));
        assert_eq!(inn.check(2, 2, true, true), Ok(()));
        land(&mut inn, &pool, 2, b"cd");
        assert_eq!(inn.received, 6);
        land(&mut inn, &pool, 6, b"gh");
        assert_eq!(inn.finish().as_deref(), Some(&b"abcdefghij"[..]));
    }

    #[test]
    fn a_damaged_piece_is_as_if_it_never_came() {
        let pool = Pool::new(1 << 20);
        let mut inn = Inbound::new(8);
        land(&mut inn, &pool, 0, b"ab");
        let mut landing = inn.land(&pool, 2, 2);
        if let Landing::Append(buf) = &mut landing {
            buf.append(b"XX");
        }
        inn.restore(&pool, landing);
        land(&mut inn, &pool, 4, b"ef");
        land(&mut inn, &pool, 2, b"cd");
        assert_eq!(inn.finish().as_deref(), Some(&b"abcdef"[..]));
    }

    /// Begins to receive a piece and writes bytes that will prove damaged.
    fn hurt(inn: &mut Inbound, pool: &Pool, offset: u32, len: u32) {
        let mut landing = inn.land(pool, offset, len);
        match &mut landing {
            Landing::Append(buf) => {
                buf.append(&alloc::vec![b'X'; to_usize(len)]);
            }
            Landing::Place { buf, at } => buf.filled_mut()[*at..*at + to_usize(len)].fill(b'X'),
            _ => {}
        }
        inn.restore(pool, landing);
    }

    #[test]
    fn damaged_bytes_never_count_wherever_they_stood() {
        let want: Vec<u8> = (0..40).map(|at| b'a' + at % 26).collect();
        for seed in 0..2000 {
            let mut rng = base::rng::Rng::from_seed(seed);
            let pool = Pool::new(1 << 20);
            let mut inn = Inbound::new(40);
            while inn.received < 40 {
                let from = u32::try_from(rng.below(40)).unwrap();
                let len = 1 + u32::try_from(rng.below(u64::from(40 - from))).unwrap().min(12);
                let len = len.min(40 - from);
                let had = inn.has(from, from + len);
                if rng.below(3) == 0 {
                    hurt(&mut inn, &pool, from, len);
                    assert_eq!(
                        inn.has(from, from + len),
                        had,
                        "seed {seed}: whole it stays, in part it goes"
                    );
                } else {
                    land(&mut inn, &pool, from, &want[to_usize(from)..to_usize(from + len)]);
                    assert!(inn.has(from, from + len), "seed {seed}");
                }
            }
            assert_eq!(inn.finish().as_deref(), Some(&want[..]), "seed {seed}");
        }
    }

    #[test]
    fn a_piece_that_is_discarded_does_not_count_for_a_buffer_that_is_gone() {
        let pool = Pool::new(1 << 20);
        let mut inn = Inbound::new(8);
        land(&mut inn, &pool, 0, b"abcd");
        let landing = inn.land(&pool, 0, 4);
        assert!(matches!(landing, Landing::Discard));
        inn.clear(&pool);
        inn.took(&pool, landing, 0, 4);
        assert_eq!(inn.received, 0);
    }

    #[test]
    fn no_offset_leads_beyond_the_buffer() {
        let inn = Inbound::new(100);
        for (offset, len) in [(100, 1), (99, 2), (u32::MAX, 1), (u32::MAX, u32::MAX), (1, u32::MAX)] {
            assert_eq!(inn.check(offset, len, false, false), Err(Why::DataInBeyondBuffer), "{offset} {len}");
        }
    }

    #[test]
    fn missing_numbers_are_known_until_they_come() {
        let mut numbers = Numbers::default();
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
        assert_eq!(numbers.take(u32::MAX), Err(Why::NotRepaired));
    }
}
