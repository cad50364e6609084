//! Our target beside each other one: the change of the rate of commands.

use crate::statistics::{Change, Pairing, holm, percent_change};

use super::plan::Workload;
use super::samples::{Measured, Sample, TargetSamples};
use crate::plan::Digests;

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

/// What digests cost a target: the changes from a workload without digests to the same workload with them.
#[derive(Clone, Debug)]
pub(super) struct DigestCost {
    /// The place of the workload with digests in the plan.
    pub(super) workload: usize,
    /// The name of the target.
    pub(super) target: String,
    /// The change of commands per second.
    pub(super) rate: Change,
    /// The change of the target's processor time for each command; a kernel target has none.
    pub(super) processor: Option<Change>,
}

/// Returns what digests cost each target, for each workload with digests that the plan has without them too.
/// The significance of the rates and that of the processor times are each corrected for their number.
pub(super) fn digest_costs(measured: &Measured) -> Vec<DigestCost> {
    let mut list = Vec::new();
    for (workload, twin) in digest_pairs(measured) {
        for target in measured.measured() {
            let change = |of: fn(&Sample) -> Option<f64>| {
                let (base, values) = (target.values(twin, of), target.values(workload, of));
                let both = !base.is_empty() && !values.is_empty();
                both.then(|| percent_change(&base, &values, Pairing::Paired))
            };
            let Some(rate) = change(|sample| Some(sample.iops)) else { continue };
            let processor = change(|sample| sample.target_cpu);
            list.push(DigestCost { workload, target: target.title().to_owned(), rate, processor });
        }
    }
    holm(list.iter_mut().map(|cost| &mut cost.rate));
    holm(list.iter_mut().filter_map(|cost| cost.processor.as_mut()));
    list
}

/// Returns the places of the workloads with digests, each with that of the same workload without.
pub(super) fn digest_pairs(measured: &Measured) -> Vec<(usize, usize)> {
    let workloads = || measured.workloads.iter().enumerate();
    let twin = |with: &Workload| workloads().find(|(_, other)| **other == with.without_digests());
    workloads()
        .filter(|(_, workload)| workload.digests != Digests::None)
        .filter_map(|(at, workload)| Some((at, twin(workload)?.0)))
        .collect()
}

/// Returns the processor time of a command of another target as a multiple of ours, by round: the commands
/// that ours executes in a second of its processor time beside those of the other.
pub(super) fn processor_ratios(ours: &TargetSamples, other: &TargetSamples, workload: usize) -> Vec<f64> {
    let cost = |target: &TargetSamples| target.values(workload, |sample| sample.target_cpu);
    let pairs = cost(ours).into_iter().zip(cost(other)).filter(|(ours, _)| *ours > 0.0);
    pairs.map(|(ours, other)| other / ours).collect()
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
