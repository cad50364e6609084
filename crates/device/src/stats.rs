//! The counters of a logical unit.

use crate::rate_limit::LimitStats;
use base::time::Duration;
use scsi::cdb::Cdb;
use scsi::inquiry::DeviceType;
use scsi::opcode::{self, variable_length};
use scsi::sense::SenseKey;
use scsi::status::Status;

/// Counters of a unit since its creation, and its present number of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitStats {
    /// Commands received.
    pub commands: u64,
    /// Commands that read blocks.
    pub reads: u64,
    /// Commands that wrote blocks.
    pub writes: u64,
    /// Bytes delivered by commands that read blocks.
    pub read_bytes: u64,
    /// Bytes received by commands that wrote blocks.
    pub write_bytes: u64,
    /// Commands that ended with CHECK CONDITION.
    pub check_conditions: u64,
    /// The same, by the sense key that they ended with.
    pub sense_keys: [u64; SENSE_KEYS],
    /// Commands that ended with RESERVATION CONFLICT.
    pub reservation_conflicts: u64,
    /// Commands that ended with TASK SET FULL.
    pub task_set_full: u64,
    /// Tasks aborted.
    pub aborts: u64,
    /// Failed operations of the medium.
    pub medium_failures: u64,
    /// Operations of the medium, and waits for a range of it, that took longer than the time limit.
    pub io_timeouts: u64,
    /// The commands that a limit of the unit or of their initiator delayed.
    pub delays: LimitStats,
    /// Commands that a limit delays now.
    pub waiting: u64,
    /// Tasks in the task set now.
    pub tasks: u64,
    /// How long the commands of each class took that ended with a status, in the order of
    /// [`OperationClass::ALL`].
    pub latencies: [Latencies; OperationClass::ALL.len()],
}

/// The number of sense keys.
pub const SENSE_KEYS: usize = 16;

impl UnitStats {
    /// Counts a command that ended with a status, and with this sense key.
    pub(crate) fn count_status(&mut self, status: Status, key: Option<SenseKey>) {
        match status {
            Status::CHECK_CONDITION => {
                self.check_conditions += 1;
                let key = key.map_or(0, |key| usize::from(key.0));
                if let Some(counter) = self.sense_keys.get_mut(key) {
                    *counter += 1;
                }
            }
            Status::RESERVATION_CONFLICT => self.reservation_conflicts += 1,
            Status::TASK_SET_FULL => self.task_set_full += 1,
            _ => {}
        }
    }

    /// Counts how long a command took.
    pub(crate) fn count_latency(&mut self, class: OperationClass, took: Duration) {
        if let Some(latencies) = self.latencies.get_mut(class.index()) {
            latencies.count(took);
        }
    }

    /// Adds the counters of another unit.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.commands, other.commands),
            (&mut self.reads, other.reads),
            (&mut self.writes, other.writes),
            (&mut self.read_bytes, other.read_bytes),
            (&mut self.write_bytes, other.write_bytes),
            (&mut self.check_conditions, other.check_conditions),
            (&mut self.reservation_conflicts, other.reservation_conflicts),
            (&mut self.task_set_full, other.task_set_full),
            (&mut self.aborts, other.aborts),
            (&mut self.medium_failures, other.medium_failures),
            (&mut self.io_timeouts, other.io_timeouts),
            (&mut self.delays.delayed, other.delays.delayed),
            (&mut self.delays.delayed_ns, other.delays.delayed_ns),
            (&mut self.waiting, other.waiting),
            (&mut self.tasks, other.tasks),
        ] {
            *sum = sum.saturating_add(more);
        }
        for (sum, more) in self.sense_keys.iter_mut().zip(other.sense_keys) {
            *sum = sum.saturating_add(more);
        }
        for (sum, more) in self.latencies.iter_mut().zip(&other.latencies) {
            sum.sum_ns = sum.sum_ns.saturating_add(more.sum_ns);
            for (sum, more) in sum.buckets.iter_mut().zip(more.buckets) {
                *sum = sum.saturating_add(more);
            }
        }
    }

    /// Returns how long the commands of a class took.
    pub fn latencies_of(&self, class: OperationClass) -> Latencies {
        self.latencies.get(class.index()).copied().unwrap_or_default()
    }
}

/// A class of commands whose latencies are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationClass {
    /// Commands that read data of the medium.
    Read,
    /// Commands that write data to the medium, also those that compare or combine it before.
    Write,
    /// Commands that make written data durable.
    Flush,
    /// Commands that deallocate blocks.
    Unmap,
    /// All other commands.
    Other,
}

impl OperationClass {
    /// Every class.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Flush, Self::Unmap, Self::Other];

    /// Returns the class of a command of a device of this type.
    pub fn of(device: DeviceType, cdb: &Cdb) -> Self {
        match (device, cdb.opcode()) {
            // Device types give these codes other meanings: SPACE(16) and ERASE(16), and READ SUB-CHANNEL.
            (DeviceType::SEQUENTIAL_ACCESS, opcode::SPACE_16 | opcode::ERASE_16)
            | (DeviceType::CD_DVD, opcode::UNMAP) => Self::Other,
            (_, code) => Self::of_code(code, cdb),
        }
    }

