//! The report: what the samples mean.

pub(super) mod copies;
mod tables;

use super::plan::HyperScsiPlan;
use super::samples::{Cell, CellSamples, Disturbance, Measured, Protocol, Sample};
use crate::plan::Link;
use crate::report::caveats;
use crate::report::cells::bars as report_bars;
use crate::report::doubts::{Doubts, steady_groups};
use crate::report::{Axis, Ended, Plot, PlotKind, Point, Report, SCHEMA, Section, Series};
use crate::rounds;
use crate::statistics::{Change, Pairing, estimate, holm, percent_change};
use crate::text::counted;

/// The change of throughput from iSCSI to HyperSCSI in a workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    pub(super) cell: Cell,
    pub(super) base: Protocol,
    pub(super) change: Change,
}

/// Returns the report without what the caller knows: the times, the machine and the command.
pub(super) fn report(plan: &HyperScsiPlan, measured: &Measured, ended: &Ended) -> Report {
    let comparisons = comparisons(measured);
    Report {
        schema: SCHEMA,
        experiment: "hyperscsi".to_owned(),
        title: "How fast is HyperSCSI beside iSCSI on the same link?".to_owned(),
        started: String::new(),
        seconds: 0.0,
        ended: ended.clone(),
        summary: summary(measured, &comparisons),
        caveats: Vec::new(),
        machine: Vec::new(),
        command: String::new(),
        plan: plan.to_toml(),
        sections: sections(measured, &comparisons).into_iter().chain([rounds::section(plan.seed)]).collect(),
        metrics: measured.metrics(),
    }
}

/// Returns the changes of throughput from both kinds of iSCSI to HyperSCSI, for every undisturbed workload.
/// Their significance is corrected for their number.
pub(super) fn comparisons(measured: &Measured) -> Vec<Comparison> {
    let mut all = Vec::new();
    for samples in measured.cells.iter().filter(|samples| samples.cell.disturbance.is_none()) {
        for base in [Protocol::Iscsi, Protocol::IscsiDigests] {
            let change = change_of(samples, base, throughput);
            all.extend(change.map(|change| Comparison { cell: samples.cell, base, change }));
        }
    }
    holm(all.iter_mut().map(|comparison| &mut comparison.change));
    all
}

/// Returns the change of a quantity from `base` to HyperSCSI; none without samples of both.
fn change_of(samples: &CellSamples, base: Protocol, of: impl Fn(&Sample) -> Option<f64>) -> Option<Change> {
    let (base, ours) = (samples.values(base, &of), samples.values(Protocol::HyperScsi, &of));
    let complete = !base.is_empty() && base.len() == ours.len();
    complete.then(|| percent_change(&base, &ours, Pairing::Paired))
}

/// Returns the change of a quantity from `base` to HyperSCSI over some workloads.
fn mean_change<'a>(
    cells: impl Iterator<Item = &'a CellSamples>,
    base: Protocol,
    of: impl Fn(&Sample) -> Option<f64>,
) -> Option<(Change, usize)> {
    change_over(cells, (base, Protocol::HyperScsi), of)
}

/// Returns the change of a quantity from one protocol to another over some workloads, and their count: each
/// round gives the geometric mean over them.
fn change_over<'a>(
    cells: impl Iterator<Item = &'a CellSamples>,
    (base, other): (Protocol, Protocol),
    of: impl Fn(&Sample) -> Option<f64>,
) -> Option<(Change, usize)> {
    let values = |samples: &CellSamples, protocol| samples.values(protocol, &of);
    let pairs: Vec<[Vec<f64>; 2]> = cells
        .map(|samples| [values(samples, base), values(samples, other)])
        .filter(|[base, ours]| !base.is_empty() && base.len() == ours.len())
        .collect();
    let rounds = pairs.iter().map(|[base, _]| base.len()).min()?;
    let count = f64::from(u32::try_from(pairs.len()).unwrap_or(u32::MAX));
    let mean = |side: usize, round: usize| {
        let logs = pairs.iter().filter_map(|pair| Some(pair.get(side)?.get(round)?.ln()));
        (logs.sum::<f64>() / count).exp()
    };
    let [base, ours] = [0, 1].map(|side| (0..rounds).map(|round| mean(side, round)).collect::<Vec<f64>>());
    Some((percent_change(&base, &ours, Pairing::Paired), pairs.len()))
}

