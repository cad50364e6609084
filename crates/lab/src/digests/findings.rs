//! The report: what the samples mean.

mod lower_loads;
mod plots;
mod tables;

use super::Subject;
use super::advice::{BENEFIT, advise};
use super::costs::{Cost, RATE, change_of, link_limit, mean_change, throughput, throughput_costs};
use super::plan::DigestsPlan;
use super::samples::{CellSamples, Measured, Sample};
use crate::plan::{Digests, Link};
use crate::report::caveats;
use crate::report::doubts::{Doubts, steady_groups};
use crate::report::{Ended, Report, SCHEMA, Section};
use crate::rounds;
use crate::statistics::estimate;
use crate::text::{capitalized, cost, counted, joined, percent};

/// The share of the link's limit from which on the link is what limits a workload.
const LIMITED_FROM: f64 = 0.95;

/// A run that has ended.
pub(super) struct Run<'a> {
    pub(super) plan: &'a DigestsPlan,
    pub(super) measured: &'a Measured,
    pub(super) ended: &'a Ended,
}

/// Returns the report without what the caller knows: the times, the machine and the command.
pub(super) fn report(run: &Run<'_>) -> Report {
    let costs = throughput_costs(run.measured);
    Report {
        schema: SCHEMA,
        experiment: "digests".to_owned(),
        title: "What do iSCSI digests cost on this path?".to_owned(),
        started: String::new(),
        seconds: 0.0,
        ended: run.ended.clone(),
        summary: summary(run.measured, &costs),
        caveats: Vec::new(),
        machine: Vec::new(),
        command: String::new(),
        plan: run.plan.to_toml(),
        sections: sections(run.measured, &costs)
            .into_iter()
            .chain([rounds::section(run.plan.seed)])
            .collect(),
        metrics: run.measured.metrics(),
    }
}

fn sections(measured: &Measured, costs: &[Cost]) -> Vec<Section> {
    let section = |title: &str, text: &str| Section {
        title: title.to_owned(),
        text: vec![text.to_owned()],
        ..Section::default()
    };
    let mut sections = vec![
        Section {
            tables: tables::throughput(measured, costs),
            plots: [plots::throughput(measured), plots::cost_by_depth(measured)].concat(),
            ..section("Throughput", THROUGHPUT)
        },
        Section { tables: tables::latency(measured), ..section("Latency", LATENCY) },
        Section {
            tables: tables::processor_time(measured, measured.full_load(), "Processor time for each GiB"),
            ..section("Processor time", PROCESSOR_TIME)
        },
        Section { tables: tables::published(measured), ..section("Published figures", PUBLISHED) },
    ];
    if measured.lower_loads().next().is_some() {
        let tables = lower_loads::tables(measured);
        sections.insert(3, Section { tables, ..section("Lower loads", LOWER_LOADS) });
    }
    if !measured.calibrations.is_empty() {
        sections.push(Section { tables: tables::links(measured), ..section("Calibration", CALIBRATION) });
    }
    sections.extend(measured.sessions.section());
    if !measured.not_offered.is_empty() {
        sections
            .push(Section { tables: tables::not_offered(measured), ..section("Not offered", NOT_OFFERED) });
    }
    sections
}

const THROUGHPUT: &str = "The changes are the mean ratios, over the rounds, to sessions without digests, in \
     percent of throughput: negative numbers are costs. A change is called significant if it is so after Holm's \
     correction for the number of comparisons, at 5 %. The bare echo is the limit of the two processes and the \
     network without iSCSI: a server that answers each request of 48 bytes with a block, and a client that keeps as \
     many requests under way as the queue depth.";
const LATENCY: &str = "The latency of a command, from its submission to the arrival of its status, at the initiator. It \
     is known to one part in 64: the upper end of a bucket of a histogram.";
const PROCESSOR_TIME: &str = "User and system time of the whole process for each GiB of payload, reads and writes \
     together. The target's includes up to 100 µs of polling before it sleeps, which makes small loads look dear.";
const LOWER_LOADS: &str = "An application seldom uses all of a path. Here commands come at random times (a Poisson \
     process), at a given percentage of the commands per second that sessions without digests reached at full load in \
     the same round. All settings of the digests get the same commands at the same times, so that the throughput is \
     the same, and digests cost latency and processor time only. The latency counts from the moment a command was due: \
     if it has to wait, because as many commands as the queue depth are under way, the wait counts. \"Started\" is \
     the share of the commands that could be started before the end of the measurement.";
const PUBLISHED: &str = "Dennis Daugherty, \"Understanding iSCSI Digests\" (JDSU Medusa Labs), measured half reads \
     and half writes of 64 KiB between two hosts of the first decade of this century, which computed CRC32C with \
     tables. Processors have an instruction for it since. His frames of 9014 bytes are an MTU of 9000.";
