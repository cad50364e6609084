//! A sequence of Data-Out PDUs: which bytes of it may come, in what order, and what is missing in the end (RFC 7143
//! §4.2.2.4, §11.7, §11.8).

use alloc::vec::Vec;

use base::buffer::Buf;
use base::fault_injection::{self, Bug};

use super::stall::Pace;
use super::why::Why;
use crate::pdu::Ttt;
use crate::serial::{DataSn, R2tSn};

/// A sequence of Data-Out PDUs that is expected: the unsolicited data, or the answer to an R2T.
#[derive(Debug)]
pub(crate) struct Run {
    /// The transfer tag; [`Ttt::NONE`] for the unsolicited data.
    pub(crate) ttt: Ttt,
    /// Whether it began as unsolicited data; a recovery R2T can have given it a tag since.
    pub(crate) unsolicited: bool,
    /// Whether the initiator was told.
    pub(crate) sent: bool,
    /// The number of its R2T.
    pub(crate) r2t_sn: R2tSn,
    pub(crate) start: u32,
    pub(crate) len: u32,
    /// The part of it that is asked for at present: all, or what was found missing.
    pub(crate) asked: (u32, u32),
    pub(crate) received: u32,
    pub(crate) data_sn: DataSn,
    /// Whether something of what is asked for at present was lost.
    pub(crate) broken: bool,
    /// How many times something was asked for again.
    pub(crate) tries: u8,
    /// How many times in a row that brought nothing, and how much was here then.
    pub(crate) vain: u8,
    had: u32,
    /// How many PDUs came, and how many had at the last look of the clock.
    pub(crate) seen: u32,
    pub(crate) mark: Option<u32>,
    /// For how many looks nothing came.
    pub(crate) quiet: u8,
    /// Which fetch it is for, and which part of it.
    pub(crate) fetch: u32,
    pub(crate) part: usize,
    pub(crate) buf: Option<Buf>,
    /// Whether a PDU is being read into the buffer, which is away meanwhile.
    pub(crate) reading: bool,
    /// How it gets on, once the initiator was told.
    pub(crate) pace: Option<Pace>,
    /// What is covered, if PDUs may come in any order: sorted, not touching.
    spans: Vec<(u32, u32)>,
}

/// How many separate pieces of a run may have come while others are missing: out of order is allowed, scattered to
/// exhaust us is not.
const MAX_SPANS: usize = 64;

/// What becomes of a PDU of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its data is taken.
    Take,
    /// Its data is of no use: it is here already, or something before it is missing.
    Skip,
}

/// What is to be done at the end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// All is here.
    Whole,
    /// Something was lost: it is to be asked for again.
    Recover,
}

impl Run {
    pub(crate) const fn new(ttt: Ttt, start: u32, len: u32) -> Self {
        Self {
            ttt,
            unsolicited: ttt.0 == Ttt::NONE.0,
            sent: false,
            r2t_sn: R2tSn(0),
            start,
            len,
            asked: (0, len),
            received: 0,
            data_sn: DataSn(0),
            broken: false,
            tries: 0,
            vain: 0,
            had: 0,
            seen: 0,
            mark: None,
            quiet: 0,
            fetch: 0,
            part: 0,
            buf: None,
            reading: false,
            pace: None,
            spans: Vec::new(),
        }
    }

    /// Returns whether it has memory: something of it is here, or being read.
    pub(crate) const fn has_memory(&self) -> bool {
        self.buf.is_some() || self.reading
    }

    /// Takes the buffer back into which a PDU was read.
    pub(crate) fn put_back(&mut self, buf: Buf) {
        self.buf = Some(buf);
        self.reading = false;
    }

    /// Returns whether the initiator was told of it, in an R2T that may have been lost since.
    pub(crate) const fn is_told(&self) -> bool {
        self.sent || self.tries > 0
    }

    /// Judges a PDU of this run, before its data is read. Where lost data is asked for again (`repairs`), a gap in the
    /// numbers is no violation but a loss.
    pub(crate) fn check(
        &mut self,
        data_sn: DataSn,
        offset: u32,
        len: u32,
        (in_order, repairs): (bool, bool),
    ) -> Result<Fate, Why> {
        self.seen = self.seen.wrapping_add(1);
        if data_sn != self.data_sn {
            if !repairs {
                return Err(Why::DataSnOutOfOrder);
            }
            if data_sn.before(self.data_sn) {
                return Ok(Fate::Skip);
            }
            self.broken = true;
        }
        let beyond = if self.unsolicited { Why::UnsolicitedBeyondLimit } else { Why::DataOutBeyondR2t };
        let at = offset.checked_sub(self.start).ok_or(Why::DataOutOffset)?;
        let (from, to) = self.asked;
        if at < from || at.checked_add(len).is_none_or(|end| end > to) {
            return Err(if at < from { Why::DataOutOffset } else { beyond });
        }
        if in_order {
            return match at == self.received {
                // Of a sequence that has a gap, what lies behind it comes again with what was lost.
                _ if self.broken => Ok(Fate::Skip),
                true => Ok(Fate::Take),
                false => Err(Why::DataOutOffset),
            };
        }
        let overlaps = self.spans.iter().any(|(from, to)| at < *to && *from < at + len);
        match overlaps || self.spans.len() >= MAX_SPANS {
            false => Ok(Fate::Take),
            true if self.broken => Ok(Fate::Skip),
            true => Err(Why::DataOutOffset),
        }
    }

