//! Striping over several media (RAID 0): chunk 0 lies on the first medium, chunk 1 on the second, and so on
//! in turn.
//!
//! No metadata is written. The same media in the same order with the same chunk length are the same disk; any
//! other arrangement is not. The loss of one medium loses the whole disk.

use std::sync::Arc;

use base::buffer::DataList;
use store::api::{Capabilities, Extent, Failure, Fault, OpAction, OpOutput};
use store::shared::{Losses, OnComplete, SharedStore};
use thiserror::Error;

use crate::join::{data, finish, join_all, joined};
use base::int_cast::{to_u64, to_usize};

/// The chunk length, in bytes, when the user gives none.
pub const CHUNK_DEFAULT: u64 = 128 << 10;
/// The most chunks that one list of extents covers: with the default chunk, half a gigabyte.
const CHUNKS_LISTED_MAX: u64 = 4096;

/// Why media cannot form a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StripeError {
    /// There are no media.
    #[error("no disks to stripe")]
    Nothing,
    /// The chunk length is not allowed.
    #[error("a stripe cannot have {0} bytes: it must be a power of two, from 4K to 1G")]
    Chunk(u64),
    /// The chunk length is no multiple of a medium's logical block length.
    #[error("a stripe of {chunk} bytes is not a multiple of the block length of a disk, {granule} bytes")]
    Blocks {
        /// The chunk length in bytes.
        chunk: u64,
        /// The logical block length of the medium.
        granule: u32,
    },
    /// A medium is smaller than a chunk.
    #[error("disk {0} is smaller than one stripe")]
    Small(usize),
}

/// Striped media.
pub struct Stripe {
    members: Arc<[Arc<dyn SharedStore>]>,
    layout: Layout,
}

/// Maps offsets of the whole disk to members.
#[derive(Clone, Copy, Debug)]
struct Layout {
    chunk: u64,
    members: u64,
}

/// A range of bytes on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    member: usize,
    at: u64,
    len: u64,
}

impl Layout {
    /// Cuts a range at the ends of chunks. Returns where each piece lies.
    fn pieces(self, at: u64, end: u64) -> impl Iterator<Item = Share> {
        let mut at = at;
        std::iter::from_fn(move || {
            let (number, within) = (at / self.chunk, at % self.chunk);
            let len = (self.chunk - within).min(end.saturating_sub(at));
            at += len;
            (len > 0).then_some(Share {
                member: to_usize(number % self.members),
                at: number / self.members * self.chunk + within,
                len,
            })
        })
    }

    /// Returns the share of each member that a range touches: its pieces are contiguous on the member.
    fn shares(self, at: u64, end: u64) -> Vec<Share> {
        // After one row of chunks every member has its first piece; later rows only extend the ends.
        let row = self.chunk.saturating_mul(self.members);
        let mut shares: Vec<Share> = self.pieces(at, end.min(at.saturating_add(row))).collect();
        shares.sort_by_key(|share| (share.member, share.at));
        shares.dedup_by(|next, first| {
            let same = next.member == first.member;
            first.len += if same { next.len } else { 0 };
            same
        });
        for share in &mut shares {
            share.len = self.below(end, share.member) - share.at;
        }
        shares
    }

    /// Returns how many bytes of a member lie before `end`.
    fn below(self, end: u64, member: usize) -> u64 {
        let (row, within) = (end / (self.chunk * self.members), end % (self.chunk * self.members));
        let before = to_u64(member) * self.chunk;
        row * self.chunk + within.saturating_sub(before).min(self.chunk)
    }

    /// Returns the offset in the whole disk of a byte of a member.
    fn whole(self, member: usize, at: u64) -> u64 {
        (at / self.chunk * self.members + to_u64(member)) * self.chunk + at % self.chunk
    }
}

impl Stripe {
    /// Joins `members`, in this order.
    ///
    /// # Errors
    /// [`StripeError`]
    pub fn new(members: Vec<Arc<dyn SharedStore>>, chunk: u64) -> Result<Self, StripeError> {
        if !chunk.is_power_of_two() || !(4096..=1 << 30).contains(&chunk) {
            return Err(StripeError::Chunk(chunk));
        }
        for (number, member) in members.iter().enumerate() {
            let profile = member.capabilities();
            if !chunk.is_multiple_of(profile.logical_block_len.max(1).into()) {
                return Err(StripeError::Blocks { chunk, granule: profile.logical_block_len });
            }
            if profile.len < chunk {
                return Err(StripeError::Small(number));
            }
        }
        if members.is_empty() {
            return Err(StripeError::Nothing);
        }
        let layout = Layout { chunk, members: to_u64(members.len()) };
        Ok(Self { members: members.into(), layout })
    }

