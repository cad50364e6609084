//! What the copies of files mean.

use crate::hyperscsi::carrier::Carrier;
use crate::hyperscsi::copies::{Copies, CopySample, CopySamples, Direction};
use crate::report::cells::{bars, change_cell, columns, estimated};
use crate::report::doubts::{Doubts, steady_groups};
use crate::report::{Axis, Cell, Plot, Section, Table};
use crate::statistics::{Change, Pairing, estimate, holm, percent_change};
use crate::text::{change, counted, joined};

/// The percent of the local disk's speed that copies by cp(1) reached (Khoo, Wang, Yeo).
pub(super) const PUBLISHED: [(Carrier, f64); 3] =
    [(Carrier::HyperScsi, 99.81), (Carrier::Iscsi, 60.40), (Carrier::Nfs, 49.25)];

/// The change of the throughput of a copy from one carrier to another, by the rounds.
#[derive(Clone, Debug)]
pub(in crate::hyperscsi) struct Comparison {
    /// The place of the set of files among the copies.
    at: usize,
    direction: Direction,
    base: Carrier,
    other: Carrier,
    pub(in crate::hyperscsi) change: Change,
}

/// The carriers that are compared.
const COMPARED: [(Carrier, Carrier); 3] = [
    (Carrier::Iscsi, Carrier::HyperScsi),
    (Carrier::Nfs, Carrier::HyperScsi),
    (Carrier::Nfs, Carrier::Iscsi),
];

/// Returns the changes of every set of files in both directions. Medians and their intervals cannot tell what
/// the rounds can: a round that is slow as a whole cancels out. The significance is corrected for the number
/// of comparisons.
pub(in crate::hyperscsi) fn comparisons(copies: &Copies) -> Vec<Comparison> {
    let mut all = Vec::new();
    for (at, samples) in copies.cells.iter().enumerate() {
        for (direction, (base, other)) in
            Direction::BOTH.into_iter().flat_map(|direction| COMPARED.map(|pair| (direction, pair)))
        {
            let rates = |carrier| samples.values(carrier, direction, |sample| Some(sample.throughput));
            // A carrier that failed has fewer rounds; the later ones of the other are left out.
            let (before, after) = (rates(base), rates(other));
            if !before.is_empty() && !after.is_empty() {
                let change = percent_change(&before, &after, Pairing::Paired);
                all.push(Comparison { at, direction, base, other, change });
            }
        }
    }
    holm(all.iter_mut().map(|found| &mut found.change));
    all
}

/// Returns the section; none without copies.
pub(super) fn section(copies: &Copies) -> Option<Section> {
    let found = comparisons(copies);
    let changes = (!found.is_empty()).then(|| changes(copies, &found));
    copies.has_samples().then(|| Section {
        title: "Copies of files".to_owned(),
        text: vec![TEXT.to_owned(), format!("LUNs became disks by {}.", copies.device)],
        tables: copies
            .cells
            .iter()
            .flat_map(|samples| [throughput(samples), costs(samples)])
            .chain(changes)
            .collect(),
        plots: shares(copies).into_iter().collect(),
    })
}

/// Tells how much of what the disk and the link allow the copies of the longest files reach, for each path.
pub(super) fn summary(copies: &Copies) -> Vec<String> {
    let all = copies.cells.iter().enumerate();
    let (steady, mut told) =
        steady_groups(all, |(_, samples)| (format!("copies of {}", named(samples)), doubts(samples)));
    let is_steady = |found: &Comparison| steady.iter().any(|(at, _)| *at == found.at);
    let found: Vec<Comparison> = comparisons(copies).into_iter().filter(is_steady).collect();
    told.extend(findings(copies, &found));
    for (_, samples) in steady {
        let longest = copies
            .cells
            .iter()
            .filter(|other| other.cell.link_plan() == samples.cell.link_plan())
            .max_by_key(|other| other.cell.files.len);
        if longest.is_none_or(|longest| longest.cell != samples.cell) {
            continue;
        }
        let shares = |direction| {
            let share = |carrier: Carrier| {
                let values = samples.of_slower(carrier, direction);
                (!values.is_empty())
                    .then(|| format!("{:.0} % over {}", estimate(&values).value, carrier.name()))
            };
            let shares: Vec<String> = Carrier::REMOTE.into_iter().filter_map(share).collect();
            (!shares.is_empty()).then(|| joined(&shares))
        };
        let (Some(to), Some(from)) = (shares(Direction::To), shares(Direction::From)) else { continue };
        told.push(format!(
            "Copies of {} to a file system ({}) reach {to} of what the slower of the local disk and the link allows, \
             and copies from it {from}.",
            described(samples),
            samples.cell.path()
        ));
    }
    told
}

