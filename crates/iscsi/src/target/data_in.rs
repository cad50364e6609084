//! Data for the initiator: the data of a task that waits to be sent, and the sent data that may be asked for
//! again.
//!
//! [`DataIn`] cuts the data into PDUs, numbers them, and remembers them until they are acknowledged. Where
//! that frees memory, it returns how much. It knows neither its task nor its connection.

use base::buffer::{Bytes, Pool};
use base::int_cast::{to_u32, to_usize};
use smallvec::SmallVec;
use transport::quota::DataInReservation;

use crate::pdu::Ttt;
use crate::serial::DataSn;

/// The Data-In of a task. From level 1 on, sent data is retained until it is acknowledged.
#[derive(Debug, Default)]
pub(crate) struct DataIn {
    parts: SmallVec<[Bytes; 2]>,
    /// The offset of the first byte of the first part, if sent data is retained.
    parts_start: u32,
    /// The first part that is not completely sent, and how many of its bytes are sent.
    part: usize,
    part_sent: usize,
    /// How many bytes wait to be sent.
    queued: usize,
    /// How many sent bytes are retained.
    kept: usize,
    /// Bytes of the memory quota that it takes.
    reservation: DataInReservation,
    /// The offset of the next byte to send.
    offset: u32,
    data_sn: DataSn,
    /// The first DataSN that is not acknowledged, and the offset of its data.
    acked_sn: DataSn,
    acked_offset: u32,
    /// The sent Data-In PDUs from there on, in order.
    log: SmallVec<[Sent; 2]>,
    /// The tag under which the initiator acknowledges data, once the target asked for an acknowledgement.
    ack_ttt: Option<Ttt>,
    /// Bytes sent in the current sequence.
    burst: usize,
}

/// A Data-In PDU that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) data_sn: DataSn,
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) is_final: bool,
    pub(crate) acknowledge: bool,
}

/// What bounds the next Data-In PDU, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataInLimits {
    /// For one PDU.
    pub(crate) segment_max: usize,
    /// For one sequence.
    pub(crate) burst_max: usize,
}

impl DataIn {
    /// Takes the memory that is reserved for the data of its command.
    pub(crate) const fn set_reservation(&mut self, reservation: DataInReservation) {
        self.reservation = reservation;
    }

    /// Returns whether it takes memory of the quota.
    pub(crate) const fn holds_memory(&self) -> bool {
        self.reservation.reserved() > 0
    }

    /// Returns whether data waits to be sent.
    pub(crate) const fn has_queued(&self) -> bool {
        self.queued > 0
    }

    /// Returns the offset of the next byte to send: how many bytes were sent.
    pub(crate) const fn offset(&self) -> u32 {
        self.offset
    }

    /// Returns the number of the next PDU.
    pub(crate) const fn next_sn(&self) -> DataSn {
        self.data_sn
    }

    /// Returns the number of the next PDU and advances it: an R2T of a bidirectional command takes it.
    pub(crate) const fn use_sn(&mut self) -> DataSn {
        let sn = self.data_sn;
        self.data_sn = sn.next();
        sn
    }

    /// Returns the first number that is not acknowledged.
    pub(crate) const fn acked_sn(&self) -> DataSn {
        self.acked_sn
    }

    /// Sets the number of the next PDU, as if all before it were acknowledged.
    #[cfg(test)]
    pub(crate) const fn set_next_sn(&mut self, sn: DataSn) {
        (self.data_sn, self.acked_sn) = (sn, sn);
    }

    /// Returns the tag under which the initiator acknowledges data, once one was assigned.
    pub(crate) const fn ack_ttt(&self) -> Option<Ttt> {
        self.ack_ttt
    }

    /// Returns that tag. Assigns `new` if there is none.
    pub(crate) fn ack_ttt_or_insert_with(&mut self, new: impl FnOnce() -> Ttt) -> Ttt {
        *self.ack_ttt.get_or_insert_with(new)
    }

