//! What a reply means to the operation that it belongs to.

use base::time::Instant;
use store::api::Fault;

use super::error::ProtocolError;
use super::replies::{Ended, Reply, ReplyError};
use super::{Client, Link, Notice, RESTARTS_MAX, Work};
use crate::wire::{Errno, transmission};

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
            self.end_repeating();
            self.silent_since = Some(now);
            self.transmit_due = true;
        }
        self.leave_if_drained();
        if let Err(error) = result {
            self.outage = true;
            self.notices.push_back(Notice::Broken(error));
            (self.link, self.abort_due) = (Link::Ending, true);
        }
    }

    fn handle_reply(&mut self, ended: Ended<Work>) {
        let Ended { work, at, len, result } = ended;
        match work {
            Work::Repeat => {
                if let Err(error) = result {
                    self.lose_changes(error.failure().fault);
                }
            }
            Work::Flush { key, mark, failures } => {
                match &result {
                    Ok(_) if failures == self.failures => self.unflushed.remove_before(mark),
                    Ok(_) => {}
                    Err(error) => {
                        self.durability_failed();
                        if key.is_none() {
                            self.lose_changes(error.failure().fault);
                            self.unflushed.remove_before(mark);
                        }
                    }
                }
                match key {
                    Some(key) => self.piece_ended(key, result.map(|_| ())),
                    None => self.flushing = false,
                }
            }
            Work::Change(key, change, fua) => {
                let failures = self.failures;
                let is_durable = fua && self.jobs.get(&key).is_some_and(|job| job.failures == failures);
                match &result {
                    Ok(_) if self.flushes() => self.unflushed.add(at, len, change, is_durable),
                    Err(_) if fua => self.durability_failed(),
                    _ => {}
                }
                self.piece_ended(key, result.map(|_| ()));
            }
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

    /// Handles that a flush or a write with FUA has failed.
    const fn durability_failed(&mut self) {
        self.failures += 1;
        self.repeat_before_flush = true;
    }

    pub(super) fn lose_changes(&mut self, fault: Fault) {
        self.lost_changes = Some(fault);
        self.notices.push_back(Notice::LostChanges(fault));
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
                self.waiting.push_front(key);
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
            self.waiting.push_front(key);
        } else if let Some(job) = self.jobs.remove(&key) {
            if job.failure.is_some() {
                self.waiting.retain(|waiting| *waiting != key);
            }
            let id = job.id;
            self.complete(id, job.into_result());
        }
    }
}
