//! The memory that the sessions of a target may hold for data in flight.
//!
//! A transport has three quotas (see [`base::memory_quota`]), so that none waits for another: for unsolicited
//! Data-Out, for solicited Data-Out, and for Data-In. A command is passed to the layer above only once memory
//! for its Data-In is reserved, since the data arrives when the device server has it, and not when the
//! initiator is ready to take it.

use base::arena::Key;
use base::int_cast::to_usize;
use base::memory_quota::{MemoryQuota, QuotaShare};
use base::time::Instant;

/// The quotas of a transport.
#[derive(Debug)]
pub struct DataQuotas {
    /// Data-Out that initiators send without being asked.
    pub unsolicited: MemoryQuota,
    /// Data-Out that the target asks for.
    pub solicited: MemoryQuota,
    /// Data-In: reserved for commands under way, waiting to be sent, or not acknowledged.
    pub data_in: MemoryQuota,
    /// How many bytes of Data-In one session may have under way, and the most that is reserved for one
    /// command before its data exists.
    unsent_bytes_max: usize,
}

/// What one session holds of each quota.
#[derive(Debug, Default)]
pub struct DataShares {
    /// Of [`DataQuotas::unsolicited`].
    pub unsolicited: QuotaShare,
    /// Of [`DataQuotas::solicited`].
    pub solicited: QuotaShare,
    /// Of [`DataQuotas::data_in`].
    pub data_in: QuotaShare,
}

/// Whether a command may be passed to the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may: memory for its Data-In is reserved.
    Admitted,
    /// The session has too much Data-In under way. It tries again when some is sent or acknowledged.
    SessionLimit,
    /// Memory is short. The session is queued, and tries again when [`MemoryQuota::next_waiter`] returns it.
    OutOfMemory,
}

impl DataQuotas {
    /// Makes quotas of these sizes, in bytes. Unsolicited and solicited Data-Out get one half each.
    pub const fn new(data_out_bytes_max: usize, data_in_bytes_max: usize, unsent_bytes_max: usize) -> Self {
        Self {
            unsolicited: MemoryQuota::new(data_out_bytes_max / 2),
            solicited: MemoryQuota::new(data_out_bytes_max / 2),
            data_in: MemoryQuota::new(data_in_bytes_max),
            unsent_bytes_max,
        }
    }

    /// Returns how many bytes are in use: none when no task is open.
    pub const fn used(&self) -> usize {
        self.unsolicited.used() + self.solicited.used() + self.data_in.used()
    }

    /// Returns whether a session should not be encouraged to send more commands: memory for Data-Out is
    /// short, and the session holds some of it.
    pub const fn should_throttle(&self, shares: &DataShares) -> bool {
        self.unsolicited.should_throttle(&shares.unsolicited)
            || self.solicited.should_throttle(&shares.solicited)
    }

    /// Returns how much is reserved for a command whose initiator expects `len` bytes. The expected length is
    /// only the initiator's claim, and may far exceed what the command returns.
    pub fn data_in_claim(&self, len: u32) -> usize {
        self.data_in.reservation_len(to_usize(len), self.unsent_bytes_max)
    }

    /// Reserves memory for the Data-In of a command: for as much of it as is under way at a time.
    pub fn admit(&mut self, now: Instant, session: Key, shares: &mut DataShares, len: u32) -> Admission {
        let (held, len) = (shares.data_in.held(), self.data_in_claim(len));
        if held > 0 && held.saturating_add(len) > self.unsent_bytes_max {
            return Admission::SessionLimit;
        }
        if self.data_in.try_reserve(now, &mut shares.data_in, len) {
            return Admission::Admitted;
        }
        self.data_in.enqueue_waiter(now, session, &mut shares.data_in);
        Admission::OutOfMemory
    }

    /// As [`Self::admit`], for a command of a logical unit none of whose commands holds memory of this quota.
    /// The session may exceed its limit for it: a logical unit that answers nothing may hold all the rest.
    pub fn admit_first_of_lun(
        &mut self,
        now: Instant,
        session: Key,
        shares: &mut DataShares,
        len: u32,
    ) -> Admission {
        let len = self.data_in_claim(len);
        if self.data_in.try_reserve_beyond(now, &mut shares.data_in, len) {
            return Admission::Admitted;
        }
        self.data_in.enqueue_waiter(now, session, &mut shares.data_in);
        Admission::OutOfMemory
    }
}

