//! Counts the TLS handshakes of all portals.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the handshakes of all portals, on their threads.
#[derive(Debug, Default)]
pub(super) struct HandshakeCounters {
    completed: AtomicU64,
    failed: AtomicU64,
}

/// How many TLS handshakes there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TlsHandshakes {
    pub(super) completed: u64,
    pub(super) failed: u64,
}

impl HandshakeCounters {
    pub(super) fn count_completed(&self) {
        self.completed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> TlsHandshakes {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TlsHandshakes { completed: read(&self.completed), failed: read(&self.failed) }
    }
}
