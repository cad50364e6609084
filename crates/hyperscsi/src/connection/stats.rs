//! Statistics of frames and paths, for owners that count and display them.

use core::fmt;

use super::DropCounts;
use crate::path::PathTotals;

/// The longest frames of a path (its path MTU), as Ethernet payload in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtuStatus {
    /// The longest frame that the path carries.
    pub carries: usize,
    /// The longest frame that this host's port takes.
    pub ours: usize,
    /// The longest frame that the peer's port takes, by the peer's word.
    pub theirs: usize,
}

impl PathMtuStatus {
    /// Returns whether the path carries the longest frame that this host's port takes.
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

/// The counters of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStats {
    /// Frames dropped, by reason.
    pub drops: DropCounts,
    /// How often this end updated its keys.
    pub key_updates: u64,
    /// Messages that are not delivered.
    pub messages: usize,
    /// The totals of all paths, including removed ones.
    pub paths: PathTotals,
}
