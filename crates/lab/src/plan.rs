//! What the plans of all experiments can name: digests, links, kinds of commands, sizes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bed::{LinkPlan, RATE_MAX, RATE_MIN, to_f64};
use crate::experiment::LabError;

/// Which digests a session uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Digests {
    /// None.
    None,
    /// HeaderDigest=CRC32C.
    Header,
    /// DataDigest=CRC32C.
    Data,
    /// Both.
    Both,
}

/// The percentage of commands that are reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix(pub u8);

/// The rate of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// As fast as the processors.
    Unshaped,
    /// Bits per second on the wire.
    Shaped(u64),
    /// The path to a target that was named by a URL. No plan file can name it.
    AsItIs,
}

impl Digests {
    /// All settings, in the order of a report.
    pub const ALL: [Self; 4] = [Self::None, Self::Header, Self::Data, Self::Both];

    /// Returns the name in plans and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Header => "header",
            Self::Data => "data",
            Self::Both => "both",
        }
    }

    /// Returns whether the session uses a header digest.
    pub const fn header(self) -> bool {
        matches!(self, Self::Header | Self::Both)
    }

    /// Returns whether the session uses a data digest.
    pub const fn data(self) -> bool {
        matches!(self, Self::Data | Self::Both)
    }

    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|digests| digests.name() == word);
        found.ok_or_else(|| "expected none, header, data or both".to_owned())
    }
}

impl Mix {
    /// Returns whether there are writes.
    pub const fn writes(self) -> bool {
        self.0 < 100
    }

    pub(crate) fn word(self) -> String {
        match self.0 {
            100 => "read".to_owned(),
            0 => "write".to_owned(),
            percent => percent.to_string(),
        }
    }

    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        let percent = match word {
            "read" => Some(100),
            "write" => Some(0),
            _ => word.parse().ok().filter(|percent| *percent <= 100),
        };
        percent
            .map(Self)
            .ok_or_else(|| "expected read, write or a percentage of reads, such as 50".to_owned())
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            100 => f.write_str("reads"),
            0 => f.write_str("writes"),
            percent => write!(f, "{percent} % reads"),
        }
    }
}

impl Link {
    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        if word == "unshaped" {
            return Ok(Self::Unshaped);
        }
        let bits = scaled(word, 1000).filter(|bits| (RATE_MIN..=RATE_MAX).contains(bits));
        bits.map(Self::Shaped).ok_or_else(|| "expected unshaped, or 1M to 34G bits per second".to_owned())
    }

    /// Returns the properties of a link between two virtual hosts with this rate and MTU.
    pub(crate) const fn with_mtu(self, mtu: u32) -> LinkPlan {
        let rate_bits = match self {
            Self::Shaped(bits) => Some(bits),
            Self::Unshaped | Self::AsItIs => None,
        };
        LinkPlan { mtu, rate_bits }
    }

    /// Returns the name in sentences.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Unshaped => "link without a rate limit".to_owned(),
            Self::AsItIs => "the path to the target".to_owned(),
            Self::Shaped(bits) if bits >= 1_000_000_000 => format!("{} Gbit/s", to_f64(bits) / 1e9),
            Self::Shaped(bits) => format!("{} Mbit/s", to_f64(bits) / 1e6),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unshaped => f.write_str("unshaped"),
            Self::AsItIs => f.write_str("as it is"),
            Self::Shaped(bits) if bits.is_multiple_of(1_000_000_000) => {
                write!(f, "{}G", bits / 1_000_000_000)
            }
            Self::Shaped(bits) if bits.is_multiple_of(1_000_000) => write!(f, "{}M", bits / 1_000_000),
            Self::Shaped(bits) => write!(f, "{bits}"),
        }
    }
}

/// A number, or a word.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number or a text")]
pub(crate) enum Word {
    Number(u32),
    Text(String),
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// Parses a list that is not empty and names nothing twice.
pub(crate) fn list<T: PartialEq>(
    key: &str,
    words: Option<Vec<Word>>,
    default: Vec<T>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, LabError> {
    let Some(words) = words else { return Ok(default) };
    let mut list = Vec::new();
    for word in words {
        let word = word.to_string();
        let value = parse(&word).map_err(|why| LabError::Plan(format!("{key}: \"{word}\": {why}")))?;
        if list.contains(&value) {
            return Err(LabError::Plan(format!("{key}: \"{word}\" is there twice")));
        }
        list.push(value);
    }
    if list.is_empty() { Err(LabError::Plan(format!("{key}: the list is empty"))) } else { Ok(list) }
}

pub(crate) fn number(word: &str, low: u32, high: u32) -> Result<u32, String> {
    let number = word.parse().ok().filter(|number| (low..=high).contains(number));
    number.ok_or_else(|| format!("expected {low} to {high}"))
}

pub(crate) fn block(word: &str) -> Result<u32, String> {
    let bytes = scaled(word, 1024).and_then(|bytes| u32::try_from(bytes).ok());
    let bytes = bytes.filter(|bytes| (512..=BLOCK_MAX).contains(bytes) && bytes.is_multiple_of(512));
    bytes.ok_or_else(|| "expected a multiple of 512 bytes up to 16M, such as 4K".to_owned())
}

/// The longest command, in bytes.
const BLOCK_MAX: u32 = 16 << 20;

/// Parses `64K`, `1M` and `1G`.
fn scaled(word: &str, step: u64) -> Option<u64> {
    let digits = word.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let power = match word.get(digits.len()..)? {
        "" => 0,
        "k" | "K" => 1,
        "m" | "M" => 2,
        "g" | "G" => 3,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(step.pow(power))
}

/// Writes a size as `4K` where that is exact.
pub(crate) fn size_text(bytes: u32) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

/// Reads the keys of a plan file.
pub(crate) fn read_keys<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, LabError> {
    toml::from_str(text).map_err(|why| LabError::Plan(why.to_string().trim_end().to_owned()))
}

/// Checks a number against its limits.
pub(crate) fn within(key: &str, value: f64, low: f64, high: f64) -> Result<(), LabError> {
    let fits = (low..=high).contains(&value);
    fits.then_some(()).ok_or_else(|| LabError::Plan(format!("{key}: expected {low} to {high}")))
}

/// Checks the keys that say how often and how long each combination is measured.
pub(crate) fn check_rounds(rounds: u32, seconds: f64, warmup: f64) -> Result<(), LabError> {
    within("rounds", f64::from(rounds), 1.0, 1000.0)?;
    within("seconds", seconds, 0.05, 3600.0)?;
    within("warmup", warmup, 0.0, 600.0)
}

/// Checks that a typing error does not start a run of days.
pub(crate) fn check_measurements(all: u64, most: u64) -> Result<(), LabError> {
    if all <= most {
        return Ok(());
    }
    Err(LabError::Plan(format!("rounds: {all} measurements altogether; the most is {most}")))
}
