//! Text segments of iSCSI (RFC 7143 §6.1): `key=value` pairs, each ended by a zero byte, spread over one or
//! more PDUs by the C bit.
//!
//! This module splits and joins text. The meaning of each key is in `keys`; [`value`] parses values.

pub mod value;

use alloc::vec::Vec;

/// The longest key name, in bytes (RFC 7143 §6.1, "standard-label").
pub const MAX_KEY_NAME: usize = 63;

/// The most text that one side collects over the C bit, in bytes. RFC 7143 §6.1 requires 8 KiB, and 64 KiB if
/// long authentication items are used.
pub const MAX_TEXT: usize = 64 << 10;

/// The most PDUs over which one text may be spread: [`MAX_TEXT`] in pieces of 256 bytes, half of the smallest
/// MaxRecvDataSegmentLength.
pub const MAX_TEXT_PDUS: usize = MAX_TEXT / 256;

/// The most pairs in one text. The standards define 35 keys; the rest is for extensions. Every unknown key is
/// answered with at most [`MAX_KEY_NAME`] + 15 bytes, so that all answers stay below [`MAX_TEXT`].
pub const MAX_PAIRS: usize = 512;

const _: () = assert!(MAX_PAIRS * (MAX_KEY_NAME + "=NotUnderstood\0".len()) < MAX_TEXT);

/// One key and its value. The name has 1 to [`MAX_KEY_NAME`] legal characters; the value is any bytes except
/// zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The key's name.
    pub name: &'a str,
    /// The value as received.
    pub value: &'a [u8],
}

/// The reason why bytes are not a legal text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadText {
    /// The last pair does not end with a zero byte: part of it is missing, and half a value must not be used.
    #[error("the text ends within a pair")]
    Unterminated,
    /// A pair has no equals sign.
    #[error("a pair has no '='")]
    NoEquals,
    /// A key's name is empty, longer than [`MAX_KEY_NAME`], or holds a character that is illegal in names.
    #[error("a key's name is not legal")]
    KeyName,
    /// There are more than [`MAX_PAIRS`] pairs.
    #[error("too many pairs")]
    TooManyPairs,
    /// More than [`MAX_TEXT`] bytes were collected.
    #[error("too much text")]
    TooLong,
    /// A text was spread over more than [`MAX_TEXT_PDUS`] PDUs.
    #[error("a text was spread over too many PDUs")]
    TooManyPdus,
    /// A PDU without text has the C bit set.
    #[error("a PDU without text says that its text goes on")]
    ContinuedEmpty,
}

/// Splits a text into its pairs. Several zero bytes in a row count as one.
///
/// # Errors
/// Returns the first error in the text.
pub fn parse(text: &[u8]) -> Result<Vec<Pair<'_>>, BadText> {
    let mut pairs = Vec::new();
    let Some((last, body)) = text.split_last() else { return Ok(pairs) };
    if *last != 0 {
        return Err(BadText::Unterminated);
    }
    for item in body.split(|byte| *byte == 0).filter(|item| !item.is_empty()) {
        if pairs.len() == MAX_PAIRS {
            return Err(BadText::TooManyPairs);
        }
        pairs.push(pair(item)?);
    }
    Ok(pairs)
}

fn pair(item: &[u8]) -> Result<Pair<'_>, BadText> {
    let at = item.iter().position(|byte| *byte == b'=').ok_or(BadText::NoEquals)?;
    let (name, rest) = item.split_at_checked(at).ok_or(BadText::NoEquals)?;
    if name.is_empty() || name.len() > MAX_KEY_NAME || !name.iter().all(is_name_byte) {
        return Err(BadText::KeyName);
    }
    let name = core::str::from_utf8(name).map_err(|_| BadText::KeyName)?;
    Ok(Pair { name, value: rest.get(1..).unwrap_or_default() })
}

/// Returns whether `byte` is a character of a standard-label, or the `#` of `X#NodeArchitecture`.
fn is_name_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+' | b'@' | b'_' | b'#')
}

/// Collects a text from the PDUs that carry it.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    text: Vec<u8>,
    pdus: usize,
}

impl Collector {
    /// Returns a collector without text.
    pub const fn new() -> Self {
        Self { text: Vec::new(), pdus: 0 }
    }