    /// Notes that the data of a PDU that was judged good is here.
    pub(crate) fn took(&mut self, data_sn: DataSn, offset: u32, len: u32, in_order: bool) {
        self.received = self.received.saturating_add(len);
        self.data_sn = data_sn.next();
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

    /// Notes that a PDU came whose data cannot be used: it was skipped, or damaged.
    pub(crate) fn skipped(&mut self, data_sn: DataSn) {
        if !data_sn.before(self.data_sn) {
            self.data_sn = data_sn.next();
        }
    }

    /// Returns the first part that is missing.
    fn first_hole(&self, in_order: bool) -> (u32, u32) {
        if in_order {
            return (self.received, self.len);
        }
        match self.spans.as_slice() {
            [] => (0, self.len),
            [(0, to), (next, _), ..] => (*to, *next),
            [(0, to)] => (*to, self.len),
            [(from, _), ..] => (0, *from),
        }
    }

    /// Judges the end of a sequence: whether as much came as had to. `whole` is the length of the command's data.
    pub(crate) fn check_end(&self, whole: u32, in_order: bool) -> Result<Close, Why> {
        if self.received == self.len {
            return Ok(Close::Whole);
        }
        let (from, to) = self.asked;
        let hole = self.first_hole(in_order);
        let asked_is_here = if in_order { self.received >= to } else { hole.0 >= to || hole.1 <= from };
        if self.broken || self.tries > 0 && asked_is_here {
            return Ok(Close::Recover);
        }
        if !self.unsolicited || self.tries > 0 {
            return Err(Why::DataOutShort);
        }
        // RFC 7143 §11.4.7.2: less than FirstBurstLength is allowed only if that would have been all.
        let prefix = self.spans.is_empty() || matches!(self.spans.as_slice(), [(0, _)]);
        if whole > self.len || !prefix { Err(Why::NotEnoughUnsolicited) } else { Ok(Close::Whole) }
    }

    /// Stops to count what came if the buffer that has it is away: a PDU was just being read into it whose connection is
    /// gone, or whose sequence another took the place of. The buffer does not come back then.
    pub(crate) fn count_without_buffer(&mut self) {
        if self.buf.is_none() && !fault_injection::is_injected(Bug::CountWithoutBuffer) {
            self.received = 0;
            self.spans.clear();
        }
    }

    /// Returns what is asked for at present.
    pub(crate) const fn as_former(&self) -> Former {
        let (from, to) = self.asked;
        Former {
            ttt: self.ttt,
            r2t_sn: self.r2t_sn,
            start: self.start.saturating_add(from),
            len: to.saturating_sub(from),
        }
    }

    /// Makes the run one that a recovery R2T asks for, and returns what that takes the place of.
    pub(crate) fn renew(&mut self, ttt: Ttt, in_order: bool) -> Former {
        let former = self.as_former();
        self.ttt = ttt;
        self.asked = self.first_hole(in_order);
        self.sent = false;
        self.broken = false;
        self.data_sn = DataSn(0);
        self.tries = self.tries.saturating_add(1);
        self.vain = if self.received > self.had { 0 } else { self.vain.saturating_add(1) };
        self.had = self.received;
        (self.mark, self.quiet) = (None, 0);
        former
    }
}

/// An R2T, or the unsolicited data, that a recovery R2T took the place of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Former {
    pub(crate) ttt: Ttt,
    pub(crate) r2t_sn: R2tSn,
    pub(crate) start: u32,
    pub(crate) len: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_in_order_takes_pdus_only_where_the_last_one_ended() {
        let mut run = Run::new(Ttt(1), 1000, 100);
        assert_eq!(run.check(DataSn(0), 1000, 40, (true, false)), Ok(Fate::Take));
        run.took(DataSn(0), 1000, 40, true);
        for (sn, offset, len, expected) in [
            (0, 1040, 10, Err(Why::DataSnOutOfOrder)),
            (2, 1040, 10, Err(Why::DataSnOutOfOrder)),
            (1, 1050, 10, Err(Why::DataOutOffset)),
            (1, 999, 10, Err(Why::DataOutOffset)),
            (1, 1040, 61, Err(Why::DataOutBeyondR2t)),
            (1, u32::MAX, u32::MAX, Err(Why::DataOutBeyondR2t)),
            (1, 1040, 60, Ok(Fate::Take)),
        ] {
            assert_eq!(run.check(DataSn(sn), offset, len, (true, false)), expected, "{sn} {offset} {len}");
        }
        assert_eq!(run.check_end(4096, true), Err(Why::DataOutShort));
        run.took(DataSn(1), 1040, 60, true);
        assert_eq!(run.check_end(4096, true), Ok(Close::Whole));
    }

