//! The log of a partition as bytes: chunks, chunk headers and item headers.
//!
//! A log is a sequence of chunks of 1 MiB. Each begins with a header; the rest of all chunks, put together,
//! is the *stream*. Items (records, filemarks, synchronisation marks) follow each other in the stream.

use base::bytes::{Reader, UnexpectedEof, Writer};
use base::int_cast::{to_u32, to_u64, to_usize};
use crc_fast::{CrcAlgorithm, Digest};

/// The length of a chunk, with its header.
pub const CHUNK_LEN: u64 = 1 << 20;
/// The length of the headers of chunks and items, and the alignment of items.
pub const HEADER_LEN: u64 = 64;
/// How many bytes of the stream are in a chunk.
pub const BODY_LEN: u64 = CHUNK_LEN - HEADER_LEN;
/// The unit of writes: a synchronised block is not written again, except when the tape is overwritten there.
pub const BLOCK_LEN: u64 = 4096;
/// The longest record.
pub const RECORD_LEN_MAX: usize = 8 << 20;
/// The longest metadata of a record: more than a SCSI tape drive keeps (nonce, key-associated data).
pub const METADATA_LEN_MAX: usize = 1024;

const CHUNK_MAGIC: [u8; 8] = *b"TgChunk1";
const ITEM_MAGIC: [u8; 4] = *b"TgIt";
const HEADER: usize = 64;

/// Returns where in the file, or sequence of segment files, a byte of the stream is.
pub const fn physical(stream: u64) -> u64 {
    (stream / BODY_LEN) * CHUNK_LEN + HEADER_LEN + stream % BODY_LEN
}

/// Returns how many bytes of storage a stream of this length occupies.
pub const fn occupied(stream: u64) -> u64 {
    if stream == 0 { 0 } else { physical(stream - 1) + 1 }
}

/// Returns the smallest position of an item that is not before `stream`.
pub const fn aligned(stream: u64) -> u64 {
    stream.next_multiple_of(HEADER_LEN)
}

/// What the checksums of a log begin with: random bytes of the cartridge, which never leave it, and the
/// number of the partition. A header of another cartridge or partition therefore never counts as one of this
/// log.
#[derive(Clone, Copy, Debug)]
pub struct Seal {
    bytes: [u8; 17],
}

impl Seal {
    /// Makes the seal of a partition.
    pub fn new(secret: &[u8; 16], partition: u8) -> Self {
        let mut bytes = [partition; 17];
        for (to, from) in bytes.iter_mut().zip(secret) {
            *to = *from;
        }
        Self { bytes }
    }

    fn crc(&self, header: &[u8]) -> u32 {
        let mut crc = Crc::new();
        crc.update(&self.bytes);
        crc.update(header);
        crc.value()
    }
}

/// A CRC32C that is computed piece by piece.
#[derive(Clone, Debug)]
pub struct Crc(Digest);

impl Crc {
    /// Starts a checksum.
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum of the bytes so far.
    pub fn value(&self) -> u32 {
        to_u32(self.0.finalize())
    }
}

impl Default for Crc {
    fn default() -> Self {
        Self::new()
    }
}

/// The header of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// The epoch in which the chunk was begun.
    pub epoch: u32,
    /// The number of the chunk in its log.
    pub chunk: u64,
    /// Where in the stream the first item begins that does not begin before this chunk.
    pub first: u64,
    /// The number of the logical object that this item is, or that follows this item if it is none.
    pub object: u64,
    /// How many filemarks are before it.
    pub filemarks: u64,
    /// Up to where in the stream everything was durable when the chunk was begun.
    pub durable: u64,
}

impl ChunkHeader {
    /// Writes the header.
    pub fn encode(&self, seal: &Seal) -> [u8; 64] {
        sealed(seal, |out| {
            out.put(&CHUNK_MAGIC)?;
            out.u32(self.epoch)?;
            out.u32(0)?;
            for number in [self.chunk, self.first, self.object, self.filemarks, self.durable] {
                out.u64(number)?;
            }
            out.u32(0)
        })
    }

    /// Reads the header of chunk `chunk`, or nothing if these bytes are none.
    pub fn decode(bytes: &[u8], seal: &Seal, chunk: u64) -> Option<Self> {
        let mut from = unsealed(bytes, &CHUNK_MAGIC, seal)?;
        let epoch = from.u32().ok()?;
        from.u32().ok()?;
        let mut number = || from.u64().ok();
        let header = Self {
            epoch,
            chunk: number()?,
            first: number()?,
            object: number()?,
            filemarks: number()?,
            durable: number()?,
        };
        (header.chunk == chunk && header.first >= chunk * BODY_LEN).then_some(header)
    }
}

/// The kinds of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemKind {
    /// A record: a logical object.
    Record,
    /// A filemark: a logical object.
    Filemark,
    /// Fills the log up to the end of a block, before the log is written out.
    Pad,
}

