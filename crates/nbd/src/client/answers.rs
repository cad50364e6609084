//! What a reply means to the operation that it belongs to.

use base::time::Instant;
use store::api::Fault;

use super::error::ProtocolError;
use super::replies::{Ended, Reply, ReplyError};
use super::unflushed::Entry;
use super::{Client, Link, Notice, Work};
use crate::wire::{Errno, transmission};

impl Client {
    /// Handles the replies that were received.
    pub(super) fn handle_replies(&mut self, now: Instant, result: Result<(), ProtocolError>) {
        while let Some(ended) = self.replies.next_ended() {
            if matches!(ended.result, Err(ReplyError { errno: Errno::SHUTDOWN, .. })) {
                // The server closes the connection; the request is repeated on the next one.
                self.lost();
                (self.link, self.abort_due) = (Link::Ending, true);
                return;
            }
            self.attempts = 0;
            self.handle_reply(ended);
            self.silent_since = Some(now);
            self.transmit_due = true;
        }
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
                if self.replies.is_idle() && self.repeating.is_some_and(|next| next >= self.unflushed.len()) {
                    self.back(self.unflushed.len());
                }
            }
            Work::Flush(key, mark) => {
                match (&result, key) {
                    (Ok(_), _) => self.unflushed.remove_before(mark),
                    (Err(_), Some(_)) => self.repeat_before_flush = true,
                    (Err(error), None) => {
                        self.lose_changes(error.failure().fault);
                        self.unflushed.remove_before(mark);
                    }
                }
                match key {
                    Some(key) => self.piece_ended(key, result.map(|_| ())),
                    None => self.flushing = false,
                }
            }
            Work::Change(key, change) => {
                let is_done = result.is_ok();
                let has_fua = self.info.has(transmission::SEND_FUA);
                let is_stable = self.jobs.get(&key).is_some_and(|job| job.stable);
                if is_done && self.flushes() {
                    self.unflushed.add(Entry { at, len, change }, is_stable && has_fua);
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

    fn lose_changes(&mut self, fault: Fault) {
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
