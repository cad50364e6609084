//! Which request is sent next.

use base::buffer::DataList;
use base::int_cast::{to_u32, to_usize};
use base::time::Instant;

use super::job::{CHANGE_PIECE_MAX, PIECE_MAX, Piece};
use super::sink::RequestSink;
use super::unflushed::Change;
use super::{Client, Work};
use crate::wire::{Cmd, FLAG_FUA, FLAG_NO_HOLE, Request, transmission};

impl Client {
    /// Sends the next request. Returns whether there was one that may be sent now.
    pub(super) fn send_next(&mut self, now: Instant, out: &mut dyn RequestSink) -> bool {
        if self.replies.is_full() || self.leaving {
            return false;
        }
        if let Some(next) = self.repeating {
            return self.repeat_next(now, out, next);
        }
        if (self.flush_due || self.unflushed.is_long()) && !self.flushing {
            self.keeps_unflushed &= !self.unflushed.is_long();
            return self.begin_repeating() || self.send_flush(now, out, None);
        }
        self.send_job(now, out) || self.send_leave(now, out)
    }

    /// Begins to repeat the changes, if that must be done before the next flush. Returns whether it must.
    fn begin_repeating(&mut self) -> bool {
        let must_repeat = self.repeat_before_flush && !self.unflushed.is_empty();
        if must_repeat {
            self.repeating = Some(0);
        }
        must_repeat
    }

    fn repeat_next(&mut self, now: Instant, out: &mut dyn RequestSink, next: u64) -> bool {
        if next == 0 {
            // Requests that were under way when a flush failed must end first.
            if !self.replies.is_idle() {
                return false;
            }
            self.repeat_before_flush = false;
        }
        let Some(entry) = self.unflushed.after(next) else { return false };
        let at = entry.at.max(next);
        let len_max = match entry.change {
            Change::Write(_) => PIECE_MAX.min(self.info.payload_len_max),
            Change::Zeroes { .. } | Change::Trim => CHANGE_PIECE_MAX.min(self.info.change_len_max),
        };
        let len = entry.end().saturating_sub(at).min(u64::from(len_max));
        let change = entry.change.part(at.saturating_sub(entry.at), len);
        self.repeating = Some(at.saturating_add(len));
        self.send_change(now, out, (at, to_u32(len)), change, false, |_| Work::Repeat)
    }

    fn send_job(&mut self, now: Instant, out: &mut dyn RequestSink) -> bool {
        while let Some(key) = self.queue.front() {
            let (is_full, failures) = (self.unflushed.is_full(), self.failures);
            let Some(job) = self.jobs.get_mut(&key) else {
                self.queue.pop_front();
                continue;
            };
            let (is_flush, stable) = (job.is_flush() && !job.flush_sent, job.stable);
            let must_flush = job.is_change() && job.is_cut() && stable && job.open == 0 && !job.flush_sent;
            if is_flush && let Some(fault) = self.lost_changes.take() {
                job.failure = Some(fault.into());
                job.open = 1;
                self.piece_ended(key, Ok(()));
                continue;
            }
            if (is_flush || must_flush) && self.begin_repeating() {
                return true;
            }
            let Some(job) = self.jobs.get_mut(&key) else { continue };
            if must_flush {
                (job.flush_sent, job.open) = (true, 1);
                self.queue.pop_front();
                return self.send_flush(now, out, Some(key));
            }
            if job.is_change() && is_full {
                return false;
            }
            if !job.has_begun() {
                job.failures = failures;
            }
            let info = self.info;
            if job.is_change()
                && let Some((start, piece_end, end)) = job.next_range(&info)
                && !self.queue.admit_front(start, piece_end, end)
            {
                continue;
            }
            let Some(piece) = job.next_piece(&info) else {
                self.queue.pop_front();
                continue;
            };
            if job.is_cut() {
                self.queue.pop_front();
            }
            return self.send_piece(now, out, key, piece, stable);
        }
        false
    }

    fn send_piece(
        &mut self,
        now: Instant,
        out: &mut dyn RequestSink,
        key: u64,
        piece: Piece,
        stable: bool,
    ) -> bool {
        match piece {
            Piece::Read { at, len, index } => {
                let request = Request { command: Cmd::READ, at, len, ..NOTHING };
                self.send(now, out, request, None, Work::Read(key, index))
            }
            Piece::Status { at, len } => {
                let request = Request { command: Cmd::BLOCK_STATUS, at, len, ..NOTHING };
                self.send(now, out, request, None, Work::Status(key))
            }
            Piece::Flush => self.send_flush(now, out, Some(key)),
            Piece::Change { at, len, change } => {
                let fua = stable && self.info.has(transmission::SEND_FUA);
                self.send_change(now, out, (at, len), change, fua, |change| Work::Change(key, change, fua))
            }
        }
    }

    /// Sends a flush, for a job or as the client's own.
    fn send_flush(&mut self, now: Instant, out: &mut dyn RequestSink, key: Option<u64>) -> bool {
        if key.is_none() {
            (self.flush_due, self.flushing) = (false, true);
        }
        let work = Work::Flush { key, mark: self.unflushed.mark(), failures: self.failures };
        self.send(now, out, Request { command: Cmd::FLUSH, ..NOTHING }, None, work)
    }

    fn send_change(
        &mut self,
        now: Instant,
        out: &mut dyn RequestSink,
        (at, len): (u64, u32),
        change: Change,
        fua: bool,
        work: impl FnOnce(Change) -> Work,
    ) -> bool {
        let fua = if fua { FLAG_FUA } else { 0 };
        let (command, flags, data) = match &change {
            Change::Write(data) => (Cmd::WRITE, fua, Some(data.clone())),
            Change::Zeroes { may_deallocate: true } => (Cmd::WRITE_ZEROES, fua, None),
            Change::Zeroes { may_deallocate: false } => (Cmd::WRITE_ZEROES, fua | FLAG_NO_HOLE, None),
            Change::Trim if self.info.has(transmission::SEND_TRIM) => (Cmd::TRIM, fua, None),
            Change::Trim => (Cmd::WRITE_ZEROES, fua, None),
        };
        let is_sent = self.send(now, out, Request { flags, command, at, len, cookie: 0 }, data, work(change));
        if is_sent {
            self.queue.change_sent(at, at.saturating_add(u64::from(len)));
        }
        is_sent
    }

    fn send(
        &mut self,
        now: Instant,
        out: &mut dyn RequestSink,
        request: Request,
        data: Option<DataList>,
        work: Work,
    ) -> bool {
        let buf = (request.command == Cmd::READ).then(|| self.pool.take(to_usize(request.len)));
        let range = (request.at, request.len);
        let Some(cookie) = self.replies.register(now, request.command, range, buf, work) else {
            return false;
        };
        out.put(Request { cookie, ..request }, data);
        true
    }

    /// Flushes and takes leave, when the client is closing and nothing is under way.
    fn send_leave(&mut self, now: Instant, out: &mut dyn RequestSink) -> bool {
        if !self.closing || !self.jobs.is_empty() || !self.replies.is_idle() || self.disconnect_sent {
            return false;
        }
        if !self.unflushed.is_empty() {
            return self.begin_repeating() || self.send_flush(now, out, None);
        }
        out.put(Request { command: Cmd::DISC, ..NOTHING }, None);
        (self.disconnect_sent, self.close_due) = (true, true);
        true
    }
}

/// A request whose other fields are set.
const NOTHING: Request = Request { flags: 0, command: Cmd(0), cookie: 0, at: 0, len: 0 };
