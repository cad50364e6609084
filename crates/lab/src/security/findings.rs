//! The report: what the samples mean.

mod tables;

use super::plan::{Access, SecurityPlan};
use super::protection::Protection;
use super::samples::{Cell, CellSamples, Measured, Sample};
use crate::plan::Link;
use crate::report::caveats;
use crate::report::cells::bars as report_bars;
use crate::report::doubts::{Doubts, steady_groups};
use crate::report::{Axis, Ended, Plot, Report, SCHEMA, Section};
use crate::rounds;
use crate::statistics::{Change, Pairing, estimate, holm, percent_change};
use crate::text::{counted, joined, percent};

/// The change of throughput of a workload from one protection to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    pub(super) cell: Cell,
    pub(super) base: Protection,
    pub(super) protection: Protection,
    pub(super) change: Change,
}

/// The protections that all others are compared with.
pub(super) const BASES: [Protection; 3] = [Protection::Plain, Protection::Tls, Protection::Ipsec];

/// Returns the report without what the caller knows: the times, the machine and the command.
pub(super) fn report(plan: &SecurityPlan, measured: &Measured, ended: &Ended) -> Report {
    let comparisons = comparisons(measured);
    Report {
        schema: SCHEMA,
        experiment: "security".to_owned(),
        title: "What does encryption cost here, and where in the stack is it the cheapest?".to_owned(),
        started: String::new(),
        seconds: 0.0,
        ended: ended.clone(),
        summary: summary(measured),
        caveats: Vec::new(),
        machine: Vec::new(),
        command: String::new(),
        plan: plan.to_toml(),
        sections: sections(measured, &comparisons).into_iter().chain([rounds::section(plan.seed)]).collect(),
        metrics: measured.metrics(),
    }
}

/// Returns the changes of throughput from every base to every other protection, for every workload. Their
/// significance is corrected for their number.
pub(super) fn comparisons(measured: &Measured) -> Vec<Comparison> {
    let mut all = Vec::new();
    for samples in &measured.cells {
        for base in BASES {
            for protection in Protection::ALL.into_iter().filter(|protection| *protection != base) {
                let change = change_of(samples, base, protection, throughput);
                all.extend(change.map(|change| Comparison { cell: samples.cell, base, protection, change }));
            }
        }
    }
    holm(all.iter_mut().map(|comparison| &mut comparison.change));
    all
}

/// Returns the change of a quantity of one workload; none without samples of both.
pub(super) fn change_of(
    samples: &CellSamples,
    base: Protection,
    protection: Protection,
    of: impl Fn(&Sample) -> Option<f64>,
) -> Option<Change> {
    let (base, other) = (samples.values(base, &of), samples.values(protection, &of));
    let complete = !base.is_empty() && base.len() == other.len();
    complete.then(|| percent_change(&base, &other, Pairing::Paired))
}

/// Returns the change of a quantity over some workloads, and their number: each round gives the geometric
/// mean over them.
fn mean_change<'a>(
    cells: impl Iterator<Item = &'a CellSamples>,
    [base, protection]: [Protection; 2],
    of: impl Fn(&Sample) -> Option<f64>,
) -> Option<(Change, usize)> {
    let pairs: Vec<[Vec<f64>; 2]> = cells
        .map(|samples| [samples.values(base, &of), samples.values(protection, &of)])
        .filter(|[base, other]| !base.is_empty() && base.len() == other.len())
        .collect();
    let rounds = pairs.iter().map(|[base, _]| base.len()).min()?;
    let count = f64::from(u32::try_from(pairs.len()).unwrap_or(u32::MAX));
    let mean = |side: usize, round: usize| {
        let logs = pairs.iter().filter_map(|pair| Some(pair.get(side)?.get(round)?.ln()));
        (logs.sum::<f64>() / count).exp()
    };
    let [base, other] = [0, 1].map(|side| (0..rounds).map(|round| mean(side, round)).collect::<Vec<f64>>());
    Some((percent_change(&base, &other, Pairing::Paired), pairs.len()))
}

#[allow(clippy::unnecessary_wraps, reason = "a quantity of samples")]
pub(super) const fn throughput(sample: &Sample) -> Option<f64> {
    Some(sample.throughput)
}

#[allow(clippy::unnecessary_wraps, reason = "a quantity of samples")]
const fn processor(sample: &Sample) -> Option<f64> {
    Some(sample.processor())
}

