//! Limits of the rate at which commands are executed: token buckets for operations and for bytes.
//!
//! A bucket counts what commands have reserved and what has been filled in since its creation. A command
//! reserves its cost when it is the next one of its queue, and may start when as much has been filled in as
//! was reserved up to and including it. The reservations of several queues are therefore served in the order
//! in which they were made, and no queue has to ask twice. Both counts stay when the rate changes: a debt is
//! kept, and a command that waits starts when the new rate has paid for it. A reservation that is given up
//! moves those behind it forward, and none before it.

pub mod handover;

use alloc::collections::VecDeque;

use base::time::{Duration, Instant};

/// How many operations and bytes per second may be executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// Operations per second; 0 for no limit.
    pub iops: u32,
    /// Bytes per second; 0 for no limit.
    pub bandwidth: u64,
    /// For how long a rate that was not used is saved up, to be used at once later.
    pub burst: Duration,
}

impl RateLimit {
    /// No limit.
    pub const NONE: Self = Self { iops: 0, bandwidth: 0, burst: Duration::ZERO };

    /// Returns whether nothing is limited.
    pub const fn is_none(&self) -> bool {
        self.iops == 0 && self.bandwidth == 0
    }
}

/// The counters of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitStats {
    /// Commands that had to wait.
    pub delayed: u64,
    /// How long these commands waited in total, in nanoseconds.
    pub delayed_ns: u64,
}

impl LimitStats {
    /// Counts a command that has waited.
    pub(crate) fn count(&mut self, waited: Duration) {
        self.delayed += 1;
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.delayed_ns = self.delayed_ns.saturating_add(waited);
    }
}

/// What a command, or several, count as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
}

impl Cost {
    pub(crate) const fn plus(self, other: Self) -> Self {
        let operations = self.operations.saturating_add(other.operations);
        Self { operations, bytes: self.bytes.saturating_add(other.bytes) }
    }

    pub(crate) const fn minus(self, other: Self) -> Self {
        let operations = self.operations.saturating_sub(other.operations);
        Self { operations, bytes: self.bytes.saturating_sub(other.bytes) }
    }

    const fn times(self, count: u64) -> Self {
        let operations = self.operations.saturating_mul(count);
        Self { operations, bytes: self.bytes.saturating_mul(count) }
    }
}

/// A limit in force, with its buckets.
#[derive(Debug)]
pub struct Limiter {
    limit: RateLimit,
    operations: Bucket,
    bytes: Bucket,
    /// The reservations of commands that have not started, in their order: at most one for each queue.
    reserved: VecDeque<Reserved>,
    next_reservation: u64,
    /// How many queues have a command that waits.
    pub(crate) queues: u64,
    pub(crate) stats: LimitStats,
}

/// Names a reservation of a limiter. Later ones have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation(u64);

/// What a command that has not started has reserved.
#[derive(Clone, Copy, Debug)]
struct Reserved {
    reservation: Reservation,
    cost: Cost,
    /// The counts of both buckets from which on the command may start.
    operations: u128,
    bytes: u128,
}

impl Limiter {
    /// Puts a limit into force. Its buckets are full.
    pub fn new(now: Instant, limit: RateLimit) -> Self {
        let bucket = Bucket { rate: 0, saved_max: 0, filled: 0, reserved: 0, filled_at: now };
        let mut limiter = Self {
            limit: RateLimit::NONE,
            operations: bucket,
            bytes: bucket,
            reserved: VecDeque::new(),
            next_reservation: 0,
            queues: 0,
            stats: LimitStats::default(),
        };
        limiter.change(now, limit);
        limiter
    }

    /// Changes the limit. What is reserved stays reserved.
    pub fn change(&mut self, now: Instant, limit: RateLimit) {
        self.limit = limit;
        self.operations.change(now, limit.iops.into(), limit.burst);
        self.bytes.change(now, limit.bandwidth, limit.burst);
    }

    /// Returns the limit.
    pub const fn limit(&self) -> RateLimit {
        self.limit
    }

    /// Returns whether nothing is owed and no more can be saved up, as for a new limiter.
    pub fn is_full(&mut self, now: Instant) -> bool {
        self.operations.is_full(now) && self.bytes.is_full(now)
    }

    /// Returns what the limit has done so far.
    pub const fn stats(&self) -> LimitStats {
        self.stats
    }

