//! The text in which a target stores the password records of its users, for [`crate::opaque`].
//!
//! ```text
//! targe passwords 1
//! decoy 65536,3,1 9d1f…
//! user 65536,3,1 5b07… alice
//! ```
//!
//! Every line ends with a newline. The first line names the format and its version. A record is the cost of
//! Argon2id (memory in KiB, passes, lanes) and the [`PasswordRecord::STORED_LEN`] bytes of
//! [`PasswordRecord::stored`] as hexadecimal digits in lower case. A `user` line ends with the name of the
//! user, to which all characters up to the newline belong. The `decoy` answers the logins of names that no
//! line has, and stands in the text so that its answers are the same after a restart.
//!
//! The text holds no password. An attacker who reads it can pose as the target and must run Argon2id once for
//! each guess at a password, so that only its owner may be able to read the file.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt::Write as _;

use zeroize::Zeroizing;

use crate::opaque::{BadCost, PasswordRecord, StretchCost};

/// The first line of every version.
const HEAD: &str = "targe passwords ";
/// The version that this module writes, the only one so far.
const VERSION: &str = "1";
/// The longest line in bytes, with its newline: `user`, a cost, a record, a name, and three spaces.
const LINE_LEN_MAX: usize = 4 + COST_LEN_MAX + 2 * PasswordRecord::STORED_LEN + UserName::LEN_MAX + 4;
/// The longest cost in characters: numbers of 32, 32 and 8 bits with commas between them.
const COST_LEN_MAX: usize = 10 + 1 + 10 + 1 + 3;

/// The name of a user: 1 to 255 bytes of UTF-8 without control characters, compared byte by byte.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserName(Box<str>);

/// The error for a text that cannot be the name of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a user name must have 1 to {} bytes and no control characters", UserName::LEN_MAX)]
pub struct BadUserName;

impl UserName {
    /// The longest name in bytes.
    pub const LEN_MAX: usize = 255;

    /// Copies `name` if it can be the name of a user.
    ///
    /// # Errors
    /// [`BadUserName`]
    pub fn new(name: &str) -> Result<Self, BadUserName> {
        let legal = (1..=Self::LEN_MAX).contains(&name.len()) && !name.contains(char::is_control);
        if legal { Ok(Self(name.into())) } else { Err(BadUserName) }
    }

    /// Returns the name.
    pub const fn as_str(&self) -> &str {
        &self.0
    }
}

/// The password records of users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PasswordFile {
    decoy: Arc<PasswordRecord>,
    users: BTreeMap<UserName, Arc<PasswordRecord>>,
}

/// The error for a text that is no password file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPasswordFile {
    /// The first line is that of something else.
    #[error("no password records: the first line is not \"{HEAD}{VERSION}\"")]
    NotPasswords,
    /// The text has another version.
    #[error("password records of a version that this release does not know")]
    UnknownVersion,
    /// The text is longer than [`PasswordFile::LEN_MAX`], or not UTF-8.
    #[error("more than {} bytes, or not UTF-8", PasswordFile::LEN_MAX)]
    NotText,
    /// A line does not have the form of a record.
    #[error("line {line}: not a password record")]
    BadLine {
        /// The number of the line, from 1 on.
        line: usize,
    },
    /// Two lines have the same name.
    #[error("line {line}: a second record of one user")]
    SecondRecord {
        /// The number of the second line, from 1 on.
        line: usize,
    },
    /// The decoy is missing.
    #[error("no line \"decoy\"")]
    NoDecoy,
    /// There are more users than [`PasswordFile::USERS_MAX`].
    #[error("more than {} users", PasswordFile::USERS_MAX)]
    TooManyUsers,
}

impl PasswordFile {
    /// The most users. Each costs about 1 KiB of text, and 0.1 ms when the text is read.
    pub const USERS_MAX: usize = 4096;
    /// The longest text in bytes.
    pub const LEN_MAX: usize = (Self::USERS_MAX + 2) * LINE_LEN_MAX;

    /// Makes a file without users, whose decoy states `cost`.
    ///
    /// # Errors
    /// [`BadCost`]
    pub fn new(cost: StretchCost, entropy: [u8; 32]) -> Result<Self, BadCost> {
        Ok(Self { decoy: Arc::new(PasswordRecord::decoy(cost, entropy)?), users: BTreeMap::new() })
    }

    /// Returns whether a text begins like a password file of any version. A text that is a password itself
    /// hardly does.
    pub fn has_head(text: &[u8]) -> bool {
        text.starts_with(HEAD.as_bytes())
    }

