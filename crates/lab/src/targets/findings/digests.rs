//! What digests cost each target.

use super::doubts;
use crate::plan::Digests;
use crate::report::cells::{NOT_MEASURED, change_cell};
use crate::report::{Cell, Column, Table};
use crate::targets::comparison::{DigestCost, digest_pairs};
use crate::targets::samples::{Measured, TargetSamples};
use crate::text::{counted, joined, percent};

/// Returns the changes of the rate and of the processor time; no table if the plan has no pair of workloads.
pub(super) fn tables(measured: &Measured, costs: &[DigestCost]) -> Vec<Table> {
    let pairs = digest_pairs(measured);
    if pairs.is_empty() {
        return Vec::new();
    }
    let mut columns = vec![Column { title: "workload".to_owned(), unit: String::new() }];
    for target in measured.measured() {
        let titles = [target.title().to_owned(), format!("{}, processor time", target.title())];
        columns.extend(titles.map(|title| Column { title, unit: "%".to_owned() }));
    }
    let cells = |target: &TargetSamples, at: usize, digests: Digests| {
        let found = costs.iter().find(|cost| cost.workload == at && cost.target == target.title());
        match (found, target.refusal(digests)) {
            (None, Some(why)) => [(); 2].map(|()| Cell::Absent(format!("{NOT_MEASURED}: {why}"))),
            (found, _) => [
                change_cell(found.map(|cost| &cost.rate)),
                change_cell(found.and_then(|cost| cost.processor.as_ref())),
            ],
        }
    };
    let row = |at: usize| {
        let workload = measured.workloads.get(at)?;
        let cells = measured.measured().flat_map(|target| cells(target, at, workload.digests));
        Some(std::iter::once(Cell::Text(workload.name())).chain(cells).collect())
    };
    let rows = pairs.iter().filter_map(|(at, _)| row(*at)).collect();
    let caption = "Change of the rate of commands, and of the target's processor time for each, by digests";
    vec![Table { caption: caption.to_owned(), columns, rows }]
}

/// Tells what both digests cost each target that was steady.
pub(super) fn sentence(measured: &Measured, costs: &[DigestCost]) -> Option<String> {
    let of = |target: &TargetSamples| {
        if !doubts::of_digests(measured, costs, target).is_empty() {
            return None;
        }
        let costs = costs.iter().filter(|cost| {
            let digests = measured.workloads.get(cost.workload).map(|workload| workload.digests);
            cost.target == target.title() && digests == Some(Digests::Both) && cost.rate.percent.is_finite()
        });
        let ratios: Vec<f64> = costs.map(|cost| 1.0 + cost.rate.percent / 100.0).collect();
        let count = f64::from(u32::try_from(ratios.len()).ok().filter(|count| *count > 0)?);
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / count).exp();
        let most = ratios.iter().copied().reduce(f64::min)?;
        let text = format!("{} {} % (at most {} %)", target.title(), loss(mean), loss(most));
        Some((text, ratios.len()))
    };
    let found: Vec<(String, usize)> = measured.measured().filter_map(of).collect();
    let count = found.iter().map(|(_, count)| *count).max()?;
    let texts: Vec<String> = found.into_iter().map(|(text, _)| text).collect();
    Some(format!(
        "Both digests take this much of the rate of commands: {} (geometric mean of {}).",
        joined(&texts),
        counted(count, "workload")
    ))
}

/// Formats a ratio of rates as what is lost, in percent.
fn loss(ratio: f64) -> String {
    percent(100.0 * (1.0 - ratio))
}
