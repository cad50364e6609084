//! The report: what the samples mean.

mod digests;
mod doubts;
mod idle_sessions;
mod plots;
mod summary;
mod tables;

use super::comparison::{Comparison, DigestCost, comparisons, digest_costs};
use super::plan::TargetsPlan;
use super::samples::Measured;
use crate::report::caveats;
use crate::report::{Ended, Report, SCHEMA, Section};
use crate::rounds;
use crate::text::joined;

/// The share of a processor from which on the client is the limit.
const CLIENT_LIMIT: f64 = 0.95;

/// A run that has ended.
pub(super) struct Run<'a> {
    pub(super) plan: &'a TargetsPlan,
    pub(super) measured: &'a Measured,
    pub(super) ended: &'a Ended,
}

/// Returns the report without what the caller knows: the times, the machine and the command.
pub(super) fn report(run: &Run<'_>) -> Report {
    let (list, costs) = (comparisons(run.measured), digest_costs(run.measured));
    Report {
        schema: SCHEMA,
        experiment: "targets".to_owned(),
        title: "How do iSCSI targets compare on this machine?".to_owned(),
        started: String::new(),
        seconds: 0.0,
        ended: run.ended.clone(),
        summary: summary::summary(run.measured, &list, &costs),
        caveats: Vec::new(),
        machine: Vec::new(),
        command: String::new(),
        plan: run.plan.to_toml(),
        sections: sections(run, &list, &costs).into_iter().chain([rounds::section(run.plan.seed)]).collect(),
        metrics: run.measured.metrics(),
    }
}

fn sections(run: &Run<'_>, list: &[Comparison], costs: &[DigestCost]) -> Vec<Section> {
    let measured = run.measured;
    let section = |title: &str, text: &str| Section {
        title: title.to_owned(),
        text: vec![text.to_owned()],
        ..Section::default()
    };
    let all = vec![
        Section { tables: tables::targets(measured), ..section("Targets", TARGETS) },
        Section {
            tables: tables::rates(measured, list),
            plots: plots::rates(measured),
            ..section("Throughput", THROUGHPUT)
        },
        Section { tables: tables::latency(measured), ..section("Latency", LATENCY) },
        Section { tables: tables::processor_time(measured), ..section("Processor time", PROCESSOR_TIME) },
        Section { tables: tables::calls(measured), ..section("System calls and context switches", CALLS) },
        Section { tables: digests::tables(measured, costs), ..section("Cost of digests", DIGESTS) },
        Section { tables: tables::memory(measured), ..section("Memory", MEMORY) },
        Section { tables: idle_sessions::tables(measured), ..section("Idle sessions", IDLE_SESSIONS) },
        Section { tables: tables::conformance(run.plan, measured), ..section("Conformance", CONFORMANCE) },
        Section { tables: tables::client(measured), ..section("The client", CLIENT) },
        Section { tables: tables::published(measured), ..section("Published figures", PUBLISHED) },
    ];
    // The plan may have no digests and no idle sessions.
    all.into_iter().filter(|section| !section.tables.is_empty()).chain(measured.sessions.section()).collect()
}

const TARGETS: &str = "Every target serves a disk of its own of 256 MiB, written full before the start. All of them \
     run at the same time; only the one that is measured has load.";
const THROUGHPUT: &str = "One session with one connection, without digests where none are named. The changes are the mean ratios, over the \
     rounds, of the rate of commands of targe to that of the other target, less one: positive numbers mean that targe is \
     faster. Ranges are 95 % confidence intervals. A change is called significant if chance gives none of so many \
     comparisons such a change with a probability of 95 % (Holm's correction).";
const LATENCY: &str = "The latency of a command, from its submission to the arrival of its status, at the initiator. It \
     is known to one part in 64: the upper end of a bucket of a histogram.";
const PROCESSOR_TIME: &str = "User and system time of all threads and processes of the target for each command, login \
     and warm-up included. A target in the kernel works in threads and interrupts that no process accounts for: its \
     processor time is not attributable. A target that polls uses a processor whether it works or not; targe polls for \
     up to 100 µs before it sleeps.";