#[allow(clippy::unnecessary_wraps, reason = "a quantity of samples")]
const fn throughput(sample: &Sample) -> Option<f64> {
    Some(sample.throughput)
}

fn median(samples: &CellSamples, protocol: Protocol, of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    Some(estimate(&samples.values(protocol, of)).value).filter(|value| value.is_finite())
}

/// Answers the question, in sentences.
fn summary(measured: &Measured, comparisons: &[Comparison]) -> Vec<String> {
    let (steady, mut sentences, of_disturbed) = steady(measured);
    let is_steady = sentences.is_empty();
    sentences.extend(links(&steady).into_iter().filter_map(|link| answer(&steady, link)));
    if sentences.is_empty() {
        sentences.push("The run ended before anything could be compared.".to_owned());
    } else {
        sentences.push(WHAT_IS_WHAT.to_owned());
    }
    sentences.extend(score(comparisons, &steady));
    sentences.extend(bound(&steady));
    if is_steady {
        // Means over all links.
        sentences.extend(processor_time(&steady));
        sentences.extend(beside_others(&steady));
    }
    sentences.extend(of_disturbed);
    sentences.extend(disturbed(&steady));
    sentences.extend(copies::summary(&measured.copies));
    sentences
}

/// A kind of disturbance: what a headline of it is about, and its strength.
type Kind = (&'static str, fn(Disturbance) -> Option<f64>);

const LOST: Kind = ("lost frames", |disturbance| match disturbance {
    Disturbance::Loss(percent) => Some(percent),
    _ => None,
});

const SHARED: Kind = ("other traffic", |disturbance| match disturbance {
    Disturbance::Traffic(percent) => Some(f64::from(percent)),
    _ => None,
});

/// Returns the workloads that the summary may use, and the sentences in place of the headlines of the others:
/// of links, and of disturbances.
fn steady(measured: &Measured) -> (Measured, Vec<String>, Vec<String>) {
    let (of_links, withheld) = steady_groups(links(measured), |link| {
        let place = match link {
            Link::Shaped(_) => format!("a link of {}", link.name()),
            Link::Unshaped | Link::AsItIs => "a link without a rate limit".to_owned(),
        };
        (place, doubts(measured, *link))
    });
    let (kinds, of_disturbed) =
        steady_groups([LOST, SHARED], |(about, kind)| ((*about).to_owned(), doubts_of(measured, *kind)));
    let is_steady = |cell: &Cell| match cell.disturbance {
        Disturbance::None => of_links.contains(&cell.link),
        disturbance => kinds.iter().any(|(_, kind)| kind(disturbance).is_some()),
    };
    let cells = measured.cells.iter().filter(|samples| is_steady(&samples.cell)).cloned().collect();
    (Measured { cells, ..measured.clone() }, withheld, of_disturbed)
}

/// Returns what speaks against shares of the rates that a disturbance of no strength leaves.
fn doubts_of(measured: &Measured, kind: impl Fn(Disturbance) -> Option<f64>) -> Doubts {
    let mut doubts = Doubts::default();
    for samples in measured.cells.iter().filter(|samples| kind(samples.cell.disturbance) == Some(0.0)) {
        let Cell { workload, disturbance, .. } = samples.cell;
        for protocol in [Protocol::HyperScsi, Protocol::Iscsi] {
            let base = || {
                format!("{} ({workload}, {}, {})", protocol.name(), samples.cell.path(), disturbance.name())
            };
            doubts.look_at_base(base, &samples.values(protocol, throughput));
        }
    }
    doubts
}

const WHAT_IS_WHAT: &str = "HyperSCSI carries SCSI commands in Ethernet frames, without IP and TCP, and always with a \
     checksum (CRC32C) over each frame. iSCSI carries them over TCP; its checksums, the digests, are optional.";

/// Returns the links of the undisturbed workloads in the order of the plan.
fn links(measured: &Measured) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    for samples in measured.cells.iter().filter(|samples| samples.cell.disturbance.is_none()) {
        if !links.contains(&samples.cell.link) {
            links.push(samples.cell.link);
        }
    }
    links
}

