//! A latency histogram of fixed size, with buckets whose width grows with the value: it resolves every value
//! to better than one part in 64, from nanoseconds to days.

use std::time::Duration;

use crate::statistics::Resolution;

/// The logarithm of the number of buckets for each doubling.
const FINE_SHIFT: u32 = 6;

/// Buckets for each doubling.
const FINE: usize = 1 << FINE_SHIFT;

/// The number of doublings. The table covers durations below 2^49 ns, about 6.5 days; the last bucket counts
/// longer ones too.
const DOUBLINGS: usize = 44;

/// A histogram of durations.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
    sum_ns: u128,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; DOUBLINGS * FINE].into_boxed_slice(), count: 0, sum_ns: 0, max_ns: 0 }
    }
}

impl Histogram {
    /// How finely percentiles are known: a percentile is the upper end of a bucket.
    pub const RESOLUTION: Resolution = Resolution { relative: 1.0 / FINE as f64, absolute: 0.0 };

    /// Counts a duration.
    pub fn record(&mut self, span: Duration) {
        let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.buckets.get_mut(bucket_of(ns)) {
            *bucket += 1;
        }
        self.count += 1;
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket += more;
        }
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Returns how many durations were counted.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the duration that so many in ten thousand do not exceed; zero if none was counted.
    pub fn percentile(&self, per_ten_thousand: u16) -> Duration {
        let rank = (u128::from(self.count) * u128::from(per_ten_thousand)).div_ceil(10_000);
        let mut seen = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= rank && *count > 0 {
                return Duration::from_nanos(top_of(at).min(self.max_ns));
            }
        }
        Duration::from_nanos(self.max_ns)
    }

    /// Returns the duration that so many in ten thousand do not exceed, if enough durations were counted:
    /// with fewer, a percentile such as the 99th is the longest one. The 99th needs a hundred, the 99.9th a
    /// thousand.
    pub fn tail_percentile(&self, per_ten_thousand: u16) -> Option<Duration> {
        let beyond = u64::from(10_000_u16.saturating_sub(per_ten_thousand));
        (self.count.saturating_mul(beyond) >= 10_000).then(|| self.percentile(per_ten_thousand))
    }

    /// Returns the mean duration, or zero if none was counted.
    pub fn mean(&self) -> Duration {
        let mean = self.sum_ns.checked_div(u128::from(self.count)).unwrap_or(0);
        Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// Returns the longest duration.
    pub const fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }
}

/// Finds the bucket of a value: exact below `FINE`, then `FINE` buckets for each doubling.
fn bucket_of(ns: u64) -> usize {
    let doubling = (u64::BITS - ns.leading_zeros()).saturating_sub(FINE_SHIFT + 1);
    let fine = usize::try_from(ns >> doubling).unwrap_or(usize::MAX);
    let base = usize::try_from(doubling).unwrap_or(usize::MAX) * FINE;
    base.saturating_add(fine).min(DOUBLINGS * FINE - 1)
}

/// Returns the highest value in a bucket.
fn top_of(bucket: usize) -> u64 {
    if bucket < 2 * FINE {
        return u64::try_from(bucket).unwrap_or(u64::MAX);
    }
    let doubling = u32::try_from(bucket / FINE - 1).unwrap_or(u32::MAX);
    let fine = u64::try_from(bucket % FINE + FINE).unwrap_or(u64::MAX);
    ((fine + 1) << doubling) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_known_to_one_part_in_64() {
        for value in (0..40).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1, 3 << bit]) {
            let mut histogram = Histogram::default();
            histogram.record(Duration::from_nanos(value));
            histogram.record(Duration::from_secs(20_000));
            let told = u64::try_from(histogram.percentile(5000).as_nanos()).unwrap();
            assert!(told >= value && told - value <= value / 64, "{value} is told as {told}");
        }
    }

    #[test]
    fn percentiles_and_the_mean_are_those_of_what_was_counted() {
        let mut low = Histogram::default();
        let mut high = Histogram::default();
        for us in 1..=1000 {
            let half = if us <= 500 { &mut low } else { &mut high };
            half.record(Duration::from_micros(us));
        }
        low.add(&high);
        for (per_ten_thousand, us) in [(5000, 500), (9000, 900), (9900, 990), (9990, 999), (10_000, 1000)] {
            let told = low.percentile(per_ten_thousand).as_micros();
            assert!((us..=us + us / 64).contains(&told), "{per_ten_thousand}: {told}");
        }
        assert_eq!((low.mean(), low.max()), (Duration::from_nanos(500_500), Duration::from_millis(1)));
        assert_eq!(Histogram::default().percentile(5000), Duration::ZERO);
    }

    #[test]
    fn a_percentile_near_the_end_needs_commands_beyond_it() {
        let mut histogram = Histogram::default();
        for (counted, p99, p999) in
            [(99, false, false), (100, true, false), (999, true, false), (1000, true, true)]
        {
            while histogram.count() < counted {
                histogram.record(Duration::from_micros(10));
            }
            let known = |per_ten_thousand| histogram.tail_percentile(per_ten_thousand).is_some();
            assert_eq!((known(9900), known(9990)), (p99, p999), "{counted}");
        }
        assert_eq!(histogram.tail_percentile(10_000), None, "the longest one is no percentile");
    }
}
