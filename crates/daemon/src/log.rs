//! The log: lines on stderr. It never holds secrets, and never a line per I/O operation. No thread waits for
//! the reader of the log: `writer`.
//!
//! `error`: something that the operator asked for failed. `warn`: something abnormal happened and the daemon
//! survived it. `info`: a rare change of state. `debug`: details for looking into a problem.

pub mod recent;
pub(crate) mod writer;

use std::fmt::{Arguments, Write as _};
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

/// The form of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Format {
    /// Time, level and message, for display.
    #[default]
    Text,
    /// One JSON object a line, for programs: `time`, `level`, `message`, and fields.
    Json,
}

/// The most lines written in one second, because peers can cause lines (by logins that are refused). Further
/// lines are counted instead of written; lines of level `error` are not bounded by this.
const LINES_PER_SECOND_MAX: u32 = 100;

/// The most lines of one kind in one second, so that a flood of one kind leaves room for the others.
const LINES_OF_KIND_PER_SECOND_MAX: u32 = 40;

static LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);
static FORMAT: AtomicU8 = AtomicU8::new(Format::Text as u8);
static ALL: Limit = Limit::new(LINES_PER_SECOND_MAX);
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Sets the least severe level that is logged.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Sets the form of the lines.
pub fn set_format(format: Format) {
    FORMAT.store(format as u8, Ordering::Relaxed);
}

/// Returns how many lines were dropped.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// A kind of lines: those of one place in the source.
#[derive(Debug)]
pub struct Kind(Limit);

impl Kind {
    /// Returns a kind of which nothing was written yet.
    #[allow(clippy::new_without_default, reason = "a static is made of a constant function")]
    pub const fn new() -> Self {
        Self(Limit::new(LINES_OF_KIND_PER_SECOND_MAX))
    }
}

/// Bounds the lines of each second.
#[derive(Debug)]
struct Limit {
    max: u32,
    second: AtomicU64,
    lines: AtomicU32,
    /// How many lines of earlier seconds were not written and not told.
    untold: AtomicU32,
}

impl Limit {
    const fn new(max: u32) -> Self {
        Self { max, second: AtomicU64::new(0), lines: AtomicU32::new(0), untold: AtomicU32::new(0) }
    }

    /// Counts a line. Returns whether it may be written, and how many were not since the last line that told
    /// how many.
    fn admit(&self, second: u64) -> (bool, u32) {
        let suppressed = if self.second.swap(second, Ordering::Relaxed) == second {
            0
        } else {
            let lines = self.lines.swap(0, Ordering::Relaxed);
            self.untold.swap(0, Ordering::Relaxed).saturating_add(lines.saturating_sub(self.max))
        };
        (self.lines.fetch_add(1, Ordering::Relaxed) < self.max, suppressed)
    }

    /// Takes back what `admit` returned, and the line that it admitted: that line is not written.
    fn give_back(&self, suppressed: u32) {
        self.untold.fetch_add(suppressed.saturating_add(1), Ordering::Relaxed);
    }
}

/// A value that a line tells besides its message, in JSON only: it is part of the message as well.
#[derive(Clone, Copy, Debug)]
pub enum Field<'a> {
    /// A text.
    Text(&'a str),
    /// A number.
    Number(u64),
    /// Unknown; the line does not have the field.
    None,
}

impl<'a> From<&'a str> for Field<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Field<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl From<u16> for Field<'_> {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl From<u64> for Field<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl<'a, T: Into<Field<'a>>> From<Option<T>> for Field<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

