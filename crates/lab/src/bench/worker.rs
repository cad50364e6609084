//! A worker: one reactor that runs a part of the sessions.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::buffer::{Buf, Bytes, DataList};
use base::rng::Rng;
use base::units::Lba;
use drivers::config::EngineKind;
use drivers::stats::Stats;
use initiator::driver::{Driver, DriverEvent, SessionId};
use initiator::{CommandError, Event, Path, Reply, SessionUp};
use rustix::thread::set_current_timer_slack;
use rustix::time::{ClockId, clock_gettime};

use super::pace::Pace;
use super::{BenchError, BenchPlan, BenchReport, Job, Negotiated};
use crate::bed::to_f64;

/// The longest time for all sessions to come up before the load starts, whatever the limits of the sessions
/// are.
const UP_WITHIN: Duration = Duration::from_secs(60);

/// How long a worker waits at the end for commands under way.
const DRAIN_WITHIN: Duration = Duration::from_secs(30);
/// The same limit after a stop was requested.
const STOP_WITHIN: Duration = Duration::from_secs(3);

/// How much longer than asked a sleep of a paced load may last, in nanoseconds.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;

/// How often a waiting worker checks whether another one has failed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The barrier, the stop flags and the processor time that all workers share.
pub(super) struct RunControl<'a> {
    /// The caller sets this flag to stop the load.
    stop: &'a AtomicBool,
    all_up: Barrier,
    failed: AtomicBool,
    cpu_at_start: Mutex<Option<Duration>>,
    cpu_ns: AtomicU64,
}

impl<'a> RunControl<'a> {
    pub(super) fn new(threads: usize, stop: &'a AtomicBool) -> Self {
        Self {
            stop,
            all_up: Barrier::new(threads),
            failed: AtomicBool::new(false),
            cpu_at_start: Mutex::new(None),
            cpu_ns: AtomicU64::new(0),
        }
    }

    /// Returns the processor time of the process during the measurement, in seconds.
    pub(super) fn cpu_seconds(&self) -> f64 {
        Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// Returns whether the load is to end: the caller has set `stop`, or a worker has failed.
    fn is_over(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed)
    }

    /// Returns whether the caller has set `stop`.
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Records that a worker starts to measure. The first one's start counts.
    fn starts(&self) {
        let mut start = self.cpu_at_start.lock().unwrap_or_else(PoisonError::into_inner);
        start.get_or_insert_with(cpu_time);
    }

