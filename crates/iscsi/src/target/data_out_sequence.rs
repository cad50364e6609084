//! A sequence of Data-Out PDUs: which bytes of it may come, in what order, and what is missing in the end (RFC 7143
//! §4.2.2.4, §11.7, §11.8).

use alloc::vec::Vec;

use base::buffer::Buf;
use base::fault_injection::{self, Bug};

use super::protocol_error::ProtocolError;
use super::stall::SequenceProgress;
use crate::pdu::Ttt;
use crate::serial::{DataSn, R2tSn};

/// A sequence of Data-Out PDUs that is expected: the unsolicited data, or the answer to an R2T.
#[derive(Debug)]
pub(crate) struct Sequence {
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
    pub(crate) requested: (u32, u32),
    pub(crate) received: u32,
    pub(crate) data_sn: DataSn,
    /// Whether something of what is asked for at present was lost.
    pub(crate) broken: bool,
    /// How many times something was asked for again.
    pub(crate) tries: u8,
    /// How many times in a row that brought nothing, and how much was here then.
    pub(crate) fruitless_retries: u8,
    received_at_retry: u32,
    /// How many PDUs came, and how many had at the last look of the clock.
    pub(crate) pdus_received: u32,
    pub(crate) pdus_at_poll: Option<u32>,
    /// For how many looks nothing came.
    pub(crate) idle_polls: u8,
    /// Which fetch it is for, and which part of it.
    pub(crate) fetch: u32,
    pub(crate) part: usize,
    pub(crate) buf: Option<Buf>,
    /// Whether a PDU is being read into the buffer, which is away meanwhile.
    pub(crate) reading: bool,
    /// How it gets on, once the initiator was told.
    pub(crate) progress: Option<SequenceProgress>,
    /// What is covered, if PDUs may come in any order: sorted, not touching.
    spans: Vec<(u32, u32)>,
}

/// How many separate pieces of a run may have come while others are missing: out of order is allowed, scattered to
/// exhaust us is not.
const MAX_SPANS: usize = 64;

/// What becomes of a PDU of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PduDisposition {
    /// Its data is taken.
    Accept,
    /// Its data is of no use: it is here already, or something before it is missing.
    Skip,
}

/// What is to be done at the end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SequenceEnd {
    /// All is here.
    Complete,
    /// Something was lost: it is to be asked for again.
    Recover,
}

