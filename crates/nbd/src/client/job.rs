//! One operation of the owner, which becomes one or more requests.

use alloc::vec::Vec;

use base::buffer::{Bytes, DataList};
use base::int_cast::{to_u32, to_u64, to_usize};
use base::time::Instant;
use store::api::{Extent, ExtentState, Failure, Fault, OpAction, OpId, OpOutput};

use super::unflushed::Change;
use crate::handshake::ExportInfo;
use crate::wire::{STATE_HOLE, STATE_ZERO};

/// The most bytes that one request reads or writes: the largest buffer that a pool keeps.
pub(super) const PIECE_MAX: u32 = 1 << 20;

/// The most bytes that one request zeroes or deallocates, so that a server that writes zeros is not silent
/// for long.
pub(super) const CHANGE_PIECE_MAX: u32 = 128 << 20;

/// The most bytes that one request asks the status of.
const STATUS_PIECE_MAX: u32 = 1 << 30;

/// An operation, and how far it is.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: OpId,
    pub(super) action: OpAction,
    /// Whether the operation must be durable before it is acknowledged.
    pub(super) stable: bool,
    /// How many bytes of the range have become requests.
    cut: u64,
    /// How many flushes and writes with FUA had failed when the first request was sent.
    pub(super) failures: u64,
    /// How many requests are under way.
    pub(super) open: u32,
    /// The flush that makes a stable change durable was sent.
    pub(super) flush_sent: bool,
    /// The data of a read, by piece.
    data: Vec<Option<Bytes>>,
    extents: Vec<Extent>,
    pub(super) failure: Option<Failure>,
    /// When the operation was submitted, and how often it has begun again.
    pub(super) since: Instant,
    pub(super) restarts: u32,
}

/// The next request of a job.
#[derive(Debug)]
pub(super) enum Piece {
    Read { at: u64, len: u32, index: usize },
    Change { at: u64, len: u32, change: Change },
    Flush,
    Status { at: u64, len: u32 },
}

impl Job {
    pub(super) const fn new(id: OpId, action: OpAction, stable: bool, since: Instant) -> Self {
        Self {
            id,
            action,
            stable,
            cut: 0,
            failures: 0,
            open: 0,
            flush_sent: false,
            data: Vec::new(),
            extents: Vec::new(),
            failure: None,
            since,
            restarts: 0,
        }
    }

    /// Begins again.
    pub(super) fn restart(&mut self) {
        if self.has_begun() {
            self.restarts = self.restarts.saturating_add(1);
        }
        (self.cut, self.open, self.flush_sent, self.failure) = (0, 0, false, None);
        self.data.clear();
        self.extents.clear();
    }

    /// Returns whether a request was sent.
    pub(super) const fn has_begun(&self) -> bool {
        self.cut > 0 || self.flush_sent
    }

    pub(super) const fn is_change(&self) -> bool {
        self.action.is_change()
    }

    pub(super) const fn is_flush(&self) -> bool {
        matches!(self.action, OpAction::Flush)
    }

    /// Returns whether every request of the operation was cut, or no more shall be.
    pub(super) fn is_cut(&self) -> bool {
        match self.action {
            OpAction::Flush => self.flush_sent || self.failure.is_some(),
            _ => self.failure.is_some() || self.cut >= self.action.range().1,
        }
    }

    /// Returns where the next request of a change begins and ends, and where the operation ends.
    pub(super) fn next_range(&self, info: &ExportInfo) -> Option<(u64, u64, u64)> {
        if self.is_cut() {
            return None;
        }
        let (start, whole) = self.action.range();
        let most = match self.action {
            OpAction::Write { .. } => PIECE_MAX.min(info.payload_len_max),
            _ => CHANGE_PIECE_MAX.min(info.change_len_max),
        };
        let at = start.saturating_add(self.cut);
        let end = start.saturating_add(whole);
        Some((at, end.min(at.saturating_add(u64::from(most))), end))
    }