    /// Records that a worker has ended its measurement. The last one's end counts.
    fn ends(&self) {
        let start = *self.cpu_at_start.lock().unwrap_or_else(PoisonError::into_inner);
        let spent = cpu_time().saturating_sub(start.unwrap_or_default());
        self.cpu_ns.fetch_max(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

fn cpu_time() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(spent.tv_sec).unwrap_or(0), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// Runs every `threads`th session, beginning with session `number`.
pub(super) fn work(
    plan: &BenchPlan,
    number: usize,
    threads: usize,
    gate: &RunControl<'_>,
) -> Result<BenchReport, BenchError> {
    let begun = Worker::log_in(plan, number, threads, gate);
    if begun.is_err() {
        gate.failed.store(true, Ordering::Relaxed);
    }
    // Every worker reaches this barrier, failed or not, so that none waits for ever.
    gate.all_up.wait();
    let mut worker = begun?;
    if gate.failed.load(Ordering::Relaxed) {
        // The worker that failed returns the error.
        return Ok(BenchReport::default());
    }
    let result = worker.load();
    if result.is_err() {
        gate.failed.store(true, Ordering::Relaxed);
    }
    result
}

struct Worker<'a> {
    plan: &'a BenchPlan,
    gate: &'a RunControl<'a>,
    driver: Driver,
    lanes: Vec<SessionLoad<'a>>,
    data: Bytes,
    report: BenchReport,
    /// The start of the measurement, and its end once it is known.
    measured: Option<(Instant, Option<Instant>)>,
    /// The start and end of the measurement; without an end, it lasts until the last command.
    window: Option<(Instant, Option<Instant>)>,
    now: Instant,
    under_way: usize,
    ending: bool,
}

/// One session and its place in the range.
struct SessionLoad<'a> {
    job: &'a Job,
    session: SessionId,
    up: usize,
    /// What is known of the session since it was established, or established again.
    facts: Option<Box<SessionUp>>,
    rng: Rng,
    /// The range: its first block, the blocks per command, and the number of commands that fit into it.
    first: u64,
    blocks: u32,
    slots: u64,
    next: u64,
    /// How many commands are still to be started.
    left: u64,
    /// The commands under way.
    started: Vec<Started>,
    /// The schedule of a paced load, and the slots of `started` without a command.
    pace: Option<Pace>,
    idle: Vec<usize>,
}

/// A command under way.
#[derive(Clone, Copy)]
struct Started {
    /// When it was started, or when it was due.
    at: Instant,
    read: bool,
    first: Lba,
}

impl<'a> Worker<'a> {
    /// Logs all sessions of this worker in.
    fn log_in(
        plan: &'a BenchPlan,
        number: usize,
        threads: usize,
        gate: &'a RunControl<'a>,
    ) -> Result<Self, BenchError> {
        let reactor = |why: &initiator::Error| BenchError::Reactor(why.report().to_string());
        let mut driver = Driver::with_config(&plan.reactor).map_err(|why| reactor(&why))?;
        let now = Instant::now();
        let mine = plan.jobs.iter().enumerate().skip(number).step_by(threads);
        let lanes: Vec<_> = mine.map(|(at, job)| SessionLoad::new(plan, at, job, &mut driver, now)).collect();
        let mut data = Buf::with_capacity(usize::try_from(plan.block_bytes).unwrap_or(0));
        let len = usize::try_from(plan.block_bytes).unwrap_or(0).min(data.spare_mut().len());
        Rng::from_seed(plan.seed).fill(data.spare_mut().get_mut(..len).unwrap_or_default());
        data.advance(len);
        let mut worker = Self {
            plan,
            gate,
            driver,
            lanes,
            data: data.freeze(),
            report: BenchReport::default(),
            measured: None,
            window: None,
            now,
            under_way: 0,
            ending: false,
        };
        let deadline = now + UP_WITHIN;
        while worker.lanes.iter().any(|lane| lane.up == 0) {
            worker.poll_once(POLL_INTERVAL)?;
            if gate.is_over() {
                break;
            }
            if worker.now >= deadline {
                return Err(BenchError::Plan("the sessions were not established".to_owned()));
            }
        }
        Ok(worker)
    }

    /// Warms up, measures, waits for the commands under way and logs out.
    fn load(&mut self) -> Result<BenchReport, BenchError> {
        let before = self.driver.reactor_stats();
        self.now = Instant::now();
        let from = if self.plan.count.is_some() { self.now } else { self.now + self.plan.warmup };
        // If the run was stopped during the login, some sessions are not up: start no load.
        let lanes = if self.gate.is_over() { 0 } else { self.lanes.len() };
        self.begin(lanes);
        while self.now < from && !self.gate.is_over() {
            self.poll_once((from - self.now).min(POLL_INTERVAL))?;
        }
        self.gate.starts();
        // On a busy machine the warm-up can end late; the measurement still has its whole duration.
        let until = self.plan.count.is_none().then(|| self.now + self.plan.time);
        // The measurement counts the commands that end within the window, whenever they began: at its start
        // and at its end, about as many are cut off.
        self.window = Some((self.now, until));
        self.measured = Some((self.now, None));
        let measured_from = self.now;
        let mut failure = None;
        while until.map_or_else(|| self.is_loading(), |until| self.now < until) && !self.gate.is_over() {
            if let Err(why) =
                self.poll_once(until.map_or(POLL_INTERVAL, |until| (until - self.now).min(POLL_INTERVAL)))
            {
                self.gate.failed.store(true, Ordering::Relaxed);
                failure = Some(why);
                break;
            }
        }
        self.gate.ends();
        self.count_waiting();
        self.report.seconds = (self.now - measured_from).as_secs_f64();
        self.measured = Some((measured_from, Some(self.now)));
        let after = self.driver.reactor_stats();
        self.report.system_calls = calls(self.driver.engine(), &after) - calls(self.driver.engine(), &before);
        self.report.connections = self.lanes.iter().map(|lane| lane.up).sum();
        self.report.negotiated = self.negotiated();
        self.report.engine = self.driver.engine().to_string();
        if failure.is_some() && self.report.reads.count + self.report.writes.count == 0 {
            return Err(failure.unwrap_or_else(super::died));
        }
        // Results measured before an error are valid and are reported.
        self.report.failure = failure.map(|why| why.to_string());
        if self.report.failure.is_none() {
            self.drain_and_log_out()?;
        }
        Ok(std::mem::take(&mut self.report))
    }

