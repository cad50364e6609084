//! A SCSI task as the transport sees it: what data came and went, what is still expected, and how it ended.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use base::buffer::{Buf, Bytes, DataList, Pool};
use base::machine::ConnId;
use smallvec::SmallVec;

use super::arena::Key;
use super::contract::status;
use super::why::Why;
use crate::pdu::{Itt, Ttt};
use crate::recovery::Condition;
use crate::serial::{DataSn, R2tSn};

/// A task.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) session: Key,
    /// The connection that it is allegiant to (RFC 7143 §4.2.5.1).
    pub(crate) conn: ConnId,
    pub(crate) itt: Itt,
    pub(crate) lun: u64,
    pub(crate) immediate: bool,
    /// Whether the command window counts it.
    pub(crate) counted: bool,
    pub(crate) holder: Holder,
    pub(crate) data_in_len: u32,
    pub(crate) data_out_len: u32,
    pub(crate) out: DataOut,
    pub(crate) inn: DataIn,
    /// How it ended; then nothing more is fetched and what still comes is forgotten.
    pub(crate) ending: Option<Ending>,
    /// Whether it stands in its connection's queue.
    pub(crate) listed: bool,
    /// The next task in the same bucket of its session's tag table.
    pub(crate) next: Option<Key>,
}

/// Who has a task in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The session: its turn has not come.
    Session,
    /// The layer above.
    Above,
    /// Nobody: it ended, and its answer is on the way.
    Nobody,
}

/// How a task ended.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) status: u8,
    pub(crate) sense: Option<Box<[u8]>>,
    pub(crate) transferable: u64,
}

impl Ending {
    /// Returns the end of a task that the transport fails.
    pub(crate) fn condition(condition: Condition) -> Self {
        Self { status: status::CHECK_CONDITION, sense: Some(Box::new(condition.sense())), transferable: 0 }
    }

    /// Returns the end of a task that finds no room; the initiator tries again.
    pub(crate) const fn busy() -> Self {
        Self { status: status::BUSY, sense: None, transferable: 0 }
    }

    /// Returns whether it can ride on the last Data-In.
    pub(crate) const fn is_good(&self) -> bool {
        self.status == status::GOOD && self.sense.is_none()
    }
}

/// The data that the initiator sends for a task.
#[derive(Debug, Default)]
pub(crate) struct DataOut {
    /// The unsolicited data, while it comes.
    pub(crate) unsolicited: Option<Run>,
    /// The unsolicited data, once it is complete.
    pub(crate) early: Option<Bytes>,
    /// Bytes of the budget that the unsolicited data takes.
    pub(crate) reserved: usize,
    /// The R2Ts that are open.
    pub(crate) runs: SmallVec<[Run; 1]>,
    /// What the layer above asked for and has not got.
    pub(crate) fetches: SmallVec<[Fetch; 1]>,
    pub(crate) fetch_count: u32,
    pub(crate) r2t_sn: R2tSn,
    /// Whether it waits for the budget.
    pub(crate) waits: bool,
}

/// How many bytes of each budget for Data-Out are free again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Freed {
    pub(crate) unasked: usize,
    pub(crate) asked: usize,
}

/// A sequence of Data-Out PDUs that is expected: the unsolicited data, or the answer to an R2T.
#[derive(Debug)]
pub(crate) struct Run {
    /// The transfer tag; [`Ttt::NONE`] for the unsolicited data.
    pub(crate) ttt: Ttt,
    /// Whether the initiator was told.
    pub(crate) sent: bool,
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) received: u32,
    pub(crate) data_sn: DataSn,
    /// Which fetch it is for, and which part of it.
    pub(crate) fetch: u32,
    pub(crate) part: usize,
    pub(crate) buf: Option<Buf>,
    /// What is covered, if PDUs may come in any order: sorted, not touching.
    spans: Vec<(u32, u32)>,
}

/// How many separate pieces of a run may have come while others are missing: out of order is allowed, scattered to
/// exhaust us is not.
const MAX_SPANS: usize = 64;

impl Run {
    pub(crate) const fn new(ttt: Ttt, start: u32, len: u32) -> Self {
        Self {
            ttt,
            sent: false,
            start,
            len,
            received: 0,
            data_sn: DataSn(0),
            fetch: 0,
            part: 0,
            buf: None,
            spans: Vec::new(),
        }
    }

    pub(crate) const fn is_unsolicited(&self) -> bool {
        self.ttt.0 == Ttt::NONE.0
    }

