//! The ROD tokens that a unit has created (SPC-4 §5.17.6, SBC-4 §4.28).
//!
//! Their type is *point in time copy, change vulnerable*: a token represents blocks as they were when it was
//! created, their data is not copied, and the first write to any of its blocks revokes the token. So a read
//! by a token never returns data that was written after its creation. A live upgrade hands
//! tokens over to the next process; after a restart they are unknown.

pub(crate) mod handover;

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;

use base::time::{Duration, Instant};
use base::units::{BlockSize, Blocks, Lba};
use scsi::copy::rod::{BlockRange, RodToken, overlap};
use scsi::sense::{Asc, Sense};

use crate::range_lock::ByteRange;

/// How many tokens a unit records, including invalid ones. One takes at most 512 bytes and [`MAX_RANGES`]
/// ranges of 16: 200 KiB in all. Windows has a handful in use at a time.
pub(crate) const MAX_TOKENS: usize = 128;

/// How many valid tokens one initiator may have: a quarter, so that four busy initiators do not affect each
/// other. Its least recently used token is cancelled to admit a new one.
pub(crate) const MAX_TOKENS_OF_ONE: usize = MAX_TOKENS / 4;

/// MAXIMUM RANGE DESCRIPTORS of POPULATE TOKEN and WRITE USING TOKEN.
pub(crate) const MAX_RANGES: u16 = 64;

/// How long an unused token remains valid if the initiator sets no timeout: long enough to pass it to another
/// server.
pub(crate) const DEFAULT_INACTIVITY_S: u32 = 300;

/// The longest inactivity timeout that an initiator may set.
pub(crate) const MAX_INACTIVITY_S: u32 = 3600;

/// How long a token remains valid at most: a day.
pub(crate) const MAX_LIFETIME_S: u32 = 86_400;

/// Every token of a unit, least recently used first.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    tokens: VecDeque<Entry>,
    next_id: u64,
}

#[derive(Debug)]
struct Entry {
    token: RodToken,
    owner: Rc<[u8]>,
    ranges: Vec<BlockRange>,
    inactivity: Duration,
    /// How long it remains valid if it is not used.
    idle_until: Instant,
    /// How long it remains valid at most.
    lives_until: Instant,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Alive,
    /// One of its blocks was written.
    Revoked,
    /// It was cancelled to admit another token.
    Cancelled,
    /// It had expired when another process had the unit.
    Expired,
}

impl Entry {
    fn expired(&self, now: Instant) -> bool {
        now > self.idle_until || now > self.lives_until
    }

    fn is_alive(&self, now: Instant) -> bool {
        self.state == State::Alive && !self.expired(now)
    }
}

/// The description of a new token.
#[derive(Debug)]
pub(crate) struct NewToken {
    /// The TransportID of the initiator port that requested it.
    pub(crate) owner: Rc<[u8]>,
    /// The blocks that it represents, in order.
    pub(crate) ranges: Vec<BlockRange>,
    /// How long the token remains valid unused, in seconds; at most [`MAX_INACTIVITY_S`].
    pub(crate) inactivity_s: u32,
}

impl Tokens {
    /// Returns a number for the next token. Numbers are not secret.
    pub(crate) const fn next_id(&mut self) -> u64 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    /// Adds a token.
    pub(crate) fn add(&mut self, now: Instant, token: RodToken, new: NewToken) {
        let own = |entry: &&mut Entry| *entry.owner == *new.owner && entry.is_alive(now);
        let owned = self.tokens.iter_mut().filter(own).count();
        if owned >= MAX_TOKENS_OF_ONE
            && let Some(oldest) = self.tokens.iter_mut().find(own)
        {
            oldest.state = State::Cancelled;
        }
        if self.tokens.len() >= MAX_TOKENS {
            let dead = self.tokens.iter().position(|entry| !entry.is_alive(now));
            let _forgotten = self.tokens.remove(dead.unwrap_or(0));
        }
        let inactivity = Duration::from_secs(u64::from(new.inactivity_s));
        self.tokens.push_back(Entry {
            token,
            owner: new.owner,
            ranges: new.ranges,
            inactivity,
            idle_until: now.after(inactivity),
            lives_until: now.after(Duration::from_secs(u64::from(MAX_LIFETIME_S))),
            state: State::Alive,
        });
    }