    /// Returns the next request.
    pub(super) fn next_piece(&mut self, info: &ExportInfo) -> Option<Piece> {
        if self.is_cut() {
            return None;
        }
        let (start, whole) = self.action.range();
        let at = start.saturating_add(self.cut);
        let left = whole.saturating_sub(self.cut);
        let take = |most: u32| to_u32(left.min(u64::from(most)));
        let payload = PIECE_MAX.min(info.payload_len_max);
        let change_len = CHANGE_PIECE_MAX.min(info.change_len_max);
        let piece = match &self.action {
            OpAction::Read { .. } => {
                self.data.push(None);
                Piece::Read { at, len: take(payload), index: self.data.len().saturating_sub(1) }
            }
            OpAction::Write { data, .. } => {
                let (from, len) = (to_usize(self.cut), take(payload));
                let change = Change::Write(data.slice(from, from.saturating_add(to_usize(len))));
                Piece::Change { at, len, change }
            }
            OpAction::WriteZeroes { may_deallocate, .. } => {
                let change = Change::Zeroes { may_deallocate: *may_deallocate };
                Piece::Change { at, len: take(change_len), change }
            }
            OpAction::Deallocate { .. } => Piece::Change { at, len: take(change_len), change: Change::Trim },
            OpAction::MapStatus { .. } => {
                // The first part is enough: the extents may cover less than the range.
                self.cut = whole;
                self.open += 1;
                return Some(Piece::Status { at, len: take(STATUS_PIECE_MAX) });
            }
            OpAction::Flush | OpAction::CryptoErase | OpAction::Command(_) | OpAction::Reset => {
                self.flush_sent = true;
                Piece::Flush
            }
        };
        self.open += 1;
        if let Piece::Read { len, .. } | Piece::Change { len, .. } = &piece {
            self.cut = self.cut.saturating_add(u64::from(*len));
        }
        Some(piece)
    }

    /// Records the data of one piece of a read.
    pub(super) fn read_piece(&mut self, index: usize, data: Bytes) {
        if let Some(place) = self.data.get_mut(index) {
            *place = Some(data);
        }
    }

    /// Records the answer to a block status: lengths and flags, from the start of the range.
    pub(super) fn status(&mut self, asked: u32, answered: &[(u32, u32)], granule: u64) {
        let OpAction::MapStatus { at, count_max, .. } = self.action else { return };
        let end = at.saturating_add(u64::from(asked));
        let (mut start, mut described) = (at, at);
        for (len, flags) in answered {
            // The last descriptor may reach beyond the range.
            described = described.saturating_add(u64::from(*len)).min(end);
            let state = match flags & (STATE_HOLE | STATE_ZERO) {
                flags if flags == STATE_HOLE | STATE_ZERO => ExtentState::Hole,
                STATE_ZERO => ExtentState::Anchored,
                // What a hole without the flag of zeros reads as is not known.
                _ => ExtentState::Mapped,
            };
            // A block of which any part has data has storage.
            let stop = match state {
                ExtentState::Mapped => described.next_multiple_of(granule).min(end),
                _ => described - described % granule,
            };
            if stop <= start {
                continue;
            }
            let count = self.extents.len();
            match self.extents.last_mut() {
                Some(last) if last.state == state => last.len = stop - last.at,
                _ if count >= count_max => return,
                _ => self.extents.push(Extent { at: start, len: stop - start, state }),
            }
            start = stop;
        }
        if self.extents.is_empty() && end > at {
            self.extents.push(Extent { at, len: end - at, state: ExtentState::Mapped });
        }
    }

    /// Returns the result of an operation whose requests have all ended.
    pub(super) fn into_result(self) -> Result<OpOutput, Failure> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        match self.action {
            OpAction::Read { len, .. } => {
                let mut list = DataList::new();
                self.data.into_iter().flatten().for_each(|part| list.push(part));
                if list.len() == len { Ok(OpOutput::Data(list)) } else { Err(Fault::Bug.into()) }
            }
            OpAction::MapStatus { .. } => Ok(OpOutput::MapStatus(self.extents)),
            OpAction::Write { data, .. } => Ok(OpOutput::Done(data)),
            _ => Ok(OpOutput::Done(DataList::new())),
        }
    }
}

/// Returns the length of a range in memory, for a comparison with the longest transfer.
pub(super) fn transfer_len(action: &OpAction) -> Option<u64> {
    match action {
        OpAction::Read { len, .. } => Some(to_u64(*len)),
        OpAction::Write { data, .. } => Some(to_u64(data.len())),
        _ => None,
    }
}
