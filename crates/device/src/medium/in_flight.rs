//! The operations that the medium has in progress, stored contiguously: a search for operations on the same
//! bytes does not scan the slots of operations that ended long ago.

use alloc::vec::Vec;
use base::int_cast::to_usize;

use crate::range_lock::{AccessKind, ByteRange};

/// Operations in progress, without abandoned ones.
#[derive(Debug)]
pub(super) struct InFlight {
    operations: Vec<Entry>,
    /// For each slot, the index of its operation in `operations`. Out of date for slots that have no
    /// operation in progress.
    places: Vec<u32>,
    reads: usize,
    writes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: u32,
    access: AccessKind,
    range: ByteRange,
}

impl InFlight {
    pub(super) const fn new() -> Self {
        Self { operations: Vec::new(), places: Vec::new(), reads: 0, writes: 0 }
    }

    /// Adds the operation of a slot that has none in progress.
    pub(super) fn begin(&mut self, slot: u32, range: ByteRange, touch: AccessKind) {
        let at = to_usize(slot);
        if self.places.len() <= at {
            self.places.resize(at + 1, 0);
        }
        if let Some(place) = self.places.get_mut(at) {
            *place = u32::try_from(self.operations.len()).unwrap_or(u32::MAX);
        }
        self.operations.push(Entry { slot, access: touch, range });
        if let Some(count) = self.count_mut(touch) {
            *count += 1;
        }
    }

    /// Removes the operation of a slot.
    pub(super) fn end(&mut self, slot: u32) {
        let Some(place) = self.places.get(to_usize(slot)).copied() else { return };
        let at = to_usize(place);
        if self.operations.get(at).is_none_or(|entry| entry.slot != slot) {
            return;
        }
        let ended = self.operations.swap_remove(at);
        if let Some(moved) = self.operations.get(at)
            && let Some(its) = self.places.get_mut(to_usize(moved.slot))
        {
            *its = place;
        }
        if let Some(count) = self.count_mut(ended.access) {
            *count -= 1;
        }
    }

    /// Returns whether an operation with this kind of access conflicts with one that is in progress on the
    /// same bytes. While only reads, or only writes, are in progress, this check is one comparison.
    pub(super) fn clashes(&self, range: ByteRange, touch: AccessKind) -> bool {
        let others = match touch {
            AccessKind::Reads => self.writes,
            AccessKind::Writes => self.reads,
            AccessKind::Other => 0,
        };
        others > 0
            && self.operations.iter().any(|op| op.access.conflicts_with(touch) && op.range.overlaps(range))
    }

    /// Returns whether any operation is in progress on these bytes.
    pub(super) fn touches(&self, range: ByteRange) -> bool {
        self.operations.iter().any(|op| op.range.overlaps(range))
    }

    const fn count_mut(&mut self, touch: AccessKind) -> Option<&mut usize> {
        match touch {
            AccessKind::Reads => Some(&mut self.reads),
            AccessKind::Writes => Some(&mut self.writes),
            AccessKind::Other => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_is_under_way_and_nothing_that_has_ended() {
        let range = |at| ByteRange::new(at * 10, 10);
        let mut under_way = InFlight::new();
        for slot in 0..4_u32 {
            let touch = if slot % 2 == 0 { AccessKind::Reads } else { AccessKind::Writes };
            under_way.begin(slot, range(u64::from(slot)), touch);
        }
        under_way.begin(4, range(4), AccessKind::Other);
        // The last entry takes the index of the one that ended.
        for (ended, left) in [(0, [1, 2, 3, 4].as_slice()), (3, &[1, 2, 4]), (1, &[2, 4]), (1, &[2, 4])] {
            under_way.end(ended);
            for slot in 0..5_u32 {
                let at = range(u64::from(slot));
                let is_left = left.contains(&slot);
                assert_eq!(under_way.touches(at), is_left, "{slot} of {left:?}");
                let writes = slot < 4 && slot % 2 == 1;
                assert_eq!(under_way.clashes(at, AccessKind::Reads), is_left && writes, "{slot}");
                assert_eq!(
                    under_way.clashes(at, AccessKind::Writes),
                    is_left && slot < 4 && !writes,
                    "{slot}"
                );
                assert!(!under_way.clashes(at, AccessKind::Other));
            }
        }
        under_way.end(2);
        under_way.end(4);
        assert_eq!((under_way.reads, under_way.writes, under_way.operations.len()), (0, 0, 0));
    }
}
