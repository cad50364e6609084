//! The last lines of the log, for operators who look at the daemon from elsewhere.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::Level;

/// How many lines are kept: those of an eventful hour.
pub const LINES_MAX: usize = 256;

/// The longest message that is kept, in characters.
const MESSAGE_LEN_MAX: usize = 1000;

static LINES: Recent = Recent::new();

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentLine {
    /// Its number since the start, from 1 on.
    pub number: u64,
    /// When it was written.
    pub at: SystemTime,
    /// Its level.
    pub level: Level,
    /// Its message.
    pub message: String,
}

/// Returns the last lines, the oldest first.
pub fn lines() -> Vec<Arc<RecentLine>> {
    LINES.kept().lines.iter().map(Arc::clone).collect()
}

/// Keeps a line.
pub(super) fn keep(at: SystemTime, level: Level, message: &str) {
    LINES.keep(at, level, message);
}

#[derive(Debug)]
struct Recent(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    last: u64,
    lines: VecDeque<Arc<RecentLine>>,
}

impl Recent {
    const fn new() -> Self {
        Self(Mutex::new(Kept { last: 0, lines: VecDeque::new() }))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, at: SystemTime, level: Level, message: &str) {
        let message = message.chars().take(MESSAGE_LEN_MAX).collect();
        let mut kept = self.kept();
        kept.last += 1;
        let line = RecentLine { number: kept.last, at, level, message };
        if kept.lines.len() >= LINES_MAX {
            kept.lines.pop_front();
        }
        kept.lines.push_back(Arc::new(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_no_more_of_each_than_the_bound() {
        let recent = Recent::new();
        for number in 0..LINES_MAX + 3 {
            recent.keep(SystemTime::UNIX_EPOCH, Level::Info, &format!("{number}{}", "\u{e9}".repeat(5000)));
        }
        let kept = recent.kept();
        assert_eq!(kept.lines.len(), LINES_MAX);
        let first = kept.lines.front().unwrap();
        assert!(first.number == 4 && first.message.starts_with("3\u{e9}"), "{first:?}");
        assert!(kept.lines.iter().all(|line| line.message.chars().count() == MESSAGE_LEN_MAX));
    }
}
