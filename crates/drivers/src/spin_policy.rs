//! Busy polling: whether an idle reactor polls for a while for new events before it sleeps, or sleeps at
//! once.
//!
//! Sleeping and waking up delays the next event and costs processor time at both ends: some microseconds on
//! bare metal, more in a virtual machine. Where commands follow each other one by one, or frames arrive
//! faster than a sleeping thread is woken, polling raises throughput a lot. Where a link or a disk is the
//! bottleneck, polling gains nothing and takes a whole processor. Only a trial can tell the two cases apart.
//! Every tenth of a second a reactor switches for a short time between polling and sleeping, and continues
//! with the mode that moved more bytes. If both moved about the same, it sleeps. Each time a trial confirms
//! the present mode, the next trial is later, until the throughput has doubled or halved.
//!
//! The reactor polls for a short span, and only while at least every other poll finds an event. Polling also
//! takes processor time from other threads, perhaps from the one that the reactor waits for. The kernel
//! reports how many threads are runnable at present, and how long this thread was runnable and had to wait.
//! While there are often more runnable threads than processors, or this thread waited more than a small share
//! of the time, the reactor does not poll.

use std::os::fd::OwnedFd;
use std::time::Duration;

use base::time::Instant;
use rustix::fs::{Mode, OFlags};

use crate::clock::Clock;
use crate::config::SpinMode;

/// How long one poll lasts at most: the time of a command on a fast network between two sleeping ends.
const SPAN: Duration = Duration::from_micros(100);

/// The highest trust, which is how many polls in a row may find nothing; and the trust with which polling
/// begins.
const TRUST_MAX: u8 = 16;
const TRUST_FIRST: u8 = 4;

/// Without trust, the reactor sleeps this many times at once before it polls again.
const SLEEPS: u8 = 64;

/// How often the kernel is asked about processor contention, at most.
const ASK_EVERY: Duration = Duration::from_millis(1);

/// One answer of the kernel counts as one in `LATELY` in the moving average of contention. Above `TRIFLE` of
/// [`ALL`], the processor counts as contended.
const LATELY: u64 = 16;
const ALL: u64 = 1024;
const TRIFLE: u64 = 192;

/// How long the better mode runs until the other one is tried, at first. The number of such periods doubles
/// with each trial that confirms the mode, up to the maximum. In a trial each mode is measured for
/// `MEASURED`, after it had `SETTLING` to settle.
const GOING: Duration = Duration::from_millis(90);
const TIMES_MAX: u8 = 8;
/// When the throughput of a period is more than this many times the previous one, or less than that fraction
/// of it, the workload has changed: the other mode is tried at once.
const CHANGED: u64 = 2;
const SETTLING: Duration = Duration::from_millis(2);
const MEASURED: Duration = Duration::from_millis(8);

/// What polling must move at least, in percent of the bytes that sleeping moves: to begin polling, and to
/// continue it.
const GAIN_TO_BEGIN: u64 = 106;
const GAIN_TO_GO_ON: u64 = 102;
/// A measurement that took longer contains a pause, and is discarded.
const MEASURED_MAX: Duration = Duration::from_millis(12);
/// If fewer bytes are moved during a measurement, polling cannot gain anything.
const BYTES_MIN: u64 = 16 << 10;

/// Decides whether a reactor polls before it sleeps.
pub(crate) trait SpinPolicy {
    /// Returns whether to poll before the next sleep. `bytes` is how many bytes were moved so far.
    fn should_spin(&mut self, now: Instant, bytes: u64) -> bool;

    /// Records whether the last poll found an event.
    fn learn(&mut self, found: bool);
}

/// Creates the policy for the calling thread, which it belongs to from now on.
pub(crate) fn policy(mode: SpinMode, now: Instant) -> Box<dyn SpinPolicy> {
    match mode {
        SpinMode::Adaptive => Box::new(Adaptive::new(now)),
        SpinMode::Always => Box::new(Fixed(true)),
        SpinMode::Never => Box::new(Fixed(false)),
    }
}

/// Polls until `is_there` returns true, but for at most [`SPAN`] and not longer than until `latest`. Returns
/// whether it did.
pub(crate) fn spin_until(
    policy: &mut dyn SpinPolicy,
    clock: &Clock,
    latest: Option<Instant>,
    is_there: impl Fn() -> bool,
) -> bool {
    let until = clock.now().after(SPAN);
    let until = latest.map_or(until, |latest| latest.min(until));
    let found = loop {
        if is_there() {
            break true;
        }
        if clock.now() >= until {
            break false;
        }
        std::hint::spin_loop();
    };
    policy.learn(found);
    found
}

/// Polls always, or never.
#[derive(Debug)]
struct Fixed(bool);

