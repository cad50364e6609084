//! Statistics of samples: the median with its confidence interval, and the change between two series.
//!
//! Samples that are not finite are left out everywhere.

mod student;

#[cfg(test)]
pub(crate) mod tests;

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

/// How finely a quantity was measured: the width of the interval that the truth lies in, given a sample. The
/// error is the same for every sample of a value, so that more samples do not make it smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resolution {
    /// The width as a share of the sample: that of the buckets of a histogram.
    #[serde(default)]
    pub relative: f64,
    /// The width in the unit of the samples: that of the ticks of a clock.
    #[serde(default)]
    pub absolute: f64,
}

/// The samples of a quantity, and how finely it was measured.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    /// The samples.
    pub samples: &'a [f64],
    /// How finely they were measured.
    pub resolution: Resolution,
}

/// Whether the samples of two series belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// The samples at one index were measured in one round, one right after the other, so that whatever
    /// slowed the machine in that round slowed both.
    Paired,
    /// The two series were measured at different times.
    Independent,
}

/// The change from one series of samples to another, in percent of the first. As JSON, a number that is not
/// finite is null.
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
/// * A single sample and a series: whether one more sample of the series would lie as far from its mean
///   (Student's prediction interval). Nothing is trimmed there: a single sample can be an extreme one, and
///   the winsorized variance is that of a trimmed mean and not that of a sample.
///
/// The resolution of the samples widens the interval twice: by what rounding adds to the spread of the
/// samples, and at both ends by a whole step, since all samples of a series can be rounded in the same
/// direction. A change within a step is never significant.
///
/// If a sample is zero or negative, there are no logarithms: the differences are then compared, in percent of
/// the mean of `base`.
pub fn percent_change<'a>(
    base: impl Into<Series<'a>>,
    other: impl Into<Series<'a>>,
    pairing: Pairing,
) -> Change {
    let compared = Compared::new(base.into(), other.into(), pairing);
    compared.difference.change(|difference| compared.percent(difference))
}

/// Returns the smallest change, in percent, that a comparison with errors like those of these series finds
/// in nine cases of ten if it is one of so many that [`holm`] corrects together, and the only one that is not
/// zero. None if there is nothing to test, with fewer than two samples; infinite if the base is zero.
///
/// The statistic has a noncentral t distribution, here by the normal approximation to its tail at 95 %. The
/// error of few samples is more often too small than too large, so it counts `1 / (1 - 1 / 2f)` times. That
/// leaves nine cases of ten, since Welch's degrees of freedom vary from case to case. Rounding can hide a
/// whole step, and a difference counts only beyond another one.
pub fn smallest_found<'a>(
    base: impl Into<Series<'a>>,
    other: impl Into<Series<'a>>,
    pairing: Pairing,
    comparisons: usize,
) -> Option<f64> {
    let compared = Compared::new(base.into(), other.into(), pairing);
    let Difference { width, error, .. } = compared.difference;
    let (error, freedom) = error?;
    let limit = student::quantile(LEVEL / to_float(comparisons.max(1)), freedom);
    let spread = (1.0 + limit.powi(2) / (2.0 * freedom)).sqrt();
    let errors = limit * (1.0 - 1.0 / (4.0 * freedom)) + NORMAL_95 * spread;
    let error = error / (1.0 - 1.0 / (2.0 * freedom));
    Some(compared.percent(2.0 * width + errors * error))
}

/// The 95th percentile of the normal distribution.
const NORMAL_95: f64 = 1.644_853_627;

