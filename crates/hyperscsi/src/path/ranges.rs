//! Sets of numbers, stored as a few ranges: packet numbers that were received, bytes that were acknowledged.

use alloc::vec::Vec;

/// A set of numbers, as half-open ranges in ascending order that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    runs: Vec<(u64, u64)>,
}

impl Ranges {
    pub(crate) const fn new() -> Self {
        Self { runs: Vec::new() }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns how many ranges there are.
    pub(crate) const fn len(&self) -> usize {
        self.runs.len()
    }

    /// Returns the ranges in ascending order.
    pub(crate) fn runs(&self) -> &[(u64, u64)] {
        &self.runs
    }

    /// Returns the lowest range.
    pub(crate) fn first(&self) -> Option<(u64, u64)> {
        self.runs.first().copied()
    }

    /// Adds the numbers from `from` to before `to`.
    pub(crate) fn insert(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        // Numbers usually arrive in order: that case costs one comparison.
        match self.runs.last_mut() {
            Some((start, end)) if *end >= from && *start <= from => {
                *end = to.max(*end);
                return;
            }
            Some((_, end)) if *end < from => return self.runs.push((from, to)),
            None => return self.runs.push((from, to)),
            Some(_) => {}
        }
        // The ranges `begin..end` touch the new one and are merged with it.
        let begin = self.runs.partition_point(|(_, run_end)| *run_end < from);
        let end = self.runs.partition_point(|(run_start, _)| *run_start <= to);
        let touched = self.runs.get(begin..end).unwrap_or_default();
        let start = touched.first().map_or(from, |(start, _)| from.min(*start));
        let stop = touched.last().map_or(to, |(_, stop)| to.max(*stop));
        self.runs.splice(begin..end, [(start, stop)]);
    }

    /// Removes the numbers from `from` to before `to`.
    pub(crate) fn remove(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let begin = self.runs.partition_point(|(_, run_end)| *run_end <= from);
        let end = self.runs.partition_point(|(run_start, _)| *run_start < to);
        if begin >= end {
            return;
        }
        let touched = self.runs.get(begin..end).unwrap_or_default();
        let left = touched.first().map(|(start, _)| (*start, from)).filter(|(start, end)| start < end);
        let right = touched.last().map(|(_, stop)| (to, *stop)).filter(|(start, end)| start < end);
        self.runs.splice(begin..end, left.into_iter().chain(right));
    }

    /// Forgets the lowest ranges until at most `most` are left.
    pub(crate) fn keep_highest(&mut self, most: usize) {
        if let Some(extra) = self.runs.len().checked_sub(most).filter(|extra| *extra > 0) {
            self.runs.drain(..extra);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use base::rng::Rng;

    #[test]
    fn runs_merge_split_and_stay_in_order() {
        let mut set = Ranges::new();
        for (from, to) in [(10, 12), (14, 16), (12, 14), (1, 3), (5, 5), (2, 6), (0, 1)] {
            set.insert(from, to);
        }
        assert_eq!(set.runs(), [(0, 6), (10, 16)]);
        set.remove(11, 13);
        set.remove(5, 10);
        assert_eq!(set.runs(), [(0, 5), (10, 11), (13, 16)]);
        set.keep_highest(2);
        assert_eq!(set.runs(), [(10, 11), (13, 16)]);
    }

    #[test]
    fn a_set_of_runs_is_the_set_of_its_numbers() {
        for seed in 0..200 {
            let mut rng = Rng::from_seed(seed);
            let (mut set, mut truth) = (Ranges::new(), BTreeSet::new());
            for _ in 0..60 {
                let from = rng.below(60);
                let to = from + rng.below(8);
                if rng.chance(2, 3) {
                    set.insert(from, to);
                    truth.extend(from..to);
                } else {
                    set.remove(from, to);
                    truth.retain(|number| !(from..to).contains(number));
                }
                assert!(set.runs().iter().flat_map(|(a, b)| *a..*b).eq(truth.iter().copied()), "seed {seed}");
                assert!(set.runs().windows(2).all(|pair| pair[0].1 < pair[1].0), "seed {seed}");
            }
        }
    }
}
