//! What each setting of the digests changes, by workload and by link.

use super::samples::{Cell, CellSamples, Measured, Sample};
use crate::bed::Calibration;
use crate::plan::Digests;
use crate::statistics::{Change, Pairing, Resolution, Series, holm, percent_change};

/// The change of throughput of a workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) cell: Cell,
    pub(super) digests: Digests,
    pub(super) change: Change,
}

/// Returns the changes of throughput against no digest, for every workload at a load of 100 % and every
/// setting. Their significance is corrected for their number.
pub(super) fn throughput_costs(measured: &Measured) -> Vec<Cost> {
    let mut costs = Vec::new();
    for samples in measured.full_load() {
        for digests in [Digests::Header, Digests::Data, Digests::Both] {
            let change = change_of(samples, digests, RATE);
            costs.extend(change.map(|change| Cost { cell: samples.cell, digests, change }));
        }
    }
    holm(costs.iter_mut().map(|cost| &mut cost.change));
    costs
}

/// Returns the change of a quantity of one workload against no digest; none without samples of both.
pub(super) fn change_of(
    samples: &CellSamples,
    digests: Digests,
    (of, resolution): Quantity,
) -> Option<Change> {
    let [base, other] = [Digests::None, digests].map(|setting| samples.values(setting, of));
    // A percentile that some rounds lack would pair different rounds.
    let complete = !base.is_empty() && [base.len(), other.len()] == [samples.rounds(); 2];
    complete.then(|| {
        let [base, other] = [&base, &other].map(|values| Series::new(values, resolution));
        percent_change(base, other, Pairing::Paired)
    })
}

/// Returns the change of a quantity over some workloads, and their number: each round gives the geometric
/// mean over them. If the run ended early, the rounds count that all measured workloads have.
pub(super) fn mean_change<'a>(
    workloads: impl Iterator<Item = &'a CellSamples>,
    digests: Digests,
    (of, resolution): Quantity,
) -> Option<(Change, usize)> {
    let pairs: Vec<(Vec<f64>, Vec<f64>)> = workloads
        .filter_map(|samples| {
            let [base, other] = [Digests::None, digests].map(|setting| samples.values(setting, of));
            let complete = !base.is_empty() && [base.len(), other.len()] == [samples.rounds(); 2];
            complete.then_some((base, other))
        })
        .collect();
    let rounds = pairs.iter().map(|(base, _)| base.len()).min()?;
    let base = means(pairs.iter().map(|(base, _)| base.as_slice()), rounds);
    let other = means(pairs.iter().map(|(_, other)| other.as_slice()), rounds);
    // Where each workload is rounded by so much, so is their mean.
    let [base, other] = [&base, &other].map(|values| Series::new(values, resolution));
    Some((percent_change(base, other, Pairing::Paired), pairs.len()))
}

/// Returns the geometric mean over the series, for each round.
fn means<'a>(series: impl Iterator<Item = &'a [f64]> + Clone, rounds: usize) -> Vec<f64> {
    let mean = |round: usize| {
        let logs: Vec<f64> =
            series.clone().filter_map(|values| values.get(round)).map(|value| value.ln()).collect();
        let count = f64::from(u32::try_from(logs.len()).unwrap_or(u32::MAX));
        (logs.iter().sum::<f64>() / count).exp()
    };
    (0..rounds).map(mean).collect()
}

/// Returns the throughput in MB/s that the calibrated link allows a workload: reads and writes use one
/// direction each.
pub(super) fn link_limit(cell: &Cell, measured: &Measured) -> Option<f64> {
    let link = cell.link_plan().filter(|link| link.rate_bits.is_some())?;
    let (_, Calibration { to_target, to_initiator, .. }) =
        measured.calibrations.iter().find(|(known, _)| *known == link)?;
    let reads = f64::from(cell.mix.0) / 100.0;
    let by_reads = if reads > 0.0 { to_initiator / reads } else { f64::INFINITY };
    let by_writes = if reads < 1.0 { to_target / (1.0 - reads) } else { f64::INFINITY };
    Some(by_reads.min(by_writes) / 1e6)
}

pub(super) const fn throughput(sample: &Sample) -> Option<f64> {
    Some(sample.throughput)
}

/// A quantity of a sample, and how finely it is measured.
pub(super) type Quantity = (fn(&Sample) -> Option<f64>, Resolution);

pub(super) const RATE: Quantity = (throughput, Resolution::EXACT);