/// Returns what speaks against a mean over the workloads on a link. Digests and encryption are more work than
/// the same protocol without.
fn doubts(measured: &Measured, link: Link) -> Doubts {
    let mut doubts = Doubts::default();
    let undisturbed = measured.cells.iter().filter(|samples| samples.cell.disturbance.is_none());
    let on_link = undisturbed.filter(|samples| samples.cell.link == link);
    for samples in on_link.clone() {
        let workload = format!("{}, {}", samples.cell.workload, samples.cell.path());
        for base in [Protocol::Iscsi, Protocol::IscsiDigests] {
            let rounds = samples.values(base, throughput);
            doubts.look_at_base(|| format!("{} ({workload})", base.name()), &rounds);
        }
    }
    for (less, more) in MORE_WORK {
        for samples in on_link.clone() {
            let one = std::iter::once(samples);
            if let Some((change, _)) = change_over(one, (less, more), throughput) {
                let (cell, names) = (samples.cell, (more.name(), less.name()));
                let name = format!("{} than {} ({}, {})", names.0, names.1, cell.workload, cell.path());
                doubts.add_cost(name, change);
            }
        }
    }
    doubts
}

/// Protocols of which the second does what the first does, and more.
const MORE_WORK: [(Protocol, Protocol); 2] =
    [(Protocol::Iscsi, Protocol::IscsiDigests), (Protocol::HyperScsi, Protocol::Encrypted)];

/// Compares the protocols on a link.
fn answer(measured: &Measured, link: Link) -> Option<String> {
    let on_link = || {
        let cells = measured.cells.iter();
        cells.filter(move |samples| samples.cell.link == link && samples.cell.disturbance.is_none())
    };
    let (plain, count) = mean_change(on_link(), Protocol::Iscsi, throughput)?;
    let place = match link {
        Link::Shaped(_) => format!("On a link of {}", link.name()),
        Link::Unshaped | Link::AsItIs => {
            "On a link without a rate limit, where the processors are the limit,".to_owned()
        }
    };
    let digests = mean_change(on_link(), Protocol::IscsiDigests, throughput);
    let digests = digests.map_or_else(String::new, |(change, _)| {
        format!(", and {}, which check as much", against(&change, "iSCSI with both digests"))
    });
    let count = if count == 1 { "1 workload".to_owned() } else { format!("the mean of {count} workloads") };
    let plain = against(&plain, "iSCSI without digests");
    Some(format!("{place} HyperSCSI moves {plain}{digests} ({count})."))
}

/// Writes a change: `3.1 % more than iSCSI (95 % confidence interval: +2.9 to +3.3 %)`.
fn against(change: &Change, base: &str) -> String {
    let word = if change.percent < 0.0 { "less" } else { "more" };
    let interval = if change.low.is_finite() && change.high.is_finite() {
        format!(" (95 % confidence interval: {:+.1} to {:+.1} %)", change.low, change.high)
    } else {
        " (one round, so no confidence interval)".to_owned()
    };
    if !change.significant && change.low.is_finite() {
        // A wide interval does not show that both are alike.
        return if change.high - change.low > ALIKE_MAX {
            format!("an amount that this run cannot tell from that of {base}{interval}")
        } else {
            format!("as much as {base}, within the error of measurement{interval}")
        };
    }
    format!("{:.1} % {word} than {base}{interval}", change.percent.abs())
}

/// The widest interval, in percent, of an insignificant change that shows that two values are alike.
const ALIKE_MAX: f64 = 10.0;

/// Counts the workloads that each protocol wins, of those that headlines may use.
fn score(comparisons: &[Comparison], steady: &Measured) -> Option<String> {
    let is_steady = |cell: &Cell| steady.cells.iter().any(|samples| samples.cell == *cell);
    let all = || comparisons.iter().filter(|comparison| comparison.base == Protocol::Iscsi);
    let plain: Vec<&Change> =
        all().filter(|found| is_steady(&found.cell)).map(|comparison| &comparison.change).collect();
    let of = if plain.len() == all().count() { "" } else { " on the links that were steady" };
    let won =
        |sign: f64| plain.iter().filter(|change| change.significant && change.percent * sign > 0.0).count();
    (!plain.is_empty()).then(|| {
        format!(
            "HyperSCSI is significantly faster than iSCSI without digests in {} of {} workloads{of}, and slower in {}.",
            won(1.0),
            plain.len(),
            won(-1.0)
        )
    })
}

