//! The changes that a server has acknowledged and that no flush has covered yet. A server that dies may have
//! lost them, so they are repeated on the next connection.

use alloc::collections::VecDeque;

use base::buffer::{Bytes, DataList};
use base::int_cast::to_u64;

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
}

/// An acknowledged change.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) at: u64,
    pub(super) len: u32,
    pub(super) change: Change,
}

/// The acknowledged changes, in the order of their acknowledgement: of two that overlap, the later one was
/// sent after the earlier one was acknowledged, or they were under way together and may take effect in any
/// order.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    entries: VecDeque<Entry>,
    /// How many entries were removed so far.
    removed: u64,
    held_bytes: usize,
}

impl Unflushed {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn get(&self, at: usize) -> Option<&Entry> {
        self.entries.get(at)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an acknowledged change. A change that is durable is needed only where an earlier one that is not
    /// would overwrite it when it is repeated.
    pub(super) fn add(&mut self, entry: Entry, is_durable: bool) {
        if is_durable && self.entries.is_empty() {
            return;
        }
        self.held_bytes = self.held_bytes.saturating_add(entry.change.memory());
        self.entries.push_back(entry);
    }

    /// Returns a mark after every change acknowledged so far.
    pub(super) fn mark(&self) -> u64 {
        self.removed.saturating_add(to_u64(self.entries.len()))
    }

    /// Removes the changes before a mark, which a flush has covered.
    pub(super) fn remove_before(&mut self, mark: u64) {
        while self.removed < mark
            && let Some(entry) = self.entries.pop_front()
        {
            self.removed += 1;
            self.held_bytes = self.held_bytes.saturating_sub(entry.change.memory());
        }
    }

    /// Returns whether the client should flush.
    pub(super) fn is_long(&self) -> bool {
        self.held_bytes >= HELD_BYTES_AIM || self.entries.len() >= HELD_COUNT_AIM
    }

    /// Returns whether no change may be added before a flush.
    pub(super) fn is_full(&self) -> bool {
        self.held_bytes >= 2 * HELD_BYTES_AIM || self.entries.len() >= 2 * HELD_COUNT_AIM
    }
}
