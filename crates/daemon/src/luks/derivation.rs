//! Limits how many keys are derived at a time: each derivation takes up to a gigabyte of memory.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most keys that are derived at a time.
const AT_A_TIME: usize = 2;

/// How long a derivation counts: longer than those of usual headers take. It reads the image too, whose file
/// system can hang.
const COUNTS_FOR: Duration = Duration::from_secs(60);

static RUNNING: Mutex<Vec<Instant>> = Mutex::new(Vec::new());
static ENDED: Condvar = Condvar::new();

/// The right to derive a key until this is dropped.
pub(super) struct Turn(Instant);

/// Waits until few keys are being derived.
pub(super) fn turn() -> Turn {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let left = running.iter().map(|since| COUNTS_FOR.saturating_sub(since.elapsed()));
        let mut left: Vec<Duration> = left.filter(|left| !left.is_zero()).collect();
        left.sort_unstable();
        let Some(wait) = left.first().filter(|_| left.len() >= AT_A_TIME) else { break };
        running = ENDED.wait_timeout(running, *wait).unwrap_or_else(PoisonError::into_inner).0;
    }
    let since = Instant::now();
    running.push(since);
    Turn(since)
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = running.iter().position(|since| *since == self.0) {
            running.swap_remove(at);
        }
        ENDED.notify_all();
    }
}
