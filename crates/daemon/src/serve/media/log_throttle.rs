//! Limits how often the log reports failures of a medium.

use std::time::{Duration, Instant};

/// The least time between two logged failures of one medium; failures in between are counted.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Limits how often one kind of failure is logged.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::serve) struct LogThrottle {
    logged_at: Option<Instant>,
    skipped: u64,
}

impl LogThrottle {
    /// Returns whether a failure may be logged now, and what to add about those that were not.
    pub(in crate::serve) fn may_log(&mut self) -> Option<String> {
        if self.logged_at.is_some_and(|logged_at| logged_at.elapsed() < LOG_INTERVAL) {
            self.skipped = self.skipped.saturating_add(1);
            return None;
        }
        Some(self.log())
    }

    /// Records that a failure is logged now, whenever the last one was. Returns what to add about those that
    /// were not logged.
    pub(in crate::serve) fn log(&mut self) -> String {
        self.logged_at = Some(Instant::now());
        match std::mem::take(&mut self.skipped) {
            0 => String::new(),
            skipped => format!(" ({skipped} more failures since the last one that was logged)"),
        }
    }

    /// Lets the interval end.
    #[cfg(test)]
    pub(in crate::serve) fn expire(&mut self) {
        self.logged_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_of_an_interval_is_logged_and_the_others_are_counted() {
        let mut throttle = LogThrottle::default();
        assert_eq!(throttle.may_log().as_deref(), Some(""));
        assert_eq!((throttle.may_log(), throttle.may_log()), (None, None));
        assert_eq!(throttle.log(), " (2 more failures since the last one that was logged)");
        assert_eq!(
            (throttle.may_log(), throttle.log()),
            (None, " (1 more failures since the last one that was logged)".to_owned())
        );
        throttle.logged_at = Instant::now().checked_sub(LOG_INTERVAL);
        assert_eq!(throttle.may_log().as_deref(), Some(""));
    }
}