    /// Adds the data of one PDU, and returns the whole text once `cont` (the C bit) is clear. The collector
    /// is then empty again.
    ///
    /// # Errors
    /// `TooLong`, `TooManyPdus`, `ContinuedEmpty`; the collected text is discarded.
    pub fn add(&mut self, data: &[u8], cont: bool) -> Result<Option<Vec<u8>>, BadText> {
        let mut text = core::mem::take(&mut self.text);
        let pdus = core::mem::take(&mut self.pdus) + 1;
        //= rfc7143#section-6.1
        //# Any iSCSI target or initiator MUST support receiving at least 8192 bytes of key=value
        //# data in a negotiation sequence.
        //= rfc7143#section-6.1
        //# the initiator and target MUST support receiving at least 64 kilobytes of key=value
        //# data.
        if text.len().saturating_add(data.len()) > MAX_TEXT {
            return Err(BadText::TooLong);
        }
        if cont && data.is_empty() {
            return Err(BadText::ContinuedEmpty);
        }
        if cont && pdus >= MAX_TEXT_PDUS {
            return Err(BadText::TooManyPdus);
        }
        text.extend_from_slice(data);
        if !cont {
            return Ok(Some(text));
        }
        (self.text, self.pdus) = (text, pdus);
        Ok(None)
    }

    /// Returns whether a text has begun and is not complete.
    pub const fn is_incomplete(&self) -> bool {
        self.pdus > 0
    }

    /// Returns how much memory the collector holds, in bytes.
    pub const fn held(&self) -> usize {
        self.text.capacity()
    }
}

/// A text under construction, of at most [`MAX_TEXT`] bytes. A pair that does not fit is left out whole, and
/// [`Self::has_overflowed`] reports the omission.
#[derive(Clone, Debug, Default)]
pub struct TextBuilder {
    text: Vec<u8>,
    overflowed: bool,
}

impl TextBuilder {
    /// Returns an empty text.
    pub const fn new() -> Self {
        Self { text: Vec::new(), overflowed: false }
    }

    /// Appends a pair.
    pub fn put(&mut self, name: &str, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        let len = name.len().saturating_add(value.len()).saturating_add(2);
        if self.text.len().saturating_add(len) > MAX_TEXT {
            self.overflowed = true;
            return;
        }
        self.text.extend_from_slice(name.as_bytes());
        self.text.push(b'=');
        self.text.extend_from_slice(value);
        //= rfc7143#section-6.1
        //# Every key=value pair, including the last or only pair in a LTDS, MUST be followed by
        //# one null (0x00) delimiter.
        self.text.push(0);
    }

    /// Appends the pairs of another text: all of them, or none if they do not fit.
    pub fn append(&mut self, mut other: Self) {
        if self.text.len().saturating_add(other.text.len()) > MAX_TEXT {
            self.overflowed = true;
        } else {
            self.text.append(&mut other.text);
        }
        self.overflowed |= other.overflowed;
    }

    /// Returns whether the text holds no pair and no pair was left out.
    pub const fn is_empty(&self) -> bool {
        self.text.is_empty() && !self.overflowed
    }

    /// Returns whether a pair was left out because it did not fit.
    pub const fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Returns the text.
    pub fn into_bytes(self) -> Vec<u8> {
        self.text
    }
}

/// A text that is sent piece by piece.
#[derive(Clone, Debug, Default)]
pub struct TextSplitter {
    text: Vec<u8>,
    sent: usize,
}

impl TextSplitter {
    /// Begins to send `text`.
    pub const fn new(text: Vec<u8>) -> Self {
        Self { text, sent: 0 }
    }

    /// Removes and returns the next piece, of at most `limit` bytes, and whether more text follows it (the C
    /// bit).
    pub fn next_piece(&mut self, limit: usize) -> (Vec<u8>, bool) {
        let rest = self.text.get(self.sent..).unwrap_or_default();
        let piece = rest.get(..limit.max(1)).unwrap_or(rest).to_vec();
        self.sent += piece.len();
        let goes_on = self.sent < self.text.len();
        if !goes_on {
            *self = Self::default();
        }
        (piece, goes_on)
    }

    /// As [`Self::next_piece`], but the last piece leaves room for `tail` bytes below `limit`. If `limit` has
    /// no room for both, the last piece has one byte.
    pub fn next_piece_before(&mut self, limit: usize, tail: usize) -> (Vec<u8>, bool) {
        let rest = self.text.len().saturating_sub(self.sent);
        let room = limit.saturating_sub(tail).max(1);
        self.next_piece(if rest > room { limit.min(rest - 1) } else { limit })
    }

    /// Returns whether the whole text was taken.
    pub const fn is_done(&self) -> bool {
        self.sent >= self.text.len()
    }

    /// Returns how much memory the text holds, in bytes.
    pub const fn held(&self) -> usize {
        self.text.capacity()
    }
}

#[cfg(test)]
mod tests;