    /// Judges a PDU of this run, before its data is read.
    pub(crate) fn check(&self, data_sn: DataSn, offset: u32, len: u32, in_order: bool) -> Result<(), Why> {
        if data_sn != self.data_sn {
            return Err(Why::DataSnOutOfOrder);
        }
        let beyond = if self.is_unsolicited() { Why::UnsolicitedBeyondLimit } else { Why::DataOutBeyondR2t };
        let at = offset.checked_sub(self.start).ok_or(Why::DataOutOffset)?;
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(beyond);
        }
        if in_order {
            return if at == self.received { Ok(()) } else { Err(Why::DataOutOffset) };
        }
        let overlaps = self.spans.iter().any(|(from, to)| at < *to && *from < at + len);
        if overlaps || self.spans.len() >= MAX_SPANS { Err(Why::DataOutOffset) } else { Ok(()) }
    }

    /// Notes that the data of a PDU that was judged good is here.
    pub(crate) fn took(&mut self, offset: u32, len: u32, in_order: bool) {
        self.received = self.received.saturating_add(len);
        self.data_sn = self.data_sn.next();
        if in_order || len == 0 {
            return;
        }
        let from = offset.saturating_sub(self.start);
        let to = from.saturating_add(len);
        self.spans.push((from, to));
        self.spans.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(self.spans.len());
        for (from, to) in self.spans.drain(..) {
            match merged.last_mut() {
                Some((_, end)) if *end == from => *end = to,
                _ => merged.push((from, to)),
            }
        }
        self.spans = merged;
    }

    /// Judges the end of the run: whether as much came as had to. `whole` is the length of the command's data.
    pub(crate) fn check_end(&self, whole: u32) -> Result<(), Why> {
        if self.received == self.len {
            return Ok(());
        }
        if !self.is_unsolicited() {
            return Err(Why::DataOutShort);
        }
        // RFC 7143 §11.4.7.2: less than FirstBurstLength is allowed only if that would have been all.
        let prefix = self.spans.is_empty() || matches!(self.spans.as_slice(), [(0, _)]);
        if whole > self.len || !prefix { Err(Why::NotEnoughUnsolicited) } else { Ok(()) }
    }
}

/// A range of the data that the layer above asked for.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) id: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Up to where it is asked for, or known to come unsolicited.
    pub(crate) asked: u32,
    /// Whether its first part is unsolicited data that is not all here.
    pub(crate) awaits_unsolicited: bool,
    /// Bytes of the budget that it takes; `None` until it got them.
    pub(crate) reserved: Option<usize>,
    pub(crate) parts: SmallVec<[Option<Bytes>; 2]>,
}

impl Fetch {
    pub(crate) fn is_complete(&self) -> bool {
        self.asked == self.end && self.parts.iter().all(Option::is_some)
    }

    pub(crate) fn into_data(self) -> DataList {
        let mut data = DataList::new();
        for part in self.parts.into_iter().flatten().filter(|part| !part.is_empty()) {
            data.push(part);
        }
        data
    }
}

impl DataOut {
    /// Returns up to where data comes unsolicited.
    pub(crate) fn unsolicited_end(&self) -> u32 {
        match (&self.unsolicited, &self.early) {
            (Some(run), _) => run.start.saturating_add(run.len),
            (None, Some(early)) => u32::try_from(early.len()).unwrap_or(u32::MAX),
            (None, None) => 0,
        }
    }

    /// Returns whether the initiator still has to end a sequence.
    pub(crate) fn is_expecting(&self) -> bool {
        self.unsolicited.is_some() || self.runs.iter().any(|run| run.sent)
    }

    /// Forgets all data and all that was asked for, but not the sequences that the initiator still has to end.
    pub(crate) fn stop(&mut self, pool: &Pool) -> Freed {
        self.runs.retain(|run| run.sent);
        for run in self.runs.iter_mut().chain(&mut self.unsolicited) {
            if let Some(buf) = run.buf.take() {
                pool.recycle_buf(buf);
            }
        }
        if let Some(early) = self.early.take() {
            pool.recycle(early);
        }
        let mut freed = Freed { unasked: mem::take(&mut self.reserved), asked: 0 };
        for fetch in self.fetches.drain(..) {
            freed.asked += fetch.reserved.unwrap_or(0);
            for part in fetch.parts.into_iter().flatten() {
                pool.recycle(part);
            }
        }
        freed
    }
}

/// The data that the initiator is to receive, on its way out.
#[derive(Debug, Default)]
pub(crate) struct DataIn {
    parts: SmallVec<[Bytes; 2]>,
    /// The first part that is not all sent, and how much of it is.
    part: usize,
    part_sent: usize,
    /// How many bytes wait.
    pub(crate) queued: usize,
    /// Bytes of the budget that it takes: what waits, and what may still come.
    pub(crate) reserved: usize,
    /// The offset of the next byte to send.
    pub(crate) offset: u32,
    pub(crate) data_sn: DataSn,
    /// Bytes sent in the present sequence.
    pub(crate) burst: usize,
}

