//! A sequence of Data-Out PDUs: which bytes of it are accepted, in what order, and what is missing at its end
//! (RFC 7143 §4.2.2.4, §11.7, §11.8).
//!
//! [`Sequence`] takes what happened: its R2T was sent, a PDU is received, its connection was polled. It
//! changes its own state and returns what follows: the sink of a PDU, a recovery R2T, its complete data. It
//! knows neither its task nor its connection.

use alloc::vec::Vec;

use base::buffer::{Buf, Bytes, Pool};
use base::int_cast::to_usize;
use base::time::{Duration, Instant};

use super::protocol_error::ProtocolError;
use super::sequence_progress::SequenceProgress;
use crate::fault_injection::{self, Bug};
use crate::framing::DataSink;
use crate::pdu::Ttt;
use crate::serial::{DataSn, R2tSn};

/// A sequence of Data-Out PDUs that is expected: the unsolicited data, or the answer to an R2T.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// The transfer tag; [`Ttt::NONE`] for the unsolicited data.
    ttt: Ttt,
    /// Whether it began as unsolicited data; a recovery R2T can have given it a tag since.
    unsolicited: bool,
    /// Whether the initiator knows of it: its R2T was sent, or its command announced it.
    announced: bool,
    /// The number of its R2T.
    r2t_sn: R2tSn,
    start: u32,
    len: u32,
    /// The part that is currently asked for: all of it, or the part that was found missing.
    requested: (u32, u32),
    received: u32,
    data_sn: DataSn,
    /// Whether part of the data that is currently asked for was lost.
    broken: bool,
    /// How many recovery R2Ts asked for it.
    tries: u8,
    /// How many recovery R2Ts in a row brought no data, and how many bytes were received at the last one.
    fruitless_retries: u8,
    received_at_retry: u32,
    /// How many of its PDUs were received, in all and at the last poll.
    pdus_received: u32,
    pdus_at_poll: Option<u32>,
    /// At how many polls in a row no PDU was received.
    idle_polls: u8,
    fetch_part: FetchPart,
    buf: Option<Buf>,
    /// Whether a PDU is being read into the buffer, which is taken out meanwhile.
    reading: bool,
    /// Its progress, from when the initiator may send it.
    progress: Option<SequenceProgress>,
    /// The ranges received, if PDUs may arrive in any order: sorted, not touching.
    spans: Vec<(u32, u32)>,
}

/// The place of a solicited sequence's data: the fetch that asked for it, and the index of its part there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FetchPart {
    pub(crate) fetch: u32,
    pub(crate) index: usize,
}

/// How many separate ranges of a sequence may be received while others are missing. It allows PDUs out of
/// order, but not so many small pieces that they exhaust memory.
const MAX_SPANS: usize = 64;

/// How many recovery R2Ts in a row may bring no data of a sequence before its task fails: a peer whose
/// digests are always wrong would keep the target busy for ever. A sequence that brings a little data each
/// time has the time limits of `stall`.
const MAX_TRIES: u8 = 16;

/// At how many polls a sequence may be silent, at first, while other sequences of its connection make
/// progress.
const MAX_IDLE_POLLS: u8 = 8;

/// How many times that number of polls is doubled: up to 64.
const MAX_DOUBLINGS: u8 = 6;

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

/// The result of [`Sequence::recover`].
#[derive(Debug)]
pub(crate) enum RecoveryStep {
    /// Too many recovery R2Ts brought no data: no more is expected.
    GiveUp,
    /// All data is here: only the PDU with the F bit was lost. Further PDUs of this R2T are ignored.
    Complete(IssuedR2t),
    /// A recovery R2T with the new tag must be sent. It replaces this R2T.
    SendR2t(IssuedR2t),
}