impl SpinPolicy for Fixed {
    fn should_spin(&mut self, _: Instant, _: u64) -> bool {
        self.0
    }

    fn learn(&mut self, _: bool) {}
}

/// Polls where a trial shows that it helps.
#[derive(Debug)]
struct Adaptive {
    /// How many more polls found an event than did not, lately.
    trust: u8,
    /// How many times the reactor slept at once since the last poll.
    sleeps: u8,
    others: CpuContention,
    trial: Trial,
}

impl Adaptive {
    fn new(now: Instant) -> Self {
        Self { trust: 0, sleeps: 0, others: CpuContention::new(now), trial: Trial::new(now) }
    }
}

impl SpinPolicy for Adaptive {
    fn should_spin(&mut self, now: Instant, bytes: u64) -> bool {
        if self.trial.turn(now, bytes) {
            self.trust = TRUST_FIRST;
        }
        if !self.trial.looks {
            return false;
        }
        let wanted = (self.trust > 0 || self.sleeps >= SLEEPS) && !self.others.is_contended(now);
        if !wanted {
            self.sleeps = self.sleeps.saturating_add(1);
        }
        wanted
    }

    fn learn(&mut self, found: bool) {
        self.sleeps = 0;
        self.trust = if found { (self.trust + 1).min(TRUST_MAX) } else { self.trust.saturating_sub(1) };
    }
}

/// The trial that finds out which of two modes moves more bytes: polling or sleeping.
#[derive(Debug)]
struct Trial {
    /// Whether the present mode polls.
    looks: bool,
    /// Whether the better mode polls.
    better: bool,
    step: Step,
    until: Instant,
    /// How many periods of [`GOING`] there are at present until the next trial, and how many are left.
    times: u8,
    left: u8,
    /// The throughput of the last of them, in bytes per second.
    usual: Option<u64>,
    /// When the present step began, and how many bytes had been moved by then.
    since: Instant,
    bytes: u64,
    /// The throughput of the better mode, in bytes per second.
    rate: u64,
}

/// The present step of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Going,
    MeasuringBetter,
    Settling,
    MeasuringOther,
}

impl Trial {
    fn new(now: Instant) -> Self {
        let until = now.after(GOING);
        Self {
            looks: false,
            better: false,
            step: Step::Going,
            until,
            times: 1,
            left: 1,
            usual: None,
            since: now,
            bytes: 0,
            rate: 0,
        }
    }

    /// Begins the next step if it is time. Returns whether polling has just begun.
    fn turn(&mut self, now: Instant, bytes: u64) -> bool {
        if now < self.until {
            return false;
        }
        let moved = bytes.wrapping_sub(self.bytes);
        let took = u64::try_from(now.since(self.since).as_nanos()).unwrap_or(u64::MAX).max(1);
        let rate = u64::try_from(u128::from(moved) * 1_000_000_000 / u128::from(took)).unwrap_or(u64::MAX);
        let before = self.looks;
        let paused = now.since(self.since) > MEASURED_MAX;
        let (step, span) = match self.step {
            Step::Going => {
                self.left = self.left.saturating_sub(1);
                let changed = self
                    .usual
                    .replace(rate)
                    .is_some_and(|usual| rate.max(usual) > rate.min(usual).saturating_mul(CHANGED));
                if changed {
                    self.times = 1;
                }
                if changed || self.left == 0 {
                    (Step::MeasuringBetter, MEASURED)
                } else {
                    (Step::Going, GOING)
                }
            }
            Step::MeasuringBetter if moved < BYTES_MIN => {
                self.better = false;
                self.go(1)
            }
            Step::MeasuringBetter | Step::MeasuringOther if paused => self.go(self.times),
            Step::MeasuringBetter => {
                self.rate = rate;
                self.looks = !self.better;
                (Step::Settling, SETTLING)
            }
            Step::Settling => (Step::MeasuringOther, MEASURED),
            Step::MeasuringOther => {
                let (awake, asleep, gain) = if self.better {
                    (self.rate, rate, GAIN_TO_GO_ON)
                } else {
                    (rate, self.rate, GAIN_TO_BEGIN)
                };
                let better = awake.saturating_mul(100) >= asleep.saturating_mul(gain);
                let times =
                    if better == self.better { self.times.saturating_mul(2).min(TIMES_MAX) } else { 1 };
                self.better = better;
                self.go(times)
            }
        };
        self.step = step;
        self.until = now.after(span);
        (self.since, self.bytes) = (now, bytes);
        self.looks && !before
    }

    /// Runs the better mode for `times` periods of [`GOING`].
    fn go(&mut self, times: u8) -> (Step, Duration) {
        self.looks = self.better;
        (self.times, self.left, self.usual) = (times, times, None);
        (Step::Going, GOING)
    }
}