impl DataIn {
    /// Returns the offset behind all that is queued.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.offset) + u64::try_from(self.queued).unwrap_or(u64::MAX)
    }

    pub(crate) fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.queued += part.len();
            self.parts.push(part);
        }
    }

    /// Takes the next `len` bytes and hands them to `put`, piece by piece.
    pub(crate) fn take(&mut self, len: usize, mut put: impl FnMut(Bytes)) {
        let mut left = len.min(self.queued);
        self.queued -= left;
        self.offset = self.offset.wrapping_add(u32::try_from(left).unwrap_or(u32::MAX));
        while left > 0
            && let Some(part) = self.parts.get(self.part)
        {
            let rest = part.len() - self.part_sent;
            let size = rest.min(left);
            left -= size;
            put(part.slice(self.part_sent, self.part_sent + size));
            if size == rest {
                self.part += 1;
                self.part_sent = 0;
            } else {
                self.part_sent += size;
            }
        }
        if self.queued == 0 {
            self.parts.clear();
            self.part = 0;
        }
    }

    /// Forgets what waits and returns how many bytes of the budget that frees.
    pub(crate) fn stop(&mut self, pool: &Pool) -> usize {
        for part in self.parts.drain(..) {
            pool.recycle(part);
        }
        (self.part, self.part_sent, self.queued) = (0, 0, 0);
        mem::take(&mut self.reserved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_in_order_takes_pdus_only_where_the_last_one_ended() {
        let mut run = Run::new(Ttt(1), 1000, 100);
        assert_eq!(run.check(DataSn(0), 1000, 40, true), Ok(()));
        run.took(1000, 40, true);
        for (sn, offset, len, expected) in [
            (0, 1040, 10, Err(Why::DataSnOutOfOrder)),
            (2, 1040, 10, Err(Why::DataSnOutOfOrder)),
            (1, 1050, 10, Err(Why::DataOutOffset)),
            (1, 999, 10, Err(Why::DataOutOffset)),
            (1, 1040, 61, Err(Why::DataOutBeyondR2t)),
            (1, u32::MAX, u32::MAX, Err(Why::DataOutBeyondR2t)),
            (1, 1040, 60, Ok(())),
        ] {
            assert_eq!(run.check(DataSn(sn), offset, len, true), expected, "{sn} {offset} {len}");
        }
        assert_eq!(run.check_end(4096), Err(Why::DataOutShort));
        run.took(1040, 60, true);
        assert_eq!(run.check_end(4096), Ok(()));
    }

    #[test]
    fn a_run_in_any_order_takes_every_byte_once() {
        let mut run = Run::new(Ttt(1), 0, 100);
        for (sn, offset, len) in [(0, 50, 50), (1, 0, 20)] {
            assert_eq!(run.check(DataSn(sn), offset, len, false), Ok(()));
            run.took(offset, len, false);
        }
        assert_eq!(run.check(DataSn(2), 10, 20, false), Err(Why::DataOutOffset));
        assert_eq!(run.check(DataSn(2), 40, 11, false), Err(Why::DataOutOffset));
        assert_eq!(run.check(DataSn(2), 20, 30, false), Ok(()));
        run.took(20, 30, false);
        assert_eq!(run.spans, [(0, 100)]);
        assert_eq!(run.check_end(100), Ok(()));
    }

    #[test]
    fn scattered_pieces_are_refused_before_they_cost_much() {
        let mut run = Run::new(Ttt(1), 0, 10_000);
        let mut sn = DataSn(0);
        for at in 0.. {
            match run.check(sn, at * 2, 1, false) {
                Ok(()) => run.took(at * 2, 1, false),
                Err(why) => {
                    assert_eq!((why, at), (Why::DataOutOffset, 64));
                    break;
                }
            }
            sn = sn.next();
        }
    }

    #[test]
    fn short_unsolicited_data_is_enough_only_if_the_command_wanted_no_more() {
        for (first_burst, whole, received, expected) in [
            (100, 200, 100, Ok(())),
            (100, 200, 99, Err(Why::NotEnoughUnsolicited)),
            (100, 100, 60, Ok(())),
            (80, 80, 0, Ok(())),
        ] {
            let mut run = Run::new(Ttt::NONE, 0, first_burst);
            run.took(0, received, true);
            assert_eq!(run.check_end(whole), expected, "{first_burst} {whole} {received}");
        }
    }

    #[test]
    fn data_in_leaves_in_pieces_of_any_size() {
        let mut data = DataIn::default();
        for part in [&b"abc"[..], b"", b"defgh", b"i"] {
            data.push(Bytes::copied_from(part));
        }
        assert_eq!((data.queued, data.end()), (9, 9));
        let mut got = Vec::new();
        for len in [1, 3, 0, 4, 9] {
            let mut piece = Vec::new();
            data.take(len, |bytes| piece.extend_from_slice(&bytes));
            got.push(piece);
        }
        assert_eq!(got, [&b"a"[..], b"bcd", b"", b"efgh", b"i"]);
        assert_eq!((data.queued, data.offset, data.end()), (0, 9, 9));
        data.push(Bytes::copied_from(b"j"));
        data.reserved = 7;
        assert_eq!((data.stop(&Pool::new(0)), data.queued, data.reserved), (7, 0, 0));
    }
}