/// Tells how much of its bound HyperSCSI reaches, on shaped links and on the unshaped one.
fn bound(measured: &Measured) -> Vec<String> {
    let told = [
        (true, "On links with a rate limit", "of what its frames leave of the wire"),
        (
            false,
            "On the link without a rate limit",
            "of what bare frames out of the memory of a disk have room for",
        ),
    ];
    let sentence = |(shaped, place, of): (bool, &str, &str)| {
        let is_chosen = |samples: &&CellSamples| {
            is_bulk(&samples.cell) && matches!(samples.cell.link, Link::Shaped(_)) == shaped
        };
        let share = |samples: &CellSamples| {
            Some(100.0 * median(samples, Protocol::HyperScsi, throughput)? / measured.bound(&samples.cell)?)
        };
        let shares = measured.cells.iter().filter(is_chosen).filter_map(share);
        let (least, most) =
            shares.fold((f64::INFINITY, 0.0_f64), |(low, high), share| (low.min(share), high.max(share)));
        (least <= most).then(|| {
            format!(
                "{place}, sequential reads and writes over HyperSCSI reach {least:.1} to {most:.1} % {of}."
            )
        })
    };
    told.into_iter().filter_map(sentence).collect()
}

/// Returns whether a workload consists of long sequential commands and is undisturbed.
const fn is_bulk(cell: &Cell) -> bool {
    cell.disturbance.is_none() && !cell.workload.access.random && cell.workload.block >= 64 << 10
}

/// Tells how HyperSCSI compares with its own encryption and with ATA over Ethernet.
fn beside_others(measured: &Measured) -> Vec<String> {
    let of = |protocol: Protocol| {
        let undisturbed = measured.cells.iter().filter(|samples| samples.cell.disturbance.is_none());
        change_over(undisturbed, (Protocol::HyperScsi, protocol), throughput)
    };
    let told = [Protocol::Encrypted, Protocol::Aoe].map(|protocol| {
        let (change, count) = of(protocol)?;
        let moved = against(&change, "HyperSCSI without encryption");
        let count = counted(count, "workload");
        Some(format!("{} moves {moved} (geometric mean of {count}).", protocol.name()))
    });
    told.into_iter().flatten().collect()
}

/// Compares the processor time.
fn processor_time(measured: &Measured) -> Option<String> {
    let all = || measured.cells.iter().filter(|samples| samples.cell.disturbance.is_none());
    let of = |sample: &Sample| Some(sample.processor);
    let (plain, _) = mean_change(all(), Protocol::Iscsi, of)?;
    let digests = mean_change(all(), Protocol::IscsiDigests, of);
    let digests = digests.map_or_else(String::new, |(change, _)| {
        format!(", and {}", against(&change, "iSCSI with both digests"))
    });
    Some(format!(
        "Processor time of both ends together for each GB: HyperSCSI needs {}{digests}.",
        against(&plain, "iSCSI without digests")
    ))
}

/// Tells how much of its rate each protocol keeps under the worst loss and the most other traffic.
fn disturbed(measured: &Measured) -> Vec<String> {
    let lost = keeps(measured, LOST.1).map(|(percent, [ours, theirs])| {
        format!(
            "If {percent} % of the frames are lost, HyperSCSI keeps {ours:.0} % of its rate, and iSCSI {theirs:.0} %."
        )
    });
    let shared = keeps(measured, SHARED.1).map(|(percent, [ours, theirs])| {
        format!(
            "Beside other traffic of {percent} % of the link, HyperSCSI keeps {ours:.0} % of its rate, and iSCSI \
             {theirs:.0} %."
        )
    });
    lost.into_iter().chain(shared).collect()
}

/// Returns the strongest disturbance of a kind, and the percent of the undisturbed rate that each protocol
/// keeps in the first workload.
fn keeps(measured: &Measured, kind: impl Fn(Disturbance) -> Option<f64>) -> Option<(f64, [f64; 2])> {
    let first = measured.cells.iter().find(|samples| kind(samples.cell.disturbance) == Some(0.0))?;
    let same = measured.cells.iter().filter(|samples| samples.cell.workload == first.cell.workload);
    let strengths = same.filter_map(|samples| Some((kind(samples.cell.disturbance)?, samples)));
    let (strength, worst) = strengths
        .filter(|(strength, samples)| *strength > 0.0 && samples.rounds() > 0)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    let share =
        |protocol| Some(100.0 * median(worst, protocol, throughput)? / median(first, protocol, throughput)?);
    Some((strength, [share(Protocol::HyperScsi)?, share(Protocol::Iscsi)?]))
}

