//! A map from a transport's task key to a slot: open addressing in one array, which is replaced by a larger
//! one when it is half full.

use alloc::vec;
use alloc::vec::Vec;

use crate::contract::TaskKey;

/// The index. It never shrinks.
pub(super) struct KeyIndex {
    /// The entries. Their number is a power of two; at most half are in use.
    cells: Vec<Option<(TaskKey, u32)>>,
    len: usize,
}

impl KeyIndex {
    pub(super) fn with_room_for(count: usize) -> Self {
        Self { cells: vec![None; (count.max(4) * 2).next_power_of_two()], len: 0 }
    }

    pub(super) fn find(&self, key: TaskKey) -> Option<u32> {
        let mut at = self.home(key);
        loop {
            match self.cells.get(at)? {
                Some((found, slot)) if *found == key => return Some(*slot),
                Some(_) => at = self.next(at),
                None => return None,
            }
        }
    }

    /// Adds a key that is not in the index.
    pub(super) fn insert(&mut self, key: TaskKey, slot: u32) {
        if (self.len + 1) * 2 > self.cells.len() {
            self.grow();
        }
        self.len += 1;
        self.place(key, slot);
    }

    pub(super) fn remove(&mut self, key: TaskKey) {
        let mut at = self.home(key);
        loop {
            match self.cells.get_mut(at) {
                Some(cell @ Some(_)) if cell.is_some_and(|(found, _)| found == key) => {
                    *cell = None;
                    self.len -= 1;
                    return self.close_gap(at);
                }
                Some(Some(_)) => at = self.next(at),
                _ => return,
            }
        }
    }

    /// Moves entries up after a cell was emptied, so that no search stops early.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.cells.len() - 1;
        let mut at = self.next(gap);
        while let Some(Some((key, slot))) = self.cells.get(at).copied() {
            let (from_home, from_gap) = (at.wrapping_sub(self.home(key)) & mask, at.wrapping_sub(gap) & mask);
            if from_home >= from_gap {
                self.set(gap, Some((key, slot)));
                self.set(at, None);
                gap = at;
            }
            at = self.next(at);
        }
    }

    fn place(&mut self, key: TaskKey, slot: u32) {
        let mut at = self.home(key);
        while matches!(self.cells.get(at), Some(Some(_))) {
            at = self.next(at);
        }
        self.set(at, Some((key, slot)));
    }

    fn grow(&mut self) {
        let doubled = vec![None; self.cells.len() * 2];
        let old = core::mem::replace(&mut self.cells, doubled);
        for (key, slot) in old.into_iter().flatten() {
            self.place(key, slot);
        }
    }

    fn set(&mut self, at: usize, value: Option<(TaskKey, u32)>) {
        if let Some(cell) = self.cells.get_mut(at) {
            *cell = value;
        }
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.cells.len() - 1)
    }

    /// Returns the first cell to search, by Fibonacci hashing: keys are often consecutive, or differ in their
    /// high half only.
    fn home(&self, key: TaskKey) -> usize {
        let mixed = key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        usize::try_from(mixed).unwrap_or(0) & (self.cells.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use base::rng::Rng;

    #[test]
    fn agrees_with_a_map_over_random_insertions_and_removals() {
        for seed in 0..20 {
            let mut rng = Rng::from_seed(seed);
            let (mut index, mut map) = (KeyIndex::with_room_for(4), BTreeMap::new());
            for step in 0..2000u32 {
                let key = TaskKey(rng.below(40) << (rng.below(2) * 32));
                if map.remove(&key).is_some() {
                    index.remove(key);
                } else {
                    map.insert(key, step);
                    index.insert(key, step);
                }
                for key in (0..40).flat_map(|n| [TaskKey(n), TaskKey(n << 32)]) {
                    assert_eq!(index.find(key), map.get(&key).copied(), "seed {seed} step {step} {key:?}");
                }
            }
            assert!(index.cells.len() <= 256);
        }
    }
}
