//! The only clock: monotonic nanoseconds since the reactor was created, without the time for which the
//! process stood still.
//!
//! A process stands still when it is stopped (SIGSTOP), when its virtual machine is paused or moves to
//! another host, or when the system gives it no processor or memory. Meanwhile its peers send, and its
//! deadlines pass. If the deadlines were handled as if the process had run, they would end sessions and
//! requests whose data or replies wait in the socket. So [`Clock::wake_up`] recognizes a wake-up that comes
//! much later than asked, and sets the clock back: every deadline moves by the lost time, in every user of
//! the clock, and shortly before the next one the reactor takes in what was received.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::time::Instant;

/// A wake-up that is later than this was not delayed by the scheduler of a busy machine.
const LATE: Duration = Duration::from_millis(250);

/// How long before its next deadline a reactor goes on after it stood still: long enough to take in what was
/// received meanwhile, and for a peer to answer what it could not be asked before.
const GRACE: Duration = Duration::from_secs(1);

/// A clock. Its clones show the same time.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    origin: std::time::Instant,
    corrections: Rc<Corrections>,
}

#[derive(Debug, Default)]
struct Corrections {
    /// For how long the process stood still, in nanoseconds.
    lost: Cell<u64>,
    /// The latest time that was shown. The clock never goes back before it.
    latest: Cell<u64>,
}

/// A sleep with a time limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sleep {
    pub(crate) began: Instant,
    pub(crate) until: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: std::time::Instant::now(), corrections: Rc::default() }
    }

    /// Returns the present time. 64 bits of nanoseconds last for 584 years.
    pub(crate) fn now(&self) -> Instant {
        let now = self.uncorrected(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        self.corrections.latest.set(now.0);
        now
    }

    /// Returns the time at the end of a sleep. If the sleep lasted much longer than asked, the process stood
    /// still, and the lost time is taken out.
    pub(crate) fn wake_up(&self, sleep: Option<Sleep>) -> Instant {
        let elapsed = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.woken_at(elapsed, sleep)
    }

    fn woken_at(&self, elapsed: u64, sleep: Option<Sleep>) -> Instant {
        let Corrections { lost, latest } = &*self.corrections;
        let mut now = self.uncorrected(elapsed);
        if let Some(Sleep { began, until }) = sleep
            && now.since(until) > LATE
        {
            // At least half of the sleep counts, so that time passes even if every wake-up is late.
            let before = (until.since(began) / 2).min(GRACE);
            let resumed = until.before(before).max(Instant(latest.get()));
            lost.set(lost.get() + (now.0 - resumed.0));
            now = resumed;
        }
        latest.set(now.0);
        now
    }

    /// Returns the time that the clock shows, without the latest correction.
    fn uncorrected(&self, elapsed: u64) -> Instant {
        Instant(elapsed.saturating_sub(self.corrections.lost.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    fn wake_up(clock: &Clock, millis: u64, sleep: Option<(u64, u64)>) -> Instant {
        let sleep = sleep.map(|(began, until)| Sleep { began: at(began), until: at(until) });
        clock.woken_at(at(millis).0, sleep)
    }

    #[test]
    fn the_time_for_which_the_process_stood_still_does_not_pass() {
        let clock = Clock::start();
        // In time, or as late as on a busy machine.
        assert_eq!(wake_up(&clock, 1000, Some((0, 1000))), at(1000));
        assert_eq!(wake_up(&clock, 2250, Some((1000, 2000))), at(2250));
        // Without a limit, nothing was late.
        assert_eq!(wake_up(&clock, 60_000, None), at(60_000));
        // Two minutes late: the next deadline is still a second away.
        assert_eq!(wake_up(&clock, 190_000, Some((60_000, 70_000))), at(69_000));
        assert_eq!(wake_up(&clock, 191_000, Some((69_000, 70_000))), at(70_000));
        // The lost times add up.
        assert_eq!(wake_up(&clock, 291_000, Some((70_000, 80_000))), at(79_000));
        assert_eq!(wake_up(&clock, 292_500, Some((79_000, 80_500))), at(80_500));
    }

    #[test]
    fn time_passes_even_if_every_wake_up_is_late_and_never_goes_back() {
        let clock = Clock::start();
        let (mut shown, mut millis) = (at(0), 0);
        for _ in 0..10 {
            millis += 10_000;
            let began = shown.0 / 1_000_000;
            shown = wake_up(&clock, millis, Some((began, began + 400)));
            assert_eq!(shown, at(began + 200));
        }
        // What was shown while the reactor was busy is not taken back.
        let clock = Clock::start();
        assert_eq!(wake_up(&clock, 5000, None), at(5000));
        assert_eq!(wake_up(&clock, 9000, Some((1000, 1000))), at(5000));
    }
}
