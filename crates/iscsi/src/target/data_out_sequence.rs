//! A sequence of Data-Out PDUs: which bytes of it are accepted, in what order, and what is missing at its end
//! (RFC 7143 §4.2.2.4, §11.7, §11.8).

use alloc::vec::Vec;

use base::buffer::Buf;

use super::protocol_error::ProtocolError;
use super::sequence_progress::SequenceProgress;
use crate::fault_injection::{self, Bug};
use crate::pdu::Ttt;
use crate::serial::{DataSn, R2tSn};

/// A sequence of Data-Out PDUs that is expected: the unsolicited data, or the answer to an R2T.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// The transfer tag; [`Ttt::NONE`] for the unsolicited data.
    pub(crate) ttt: Ttt,
    /// Whether it began as unsolicited data; a recovery R2T can have given it a tag since.
    pub(crate) unsolicited: bool,
    /// Whether the initiator knows of it: its R2T was sent, or its command announced it.
    pub(crate) sent: bool,
    /// The number of its R2T.
    pub(crate) r2t_sn: R2tSn,
    pub(crate) start: u32,
    pub(crate) len: u32,
    /// The part that is currently asked for: all of it, or the part that was found missing.
    pub(crate) requested: (u32, u32),
    pub(crate) received: u32,
    pub(crate) data_sn: DataSn,
    /// Whether part of the data that is currently asked for was lost.
    pub(crate) broken: bool,
    /// How many recovery R2Ts asked for it.
    pub(crate) tries: u8,
    /// How many recovery R2Ts in a row brought no data, and how many bytes were received at the last one.
    pub(crate) fruitless_retries: u8,
    received_at_retry: u32,
    /// How many of its PDUs were received, in all and at the last poll.
    pub(crate) pdus_received: u32,
    pub(crate) pdus_at_poll: Option<u32>,
    /// At how many polls in a row no PDU was received.
    pub(crate) idle_polls: u8,
    /// The fetch that it belongs to, and the index of its part there.
    pub(crate) fetch: u32,
    pub(crate) part: usize,
    pub(crate) buf: Option<Buf>,
    /// Whether a PDU is being read into the buffer, which is taken out meanwhile.
    pub(crate) reading: bool,
    /// Its progress, from when the initiator may send it.
    pub(crate) progress: Option<SequenceProgress>,
    /// The ranges received, if PDUs may arrive in any order: sorted, not touching.
    spans: Vec<(u32, u32)>,
}

/// How many separate ranges of a sequence may be received while others are missing. It allows PDUs out of
/// order, but not so many small pieces that they exhaust memory.
const MAX_SPANS: usize = 64;

/// How a PDU of a sequence is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PduDisposition {
    /// Its data is stored.
    Accept,
    /// Its data is discarded: it was received before, or data before it is missing.
    Skip,
}

/// The next step at the end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SequenceEnd {
    /// All data was received.
    Complete,
    /// Data was lost: a recovery R2T must ask for it again.
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

    /// Returns the unsolicited data of a command, `len` bytes, of which the immediate data is received.
    pub(crate) fn unsolicited(
        len: u32,
        (immediate_len, buf): (u32, Option<Buf>),
        in_order: bool,
        progress: SequenceProgress,
    ) -> Self {
        let mut new = Self::new(Ttt::NONE, 0, len);
        new.sent = true;
        new.progress = Some(progress);
        new.record_data(DataSn(0), 0, immediate_len, in_order);
        // The numbers begin with the first Data-Out.
        new.data_sn = DataSn(0);
        new.buf = buf;
        new
    }

    /// Returns whether it has memory: part of it was received, or is being read.
    pub(crate) const fn has_memory(&self) -> bool {
        self.buf.is_some() || self.reading
    }

    /// Takes back the buffer into which a PDU was read.
    pub(crate) fn put_back(&mut self, buf: Buf) {
        self.buf = Some(buf);
        self.reading = false;
    }

    /// Returns whether the initiator was asked for it, even in an R2T that may have been lost since.
    pub(crate) const fn was_requested(&self) -> bool {
        self.sent || self.tries > 0
    }

    /// Checks a PDU of this sequence before its data is read. With `repairs`, a gap in the DataSNs is a loss
    /// that is repaired, not a violation.
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
            //= rfc7143#section-7.9
            //# The target MUST address these implied digest errors as described in Section 7.8.
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
        //= rfc7143#section-11.8
        //# If DataPDUInOrder is set to Yes, the buffer offsets and lengths for consecutive PDUs MUST form a
        //# continuous non-overlapping range, and the PDUs MUST be sent in increasing offset order.
        if in_order {
            return match at == self.received {
                // In a sequence with a gap, the data behind the gap is sent again together with the lost
                // data.
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

    /// Records that the data of an accepted PDU was received.
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

    /// Records a PDU whose data cannot be used: it was skipped or damaged.
    pub(crate) fn skipped(&mut self, data_sn: DataSn) {
        if !data_sn.before(self.data_sn) {
            self.data_sn = data_sn.next();
        }
    }

    /// Returns the first range that is missing.
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

    /// Checks at the end of a sequence whether all data was received. `whole` is the length of the command's
    /// data.
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
        // RFC 7143 §11.4.7.2: less than FirstBurstLength is allowed only if the command has no more data.
        let prefix = self.spans.is_empty() || matches!(self.spans.as_slice(), [(0, _)]);
        if whole > self.len || !prefix {
            Err(ProtocolError::NotEnoughUnsolicited)
        } else {
            Ok(SequenceEnd::Complete)
        }
    }

    /// Resets the count of received data if the buffer is lost. That happens when a PDU was being read into
    /// it as its connection was lost, or as a recovery R2T replaced its sequence: the buffer is not returned
    /// then.
    pub(crate) fn reset_if_buffer_lost(&mut self) {
        if self.buf.is_none() && !fault_injection::is_injected(Bug::CountWithoutBuffer) {
            self.received = 0;
            self.spans.clear();
        }
    }

    /// Returns the part that is currently asked for, as an R2T that a recovery R2T replaces.
    pub(crate) const fn as_superseded(&self) -> SupersededR2t {
        let (from, to) = self.requested;
        SupersededR2t {
            ttt: self.ttt,
            r2t_sn: self.r2t_sn,
            start: self.start.saturating_add(from),
            len: to.saturating_sub(from),
        }
    }

    /// Restarts the sequence for a recovery R2T, and returns the R2T that this replaces.
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

/// An R2T, or the unsolicited data, that a recovery R2T replaced.
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
    fn a_rejected_pdu_takes_its_number() {
        //= rfc7143#section-7.3
        //= type=test
        //# When a data PDU is rejected and its DataSN can be ascertained, a target MUST advance the ExpDataSN
        //# for the current data burst if a recovery R2T is being generated.
        let mut run = Sequence::new(Ttt(1), 0, 100);
        run.skipped(DataSn(0));
        assert_eq!(run.data_sn, DataSn(1));
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