/// Answers the question, in sentences: what each protection costs iSCSI, and which one to use.
fn summary(measured: &Measured) -> Vec<String> {
    let links = links(measured);
    let groups =
        [Kind::Iscsi, Kind::Socket].into_iter().flat_map(|kind| links.iter().map(move |link| (kind, *link)));
    let (groups, withheld) = steady_groups(groups, |(kind, link)| {
        (format!("{} on {}", kind.name(), place(*link)), doubts(measured, *kind, *link))
    });
    let is_steady = |samples: &&CellSamples| {
        let Cell { access, link, .. } = samples.cell;
        groups.iter().any(|(kind, of)| kind.has(access) && *of == link)
    };
    // Whatever follows compares the groups that headlines may use.
    let cells = measured.cells.iter().filter(is_steady).cloned().collect();
    let steady = Measured { cells, ..measured.clone() };
    let mut sentences: Vec<String> =
        groups.iter().filter_map(|(kind, link)| costs(&steady, *kind, *link)).collect();
    if sentences.is_empty() && withheld.is_empty() {
        let text = if measured.cells.iter().any(|cell| cell.rounds() > 0) {
            "Nothing could be compared: the plan needs plain and another protection."
        } else {
            "The run ended before anything could be compared."
        };
        return vec![text.to_owned()];
    }
    // A doubt stands where the answer would.
    let answer = advice(&steady, &links, &groups);
    sentences.splice(0..0, withheld.into_iter().chain(answer));
    sentences.extend(latency(&steady));
    if !measured.esp.is_empty() {
        sentences.push(format!("IPsec is {}.", measured.esp));
    }
    sentences.extend(absent(measured));
    sentences
}

/// iSCSI, or the socket without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Iscsi,
    Socket,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Iscsi => "iSCSI",
            Self::Socket => "a simple socket",
        }
    }

    fn has(self, access: Access) -> bool {
        access.is_iscsi() == (self == Self::Iscsi)
    }
}

fn links(measured: &Measured) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    for samples in &measured.cells {
        if !links.contains(&samples.cell.link) {
            links.push(samples.cell.link);
        }
    }
    links
}

fn on(measured: &Measured, kind: Kind, link: Link) -> impl Iterator<Item = &CellSamples> + Clone {
    measured.cells.iter().filter(move |samples| kind.has(samples.cell.access) && samples.cell.link == link)
}

/// Says what to use: the advisable protection with the highest throughput of iSCSI, on the link where that
/// shows most: the unshaped one if there is one. None if that one was not steady.
fn advice(measured: &Measured, links: &[Link], steady: &[(Kind, Link)]) -> Option<String> {
    let link = links.iter().find(|link| **link == Link::Unshaped).or_else(|| links.last())?;
    for kind in [Kind::Iscsi, Kind::Socket] {
        if !steady.contains(&(kind, *link)) {
            return None;
        }
        let change = |protection| {
            let found = mean_change(on(measured, kind, *link), [Protection::Plain, protection], throughput);
            found.map(|(change, _)| (protection, change))
        };
        let candidates = Protection::ALL.into_iter().filter(|protection| protection.is_advisable());
        let mut ranked: Vec<(Protection, Change)> = candidates.filter_map(change).collect();
        ranked.sort_by(|(_, a), (_, b)| b.percent.total_cmp(&a.percent));
        let Some((best, change)) = ranked.first() else { continue };
        let start = format!("To encrypt {} here, use {}: ", kind.name(), best.title());
        let rank = if ranked.len() == 1 {
            "it is the only one that could be measured"
        } else {
            "it is the fastest of those that could be measured"
        };
        let against_plain = format!("{rank}, and {}.", against_plain(change));
        let next = ranked.get(1).and_then(|(next, _)| {
            let (change, _) = mean_change(on(measured, kind, *link), [*next, *best], throughput)?;
            let is_open = !change.significant;
            is_open.then(|| format!(" {} is as fast within the error of measurement.", next.title()))
        });
        return Some(start + &against_plain + &next.unwrap_or_default());
    }
    None
}

/// Returns what speaks against a mean over the workloads on a link: every protection does more work than
/// plain.
fn doubts(measured: &Measured, kind: Kind, link: Link) -> Doubts {
    let mut doubts = Doubts::default();
    let protections = || Protection::ALL.into_iter().filter(|protection| *protection != Protection::Plain);
    for samples in on(measured, kind, link) {
        let workload = samples.cell.workload();
        let rounds = samples.values(Protection::Plain, throughput);
        doubts.look_at_base(|| format!("plain with {workload}"), &rounds);
        for protection in protections() {
            if let Some(change) = change_of(samples, Protection::Plain, protection, throughput) {
                doubts.add_cost(format!("{} than plain with {workload}", protection.title()), change);
            }
        }
    }
    for protection in protections() {
        let found = mean_change(on(measured, kind, link), [Protection::Plain, protection], throughput);
        if let Some((change, count)) = found.filter(|(_, count)| *count > 1) {
            let mean =
                format!("{} than plain in the mean of {}", protection.title(), counted(count, "workload"));
            doubts.add_cost(mean, change);
        }
    }
    doubts
}

