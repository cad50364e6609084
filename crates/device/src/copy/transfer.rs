//! Transfers of bytes from one unit to another, or to another address of the same unit, in pieces.
//!
//! Several pieces are in progress at a time. Where source and destination overlap, the result is the same as
//! if everything had been read before anything was written: the transfer proceeds in the direction that does
//! not overwrite bytes still to be read, and a piece is written only when it and all before it have been
//! read.
//!
//! This module knows no tasks: it makes calls and receives the answers.

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;

use base::buffer::DataList;
use base::units::{BlockSize, Blocks, Lba};
use scsi::copy::rod::BlockRange;
use scsi::sense::{Asc, ForwardedFrom, Sense, SenseKey};
use scsi::status::Status;

use crate::contract::{
    THIRD_PARTY_TRANSFER_MAX, ThirdPartyError, ThirdPartyReply, ThirdPartyRequest, ThirdPartyResult,
    ThirdPartyUnit,
};

/// The longest piece, in bytes: a multiple of every block size, and a buffer size that the pool keeps.
pub(crate) const PIECE_LEN: u64 = 512 << 10;

const _: () = assert!(PIECE_LEN + 2 * 4096 <= THIRD_PARTY_TRANSFER_MAX as u64);

/// How many pieces are in progress: one being written and one being read, twice, to hide the latency between.
/// A copy holds at most this many pieces in memory: 2 MiB.
pub(crate) const PIECES_UNDER_WAY: usize = 4;

/// The source of the bytes.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A unit, from a byte on.
    Unit {
        /// The unit.
        unit: ThirdPartyUnit,
        /// Its block size.
        block: BlockSize,
        /// The first byte.
        at: u64,
    },
    /// The data that a ROD token represents, from a block on.
    Token {
        /// The unit that created the token.
        unit: ThirdPartyUnit,
        /// The token.
        token: Rc<[u8]>,
        /// The block size of the unit.
        block: BlockSize,
        /// The first block.
        offset: Blocks,
    },
    /// Zeros, without a source unit.
    Zeros,
}

/// A failed call, and its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransferFault {
    /// Whether the unit was being read or written.
    pub(crate) side: ForwardedFrom,
    /// The failure that the unit returned.
    pub(crate) fault: ThirdPartyError,
}

/// The state of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferState {
    /// Calls are in progress.
    Going,
    /// Everything was written.
    Finished,
    /// A call failed, and no call is in progress any more.
    Failed(TransferFault),
}

/// A transfer.
#[derive(Debug)]
pub(crate) struct Transfer {
    source: Source,
    destination: ThirdPartyUnit,
    block: BlockSize,
    /// The pieces not begun, in order of execution.
    pending: VecDeque<PendingRun>,
    /// The pieces begun, in the same order.
    pieces: VecDeque<Piece>,
    /// How many bytes were written.
    written: u64,
    /// How many bytes were written without a gap from the first piece on.
    prefix: u64,
    fault: Option<TransferFault>,
}

/// A part of the transfer that is written to consecutive blocks. It is cut into pieces when they are begun.
#[derive(Clone, Copy, Debug)]
struct PendingRun {
    /// The offset of its first byte in the bytes of the transfer.
    start: u64,
    len: u64,
    lba: Lba,
    /// Whether pieces are cut off its end.
    backward: bool,
}

#[derive(Debug)]
struct Piece {
    start: u64,
    len: u64,
    lba: Lba,
    data: DataList,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be read, or to be read further.
    Unread,
    Reading(u32),
    /// Waits until the pieces before it are read.
    Read,
    Writing(u32),
    Written,
}

/// Makes a call and returns its number.
pub(crate) type Place<'a> = &'a mut dyn FnMut(ThirdPartyUnit, ThirdPartyRequest) -> u32;