    /// Reads a password file.
    ///
    /// # Errors
    /// [`BadPasswordFile`]
    pub fn parse(text: &[u8]) -> Result<Self, BadPasswordFile> {
        if !Self::has_head(text) {
            return Err(BadPasswordFile::NotPasswords);
        }
        if text.len() > Self::LEN_MAX {
            return Err(BadPasswordFile::NotText);
        }
        let text = core::str::from_utf8(text).map_err(|_| BadPasswordFile::NotText)?;
        let mut lines = text.split_inclusive('\n').enumerate().map(|(at, line)| (at + 1, line));
        if lines.next().and_then(|(_, line)| line.strip_prefix(HEAD)?.strip_suffix('\n')) != Some(VERSION) {
            return Err(BadPasswordFile::UnknownVersion);
        }
        let (mut decoy, mut users) = (None, BTreeMap::new());
        for (line, text) in lines {
            // A line without its newline is the last one of a file that was cut off.
            let parsed =
                text.strip_suffix('\n').and_then(parse_line).ok_or(BadPasswordFile::BadLine { line })?;
            let known = match parsed {
                (Some(_), _) if users.len() >= Self::USERS_MAX => return Err(BadPasswordFile::TooManyUsers),
                (Some(user), record) => users.insert(user, Arc::new(record)),
                (None, record) => decoy.replace(Arc::new(record)),
            };
            if known.is_some() {
                return Err(BadPasswordFile::SecondRecord { line });
            }
        }
        Ok(Self { decoy: decoy.ok_or(BadPasswordFile::NoDecoy)?, users })
    }

    /// Returns the text.
    pub fn to_text(&self) -> Zeroizing<String> {
        // The capacity is enough, because a growing string would leave copies of the records in memory.
        let mut text = Zeroizing::new(String::with_capacity((self.users.len() + 2) * LINE_LEN_MAX));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{HEAD}{VERSION}");
        write_record(&mut text, "decoy", &self.decoy);
        text.push('\n');
        for (user, record) in &self.users {
            write_record(&mut text, "user", record);
            let _ = writeln!(text, " {}", user.as_str());
        }
        text
    }

    /// Returns the users with their records, by name.
    pub fn users(&self) -> impl Iterator<Item = (&UserName, &Arc<PasswordRecord>)> {
        self.users.iter()
    }

    /// Returns the record of a user.
    pub fn find(&self, user: &str) -> Option<&Arc<PasswordRecord>> {
        self.users.get(&UserName::new(user).ok()?)
    }

    /// Returns the record that answers a login of `user`: the user's own, or the decoy if there is no such
    /// user.
    pub fn answering(&self, user: &str) -> &Arc<PasswordRecord> {
        self.find(user).unwrap_or(&self.decoy)
    }

    /// Adds a user, or replaces the record of one. Returns whether the user was there before.
    ///
    /// # Errors
    /// [`BadPasswordFile::TooManyUsers`]
    pub fn set(&mut self, user: UserName, record: PasswordRecord) -> Result<bool, BadPasswordFile> {
        if self.users.len() >= Self::USERS_MAX && !self.users.contains_key(&user) {
            return Err(BadPasswordFile::TooManyUsers);
        }
        Ok(self.users.insert(user, Arc::new(record)).is_some())
    }

    /// Removes a user. Returns whether there was one.
    pub fn remove(&mut self, user: &UserName) -> bool {
        self.users.remove(user).is_some()
    }
}

/// Reads a line: the user, or `None` for the decoy, and the record.
fn parse_line(line: &str) -> Option<(Option<UserName>, PasswordRecord)> {
    let (kind, rest) = line.split_once(' ')?;
    let (cost, rest) = rest.split_once(' ')?;
    let (stored, user) = match kind {
        "decoy" => (rest, None),
        "user" => {
            let (stored, name) = rest.split_once(' ')?;
            (stored, Some(UserName::new(name).ok()?))
        }
        _ => return None,
    };
    let record = PasswordRecord::restore(&*parse_stored(stored)?, parse_cost(cost)?).ok()?;
    Some((user, record))
}

fn parse_cost(text: &str) -> Option<StretchCost> {
    let mut numbers = text.split(',');
    // A number with a sign or leading zeros would not be written again as it was.
    let mut next = || numbers.next().filter(|digits| !digits.starts_with(['0', '+']) || *digits == "0");
    let cost = StretchCost {
        memory_kib: next()?.parse().ok()?,
        passes: next()?.parse().ok()?,
        lanes: next()?.parse().ok()?,
    };
    numbers.next().is_none().then_some(cost)
}

fn parse_stored(digits: &str) -> Option<Zeroizing<[u8; PasswordRecord::STORED_LEN]>> {
    let mut stored = Zeroizing::new([0; PasswordRecord::STORED_LEN]);
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if !rest.is_empty() || pairs.len() != stored.len() {
        return None;
    }
    for (to, [high, low]) in stored.iter_mut().zip(pairs) {
        *to = digit(*high)? << 4 | digit(*low)?;
    }
    Some(stored)
}

const fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

fn write_record(text: &mut String, kind: &str, record: &PasswordRecord) {
    let StretchCost { memory_kib, passes, lanes } = record.cost();
    // Writing to a string does not fail.
    let _ = write!(text, "{kind} {memory_kib},{passes},{lanes} ");
    for byte in record.stored().iter() {
        let _ = write!(text, "{byte:02x}");
    }
}

#[cfg(test)]
mod tests;