/// Returns what speaks against headlines of a set of files. The bases are what the slower of the local disk
/// and the link allows, and iSCSI. A copy over a network does more than what they allow: it passes both.
fn doubts(samples: &CopySamples) -> Doubts {
    let mut doubts = Doubts::default();
    for direction in Direction::BOTH {
        let (copy, allowed) =
            (format!("{} {}", named(samples), direction.name()), samples.allowed(direction));
        let rates = |carrier| samples.values(carrier, direction, |sample| Some(sample.throughput));
        doubts.look_at_base(|| format!("what the disk and the link allow ({copy})"), &allowed);
        doubts.look_at_base(|| format!("{} ({copy})", Carrier::Iscsi.name()), &rates(Carrier::Iscsi));
        for carrier in Carrier::REMOTE {
            let remote = rates(carrier);
            if !allowed.is_empty() && !remote.is_empty() {
                let change = percent_change(&allowed, &remote, Pairing::Paired);
                doubts.add_cost(format!("{} than the disk and the link ({copy})", carrier.name()), change);
            }
        }
    }
    doubts
}

/// Tells what the rounds show of HyperSCSI and iSCSI. The comparisons are those that headlines may use.
fn findings(copies: &Copies, found: &[Comparison]) -> Option<String> {
    let of_iscsi: Vec<&Comparison> =
        found.iter().filter(|found| (found.base, found.other) == COMPARED[0]).collect();
    let described = |found: &&Comparison| {
        let samples = copies.cells.get(found.at)?;
        Some(format!("{} {} {}", named(samples), found.direction.name(), change(&found.change)))
    };
    let cases = counted(of_iscsi.len(), "case");
    let (shown, open): (Vec<&Comparison>, Vec<&Comparison>) =
        of_iscsi.into_iter().partition(|found| found.change.significant);
    let shown: Vec<String> = shown.iter().filter_map(described).collect();
    let widest = open.iter().filter(|found| found.change.low.is_finite() && found.change.high.is_finite());
    let widest = widest.max_by(|a, b| width(a).total_cmp(&width(b))).and_then(described);
    let open = (!open.is_empty()).then(|| {
        let widest =
            widest.map_or_else(String::new, |widest| format!("; the widest interval is that of {widest}"));
        format!(
            "in {} of {cases} the difference may be chance, which does not show that there is none{widest}",
            open.len()
        )
    });
    let shown = (!shown.is_empty()).then(|| format!("it changes by {}", joined(&shown)));
    let parts: Vec<String> = shown.into_iter().chain(open).collect();
    (!parts.is_empty()).then(|| {
        format!(
            "The throughput of copies over HyperSCSI, against iSCSI in the same rounds (Holm's correction): {}.",
            parts.join("; ")
        )
    })
}

fn width(found: &Comparison) -> f64 {
    found.change.high - found.change.low
}

/// Returns the table with the changes within the rounds.
fn changes(copies: &Copies, found: &[Comparison]) -> Table {
    let titles =
        [("files", ""), ("from", ""), ("to", ""), ("change of throughput", "%"), ("significant", "")];
    let row = |one: &Comparison| {
        let samples = copies.cells.get(one.at)?;
        let files = format!("{} {}", named(samples), one.direction.name());
        let significant = if one.change.significant { "yes" } else { "no" };
        let [files, base, other, significant] =
            [files.as_str(), one.base.name(), one.other.name(), significant]
                .map(|text| Cell::Text(text.to_owned()));
        Some(vec![files, base, other, change_cell(Some(&one.change)), significant])
    };
    Table {
        caption: "Changes of the throughput of copies, by the ratios within the rounds".to_owned(),
        columns: columns(&titles),
        rows: found.iter().filter_map(row).collect(),
    }
}

/// Names a set of files with its path.
fn named(samples: &CopySamples) -> String {
    format!("{} ({})", described(samples), samples.cell.path())
}

/// Returns the rows for the table of published figures: what, the unit, and the share over HyperSCSI, iSCSI
/// and NFS.
pub(super) fn published_rows(copies: &Copies) -> Vec<(String, [Cell; 3])> {
    let mut rows = Vec::new();
    for samples in &copies.cells {
        for direction in Direction::BOTH {
            let row = |what: &str, of: &dyn Fn(Carrier) -> Vec<f64>| {
                let what =
                    format!("{what}: {} {}, {}", described(samples), direction.name(), samples.cell.path());
                (what, Carrier::REMOTE.map(|carrier| estimated(&of(carrier))))
            };
            if Carrier::REMOTE.iter().any(|carrier| !samples.of_local(*carrier, direction).is_empty()) {
                rows.push(row("share of the local disk's speed", &|carrier| {
                    samples.of_local(carrier, direction)
                }));
                rows.push(row("share of the slower of local disk and link", &|carrier| {
                    samples.of_slower(carrier, direction)
                }));
            }
        }
    }
    rows
}