fn sections(measured: &Measured, comparisons: &[Comparison]) -> Vec<Section> {
    let section = |title: &str, text: &str| Section {
        title: title.to_owned(),
        text: vec![text.to_owned()],
        ..Section::default()
    };
    let loss = |cell: &Cell| LOST.1(cell.disturbance);
    let traffic = |cell: &Cell| SHARED.1(cell.disturbance);
    let mut sections = vec![
        Section {
            tables: tables::throughput(measured, comparisons),
            plots: bars(measured),
            ..section("Throughput", THROUGHPUT)
        },
        Section { tables: tables::latency(measured), ..section("Latency", LATENCY) },
        Section { tables: tables::costs(measured), ..section("What a gigabyte takes", COSTS) },
    ];
    for (protocol, text) in [(Protocol::Encrypted, ENCRYPTED), (Protocol::Aoe, AOE)] {
        let beside = tables::beside(measured, protocol);
        if !beside.is_empty() {
            sections.push(Section { tables: beside, ..section(protocol.name(), text) });
        }
    }
    let losses = tables::disturbed(measured, "Throughput with lost frames", "lost", loss);
    if !losses.is_empty() {
        let plots = lines(measured, "Throughput over the loss of frames", "frames lost", loss);
        sections.push(Section { tables: losses, plots, ..section("Loss", LOSS) });
    }
    let beside = tables::disturbed(measured, "Throughput beside other traffic", "other traffic", traffic);
    if !beside.is_empty() {
        let plots = lines(measured, "Throughput over other traffic", "other traffic", traffic);
        sections.push(Section { tables: beside, plots, ..section("Other traffic", TRAFFIC) });
    }
    sections.extend(copies::section(&measured.copies));
    sections.push(Section { tables: tables::bounds(measured), ..section("Calibration", CALIBRATION) });
    sections.push(Section { tables: tables::published(measured), ..section("Published figures", PUBLISHED) });
    sections.extend(measured.sessions.section());
    sections.push(Section { tables: tables::absent(measured), ..section("Not measured", ABSENT) });
    sections
}

/// Returns for each path a bar for each workload and protocol.
fn bars(measured: &Measured) -> Vec<Plot> {
    let mut paths: Vec<Vec<&CellSamples>> = Vec::new();
    for samples in measured.cells.iter().filter(|samples| samples.cell.disturbance.is_none()) {
        match paths
            .last_mut()
            .filter(|path| path.first().is_some_and(|one| one.cell.path() == samples.cell.path()))
        {
            Some(path) => path.push(samples),
            None => paths.push(vec![samples]),
        }
    }
    paths.iter().filter_map(|cells| bars_of(cells)).collect()
}

fn bars_of(cells: &[&CellSamples]) -> Option<Plot> {
    let of = |protocol: Protocol| {
        let groups = cells.iter().map(|samples| samples.values(protocol, throughput)).collect();
        (protocol.name().to_owned(), groups)
    };
    let names = cells.iter().map(|samples| samples.cell.workload.to_string()).collect();
    let x = Axis { label: "workload: access, bytes, depth".to_owned(), names, ..Axis::default() };
    let y = Axis { label: "throughput".to_owned(), unit: "MB/s".to_owned(), ..Axis::default() };
    let caption = format!("Throughput by protocol: {}", cells.first()?.cell.path());
    report_bars(caption, (x, y), Protocol::ALL.map(of))
}

/// Returns a plot of the throughput over the strength of a disturbance.
fn lines(
    measured: &Measured,
    caption: &str,
    label: &str,
    strength: impl Fn(&Cell) -> Option<f64>,
) -> Vec<Plot> {
    let mut series: Vec<Series> = Vec::new();
    for samples in &measured.cells {
        let Some(x) = strength(&samples.cell) else { continue };
        for (protocol, list) in samples.contestants.iter().filter(|(_, list)| !list.is_empty()) {
            let values: Vec<f64> = list.iter().map(|sample| sample.throughput).collect();
            let point = Point { x, y: estimate(&values) };
            let name = format!("{}, {}", protocol.name(), samples.cell.workload);
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => series.push(Series { name, points: vec![point] }),
            }
        }
    }
    if series.is_empty() {
        return Vec::new();
    }
    vec![Plot {
        caption: caption.to_owned(),
        kind: PlotKind::Lines,
        x: Axis { label: label.to_owned(), unit: "%".to_owned(), ..Axis::default() },
        y: Axis { label: "throughput".to_owned(), unit: "MB/s".to_owned(), ..Axis::default() },
        series,
    }]
}

