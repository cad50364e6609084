//! Values that differ from run to run: session identifiers, challenges, data patterns. None of them is
//! secret.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Returns 64 unpredictable bits.
pub(crate) fn fresh() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns `len` pseudorandom bytes, the same for the same `seed`.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    base::rng::Rng::from_seed(seed).fill(&mut bytes);
    bytes
}