/// Returns the table with the throughput of every carrier.
fn throughput(samples: &CopySamples) -> Table {
    let titles = [
        ("by", ""),
        ("to the disk", "MB/s"),
        ("of the local disk", "%"),
        ("of the slower", "%"),
        ("from the disk", "MB/s"),
        ("of the local disk", "%"),
        ("of the slower", "%"),
    ];
    let row = |carrier: Carrier| {
        let mut row = vec![Cell::Text(carrier.name().to_owned())];
        for direction in Direction::BOTH {
            row.push(estimated(&samples.values(carrier, direction, |sample| Some(sample.throughput))));
            row.push(estimated(&samples.of_local(carrier, direction)));
            row.push(estimated(&samples.of_slower(carrier, direction)));
        }
        row
    };
    Table {
        caption: format!("Copies of {}: {}", described(samples), samples.cell.path()),
        columns: columns(&titles),
        rows: Carrier::ALL.map(row).into(),
    }
}

/// Returns the table with what a GB takes.
fn costs(samples: &CopySamples) -> Table {
    let titles = [
        ("by", ""),
        ("processor, to", "s"),
        ("processor, from", "s"),
        ("packets, to", ""),
        ("packets, from", ""),
        ("system calls, to", ""),
        ("system calls, from", ""),
    ];
    let of: [fn(&CopySample) -> Option<f64>; 3] =
        [|sample| Some(sample.processor), |sample| sample.packets, |sample| sample.system_calls];
    let row = |carrier: Carrier| {
        let name = Cell::Text(carrier.name().to_owned());
        let cells = of.iter().flat_map(|of| {
            Direction::BOTH.map(|direction| estimated(&samples.values(carrier, direction, of)))
        });
        std::iter::once(name).chain(cells).collect()
    };
    Table {
        caption: format!("For each GB of {}: {}", described(samples), samples.cell.path()),
        columns: columns(&titles),
        rows: Carrier::ALL.map(row).into(),
    }
}

/// Returns the plot of the shares beside the published ones.
fn shares(copies: &Copies) -> Option<Plot> {
    let mut names = vec!["published, cp".to_owned()];
    let groups: Vec<(&CopySamples, Direction)> = copies
        .cells
        .iter()
        .flat_map(|samples| Direction::BOTH.map(|direction| (samples, direction)))
        .collect();
    names.extend(groups.iter().map(|(samples, direction)| {
        let way = if *direction == Direction::To { "to" } else { "from" };
        format!("{way}, {}, MTU {}", samples.cell.files, samples.cell.mtu)
    }));
    let series = PUBLISHED.map(|(carrier, published)| {
        let ours = groups.iter().map(|(samples, direction)| samples.of_slower(carrier, *direction));
        (carrier.name().to_owned(), std::iter::once(vec![published]).chain(ours).collect())
    });
    let x = Axis { label: "direction, files, MTU".to_owned(), names, ..Axis::default() };
    let y = Axis { label: "share".to_owned(), unit: "%".to_owned(), ..Axis::default() };
    let caption =
        "Copies: share of what the slower of the local disk and the link allows, beside the published ones";
    bars(caption.to_owned(), (x, y), series)
}

/// Writes a set of files as `4 files of 16M`.
fn described(samples: &CopySamples) -> String {
    let words = samples.cell.files.to_string();
    words.split_once(' ').map_or_else(|| words.clone(), |(count, len)| format!("{count} files of {len}"))
}

const TEXT: &str = "Files are copied from memory to a file system (ext4) and back, as cp(1) does. A copy to it ends when \
     everything is on the disk (syncfs, over NFS the COMMIT of each file); before a copy from it, the page cache of the \
     machine with the disk is empty. Each disk is a file in memory: that of the local disk with a loop device, those of \
     HyperSCSI and iSCSI as LUNs of one target. The NFS server is NFS-Ganesha with the same file system on such a disk, and \
     nfs-cp is its client, which has one read or write of up to 1 MiB under way; files below 1 MiB are not copied by it, \
     since it connects and mounts for each. The published shares are those of a disk that was slower than the link. Here \
     the disk is memory and faster, so that there are two shares: of the local disk, and of the slower of the local \
     disk and the link, which is what full Ethernet frames carry. The changes are the mean ratios within the rounds, \
     significant after Holm's correction at 5 %; medians whose intervals overlap can differ all the same. Processor time and system calls are those of all \
     processes that take part; the threads of the kernel, such as those of a loop device, are no part of them.";