fn place(link: Link) -> String {
    match link {
        Link::Shaped(_) => format!("a link of {}", link.name()),
        Link::Unshaped | Link::AsItIs => "an unshaped link".to_owned(),
    }
}

/// Tells what each protection costs on a link.
fn costs(measured: &Measured, kind: Kind, link: Link) -> Option<String> {
    let mut parts = Vec::new();
    let mut count = 0;
    for protection in Protection::ALL.into_iter().filter(|protection| *protection != Protection::Plain) {
        let pair = [Protection::Plain, protection];
        let Some((moved, cells)) = mean_change(on(measured, kind, link), pair, throughput) else { continue };
        count = cells;
        let spent = mean_change(on(measured, kind, link), pair, processor);
        let spent = spent.map_or_else(String::new, |(change, _)| {
            format!(" at {} times the processor time", times(change.percent))
        });
        parts.push(format!("{} {}{spent}", protection.title(), signed(&moved)));
    }
    let place = match link {
        Link::Shaped(_) => format!("On a link of {}", link.name()),
        Link::Unshaped | Link::AsItIs => "On an unshaped link, where the processors are the limit".to_owned(),
    };
    (!parts.is_empty()).then(|| {
        format!(
            "{place}, protections change the throughput of {} by: {} (mean of {}).",
            kind.name(),
            parts.join("; "),
            counted(count, "workload")
        )
    })
}

/// Writes a change with its interval: `-12.3 % (95 % CI -13.0 to -11.5 %)`.
fn signed(change: &Change) -> String {
    if change.low.is_finite() && change.high.is_finite() {
        format!("{:+.1} % (95 % CI {:+.1} to {:+.1} %)", change.percent, change.low, change.high)
    } else {
        format!("{:+.1} %", change.percent)
    }
}

/// Writes a change of percent as a factor: `1.6`.
fn times(percent: f64) -> String {
    let factor = 1.0 + percent / 100.0;
    if factor >= 10.0 { format!("{factor:.0}") } else { format!("{factor:.2}") }
}

/// Tells what a protection moves, compared with plain.
fn against_plain(change: &Change) -> String {
    let Change { low, high, .. } = *change;
    if low.is_finite() && !change.significant && high - low > UNCERTAIN_FROM {
        return format!(
            "how it compares with plain is too uncertain (95 % CI {low:+.0} to {high:+.0} %): run it again with more \
             rounds, on a machine that does nothing else"
        );
    }
    if low.is_finite() && !change.significant {
        return "moves as much as plain within the error of measurement".to_owned();
    }
    let word = if change.percent < 0.0 { "less" } else { "more" };
    format!("moves {} % {word} than plain", percent(change.percent.abs()))
}

/// From this width in percent on, an interval that includes zero says nothing.
const UNCERTAIN_FROM: f64 = 20.0;

/// Tells the median latencies of the shortest iSCSI reads, one at a time.
fn latency(measured: &Measured) -> Option<String> {
    let shortest = measured
        .cells
        .iter()
        .filter(|samples| samples.cell.depth == 1 && samples.rounds() > 0)
        .min_by_key(|samples| (samples.cell.access != Access::Read, samples.cell.block))?;
    let one = |protection: Protection| {
        let value = estimate(&shortest.values(protection, |sample| sample.p50)).value;
        value.is_finite().then(|| format!("{} {value:.0} µs", protection.title()))
    };
    let all: Vec<String> = Protection::ALL.into_iter().filter_map(one).collect();
    (!all.is_empty()).then(|| format!("The median latency ({}): {}.", shortest.cell.workload(), joined(&all)))
}

fn absent(measured: &Measured) -> Option<String> {
    let names: Vec<String> = measured.absent.iter().map(|row| row.protection.title().to_owned()).collect();
    (!names.is_empty()).then(|| format!("Not measured here: {}; the report says why.", joined(&names)))
}

fn sections(measured: &Measured, comparisons: &[Comparison]) -> Vec<Section> {
    let section = |title: &str, text: &str| Section {
        title: title.to_owned(),
        text: vec![text.to_owned()],
        ..Section::default()
    };
    let mut sections = vec![
        Section {
            tables: tables::throughput(measured),
            plots: bars(measured),
            ..section("Throughput", THROUGHPUT)
        },
        Section { tables: tables::ratios(measured, comparisons), ..section("Ratios", RATIOS) },
        Section { tables: tables::latency(measured), ..section("Latency", LATENCY) },
        Section { tables: tables::processor_time(measured), ..section("Processor time", PROCESSOR) },
        Section { tables: tables::links(measured), ..section("Calibration", CALIBRATION) },
        Section { tables: tables::published(measured), ..section("Published figures", PUBLISHED) },
    ];
    sections.extend(measured.sessions.section());
    if !measured.absent.is_empty() {
        sections.push(Section { tables: tables::absent(measured), ..section("Not measured", ABSENT) });
    }
    sections
}

