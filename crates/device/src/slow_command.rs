//! Slow commands: which took longer than the operator's limit, and where their time went.

use core::cell::Cell;

use base::time::{Duration, Instant};

use crate::contract::NexusId;
use crate::device_server::DeviceServer;
use crate::task::TaskInfo;

/// How often a unit reports a slow command. Those between are counted.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A command that took longer than the limit.
///
/// The times overlap where a command does several things at once: they are no parts of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowCommand {
    /// The nexus that sent it.
    pub nexus: NexusId,
    /// The operation code.
    pub opcode: u8,
    /// The name of the command in its standard; empty if the unit does not know it.
    pub name: &'static str,
    /// The bytes that the initiator expected or sent.
    pub bytes: u32,
    /// The time from its arrival at the unit to its status.
    pub took: Duration,
    /// How long it waited for its turn in the task set.
    pub queued: Duration,
    /// How long an operation of the medium was under way for it, with the waits for overlapping commands.
    pub medium: Duration,
    /// How long it waited for data of the initiator.
    pub network: Duration,
    /// How many more commands were slow since the unit reported one last.
    pub unreported: u64,
}

/// Where the time of a task goes. The driver's clock is read once for each wake-up, so this costs a few stores
/// for each task.
#[derive(Debug, Default)]
pub(crate) struct TaskTiming {
    started: Cell<Option<Instant>>,
    medium: Stopwatch,
    network: Stopwatch,
    /// The bytes of Data-Out that were requested and have not arrived.
    awaited: Cell<u64>,
}

/// Sums up the time of a state that begins and ends several times.
#[derive(Debug, Default)]
struct Stopwatch {
    since: Cell<Option<Instant>>,
    sum: Cell<Duration>,
}

impl Stopwatch {
    fn begin(&self, now: Instant) {
        if self.since.get().is_none() {
            self.since.set(Some(now));
        }
    }

    fn end(&self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.sum.set(self.sum.get() + now.since(since));
        }
    }

    fn total(&self, now: Instant) -> Duration {
        self.since.get().map_or(Duration::ZERO, |since| now.since(since)) + self.sum.get()
    }
}

impl TaskTiming {
    /// Records that the task began to execute.
    pub(crate) fn start(&self, now: Instant) {
        self.started.set(Some(now));
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
}

/// The slow commands of a unit.
#[derive(Debug, Default)]
pub(crate) struct SlowCommands {
    /// From which time on a command is slow; `None` for no limit.
    pub(crate) limit: Option<Duration>,
    /// The command to report.
    pub(crate) report: Option<SlowCommand>,
    unreported: u64,
    next_report: Instant,
}

impl DeviceServer {
    /// Records how long a command took that ends now.
    pub(crate) fn count_time(&mut self, task: &TaskInfo) {
        let took = self.now.since(task.arrived);
        self.stats.count_latency(crate::stats::OperationClass::of(&task.cdb), took);
        if self.slow.limit.is_some_and(|limit| took >= limit) {
            self.report_slow(task, took);
        }
    }

    fn report_slow(&mut self, task: &TaskInfo, took: Duration) {
        if self.slow.report.is_some() || self.now < self.slow.next_report {
            self.slow.unreported += 1;
            return;
        }
        let started = task.timing.started.get().unwrap_or(self.now);
        self.slow.next_report = self.now.after(REPORT_INTERVAL);
        self.slow.report = Some(SlowCommand {
            nexus: task.nexus,
            opcode: task.cdb.opcode(),
            name: self.table.find(&self.info, &task.cdb).map_or("", |row| row.name),
            bytes: task.data_in_len.max(task.data_out_len),
            took,
            queued: started.since(task.arrived),
            medium: task.timing.medium.total(self.now),
            network: task.timing.network.total(self.now),
            unreported: core::mem::take(&mut self.slow.unreported),
        });
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use scsi::opcode as op;

    use super::*;
    use crate::testing::{A, B, BLOCKS, Rig, Slow, cdb_16, config};

    #[test]
    fn a_slow_command_tells_where_its_time_went_and_a_second_one_is_counted() {
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        let (medium, gate) = Slow::new(BLOCKS * 512);
        let mut rig = Rig::with(config(), Box::new(medium));
        rig.unit.set_slow_limit(Some(Duration::from_secs(5)));
        rig.write(0, &[1; 512]);
        gate.close();
        let read = rig.start(A, &cdb_16(op::READ_16, 0, 8, 2), 1024, 0);
        let write = rig.start(B, &cdb_16(op::WRITE_16, 0, 16, 1), 0, 512);
        rig.unit.data_out(at(4), write, 0, Ok(rig.unit.server.buffer_of(&[7; 512]).into()));
        gate.open();
        rig.unit.store_ready(at(5));
        rig.drain();
        rig.finish(read, &[]).good();
        let slow = rig.unit.take_slow_command().expect("the read was slow");
        let seconds = Duration::from_secs;
        assert_eq!((slow.nexus, slow.opcode, slow.name, slow.bytes), (A, op::READ_16, "READ(16)", 1024));
        assert_eq!((slow.took, slow.queued, slow.medium), (seconds(5), seconds(0), seconds(5)));
        assert_eq!((slow.network, slow.unreported), (seconds(0), 0));
        assert_eq!(rig.unit.take_slow_command(), None, "one in a second");
        gate.close();
        let late = rig.start(A, &cdb_16(op::READ_16, 0, 8, 1), 512, 0);
        gate.open();
        rig.unit.store_ready(at(6));
        rig.drain();
        rig.finish(late, &[]).good();
        let slow = rig.unit.take_slow_command().expect("another second");
        assert_eq!((slow.took, slow.unreported), (seconds(6), 1), "the write was counted");
        assert_eq!(rig.unit.stats().latencies_of(crate::stats::OperationClass::Read).buckets[15], 1);
    }

    #[test]
    fn overlapping_waits_are_counted_once_and_one_that_lasts_counts_to_now() {
        let (timing, at) = (TaskTiming::default(), |ms: u64| Instant(ms * 1_000_000));
        timing.await_data(at(10), 100);
        timing.await_data(at(20), 100);
        timing.receive_data(at(30), 100);
        timing.receive_data(at(40), 100);
        timing.await_data(at(60), 100);
        assert_eq!(timing.network.total(at(65)), Duration::from_millis(35));
        timing.use_medium(at(0));
        timing.use_medium(at(5));
        timing.leave_medium(at(7));
        timing.leave_medium(at(9));
        assert_eq!(timing.medium.total(at(100)), Duration::from_millis(7));
    }
}
