//! Our target beside each other one: the change of the rate of commands.

use crate::statistics::{Change, Pairing, holm, percent_change};

use super::samples::{Measured, TargetSamples};

/// The change from another target to ours with one workload.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    /// The place of the workload in the plan.
    pub(super) workload: usize,
    /// The name of the other target.
    pub(super) other: String,
    /// The change of commands per second: positive if ours is faster.
    pub(super) change: Change,
}

/// Returns our target beside each other one with each workload. The significance is corrected for the number
/// of comparisons.
pub(super) fn comparisons(measured: &Measured) -> Vec<Comparison> {
    let Some(ours) = measured.ours() else { return Vec::new() };
    let mut list = Vec::new();
    for workload in 0..measured.workloads.len() {
        for other in measured.measured().filter(|target| !target.is_ours()) {
            let (base, values) = (rates(other, workload), rates(ours, workload));
            if !base.is_empty() && !values.is_empty() {
                // A target that failed has fewer rounds; the later ones of ours are left out.
                let change = percent_change(&base, &values, Pairing::Paired);
                list.push(Comparison { workload, other: other.title().to_owned(), change });
            }
        }
    }
    holm(list.iter_mut().map(|comparison| &mut comparison.change));
    list
}

fn rates(target: &TargetSamples, workload: usize) -> Vec<f64> {
    target.values(workload, |sample| Some(sample.iops))
}

/// Returns the geometric mean, the least and the largest ratio of our rate to another target's, and the count
/// of workloads.
pub(super) fn ratios(list: &[Comparison], other: &str) -> Option<(f64, f64, f64, usize)> {
    let ratios: Vec<f64> = list
        .iter()
        .filter(|comparison| comparison.other == other && comparison.change.percent.is_finite())
        .map(|comparison| 1.0 + comparison.change.percent / 100.0)
        .collect();
    let count = f64::from(u32::try_from(ratios.len()).ok()?);
    let least = ratios.iter().copied().reduce(f64::min)?;
    let most = ratios.iter().copied().reduce(f64::max)?;
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / count).exp();
    Some((mean, least, most, ratios.len()))
}
