//! The threshold of the storage of thin units.

use serde::{Deserialize, Serialize};

/// When the storage that a thin unit shares with others counts as short, and how much is left now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceThreshold {
    /// How many bytes are left when it counts as short.
    pub bytes: u64,
    /// How much is left.
    pub level: SpaceLevel,
}

/// How much storage is left, compared with a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceLevel {
    /// So much that the storage is not short.
    Ample,
    /// A little more than the threshold: storage that was short still is, so that hosts do not receive one
    /// unit attention after the other.
    Near,
    /// The storage is short.
    Short,
}

/// A threshold that a unit knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KnownThreshold {
    /// How many bytes are left when the storage counts as short.
    pub(crate) bytes: u64,
    /// Whether the storage is short, so that nexuses have been informed.
    pub(crate) is_reached: bool,
}

impl KnownThreshold {
    /// Returns what becomes of the threshold that was known before.
    pub(crate) fn after(before: Option<Self>, now: SpaceThreshold) -> Self {
        let is_reached = match now.level {
            SpaceLevel::Ample => false,
            SpaceLevel::Near => before.is_some_and(|before| before.is_reached),
            SpaceLevel::Short => true,
        };
        Self { bytes: now.bytes, is_reached }
    }
}
