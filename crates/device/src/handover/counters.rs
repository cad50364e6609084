//! The counters of a unit in a document.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::document::bounded;
use crate::log::{ErrorCounts, Statistics};
use crate::rate_limit::LimitStats;
use crate::stats::{Latencies, UnitStats};

/// The counters of a unit since its creation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatsState {
    commands: u64,
    reads: u64,
    writes: u64,
    read_bytes: u64,
    write_bytes: u64,
    check_conditions: u64,
    sense_keys: Vec<u64>,
    reservation_conflicts: u64,
    task_set_full: u64,
    aborts: u64,
    medium_failures: u64,
    io_timeouts: u64,
    delayed: u64,
    delayed_ns: u64,
    latencies: Vec<LatenciesState>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LatenciesState {
    buckets: Vec<u64>,
    sum_ns: u64,
}

/// What the log pages count, or counted when LOG SELECT last reset them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatisticsState {
    read_commands: u64,
    write_commands: u64,
    blocks_received: u64,
    blocks_transmitted: u64,
    read_bytes: u64,
    written_bytes: u64,
    errors: ErrorsState,
    idle_ms: u64,
}

/// Errors of the medium.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ErrorsState {
    reading: u64,
    writing: u64,
    verifying: u64,
    verified_bytes: u64,
}

impl StatsState {
    pub(crate) fn of(stats: &UnitStats) -> Self {
        let UnitStats {
            commands,
            reads,
            writes,
            read_bytes,
            write_bytes,
            check_conditions,
            sense_keys,
            reservation_conflicts,
            task_set_full,
            aborts,
            medium_failures,
            io_timeouts,
            delays: LimitStats { delayed, delayed_ns },
            // A unit that is handed over has no task.
            waiting: _,
            tasks: _,
            latencies,
        } = *stats;
        let latencies = latencies.iter().map(|Latencies { buckets, sum_ns }| LatenciesState {
            buckets: buckets.to_vec(),
            sum_ns: *sum_ns,
        });
        Self {
            commands,
            reads,
            writes,
            read_bytes,
            write_bytes,
            check_conditions,
            sense_keys: sense_keys.to_vec(),
            reservation_conflicts,
            task_set_full,
            aborts,
            medium_failures,
            io_timeouts,
            delayed,
            delayed_ns,
            latencies: latencies.collect(),
        }
    }

    pub(crate) fn restore(&self) -> UnitStats {
        let mut stats = UnitStats {
            commands: bounded(self.commands),
            reads: bounded(self.reads),
            writes: bounded(self.writes),
            read_bytes: bounded(self.read_bytes),
            write_bytes: bounded(self.write_bytes),
            check_conditions: bounded(self.check_conditions),
            reservation_conflicts: bounded(self.reservation_conflicts),
            task_set_full: bounded(self.task_set_full),
            aborts: bounded(self.aborts),
            medium_failures: bounded(self.medium_failures),
            io_timeouts: bounded(self.io_timeouts),
            delays: LimitStats { delayed: bounded(self.delayed), delayed_ns: bounded(self.delayed_ns) },
            ..UnitStats::default()
        };
        copy_counters(&mut stats.sense_keys, &self.sense_keys);
        for (to, from) in stats.latencies.iter_mut().zip(&self.latencies) {
            copy_counters(&mut to.buckets, &from.buckets);
            to.sum_ns = bounded(from.sum_ns);
        }
        stats
    }
}

fn copy_counters(to: &mut [u64], from: &[u64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = bounded(*from);
    }
}

impl StatisticsState {
    pub(crate) fn of(statistics: &Statistics) -> Self {
        let Statistics {
            read_commands,
            write_commands,
            blocks_received,
            blocks_transmitted,
            read_bytes,
            written_bytes,
            errors,
            idle_ms,
        } = *statistics;
        Self {
            read_commands,
            write_commands,
            blocks_received,
            blocks_transmitted,
            read_bytes,
            written_bytes,
            errors: ErrorsState::of(&errors),
            idle_ms,
        }
    }

    pub(crate) const fn restore(&self) -> Statistics {
        Statistics {
            read_commands: bounded(self.read_commands),
            write_commands: bounded(self.write_commands),
            blocks_received: bounded(self.blocks_received),
            blocks_transmitted: bounded(self.blocks_transmitted),
            read_bytes: bounded(self.read_bytes),
            written_bytes: bounded(self.written_bytes),
            errors: self.errors.restore(),
            idle_ms: bounded(self.idle_ms),
        }
    }
}

impl ErrorsState {
    pub(crate) const fn of(errors: &ErrorCounts) -> Self {
        let ErrorCounts { reading, writing, verifying, verified_bytes } = *errors;
        Self { reading, writing, verifying, verified_bytes }
    }

    pub(crate) const fn restore(&self) -> ErrorCounts {
        ErrorCounts {
            reading: bounded(self.reading),
            writing: bounded(self.writing),
            verifying: bounded(self.verifying),
            verified_bytes: bounded(self.verified_bytes),
        }
    }
}