const CALLS: &str = "Counted in a round of its own, which is not part of the other figures: system calls by the \
     kernel's tracepoint raw_syscalls:sys_enter, voluntary context switches by /proc/PID/task/TID/status.";
const DIGESTS: &str = "The changes are the mean ratios, over the rounds, of a workload with digests to the same workload \
     without: negative numbers of the rate, and positive ones of the processor time, are what digests cost. Client and \
     target compute them on the same processors. A target that accepts no login with digests is not measured with them.";
const IDLE_SESSIONS: &str = "Every target was started anew for this. The client logs in again and again, and no session \
     sends a command; the memory is read a second after the last login. The sessions of a smaller number stay when \
     more log in. The time until a target listens includes that of a shell that starts it.";
const MEMORY: &str = "Resident memory of all processes of the target together, before the first load and at its \
     largest under load. A disk in tmpfs does not count; a RAM disk of the target itself does.";
const CONFORMANCE: &str = "Cases of targe conform target, which tests a target from outside by the rules of RFC 7143 \
     and RFC 7144. Cases that do not apply to what a target offers are skipped. The suite and targe are by the same \
     authors, so look at the failed cases before you judge: targe conform target ADDR.";
const CLIENT: &str = "The bare echo is the limit of the network and two simple processes without iSCSI: a server that \
     answers each request of 48 bytes with a block (for writes, each request of 48 bytes and a block with 48 bytes), and a \
     client that keeps as many requests under way as the queue depth, measured in each round. It answers each request by \
     itself, so that a target that answers several at once can be faster. The client of all targets is one thread; where \
     it uses a whole processor, faster targets look alike.";
const PUBLISHED: &str = "Bart Van Assche, Vladislav Bolkhovitin and James Bottomley, \"SCST and STGT\" (2008), \
     sequential reads in MB/s between two hosts; STGT is tgt. Networks and processors have changed since, so that the \
     ratios of the targets to each other compare, and not the figures.";

/// Returns what a reader must know to trust the figures.
pub(super) fn caveats(plan: &TargetsPlan, measured: &Measured, load: Option<f64>) -> Vec<String> {
    let mut caveats = vec![SHARED.to_owned()];
    if !measured.in_memory {
        caveats.push(
            "Neither the directory for temporary files nor /dev/shm is a tmpfs, so that the disks of the targets are \
             files of a file system on a device."
                .to_owned(),
        );
    }
    let limited = limited_by_client(measured);
    if !limited.is_empty() {
        caveats.push(format!(
            "The client used a whole processor with {}: there the fastest target may be faster than it looks.",
            joined(&limited)
        ));
    }
    let own: Vec<String> = measured
        .measured()
        .filter(|target| !target.rival.file.backing.contains("tmpfs"))
        .map(|target| format!("{} ({})", target.title(), target.rival.file.backing))
        .collect();
    if !own.is_empty() {
        caveats.push(format!("Not all disks are files in tmpfs: {}.", joined(&own)));
    }
    caveats.extend(load.and_then(caveats::busy_machine));
    caveats.extend(caveats::few_rounds(usize::try_from(plan.rounds).unwrap_or(usize::MAX)));
    caveats.extend(caveats::debug_build());
    caveats
}

const SHARED: &str = "The client and the targets ran on this machine and shared its processors and its memory. The \
     network is a pair of virtual Ethernet interfaces (veth) without an adapter, a switch or interrupts: that favours \
     whatever saves processor time. With a slower network or disk, targets differ less. The targets run with the \
     settings that the section Targets tells and are not tuned otherwise.";

/// Returns the workloads with which some target brought the client to its limit.
fn limited_by_client(measured: &Measured) -> Vec<String> {
    let is_limited = |at: usize| {
        measured.measured().any(|target| {
            let busy = crate::statistics::estimate(&target.values(at, |sample| Some(sample.client_busy)));
            busy.value >= CLIENT_LIMIT
        })
    };
    let workloads = measured.workloads.iter().enumerate();
    workloads.filter(|(at, _)| is_limited(*at)).map(|(_, workload)| workload.name()).collect()
}
