//! A table of counters that is bounded and forgets none that is not void.

use alloc::collections::BTreeMap;
use core::time::Duration;

use super::Key;

/// A counter that says nothing any more after some time.
pub(super) trait Transient: Default {
    /// Returns whether the counter equals one that never counted anything.
    fn is_void(&self, now: Duration) -> bool;
}

/// Counters by key. When the table is full of counters that are not void, the keys that follow share
/// [`Self::SHARED`] counters.
#[derive(Clone, Debug)]
pub(super) struct Table<T> {
    counters: BTreeMap<Key, T>,
    /// When void counters were removed last.
    cleaned: Option<Duration>,
}

impl<T: Transient> Table<T> {
    /// How many keys have counters of their own: those of 1000 hosts that use up their allowances. They take
    /// at most 8 MiB.
    pub(super) const MAX: usize = 65_536;
    /// How many counters are shared by the keys beyond.
    pub(super) const SHARED: Key = 4096;
    /// How often void counters are removed: this takes some milliseconds.
    const CLEANED_EVERY: Duration = Duration::from_secs(1);

    pub(super) const fn new() -> Self {
        Self { counters: BTreeMap::new(), cleaned: None }
    }

    /// Returns the counter that counts for a key, if there is one.
    pub(super) fn get(&self, key: Key) -> Option<&T> {
        self.counters.get(&key).or_else(|| self.counters.get(&(key % Self::SHARED)))
    }

    /// Returns the counter that [`Self::entry`] returned with this key.
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.counters.get_mut(&key)
    }

    /// Returns the counter that counts for a key, and the key under which it is.
    pub(super) fn entry(&mut self, now: Duration, key: Key) -> (Key, &mut T) {
        let shared = key % Self::SHARED;
        let key = if self.counters.contains_key(&key) {
            key
        } else if self.counters.contains_key(&shared) || !self.has_room(now) {
            // What a shared counter has counted may be this key's, so that it counts until it is void.
            shared
        } else {
            key
        };
        (key, self.counters.entry(key).or_default())
    }

    /// Returns the counters that are not void.
    pub(super) fn iter(&self, now: Duration) -> impl Iterator<Item = (Key, &T)> {
        self.counters
            .iter()
            .filter(move |(_, counter)| !counter.is_void(now))
            .map(|(key, value)| (*key, value))
    }

    /// Adds a counter that was stored.
    pub(super) fn restore(&mut self, key: Key, counter: T) {
        self.counters.insert(key, counter);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.counters.len()
    }

    fn has_room(&mut self, now: Duration) -> bool {
        if self.counters.len() < Self::MAX {
            return true;
        }
        if self.cleaned.is_none_or(|cleaned| now.saturating_sub(cleaned) >= Self::CLEANED_EVERY) {
            self.cleaned = Some(now);
            self.counters.retain(|_, counter| !counter.is_void(now));
        }
        self.counters.len() < Self::MAX
    }
}
