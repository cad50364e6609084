//! The log: lines on stderr. It never holds secrets, and never a line per I/O operation.
//!
//! `error`: something that the operator asked for failed. `warn`: something abnormal happened and the daemon
//! survived it. `info`: a rare change of state. `debug`: details for looking into a problem.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Something that the operator asked for failed.
    Error,
    /// Something abnormal happened, and the daemon survived it.
    Warn,
    /// A rare change of state.
    Info,
    /// A detail, for looking into a problem.
    Debug,
}

impl Level {
    /// Returns the level that has this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Error, Self::Warn, Self::Info, Self::Debug].into_iter().find(|level| level.name() == name)
    }

    /// Returns the level's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

/// The most lines written in one second, because peers can cause lines (by logins that are refused). Further
/// lines are counted instead of written; lines of level `error` are always written.
const LINES_PER_SECOND_MAX: u32 = 100;

static LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);
static SECOND: AtomicU64 = AtomicU64::new(0);
static LINES: AtomicU32 = AtomicU32::new(0);
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Sets the least severe level that is logged.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Writes a line to stderr if its level is logged.
pub fn write(level: Level, line: Arguments<'_>) {
    if level as u8 > LEVEL.load(Ordering::Relaxed) {
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let dropped = if SECOND.swap(now.as_secs(), Ordering::Relaxed) == now.as_secs() {
        0
    } else {
        LINES.swap(0, Ordering::Relaxed).saturating_sub(LINES_PER_SECOND_MAX)
    };
    DROPPED.fetch_add(u64::from(dropped), Ordering::Relaxed);
    let mut text = String::new();
    if dropped > 0 {
        text += &formatted(now, Level::Warn, format_args!("{dropped} more log lines were dropped"));
    }
    if LINES.fetch_add(1, Ordering::Relaxed) < LINES_PER_SECOND_MAX || level == Level::Error {
        text += &formatted(now, level, line);
    }
    // Stderr has no buffer. One call writes whole lines, so that the output of other processes to the same
    // file stands between lines. The daemon goes on serving if the log cannot be written.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Returns how many lines were dropped that the log tells of.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Formats a line of the log.
fn formatted(now: Duration, level: Level, line: Arguments<'_>) -> String {
    format!("{} {:5} {line}\n", utc(now), level.name())
}

/// Formats a moment in UTC: `2026-11-20T20:26:52.123Z`.
pub(crate) fn timestamp(at: SystemTime) -> String {
    utc(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn utc(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since_epoch.subsec_millis()
    )
}

/// Converts a number of days since 1970-01-01 to year, month and day of the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    // Count from 0000-03-01, so that the leap day ends a year; 400 years have 146 097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day - (153 * shifted + 2) / 5 + 1)
}

/// Logs that something failed which the operator asked for.
#[macro_export]
macro_rules! error {
    ($($arg:tt)*) => { $crate::log::write($crate::log::Level::Error, format_args!($($arg)*)) };
}

/// Logs something abnormal that the daemon survived.
#[macro_export]
macro_rules! warning {
    ($($arg:tt)*) => { $crate::log::write($crate::log::Level::Warn, format_args!($($arg)*)) };
}

/// Logs a rare change of state.
#[macro_export]
macro_rules! info {
    ($($arg:tt)*) => { $crate::log::write($crate::log::Level::Info, format_args!($($arg)*)) };
}

/// Logs a detail.
#[macro_export]
macro_rules! debug {
    ($($arg:tt)*) => { $crate::log::write($crate::log::Level::Debug, format_args!($($arg)*)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_utc_calendar_days() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_795_206_412, "2026-11-20T20:26:52.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn levels_are_ordered_by_gravity_and_known_by_name() {
        assert!(Level::Error < Level::Debug);
        for level in [Level::Error, Level::Warn, Level::Info, Level::Debug] {
            assert_eq!(Level::parse(level.name()), Some(level));
        }
        assert_eq!(Level::parse("loud"), None);
    }
}