    /// Returns what the sessions agreed on, each different set once.
    fn negotiated(&self) -> Vec<Negotiated> {
        let mut all: Vec<Negotiated> = Vec::new();
        for lane in &self.lanes {
            let connections = self.driver.connections(lane.session).unwrap_or_default();
            let found = lane.facts.as_ref().map(|facts| Negotiated::of(facts, connections.first()));
            all.extend(found.filter(|found| !all.contains(found)));
        }
        all
    }

    /// Waits for the commands under way, and logs out.
    fn drain_and_log_out(&mut self) -> Result<(), BenchError> {
        self.window = None;
        self.ending = true;
        let within = if self.gate.is_stopped() { STOP_WITHIN } else { DRAIN_WITHIN };
        let deadline = self.now + within;
        while self.under_way > 0 && self.now < deadline {
            self.poll_once(POLL_INTERVAL)?;
        }
        if self.under_way > 0 && self.gate.is_stopped() {
            // A user who stops the load does not wait for a target that does not respond.
            self.lanes.iter().for_each(|lane| self.driver.close(lane.session));
            return Ok(());
        }
        if self.under_way > 0 && !self.gate.failed.load(Ordering::Relaxed) {
            return Err(BenchError::Reactor(format!("{} commands did not end", self.under_way)));
        }
        for lane in &self.lanes {
            let stats = self.driver.stats(lane.session);
            self.report.connections_lost += stats.map_or(0, |stats| stats.connections_lost);
            self.driver.log_out(lane.session);
        }
        while !self.driver.all_down() && self.now < deadline {
            self.poll_once(POLL_INTERVAL)?;
        }
        Ok(())
    }

    /// Starts the first commands of so many sessions, or their schedules.
    fn begin(&mut self, lanes: usize) {
        if self.plan.rate.is_some() {
            // Otherwise the kernel may let each sleep last 50 µs longer than the schedule asks for.
            let _ = set_current_timer_slack(Some(TIMER_SLACK_NS));
        }
        for at in 0..lanes {
            let Some(lane) = self.lanes.get_mut(at) else { continue };
            if let Some(rate) = self.plan.rate {
                let rate = rate / to_f64(u64::try_from(self.plan.jobs.len()).unwrap_or(1));
                lane.pace = Some(Pace::new(rate, lane.rng.next_u64(), self.now));
                lane.idle = (0..self.plan.depth).rev().collect();
            } else {
                (0..self.plan.depth).for_each(|slot| self.start(at, slot, self.now));
            }
        }
    }

    /// Returns whether a load with a number of commands still has some.
    fn is_loading(&self) -> bool {
        self.under_way > 0 || self.lanes.iter().any(|lane| lane.left > 0)
    }

    /// Starts the commands of a paced load that are due, as far as the queue depth allows.
    fn start_due(&mut self) {
        for at in 0..self.lanes.len() {
            while let Some((slot, due)) = self.lanes.get_mut(at).and_then(|lane| lane.take_due(self.now)) {
                self.report.due += u64::from(self.is_measured(due));
                self.start(at, slot, due);
            }
        }
    }

    /// Counts the commands of a paced load that are due and not started.
    fn count_waiting(&mut self) {
        let Some((_, until)) = self.window else { return };
        let end = until.unwrap_or(self.now).min(self.now);
        for at in 0..self.lanes.len() {
            let pace = |worker: &mut Self| {
                let lane = worker.lanes.get_mut(at)?;
                lane.pace.as_mut().filter(|_| lane.left > 0)?.take_due(end)
            };
            while let Some(due) = pace(self) {
                self.report.due += u64::from(self.is_measured(due));
                self.report.waiting += 1;
            }
        }
    }