/// The bytes of [`DataQuotas::data_in`] that a command takes: its data that waits or is not acknowledged,
/// and, of the data still expected, as much as was claimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataInReservation {
    reserved: usize,
    /// How many bytes the command was assumed to have under way at a time.
    claimed: usize,
    /// How many bytes the command may return in all.
    expected: u32,
}

impl DataInReservation {
    /// Records the `claim` bytes that were reserved for a command that returns at most `expected` bytes.
    pub const fn new(claim: usize, expected: u32) -> Self {
        Self { reserved: claim, claimed: claim, expected }
    }

    /// Returns how many bytes are reserved.
    pub const fn reserved(&self) -> usize {
        self.reserved
    }

    /// Records that `here` bytes are held, where the data supplied so far ends at `end`, and that no more
    /// follows. Returns how many bytes that frees.
    pub fn close(&mut self, here: usize, end: u64) -> usize {
        self.claimed = 0;
        self.shrink(here, end)
    }

    /// Gives up what is no longer needed, and returns how many bytes that frees. See [`Self::close`].
    pub fn shrink(&mut self, here: usize, end: u64) -> usize {
        let spare = self.reserved.saturating_sub(self.needs(here, end));
        self.reserved -= spare;
        spare
    }

    /// Extends the reservation to the data that is held, and returns by how many bytes. See [`Self::close`].
    pub fn grow(&mut self, here: usize, end: u64) -> usize {
        let excess = self.needs(here, end).saturating_sub(self.reserved);
        self.reserved += excess;
        excess
    }

    /// Gives up everything, and returns how many bytes that frees.
    pub const fn take(&mut self) -> usize {
        let reserved = self.reserved;
        (self.reserved, self.claimed) = (0, 0);
        reserved
    }

    fn needs(&self, here: usize, end: u64) -> usize {
        let to_come = u64::from(self.expected).saturating_sub(end);
        let left = here.saturating_add(usize::try_from(to_come).unwrap_or(usize::MAX));
        here.max(left.min(self.claimed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_covers_what_is_here_and_what_was_claimed_of_the_rest() {
        let mut data = DataInReservation::new(4, 20);
        assert_eq!((data.grow(3, 3), data.shrink(3, 3), data.reserved()), (0, 0, 4));
        assert_eq!((data.grow(10, 10), data.reserved()), (6, 10));
        // While more data may follow, the claimed bytes stay reserved for it.
        assert_eq!((data.shrink(0, 10), data.reserved()), (6, 4));
        assert_eq!((data.close(2, 12), data.reserved()), (2, 2));
        assert_eq!((data.take(), data.reserved()), (2, 0));
    }

    #[test]
    fn a_session_over_its_limit_gets_memory_for_one_command_of_each_other_logical_unit() {
        let key = Key { index: 0, generation: 0 };
        let now = Instant::ORIGIN;
        let mut quotas = DataQuotas::new(1 << 20, 1 << 20, 512 << 10);
        let mut shares = DataShares::default();
        assert_eq!(quotas.admit(now, key, &mut shares, 512 << 10), Admission::Admitted);
        let mut first = |len| quotas.admit_first_of_lun(now, key, &mut shares, len);
        // One quarter of the memory stays free, but for short commands.
        assert_eq!(
            [first(128 << 10), first(128 << 10), first(128 << 10)].map(|it| it == Admission::Admitted),
            [true, true, false]
        );
        let short = (0..100).filter(|_| first(64 << 10) == Admission::Admitted).count();
        assert_eq!((short, quotas.data_in.used()), (4, 1 << 20));
    }

    #[test]
    fn a_session_over_its_limit_waits_for_itself_and_one_without_memory_for_others() {
        let key = |index| Key { index, generation: 0 };
        let mut quotas = DataQuotas::new(1 << 20, 1 << 20, 256 << 10);
        let (mut greedy, mut second) = (DataShares::default(), DataShares::default());
        let now = Instant::ORIGIN;
        assert_eq!(quotas.admit(now, key(0), &mut greedy, 256 << 10), Admission::Admitted);
        assert_eq!(quotas.admit(now, key(0), &mut greedy, 1), Admission::SessionLimit);
        assert_eq!(quotas.admit(now, key(1), &mut second, 200 << 10), Admission::Admitted);
        let mut late: [DataShares; 8] = Default::default();
        let mut admitted = 0;
        for (shares, at) in late.iter_mut().zip(2..) {
            admitted += u32::from(quotas.admit(now, key(at), shares, 256 << 10) == Admission::Admitted);
        }
        assert!(admitted < 8 && quotas.data_in.has_waiters());
        assert!(quotas.data_in.used() <= 1 << 20);
    }
}
