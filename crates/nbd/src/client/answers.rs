//! What a reply means to the operation that it belongs to.

use base::time::Instant;
use store::api::Fault;

use super::error::ProtocolError;
use super::replies::{Ended, Reply, ReplyError};
use super::{Client, Link, Notice, RESTARTS_MAX, Work};
use crate::wire::{Errno, transmission};

/// A good reply that counts when certain other flushes and writes with FUA have ended: if one of them fails,
/// the system of the server may have told it the only time that it lost what this one should have covered.
#[derive(Debug)]
pub(super) struct HeldReply {
    /// The reply counts when no such request with this cookie or a lower one is under way.
    last: u64,
    success: Success,
}

/// What became durable if nothing fails meanwhile.
#[derive(Debug)]
enum Success {
    Flush { key: Option<u64>, mark: u64, failures: u64 },
    Change { key: u64, at: u64, len: u32, number: u64 },
}

impl Client {
    /// Handles the replies that were received.
    pub(super) fn handle_replies(&mut self, now: Instant, result: Result<(), ProtocolError>) {
        while let Some(ended) = self.replies.next_ended() {
            if matches!(ended.result, Err(ReplyError { errno: Errno::SHUTDOWN, .. })) {
                // The server closes the connection; the request is repeated on the next one.
                self.lost();
                self.leaving = true;
                continue;
            }
            self.attempts = 0;
            self.handle_reply(ended);
            self.silent_since = Some(now);
            self.transmit_due = true;
        }
        // Only now: none of the requests whose replies came together is under way any more, and a later reply
        // may be the failure that an earlier success has to wait for.
        self.release_held();
        self.end_repeating();
        self.leave_if_drained();
        if let Err(error) = result {
            self.outage = true;
            self.notices.push_back(Notice::Broken(error));
            (self.link, self.abort_due) = (Link::Ending, true);
        }
    }

    fn handle_reply(&mut self, ended: Ended<Work>) {
        let Ended { work, at, len, result } = ended;
        if matches!(work, Work::Repeat | Work::Change(..)) {
            self.queue.change_answered(at);
        }
        match work {
            Work::Repeat => {
                if let Err(error) = result {
                    self.lose_changes(error.failure().fault);
                }
            }
            Work::Flush { key, mark, failures } => match result {
                Ok(_) => self.hold(Success::Flush { key, mark, failures }),
                Err(error) => {
                    self.durability_failed(error.failure().fault);
                    if key.is_none() && !self.keeps_unflushed {
                        self.lose_changes(error.failure().fault);
                        self.unflushed.remove_before(mark);
                    }
                    self.flush_ended(key, Err(error));
                }
            },
            Work::Change(key, change, fua) => match result {
                Ok(_) if self.flushes() => {
                    let number = self.unflushed.mark();
                    self.unflushed.add(at, len, change);
                    if fua {
                        self.hold(Success::Change { key, at, len, number });
                    } else {
                        self.piece_ended(key, Ok(()));
                    }
                }
                result => {
                    if let Err(error) = &result
                        && fua
                    {
                        self.durability_failed(error.failure().fault);
                    }
                    self.piece_ended(key, result.map(|_| ()));
                }
            },
            Work::Read(key, index) => {
                let result = result.map(|reply| {
                    if let (Reply::Data(data), Some(job)) = (reply, self.jobs.get_mut(&key)) {
                        job.read_piece(index, data);
                    }
                });
                self.piece_ended(key, result);
            }
            Work::Status(key) => {
                let granule = u64::from(self.config.block_len.max(self.info.block_len));
                if let (Ok(Reply::Extents(extents)), Some(job)) = (&result, self.jobs.get_mut(&key)) {
                    job.status(len, extents, granule);
                }
                self.piece_ended(key, result.map(|_| ()));
            }
        }
    }

    /// Keeps the good reply of a flush or of a write with FUA until it counts.
    fn hold(&mut self, success: Success) {
        let last = self.replies.last_under_way(Work::makes_durable).unwrap_or(0);
        self.held.push_back(HeldReply { last, success });
    }

    /// Applies the replies that count now.
    fn release_held(&mut self) {
        let first = self.replies.first_under_way(Work::makes_durable).unwrap_or(u64::MAX);
        while self.held.front().is_some_and(|held| held.last < first)
            && let Some(held) = self.held.pop_front()
        {
            self.apply(held.success);
        }
    }

    fn apply(&mut self, success: Success) {
        match success {
            Success::Flush { key, mark, failures } => {
                if failures == self.failures {
                    self.unflushed.remove_before(mark);
                    self.knows_all = true;
                }
                self.flush_ended(key, Ok(()));
            }
            Success::Change { key, at, len, number } => {
                if self.jobs.get(&key).is_some_and(|job| job.failures == self.failures) {
                    self.unflushed.remove_durable(at, len, number);
                }
                self.piece_ended(key, Ok(()));
            }
        }
    }

    fn flush_ended(&mut self, key: Option<u64>, result: Result<(), ReplyError>) {
        match key {
            Some(key) => self.piece_ended(key, result),
            None => (self.flushing, self.keeps_unflushed) = (false, false),
        }
    }

    /// Handles that a flush or a write with FUA has failed. What an earlier client changed cannot be
    /// repeated.
    fn durability_failed(&mut self, fault: Fault) {
        self.failures += 1;
        self.repeat_before_flush = true;
        if !core::mem::replace(&mut self.knows_all, true) {
            self.lose_changes(fault);
        }
    }

    /// Handles the end of one request of a job.
    pub(super) fn piece_ended(&mut self, key: u64, result: Result<(), ReplyError>) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        job.open = job.open.saturating_sub(1);
        if let Err(error) = result {
            job.failure.get_or_insert(error.failure());
        }
        if job.open > 0 || !job.is_cut() {
            return;
        }
        let is_doubtful = job.failures != self.failures && self.info.has(transmission::SEND_FLUSH);
        if is_doubtful && job.failure.is_none() && (job.stable || job.is_flush()) {
            if job.restarts < RESTARTS_MAX {
                job.restart();
                self.queue.push_front(key);
                return;
            }
            job.failure = Some(Fault::Medium.into());
        }
        let needs_flush = job.is_change()
            && job.stable
            && job.failure.is_none()
            && !job.flush_sent
            && self.info.has(transmission::SEND_FLUSH)
            && !self.info.has(transmission::SEND_FUA);
        if needs_flush {
            self.queue.push_front(key);
        } else if let Some(job) = self.jobs.remove(&key) {
            if job.failure.is_some() {
                self.queue.remove(key);
            }
            let id = job.id;
            self.complete(id, job.into_result());
        }
    }
}