    /// Takes the data of the next PDU and passes it to `put`, piece by piece. With `keep`, the PDU is
    /// retained until it is acknowledged. Some data must wait to be sent.
    pub(crate) fn next_pdu(&mut self, limits: DataInLimits, keep: bool, put: impl FnMut(Bytes)) -> Sent {
        let DataInLimits { segment_max, burst_max } = limits;
        let len = self.queued.min(segment_max).min(burst_max.saturating_sub(self.burst)).max(1);
        let is_last = len == self.queued;
        self.burst += len;
        let sequence_ends = self.burst >= burst_max;
        //= rfc7143#section-11.7.3
        //# If this bit is set to 1, the F bit MUST also be set to 1.
        let is_final = is_last || sequence_ends;
        if is_final {
            self.burst = 0;
        }
        //= rfc7143#section-11.7.2
        //# it MUST NOT do so more frequently
        //= rfc7143#section-11.7.2
        //# The target MUST NOT set to 1 the A bit for sessions with ErrorRecoveryLevel=0.
        // An acknowledgement is requested once every MaxBurstLength bytes, but not where the status requests
        // it (§11.7.2).
        let acknowledge = keep && sequence_ends && !is_last;
        let (data_sn, offset) = (self.use_sn(), self.offset);
        self.take(len, keep, put);
        let sent = Sent { data_sn, offset, len: to_u32(len), is_final, acknowledge };
        if keep {
            self.log.push(sent);
        }
        sent
    }

