//! The changes that a server has acknowledged and that no flush has covered yet. A server that dies may have
//! lost them, so they are repeated on the next connection.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use base::buffer::{Bytes, DataList};
use base::int_cast::to_usize;

/// When so much memory is held, the client flushes by itself. At twice as much it sends no further changes
/// until a flush has ended. Servers write back 32 MiB in well under a second, so the flushes cost little.
const HELD_BYTES_AIM: usize = 32 << 20;

/// The same for the number of changes: at their shortest, each occupies 200 bytes.
const HELD_COUNT_AIM: usize = 32 << 10;

/// A change of a range.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write(DataList),
    Zeroes { may_deallocate: bool },
    Trim,
}

impl Change {
    /// Returns how much memory the change keeps allocated, in bytes.
    fn memory(&self) -> usize {
        match self {
            Self::Write(data) => data.parts().iter().map(Bytes::block_len).sum(),
            Self::Zeroes { .. } | Self::Trim => 0,
        }
    }

    /// Returns the change of a part of the range.
    pub(super) fn part(&self, from: u64, len: u64) -> Self {
        match self {
            Self::Write(data) => Self::Write(data.slice(to_usize(from), to_usize(from.saturating_add(len)))),
            other => other.clone(),
        }
    }
}

/// An acknowledged change, or what later ones have left of it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) change: Change,
    /// How many changes were acknowledged before.
    number: u64,
}

impl Entry {
    pub(super) const fn end(&self) -> u64 {
        self.at.saturating_add(self.len)
    }

    fn part(&self, at: u64, len: u64) -> Self {
        let change = self.change.part(at.saturating_sub(self.at), len);
        Self { at, len, change, number: self.number }
    }
}

/// The acknowledged changes by their offsets. No two overlap: each change replaces what it overwrites, so
/// they can be repeated in any order.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    entries: BTreeMap<u64, Entry>,
    /// How many changes were acknowledged so far.
    acknowledged: u64,
    held_bytes: usize,
}

impl Unflushed {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the first change that ends after an offset.
    pub(super) fn after(&self, at: u64) -> Option<&Entry> {
        let around = self.entries.range(..=at).next_back().filter(|(_, entry)| entry.end() > at);
        around.or_else(|| self.entries.range(at..).next()).map(|(_, entry)| entry)
    }

    /// Adds an acknowledged change. What it has overwritten is not repeated any more.
    pub(super) fn add(&mut self, at: u64, len: u32, change: Change) {
        let entry = Entry { at, len: u64::from(len), change, number: self.acknowledged };
        self.cut(at, entry.end());
        self.acknowledged += 1;
        self.insert(entry);
    }

    /// Removes what is left of the change with a number, because it is durable.
    pub(super) fn remove_durable(&mut self, at: u64, len: u32, number: u64) {
        let within = self.entries.range(at..at.saturating_add(u64::from(len)));
        let parts: Vec<u64> = within.filter(|(_, entry)| entry.number == number).map(|(at, _)| *at).collect();
        for entry in parts.into_iter().filter_map(|at| self.entries.remove(&at)) {
            self.held_bytes = self.held_bytes.saturating_sub(entry.change.memory());
        }
    }

    /// Returns a mark after every change acknowledged so far.
    pub(super) const fn mark(&self) -> u64 {
        self.acknowledged
    }

    /// Removes the changes before a mark, which a flush has covered.
    pub(super) fn remove_before(&mut self, mark: u64) {
        let held_bytes = &mut self.held_bytes;
        self.entries.retain(|_, entry| {
            let is_kept = entry.number >= mark;
            if !is_kept {
                *held_bytes = held_bytes.saturating_sub(entry.change.memory());
            }
            is_kept
        });
    }

    /// Returns whether the client should flush.
    pub(super) fn is_long(&self) -> bool {
        self.held_bytes >= HELD_BYTES_AIM || self.entries.len() >= HELD_COUNT_AIM
    }

    /// Returns whether no change may be added before a flush.
    pub(super) fn is_full(&self) -> bool {
        self.held_bytes >= 2 * HELD_BYTES_AIM || self.entries.len() >= 2 * HELD_COUNT_AIM
    }

    /// Removes a range from the changes.
    fn cut(&mut self, start: u64, end: u64) {
        while let Some(at) = self.last_before(end).filter(|entry| entry.end() > start).map(|entry| entry.at)
            && let Some(entry) = self.entries.remove(&at)
        {
            self.held_bytes = self.held_bytes.saturating_sub(entry.change.memory());
            if entry.at < start {
                self.insert(entry.part(entry.at, start - entry.at));
            }
            if entry.end() > end {
                self.insert(entry.part(end, entry.end() - end));
            }
        }
    }

    fn last_before(&self, end: u64) -> Option<&Entry> {
        self.entries.range(..end).next_back().map(|(_, entry)| entry)
    }

    fn insert(&mut self, entry: Entry) {
        self.held_bytes = self.held_bytes.saturating_add(entry.change.memory());
        self.entries.insert(entry.at, entry);
    }
}