    /// Starts an operation on each member that the range touches.
    fn each(&self, shares: &[Share], action: impl Fn(&Share) -> OpAction, done: OnComplete) {
        join_all(self.operations(shares, action).into_iter(), finish(done));
    }

    fn operations(
        &self,
        shares: &[Share],
        action: impl Fn(&Share) -> OpAction,
    ) -> Vec<(Arc<dyn SharedStore>, OpAction)> {
        let member = |share: &Share| -> Option<Arc<dyn SharedStore>> {
            let store = Arc::clone(self.members.get(share.member)?);
            Some(Arc::new(Member { store, number: share.member, layout: self.layout }))
        };
        shares.iter().filter_map(|share| Some((member(share)?, action(share)))).collect()
    }

    fn read(&self, at: u64, end: u64, done: OnComplete) {
        let (layout, shares) = (self.layout, self.layout.shares(at, end));
        let reads =
            self.operations(&shares, |share| OpAction::Read { at: share.at, len: to_usize(share.len) });
        let put_together = move |results: Result<Vec<OpOutput>, Failure>| {
            done(results.map(|results| {
                let parts: Vec<DataList> = results.into_iter().map(data).collect();
                let piece = |piece: Share| {
                    let index = shares.iter().position(|share| share.member == piece.member)?;
                    let start = to_usize(piece.at - shares.get(index)?.at);
                    Some(parts.get(index)?.slice(start, start + to_usize(piece.len)))
                };
                OpOutput::Data(joined(layout.pieces(at, end).filter_map(piece)))
            }));
        };
        join_all(reads.into_iter(), Box::new(put_together));
    }

    /// Returns the part of `data`, which starts at `at`, that lies on the member of `share`.
    fn portion(&self, at: u64, data: &DataList, share: &Share) -> DataList {
        let mut from = 0;
        let mut portion = Vec::new();
        for piece in self.layout.pieces(at, at.saturating_add(to_u64(data.len()))) {
            let to = from + to_usize(piece.len);
            if piece.member == share.member {
                portion.push(data.slice(from, to));
            }
            from = to;
        }
        joined(portion)
    }

    fn extents(&self, at: u64, end: u64, count_max: usize, done: OnComplete) {
        let end = end.min(at.saturating_add(self.layout.chunk * CHUNKS_LISTED_MAX));
        let (layout, shares) = (self.layout, self.layout.shares(at, end));
        let ask = |share: &Share| OpAction::MapStatus { at: share.at, len: share.len, count_max };
        let asked = self.operations(&shares, ask);
        let put_together = move |results: Result<Vec<OpOutput>, Failure>| {
            done(results.map(|results| {
                let lists: Vec<(usize, Vec<Extent>)> =
                    shares.iter().map(|share| share.member).zip(results.into_iter().map(list)).collect();
                OpOutput::MapStatus(interleaved(layout, at, end, &lists, count_max))
            }));
        };
        join_all(asked.into_iter(), Box::new(put_together));
    }
}

/// A member. It reports failures with offsets of the whole disk.
struct Member {
    store: Arc<dyn SharedStore>,
    number: usize,
    layout: Layout,
}

impl SharedStore for Member {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn losses(&self) -> Losses {
        self.store.losses()
    }

    fn submit(&self, action: OpAction, done: OnComplete) {
        let (number, layout) = (self.number, self.layout);
        let told = move |result: Result<OpOutput, Failure>| {
            done(result.map_err(|failure| {
                let at = failure.at.map(|at| layout.whole(number, at));
                Failure { at, ..failure }
            }));
        };
        self.store.submit(action, Box::new(told));
    }
}

