//! ROD tokens in a document that one process hands over to the next. It has their secrets: a token is what
//! lets a host use it.

use alloc::vec::Vec;

use base::time::{Duration, Instant};
use base::units::{Blocks, Lba};
use scsi::copy::rod::BlockRange;
use serde::{Deserialize, Serialize};

use super::{Entry, MAX_INACTIVITY_S, MAX_LIFETIME_S, MAX_RANGES, MAX_TOKENS, State, Tokens};
use crate::copy_manager::operations::handover::restore_token;
use crate::handover::RestoreError;
use crate::handover::hex::HexBytes;

/// Every token of a unit, least recently used first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokensState {
    tokens: Vec<TokenState>,
    next_id: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenState {
    token: HexBytes,
    owner: HexBytes,
    /// The first block of each range, and how many there are.
    ranges: Vec<(u64, u64)>,
    inactivity_s: u64,
    validity: Validity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum Validity {
    /// Valid for as long if it is not used, and at most for as long.
    Alive {
        idle_ns: u64,
        lifetime_ns: u64,
    },
    Expired,
    Revoked,
    Cancelled,
}

impl Tokens {
    /// Returns the tokens in a document.
    pub(crate) fn export(&self, now: Instant) -> TokensState {
        let Self { tokens, next_id } = self;
        TokensState { tokens: tokens.iter().map(|entry| entry.export(now)).collect(), next_id: *next_id }
    }

    /// Returns the tokens of a document.
    ///
    /// # Errors
    /// [`RestoreError`] for too many tokens, and for one that no unit creates.
    pub(crate) fn restore(now: Instant, state: &TokensState) -> Result<Self, RestoreError> {
        let TokensState { tokens, next_id } = state;
        if tokens.len() > MAX_TOKENS {
            return Err(RestoreError::TooMany("ROD tokens"));
        }
        let tokens = tokens.iter().map(|state| Entry::restore(now, state)).collect::<Result<_, _>>()?;
        Ok(Self { tokens, next_id: *next_id })
    }
}

impl Entry {
    fn export(&self, now: Instant) -> TokenState {
        let Self { token, owner, ranges, inactivity, idle_until, lives_until, state } = self;
        let left = |until: &Instant| nanoseconds(until.since(now));
        let validity = match state {
            State::Alive if self.expired(now) => Validity::Expired,
            State::Alive => Validity::Alive { idle_ns: left(idle_until), lifetime_ns: left(lives_until) },
            State::Revoked => Validity::Revoked,
            State::Cancelled => Validity::Cancelled,
            State::Expired => Validity::Expired,
        };
        TokenState {
            token: HexBytes::of(token.bytes()),
            owner: HexBytes::of(owner),
            ranges: ranges.iter().map(|range| (range.lba.0, range.blocks.0)).collect(),
            inactivity_s: inactivity.as_secs(),
            validity,
        }
    }

    fn restore(now: Instant, state: &TokenState) -> Result<Self, RestoreError> {
        let TokenState { token, owner, ranges, inactivity_s, validity } = state;
        let range = |(lba, blocks): &(u64, u64)| {
            let range = BlockRange { lba: Lba(*lba), blocks: Blocks(*blocks) };
            range.lba.after(range.blocks).map(|_| range).ok_or(RestoreError::Token)
        };
        if ranges.len() > usize::from(MAX_RANGES) || *inactivity_s > u64::from(MAX_INACTIVITY_S) {
            return Err(RestoreError::Token);
        }
        let longest = Duration::from_secs(u64::from(MAX_LIFETIME_S));
        let until = |left: u64| now.after(Duration::from_nanos(left).min(longest));
        let (state, idle_until, lives_until) = match *validity {
            Validity::Alive { idle_ns, lifetime_ns } => (State::Alive, until(idle_ns), until(lifetime_ns)),
            Validity::Expired => (State::Expired, now, now),
            Validity::Revoked => (State::Revoked, now, now),
            Validity::Cancelled => (State::Cancelled, now, now),
        };
        Ok(Self {
            token: restore_token(token)?,
            owner: owner.0.as_slice().into(),
            ranges: ranges.iter().map(range).collect::<Result<_, _>>()?,
            inactivity: Duration::from_secs(*inactivity_s),
            idle_until,
            lives_until,
            state,
        })
    }
}

/// Returns a time in nanoseconds.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