    #[test]
    fn a_run_in_any_order_takes_every_byte_once() {
        let mut run = Run::new(Ttt(1), 0, 100);
        for (sn, offset, len) in [(0, 50, 50), (1, 0, 20)] {
            assert_eq!(run.check(DataSn(sn), offset, len, (false, false)), Ok(Fate::Take));
            run.took(DataSn(sn), offset, len, false);
        }
        assert_eq!(run.check(DataSn(2), 10, 20, (false, false)), Err(Why::DataOutOffset));
        assert_eq!(run.check(DataSn(2), 40, 11, (false, false)), Err(Why::DataOutOffset));
        assert_eq!(run.check(DataSn(2), 20, 30, (false, false)), Ok(Fate::Take));
        run.took(DataSn(2), 20, 30, false);
        assert_eq!(run.spans, [(0, 100)]);
        assert_eq!(run.check_end(100, false), Ok(Close::Whole));
    }

    #[test]
    fn scattered_pieces_are_refused_before_they_cost_much() {
        let mut run = Run::new(Ttt(1), 0, 10_000);
        let mut sn = DataSn(0);
        for at in 0.. {
            match run.check(sn, at * 2, 1, (false, false)) {
                Ok(_) => run.took(sn, at * 2, 1, false),
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
            (100, 200, 100, Ok(Close::Whole)),
            (100, 200, 99, Err(Why::NotEnoughUnsolicited)),
            (100, 100, 60, Ok(Close::Whole)),
            (80, 80, 0, Ok(Close::Whole)),
        ] {
            let mut run = Run::new(Ttt::NONE, 0, first_burst);
            run.took(DataSn(0), 0, received, true);
            assert_eq!(run.check_end(whole, true), expected, "{first_burst} {whole} {received}");
        }
    }

    const IN_ORDER: (bool, bool) = (true, true);
    const ANY_ORDER: (bool, bool) = (false, true);

    #[test]
    fn behind_a_gap_everything_is_asked_for_again_if_pdus_come_in_order() {
        let mut run = Run::new(Ttt(1), 1000, 100);
        assert_eq!(run.check(DataSn(0), 1000, 40, IN_ORDER), Ok(Fate::Take));
        run.took(DataSn(0), 1000, 40, true);
        assert_eq!(run.check(DataSn(2), 1060, 20, IN_ORDER), Ok(Fate::Skip));
        run.skipped(DataSn(2));
        assert_eq!(run.check(DataSn(3), 1080, 20, IN_ORDER), Ok(Fate::Skip));
        assert_eq!(run.check(DataSn(2), 1060, 20, IN_ORDER), Ok(Fate::Skip), "a duplicate");
        assert_eq!(run.check_end(4096, true), Ok(Close::Recover));
        let former = run.renew(Ttt(2), true);
        assert_eq!((former.ttt, former.start, former.len), (Ttt(1), 1000, 100));
        assert_eq!((run.ttt, run.asked, run.data_sn, run.sent), (Ttt(2), (40, 100), DataSn(0), false));
        assert_eq!(run.check(DataSn(0), 1040, 60, IN_ORDER), Ok(Fate::Take));
        run.took(DataSn(0), 1040, 60, true);
        assert_eq!(run.check_end(4096, true), Ok(Close::Whole));
    }

    #[test]
    fn only_the_gaps_are_asked_for_again_if_pdus_come_in_any_order() {
        let mut run = Run::new(Ttt(1), 0, 100);
        for (sn, offset) in [(0, 80), (2, 20), (5, 60)] {
            assert_eq!(run.check(DataSn(sn), offset, 20, ANY_ORDER), Ok(Fate::Take));
            run.took(DataSn(sn), offset, 20, false);
        }
        let mut asked = Vec::new();
        for ttt in 2.. {
            match run.check_end(100, false) {
                Ok(Close::Recover) => {}
                end => {
                    assert_eq!(end, Ok(Close::Whole));
                    break;
                }
            }
            run.renew(Ttt(ttt), false);
            let (from, to) = run.asked;
            asked.push((from, to));
            assert_eq!(run.check(DataSn(0), from, to - from + 1, ANY_ORDER), Err(Why::DataOutBeyondR2t));
            assert_eq!(run.check(DataSn(0), from, to - from, ANY_ORDER), Ok(Fate::Take));
            run.took(DataSn(0), from, to - from, false);
        }
        assert_eq!(asked, [(0, 20), (40, 60)]);
    }

    #[test]
    fn a_recovered_sequence_that_is_short_again_without_a_loss_is_a_violation() {
        let mut run = Run::new(Ttt(1), 0, 100);
        run.broken = true;
        assert_eq!(run.check_end(100, true), Ok(Close::Recover));
        run.renew(Ttt(2), true);
        assert_eq!(run.check(DataSn(0), 0, 40, IN_ORDER), Ok(Fate::Take));
        run.took(DataSn(0), 0, 40, true);
        assert_eq!(run.check_end(100, true), Err(Why::DataOutShort));
    }
}
