//! The time without a process.

use std::time::Instant;

/// The process is away.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outage {
    pub(super) since: Instant,
    /// When the last connection ended. It may have carried no answer.
    pub(super) lost_at: Instant,
    pub(super) retry_at: Instant,
    /// Commands fail at once until the process is back: the limit has passed, or the process must leave
    /// first.
    pub(super) given_up: bool,
    /// What answers at the socket cannot be used, and the owner was told.
    pub(super) is_unusable: bool,
    /// The process has removed the device: that it has none is no news.
    pub(super) is_removal: bool,
    /// The owner knows of it. When the device was served by another process before, it learns of it from the
    /// first attempt that fails.
    pub(super) is_told: bool,
}

impl Outage {
    pub(super) const fn new(since: Instant, lost_at: Instant, retry_at: Instant) -> Self {
        let (given_up, is_unusable, is_removal, is_told) = (false, false, false, true);
        Self { since, lost_at, retry_at, given_up, is_unusable, is_removal, is_told }
    }
}