/// Returns the value that stands for the samples of a run: their mean without the extreme ones, geometric
/// where all are positive, as [`percent_change`] compares independent series. NaN if there is no sample.
pub fn center(samples: &[f64]) -> f64 {
    let series = Series::from(samples);
    if series.has_logarithms() {
        TrimmedMean::robust(&series.logarithms()).value.exp()
    } else {
        TrimmedMean::robust(&series.points()).value
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

impl Resolution {
    /// Samples that are as exact as numbers are.
    pub const EXACT: Self = Self { relative: 0.0, absolute: 0.0 };

    /// Returns the width for a sample.
    fn width(self, sample: f64) -> f64 {
        self.relative * sample.abs() + self.absolute
    }
}

impl<'a> Series<'a> {
    /// Returns samples that were measured with this resolution.
    pub const fn new(samples: &'a [f64], resolution: Resolution) -> Self {
        Self { samples, resolution }
    }

    fn has_logarithms(&self) -> bool {
        self.samples.iter().filter(|sample| sample.is_finite()).all(|sample| *sample > 0.0)
    }

    fn logarithms(&self) -> Vec<Point> {
        let width = |sample: f64| self.resolution.width(sample) / sample;
        self.samples.iter().map(|sample| Point { value: sample.ln(), width: width(*sample) }).collect()
    }

    fn points(&self) -> Vec<Point> {
        let width = |sample: f64| self.resolution.width(sample);
        self.samples.iter().map(|sample| Point { value: *sample, width: width(*sample) }).collect()
    }
}

impl<'a> From<&'a [f64]> for Series<'a> {
    fn from(samples: &'a [f64]) -> Self {
        Self::new(samples, Resolution::EXACT)
    }
}

impl<'a> From<&'a Vec<f64>> for Series<'a> {
    fn from(samples: &'a Vec<f64>) -> Self {
        Self::from(samples.as_slice())
    }
}

impl<'a, const LEN: usize> From<&'a [f64; LEN]> for Series<'a> {
    fn from(samples: &'a [f64; LEN]) -> Self {
        Self::from(samples.as_slice())
    }
}

/// A sample as it is compared, and the width of the interval that the truth lies in.
#[derive(Clone, Copy, Debug)]
struct Point {
    value: f64,
    width: f64,
}

/// Two series as they are compared.
#[derive(Clone, Copy, Debug)]
struct Compared {
    difference: Difference,
    /// What 100 % of the difference are; none for logarithms.
    unit: Option<f64>,
}

impl Compared {
    fn new(base: Series<'_>, other: Series<'_>, pairing: Pairing) -> Self {
        let difference = |base: &[Point], other: &[Point]| match pairing {
            Pairing::Paired => Difference::paired(base, other),
            Pairing::Independent => Difference::independent(base, other),
        };
        if base.has_logarithms() && other.has_logarithms() {
            Self { difference: difference(&base.logarithms(), &other.logarithms()), unit: None }
        } else {
            let unit = Some(mean(&finite(base.samples)).abs());
            Self { difference: difference(&base.points(), &other.points()), unit }
        }
    }

    fn percent(&self, difference: f64) -> f64 {
        match self.unit {
            None => 100.0 * difference.exp_m1(),
            Some(unit) => percent_of(unit, difference),
        }
    }
}

/// A difference of two means.
#[derive(Clone, Copy, Debug)]
struct Difference {
    value: f64,
    /// The most by which rounding alone makes two equal means differ.
    width: f64,
    /// The standard error and its degrees of freedom; none without a spread.
    error: Option<(f64, f64)>,
}

impl Difference {
    /// Leaves out pairs that are not finite.
    fn paired(base: &[Point], other: &[Point]) -> Self {
        let pairs = || base.iter().zip(other).filter(|(base, other)| (other.value - base.value).is_finite());
        let differences: Vec<Point> =
            pairs().map(|(base, other)| Point { value: other.value - base.value, width: 0.0 }).collect();
        let [base, other]: [Vec<Point>; 2] =
            [pairs().map(|(base, _)| *base).collect(), pairs().map(|(_, other)| *other).collect()];
        let found = TrimmedMean::of(&differences, 0);
        let rounding = rounding_variance(&base) + rounding_variance(&other);
        let error = found.freedom.map(|freedom| ((found.variance + rounding).sqrt(), freedom));
        Self { value: found.value, width: mean_width(&base).max(mean_width(&other)), error }
    }

