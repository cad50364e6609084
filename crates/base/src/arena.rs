//! A table of values that are inserted and removed: indices are dense, and a generation makes the key of a
//! removed value invalid.

use alloc::vec::Vec;

/// Names a value in an [`Arena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Dense, and unique among the present values.
    pub index: u32,
    /// How many times the index was used before.
    pub generation: u32,
}

/// A table of values with keys. Removing a value keeps its slot, so that a steady state allocates nothing.
#[derive(Debug)]
pub struct Arena<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Arena<T> {
    /// Creates an empty table.
    pub const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// Returns whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many values the table holds.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns how many slots were ever allocated.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Inserts a value; `make` is given its key.
    pub fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            // More than 2^32 values do not fit in memory.
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let mut key = Key { index, generation: 0 };
        if let Some(slot) = self.slots.get_mut(index as usize) {
            key.generation = slot.generation;
            slot.value = Some(make(key));
        }
        key
    }

    /// Returns the value of a key.
    pub fn get(&self, key: Key) -> Option<&T> {
        self.slots.get(key.index as usize).filter(|slot| slot.generation == key.generation)?.value.as_ref()
    }

    /// Returns the value of a key for change.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.slots
            .get_mut(key.index as usize)
            .filter(|slot| slot.generation == key.generation)?
            .value
            .as_mut()
    }

    /// Removes and returns the value of a key, which is invalid from now on.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize).filter(|slot| slot.generation == key.generation)?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    /// Drops a value where it lies, without moving it; its key finds nothing from now on. Returns whether
    /// there was one.
    pub fn discard(&mut self, key: Key) -> bool {
        let slot = self.slots.get_mut(key.index as usize).filter(|slot| slot.generation == key.generation);
        let Some(slot) = slot.filter(|slot| slot.value.is_some()) else { return false };
        slot.value = None;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        true
    }

    /// Returns the key of the value at an index.
    pub fn key_at(&self, index: u32) -> Option<Key> {
        let slot = self.slots.get(index as usize)?;
        slot.value.as_ref().map(|_| Key { index, generation: slot.generation })
    }

    /// Returns the keys and values in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        (0u32..).zip(&self.slots).filter_map(|(index, slot)| {
            slot.value.as_ref().map(|value| (Key { index, generation: slot.generation }, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_finds_nothing_and_its_slot_is_used_again() {
        let mut arena = Arena::new();
        let a = arena.insert_with(|_| "a");
        let b = arena.insert_with(|_| "b");
        assert_eq!(arena.remove(a), Some("a"));
        assert_eq!(arena.remove(a), None);
        let c = arena.insert_with(|_| "c");
        assert_eq!(c.index, a.index);
        assert_eq!((arena.get(a), arena.get(b), arena.get(c)), (None, Some(&"b"), Some(&"c")));
        assert_eq!(arena.iter().map(|(_, value)| *value).collect::<Vec<_>>(), ["c", "b"]);
        assert_eq!(arena.len(), 2);
        assert!(arena.discard(b) && !arena.discard(b));
        assert_eq!((arena.get(b), arena.len()), (None, 1));
        assert_eq!(arena.insert_with(|_| "d").index, b.index);
    }
}