const CALIBRATION: &str = "The rates of bare TCP streams through each link before the first measurement on it. A \
     shaped link counts a frame as a wire does: an MTU of 1500 carries 1448 bytes of payload in 1538 bytes of wire. \
     Where the machine has idle processors meanwhile, it comes within 1 % of a wire; a busy machine keeps the shaper from \
     its time, and so does a hypervisor that lets others run.";
const NOT_OFFERED: &str = "The target refuses these settings, so they were not measured.";

/// Answers the question, in sentences: the advice for each link, and what explains it.
fn summary(measured: &Measured, costs: &[Cost]) -> Vec<String> {
    let (steady, mut sentences) = steady(measured);
    let links = links(&steady);
    sentences.extend(links.iter().filter_map(|link| answer(&steady, *link)));
    if sentences.is_empty() {
        sentences.push(without_answer(measured));
    }
    sentences.push(BENEFIT.to_owned());
    sentences.extend(worst(costs, &steady));
    sentences.extend(links.iter().filter_map(|link| lower_loads::answer(&steady, *link)));
    sentences.extend(limited(&steady));
    sentences.extend(processor_time(&steady));
    sentences
}

/// Returns what the summary may use, and the sentences in place of the headlines of the rest. Lower loads are
/// a share of the full load, so they need a steady one.
fn steady(measured: &Measured) -> (Measured, Vec<String>) {
    let (full, mut withheld) = steady_groups(links(measured), |link| (place(*link), doubts(measured, *link)));
    let has_lower = |link: &Link| measured.lower_loads().any(|samples| samples.cell.link == *link);
    let (lower, of_lower) = steady_groups(full.iter().copied().filter(has_lower), |link| {
        (format!("lower loads on {}", place(*link)), lower_loads::doubts(measured, *link))
    });
    withheld.extend(of_lower);
    let is_steady = |samples: &&CellSamples| {
        let links = if samples.cell.is_full_load() { &full } else { &lower };
        links.contains(&samples.cell.link)
    };
    let cells = measured.cells.iter().filter(is_steady).cloned().collect();
    (Measured { cells, ..measured.clone() }, withheld)
}

/// Returns the links in the order of the plan.
fn links(measured: &Measured) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    for samples in &measured.cells {
        if !links.contains(&samples.cell.link) {
            links.push(samples.cell.link);
        }
    }
    links
}

/// The settings that stand for digests, the strongest first.
const STRONGEST: [(Digests, &str); 3] =
    [(Digests::Both, "both digests"), (Digests::Data, "data digests"), (Digests::Header, "header digests")];

/// Returns what speaks against a mean over the workloads on a link: every digest is more work than none.
fn doubts(measured: &Measured, link: Link) -> Doubts {
    let mut doubts = Doubts::default();
    let on_link = || measured.full_load().filter(|samples| samples.cell.link == link);
    for samples in on_link() {
        let workload = format!("{}, {}", samples.cell.workload(), samples.cell.path());
        let rounds = samples.values(Digests::None, throughput);
        doubts.look_at_base(|| format!("a session without digests ({workload})"), &rounds);
        for (digests, name) in STRONGEST {
            if let Some(change) = change_of(samples, digests, RATE) {
                doubts.add_cost(format!("{name} than none ({workload})"), change);
            }
        }
    }
    for (digests, name) in STRONGEST {
        if let Some((change, count)) = mean_change(on_link(), digests, RATE).filter(|(_, count)| *count > 1) {
            doubts
                .add_cost(format!("{name} than none in the mean of {}", counted(count, "workload")), change);
        }
    }
    doubts
}

fn place(link: Link) -> String {
    match link {
        Link::AsItIs => "this path".to_owned(),
        Link::Unshaped => "a link without a rate limit".to_owned(),
        Link::Shaped(_) => format!("a link of {}", link.name()),
    }
}

/// Gives advice for a link, and tells what both digests, or the strongest setting that was measured, cost.
fn answer(measured: &Measured, link: Link) -> Option<String> {
    let on_link = || measured.full_load().filter(|samples| samples.cell.link == link);
    let (name, change, count) = STRONGEST.into_iter().find_map(|(digests, name)| {
        mean_change(on_link(), digests, RATE).map(|(change, count)| (name, change, count))
    })?;
    let place = match link {
        Link::AsItIs => "On this path".to_owned(),
        Link::Unshaped => "On a link without a rate limit, where the processors are the limit".to_owned(),
        Link::Shaped(_) => format!("On a link of {}", link.name()),
    };
    let (cost, advice) = (cost(&change), advise(&change).sentence(name));
    let mean =
        if count == 1 { String::new() } else { format!(", the mean of {}", counted(count, "workload")) };
    Some(format!("{place}: {advice}. {} cost {cost}{mean}.", capitalized(name)))
}

