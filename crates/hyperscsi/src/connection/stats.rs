//! What came of frames and paths, for owners who count and tell.

use core::fmt;

use super::DropCounts;
use crate::path::PathTotals;

/// The longest frames of a path, as Ethernet payload in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtuStatus {
    /// What it carries.
    pub carries: usize,
    /// What our port takes.
    pub ours: usize,
    /// What the peer says that its port takes.
    pub theirs: usize,
}

impl PathMtuStatus {
    /// Returns whether it is all that our port takes.
    pub const fn is_whole(self) -> bool {
        self.carries >= self.ours
    }
}

impl fmt::Display for PathMtuStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { carries, ours, theirs } = self;
        if self.is_whole() {
            return write!(f, "frames have up to {carries} bytes again, the MTU here");
        }
        write!(f, "frames have up to {carries} bytes only: the MTU is {ours} here and {theirs} there")?;
        if carries < theirs { f.write_str(", and less gets through between") } else { Ok(()) }
    }
}

/// What an association did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStats {
    /// Frames dropped, by reason.
    pub drops: DropCounts,
    /// How often we changed keys.
    pub key_updates: u64,
    /// Messages that are not done.
    pub messages: usize,
    /// What all paths did, those included that are gone.
    pub paths: PathTotals,
}
