//! What speaks against the means of a run.

use crate::report::doubts::Doubts;
use crate::targets::Workload;
use crate::targets::comparison::{DigestCost, digest_pairs};
use crate::targets::samples::{Measured, TargetSamples};

/// Returns what speaks against a mean over the workloads of another target, which is the base.
pub(super) fn of_target(measured: &Measured, other: &TargetSamples) -> Doubts {
    let mut doubts = Doubts::default();
    for at in 0..measured.workloads.len() {
        look_at(&mut doubts, measured, other, at);
    }
    doubts
}

/// Returns what speaks against comparing targets with one workload. Digests are more work than none: if they
/// make a target faster, neither of the two workloads can be trusted.
pub(super) fn of_workload(measured: &Measured, costs: &[DigestCost], at: usize) -> Doubts {
    let mut doubts = Doubts::default();
    for other in measured.measured().filter(|target| !target.is_ours()) {
        look_at(&mut doubts, measured, other, at);
    }
    let pairs = digest_pairs(measured);
    let has = |cost: &&DigestCost| {
        pairs.iter().any(|(with, without)| cost.workload == *with && [*with, *without].contains(&at))
    };
    costs.iter().filter(has).for_each(|cost| add_digests(&mut doubts, measured, cost));
    doubts
}

/// Returns what speaks against what digests cost a target. The base is the target without digests.
pub(super) fn of_digests(measured: &Measured, costs: &[DigestCost], target: &TargetSamples) -> Doubts {
    let mut doubts = Doubts::default();
    for (_, without) in digest_pairs(measured) {
        look_at(&mut doubts, measured, target, without);
    }
    let own = costs.iter().filter(|cost| cost.target == target.title());
    own.for_each(|cost| add_digests(&mut doubts, measured, cost));
    doubts
}

/// Returns what speaks against the headlines of the run.
pub(super) fn of_run(measured: &Measured, costs: &[DigestCost]) -> Doubts {
    let mut doubts = Doubts::default();
    for at in 0..measured.workloads.len() {
        for other in measured.measured().filter(|target| !target.is_ours()) {
            look_at(&mut doubts, measured, other, at);
        }
    }
    // The bases of what digests cost ours.
    for target in measured.measured().filter(|target| target.is_ours()) {
        for (_, without) in digest_pairs(measured) {
            look_at(&mut doubts, measured, target, without);
        }
    }
    costs.iter().for_each(|cost| add_digests(&mut doubts, measured, cost));
    doubts
}

fn add_digests(doubts: &mut Doubts, measured: &Measured, cost: &DigestCost) {
    let workload = measured.workloads.get(cost.workload).map_or_else(String::new, Workload::name);
    doubts.add_cost(format!("{workload} than without them ({})", cost.target), cost.rate);
}

fn look_at(doubts: &mut Doubts, measured: &Measured, other: &TargetSamples, at: usize) {
    let rates = other.values(at, |sample| Some(sample.iops));
    let workload = || measured.workloads.get(at).map_or_else(String::new, Workload::name);
    doubts.look_at_base(|| format!("{} with {}", other.title(), workload()), &rates);
}