    fn independent(base: &[Point], other: &[Point]) -> Self {
        let is_single = |points: &[Point]| finite_points(points).count() == 1;
        let mean = if is_single(base) || is_single(other) {
            |points: &[Point]| TrimmedMean::of(points, 0)
        } else {
            TrimmedMean::robust
        };
        let [base, other] = [base, other].map(mean);
        let (value, width) = (other.value - base.value, base.width.max(other.width));
        let error = match (base.freedom, other.freedom) {
            (Some(base_freedom), Some(other_freedom)) => {
                let variance = base.variance + other.variance;
                // Welch and Satterthwaite.
                let spread = base.variance.powi(2) / base_freedom + other.variance.powi(2) / other_freedom;
                let freedom =
                    if spread > 0.0 { variance.powi(2) / spread } else { base_freedom + other_freedom };
                Some((variance.sqrt(), freedom))
            }
            (Some(freedom), None) if other.kept == 1 => Some((base.prediction_error(), freedom)),
            (None, Some(freedom)) if base.kept == 1 => Some((other.prediction_error(), freedom)),
            _ => None,
        };
        Self { value, width, error }
    }

    fn change(self, percent: impl Fn(f64) -> f64) -> Change {
        let Some((error, freedom)) = self.error else {
            let (low, high) = (f64::NEG_INFINITY, f64::INFINITY);
            return Change { percent: percent(self.value), low, high, p: 1.0, significant: false };
        };
        // What rounding alone does not explain.
        let beyond = (self.value.abs() - self.width).max(0.0);
        let p = student::two_sided_p(beyond, error, freedom);
        let width = self.width + error * student::quantile(LEVEL, freedom);
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
    /// The mean width of its samples.
    width: f64,
    /// The number of its samples, without the extreme ones.
    kept: usize,
    /// The square of its standard error.
    variance: f64,
    /// The degrees of freedom; none with fewer than two samples.
    freedom: Option<f64>,
}

impl TrimmedMean {
    /// Leaves out a fifth of the samples at either end, if there are enough.
    fn robust(points: &[Point]) -> Self {
        Self::of(points, trimmed_of(finite_points(points).count()))
    }

    /// Leaves out `trimmed` samples at either end. Yuen (1974): of `h` samples that are left, the variance of
    /// the mean is the sum of the squares of all samples, winsorized, divided by `h (h - 1)`, with `h - 1`
    /// degrees of freedom. With nothing left out that is the variance of Student's test. The variance of the
    /// rounding is added.
    fn of(points: &[Point], trimmed: usize) -> Self {
        let mut sorted: Vec<Point> = finite_points(points).collect();
        sorted.sort_by(|a, b| a.value.total_cmp(&b.value));
        let kept = sorted.get(trimmed..sorted.len().saturating_sub(trimmed)).unwrap_or_default();
        let (value, width) = (mean(&values(kept)), mean_width(kept));
        let [low, high] = [kept.first(), kept.last()].map(|point| point.map_or(value, |point| point.value));
        if kept.len() < 2 {
            return Self { value, width, kept: kept.len(), variance: 0.0, freedom: None };
        }
        let winsorized: Vec<f64> = sorted.iter().map(|point| point.value.clamp(low, high)).collect();
        let center = mean(&winsorized);
        let squares: f64 = winsorized.iter().map(|sample| (sample - center).powi(2)).sum();
        let count = to_float(kept.len());
        let variance = squares / (count * (count - 1.0)) + rounding_variance(kept);
        Self { value, width, kept: kept.len(), variance, freedom: Some(count - 1.0) }
    }

    /// Returns the standard error of the difference to one more sample of the same distribution, for a mean
    /// from which nothing is left out.
    fn prediction_error(&self) -> f64 {
        (self.variance * (1.0 + to_float(self.kept))).sqrt()
    }
}

fn finite_points(points: &[Point]) -> impl Iterator<Item = Point> {
    points.iter().copied().filter(|point| point.value.is_finite())
}

fn values(points: &[Point]) -> Vec<f64> {
    points.iter().map(|point| point.value).collect()
}

/// Returns what rounding adds to the square of the standard error of a mean (Sheppard).
fn rounding_variance(points: &[Point]) -> f64 {
    let count = to_float(points.len()).max(1.0);
    points.iter().map(|point| point.width.powi(2) / 12.0).sum::<f64>() / count.powi(2)
}

fn mean_width(points: &[Point]) -> f64 {
    points.iter().map(|point| point.width).sum::<f64>() / to_float(points.len()).max(1.0)
}

/// Returns how many samples to leave out at either end. Fewer than seven samples are too few to lose two.
const fn trimmed_of(count: usize) -> usize {
    match count {
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

/// Returns the median, NaN if there is no sample.
pub(crate) fn median(sorted: &[f64]) -> f64 {
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
