//! Statistics of samples: the median with its confidence interval, and the change between two series.
//!
//! Samples that are not finite are left out everywhere.

mod student;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Deserializer, Serialize};

/// The level of significance of every test, and one minus the confidence of every interval.
pub const LEVEL: f64 = 0.05;

/// A measured number with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median.
    #[serde(deserialize_with = "null_as_nan")]
    pub value: f64,
    /// The lower end of the interval.
    #[serde(deserialize_with = "null_as_nan")]
    pub low: f64,
    /// The upper end of the interval.
    #[serde(deserialize_with = "null_as_nan")]
    pub high: f64,
}

/// Whether the samples of two series belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// The samples at one index were measured in one round, one right after the other, so that whatever slowed
    /// the machine in that round slowed both.
    Paired,
    /// The two series were measured at different times.
    Independent,
}

/// The change from one series of samples to another, in percent of the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The change: 3.0 if the other series is 3 % higher. Infinite if the base is zero, and NaN if a series
    /// has no samples.
    pub percent: f64,
    /// The lower end of its 95 % confidence interval; negative infinity with fewer than two samples.
    pub low: f64,
    /// The upper end of its 95 % confidence interval; infinity with fewer than two samples.
    pub high: f64,
    /// The probability of a difference at least as large if there is none; 1 with fewer than two samples.
    pub p: f64,
    /// Whether the change is significant at the level of 5 %. [`holm`] sets it for many changes at once.
    pub significant: bool,
}

/// Returns the median and its 95 % confidence interval.
///
/// The interval lies between two order statistics, which needs no assumption about the distribution. Its
/// confidence is at least 95 %. Fewer than six samples cannot give that confidence; the interval is then the
/// range from the smallest sample to the largest one. All fields are NaN if there is no sample.
pub fn estimate(samples: &[f64]) -> Estimate {
    let sorted = sorted(samples);
    let skipped = match sorted.len() {
        0..6 => 0,
        count => skipped_ranks(count),
    };
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let high = at(sorted.len().wrapping_sub(skipped).wrapping_sub(1));
    Estimate { value: median(&sorted), low: at(skipped), high }
}

/// Returns the change from `base` to `other`, with its 95 % confidence interval.
///
/// Both are compared as logarithms, since what disturbs a measurement multiplies it.
///
/// * Paired samples: Student's t interval of the log ratios of the rounds. A round that is slow as a whole
///   cancels out. If one series is longer, its last samples are left out.
/// * Independent samples: Yuen's test, which is Welch's test with trimmed means. It leaves out a fifth of the
///   samples at either end, from seven samples on, since nothing cancels out a slow round there, and
///   a single one would hide every change in Welch's test.
///
/// If a sample is zero or negative, there are no logarithms: the differences are then compared, in percent of
/// the mean of `base`.
pub fn percent_change(base: &[f64], other: &[f64], pairing: Pairing) -> Change {
    let difference = |base: &[f64], other: &[f64]| match pairing {
        Pairing::Paired => Difference::paired(base, other),
        Pairing::Independent => Difference::independent(base, other),
    };
    if base.iter().chain(other).filter(|sample| sample.is_finite()).all(|sample| *sample > 0.0) {
        let logs = |samples: &[f64]| -> Vec<f64> { samples.iter().map(|sample| sample.ln()).collect() };
        difference(&logs(base), &logs(other)).change(|log_ratio| 100.0 * log_ratio.exp_m1())
    } else {
        let unit = mean(&finite(base)).abs();
        difference(base, other).change(|difference| percent_of(unit, difference))
    }
}

/// Corrects the significance of many changes by the method of Holm: with a probability of 95 %, none of them
/// is called significant by chance. The intervals stay those of the single changes, so that an interval can
/// exclude zero without the change being significant.
pub fn holm<'a>(changes: impl IntoIterator<Item = &'a mut Change>) {
    let mut changes: Vec<&mut Change> = changes.into_iter().collect();
    changes.sort_by(|a, b| a.p.total_cmp(&b.p));
    let mut left = changes.len();
    let mut is_rejected = true;
    for change in changes {
        is_rejected &= change.p * to_float(left) < LEVEL;
        change.significant = is_rejected;
        left = left.saturating_sub(1);
    }
}

/// A difference of two means.
#[derive(Clone, Copy, Debug)]
struct Difference {
    value: f64,
    /// The standard error and its degrees of freedom; none with fewer than two samples.
    error: Option<(f64, f64)>,
}

impl Difference {
    /// Leaves out pairs that are not finite.
    fn paired(base: &[f64], other: &[f64]) -> Self {
        let differences: Vec<f64> = base.iter().zip(other).map(|(base, other)| other - base).collect();
        let mean = TrimmedMean::of(&differences, 0);
        Self { value: mean.value, error: mean.freedom.map(|freedom| (mean.variance.sqrt(), freedom)) }
    }