impl Transfer {
    /// Plans a transfer to blocks of `destination`, whose block size is `block`.
    pub(crate) fn new(
        source: Source,
        destination: ThirdPartyUnit,
        block: BlockSize,
        ranges: &[BlockRange],
    ) -> Self {
        let mut start = 0;
        let mut pending = VecDeque::new();
        for range in ranges.iter().filter(|range| range.blocks.0 > 0) {
            let len = range.blocks.0 << block.shift();
            pending.push_back(PendingRun { start, len, lba: range.lba, backward: false });
            start += len;
        }
        if let (Source::Unit { at, .. }, Some(only)) = (&source, pending.front_mut())
            && ranges.len() == 1
        {
            // Harmless if the units differ, so the transfer need not know whether they do.
            let to = only.lba.0 << block.shift();
            only.backward = to > *at && to - at < only.len;
        }
        Self {
            source,
            destination,
            block,
            pending,
            pieces: VecDeque::new(),
            written: 0,
            prefix: 0,
            fault: None,
        }
    }

    /// Returns how many bytes were written.
    pub(crate) const fn written(&self) -> u64 {
        self.written
    }

    /// Returns how many bytes were written without a gap from the start.
    pub(crate) const fn prefix(&self) -> u64 {
        self.prefix
    }

    /// Makes every call that can be made now, and returns the state of the transfer.
    pub(crate) fn advance(&mut self, place: Place<'_>) -> TransferState {
        if let Some(fault) = self.fault {
            let under_way = self.pieces.iter().any(Piece::is_under_way);
            return if under_way { TransferState::Going } else { TransferState::Failed(fault) };
        }
        self.retire();
        while self.pieces.len() < PIECES_UNDER_WAY
            && let Some(piece) = self.next_piece()
        {
            self.pieces.push_back(piece);
        }
        for at in 0..self.pieces.len() {
            self.read(at, place);
        }
        self.write_in_order(place);
        if self.pieces.is_empty() { TransferState::Finished } else { TransferState::Going }
    }

    /// Handles the answer to a call.
    pub(crate) fn answered(&mut self, call: u32, result: ThirdPartyResult) {
        let Some(piece) = self.pieces.iter_mut().find(|piece| piece.waits_for(call)) else { return };
        let side = match piece.state {
            State::Writing(_) => ForwardedFrom::Destination,
            _ => ForwardedFrom::Source,
        };
        match (piece.state, result) {
            (State::Writing(_), Ok(ThirdPartyReply::Done)) => {
                piece.state = State::Written;
                self.written += piece.len;
            }
            (State::Reading(_), Ok(ThirdPartyReply::Data(data))) => {
                if !piece.take(&self.source, &data) {
                    self.fail(call, side, BROKEN_ANSWER);
                }
            }
            (_, Ok(_)) => self.fail(call, side, BROKEN_ANSWER),
            (_, Err(fault)) => self.fail(call, side, fault),
        }
    }

    fn fail(&mut self, call: u32, side: ForwardedFrom, fault: ThirdPartyError) {
        if let Some(piece) = self.pieces.iter_mut().find(|piece| piece.waits_for(call)) {
            piece.state = State::Unread;
        }
        self.fault.get_or_insert(TransferFault { side, fault });
    }

    fn retire(&mut self) {
        while let Some(first) = self.pieces.front().filter(|piece| piece.state == State::Written) {
            self.prefix += first.len;
            self.pieces.pop_front();
        }
    }

    fn next_piece(&mut self) -> Option<Piece> {
        let plan = self.pending.front_mut()?;
        let len = plan.len.min(PIECE_LEN);
        let ahead = if plan.backward { plan.len - len } else { 0 };
        let piece = Piece {
            start: plan.start + ahead,
            len,
            lba: Lba(plan.lba.0 + (ahead >> self.block.shift())),
            data: DataList::new(),
            state: match self.source {
                Source::Zeros => State::Read,
                _ => State::Unread,
            },
        };
        plan.len -= len;
        if !plan.backward {
            plan.start += len;
            plan.lba = Lba(plan.lba.0 + (len >> self.block.shift()));
        }
        if plan.len == 0 {
            self.pending.pop_front();
        }
        Some(piece)
    }