    fn of_code(code: u8, cdb: &Cdb) -> Self {
        match code {
            opcode::READ_6
            | opcode::READ_10
            | opcode::READ_12
            | opcode::READ_16
            | opcode::READ_CD
            | opcode::READ_CD_MSF => Self::Read,
            opcode::WRITE_6
            | opcode::WRITE_10
            | opcode::WRITE_12
            | opcode::WRITE_16
            | opcode::WRITE_AND_VERIFY_10
            | opcode::WRITE_AND_VERIFY_12
            | opcode::WRITE_AND_VERIFY_16
            | opcode::WRITE_SAME_10
            | opcode::WRITE_SAME_16
            | opcode::WRITE_ATOMIC_16
            | opcode::COMPARE_AND_WRITE
            | opcode::ORWRITE_16 => Self::Write,
            opcode::SYNCHRONIZE_CACHE_10
            | opcode::SYNCHRONIZE_CACHE_16
            | opcode::WRITE_FILEMARKS_6
            | opcode::WRITE_FILEMARKS_16 => Self::Flush,
            opcode::UNMAP => Self::Unmap,
            opcode::VARIABLE_LENGTH => match cdb.u16(8) {
                variable_length::READ_32 => Self::Read,
                variable_length::WRITE_32
                | variable_length::WRITE_AND_VERIFY_32
                | variable_length::WRITE_SAME_32
                | variable_length::WRITE_ATOMIC_32
                | variable_length::ORWRITE_32 => Self::Write,
                _ => Self::Other,
            },
            _ => Self::Other,
        }
    }

    /// Returns the name of the class.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Unmap => "unmap",
            Self::Other => "other",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Flush => 2,
            Self::Unmap => 3,
            Self::Other => 4,
        }
    }
}

/// The upper bounds of the buckets of [`Latencies`], in microseconds. The last bucket has none.
pub const LATENCY_BOUNDS_US: [u64; LATENCY_BUCKETS - 1] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000,
];

/// The number of buckets.
pub const LATENCY_BUCKETS: usize = 18;

/// How many commands took how long.
///
/// To count one takes a search among the bounds, where a command on a fast medium is found at once, and two
/// additions. The clock is that of the driver, which reads it once for each wake-up: a command that is
/// answered in the wake-up that brought it counts with a latency of zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// How many took at most the bound of the bucket, and longer than that of the bucket before.
    pub buckets: [u64; LATENCY_BUCKETS],
    /// How long all took together, in nanoseconds.
    pub sum_ns: u64,
}

impl Latencies {
    fn count(&mut self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS_US.iter().take_while(|bound| took_ns > **bound * 1_000).count();
        if let Some(counter) = self.buckets.get_mut(bucket) {
            *counter += 1;
        }
        self.sum_ns = self.sum_ns.wrapping_add(took_ns);
    }

    /// Returns how many commands were counted.
    pub fn commands(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_counted_in_the_bucket_of_the_least_bound_that_it_does_not_exceed() {
        for (took_ns, bucket) in [
            (0, 0),
            (50_000, 0),
            (50_001, 1),
            (100_000, 1),
            (1_000_000, 4),
            (1_000_001, 5),
            (10_000_000_000, 16),
            (10_000_000_001, 17),
            (u64::MAX, 17),
        ] {
            let mut latencies = Latencies::default();
            latencies.count(Duration::from_nanos(took_ns));
            assert_eq!(latencies.buckets.iter().position(|count| *count == 1), Some(bucket), "{took_ns}");
            assert_eq!((latencies.commands(), latencies.sum_ns), (1, took_ns));
        }
    }

    #[test]
    fn a_sum_has_what_limits_delayed() {
        let mut sum = UnitStats { waiting: 1, ..UnitStats::default() };
        let more = UnitStats {
            waiting: 2,
            delays: LimitStats { delayed: 3, delayed_ns: 4 },
            ..UnitStats::default()
        };
        sum.add(&more);
        assert_eq!((sum.waiting, sum.delays), (3, more.delays));
    }

    #[test]
    fn bounds_ascend_and_every_class_has_a_place_of_its_own() {
        assert!(LATENCY_BOUNDS_US.is_sorted());
        for (at, class) in OperationClass::ALL.iter().enumerate() {
            assert_eq!(class.index(), at);
        }
    }

    #[test]
    fn commands_have_the_class_of_what_they_do_to_the_medium() {
        let class_on = |device, head: &[u8]| {
            let mut bytes = [0; 32];
            bytes[..head.len()].copy_from_slice(head);
            OperationClass::of(device, &Cdb::from_bytes(&bytes).unwrap())
        };
        let class = |head: &[u8]| class_on(DeviceType::DIRECT_ACCESS_BLOCK, head);
        let (tape, drive) = (DeviceType::SEQUENTIAL_ACCESS, DeviceType::CD_DVD);
        for (device, code, expected) in [
            (tape, opcode::SPACE_16, OperationClass::Other),
            (tape, opcode::ERASE_16, OperationClass::Other),
            (tape, opcode::WRITE_FILEMARKS_16, OperationClass::Flush),
            (drive, opcode::UNMAP, OperationClass::Other),
            (drive, opcode::READ_10, OperationClass::Read),
        ] {
            assert_eq!(class_on(device, &[code]), expected, "{device:?} {code:02x}h");
        }
        assert_eq!(class(&[opcode::READ_16]), OperationClass::Read);
        assert_eq!(class(&[opcode::WRITE_SAME_16]), OperationClass::Write);
        assert_eq!(class(&[opcode::SYNCHRONIZE_CACHE_10]), OperationClass::Flush);
        assert_eq!(class(&[opcode::UNMAP]), OperationClass::Unmap);
        assert_eq!(class(&[opcode::INQUIRY]), OperationClass::Other);
        assert_eq!(class(&[opcode::VARIABLE_LENGTH, 0, 0, 0, 0, 0, 0, 24, 0, 9]), OperationClass::Read);
    }
}