    /// Finds where block `offset` of a token's data lies, and how many of the `blocks` from there on follow
    /// it on the medium. Counts as a use of the token.
    ///
    /// # Errors
    /// The sense data for a token that this unit does not know, or that is no longer valid, or for an offset
    /// beyond its data.
    pub(crate) fn resolve(
        &mut self,
        now: Instant,
        token: &[u8],
        offset: Blocks,
        blocks: Blocks,
    ) -> Result<BlockRange, Sense> {
        // Every token is compared, so that the time taken reveals nothing about any of them.
        let mut found = None;
        for (at, entry) in self.tokens.iter().enumerate() {
            if entry.token.same(token) {
                found = Some(at);
            }
        }
        let entry = found.and_then(|at| self.tokens.remove(at));
        let mut entry = entry.ok_or_else(|| Sense::illegal(Asc::TOKEN_UNKNOWN))?;
        let answer = match entry.state {
            State::Revoked => Err(Sense::illegal(Asc::TOKEN_REVOKED)),
            State::Cancelled => Err(Sense::illegal(Asc::TOKEN_CANCELLED)),
            State::Expired => Err(Sense::illegal(Asc::TOKEN_EXPIRED)),
            State::Alive if entry.expired(now) => Err(Sense::illegal(Asc::TOKEN_EXPIRED)),
            State::Alive => {
                entry.idle_until = now.after(entry.inactivity);
                run_at(&entry.ranges, offset, blocks)
                    .ok_or_else(|| Sense::illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST))
            }
        };
        self.tokens.push_back(entry);
        answer
    }

    /// Revokes the tokens that represent any of the blocks that are about to change. Cheap when there are no
    /// tokens.
    pub(crate) fn revoke_overlapping(&mut self, lba: Lba, blocks: Blocks) {
        let written = BlockRange { lba, blocks };
        for entry in self.tokens.iter_mut().filter(|entry| entry.state == State::Alive) {
            if entry.ranges.iter().any(|range| overlap(range, &written)) {
                entry.state = State::Revoked;
            }
        }
    }

    /// Revokes every token: the whole medium may have changed.
    pub(crate) fn revoke_all(&mut self) {
        self.revoke_overlapping(Lba(0), Blocks(u64::MAX));
    }

    /// Revokes the tokens that represent any of these bytes of the medium.
    pub(crate) fn revoke_overlapping_bytes(&mut self, block: BlockSize, range: ByteRange) {
        if self.tokens.is_empty() {
            return;
        }
        let first = range.start >> block.shift();
        let end = range.end.div_ceil(u64::from(block.bytes()));
        self.revoke_overlapping(Lba(first), Blocks(end.saturating_sub(first)));
    }

    /// Checks that data read by a token is valid: none of its blocks was written meanwhile.
    ///
    /// # Errors
    /// TOKEN REVOKED or a similar code.
    pub(crate) fn check_valid(&self, token: &[u8]) -> Result<(), Sense> {
        let found = self.tokens.iter().find(|entry| entry.token.same(token));
        match found.map(|entry| entry.state) {
            Some(State::Alive) => Ok(()),
            Some(State::Revoked) => Err(Sense::illegal(Asc::TOKEN_REVOKED)),
            Some(State::Cancelled) => Err(Sense::illegal(Asc::TOKEN_CANCELLED)),
            Some(State::Expired) => Err(Sense::illegal(Asc::TOKEN_EXPIRED)),
            None => Err(Sense::illegal(Asc::TOKEN_UNKNOWN)),
        }
    }

    /// Deletes a token, if this unit knows it.
    pub(crate) fn delete(&mut self, token: &[u8]) {
        self.tokens.retain(|entry| !entry.token.same(token));
    }

    /// Returns the valid tokens.
    pub(crate) fn alive(&self, now: Instant) -> impl Iterator<Item = &RodToken> {
        self.tokens.iter().filter(move |entry| entry.is_alive(now)).map(|entry| &entry.token)
    }
}

/// Finds the blocks at `offset` in the concatenation of `ranges`.
fn run_at(ranges: &[BlockRange], offset: Blocks, blocks: Blocks) -> Option<BlockRange> {
    let mut skip = offset.0;
    for range in ranges {
        if skip < range.blocks.0 {
            let lba = range.lba.after(Blocks(skip))?;
            return Some(BlockRange { lba, blocks: Blocks(blocks.0.min(range.blocks.0 - skip)) });
        }
        skip -= range.blocks.0;
    }
    None
}

#[cfg(test)]
mod tests;