    fn read(&mut self, at: usize, place: Place<'_>) {
        let Some(piece) = self.pieces.get_mut(at).filter(|piece| piece.state == State::Unread) else {
            return;
        };
        let have = u64::try_from(piece.data.len()).unwrap_or(u64::MAX);
        let (start, len) = (piece.start + have, piece.len - have);
        let call = match &self.source {
            Source::Unit { unit, block, at } => {
                let (lba, blocks, _) = covering(*block, at + start, len);
                place(unit.clone(), ThirdPartyRequest::Read { lba, blocks })
            }
            Source::Token { unit, token, block, offset } => {
                let request = ThirdPartyRequest::ReadToken {
                    token: Rc::clone(token),
                    offset: Blocks(offset.0.saturating_add(start >> block.shift())),
                    blocks: Blocks(len >> block.shift()),
                };
                place(unit.clone(), request)
            }
            Source::Zeros => return,
        };
        piece.state = State::Reading(call);
    }

    fn write_in_order(&mut self, place: Place<'_>) {
        for piece in &mut self.pieces {
            match piece.state {
                State::Written | State::Writing(_) => {}
                State::Read => {
                    let lba = piece.lba;
                    let request = match self.source {
                        Source::Zeros => {
                            ThirdPartyRequest::Zero { lba, blocks: Blocks(piece.len >> self.block.shift()) }
                        }
                        _ => ThirdPartyRequest::Write { lba, data: core::mem::take(&mut piece.data) },
                    };
                    piece.state = State::Writing(place(self.destination.clone(), request));
                }
                State::Unread | State::Reading(_) => return,
            }
        }
    }
}

impl Piece {
    const fn is_under_way(&self) -> bool {
        matches!(self.state, State::Reading(_) | State::Writing(_))
    }

    fn waits_for(&self, call: u32) -> bool {
        matches!(self.state, State::Reading(mine) | State::Writing(mine) if mine == call)
    }

    /// Adds bytes that were read, and returns whether they are the bytes requested.
    fn take(&mut self, source: &Source, data: &DataList) -> bool {
        let wide = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
        let missing = self.len - wide(self.data.len());
        let (skip, wanted) = match source {
            Source::Unit { block, at, .. } => {
                let (_, blocks, skip) = covering(*block, at + self.start, missing);
                if wide(data.len()) != blocks.0 << block.shift() {
                    return false;
                }
                (skip, missing)
            }
            Source::Token { block, .. } => {
                // A token's ranges may be shorter than a piece: the answer has the blocks of one range only.
                let len = wide(data.len());
                if len == 0 || len > missing || len & (u64::from(block.bytes()) - 1) != 0 {
                    return false;
                }
                (0, len)
            }
            Source::Zeros => return false,
        };
        let narrow = |len: u64| usize::try_from(len).unwrap_or(usize::MAX);
        for part in data.slice(narrow(skip), narrow(skip + wanted)).into_parts() {
            self.data.push(part);
        }
        self.state = if wanted == missing { State::Read } else { State::Unread };
        true
    }
}

/// Returns the blocks that cover `len` bytes at `at`, and how many bytes of the first to skip.
fn covering(block: BlockSize, at: u64, len: u64) -> (Lba, Blocks, u64) {
    let skip = at & (u64::from(block.bytes()) - 1);
    let blocks = (skip + len).div_ceil(u64::from(block.bytes()));
    (Lba(at >> block.shift()), Blocks(blocks), skip)
}

/// The answer of a unit did not match its request: a bug in this program.
const BROKEN_ANSWER: ThirdPartyError = ThirdPartyError::Status(
    Status::CHECK_CONDITION,
    Some(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE)),
);

/// Returns the sum of the lengths of ranges in blocks, or `None` beyond 64 bits.
pub(crate) fn blocks_of(ranges: &[BlockRange]) -> Option<Blocks> {
    ranges.iter().try_fold(0_u64, |sum, range| sum.checked_add(range.blocks.0)).map(Blocks)
}

/// Returns the ranges that remain of `ranges` when they are cut to `blocks` blocks.
pub(crate) fn cut_to(ranges: &[BlockRange], blocks: Blocks) -> Vec<BlockRange> {
    let mut left = blocks.0;
    let mut out = Vec::new();
    for range in ranges {
        let taken = range.blocks.0.min(left);
        left -= taken;
        if taken > 0 {
            out.push(BlockRange { lba: range.lba, blocks: Blocks(taken) });
        }
    }
    out
}

#[cfg(test)]
mod tests;