/// Whether other threads need the processor.
#[derive(Debug)]
struct CpuContention {
    /// The `schedstat` file of the calling thread, and the `loadavg` file of the whole machine; `None` where
    /// the kernel offers none.
    own: Option<OwnedFd>,
    all: Option<OwnedFd>,
    processors: u64,
    asked_at: Instant,
    /// How long the thread had waited for a processor at that time, in nanoseconds.
    waited: u64,
    /// The average share of the time that the thread waited, of [`ALL`], and how often there were more
    /// runnable threads than processors.
    lately: (u64, u64),
}

impl CpuContention {
    fn new(now: Instant) -> Self {
        let open = |path| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        let mut others = Self {
            own: open("/proc/thread-self/schedstat"),
            all: open("/proc/loadavg"),
            processors: read(open("/sys/devices/system/cpu/online").as_ref(), processors).unwrap_or(0),
            asked_at: now,
            waited: 0,
            lately: (0, 0),
        };
        others.waited = read(others.own.as_ref(), waited).unwrap_or(0);
        others
    }

    /// Returns whether threads wait for a processor lately, or this thread had to wait when it was runnable.
    fn is_contended(&mut self, now: Instant) -> bool {
        let span = now.since(self.asked_at);
        if span >= ASK_EVERY {
            self.asked_at = now;
            let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
            let waited = read(self.own.as_ref(), waited).unwrap_or(self.waited);
            let share = waited.saturating_sub(self.waited).saturating_mul(ALL) / nanos.max(1);
            // If the kernel gives no number, assume that threads wait.
            let crowded = read(self.all.as_ref(), runnable).is_none_or(|count| count > self.processors);
            let learn = |before: u64, now: u64| before - before / LATELY + now.min(ALL) / LATELY;
            self.lately = (learn(self.lately.0, share), learn(self.lately.1, if crowded { ALL } else { 0 }));
            self.waited = waited;
        }
        self.lately.0.max(self.lately.1) > TRIFLE
    }
}

fn read(file: Option<&OwnedFd>, parse: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let mut text = [0; 256];
    let len = rustix::io::pread(file?, &mut text, 0).ok()?;
    parse(core::str::from_utf8(text.get(..len)?).ok()?)
}

