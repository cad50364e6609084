//! The payloads of frames: blocks of fixed fields, which can be extended by type-length-value items at their
//! end.
//!
//! Every payload that is not plain data begins with a *block*:
//!
//! ```text
//! off len field
//!  0   1  KIND                             which block it is, within the frame's command
//!  1   1  INFO                             depends on KIND
//!  2   2  LEN                              of the whole block, these four bytes and all items included
//!  4   …  fixed fields of that KIND
//!  …   …  items: TYPE (1; bit 7: the receiver must know it), LENGTH (2), value
//! ```
//!
//! The bytes behind the block depend on the command: data, or padding. A reader skips items that it does not
//! know, unless bit 7 of their TYPE is set. This module parses every payload once into legal values. It keeps
//! no state: the state machines decide what a frame means at the moment of its arrival.

pub mod abort;
pub mod ack;
pub mod ask;
pub mod command;
pub mod disconnect;
pub mod discovery;
pub mod name;
pub mod negotiate;
pub mod parameters;
pub mod parts;
pub mod reply;

use alloc::vec::Vec;

use base::bytes::{Reader, UnexpectedEof};

/// Why a payload cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The payload ends within a field, or its block ends within the fixed fields.
    #[error("the payload is truncated")]
    Short,
    /// This command has no block of this KIND.
    #[error("the payload is of an unknown kind")]
    Kind,
    /// A field has a value that it must not have.
    #[error("a field has an illegal value")]
    Value,
    /// An item is unknown but must be understood, or occurs twice, or is missing.
    #[error("an item is unknown, repeated or missing")]
    Item,
    /// A name is not legal.
    #[error("a name is empty, too long or contains forbidden characters")]
    Name,
}

impl From<UnexpectedEof> for Malformed {
    fn from(_: UnexpectedEof) -> Self {
        Self::Short
    }
}

/// The length of the head of every block (KIND, INFO, LEN), in bytes.
pub const BLOCK_HEAD_LEN: usize = 4;

/// A block whose KIND was not examined yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block<'a> {
    pub(crate) kind: u8,
    pub(crate) info: u8,
    /// The fixed fields and items of the block.
    pub(crate) body: Reader<'a>,
    /// The bytes behind the block.
    pub(crate) rest: &'a [u8],
}

impl<'a> Block<'a> {
    /// Splits the block off the front of `payload`.
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        let (kind, info, len) = (reader.u8()?, reader.u8()?, usize::from(reader.u16()?));
        let body = reader.take(len.checked_sub(BLOCK_HEAD_LEN).ok_or(Malformed::Short)?)?;
        Ok(Self { kind, info, body: Reader::new(body), rest: reader.rest() })
    }

    /// Finishes parsing a block in which no items are defined today.
    pub(crate) fn no_more(self) -> Result<(), Malformed> {
        self.items(|_, _| Ok(false))
    }

    /// Calls `known` with each remaining item. `known` returns whether it knows the item.
    pub(crate) fn items(
        self,
        known: impl FnMut(u8, &'a [u8]) -> Result<bool, Malformed>,
    ) -> Result<(), Malformed> {
        items(self.body, known)
    }
}

/// The bit of an item's type that demands that the receiver knows the item.
pub const MUST_KNOW: u8 = 0x80;

/// Calls `known` with each item. `known` returns whether it knows the item. An unknown item is skipped,
/// unless [`MUST_KNOW`] is set in its type.
pub(crate) fn items<'a>(
    mut reader: Reader<'a>,
    mut known: impl FnMut(u8, &'a [u8]) -> Result<bool, Malformed>,
) -> Result<(), Malformed> {
    while !reader.is_empty() {
        let (kind, len) = (reader.u8()?, reader.u16()?);
        let value = reader.take(usize::from(len))?;
        //= hyperscsi#section-4.1
        //# A receiver passes over items that it does not know, unless bit 7 of TYPE is set: then it MUST drop the payload.
        if !known(kind, value)? && kind & MUST_KNOW != 0 {
            return Err(Malformed::Item);
        }
    }
    Ok(())
}

/// Stores the value of an item that may occur only once. Fails if it occurred before.
pub(crate) fn once<T>(slot: &mut Option<T>, value: T) -> Result<bool, Malformed> {
    slot.replace(value).map_or(Ok(true), |_| Err(Malformed::Item))
}

/// Reads an item whose value has exactly `N` bytes.
pub(crate) fn exactly<const N: usize>(value: &[u8]) -> Result<[u8; N], Malformed> {
    value.try_into().map_err(|_| Malformed::Value)
}

/// Writes a block: its head, then what `body` writes.
pub(crate) fn put_block(out: &mut Vec<u8>, kind: u8, info: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[kind, info, 0, 0]);
    body(out);
    set_len(out, start + 2, start);
}

/// Writes an item: its head, then what `value` writes.
pub(crate) fn put_item(out: &mut Vec<u8>, kind: u8, value: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&[kind, 0, 0]);
    let start = out.len();
    value(out);
    set_len(out, start - 2, start);
}

/// Writes the number of bytes after `start` into the length field at `at`. No block or item reaches 64 KiB:
/// every list and name has a bound far below.
fn set_len(out: &mut [u8], at: usize, start: usize) {
    let len = u16::try_from(out.len() - start).unwrap_or(u16::MAX);
    debug_assert!(usize::from(len) == out.len() - start, "a block of {} bytes", out.len() - start);
    if let Some(room) = out.get_mut(at..at + 2) {
        room.copy_from_slice(&len.to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