    /// Reserves the cost of a command.
    pub(crate) fn reserve(&mut self, now: Instant, cost: Cost) -> Reservation {
        let reservation = Reservation(self.next_reservation);
        self.next_reservation += 1;
        let operations = self.operations.reserve(now, cost.operations);
        let bytes = self.bytes.reserve(now, cost.bytes);
        self.reserved.push_back(Reserved { reservation, cost, operations, bytes });
        reservation
    }

    /// Records that the command of a reservation starts.
    pub(crate) fn start(&mut self, reservation: Reservation) {
        if let Some(at) = self.position(reservation) {
            self.reserved.remove(at);
        }
    }

    /// Gives up the reservation of a command that does not start. The commands that reserved behind it start
    /// earlier by its cost. Those before it are not affected.
    pub(crate) fn refund(&mut self, reservation: Reservation) {
        let Some(at) = self.position(reservation) else { return };
        let Some(Reserved { cost, .. }) = self.reserved.remove(at) else { return };
        self.operations.refund(cost.operations);
        self.bytes.refund(cost.bytes);
        for behind in self.reserved.iter_mut().skip(at) {
            behind.operations = behind.operations.saturating_sub(scaled(cost.operations));
            behind.bytes = behind.bytes.saturating_sub(scaled(cost.bytes));
        }
    }

    /// Returns when a command may start: not later than `now` if it may start at once.
    pub(crate) fn starts_at(&mut self, now: Instant, reservation: Reservation) -> Instant {
        let found = self.position(reservation).and_then(|at| self.reserved.get(at));
        let Some(&Reserved { operations, bytes, .. }) = found else { return now };
        self.reaches(now, operations, bytes)
    }

    fn position(&self, reservation: Reservation) -> Option<usize> {
        self.reserved.binary_search_by_key(&reservation.0, |known| known.reservation.0).ok()
    }

    fn reaches(&mut self, now: Instant, operations: u128, bytes: u128) -> Instant {
        self.operations.reaches(now, operations).max(self.bytes.reaches(now, bytes))
    }

    /// Returns how long a command waits behind a backlog of `cost` in its own queue, while the other queues
    /// take as much in turn.
    pub(crate) fn delay(&mut self, now: Instant, cost: Cost) -> Duration {
        let cost = cost.times(self.queues.max(1));
        let operations = self.operations.reserved.saturating_add(scaled(cost.operations));
        let bytes = self.bytes.reserved.saturating_add(scaled(cost.bytes));
        self.reaches(now, operations, bytes).since(now)
    }
}

/// A token bucket. Its counts are in billionths of an operation or byte, so that they grow by `rate` in each
/// nanosecond.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Operations or bytes per second; 0 for no limit.
    rate: u64,
    /// How much more may be filled in than is reserved.
    saved_max: u128,
    filled: u128,
    reserved: u128,
    filled_at: Instant,
}

impl Bucket {
    fn change(&mut self, now: Instant, rate: u64, burst: Duration) {
        self.fill(now);
        let was_unlimited = self.rate == 0;
        self.rate = rate;
        self.saved_max = u128::from(rate).saturating_mul(burst.as_nanos());
        let full = self.reserved.saturating_add(self.saved_max);
        self.filled = if was_unlimited { full } else { self.filled.min(full) };
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.since(self.filled_at).as_nanos();
        self.filled_at = self.filled_at.max(now);
        let filled = self.filled.saturating_add(u128::from(self.rate).saturating_mul(passed));
        self.filled = filled.min(self.reserved.saturating_add(self.saved_max));
    }

    fn is_full(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.rate == 0 || self.filled >= self.reserved.saturating_add(self.saved_max)
    }

    /// Reserves an amount. Returns the count from which on it may be used.
    fn reserve(&mut self, now: Instant, amount: u64) -> u128 {
        self.fill(now);
        self.reserved = self.reserved.saturating_add(scaled(amount));
        self.reserved
    }

    /// Gives back an amount that was reserved and is not used.
    fn refund(&mut self, amount: u64) {
        self.reserved = self.reserved.saturating_sub(scaled(amount));
        self.filled = self.filled.min(self.reserved.saturating_add(self.saved_max));
    }

    /// Returns when the bucket is filled up to a count.
    fn reaches(&mut self, now: Instant, count: u128) -> Instant {
        self.fill(now);
        let missing = count.saturating_sub(self.filled);
        if self.rate == 0 || missing == 0 {
            return now;
        }
        let nanoseconds = missing.div_ceil(self.rate.into());
        now.after(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)))
    }
}

fn scaled(amount: u64) -> u128 {
    u128::from(amount) * 1_000_000_000
}

#[cfg(test)]
mod tests;