const THROUGHPUT: &str = "A workload is named by its access, the bytes of a command and the queue depth. A command \
     of a stripe is divided among eight LUNs, each with a session of its own, and the depth is that of each LUN. The \
     changes are the mean ratios, over the rounds, from iSCSI to HyperSCSI; positive numbers favour HyperSCSI. A \
     change is called significant if it is so after Holm's correction, at 5 %. HyperSCSI always computes a CRC32C \
     over every frame, as iSCSI does with both digests. On a shaped link, the bound is what frames of HyperSCSI carry at most: \
     MTU less 32 of MTU plus 38 bytes. On an unshaped link, it is what bare frames, different ones out of as much memory \
     as a disk has, have room for.";
const ENCRYPTED: &str = "The same disk by a group with a password: every frame is encrypted and authenticated, and no CRC \
     is computed. The change is that of the throughput from HyperSCSI without encryption. On a shaped link, the longer \
     trailer leaves a little less.";
const AOE: &str = "Debian's vblade serves a disk in memory, with 64 buffers, and a client of this program reads and writes \
     it, which does what Linux's driver does. The change is that of the throughput from HyperSCSI to ATA over Ethernet. \
     Frames have no checksum but that of Ethernet, and a write is acknowledged when vblade has written it to its file.";
const LATENCY: &str = "The latency of a command, from its submission to the arrival of its status, at the initiator. It \
     is known to one part in 64: the upper end of a bucket of a histogram.";
const COSTS: &str = "For each 10⁹ bytes of payload, both ends together. Packets are those that the two virtual \
     interfaces sent: on a link without a rate limit TCP's are up to 64 KiB long, as with an adapter that segments by itself. A \
     virtual interface raises no interrupts, so that there are none to count; packets and voluntary context switches \
     stand in their place. The target may poll for up to 100 µs before it sleeps, the initiator does not.";
const LOSS: &str = "A third host forwards the frames between the two others, and loses each with the same \
     probability, in either direction. The row of 0 % passes the same host. TCP uses CUBIC and selective \
     acknowledgements, the kernel's defaults.";
const TRAFFIC: &str = "Frames of 512 bytes leave the host that sends the data, at a constant rate, through the same \
     queue. The column of other traffic is what it got through.";
const CALIBRATION: &str = "What each link carries without a storage protocol: full Ethernet frames, and TCP streams. \
     The deviations are those from a wire that carries a frame of 1500 bytes in 1538. Beyond 1 % the report warns.";
const PUBLISHED: &str = "Khoo, Wang and Yeo measured HyperSCSI version 1 in the kernel, with real adapters and disks; \
     version 2 shares its ideas and no frame format. Their bound of Fast Ethernet is 1497 of 1538 bytes.";
const ABSENT: &str =
    "The published measurements have these too. They were not measured, which does not mean zero.";

/// Returns what the reader must know to trust the figures.
pub(super) fn caveats(measured: &Measured, load_average: f64) -> Vec<String> {
    let mut caveats = Vec::from_iter(caveats::busy_machine(load_average));
    caveats.extend(FIXED_CAVEATS.map(str::to_owned));
    for bounds in &measured.bounds {
        let deviations = [bounds.tcp.deviation_percent(), bounds.frames.deviation_percent];
        caveats.extend(caveats::link_deviation(&bounds.link.name(), deviations));
    }
    caveats.extend(caveats::connections_lost(measured.connections_lost));
    let rounds = measured.cells.iter().map(CellSamples::rounds).max().unwrap_or(0);
    caveats.extend(caveats::few_rounds(rounds));
    caveats.extend(caveats::debug_build());
    caveats
}

const FIXED_CAVEATS: [&str; 3] = [
    "Both ends ran on this machine and shared its processors. On a link without a rate limit that limits both protocols.",
    "The link is a pair of virtual Ethernet interfaces (veth), shaped by a token bucket. It has no adapter, no switch \
     and no interrupts, and no delay but that of its queue.",
    "The disks are in the target's memory. A stripe of eight adds sessions, not disks that could be slow.",
];