    fn independent(base: &[f64], other: &[f64]) -> Self {
        let (base, other) =
            (TrimmedMean::of(base, trimmed_from(base)), TrimmedMean::of(other, trimmed_from(other)));
        let value = other.value - base.value;
        let Some((base_freedom, other_freedom)) = base.freedom.zip(other.freedom) else {
            return Self { value, error: None };
        };
        let variance = base.variance + other.variance;
        // Welch and Satterthwaite.
        let spread = base.variance.powi(2) / base_freedom + other.variance.powi(2) / other_freedom;
        let freedom = if spread > 0.0 { variance.powi(2) / spread } else { base_freedom + other_freedom };
        Self { value, error: Some((variance.sqrt(), freedom)) }
    }

    fn change(self, percent: impl Fn(f64) -> f64) -> Change {
        let Some((error, freedom)) = self.error else {
            let (low, high) = (f64::NEG_INFINITY, f64::INFINITY);
            return Change { percent: percent(self.value), low, high, p: 1.0, significant: false };
        };
        let p = student::two_sided_p(self.value, error, freedom);
        let width = error * student::quantile(freedom);
        Change {
            percent: percent(self.value),
            low: percent(self.value - width),
            high: percent(self.value + width),
            p,
            significant: p < LEVEL,
        }
    }
}

/// A mean without the extreme samples.
#[derive(Clone, Copy, Debug)]
struct TrimmedMean {
    value: f64,
    /// The square of its standard error.
    variance: f64,
    /// The degrees of freedom; none with fewer than two samples.
    freedom: Option<f64>,
}

impl TrimmedMean {
    /// Leaves out `trimmed` samples at either end. The variance is the winsorized one (Yuen 1974).
    fn of(samples: &[f64], trimmed: usize) -> Self {
        let sorted = sorted(samples);
        let kept = sorted.get(trimmed..sorted.len().saturating_sub(trimmed)).unwrap_or_default();
        let value = mean(kept);
        if kept.len() < 2 {
            return Self { value, variance: 0.0, freedom: None };
        }
        let (low, high) = (kept.first().copied().unwrap_or(value), kept.last().copied().unwrap_or(value));
        let winsorized: Vec<f64> = sorted.iter().map(|sample| sample.clamp(low, high)).collect();
        let center = mean(&winsorized);
        let squares: f64 = winsorized.iter().map(|sample| (sample - center).powi(2)).sum();
        let count = to_float(kept.len());
        Self { value, variance: squares / (count * (count - 1.0)), freedom: Some(count - 1.0) }
    }
}

/// Returns how many samples to leave out at either end. Fewer than seven samples are too few to lose two.
fn trimmed_from(samples: &[f64]) -> usize {
    match finite(samples).len() {
        0..7 => 0,
        count => count / 5,
    }
}

/// Returns how many order statistics lie outside the 95 % confidence interval of the median, at either end.
fn skipped_ranks(count: usize) -> usize {
    if count > EXACT_MAX {
        // 1.96 standard deviations of the binomial distribution below its mean.
        let deviations = count.saturating_mul(38_416) / 10_000;
        return count.saturating_sub(deviations.isqrt() + 2) / 2;
    }
    // The median lies below the order statistic at `rank` if at most `rank` of `count` fair coins show heads.
    let mut probability = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut below = probability;
    let mut rank = 0;
    while below <= LEVEL / 2.0 && rank < count {
        probability *= to_float(count - rank) / to_float(rank + 1);
        below += probability;
        rank += 1;
    }
    rank.saturating_sub(1)
}

/// Above this number of samples the normal distribution replaces the binomial one, whose terms underflow.
const EXACT_MAX: usize = 1000;

/// Reads a number. JSON has no NaN and no infinity: both are written as null, which is read as NaN.
pub(crate) fn null_as_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Reads numbers as [`null_as_nan`] does.
pub(crate) fn nulls_as_nan<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    let numbers = Vec::<Option<f64>>::deserialize(from)?;
    Ok(numbers.into_iter().map(|number| number.unwrap_or(f64::NAN)).collect())
}

fn median(sorted: &[f64]) -> f64 {
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let half = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => at(half),
        _ => f64::midpoint(at(half.wrapping_sub(1)), at(half)),
    }
}

/// Returns the mean, NaN if there is no sample. It is exact if all samples are equal, so that the rounding of
/// a sum does not become a significant change.
fn mean(samples: &[f64]) -> f64 {
    let first = samples.first().copied().unwrap_or(f64::NAN);
    first + samples.iter().map(|sample| sample - first).sum::<f64>() / to_float(samples.len())
}

fn percent_of(unit: f64, difference: f64) -> f64 {
    if difference == 0.0 { 0.0 } else { 100.0 * difference / unit }
}

fn finite(samples: &[f64]) -> Vec<f64> {
    samples.iter().copied().filter(|sample| sample.is_finite()).collect()
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = finite(samples);
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn to_float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}