/// The header of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemHeader {
    /// The kind of the item.
    pub kind: ItemKind,
    /// Whether the data of the record is compressed (zstd).
    pub is_compressed: bool,
    /// Whether a flush followed the padding, before anything else was written.
    pub is_sync: bool,
    /// The logical block protection method of the record's guard: 0 none, 1 Reed-Solomon, 2 CRC32C.
    pub protection: u8,
    /// The index of the algorithm that encrypted the record, as the device server numbers them, or 0.
    pub encryption: u8,
    /// The epoch in which the item was written.
    pub epoch: u32,
    /// How many of the stored bytes are metadata.
    pub metadata_len: u16,
    /// Where in the stream the item begins.
    pub at: u64,
    /// The number of the logical object that the item is, or that follows it.
    pub object: u64,
    /// How many filemarks are before it.
    pub filemarks: u64,
    /// The length of the data as the host wrote it.
    pub len: u32,
    /// The length of what is stored behind the header: metadata and data, or padding.
    pub stored_len: u32,
    /// The CRC32C of the data as the host wrote it.
    pub crc: u32,
    /// The CRC32C of what is stored behind the header; 0 for padding, which can hold anything.
    pub stored_crc: u32,
    /// The guard of the record as the host sent it, if it has a protection method.
    pub guard: u32,
}

impl ItemHeader {
    /// Writes the header.
    pub fn encode(&self, seal: &Seal) -> [u8; 64] {
        sealed(seal, |out| {
            out.put(&ITEM_MAGIC)?;
            out.u8(match self.kind {
                ItemKind::Record => 1,
                ItemKind::Filemark => 2,
                ItemKind::Pad => 3,
            })?;
            out.u8(u8::from(self.is_compressed) | u8::from(self.is_sync) << 1)?;
            out.u8(self.protection)?;
            out.u8(self.encryption)?;
            out.u32(self.epoch)?;
            out.u16(self.metadata_len)?;
            out.u16(0)?;
            for number in [self.at, self.object, self.filemarks] {
                out.u64(number)?;
            }
            for number in [self.len, self.stored_len, self.crc, self.stored_crc, self.guard] {
                out.u32(number)?;
            }
            Ok(())
        })
    }

    /// Reads the header of the item at `at` in the stream, or nothing if these bytes are none.
    pub fn decode(bytes: &[u8], seal: &Seal, at: u64) -> Option<Self> {
        let mut from = unsealed(bytes, &ITEM_MAGIC, seal)?;
        let kind = match from.u8().ok()? {
            1 => ItemKind::Record,
            2 => ItemKind::Filemark,
            3 => ItemKind::Pad,
            _ => return None,
        };
        let flags = from.u8().ok().filter(|flags| *flags < 4)?;
        let (protection, encryption, epoch) = (from.u8().ok()?, from.u8().ok()?, from.u32().ok()?);
        let metadata_len = from.u16().ok()?;
        from.u16().ok()?;
        let (found, object, filemarks) = (from.u64().ok()?, from.u64().ok()?, from.u64().ok()?);
        let mut number = || from.u32().ok();
        let header = Self {
            kind,
            is_compressed: flags & 1 != 0,
            is_sync: flags & 2 != 0,
            protection,
            encryption,
            epoch,
            metadata_len,
            at: found,
            object,
            filemarks,
            len: number()?,
            stored_len: number()?,
            crc: number()?,
            stored_crc: number()?,
            guard: number()?,
        };
        (found == at && header.is_possible()).then_some(header)
    }

    /// Returns where in the stream the next item begins.
    pub const fn end(&self) -> u64 {
        aligned(self.at + HEADER_LEN + self.stored_len as u64)
    }

    /// Returns the number of the object behind the item.
    pub fn object_behind(&self) -> u64 {
        self.object + u64::from(self.kind != ItemKind::Pad)
    }

    /// Returns how many filemarks are before the end of the item.
    pub fn filemarks_behind(&self) -> u64 {
        self.filemarks + u64::from(self.kind == ItemKind::Filemark)
    }

    fn is_possible(&self) -> bool {
        let (len, stored) = (to_usize(self.len), to_usize(self.stored_len));
        let metadata = usize::from(self.metadata_len);
        let flags = (self.kind == ItemKind::Record || !self.is_compressed)
            && (self.kind == ItemKind::Pad || !self.is_sync);
        let numbers = self.at < u64::MAX / 4 && self.object < u64::MAX - 1 && self.filemarks <= self.object;
        flags
            && numbers
            && match self.kind {
                ItemKind::Record => {
                    let data = stored.checked_sub(metadata);
                    (1..=RECORD_LEN_MAX).contains(&len)
                        && metadata <= METADATA_LEN_MAX
                        && data.is_some_and(|data| match self.is_compressed {
                            true => data > 0 && data < len,
                            false => data == len,
                        })
                }
                ItemKind::Filemark => len == 0 && stored == 0,
                ItemKind::Pad => len == 0 && to_u64(stored) < BLOCK_LEN,
            }
    }
}

fn sealed(seal: &Seal, fill: impl FnOnce(&mut Writer<'_>) -> Result<(), UnexpectedEof>) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    let (body, sum) = bytes.split_at_mut(HEADER - 4);
    // The fields have exactly this length; a test reads each header back.
    let _ = fill(&mut Writer::new(body));
    let crc = seal.crc(body).to_be_bytes();
    for (to, from) in sum.iter_mut().zip(crc) {
        *to = from;
    }
    bytes
}

fn unsealed<'a>(bytes: &'a [u8], magic: &[u8], seal: &Seal) -> Option<Reader<'a>> {
    if !bytes.starts_with(magic) {
        return None;
    }
    let mut from = Reader::new(bytes);
    let body = from.take(HEADER - 4).ok()?;
    let sum = from.u32().ok()?;
    let mut fields = Reader::new(body);
    fields.take(magic.len()).ok()?;
    (seal.crc(body) == sum).then_some(fields)
}

#[cfg(test)]
mod tests;
