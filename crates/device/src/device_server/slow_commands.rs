//! Counts how long commands take, and reports those that are slow.

use base::time::Duration;
use scsi::inquiry::DeviceType;

use super::DeviceServer;
use crate::contract::DeviceKind;
use crate::slow_command::SlowCommand;
use crate::stats::OperationClass;
use crate::task::TaskInfo;

/// How often a unit reports a slow command. Those between are counted.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

impl DeviceServer {
    /// Records how long a command took that ends now.
    pub(crate) fn count_time(&mut self, task: &TaskInfo) {
        let took = self.now.since(task.arrived);
        self.stats.count_latency(self.class_of(task), took);
        if self.slow.limit.is_some_and(|limit| took >= limit) {
            self.report_slow(task, took);
        }
    }

    /// Returns the class of a command of this unit.
    pub(crate) fn class_of(&self, task: &TaskInfo) -> OperationClass {
        let device = match (&self.pass_through, self.info.config.device) {
            (Some(passed), _) => DeviceType(passed.device.kind),
            (None, DeviceKind::Disk) => DeviceType::DIRECT_ACCESS_BLOCK,
            (None, DeviceKind::Tape) => DeviceType::SEQUENTIAL_ACCESS,
            (None, DeviceKind::Disc { .. }) => DeviceType::CD_DVD,
            (None, DeviceKind::Changer) => DeviceType::MEDIA_CHANGER,
            (None, DeviceKind::PassThrough { .. }) => DeviceType::UNKNOWN,
        };
        OperationClass::of(device, &task.cdb)
    }

    fn report_slow(&mut self, task: &TaskInfo, took: Duration) {
        if self.slow.report.is_some() || self.now < self.slow.next_report {
            self.slow.unreported += 1;
            return;
        }
        self.slow.next_report = self.now.after(REPORT_INTERVAL);
        self.slow.report = Some(SlowCommand {
            nexus: task.nexus,
            opcode: task.cdb.opcode(),
            name: self.table.find(&self.info, &task.cdb).map_or("", |row| row.name),
            bytes: task.data_in_len.max(task.data_out_len),
            took,
            queued: task.timing.queued(task.arrived, self.now),
            medium: task.timing.medium(self.now),
            network: task.timing.network(self.now),
            unreported: core::mem::take(&mut self.slow.unreported),
        });
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use base::time::Instant;
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
        assert_eq!(rig.unit.stats().latencies_of(OperationClass::Read).buckets[15], 1);
    }
}