impl SharedStore for Stripe {
    fn capabilities(&self) -> Capabilities {
        let all: Vec<Capabilities> = self.members.iter().map(SharedStore::capabilities).collect();
        let least = |field: fn(&Capabilities) -> u64| all.iter().map(field).min().unwrap_or(0);
        let most = |field: fn(&Capabilities) -> u32| all.iter().map(field).max().unwrap_or(1);
        let chunks = least(|member| member.len) / self.layout.chunk;
        Capabilities {
            len: chunks.saturating_mul(self.layout.chunk).saturating_mul(self.layout.members),
            logical_block_len: most(|member| member.logical_block_len),
            preferred_block_len: most(|member| member.preferred_block_len),
            io_len_max: to_usize(least(|member| to_u64(member.io_len_max))),
            // A write across the end of a chunk goes to two members.
            atomic_len_max: 0,
            read_only: all.iter().any(|member| member.read_only),
            volatile_cache: all.iter().any(|member| member.volatile_cache),
            thin: all.iter().all(|member| member.thin),
            deallocated_reads_zero: all.iter().all(|member| member.deallocated_reads_zero),
            zeroes_by_deallocating: all.iter().all(|member| member.zeroes_by_deallocating),
            deallocated_is_gone: all.iter().all(|member| member.deallocated_is_gone),
            rotational: all.iter().any(|member| member.rotational),
            // A failure could leave some members erased and others not.
            crypto_erase: false,
        }
    }

    fn losses(&self) -> Losses {
        let mut whole = Losses::default();
        for (number, member) in self.members.iter().enumerate() {
            let Losses { count, last } = member.losses();
            whole.count += count;
            let last = last.map(|failure| {
                let at = failure.at.map(|at| self.layout.whole(number, at));
                Failure { at, ..failure }
            });
            whole.last = last.or(whole.last);
        }
        whole
    }

    fn submit(&self, action: OpAction, done: OnComplete) {
        let (at, len) = action.range();
        let Some(end) = at.checked_add(len).filter(|end| *end <= self.capabilities().len) else {
            return done(Err(Failure { fault: Fault::OutOfRange, at: Some(at) }));
        };
        let shares = self.layout.shares(at, end);
        match action {
            OpAction::Read { .. } => self.read(at, end, done),
            OpAction::MapStatus { count_max, .. } => self.extents(at, end, count_max, done),
            OpAction::CryptoErase | OpAction::Command(_) | OpAction::Reset => {
                done(Err(Fault::Unsupported.into()))
            }
            OpAction::Flush => {
                let all: Vec<Share> =
                    (0..self.members.len()).map(|member| Share { member, at: 0, len: 0 }).collect();
                self.each(&all, |_| OpAction::Flush, done);
            }
            OpAction::Write { data, durability, .. } => {
                let write = |share: &Share| {
                    let data = self.portion(at, &data, share);
                    OpAction::Write { at: share.at, data, durability }
                };
                self.each(&shares, write, done);
            }
            OpAction::Deallocate { .. } => {
                self.each(&shares, |share| OpAction::Deallocate { at: share.at, len: share.len }, done);
            }
            OpAction::WriteZeroes { may_deallocate, durability, .. } => {
                let zero = |share: &Share| {
                    let (at, len) = (share.at, share.len);
                    OpAction::WriteZeroes { at, len, may_deallocate, durability }
                };
                self.each(&shares, zero, done);
            }
        }
    }
}

fn list(outcome: OpOutput) -> Vec<Extent> {
    match outcome {
        OpOutput::MapStatus(extents) => extents,
        OpOutput::Data(_) | OpOutput::Done(_) | OpOutput::Response(_) => Vec::new(),
    }
}

/// Merges the extents of the members into those of the whole disk, as far as the lists of all members reach.
fn interleaved(
    layout: Layout,
    at: u64,
    end: u64,
    lists: &[(usize, Vec<Extent>)],
    count_max: usize,
) -> Vec<Extent> {
    let mut whole: Vec<Extent> = Vec::new();
    let mut at = at;
    for piece in layout.pieces(at, end) {
        let of_member = lists.iter().find(|(member, _)| *member == piece.member);
        let Some((_, extents)) = of_member else { return whole };
        let mut place = piece.at;
        let piece_end = piece.at + piece.len;
        while place < piece_end {
            let here = |extent: &&Extent| extent.at <= place && place - extent.at < extent.len;
            let Some(extent) = extents.iter().find(here) else { return whole };
            let len = (extent.len - (place - extent.at)).min(piece_end - place);
            let full = whole.len() >= count_max;
            match whole.last_mut() {
                Some(last) if last.state == extent.state => last.len += len,
                _ if full => return whole,
                _ => whole.push(Extent { at, len, state: extent.state }),
            }
            place += len;
            at += len;
        }
    }
    whole
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]
mod tests;