    /// Returns whether a moment lies within the measurement.
    fn is_measured(&self, moment: Instant) -> bool {
        self.window.is_some_and(|(from, until)| from <= moment && until.is_none_or(|until| moment <= until))
    }

    /// Returns how long nothing of a paced load is due.
    fn until_due(&self) -> Option<Duration> {
        let lanes = self.lanes.iter().filter(|_| !self.ending);
        lanes.filter_map(SessionLoad::next_due).min().map(|due| due.saturating_duration_since(self.now))
    }

    /// Starts a command, which was due at this moment.
    fn start(&mut self, at: usize, slot: usize, due: Instant) {
        let Some(lane) = self.lanes.get_mut(at) else { return };
        let Some(left) = lane.left.checked_sub(1) else { return };
        lane.left = left;
        let read = match self.plan.read_percent {
            100 => true,
            percent => lane.rng.below(100) < u64::from(percent),
        };
        let place = if self.plan.random { lane.rng.below(lane.slots) } else { lane.next };
        lane.next = if place + 1 == lane.slots { 0 } else { place + 1 };
        let first = Lba(lane.first + place * u64::from(lane.blocks));
        let command = if read {
            lane.job.geometry.read(lane.job.lun, first, lane.blocks)
        } else {
            let mut data = DataList::from(self.data.clone());
            if let Some(cipher) = &lane.job.cipher {
                data = cipher.encrypt(self.driver.pool(), lane.job.offset_of(first), &data);
            }
            lane.job.geometry.write(lane.job.lun, (first, lane.blocks), data, false)
        };
        match lane.started.get_mut(slot) {
            Some(started) => *started = Started { at: due, read, first },
            None => lane.started.push(Started { at: due, read, first }),
        }
        self.under_way += 1;
        self.driver.submit(lane.session, u64::try_from(slot).unwrap_or(u64::MAX), command);
    }

    fn poll_once(&mut self, wait_max: Duration) -> Result<(), BenchError> {
        let wait = self.until_due().map_or(wait_max, |span| span.min(wait_max));
        self.driver.run_once(Some(wait)).map_err(|why| BenchError::Reactor(why.to_string()))?;
        self.now = Instant::now();
        while let Some(event) = self.driver.poll_event() {
            match event {
                DriverEvent::Finished { session, token, result } => self.finished(session, token, result)?,
                DriverEvent::Session { session, event: news } => self.heard(session, news)?,
                _ => {}
            }
        }
        if !self.ending {
            self.start_due();
        }
        Ok(())
    }

    fn finished(
        &mut self,
        session: SessionId,
        token: u64,
        result: Result<Reply, CommandError>,
    ) -> Result<(), BenchError> {
        self.under_way -= 1;
        self.report.commands += 1;
        let found = self.lanes.iter_mut().enumerate().find(|(_, lane)| lane.session == session);
        let (Some((at, lane)), Ok(slot)) = (found, usize::try_from(token)) else { return Ok(()) };
        let Some(Started { at: started, read, first }) = lane.started.get(slot).copied() else {
            return Ok(());
        };
        let wanted = usize::try_from(self.plan.block_bytes).unwrap_or(usize::MAX);
        let data = match result {
            Ok(reply) => reply.data,
            Err(why) => return Err(BenchError::Unit { name: lane.job.name.clone(), why: why.to_string() }),
        };
        let came = data.as_ref().map_or(0, |data| data.len());
        if read && came != wanted {
            let why = CommandError::Short { came, wanted }.to_string();
            return Err(BenchError::Unit { name: lane.job.name.clone(), why });
        }
        let cipher = lane.job.cipher.as_ref().map(|cipher| (cipher, lane.job.offset_of(first)));
        if let Some(data) = data {
            match cipher {
                None => self.driver.recycle(data),
                Some((cipher, at)) => {
                    let plain = cipher.decrypt(self.driver.pool(), at, data.into());
                    plain.into_parts().for_each(|part| self.driver.recycle(part));
                    // The command is complete when its data can be read.
                    self.now = Instant::now();
                }
            }
        }
        if self.is_measured(self.now) {
            let side = if read { &mut self.report.reads } else { &mut self.report.writes };
            side.count += 1;
            side.bytes += u64::from(self.plan.block_bytes);
            side.latency.record(self.now - started);
        }
        self.report.bytes_moved += self.share_measured(started) * f64::from(self.plan.block_bytes);
        match self.lanes.get_mut(at).filter(|_| !self.ending) {
            Some(lane) if lane.pace.is_some() => lane.idle.push(slot),
            Some(_) => self.start(at, slot, self.now),
            None => {}
        }
        Ok(())
    }