impl Sequence {
    pub(crate) const fn new(ttt: Ttt, start: u32, len: u32) -> Self {
        Self {
            ttt,
            unsolicited: ttt.0 == Ttt::NONE.0,
            sent: false,
            r2t_sn: R2tSn(0),
            start,
            len,
            requested: (0, len),
            received: 0,
            data_sn: DataSn(0),
            broken: false,
            tries: 0,
            fruitless_retries: 0,
            received_at_retry: 0,
            pdus_received: 0,
            pdus_at_poll: None,
            idle_polls: 0,
            fetch: 0,
            part: 0,
            buf: None,
            reading: false,
            progress: None,
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
    pub(crate) const fn was_requested(&self) -> bool {
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
    ) -> Result<PduDisposition, ProtocolError> {
        self.pdus_received = self.pdus_received.wrapping_add(1);
        if data_sn != self.data_sn {
            if !repairs {
                return Err(ProtocolError::DataSnOutOfOrder);
            }
            if data_sn.before(self.data_sn) {
                return Ok(PduDisposition::Skip);
            }
            self.broken = true;
        }
        let beyond = if self.unsolicited {
            ProtocolError::UnsolicitedBeyondLimit
        } else {
            ProtocolError::DataOutBeyondR2t
        };
        let at = offset.checked_sub(self.start).ok_or(ProtocolError::DataOutOffset)?;
        let (from, to) = self.requested;
        if at < from || at.checked_add(len).is_none_or(|end| end > to) {
            return Err(if at < from { ProtocolError::DataOutOffset } else { beyond });
        }
        if in_order {
            return match at == self.received {
                // Of a sequence that has a gap, what lies behind it comes again with what was lost.
                _ if self.broken => Ok(PduDisposition::Skip),
                true => Ok(PduDisposition::Accept),
                false => Err(ProtocolError::DataOutOffset),
            };
        }
        let overlaps = self.spans.iter().any(|(from, to)| at < *to && *from < at + len);
        match overlaps || self.spans.len() >= MAX_SPANS {
            false => Ok(PduDisposition::Accept),
            true if self.broken => Ok(PduDisposition::Skip),
            true => Err(ProtocolError::DataOutOffset),
        }
    }

    /// Notes that the data of a PDU that was judged good is here.
    pub(crate) fn record_data(&mut self, data_sn: DataSn, offset: u32, len: u32, in_order: bool) {
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
    pub(crate) fn check_end(&self, whole: u32, in_order: bool) -> Result<SequenceEnd, ProtocolError> {
        if self.received == self.len {
            return Ok(SequenceEnd::Complete);
        }
        let (from, to) = self.requested;
        let hole = self.first_hole(in_order);
        let asked_is_here = if in_order { self.received >= to } else { hole.0 >= to || hole.1 <= from };
        if self.broken || self.tries > 0 && asked_is_here {
            return Ok(SequenceEnd::Recover);
        }
        if !self.unsolicited || self.tries > 0 {
            return Err(ProtocolError::DataOutShort);
        }
        // RFC 7143 §11.4.7.2: less than FirstBurstLength is allowed only if that would have been all.
        let prefix = self.spans.is_empty() || matches!(self.spans.as_slice(), [(0, _)]);
        if whole > self.len || !prefix {
            Err(ProtocolError::NotEnoughUnsolicited)
        } else {
            Ok(SequenceEnd::Complete)
        }
    }

    /// Stops to count what came if the buffer that has it is away: a PDU was just being read into it whose connection is
    /// gone, or whose sequence another took the place of. The buffer does not come back then.
    pub(crate) fn reset_if_buffer_lost(&mut self) {
        if self.buf.is_none() && !fault_injection::is_injected(Bug::CountWithoutBuffer) {
            self.received = 0;
            self.spans.clear();
        }
    }

    /// Returns what is asked for at present.
    pub(crate) const fn as_superseded(&self) -> SupersededR2t {
        let (from, to) = self.requested;
        SupersededR2t {
            ttt: self.ttt,
            r2t_sn: self.r2t_sn,
            start: self.start.saturating_add(from),
            len: to.saturating_sub(from),
        }
    }

    /// Makes the run one that a recovery R2T asks for, and returns what that takes the place of.
    pub(crate) fn restart_with(&mut self, ttt: Ttt, in_order: bool) -> SupersededR2t {
        let superseded = self.as_superseded();
        self.ttt = ttt;
        self.requested = self.first_hole(in_order);
        self.sent = false;
        self.broken = false;
        self.data_sn = DataSn(0);
        self.tries = self.tries.saturating_add(1);
        self.fruitless_retries =
            if self.received > self.received_at_retry { 0 } else { self.fruitless_retries.saturating_add(1) };
        self.received_at_retry = self.received;
        (self.pdus_at_poll, self.idle_polls) = (None, 0);
        superseded
    }
}

/// An R2T, or the unsolicited data, that a recovery R2T took the place of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SupersededR2t {
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
        let mut sequence = Sequence::new(Ttt(1), 1000, 100);
        assert_eq!(sequence.check(DataSn(0), 1000, 40, (true, false)), Ok(PduDisposition::Accept));
        sequence.record_data(DataSn(0), 1000, 40, true);
        for (sn, offset, len, expected) in [
            (0, 1040, 10, Err(ProtocolError::DataSnOutOfOrder)),
            (2, 1040, 10, Err(ProtocolError::DataSnOutOfOrder)),
            (1, 1050, 10, Err(ProtocolError::DataOutOffset)),
            (1, 999, 10, Err(ProtocolError::DataOutOffset)),
            (1, 1040, 61, Err(ProtocolError::DataOutBeyondR2t)),
            (1, u32::MAX, u32::MAX, Err(ProtocolError::DataOutBeyondR2t)),
            (1, 1040, 60, Ok(PduDisposition::Accept)),
        ] {
            assert_eq!(
                sequence.check(DataSn(sn), offset, len, (true, false)),
                expected,
                "{sn} {offset} {len}"
            );
        }
        assert_eq!(sequence.check_end(4096, true), Err(ProtocolError::DataOutShort));
        sequence.record_data(DataSn(1), 1040, 60, true);
        assert_eq!(sequence.check_end(4096, true), Ok(SequenceEnd::Complete));
    }

    #[test]
    fn a_run_in_any_order_takes_every_byte_once() {
        let mut sequence = Sequence::new(Ttt(1), 0, 100);
        for (sn, offset, len) in [(0, 50, 50), (1, 0, 20)] {
            assert_eq!(sequence.check(DataSn(sn), offset, len, (false, false)), Ok(PduDisposition::Accept));
            sequence.record_data(DataSn(sn), offset, len, false);
        }
        assert_eq!(sequence.check(DataSn(2), 10, 20, (false, false)), Err(ProtocolError::DataOutOffset));
        assert_eq!(sequence.check(DataSn(2), 40, 11, (false, false)), Err(ProtocolError::DataOutOffset));
        assert_eq!(sequence.check(DataSn(2), 20, 30, (false, false)), Ok(PduDisposition::Accept));
        sequence.record_data(DataSn(2), 20, 30, false);
        assert_eq!(sequence.spans, [(0, 100)]);
        assert_eq!(sequence.check_end(100, false), Ok(SequenceEnd::Complete));
    }

    #[test]
    fn scattered_pieces_are_refused_before_they_cost_much() {
        let mut sequence = Sequence::new(Ttt(1), 0, 10_000);
        let mut sn = DataSn(0);
        for at in 0.. {
            match sequence.check(sn, at * 2, 1, (false, false)) {
                Ok(_) => sequence.record_data(sn, at * 2, 1, false),
                Err(why) => {
                    assert_eq!((why, at), (ProtocolError::DataOutOffset, 64));
                    break;
                }
            }
            sn = sn.next();
        }
    }

    #[test]
    fn short_unsolicited_data_is_enough_only_if_the_command_wanted_no_more() {
        for (first_burst, whole, received, expected) in [
            (100, 200, 100, Ok(SequenceEnd::Complete)),
            (100, 200, 99, Err(ProtocolError::NotEnoughUnsolicited)),
            (100, 100, 60, Ok(SequenceEnd::Complete)),
            (80, 80, 0, Ok(SequenceEnd::Complete)),
        ] {
            let mut sequence = Sequence::new(Ttt::NONE, 0, first_burst);
            sequence.record_data(DataSn(0), 0, received, true);
            assert_eq!(sequence.check_end(whole, true), expected, "{first_burst} {whole} {received}");
        }
    }

    const IN_ORDER: (bool, bool) = (true, true);
    const ANY_ORDER: (bool, bool) = (false, true);

    #[test]
    fn behind_a_gap_everything_is_asked_for_again_if_pdus_come_in_order() {
        let mut sequence = Sequence::new(Ttt(1), 1000, 100);
        assert_eq!(sequence.check(DataSn(0), 1000, 40, IN_ORDER), Ok(PduDisposition::Accept));
        sequence.record_data(DataSn(0), 1000, 40, true);
        assert_eq!(sequence.check(DataSn(2), 1060, 20, IN_ORDER), Ok(PduDisposition::Skip));
        sequence.skipped(DataSn(2));
        assert_eq!(sequence.check(DataSn(3), 1080, 20, IN_ORDER), Ok(PduDisposition::Skip));
        assert_eq!(sequence.check(DataSn(2), 1060, 20, IN_ORDER), Ok(PduDisposition::Skip), "a duplicate");
        assert_eq!(sequence.check_end(4096, true), Ok(SequenceEnd::Recover));
        let superseded = sequence.restart_with(Ttt(2), true);
        assert_eq!((superseded.ttt, superseded.start, superseded.len), (Ttt(1), 1000, 100));
        assert_eq!(
            (sequence.ttt, sequence.requested, sequence.data_sn, sequence.sent),
            (Ttt(2), (40, 100), DataSn(0), false)
        );
        assert_eq!(sequence.check(DataSn(0), 1040, 60, IN_ORDER), Ok(PduDisposition::Accept));
        sequence.record_data(DataSn(0), 1040, 60, true);
        assert_eq!(sequence.check_end(4096, true), Ok(SequenceEnd::Complete));
    }

    #[test]
    fn only_the_gaps_are_asked_for_again_if_pdus_come_in_any_order() {
        let mut sequence = Sequence::new(Ttt(1), 0, 100);
        for (sn, offset) in [(0, 80), (2, 20), (5, 60)] {
            assert_eq!(sequence.check(DataSn(sn), offset, 20, ANY_ORDER), Ok(PduDisposition::Accept));
            sequence.record_data(DataSn(sn), offset, 20, false);
        }
        let mut asked = Vec::new();
        for ttt in 2.. {
            match sequence.check_end(100, false) {
                Ok(SequenceEnd::Recover) => {}
                end => {
                    assert_eq!(end, Ok(SequenceEnd::Complete));
                    break;
                }
            }
            sequence.restart_with(Ttt(ttt), false);
            let (from, to) = sequence.requested;
            asked.push((from, to));
            assert_eq!(
                sequence.check(DataSn(0), from, to - from + 1, ANY_ORDER),
                Err(ProtocolError::DataOutBeyondR2t)
            );
            assert_eq!(sequence.check(DataSn(0), from, to - from, ANY_ORDER), Ok(PduDisposition::Accept));
            sequence.record_data(DataSn(0), from, to - from, false);
        }
        assert_eq!(asked, [(0, 20), (40, 60)]);
    }

    #[test]
    fn a_recovered_sequence_that_is_short_again_without_a_loss_is_a_violation() {
        let mut sequence = Sequence::new(Ttt(1), 0, 100);
        sequence.broken = true;
        assert_eq!(sequence.check_end(100, true), Ok(SequenceEnd::Recover));
        sequence.restart_with(Ttt(2), true);
        assert_eq!(sequence.check(DataSn(0), 0, 40, IN_ORDER), Ok(PduDisposition::Accept));
        sequence.record_data(DataSn(0), 0, 40, true);
        assert_eq!(sequence.check_end(100, true), Err(ProtocolError::DataOutShort));
    }
}
