//! The operations that have requests to send. Two changes of the same bytes are never with the server
//! together.
//!
//! A server may carry out requests in any order, and the replies do not tell which one. If two changes of the
//! same bytes were with the server together, the client would not know which of them counts when both are
//! acknowledged, and could repeat the other one after a lost connection: hosts would read data that had been
//! overwritten. So the later change is held until the earlier one is answered.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// The operations that have requests to send.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    waiting: VecDeque<u64>,
    /// Operations that wait for an earlier change of the same bytes, in the order in which they were found.
    blocked: Vec<Blocked>,
    /// The changes that are with the server: where each ends, by where it begins. No two overlap.
    changing: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Blocked {
    key: u64,
    /// The bytes that the operation has still to change.
    start: u64,
    end: u64,
}

impl SendQueue {
    /// Returns the operation whose request is next.
    pub(super) fn front(&self) -> Option<u64> {
        self.waiting.front().copied()
    }

    pub(super) fn pop_front(&mut self) {
        self.waiting.pop_front();
    }

    pub(super) fn push_front(&mut self, key: u64) {
        self.waiting.push_front(key);
    }

    pub(super) fn push_back(&mut self, key: u64) {
        self.waiting.push_back(key);
    }

    /// Removes an operation that has ended.
    pub(super) fn remove(&mut self, key: u64) {
        self.waiting.retain(|waiting| *waiting != key);
        self.blocked.retain(|blocked| blocked.key != key);
    }

    /// Removes every operation.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.blocked.clear();
    }

    /// Replaces the operations by those that are sent on a new connection, on which nothing is under way.
    pub(super) fn restart(&mut self, keys: impl Iterator<Item = u64>) {
        *self = Self { waiting: keys.collect(), ..Self::default() };
    }

    /// Checks whether the operation at the front may send a change of the bytes from `start` to `piece_end`.
    /// If not, it waits, with everything up to `end`. An earlier operation that waits goes first, so that
    /// none starves.
    pub(super) fn admit_front(&mut self, start: u64, piece_end: u64, end: u64) -> bool {
        let changing = self.changing.range(..piece_end).next_back();
        let is_changing = changing.is_some_and(|(_, changing_end)| *changing_end > start);
        let overlaps = |blocked: &Blocked| blocked.start < piece_end && start < blocked.end;
        if !is_changing && !self.blocked.iter().any(overlaps) {
            return true;
        }
        if let Some(key) = self.waiting.pop_front() {
            self.blocked.push(Blocked { key, start, end });
        }
        false
    }

    /// Records that a change was sent.
    pub(super) fn change_sent(&mut self, start: u64, end: u64) {
        self.changing.insert(start, end);
    }

    /// Records that a change was answered. The operations that wait are checked again, in their order.
    pub(super) fn change_answered(&mut self, start: u64) {
        self.changing.remove(&start);
        for blocked in self.blocked.drain(..).rev() {
            self.waiting.push_front(blocked.key);
        }
    }
}
