//! Deadlines: [`Timer`] lists every timer of the engine, and one heap orders their deadlines.
//!
//! Moving a deadline further out does not touch the heap: it keeps the old time, and when that passes, the
//! owner's present deadline is checked.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use base::state_machine::ConnId;
use base::time::Instant;

use super::arena::Key;

/// Every timer of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The login of a connection.
    Login,
    /// The response that permits a try of a password.
    Guess,
    /// Silence on a connection: the connection is pinged, or dropped.
    Silence,
    /// Data that the initiator owes.
    Data,
    /// The time limit of a logout, ours or the one that we asked the initiator for.
    Logout,
    /// Statuses that are not acknowledged.
    Ack,
    /// A missing command number of a session.
    Gap,
    /// The data that a task management function waits for.
    TmfData,
    /// The acknowledgements that its response waits for.
    ResponseFence,
    /// The retention time of tasks whose connection is lost.
    Retain,
    /// The memory that tasks hold whose connection is lost.
    Detached,
    /// The life of a discovery session.
    Discovery,
}

/// How many timers there are.
pub(crate) const TIMERS: usize = Timer::Discovery as usize + 1;

/// The owner of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A connection.
    Connection(ConnId),
    /// A session.
    Session(Key),
}

/// The deadlines of one owner.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    due: [Option<Instant>; TIMERS],
    /// The time of its entry in the heap.
    listed: [Option<Instant>; TIMERS],
}

/// The deadlines of all owners.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Owner, Timer)>>,
}

impl Timers {
    /// Returns a time at or before the first deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Sets or moves a deadline.
    pub(crate) fn set(&mut self, owner: Owner, deadlines: &mut Deadlines, timer: Timer, at: Instant) {
        let (Some(due), Some(listed)) =
            (deadlines.due.get_mut(timer as usize), deadlines.listed.get_mut(timer as usize))
        else {
            return;
        };
        *due = Some(at);
        if listed.is_none_or(|listed| listed > at) {
            *listed = Some(at);
            self.heap.push(Reverse((at, owner, timer)));
        }
    }

    /// Returns the first entry whose time has passed. [`Timers::passed`] checks whether its deadline has.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(Instant, Owner, Timer)> {
        let Reverse((at, _, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// Checks an entry that was popped. Returns whether its deadline has passed, and pushes it again if the
    /// deadline was moved further out.
    pub(crate) fn passed(
        &mut self,
        now: Instant,
        deadlines: &mut Deadlines,
        (at, owner, timer): (Instant, Owner, Timer),
    ) -> bool {
        let (Some(due), Some(listed)) =
            (deadlines.due.get_mut(timer as usize), deadlines.listed.get_mut(timer as usize))
        else {
            return false;
        };
        if *listed != Some(at) {
            return false;
        }
        *listed = None;
        match *due {
            Some(due) if due > now => {
                *listed = Some(due);
                self.heap.push(Reverse((due, owner, timer)));
                false
            }
            Some(_) => {
                *due = None;
                true
            }
            None => false,
        }
    }
}

impl Deadlines {
    /// Clears a deadline.
    pub(crate) fn clear(&mut self, timer: Timer) {
        if let Some(due) = self.due.get_mut(timer as usize) {
            *due = None;
        }
    }

    /// Returns whether a deadline is set.
    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.due.get(timer as usize).is_some_and(Option::is_some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner::Connection(ConnId(3));

    fn fired(timers: &mut Timers, deadlines: &mut Deadlines, now: u64) -> usize {
        let mut count = 0;
        while let Some(entry) = timers.pop(Instant(now)) {
            count += usize::from(timers.passed(Instant(now), deadlines, entry));
        }
        count
    }

    #[test]
    fn a_deadline_passes_once_wherever_it_was_moved() {
        let (mut timers, mut deadlines) = (Timers::default(), Deadlines::default());
        timers.set(OWNER, &mut deadlines, Timer::Gap, Instant(10));
        timers.set(OWNER, &mut deadlines, Timer::Gap, Instant(20));
        assert_eq!(timers.next(), Some(Instant(10)));
        assert_eq!(fired(&mut timers, &mut deadlines, 10), 0);
        assert_eq!(timers.next(), Some(Instant(20)));
        timers.set(OWNER, &mut deadlines, Timer::Gap, Instant(15));
        assert_eq!(fired(&mut timers, &mut deadlines, 15), 1);
        assert_eq!(fired(&mut timers, &mut deadlines, 100), 0);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn setting_and_clearing_a_deadline_again_and_again_keeps_one_entry() {
        let (mut timers, mut deadlines) = (Timers::default(), Deadlines::default());
        for at in 10..1000 {
            timers.set(OWNER, &mut deadlines, Timer::Gap, Instant(at));
            deadlines.clear(Timer::Gap);
        }
        assert_eq!(timers.heap.len(), 1);
        assert_eq!(fired(&mut timers, &mut deadlines, 2000), 0);
    }
}
