//! How long the client waits for a server that does not answer, and what it does then.

use base::time::Instant;

use super::{Client, Link, Notice, Work, unreachable};

/// After how many times the limit a read is taken for lost although other requests are answered. A server
/// that is only overloaded answers it before: leaving such a server would cost more than it helps.
const READ_LIMITS: u32 = 4;

impl Client {
    /// Returns when operations fail because the server is silent.
    pub(super) fn given_up_at(&self) -> Option<Instant> {
        let since = self.silent_since.filter(|_| self.is_waiting())?;
        Some(since.after(self.config.patience?))
    }

    /// Returns when the client leaves a connection on which a read is not answered, although others may be.
    pub(super) fn left_at(&self) -> Option<Instant> {
        if self.link != Link::Up || self.leaving {
            return None;
        }
        let limit = self.config.patience?.saturating_mul(READ_LIMITS);
        Some(self.replies.oldest(Work::reads)?.after(limit))
    }

    pub(super) fn leave(&mut self) {
        self.leaving = true;
        self.leave_if_drained();
    }

    pub(super) fn leave_if_drained(&mut self) {
        let may_leave = self.closing || self.replies.oldest(|work| !work.reads()).is_none();
        if self.leaving && self.link == Link::Up && may_leave {
            (self.link, self.abort_due) = (Link::Ending, true);
        }
    }

    /// Fails operations, because the server has been silent for too long.
    pub(super) fn give_up(&mut self) {
        self.outage = true;
        if !core::mem::replace(&mut self.given_up, true) {
            self.notices.push_back(Notice::Unanswered);
        }
        self.fail_all();
        self.leave();
        self.end_if_closing();
    }

    /// Fails every operation, except changes that were sent on a connection that lives.
    pub(super) fn fail_all(&mut self) {
        self.queue.clear();
        self.silent_since = None;
        let is_up = self.link == Link::Up;
        for (key, job) in core::mem::take(&mut self.jobs) {
            if is_up && job.is_change() && job.open > 0 {
                self.jobs.insert(key, job);
            } else {
                self.complete(job.id, Err(unreachable(&job.action)));
            }
        }
    }
}