    /// Returns the offset behind all queued data.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.offset) + u64::try_from(self.queued).unwrap_or(u64::MAX)
    }

    /// Queues data behind the other data.
    pub(crate) fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.queued += part.len();
            self.parts.push(part);
        }
    }

    /// Takes the next `len` bytes and passes them to `put`, piece by piece. With `keep`, they are retained.
    fn take(&mut self, len: usize, keep: bool, mut put: impl FnMut(Bytes)) {
        let mut left = len.min(self.queued);
        self.queued -= left;
        self.kept += if keep { left } else { 0 };
        self.offset = self.offset.wrapping_add(to_u32(left));
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
        if self.queued == 0 && !keep {
            self.parts.clear();
            self.part = 0;
        }
    }

    /// Returns the first retained PDU with this number or a later one, before `end`.
    pub(crate) fn sent_from(&self, sn: DataSn, end: DataSn) -> Option<Sent> {
        let first = self.acked_sn;
        let skip = if sn.before(first) { 0 } else { first.distance_to(sn) };
        let at = self.log.partition_point(|sent| first.distance_to(sent.data_sn) < skip);
        self.log.get(at).copied().filter(|sent| first.distance_to(sent.data_sn) < first.distance_to(end))
    }

    /// Returns the length of the longest retained PDU with these numbers.
    pub(crate) fn longest(&self, sn: DataSn, end: DataSn) -> u32 {
        let from = self.acked_sn;
        let run = from.distance_to(sn)..from.distance_to(end);
        let named = self.log.iter().filter(|sent| run.contains(&from.distance_to(sent.data_sn)));
        named.map(|sent| sent.len).max().unwrap_or(0)
    }

    /// Returns the last retained PDU.
    pub(crate) fn last_sent(&self) -> Option<Sent> {
        self.log.last().copied()
    }

    /// Passes retained bytes to `put` once more.
    pub(crate) fn read_sent(&self, offset: u32, len: u32, mut put: impl FnMut(Bytes)) {
        let mut skip = to_usize(self.parts_start.distance(offset));
        let mut left = to_usize(len);
        for part in &self.parts {
            if left == 0 {
                return;
            }
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let size = left.min(part.len() - skip);
            put(part.slice(skip, skip + size));
            left -= size;
            skip = 0;
        }
    }

    /// Drops the data sent before the PDU with this number, and returns how many bytes of the memory quota
    /// that frees. The number must lie between the first retained one and the next to be sent.
    pub(crate) fn acknowledge(&mut self, sn: DataSn, pool: &Pool) -> usize {
        let upto = self.sent_from(sn, self.data_sn).map_or(self.offset, |sent| sent.offset);
        let first = self.acked_sn;
        let done = first.distance_to(sn);
        let count = self.log.partition_point(|sent| first.distance_to(sent.data_sn) < done);
        self.log.drain(..count);
        (self.acked_sn, self.acked_offset) = (sn, upto);
        let (mut parts, mut freed) = (0, 0);
        for part in self.parts.iter().take(self.part) {
            if self.parts_start.distance(upto) < to_u32(part.len()) {
                break;
            }
            self.parts_start = self.parts_start.wrapping_add(to_u32(part.len()));
            freed += part.len();
            parts += 1;
        }
        for part in self.parts.drain(..parts) {
            pool.recycle(part);
        }
        self.part -= parts;
        self.kept = self.kept.saturating_sub(freed);
        self.shrink_reservation()
    }

    /// As [`Self::acknowledge`], for a number from the initiator. Returns `None` if it is not one of those.
    pub(crate) fn acknowledge_sent(&mut self, sn: DataSn, pool: &Pool) -> Option<usize> {
        let is_sent = self.acked_sn.distance_to(sn) <= self.acked_sn.distance_to(self.data_sn);
        is_sent.then(|| self.acknowledge(sn, pool))
    }

    /// Queues all unacknowledged data again, to be sent resegmented.
    pub(crate) fn rewind(&mut self) {
        if self.parts.is_empty() {
            // The data was dropped: the initiator gets no more than what it acknowledged.
            self.log.clear();
            (self.offset, self.data_sn, self.burst) = (self.acked_offset, self.acked_sn, 0);
            return;
        }
        let back = to_usize(self.acked_offset.distance(self.offset));
        self.queued += back;
        self.kept = self.kept.saturating_sub(back);
        (self.offset, self.data_sn, self.burst) = (self.acked_offset, self.acked_sn, 0);
        self.log.clear();
        let mut skip = to_usize(self.parts_start.distance(self.acked_offset));
        self.part = 0;
        for part in &self.parts {
            if skip < part.len() {
                break;
            }
            skip -= part.len();
            self.part += 1;
        }
        self.part_sent = skip;
    }

    /// Drops all waiting and retained data, and returns how many bytes of the memory quota that frees.
    pub(crate) fn stop(&mut self, pool: &Pool) -> usize {
        for part in self.parts.drain(..) {
            pool.recycle(part);
        }
        self.log.clear();
        (self.part, self.part_sent, self.queued, self.kept) = (0, 0, 0, 0);
        (self.acked_sn, self.acked_offset, self.parts_start) = (self.data_sn, self.offset, self.offset);
        self.reservation.take()
    }

    /// As [`Self::stop`], for a task without a connection: the target learns which Data-In the initiator has
    /// received only when the initiator reassigns the task. It remembers where each of them began, to tell
    /// the residual count.
    pub(crate) fn drop_unacknowledged(&mut self, pool: &Pool) -> usize {
        let acked = (self.acked_sn, self.acked_offset);
        let log = core::mem::take(&mut self.log);
        let freed = self.stop(pool);
        (self.acked_sn, self.acked_offset, self.log) = (acked.0, acked.1, log);
        freed
    }

    /// Records that no more data follows, and returns how many bytes of the memory quota that frees.
    pub(crate) fn end_input(&mut self) -> usize {
        let (here, end) = (self.queued + self.kept, self.end());
        self.reservation.close(here, end)
    }

    /// Gives up the part of the reservation that is no longer needed, and returns its size in bytes.
    pub(crate) fn shrink_reservation(&mut self) -> usize {
        let (here, end) = (self.queued + self.kept, self.end());
        self.reservation.shrink(here, end)
    }

    /// Extends the reservation to the data that is queued or retained, and returns by how many bytes.
    pub(crate) fn grow_reservation(&mut self) -> usize {
        let (here, end) = (self.queued + self.kept, self.end());
        self.reservation.grow(here, end)
    }
}

/// An offset that only grows.
trait Offset {
    fn distance(self, later: Self) -> u32;
}

