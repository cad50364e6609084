//! The counters of the responses, from those of the reactors.

use device::stats::{OperationClass, UnitStats};

use crate::admin::counters_api::{IscsiTotals, Memory, Operation, RefusedLogins, SenseKeyCount, TlsTotals};
use crate::serve::reactor_shard::counts::{ReactorCounts, Snapshot};

pub(super) fn iscsi(counts: &Snapshot) -> IscsiTotals {
    let sum = |counter: fn(&ReactorCounts) -> u64| counts.sum(counter);
    IscsiTotals {
        connections: sum(|reactor| reactor.iscsi.connections),
        connections_dropped: sum(|reactor| reactor.iscsi.dropped),
        pdus_in: sum(|reactor| reactor.iscsi.pdus_in),
        pdus_out: sum(|reactor| reactor.iscsi.pdus_out),
        commands: sum(|reactor| reactor.iscsi.commands),
        management: sum(|reactor| reactor.iscsi.management),
        data_in_bytes: sum(|reactor| reactor.iscsi.data_in_bytes),
        data_out_bytes: sum(|reactor| reactor.iscsi.data_out_bytes),
        rejects: sum(|reactor| reactor.iscsi.rejects),
        ignored: sum(|reactor| reactor.iscsi.ignored),
        busy: sum(|reactor| reactor.iscsi.busy),
        waits_for_data_in: sum(|reactor| reactor.iscsi.held_back),
        waits_for_data_out: sum(|reactor| reactor.iscsi.withheld),
        data_late: sum(|reactor| reactor.iscsi.data_late),
        sessions_evicted: sum(|reactor| reactor.iscsi.evicted),
        sessions_reinstated: sum(|reactor| reactor.iscsi.sessions_reinstated),
        connections_reinstated: sum(|reactor| reactor.iscsi.connections_reinstated),
        refused_logins: RefusedLogins {
            authentication: sum(|reactor| reactor.iscsi.refusals.authentication),
            authorization: sum(|reactor| reactor.iscsi.refusals.authorization),
            not_found: sum(|reactor| reactor.iscsi.refusals.not_found),
            resources: sum(|reactor| reactor.iscsi.refusals.resources),
            timeout: sum(|reactor| reactor.iscsi.refusals.timeout),
            protocol: sum(|reactor| reactor.iscsi.refusals.protocol),
        },
    }
}

pub(super) const fn tls(counts: &Snapshot) -> TlsTotals {
    TlsTotals { completed: counts.tls.completed, failed: counts.tls.failed }
}

pub(super) fn memory(counts: &Snapshot) -> Memory {
    let used = |reactor: &ReactorCounts| u64::try_from(reactor.data_bytes).unwrap_or(u64::MAX);
    Memory { used_bytes: counts.sum(used), limit_bytes: counts.memory_max }
}

pub(super) fn operations(stats: &UnitStats) -> Vec<Operation> {
    let operation = |class: OperationClass| {
        let latencies = stats.latencies_of(class);
        Operation {
            op: class.name().to_owned(),
            commands: latencies.commands(),
            total_us: latencies.sum_ns / 1000,
            buckets: latencies.buckets.to_vec(),
        }
    };
    OperationClass::ALL.into_iter().map(operation).collect()
}

pub(super) fn check_conditions(stats: &UnitStats) -> Vec<SenseKeyCount> {
    let returned = (0..).zip(stats.sense_keys).filter(|(_, commands)| *commands > 0);
    returned.map(|(sense_key, commands)| SenseKeyCount { sense_key, commands }).collect()
}
