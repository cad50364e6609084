//! Flushes and stable writes that are under way together on one file.
//!
//! The kernel reports a failed write-back once for each open file: to the first flush or stable write that
//! looks for it, whichever write it belongs to. The others find no dirty page and no new error, and succeed.
//! So a success counts when nothing that was under way at any time with it has failed: neither what ended
//! before it, which a count of failures tells, nor what was still under way when it ended. For the latter
//! the success is held. What begins after that cannot have taken the report, so a success is never held for
//! longer than the slowest operation that was under way when it ended.
//!
//! The memory is bounded by the number of operations that are not completed.

use std::collections::VecDeque;

use store::api::{Completion, Fault};

/// An operation that is under way.
#[derive(Debug)]
pub(crate) struct Ticket {
    number: u64,
    /// The count of failures when the operation began.
    failures: u64,
}

/// The operations that are under way, and the successes that do not count yet.
#[derive(Debug, Default)]
pub(crate) struct Overlap {
    next: u64,
    /// The numbers of the operations under way, in ascending order.
    under_way: VecDeque<u64>,
    /// How many operations have failed, and how the last of them did.
    failures: u64,
    last: Option<Fault>,
    /// Successes in the order in which they came. Each counts when no operation with a smaller number than
    /// that beside it is under way.
    held: VecDeque<(u64, Completion)>,
}

impl Overlap {
    pub(crate) fn begin(&mut self) -> Ticket {
        let number = self.next;
        self.next += 1;
        self.under_way.push_back(number);
        Ticket { number, failures: self.failures }
    }

    /// Ends an operation that succeeded. Its completion, and others, are added to `ready` when they count.
    pub(crate) fn succeed(
        &mut self,
        ticket: Ticket,
        mut completion: Completion,
        ready: &mut VecDeque<Completion>,
    ) {
        match self.last.filter(|_| ticket.failures != self.failures) {
            Some(fault) => {
                completion.result = Err(fault.into());
                ready.push_back(completion);
            }
            None => self.held.push_back((self.next, completion)),
        }
        self.leave(ticket, ready);
    }

    /// Ends an operation that failed with what may be the report of another one's failure.
    pub(crate) fn fail(&mut self, ticket: Ticket, fault: Fault, ready: &mut VecDeque<Completion>) {
        self.failures += 1;
        self.last = Some(fault);
        self.fail_held(&ticket, fault, ready);
        self.leave(ticket, ready);
    }

    /// Fails the successes that are held for an operation.
    fn fail_held(&mut self, ticket: &Ticket, fault: Fault, ready: &mut VecDeque<Completion>) {
        let first = self.held.partition_point(|(before, _)| *before <= ticket.number);
        let failed = self.held.drain(first..);
        ready.extend(failed.map(|(_, held)| Completion { result: Err(fault.into()), ..held }));
    }

    /// Ends an operation that was not begun. The successes that are held for it may rely on it, so they fail
    /// too. It has taken no report, so it says nothing about what ends later.
    pub(crate) fn abandon(&mut self, ticket: Ticket, fault: Fault, ready: &mut VecDeque<Completion>) {
        self.fail_held(&ticket, fault, ready);
        self.leave(ticket, ready);
    }

    /// Ends an operation that tells nothing about others.
    #[expect(clippy::needless_pass_by_value, reason = "the operation has ended")]
    pub(crate) fn leave(&mut self, ticket: Ticket, ready: &mut VecDeque<Completion>) {
        if let Ok(at) = self.under_way.binary_search(&ticket.number) {
            self.under_way.remove(at);
        }
        let oldest = self.under_way.front().copied().unwrap_or(self.next);
        let count = self.held.partition_point(|(before, _)| *before <= oldest);
        ready.extend(self.held.drain(..count).map(|(_, completion)| completion));
    }
}