impl Offset for u32 {
    fn distance(self, later: Self) -> u32 {
        later.saturating_sub(self)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

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
            data.take(len, false, |bytes| piece.extend_from_slice(&bytes));
            got.push(piece);
        }
        assert_eq!(got, [&b"a"[..], b"bcd", b"", b"efgh", b"i"]);
        assert_eq!((data.queued, data.offset, data.end()), (0, 9, 9));
        data.push(Bytes::copied_from(b"j"));
        data.reservation = DataInReservation::new(7, 0);
        assert_eq!((data.stop(&Pool::new(0)), data.queued, data.reservation.reserved()), (7, 0, 0));
    }

    #[test]
    fn what_is_taken_of_the_budget_is_what_is_here_and_what_was_claimed_of_the_rest() {
        for keep in [false, true] {
            let mut data = DataIn { reservation: DataInReservation::new(4, 20), ..DataIn::default() };
            data.push(Bytes::copied_from(b"abc"));
            assert_eq!(
                (data.grow_reservation(), data.shrink_reservation(), data.reservation.reserved()),
                (0, 0, 4)
            );
            data.push(Bytes::copied_from(b"defghij"));
            assert_eq!((data.grow_reservation(), data.reservation.reserved()), (6, 10));
            // While more data may follow, the claimed bytes stay reserved for it.
            data.take(10, keep, |_| {});
            assert_eq!(data.shrink_reservation(), if keep { 0 } else { 6 });
            data.push(Bytes::copied_from(b"kl"));
            assert_eq!(
                (data.grow_reservation(), data.reservation.reserved()),
                if keep { (2, 12) } else { (0, 4) }
            );
            assert_eq!(data.end_input(), if keep { 0 } else { 2 });
            data.take(2, keep, |_| {});
            assert_eq!(data.shrink_reservation(), if keep { 0 } else { 2 });
            assert_eq!(
                (data.stop(&Pool::new(0)), data.reservation.reserved()),
                (if keep { 12 } else { 0 }, 0)
            );
        }
    }

    /// Sends `len` bytes as the next PDU, and returns them.
    fn send(data: &mut DataIn, len: u32) -> Vec<u8> {
        let mut out = Vec::new();
        let limits = DataInLimits { segment_max: to_usize(len), burst_max: usize::MAX };
        data.next_pdu(limits, true, |bytes| out.extend_from_slice(&bytes));
        out
    }

    fn again(data: &DataIn, sent: Sent) -> Vec<u8> {
        let mut out = Vec::new();
        data.read_sent(sent.offset, sent.len, |bytes| out.extend_from_slice(&bytes));
        out
    }

    #[test]
    fn what_was_sent_can_be_had_again_until_it_is_acknowledged() {
        for first in [DataSn(0), DataSn(u32::MAX - 1)] {
            let mut data = DataIn {
                data_sn: first,
                acked_sn: first,
                reservation: DataInReservation::new(12, 0),
                ..DataIn::default()
            };
            for part in [&b"abcd"[..], b"efg", b"hijkl"] {
                data.push(Bytes::copied_from(part));
            }
            let pieces: Vec<Vec<u8>> = [3, 3, 3].into_iter().map(|len| send(&mut data, len)).collect();
            assert_eq!((data.queued, data.kept), (3, 9));
            for (at, piece) in (0..).zip(&pieces) {
                let sent = data.sent_from(first.plus(at), first.plus(3)).unwrap();
                assert_eq!((sent.data_sn, again(&data, sent)), (first.plus(at), piece.clone()));
            }
            assert!(data.sent_from(first.plus(1), first.plus(1)).is_none());
            assert!(data.sent_from(first.plus(3), first.plus(4)).is_none());
            // Six bytes are acknowledged: the first part of four bytes can be dropped.
            assert_eq!(data.acknowledge(first.plus(2), &Pool::new(0)), 4);
            assert_eq!((data.kept, data.reservation.reserved()), (5, 8));
            let sent = data.sent_from(first, first.plus(3)).unwrap();
            assert_eq!((sent.data_sn, again(&data, sent)), (first.plus(2), b"ghi".to_vec()));
            // The rest is resegmented.
            data.rewind();
            assert_eq!((data.offset, data.data_sn, data.queued), (6, first.plus(2), 6));
            assert_eq!(send(&mut data, 4), b"ghij");
            assert_eq!(send(&mut data, 2), b"kl");
            assert_eq!(data.acknowledge(first.plus(4), &Pool::new(0)), 8);
            assert_eq!((data.kept, data.reservation.reserved(), data.offset), (0, 0, 12));
            assert_eq!(data.acknowledge(first.plus(4), &Pool::new(0)), 0);
        }
    }
}
