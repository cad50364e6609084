//! The text that keeps a limit over a restart.
//!
//! ```text
//! targe guesses 1
//! salt 5b07…
//! known ACCOUNT ADDRESS FAILURES IDLE-MS PROVEN-MS USED-MS
//! tries KEY FAILURES LATELY IDLE-MS
//! used KEY USED-MS
//! end
//! ```
//!
//! Keys are digests, so that the text shows no name and no address. Times are relative to the moment at which
//! the text was made. The time in which the limit did not run counts as no time, so that a restart ends no
//! delay early. Tries that were unfinished count as failures.

use alloc::string::String;
use core::fmt::Write as _;
use core::time::Duration;

use super::{GuessLimit, KNOWN_MAX, Key, Known, Tries, Used};

/// The error for a text that [`GuessLimit::store`] did not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadStore {
    /// The first line is that of something else, or of another version.
    #[error("the first line is not \"{HEAD}\"")]
    Head,
    /// A line does not have the form of a counter.
    #[error("line {0} is damaged")]
    Line(usize),
    /// The last line is not the end: the text was cut.
    #[error("the end is missing")]
    Cut,
}

const HEAD: &str = "targe guesses 1";
const END: &str = "end";

impl GuessLimit {
    /// The longest text in bytes: at most 160 for each known address, and 80 for each counter.
    pub const STORED_LEN_MAX: usize = 32 << 20;

    /// Returns whether anything changed that [`Self::store`] stores, since the last call of it.
    pub const fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Records that a copy of the limit is stored as it is now.
    pub const fn mark_stored(&mut self) {
        self.is_changed = false;
    }

    /// Records that the limit is not stored as it is now.
    pub const fn mark_changed(&mut self) {
        self.is_changed = true;
    }

    /// Returns the text that keeps the limit, at most [`Self::STORED_LEN_MAX`] bytes.
    pub fn store(&mut self, now: Duration) -> String {
        self.is_changed = false;
        let mut text = String::from(HEAD);
        text.push_str("\nsalt ");
        for byte in self.salt {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
        for (key, tries) in self.tries.iter(now) {
            let open = tries.open;
            let (failures, lately) = (tries.failures.saturating_add(open), tries.lately.saturating_add(open));
            let _ =
                writeln!(text, "tries {key:x} {failures} {lately} {}", ms(now.saturating_sub(tries.last)));
        }
        for (key, used) in self.used.iter(now) {
            let _ = writeln!(text, "used {key:x} {}", ms(used.until.saturating_sub(now)));
        }
        for (account, list) in &self.known {
            for Known { address, tries, used, proven } in list {
                let failures = tries.failures.saturating_add(tries.open);
                let (proven, until) = (ms(now.saturating_sub(*proven)), ms(used.until.saturating_sub(now)));
                let last = ms(now.saturating_sub(tries.last));
                let _ = writeln!(text, "known {account:x} {address:x} {failures} {last} {proven} {until}");
            }
        }
        text.push_str(END);
        text.push('\n');
        text
    }

    /// Restores the limit that a text keeps.
    ///
    /// # Errors
    /// [`BadStore`]
    pub fn restore(text: &str, now: Duration) -> Result<Self, BadStore> {
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
        if lines.next().is_none_or(|(_, line)| line != HEAD) {
            return Err(BadStore::Head);
        }
        let salt = lines.next().and_then(|(_, line)| salt(line.strip_prefix("salt ")?));
        let mut limit = Self::new(salt.ok_or(BadStore::Line(2))?);
        for (number, line) in lines {
            if line == END {
                return Ok(limit);
            }
            limit.restore_line(line, now).ok_or(BadStore::Line(number))?;
        }
        Err(BadStore::Cut)
    }

    fn restore_line(&mut self, line: &str, now: Duration) -> Option<()> {
        let mut fields = line.split(' ');
        let kind = fields.next()?;
        match kind {
            "tries" => {
                let key = key(fields.next()?)?;
                let (failures, lately) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
                let last = before(now, fields.next()?)?;
                self.tries.restore(key, Tries { open: 0, failures, lately, last });
            }
            "used" => {
                let key = key(fields.next()?)?;
                self.used.restore(key, Used { until: after(now, fields.next()?)? });
            }
            "known" => {
                let (account, address) = (key(fields.next()?)?, key(fields.next()?)?);
                let failures = fields.next()?.parse().ok()?;
                let (last, proven) = (before(now, fields.next()?)?, before(now, fields.next()?)?);
                let used = Used { until: after(now, fields.next()?)? };
                let tries = Tries { open: 0, failures, lately: 0, last };
                let list = self.known.entry(account).or_default();
                list.push(Known { address, tries, used, proven });
                if list.len() > KNOWN_MAX {
                    return None;
                }
            }
            _ => return None,
        }
        fields.next().is_none().then_some(())
    }
}

fn key(text: &str) -> Option<Key> {
    Key::from_str_radix(text, 16).ok()
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn span(text: &str) -> Option<Duration> {
    Some(Duration::from_millis(text.parse().ok()?))
}

/// Longer than any allowance takes to be whole. A larger number would delay somebody for ever.
const USED_MAX: Duration = Duration::from_secs(86_400);

fn before(now: Duration, text: &str) -> Option<Duration> {
    Some(now.saturating_sub(span(text)?))
}

fn after(now: Duration, text: &str) -> Option<Duration> {
    Some(now + span(text)?.min(USED_MAX))
}

fn salt(text: &str) -> Option<[u8; 32]> {
    let mut salt = [0; 32];
    if text.len() != 2 * salt.len() || !text.is_ascii() {
        return None;
    }
    for (at, byte) in salt.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(salt)
}