impl Sequence {
    const fn new(ttt: Ttt, start: u32, len: u32) -> Self {
        Self {
            ttt,
            unsolicited: ttt.0 == Ttt::NONE.0,
            announced: false,
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
            fetch_part: FetchPart { fetch: 0, index: 0 },
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
        new.announced = true;
        new.progress = Some(progress);
        new.record_data(DataSn(0), 0, immediate_len, in_order);
        // The numbers begin with the first Data-Out.
        new.data_sn = DataSn(0);
        new.buf = buf;
        new
    }

    /// Returns the answer to an R2T with this tag that is still to be sent, for `len` bytes from `start`.
    pub(crate) const fn solicited(ttt: Ttt, start: u32, len: u32, fetch_part: FetchPart) -> Self {
        let mut new = Self::new(ttt, start, len);
        new.fetch_part = fetch_part;
        new
    }

    /// Returns its transfer tag; [`Ttt::NONE`] for unsolicited data that was not asked for again.
    pub(crate) const fn ttt(&self) -> Ttt {
        self.ttt
    }

    /// Returns whether it began as unsolicited data.
    pub(crate) const fn is_unsolicited(&self) -> bool {
        self.unsolicited
    }

    /// Returns whether the initiator knows of it: its R2T was sent, or its command announced it.
    pub(crate) const fn is_announced(&self) -> bool {
        self.announced
    }

    /// Returns the offset of its first byte in the data of its command.
    pub(crate) const fn start(&self) -> u32 {
        self.start
    }

    /// Returns its length in bytes.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Returns the offset behind its last byte.
    pub(crate) const fn end(&self) -> u32 {
        self.start.saturating_add(self.len)
    }

    /// Returns the place of its data, if it answers an R2T of a fetch.
    pub(crate) const fn fetch_part(&self) -> FetchPart {
        self.fetch_part
    }

    /// Returns whether it has memory: part of it was received, or is being read.
    pub(crate) const fn has_memory(&self) -> bool {
        self.buf.is_some() || self.reading
    }

    /// Returns whether data of it was received, or is being read.
    pub(crate) const fn has_data(&self) -> bool {
        self.received > 0 || self.reading
    }

    /// Returns whether the initiator was asked for it, even in an R2T that may have been lost since.
    pub(crate) const fn was_requested(&self) -> bool {
        self.announced || self.tries > 0
    }

    /// Records that its R2T is sent under this number, on a connection that has received `brought` bytes of
    /// Data-Out. Returns the R2T.
    pub(crate) fn record_r2t(&mut self, r2t_sn: R2tSn, now: Instant, brought: u64) -> IssuedR2t {
        self.announced = true;
        self.progress.get_or_insert(SequenceProgress::new(now, brought));
        self.r2t_sn = r2t_sn;
        self.as_issued()
    }

    /// Returns whether a PDU with `len` bytes of data needs a buffer that the sequence does not have.
    pub(crate) const fn needs_buffer(&self, len: u32) -> bool {
        len > 0 && self.buf.is_none()
    }

    /// Gives it the buffer for all of its data.
    pub(crate) fn set_buffer(&mut self, buf: Buf) {
        self.buf = Some(buf);
    }

    /// Returns the sink for the data of an accepted PDU. It takes the buffer out until [`Self::put_back`].
    pub(crate) fn start_reading(&mut self, offset: u32, in_order: bool) -> DataSink {
        self.reading = self.buf.is_some();
        match self.buf.take() {
            Some(buf) if in_order => DataSink::Append(buf),
            Some(mut buf) => {
                buf.append_zeros(to_usize(self.len).saturating_sub(buf.len()));
                DataSink::Overwrite { buf, at: to_usize(offset.saturating_sub(self.start)) }
            }
            None => DataSink::Discard,
        }
    }

    /// Takes back the buffer into which a PDU was read.
    pub(crate) fn put_back(&mut self, buf: Buf) {
        self.buf = Some(buf);
        self.reading = false;
    }

    /// Takes back the buffer into which a PDU with a wrong digest was read.
    pub(crate) fn put_back_damaged(&mut self, mut buf: Buf, in_order: bool) {
        // In order, the damaged data is at the end of the buffer and is cut off. In any order, it is at its
        // own offset and will be overwritten.
        if in_order {
            buf.truncate(to_usize(self.received));
        }
        self.put_back(buf);
    }

    /// Returns its buffer, if it has one.
    pub(crate) fn take_buffer(&mut self) -> Option<Buf> {
        self.buf.take()
    }

    /// Returns the data received, or `None` if fewer bytes are in its buffer than were counted.
    pub(crate) fn into_received(self, pool: &Pool) -> Option<Bytes> {
        let mut buf = self.buf.unwrap_or_else(|| pool.take(0));
        buf.truncate(to_usize(self.received));
        (buf.len() == to_usize(self.received)).then(|| buf.freeze())
    }

    /// Returns whether its buffer holds fewer bytes than the sequence is long.
    pub(crate) fn is_buffer_short(&self) -> bool {
        self.buf.as_ref().is_some_and(|buf| buf.len() != to_usize(self.len))
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
    pub(crate) fn record_skipped(&mut self, data_sn: DataSn) {
        if !data_sn.before(self.data_sn) {
            self.data_sn = data_sn.next();
        }
    }

    /// Records that the data of a PDU is lost: a recovery R2T asks for it at the end of the sequence.
    pub(crate) fn record_loss(&mut self, data_sn: DataSn) {
        //= rfc7143#section-7.3
        //# When a data PDU is rejected and its DataSN can be ascertained, a target MUST advance the
        //# ExpDataSN for the current data burst if a recovery R2T is being generated.
        self.record_skipped(data_sn);
        self.broken = true;
    }

    /// Records how many bytes of it are received by now, and `brought`, those of its whole connection.
    pub(crate) fn record_progress(&mut self, now: Instant, brought: u64) {
        if let Some(progress) = &mut self.progress {
            progress.note(now, brought, self.received);
        }
    }

    /// Returns whether it takes too long. `limits` are those of [`SequenceProgress::is_late`].
    pub(crate) fn is_late(&self, now: Instant, brought: u64, limits: (Duration, bool)) -> bool {
        self.progress.is_some_and(|progress| progress.is_late(now, brought, limits))
    }

    /// Returns whether it makes no progress although its connection is not busy with other sequences.
    pub(crate) fn stands_still(&self, now: Instant, brought: u64) -> bool {
        self.progress.is_some_and(|progress| progress.stands_still(now, brought))
    }

    /// Counts a poll at which its connection has received no Data-Out since the last one (`is_conn_idle`) or
    /// has. Returns whether the sequence has been silent for so long that a recovery R2T must ask for it.
    pub(crate) fn poll(&mut self, is_conn_idle: bool) -> bool {
        let is_silent = self.pdus_at_poll.replace(self.pdus_received) == Some(self.pdus_received);
        self.idle_polls = if is_silent { self.idle_polls.saturating_add(1) } else { 0 };
        // Each retry waits twice as long: the peer may be slow, and sending data twice makes it slower. If
        // the target waited a shorter time than an answer takes, every answer would be for an R2T that was
        // already replaced.
        let polls_min = 1_u8 << self.tries.min(MAX_DOUBLINGS);
        is_conn_idle && self.idle_polls >= polls_min || self.idle_polls >= polls_min.max(MAX_IDLE_POLLS)
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

    /// Records that its connection is lost.
    pub(crate) fn connection_lost(&mut self) {
        self.reset_if_buffer_lost();
        self.reading = false;
    }

    /// Records that its task is reassigned. Without a connection no data could be received. The time limit
    /// therefore starts again with the next R2T, and so does the count of R2Ts that brought no data.
    pub(crate) const fn reassigned(&mut self) {
        (self.progress, self.fruitless_retries) = (None, 0);
    }

    /// Withdraws its R2T. Returns the R2T if it was sent.
    pub(crate) fn withdraw_r2t(&mut self) -> Option<IssuedR2t> {
        let issued = self.was_requested().then(|| self.as_issued());
        (self.announced, self.tries) = (false, 0);
        issued
    }

    /// Asks for its missing data in a recovery R2T with this tag, unless all data is here or too many of them
    /// brought none.
    pub(crate) fn recover(&mut self, ttt: Ttt, in_order: bool) -> RecoveryStep {
        if self.fruitless_retries >= MAX_TRIES {
            return RecoveryStep::GiveUp;
        }
        self.reset_if_buffer_lost();
        if self.received == self.len {
            return RecoveryStep::Complete(self.as_issued());
        }
        RecoveryStep::SendR2t(self.restart_with(ttt, in_order))
    }

    /// Resets the count of received data if the buffer is lost. That happens when a PDU was being read into
    /// it as its connection was lost, or as a recovery R2T replaced its sequence: the buffer is not returned
    /// then.
    fn reset_if_buffer_lost(&mut self) {
        if self.buf.is_none() && !fault_injection::is_injected(Bug::CountWithoutBuffer) {
            self.received = 0;
            self.spans.clear();
        }
    }

    /// Returns the part that is currently asked for, as an R2T.
    pub(crate) const fn as_issued(&self) -> IssuedR2t {
        let (from, to) = self.requested;
        IssuedR2t {
            ttt: self.ttt,
            r2t_sn: self.r2t_sn,
            start: self.start.saturating_add(from),
            len: to.saturating_sub(from),
        }
    }

    /// Restarts the sequence for a recovery R2T, and returns the R2T that this replaces.
    fn restart_with(&mut self, ttt: Ttt, in_order: bool) -> IssuedR2t {
        let superseded = self.as_issued();
        self.ttt = ttt;
        self.requested = self.first_hole(in_order);
        self.announced = false;
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

/// An R2T as it was sent, or the unsolicited data as its command announced it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IssuedR2t {
    pub(crate) ttt: Ttt,
    pub(crate) r2t_sn: R2tSn,
    pub(crate) start: u32,
    pub(crate) len: u32,
}

#[cfg(test)]
mod tests;