fn without_answer(measured: &Measured) -> String {
    let refused: Vec<String> =
        measured.not_offered.iter().map(|(digests, _)| digests.name().to_owned()).collect();
    let has_base = measured.full_load().any(|samples| !samples.values(Digests::None, throughput).is_empty());
    match refused.as_slice() {
        [] if measured.cells.iter().any(|samples| samples.rounds() > 0) && !has_base => {
            "Nothing can be compared: the plan measures no sessions without digests.".to_owned()
        }
        [] => "The run ended before anything could be compared.".to_owned(),
        some => format!("Nothing can be compared: the target does not offer {}.", joined(some)),
    }
}

/// Names the workload that digests cost most, of those that headlines may use.
fn worst(costs: &[Cost], steady: &Measured) -> Option<String> {
    let is_steady = |cost: &&Cost| steady.cells.iter().any(|samples| samples.cell == cost.cell);
    let usable = || costs.iter().filter(is_steady);
    let is_whole = usable().count() == costs.len();
    let of = if is_whole { "" } else { " on the links that were steady" };
    let significant = usable().filter(|cost| cost.change.significant && cost.change.percent < 0.0);
    let Some(worst) = significant.min_by(|a, b| a.change.percent.total_cmp(&b.change.percent)) else {
        let none = format!("No single workload{of} shows a cost that is larger than chance explains.");
        return usable().next().is_some().then_some(none);
    };
    let (path, workload) = (worst.cell.path(), worst.cell.workload());
    let digests = STRONGEST.into_iter().find(|(digests, _)| *digests == worst.digests);
    let digests = digests.map_or(worst.digests.name(), |(_, name)| name);
    let cost = cost(&worst.change);
    Some(format!("The highest cost of a single workload{of} is {cost}: {workload}, {path}, {digests}."))
}

/// Tells where the link, and not the digests, limits the throughput.
fn limited(measured: &Measured) -> Option<String> {
    let shaped: Vec<f64> = measured
        .full_load()
        .filter_map(|samples| {
            let reached = estimate(&samples.values(Digests::None, throughput)).value;
            let share = reached / link_limit(&samples.cell, measured)?;
            share.is_finite().then_some(share)
        })
        .collect();
    let limited = shaped.iter().filter(|share| **share >= LIMITED_FROM).count();
    (limited > 0).then(|| {
        format!(
            "In {limited} of {} on links with a rate limit, the link is the limit: sessions without digests reach at \
             least {} % of what it can carry. There digests cost processor time and hardly any throughput.",
            counted(shaped.len(), "workload"),
            percent(LIMITED_FROM * 100.0)
        )
    })
}

/// Tells the processor time that both digests take.
fn processor_time(measured: &Measured) -> Option<String> {
    let added = |of: fn(&Sample) -> Option<f64>| {
        let mut differences = Vec::new();
        for samples in measured.full_load() {
            let (base, other) = (samples.values(Digests::None, of), samples.values(Digests::Both, of));
            if !base.is_empty() && base.len() == other.len() {
                differences.push((estimate(&other).value - estimate(&base).value) * 1000.0);
            }
        }
        (!differences.is_empty()).then(|| estimate(&differences).value)
    };
    let initiator = added(|sample| Some(sample.initiator_cpu))?;
    let target = added(|sample| sample.target_cpu);
    let target = target.map_or_else(String::new, |ms| format!(" and {ms:.0} ms of the target"));
    Some(format!(
        "For each GiB of data, both digests take {initiator:.0} ms of processor time of the initiator{target}, in the \
         median workload."
    ))
}

/// Returns what the reader must know to trust the figures.
pub(super) fn caveats(subject: &Subject, measured: &Measured) -> Vec<String> {
    let mut caveats = Vec::new();
    match subject {
        Subject::Bed { .. } => caveats.extend(BED_CAVEATS.map(str::to_owned)),
        Subject::Url { .. } => caveats.push(PATH_CAVEAT.to_owned()),
    }
    for (link, found) in &measured.calibrations {
        caveats.extend(caveats::link_deviation(&link.name(), [found.deviation_percent()]));
    }
    caveats.extend(lower_loads::caveat(measured));
    caveats.extend(caveats::connections_lost(measured.connections_lost));
    let rounds = measured.cells.iter().map(CellSamples::rounds).max().unwrap_or(0);
    caveats.extend(caveats::few_rounds(rounds));
    caveats.extend(caveats::debug_build());
    caveats
}

const BED_CAVEATS: [&str; 4] = [
    "Both ends ran on this machine and shared its processors, so that a digest costs throughput twice: at its sender \
     and at its receiver. Between two machines the cost is lower where the processors are the limit.",
    "The link is a pair of virtual Ethernet interfaces (veth), shaped by a token bucket. It has no adapter, no switch \
     and no interrupts.",
    "On a link without a rate limit, TCP segments of up to 64 KiB cross in one piece, as with an adapter that segments by itself: \
     the MTU makes no difference there.",
    "The disk is in the target's memory. A slower disk hides more of what digests cost.",
];
const PATH_CAVEAT: &str = "MTU, rate and other traffic of the path were what they were. The target's processor time \
     was not measured.";
