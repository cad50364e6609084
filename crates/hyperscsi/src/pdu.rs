//! The payloads of frames: blocks of fixed fields that may grow by type-length-value items at their end.
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
//! What stands behind the block depends on the command: data, or padding. A reader passes over items that it does not
//! know, unless bit 7 of their TYPE is set. Everything here is parsed once into values that are legal; nothing here has
//! state, and what a frame means at the moment it comes is for the machines to say.

macro_rules! code8 {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u8);

        impl $name {
            $($(#[$vdoc])* pub const $variant: Self = Self($value);)*
        }
    };
}

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

/// What is wrong with a payload, whoever sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends within a field, or its block within the fixed fields.
    #[error("the payload is cut short")]
    Short,
    /// There is no such block in such a frame.
    #[error("the payload is of an unknown kind")]
    Kind,
    /// A field has a value that it must not have.
    #[error("a field has a value that it must not have")]
    Value,
    /// An item must be understood and is not known, comes twice, or is missing.
    #[error("an item is unknown, repeated or missing")]
    Item,
    /// A name is not one.
    #[error("a name is empty, too long or of forbidden characters")]
    Name,
}

impl From<UnexpectedEof> for Malformed {
    fn from(_: UnexpectedEof) -> Self {
        Self::Short
    }
}

/// The length of what every block begins with.
pub const BLOCK_HEAD_LEN: usize = 4;

/// A block, before its kind is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block<'a> {
    pub(crate) kind: u8,
    pub(crate) info: u8,
    /// Its fixed fields and items.
    pub(crate) body: Reader<'a>,
    /// What stands behind it.
    pub(crate) rest: &'a [u8],
}

impl<'a> Block<'a> {
    /// Takes the block off the front of `payload`.
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        let (kind, info, len) = (reader.u8()?, reader.u8()?, usize::from(reader.u16()?));
        let body = reader.take(len.checked_sub(BLOCK_HEAD_LEN).ok_or(Malformed::Short)?)?;
        Ok(Self { kind, info, body: Reader::new(body), rest: reader.rest() })
    }

    /// Ends the reading of a block whose items are none that a reader of today knows.
    pub(crate) fn no_more(self) -> Result<(), Malformed> {
        self.items(|_, _| Ok(false))
    }

    /// Gives each item that is left to `known`, which says whether it knows it.
    pub(crate) fn items(
        self,
        known: impl FnMut(u8, &'a [u8]) -> Result<bool, Malformed>,
    ) -> Result<(), Malformed> {
        items(self.body, known)
    }
}

/// The bit of an item's type that says that a receiver must know it.
pub const MUST_KNOW: u8 = 0x80;

/// Gives each item to `known`, which says whether it knows it. One that is not known is passed over, unless it must be
/// known.
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

/// Keeps the value of an item that may come once.
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

/// Puts at `at` how much was written from `start` on. Nothing that is written here reaches 64 KiB: every list and name
/// has a bound far below.
fn set_len(out: &mut [u8], at: usize, start: usize) {
    let len = u16::try_from(out.len() - start).unwrap_or(u16::MAX);
    debug_assert!(usize::from(len) == out.len() - start, "a block of {} bytes", out.len() - start);
    if let Some(room) = out.get_mut(at..at + 2) {
        room.copy_from_slice(&len.to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