/// Returns for each path and access a group of bars for each block length and depth.
fn bars(measured: &Measured) -> Vec<Plot> {
    let mut groups: Vec<Vec<&CellSamples>> = Vec::new();
    for samples in &measured.cells {
        let is_like = |group: &&mut Vec<&CellSamples>| {
            group.first().is_some_and(|first| {
                first.cell.path() == samples.cell.path() && first.cell.access == samples.cell.access
            })
        };
        match groups.last_mut().filter(is_like) {
            Some(group) => group.push(samples),
            None => groups.push(vec![samples]),
        }
    }
    groups.iter().filter_map(|cells| bars_of(cells)).collect()
}

fn bars_of(cells: &[&CellSamples]) -> Option<Plot> {
    let of = |protection: Protection| {
        let groups = cells.iter().map(|samples| samples.values(protection, throughput)).collect();
        (protection.title().to_owned(), groups)
    };
    let first = cells.first()?.cell;
    let names = cells.iter().map(|samples| samples.cell.workload()).collect();
    let x = Axis { label: "workload".to_owned(), names, ..Axis::default() };
    let y = Axis { label: "throughput".to_owned(), unit: "MB/s".to_owned(), ..Axis::default() };
    let caption = format!("Throughput by protection: {}, {}", first.path(), first.access);
    report_bars(caption, (x, y), Protection::ALL.map(of))
}

const THROUGHPUT: &str = "A workload is named by what is carried, the bytes of a command or of an answer, and how many \
     are under way. Socket means blocks that answer requests of 48 bytes, without a storage protocol; read and write \
     are sequential iSCSI commands to a RAM disk. The AEAD rows of the socket are records of up to 64 KiB with \
     AES-256-GCM, made by the code that protects the protocols of targe; those of read and write are iSCSI sessions with \
     the same cipher as an AEAD digest.";
const RATIOS: &str = "The mean ratios of throughput within the rounds, in percent more or less than the protection \
     that the caption names. The last column names what is significant after Holm's correction, at 5 %.";
const LATENCY: &str = "From the submission of a command, or from the request, to the end of its answer, with one under \
     way. It is known to one part in 64: the upper end of a bucket of a histogram.";
const PROCESSOR: &str = "For each GiB of payload: both ends together with the threads of TLS and the daemons of IPsec, \
     warm-up and login included. The kernel's own threads, which can deliver packets too, belong to no program and are \
     not counted. The kernel tells the parts of other programs than this one in hundredths of a second.";
const CALIBRATION: &str = "Bare TCP streams through each link, without protection. Beyond 1 % of deviation the report \
     warns.";
const PUBLISHED: &str = "Kamisaka, Yamaguchi and Oguchi compared encryption above iSCSI with IPsec, 3DES in both, on \
     real adapters. Their iSCSI data was encrypted on the disk beforehand, and only decrypted by the application. They \
     found the processor mostly in system time under IPsec, and in user time under encryption above it. Here the data is \
     encrypted and decrypted as it travels, and the higher layer is TLS 1.3 or AEAD records with AES-256-GCM.";
const ABSENT: &str = "The plan names these too. They were not measured, which does not mean zero.";

/// Returns what the reader must know to trust the figures.
pub(super) fn caveats(measured: &Measured, load_average: f64) -> Vec<String> {
    let mut caveats = Vec::from_iter(caveats::busy_machine(load_average));
    caveats.extend(FIXED_CAVEATS.map(str::to_owned));
    if measured.esp.starts_with("strongSwan") {
        caveats.push(USER_SPACE_ESP.to_owned());
    }
    for (link, found) in &measured.calibrations {
        caveats.extend(caveats::link_deviation(&link.name(), [found.deviation_percent()]));
    }
    caveats.extend(caveats::connections_lost(measured.connections_lost));
    let rounds = measured.cells.iter().map(CellSamples::rounds).max().unwrap_or(0);
    caveats.extend(caveats::few_rounds(rounds));
    caveats.extend(caveats::debug_build());
    caveats
}

const FIXED_CAVEATS: [&str; 3] = [
    "Both ends ran on this machine and shared its processors, which also encrypted for both.",
    "The link is a pair of virtual Ethernet interfaces (veth), shaped by a token bucket where a rate is given. Without \
     a shaper TCP's segments of up to 64 KiB cross it in one piece, which favours plain and TLS: an adapter that \
     segments by itself does the same.",
    "The disk is in the target's memory. IPsec with 3DES is there for comparison with the published figures: do not use \
     it.",
];
const USER_SPACE_ESP: &str = "ESP in user space handles every packet of at most 1400 bytes by itself, through a TUN \
     interface: its figures are mostly the price of packets and not of ciphers. The kernel's ESP is faster.";
