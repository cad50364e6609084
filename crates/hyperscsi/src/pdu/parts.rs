//! The parts of a frame that carries several: where each part lies, and which header fields each part has of
//! its own.
//!
//! The block stands in front of the rest of the payload of a Request or Reply frame with the flag PARTS. It
//! describes the *further* parts. The frame's header describes the first part, whose length is what the
//! further parts leave of the payload.

use alloc::vec::Vec;

use base::bytes::Reader;

use super::{BLOCK_HEAD_LEN, Block, Malformed, put_block};
use crate::frame::{Flags, FragmentPosition, Header};

/// How many parts a frame has at most, the first one included.
pub const PARTS_MAX: usize = 64;

/// The length of the block without its entries, in bytes.
pub const PARTS_HEAD_LEN: usize = BLOCK_HEAD_LEN;
/// The length of an entry, which describes one further part, in bytes.
pub const PART_LEN: usize = 14;

const FURTHER: u8 = 1;

/// The flags that each part has of its own.
const OWN: u8 = Flags::DATA.0 | Flags::GOOD.0;

/// The parts of a frame. All of them lie within it.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    entries: &'a [u8],
    first: &'a [u8],
    behind: &'a [u8],
}

/// Writes the block that describes the further parts. Each is given as the header that it would have in a
/// frame of its own.
pub fn encode(further: impl Iterator<Item = Header>, out: &mut Vec<u8>) {
    let start = out.len();
    put_block(out, FURTHER, 0, |out| {
        for part in further {
            let position = FragmentPosition { tag: part.tag, last: part.last, fragment: part.fragment };
            out.extend_from_slice(&position.to_bytes());
            out.push(part.flags.0 & OWN);
            out.extend_from_slice(&part.len.to_be_bytes());
            out.extend_from_slice(&part.xid.to_be_bytes());
            out.extend_from_slice(&part.off.to_be_bytes());
        }
    });
    let count = (out.len() - start).saturating_sub(PARTS_HEAD_LEN) / PART_LEN;
    if let Some(info) = out.get_mut(start + 1) {
        *info = u8::try_from(count).unwrap_or_default();
    }
}

impl<'a> Parts<'a> {
    /// Parses the block at the front of `payload` and divides the bytes behind it.
    ///
    /// # Errors
    /// [`Malformed`]; also when there are no further parts or too many, or when they are longer than the
    /// payload.
    pub fn parse(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut block = Block::parse(payload)?;
        if block.kind != FURTHER {
            return Err(Malformed::Kind);
        }
        let count = usize::from(block.info);
        if count == 0 || count >= PARTS_MAX {
            return Err(Malformed::Value);
        }
        let entries = block.body.take(count * PART_LEN)?;
        let mut first = block.rest.len();
        for entry in entries.chunks_exact(PART_LEN) {
            first = first.checked_sub(usize::from(Entry::parse(entry)?.len)).ok_or(Malformed::Short)?;
        }
        let (first, behind) = block.rest.split_at_checked(first).ok_or(Malformed::Short)?;
        block.no_more()?;
        Ok(Self { entries, first, behind })
    }

    /// Returns how many parts there are, the first one included.
    pub const fn count(&self) -> usize {
        1 + self.entries.len() / PART_LEN
    }

    /// Calls `take` with each part in order, and with the header that the part would have in a frame of its
    /// own. `header` is the header of the whole frame.
    pub fn each(&self, header: &Header, take: &mut dyn FnMut(&Header, &'a [u8])) {
        let len = u16::try_from(self.first.len()).unwrap_or(header.len);
        take(&Header { len, ..*header }, self.first);
        let mut behind = self.behind;
        for entry in self.entries.chunks_exact(PART_LEN) {
            let Ok(entry) = Entry::parse(entry) else { return };
            let Some((payload, rest)) = behind.split_at_checked(usize::from(entry.len)) else { return };
            behind = rest;
            take(&entry.header(header), payload);
        }
    }
}

/// An entry of the block, which describes one further part.
struct Entry {
    position: FragmentPosition,
    flags: u8,
    len: u16,
    xid: u32,
    off: u32,
}

impl Entry {
    fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let position = FragmentPosition::from_word(reader.u24()?).ok_or(Malformed::Value)?;
        let (flags, len, xid, off) = (reader.u8()?, reader.u16()?, reader.u32()?, reader.u32()?);
        if flags & !OWN != 0 {
            return Err(Malformed::Value);
        }
        Ok(Self { position, flags, len, xid, off })
    }

    /// Returns the header that the part would have in a frame of its own. `frame` is the header of the frame
    /// that it shares.
    const fn header(&self, frame: &Header) -> Header {
        let FragmentPosition { tag, last, fragment } = self.position;
        let shared = frame.flags.0 & !(OWN | Flags::ACKS.0 | Flags::PARTS.0);
        let flags = Flags(shared | self.flags);
        Header { tag, last, fragment, flags, len: self.len, xid: self.xid, off: self.off, ..*frame }
    }
}

#[cfg(test)]
mod tests;
