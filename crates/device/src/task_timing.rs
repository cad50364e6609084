//! Where the time of a task goes.

use core::cell::Cell;

use base::time::{Duration, Instant};

/// Where the time of a task goes. The driver's clock is read once for each wake-up, so this costs a few
/// stores for each task.
#[derive(Debug)]
pub(crate) struct TaskTiming {
    started: Cell<Instant>,
    medium: Stopwatch,
    network: Stopwatch,
    /// The bytes of Data-Out that were requested and have not arrived.
    awaited: Cell<u64>,
}

/// Sums up the time of a state that begins and ends several times.
#[derive(Debug)]
struct Stopwatch {
    since: Cell<Instant>,
    sum_ns: Cell<u64>,
}

/// Stands for a time that is not known: later than any clock shows.
const NEVER: Instant = Instant(u64::MAX);

impl Stopwatch {
    const fn new() -> Self {
        Self { since: Cell::new(NEVER), sum_ns: Cell::new(0) }
    }

    fn begin(&self, now: Instant) {
        if self.since.get() == NEVER {
            self.since.set(now);
        }
    }

    fn end(&self, now: Instant) {
        // Since a time that was never is no time.
        let lasted = now.0.saturating_sub(self.since.replace(NEVER).0);
        self.sum_ns.set(self.sum_ns.get().saturating_add(lasted));
    }

    const fn total(&self, now: Instant) -> Duration {
        let lasts = now.0.saturating_sub(self.since.get().0);
        Duration::from_nanos(self.sum_ns.get().saturating_add(lasts))
    }
}

impl TaskTiming {
    /// Returns the timing of a task that has not begun to execute.
    pub(crate) const fn new() -> Self {
        let (medium, network) = (Stopwatch::new(), Stopwatch::new());
        Self { started: Cell::new(NEVER), medium, network, awaited: Cell::new(0) }
    }

    /// Records that the task began to execute.
    pub(crate) fn start(&self, now: Instant) {
        self.started.set(now);
    }

    /// Records that an operation of the medium begins.
    pub(crate) fn use_medium(&self, now: Instant) {
        self.medium.begin(now);
    }

    /// Records that no operation of the medium is under way.
    pub(crate) fn leave_medium(&self, now: Instant) {
        self.medium.end(now);
    }

    /// Records that data of the initiator is requested.
    pub(crate) fn await_data(&self, now: Instant, len: u32) {
        self.awaited.set(self.awaited.get().saturating_add(len.into()));
        self.network.begin(now);
    }

    /// Records that data of the initiator arrived.
    pub(crate) fn receive_data(&self, now: Instant, len: usize) {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        self.awaited.set(self.awaited.get().saturating_sub(len));
        if self.awaited.get() == 0 {
            self.network.end(now);
        }
    }

    /// Returns how long a task that arrived then waited to execute.
    pub(crate) fn queued(&self, arrived: Instant, now: Instant) -> Duration {
        self.started.get().min(now).since(arrived)
    }

    /// Returns how long operations of the medium were under way.
    pub(crate) const fn medium(&self, now: Instant) -> Duration {
        self.medium.total(now)
    }

    /// Returns how long the task waited for data of the initiator.
    pub(crate) const fn network(&self, now: Instant) -> Duration {
        self.network.total(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_waits_are_counted_once_and_one_that_lasts_counts_to_now() {
        let (timing, at) = (TaskTiming::new(), |ms: u64| Instant(ms * 1_000_000));
        timing.await_data(at(10), 100);
        timing.await_data(at(20), 100);
        timing.receive_data(at(30), 100);
        timing.receive_data(at(40), 100);
        timing.await_data(at(60), 100);
        assert_eq!(timing.network(at(65)), Duration::from_millis(35));
        timing.use_medium(at(0));
        timing.use_medium(at(5));
        timing.leave_medium(at(7));
        timing.leave_medium(at(9));
        assert_eq!(timing.medium(at(100)), Duration::from_millis(7));
    }
}
