//! The deadlines of a reactor that stops.

use std::time::Duration;

use base::time::Instant;

/// How long a reactor that stops waits for file operations after its deadline. Longer ones are on a disk that
/// does not answer; they end later, or with the process.
pub(super) const FILES_PATIENCE: Duration = Duration::from_secs(5);

/// A stop that was requested.
#[derive(Clone, Copy)]
pub(super) struct Stop {
    pub(super) deadline: Instant,
    /// The deadline has passed, and all connections were ended.
    pub(super) forced: bool,
    /// File operations that have not ended by now are abandoned.
    pub(super) abandons_files: bool,
}

impl Stop {
    /// Returns when it must act next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match (self.forced, self.abandons_files) {
            (false, _) => Some(self.deadline),
            (true, false) => Some(self.deadline.after(FILES_PATIENCE)),
            (true, true) => None,
        }
    }
}