    /// Returns the share of a command's duration that lies within the measurement. The command ends now.
    fn share_measured(&self, started: Instant) -> f64 {
        let Some((from, until)) = self.measured else { return 0.0 };
        let within = until.unwrap_or(self.now).saturating_duration_since(started.max(from));
        let took = self.now.saturating_duration_since(started).as_secs_f64();
        if took > 0.0 { (within.as_secs_f64() / took).min(1.0) } else { 1.0 }
    }

    fn heard(&mut self, session: SessionId, news: Event) -> Result<(), BenchError> {
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.session == session) else { return Ok(()) };
        match news {
            Event::Up(up) => {
                // A HyperSCSI session counts as one connection, however many paths it has.
                if matches!(*up, SessionUp::HyperScsi(_)) {
                    lane.up = 1;
                }
                lane.facts = Some(up);
            }
            Event::PathUp { path: Path::Connection { .. }, .. } => lane.up += 1,
            Event::PathDown { path: Path::Connection { .. }, .. } => lane.up = lane.up.saturating_sub(1),
            Event::Down(why) if !self.ending => {
                return Err(BenchError::Unit { name: lane.job.name.clone(), why: why.to_string() });
            }
            _ => {}
        }
        Ok(())
    }
}

impl<'a> SessionLoad<'a> {
    fn new(plan: &BenchPlan, number: usize, job: &'a Job, driver: &mut Driver, now: Instant) -> Self {
        let shift = job.geometry.block_size().shift();
        let (from, to) = (plan.range.0, plan.range.1.min(job.bytes()));
        let slots = to.saturating_sub(from) / u64::from(plan.block_bytes);
        let number = u64::try_from(number).unwrap_or(0);
        let share = slots / u64::try_from(plan.jobs.len()).unwrap_or(1).max(1);
        let session = driver.open(job.session.clone());
        if let Some(limit) = job.command_timeout {
            driver.limit_commands(session, Some(limit).filter(|limit| !limit.is_zero()));
        }
        Self {
            job,
            session,
            up: 0,
            facts: None,
            rng: Rng::from_seed(plan.seed ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            first: job.offset().saturating_add(from) >> shift,
            blocks: plan.block_bytes >> shift,
            slots,
            // Sessions with sequential access start at different places of the unit.
            next: number * share,
            left: plan.count.unwrap_or(u64::MAX),
            started: vec![Started { at: now, read: true, first: Lba(0) }; plan.depth],
            pace: None,
            idle: Vec::new(),
        }
    }

    /// Takes a slot and the next command of the schedule, if it is due and there are both.
    fn take_due(&mut self, now: Instant) -> Option<(usize, Instant)> {
        self.next_due()?;
        let due = self.pace.as_mut()?.take_due(now)?;
        Some((self.idle.pop()?, due))
    }

    /// Returns when the schedule starts the next command; none if it has no more, or the queue depth is
    /// reached.
    fn next_due(&self) -> Option<Instant> {
        let can_start = self.left > 0 && !self.idle.is_empty();
        self.pace.as_ref().filter(|_| can_start).map(Pace::due)
    }
}

/// Returns the number of system calls of a reactor. With io_uring, the call that waits also submits all other
/// operations.
const fn calls(engine: EngineKind, stats: &Stats) -> u64 {
    match engine {
        EngineKind::Uring => stats.enters,
        EngineKind::Epoll => stats.enters + stats.receives + stats.sends,
    }
}