/// Returns how many nanoseconds a thread was runnable but not running: the second number of its `schedstat`
/// (Linux, Documentation/scheduler/sched-stats.rst).
fn waited(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns how many threads of the machine are runnable at present: the first number in the fourth field of
/// `loadavg` (proc_loadavg(5)).
fn runnable(loadavg: &str) -> Option<u64> {
    loadavg.split_ascii_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// Returns how many processors a list such as `0-3,8` names.
fn processors(list: &str) -> Option<u64> {
    list.trim().split(',').try_fold(0, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        Some(count + (last.checked_sub(first)? + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a trial for `tenths` tenths of a second of traffic. `rate` is the throughput when the reactor
    /// sleeps and when it polls, in bytes per second. Returns the percentage of the time in which it polled,
    /// and whether polling is the better mode at the end.
    fn try_for(
        trial: &mut Trial,
        now: &mut Instant,
        bytes: &mut u64,
        tenths: u64,
        rate: [u64; 2],
    ) -> (u64, bool) {
        let (steps, mut looked) = (tenths * 1_000, 0);
        for _ in 0..steps {
            let [asleep, awake] = rate;
            *now = now.after(Duration::from_micros(100));
            *bytes += if trial.looks { awake } else { asleep } / 10_000;
            trial.turn(*now, *bytes);
            looked += u64::from(trial.looks);
        }
        (looked * 100 / steps, trial.better)
    }

    #[test]
    fn it_is_looked_while_that_moves_more_and_seldom_else() {
        let (mut now, mut bytes) = (Instant(0), 0);
        let mut trial = Trial::new(now);
        let mut go = |rate| try_for(&mut trial, &mut now, &mut bytes, 40, rate);
        // A link at its limit; one command after another; the link again; a stream to which polling makes
        // little difference.
        let (looked, better) = go([119_000_000, 119_000_000]);
        assert!(looked <= 3 && !better, "{looked} % {better}");
        let (looked, better) = go([57_000_000, 120_000_000]);
        assert!(looked >= 75 && better, "{looked} % {better}");
        let (looked, better) = go([119_000_000, 119_000_000]);
        assert!(looked <= 25 && !better, "{looked} % {better}");
        let (looked, better) = go([3_000_000_000, 3_150_000_000]);
        assert!(looked <= 3 && !better, "{looked} % {better}");
    }

    #[test]
    fn another_kind_of_work_is_noticed_at_once() {
        let (mut now, mut bytes) = (Instant(0), 0);
        let mut trial = Trial::new(now);
        for (before, after) in
            [([119_000_000; 2], [50_000_000, 400_000_000]), ([2_000_000_000; 2], [55_000_000, 570_000_000])]
        {
            try_for(&mut trial, &mut now, &mut bytes, 40, before);
            assert_eq!((trial.better, trial.times), (false, TIMES_MAX));
            try_for(&mut trial, &mut now, &mut bytes, 10, before);
            let mut tenths = 0;
            while !trial.better {
                tenths += 1;
                assert!(tenths <= 3, "not noticed after {tenths} tenths of a second");
                try_for(&mut trial, &mut now, &mut bytes, 1, after);
            }
        }
    }

    #[test]
    fn a_gain_that_shrinks_is_kept_until_it_is_next_to_nothing() {
        let (mut now, mut bytes) = (Instant(0), 0);
        let mut trial = Trial::new(now);
        let mut go = |rate| try_for(&mut trial, &mut now, &mut bytes, 40, rate).1;
        assert!(go([1_000_000_000, 1_200_000_000]));
        assert!(go([1_000_000_000, 1_040_000_000]));
        assert!(!go([1_000_000_000, 1_010_000_000]));
        assert!(!go([1_000_000_000, 1_040_000_000]));
    }

    #[test]
    fn what_was_measured_over_a_pause_is_not_believed() {
        for pause_in in [Step::MeasuringBetter, Step::MeasuringOther] {
            let (mut now, mut bytes) = (Instant(0), 0);
            let mut trial = Trial::new(now);
            for _ in 0..100_000 {
                // One mode would seem much slower because of the pause, which happens whenever that mode is
                // measured.
                let pauses = trial.step == pause_in && now.since(trial.since) > Duration::from_millis(4);
                now = now.after(Duration::from_micros(if pauses { 50_000 } else { 100 }));
                bytes += 12_000;
                trial.turn(now, bytes);
                assert!(!trial.better, "{pause_in:?}");
            }
            assert!(!trial.looks || trial.step != Step::Going);
        }
    }

    #[test]
    fn who_has_nothing_to_do_never_looks() {
        let (mut now, mut bytes) = (Instant(0), 0);
        let mut trial = Trial::new(now);
        assert_eq!(try_for(&mut trial, &mut now, &mut bytes, 40, [0, 0]), (0, false));
        assert!(try_for(&mut trial, &mut now, &mut bytes, 20, [57_000_000, 120_000_000]).1);
        let (looked, better) = try_for(&mut trial, &mut now, &mut bytes, 100, [100_000, 100_000]);
        assert!(looked <= 10 && !better, "{looked} %");
        // A wait of a day counts as one step.
        now = now.after(Duration::from_secs(86_400));
        assert!(!trial.turn(now, bytes));
    }

    #[test]
    fn trust_goes_as_it_comes() {
        let mut awake = Adaptive::new(Instant(0));
        (0..3).for_each(|_| awake.learn(true));
        (0..2).for_each(|_| awake.learn(false));
        assert_eq!(awake.trust, 1);
        (0..100).for_each(|_| awake.learn(true));
        (0..TRUST_MAX).for_each(|_| awake.learn(false));
        assert_eq!(awake.trust, 0);
    }

    #[test]
    fn a_look_ends_when_something_is_there_or_the_time_is_over() {
        let (clock, mut awake) = (Clock::start(), Adaptive::new(Instant(0)));
        let begun = clock.now();
        assert!(!spin_until(&mut awake, &clock, None, || false));
        assert!(clock.now().since(begun) >= SPAN);
        let latest = clock.now().after(Duration::from_micros(5));
        assert!(!spin_until(&mut awake, &clock, Some(latest), || false));
        assert!(clock.now() >= latest);
        assert!(spin_until(&mut awake, &clock, None, || true));
    }

    #[test]
    fn it_is_known_who_waits() {
        assert_eq!(waited("1372083 52411 9\n"), Some(52_411));
        assert_eq!(runnable("0.20 0.18 0.12 3/417 11206\n"), Some(3));
        for (list, count) in [("0\n", 1), ("0-1\n", 2), ("0-3,8,10-11\n", 7)] {
            assert_eq!(processors(list), Some(count));
        }
        for wrong in ["", "x", "3-1", "1-", "0.20 0.18"] {
            assert_eq!((processors(wrong), runnable(wrong), waited(wrong)), (None, None, None), "{wrong}");
        }
    }

    #[test]
    fn others_are_noticed_and_forgotten() {
        let mut others = CpuContention::new(Instant(0));
        others.lately = (0, ALL);
        (others.own, others.processors) = (None, u64::MAX);
        let mut now = Instant(0);
        let mut waits = 0;
        while others.is_contended(now) {
            waits += 1;
            now = now.after(ASK_EVERY);
        }
        assert!((22..32).contains(&waits), "{waits}");
    }
}
