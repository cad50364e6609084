//! What experiments have in common: how they are controlled, and why they fail.

use std::sync::atomic::{AtomicBool, Ordering};

/// How the caller follows an experiment and ends it.
pub struct Control<'a> {
    /// Ends the experiment early once it is set; the report then covers what was measured before.
    pub stop: &'a AtomicBool,
    /// Receives the progress.
    pub progress: &'a mut dyn FnMut(Progress<'_>),
}

/// The progress of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The steps that are done.
    pub done: usize,
    /// All steps.
    pub total: usize,
    /// What is being done: `1 Gbit/s, MTU 1500, both digests, 4K reads, depth 1`.
    pub what: &'a str,
}

impl Control<'_> {
    /// Returns whether the experiment is to end early.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Reports the progress.
    pub fn step(&mut self, done: usize, total: usize, what: &str) {
        (self.progress)(Progress { done, total, what });
    }
}

impl std::fmt::Debug for Control<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("stop", &self.is_stopped()).finish_non_exhaustive()
    }
}

/// Why an experiment has no report. Whatever happens after the first measurement ends in a report instead.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The plan cannot be carried out: the text names the key and what is possible.
    #[error("{0}")]
    Plan(String),
    /// The system refuses what the experiment needs.
    #[error("cannot {what}: {why}")]
    System {
        /// What the experiment tried: `create a network namespace`.
        what: String,
        /// The error.
        why: std::io::Error,
    },
    /// The target does not start, cannot be reached, or fails.
    #[error("{0}")]
    Target(String),
}
