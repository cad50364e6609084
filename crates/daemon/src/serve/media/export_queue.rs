//! What the exports of a reactor share.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use base::time::Instant;

/// The exports of a reactor that may have an action, and the present time. Clones share one state.
#[derive(Clone, Debug, Default)]
pub(in crate::serve) struct ExportQueue {
    clock: Rc<Cell<Instant>>,
    due: Rc<RefCell<VecDeque<u32>>>,
    number_next: Rc<Cell<u32>>,
}

impl ExportQueue {
    /// Sets the time for operations that are submitted from now on.
    pub(super) fn set_time(&self, now: Instant) {
        self.clock.set(now);
    }

    /// Returns the time that was set last.
    pub(super) fn now(&self) -> Instant {
        self.clock.get()
    }

    /// Returns a number that no other export of the reactor has.
    pub(super) fn take_number(&self) -> u32 {
        self.number_next.replace(self.number_next.get().wrapping_add(1))
    }

    /// Appends an export.
    pub(super) fn push(&self, number: u32) {
        self.due.borrow_mut().push_back(number);
    }

    /// Removes the first export.
    pub(super) fn next(&self) -> Option<u32> {
        self.due.borrow_mut().pop_front()
    }
}
