//! Text as iSCSI carries it (RFC 7143 §6.1): `key=value` pairs, each closed by a zero byte, spread over one or more
//! PDUs by the C bit.
//!
//! This room splits and joins; what a key means is in `keys`, what a value says is read by [`value`].

pub mod value;

use alloc::vec::Vec;

/// The longest key name, in bytes (RFC 7143 §6.1, "standard-label").
pub const MAX_KEY_NAME: usize = 63;

/// The most text that one side collects over the C bit, in bytes. RFC 7143 §6.1 asks for 8 KiB, and for 64 KiB where
/// authentication items are long.
pub const MAX_TEXT: usize = 64 << 10;

/// The most PDUs that one text may be spread over: [`MAX_TEXT`] in pieces of 256 bytes, half of the least
/// MaxRecvDataSegmentLength.
pub const MAX_TEXT_PDUS: usize = MAX_TEXT / 256;

/// The most pairs in one text. The standards define 35 keys; the rest is room for extensions. Every unknown key is
/// answered with at most [`MAX_KEY_NAME`] + 15 bytes, so that all answers stay below [`MAX_TEXT`].
pub const MAX_PAIRS: usize = 512;

const _: () = assert!(MAX_PAIRS * (MAX_KEY_NAME + "=NotUnderstood\0".len()) < MAX_TEXT);

/// One key and its value. The name has 1 to [`MAX_KEY_NAME`] legal characters; the value is anything without a zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The key's name.
    pub name: &'a str,
    /// The value as it came.
    pub value: &'a [u8],
}

/// Why bytes are not a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadText {
    /// The last pair has no zero byte behind it: something is missing, and half a value must not be believed.
    #[error("the text ends within a pair")]
    Unterminated,
    /// A pair has no equals sign.
    #[error("a pair has no '='")]
    NoEquals,
    /// A key's name is empty, longer than [`MAX_KEY_NAME`], or holds other characters than names do.
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
    /// A PDU said that its text goes on, but carried none.
    #[error("a PDU without text says that its text goes on")]
    ContinuedEmpty,
}

/// Splits a text into its pairs. Several zero bytes in a row count as one.
///
/// # Errors
/// The first thing that is wrong with it.
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

/// The characters of a standard-label, and the `#` of `X#NodeArchitecture`.
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
    /// Starts with nothing collected.
    pub const fn new() -> Self {
        Self { text: Vec::new(), pdus: 0 }
    }

    /// Adds the data of one PDU, and returns the whole text once `cont` (the C bit) is clear. Then it is empty again.
    ///
    /// # Errors
    /// `TooLong`, `TooManyPdus`, `ContinuedEmpty`; what was collected is forgotten.
    pub fn add(&mut self, data: &[u8], cont: bool) -> Result<Option<Vec<u8>>, BadText> {
        let mut text = core::mem::take(&mut self.text);
        let pdus = core::mem::take(&mut self.pdus) + 1;
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

    /// Returns whether a text has begun and not ended.
    pub const fn is_incomplete(&self) -> bool {
        self.pdus > 0
    }

    /// Returns how much memory is held.
    pub const fn held(&self) -> usize {
        self.text.capacity()
    }
}

/// A text under construction, of at most [`MAX_TEXT`] bytes. What does not fit is left out whole, and remembered.
#[derive(Clone, Debug, Default)]
pub struct TextBuilder {
    text: Vec<u8>,
    overflowed: bool,
}

impl TextBuilder {
    /// Starts empty.
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
        self.text.push(0);
    }

    /// Appends the pairs of another text.
    pub fn append(&mut self, mut other: Self) {
        if self.text.len().saturating_add(other.text.len()) > MAX_TEXT {
            self.overflowed = true;
        } else {
            self.text.append(&mut other.text);
        }
        self.overflowed |= other.overflowed;
    }

    /// Returns whether nothing was appended.
    pub const fn is_empty(&self) -> bool {
        self.text.is_empty() && !self.overflowed
    }

    /// Returns whether a pair did not fit.
    pub const fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// Returns the text.
    pub fn into_bytes(self) -> Vec<u8> {
        self.text
    }
}

/// A text on its way out, piece by piece.
#[derive(Clone, Debug, Default)]
pub struct TextSplitter {
    text: Vec<u8>,
    sent: usize,
}

impl TextSplitter {
    /// Starts to send `text`.
    pub const fn new(text: Vec<u8>) -> Self {
        Self { text, sent: 0 }
    }

    /// Takes the next piece, of at most `limit` bytes, and says whether the text goes on behind it (the C bit).
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

    /// Returns whether nothing is left to send.
    pub const fn is_done(&self) -> bool {
        self.sent >= self.text.len()
    }

    /// Returns how much memory is held.
    pub const fn held(&self) -> usize {
        self.text.capacity()
    }
}

#[cfg(test)]
mod tests;
