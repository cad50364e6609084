//! The answer in sentences.

use super::{digests, doubts, idle_sessions};
use crate::plan::Mix;
use crate::report::number::Short;
use crate::statistics::estimate;
use crate::targets::comparison::{Comparison, DigestCost, ratios};
use crate::targets::samples::{Fate, Measured, TargetSamples};
use crate::text::{counted, joined, percent};

/// The workload by which processor time is told, in bytes and commands: the one that costs most per byte.
const COST_BLOCK: u32 = 4 << 10;
const COST_DEPTH: u32 = 32;

/// Answers the question, in sentences.
pub(super) fn summary(measured: &Measured, list: &[Comparison], costs: &[DigestCost]) -> Vec<String> {
    let names: Vec<String> = measured.measured().map(|target| target.title().to_owned()).collect();
    let doubt = doubts::of_run(measured, costs).sentence(&joined(&names));
    let mut sentences = Vec::from_iter(doubt);
    // Workloads with a base that is not steady tell nothing of who is faster.
    let workloads: Vec<usize> = (0..measured.workloads.len())
        .filter(|at| doubts::of_workload(measured, costs, *at).is_empty())
        .collect();
    let is_steady = |found: &&Comparison| workloads.contains(&found.workload);
    let steady: Vec<Comparison> = list.iter().filter(is_steady).cloned().collect();
    if !steady.is_empty() || list.is_empty() {
        sentences.push(answer(measured, &steady));
    }
    sentences.extend(others_faster(measured, &steady));
    sentences.extend(overall(measured, &steady));
    sentences.extend(processor_time(measured, &workloads));
    sentences.extend(digests::sentence(measured, costs));
    sentences.extend(idle_sessions::sentence(measured));
    sentences.extend(conformance(measured));
    sentences.extend(measured.targets.iter().filter_map(failure));
    sentences.extend(absent(measured));
    sentences
}

fn answer(measured: &Measured, list: &[Comparison]) -> String {
    let names: Vec<String> = measured.measured().map(|target| target.title().to_owned()).collect();
    if names.is_empty() {
        return "The run ended before anything could be compared.".to_owned();
    }
    if list.is_empty() {
        return format!("Only {} could be measured: there is nothing to compare.", joined(&names));
    }
    let workloads: Vec<usize> = (0..measured.workloads.len())
        .filter(|at| list.iter().any(|comparison| comparison.workload == *at))
        .collect();
    let of = |at: usize| list.iter().filter(move |comparison| comparison.workload == at);
    let is_fastest =
        |at: &&usize| of(**at).all(|found| found.change.significant && found.change.percent > 0.0);
    let is_slower =
        |at: &&usize| of(**at).any(|found| found.change.significant && found.change.percent < 0.0);
    let (fastest, slower) =
        (workloads.iter().filter(is_fastest).count(), workloads.iter().filter(is_slower).count());
    let (names, all) = (joined(&names), counted(workloads.len(), "workload"));
    let open = workloads.len() - fastest - slower;
    if open == workloads.len() {
        return format!(
            "This run is too uncertain to tell which of {names} is faster, with any of {all}: measure more rounds, on a \
             machine that does nothing else."
        );
    }
    let open = match open {
        0 => String::new(),
        open => format!(" With {open}, the difference to the fastest other target may be chance."),
    };
    if fastest == workloads.len() {
        return format!("Of {names}, targe is the fastest with all of {all}.");
    }
    format!(
        "Of {names}, targe is the fastest with {fastest} of {all}, and another target is faster with {slower}.{open}"
    )
}

/// Tells where another target is faster than ours.
fn others_faster(measured: &Measured, list: &[Comparison]) -> Vec<String> {
    let mut found: Vec<&Comparison> = list
        .iter()
        .filter(|comparison| comparison.change.significant && comparison.change.percent < 0.0)
        .collect();
    found.sort_by(|a, b| a.change.percent.total_cmp(&b.change.percent));
    let sentence = |comparison: &&Comparison| {
        let workload = measured.workloads.get(comparison.workload)?;
        // From ours to the other one.
        let other = |change: f64| 100.0 * (1.0 / (1.0 + change / 100.0) - 1.0);
        Some(format!(
            "{} is {} % faster than targe with {} (95 % confidence interval: {} to {} %).",
            comparison.other,
            percent(other(comparison.change.percent)),
            workload.name(),
            percent(other(comparison.change.high)),
            percent(other(comparison.change.low))
        ))
    };
    found.iter().filter_map(sentence).collect()
}

/// Tells the mean ratio to each other target.
fn overall(measured: &Measured, list: &[Comparison]) -> Vec<String> {
    let others = measured.measured().filter(|target| !target.is_ours());
    let sentence = |target: &TargetSamples| {
        if !doubts::of_target(measured, target).is_empty() {
            return None;
        }
        let (mean, least, most, count) = ratios(list, target.title())?;
        Some(format!(
            "targe runs {} times as many commands per second as {} (geometric mean of {}; the least is {} times, and the \
             most {} times).",
            Short(mean),
            target.title(),
            counted(count, "workload"),
            Short(least),
            Short(most)
        ))
    };
    others.filter_map(sentence).collect()
}

/// Tells what a command costs each target with one of the steady workloads.
fn processor_time(measured: &Measured, steady: &[usize]) -> Option<String> {
    let is_wanted = |workload: &&crate::targets::Workload| {
        workload.random
            && workload.mix == Mix(100)
            && workload.block == COST_BLOCK
            && workload.depth == COST_DEPTH
    };
    let workloads = || steady.iter().filter_map(|at| Some((*at, measured.workloads.get(*at)?)));
    let (at, workload) =
        workloads().find(|(_, workload)| is_wanted(workload)).or_else(|| workloads().next_back())?;
    let cost = |target: &TargetSamples| {
        let values = target.values(at, |sample| sample.target_cpu);
        let value = estimate(&values).value;
        value.is_finite().then(|| format!("{} µs in {}", Short(value), target.title()))
    };
    let costs: Vec<String> = measured.measured().filter_map(cost).collect();
    (!costs.is_empty()).then(|| {
        format!(
            "Processor time that the target needs for each command, {}: {}.",
            workload.name(),
            joined(&costs)
        )
    })
}

fn conformance(measured: &Measured) -> Option<String> {
    let score = |target: &TargetSamples| {
        let score = target.conformance.as_ref()?.as_ref().ok()?;
        let ran = score.passed + score.failed;
        Some(format!("{} {} of {ran}", target.title(), score.passed))
    };
    let scores: Vec<String> = measured.targets.iter().filter_map(score).collect();
    (!scores.is_empty())
        .then(|| {
            format!(
                "Tests of the iSCSI standards (targe conform) passed, without those for what a target does not offer: \
                 {}.",
                joined(&scores)
            )
        })
}

fn failure(target: &TargetSamples) -> Option<String> {
    let Fate::Failed(why) = &target.fate else { return None };
    Some(format!("{} is not compared to the end: {why}.", target.title()))
}

fn absent(measured: &Measured) -> Option<String> {
    let why = |target: &TargetSamples| match &target.fate {
        Fate::Absent(why) => Some(format!("{} ({why})", target.title())),
        Fate::Complete | Fate::Failed(_) => None,
    };
    let list: Vec<String> = measured.targets.iter().filter_map(why).collect();
    (!list.is_empty()).then(|| format!("Not on this machine, and so not compared: {}.", joined(&list)))
}