/// Writes a line to stderr if its level is logged.
pub fn write(kind: &Kind, level: Level, fields: &[(&str, Field<'_>)], message: Arguments<'_>) {
    if level as u8 > LEVEL.load(Ordering::Relaxed) {
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (of_kind, suppressed) = kind.0.admit(now.as_secs());
    let (of_all, lost) = if of_kind { ALL.admit(now.as_secs()) } else { (false, 0) };
    if of_kind && !of_all && level != Level::Error {
        kind.0.give_back(suppressed);
    }
    if !of_all && level != Level::Error {
        DROPPED.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if level != Level::Debug {
        recent::keep(UNIX_EPOCH + now, level, &message.to_string());
    }
    let text = match FORMAT.load(Ordering::Relaxed) == Format::Json as u8 {
        true => in_json(now, level, fields, message, (suppressed, lost)),
        false => in_text(now, level, message, (suppressed, lost)),
    };
    if writer::is_started() {
        writer::write(text);
    } else {
        writer::to_stderr(&text);
    }
}

/// Counts a line that was dropped.
fn count_dropped() {
    DROPPED.fetch_add(1, Ordering::Relaxed);
}

/// Returns the line that reports how many lines found no place in the queue of the writer.
fn drop_report(count: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let message = format_args!("{count} log lines were dropped because the log was not read");
    match FORMAT.load(Ordering::Relaxed) == Format::Json as u8 {
        true => in_json(now, Level::Warn, &[("dropped", Field::Number(count))], message, (0, 0)),
        false => line(now, Level::Warn, message),
    }
}

/// Formats a line of text, after lines that tell how many were dropped: of its kind, and of all.
fn in_text(now: Duration, level: Level, message: Arguments<'_>, (suppressed, lost): (u32, u32)) -> String {
    let mut text = String::new();
    if suppressed > 0 {
        let told = format_args!("{suppressed} more log lines like the next one were dropped");
        text += &line(now, Level::Warn, told);
    }
    if lost > 0 {
        text += &line(now, Level::Warn, format_args!("{lost} more log lines were dropped"));
    }
    text + &line(now, level, message)
}

fn line(now: Duration, level: Level, message: Arguments<'_>) -> String {
    format!("{} {:5} {message}\n", utc(now), level.name())
}

/// Formats a line as a JSON object. `suppressed` counts the lines of its kind that were dropped before it,
/// `dropped` those of all kinds.
fn in_json(
    now: Duration,
    level: Level,
    fields: &[(&str, Field<'_>)],
    message: Arguments<'_>,
    (suppressed, lost): (u32, u32),
) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut object = format!(
        "{{\"time\":\"{}\",\"level\":\"{}\",\"message\":{}",
        utc(now),
        level.name(),
        quoted(&message.to_string())
    );
    let counts = [("suppressed", suppressed), ("dropped", lost)];
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    let counts = counts.map(|(name, count)| (name, Field::Number(count.into())));
    for (name, value) in fields.iter().copied().chain(counts) {
        // Writing to a string does not fail.
        let _ = match value {
            Field::Text(text) => write!(object, ",\"{name}\":{}", quoted(text)),
            Field::Number(number) => write!(object, ",\"{name}\":{number}"),
            Field::None => Ok(()),
        };
    }
    object.push_str("}\n");
    object
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

/// Logs a line of a level. Fields can stand before the message: `{ target: name, lun: lun }, "…"`.
#[macro_export]
macro_rules! log_line {
    ($level:expr, { $($name:ident: $value:expr),* $(,)? }, $($arg:tt)*) => {{
        static KIND: $crate::log::Kind = $crate::log::Kind::new();
        let fields = [$((stringify!($name), $crate::log::Field::from($value))),*];
        $crate::log::write(&KIND, $level, &fields, format_args!($($arg)*))
    }};
    ($level:expr, $($arg:tt)*) => {{
        static KIND: $crate::log::Kind = $crate::log::Kind::new();
        $crate::log::write(&KIND, $level, &[], format_args!($($arg)*))
    }};
}

/// Logs that something failed which the operator asked for.
#[macro_export]
macro_rules! error {
    ($($arg:tt)*) => { $crate::log_line!($crate::log::Level::Error, $($arg)*) };
}

/// Logs something abnormal that the daemon survived.
#[macro_export]
macro_rules! warning {
    ($($arg:tt)*) => { $crate::log_line!($crate::log::Level::Warn, $($arg)*) };
}

/// Logs a rare change of state.
#[macro_export]
macro_rules! info {
    ($($arg:tt)*) => { $crate::log_line!($crate::log::Level::Info, $($arg)*) };
}

/// Logs a detail.
#[macro_export]
macro_rules! debug {
    ($($arg:tt)*) => { $crate::log_line!($crate::log::Level::Debug, $($arg)*) };
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

    #[test]
    fn a_line_in_json_is_an_object_whatever_peers_write() {
        let fields = [
            ("initiator", Field::from("a\"b\\c\n")),
            ("lun", Field::from(7_u16)),
            ("target", Field::from(None::<&str>)),
        ];
        let at = Duration::from_secs(951_782_400);
        let line = in_json(at, Level::Warn, &fields, format_args!("login of {:?}", "x\ny"), (3, 0));
        let object: serde_json::Value = serde_json::from_str(&line).unwrap();
        let expected = serde_json::json!({
            "time": "2000-02-29T00:00:00.000Z",
            "level": "warn",
            "message": "login of \"x\\ny\"",
            "initiator": "a\"b\\c\n",
            "lun": 7,
            "suppressed": 3,
        });
        assert_eq!(object, expected);
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.starts_with("{\"time\":\"2000"), "{line}");
    }

    #[test]
    fn lines_of_a_kind_are_bounded_and_those_that_are_suppressed_are_told() {
        let limit = Limit::new(2);
        assert_eq!(
            [5, 5, 5, 5].map(|second| limit.admit(second)),
            [(true, 0), (true, 0), (false, 0), (false, 0)]
        );
        assert_eq!(limit.admit(6), (true, 2));
        assert_eq!(limit.admit(7), (true, 0));
        assert_eq!([7, 7, 7].map(|second| limit.admit(second)), [(true, 0), (false, 0), (false, 0)]);
        // A line that is admitted and not written, because there are too many of all kinds, tells nothing.
        let (_, suppressed) = limit.admit(8);
        limit.give_back(suppressed);
        assert_eq!(limit.admit(9), (true, 3));
        assert_eq!(limit.admit(10), (true, 0));
        let at = Duration::from_secs(0);
        assert_eq!(
            in_text(at, Level::Info, format_args!("x"), (2, 0)),
            "1970-01-01T00:00:00.000Z warn  2 more log lines like the next one were dropped\n\
             1970-01-01T00:00:00.000Z info  x\n"
        );
        assert_eq!(in_text(at, Level::Info, format_args!("x"), (0, 0)), "1970-01-01T00:00:00.000Z info  x\n");
    }
}
