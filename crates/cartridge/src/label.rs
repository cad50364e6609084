//! The label: what a cartridge is, how far its partitions are written, and its attributes. The label file has
//! two copies.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use base::bytes::{Reader, UnexpectedEof, Writer};
use base::int_cast::{to_u32, to_u64, to_usize};

use crate::attributes::Attributes;
use crate::error::Error;
use crate::layout::{BLOCK_LEN, CHUNK_LEN, Crc, HEADER_LEN, occupied};
use crate::profile::Profile;

/// The space of one copy of the label. The second copy follows the first.
pub const COPY_LEN: u64 = 64 << 10;
/// The length of the label file.
pub const FILE_LEN: u64 = 2 * COPY_LEN;
/// The version of the format that this release writes.
pub const VERSION: u32 = 1;
/// The smallest capacity of a partition.
pub const PARTITION_LEN_MIN: u64 = CHUNK_LEN;
/// The largest capacity of a cartridge: far more than any tape, and little enough that no sum overflows.
pub const CAPACITY_MAX: u64 = 1 << 56;
/// The length of a segment file of a log, unless the creator chooses another one.
pub const SEGMENT_LEN: u64 = 64 << 30;
/// The longest bar code.
pub const BARCODE_LEN_MAX: usize = 32;

/// The most segments of a log: those of the largest capacity in segments of [`SEGMENT_LEN`].
const SEGMENTS_MAX: u64 = CAPACITY_MAX / SEGMENT_LEN;

const MAGIC: [u8; 8] = *b"TgCartrg";
/// Magic, version, length and checksum are where they are in every version.
const FRAME_LEN: usize = 20;
const PARTITIONS_MAX: usize = 4;

/// The properties that a new cartridge is created with.
#[derive(Clone, Debug)]
pub struct Blank {
    /// The generation.
    pub profile: Profile,
    /// Whether it is write once, read many.
    pub is_worm: bool,
    /// The bar code: ASCII letters and digits, or empty.
    pub barcode: String,
    /// The capacity of all partitions together, in bytes.
    pub capacity: u64,
    /// The capacities of the partitions, in bytes; empty for one partition with everything.
    pub partitions: Vec<u64>,
    /// The length of a segment file: a multiple of [`CHUNK_LEN`].
    pub segment_len: u64,
    /// The day of manufacture, as `YYYYMMDD`.
    pub date: [u8; 8],
    /// Random bytes of the operating system.
    pub entropy: [u8; 48],
}

/// The label of a cartridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Counts how often the label was written; the copy with the higher number is the newer one.
    pub sequence: u64,
    /// The seal of the logs, which never leaves the cartridge.
    pub secret: [u8; 16],
    /// Identifies the cartridge.
    pub uuid: [u8; 16],
    /// The serial number: ten letters and digits.
    pub serial: [u8; 10],
    /// The day of manufacture, as `YYYYMMDD`.
    pub date: [u8; 8],
    /// The generation.
    pub profile: Profile,
    /// Whether it is write once, read many.
    pub is_worm: bool,
    /// Whether the write protect switch is set.
    pub is_write_protected: bool,
    /// Whether nothing was written behind the ends of the partitions: the cartridge was unloaded in order.
    pub is_unloaded: bool,
    /// The bar code, or nothing.
    pub barcode: String,
    /// The capacity of all partitions together, in bytes.
    pub capacity: u64,
    /// The length of a segment file.
    pub segment_len: u64,
    /// The epoch that the next start of writing gets.
    pub next_epoch: u32,
    /// The volume change reference (VCR).
    pub volume_change: u32,
    /// How often the cartridge was formatted into partitions.
    pub formats: u16,
    /// How often it was loaded.
    pub loads: u64,
    /// How many bytes hosts wrote in its life, and during the last load.
    pub written: Usage,
    /// How many bytes hosts read in its life, and during the last load.
    pub read: Usage,
    /// The partitions: one to four.
    pub partitions: Vec<Checkpoint>,
    /// The attributes that hosts wrote.
    pub attributes: Attributes,
}

/// Bytes counted over the life of a cartridge and over one load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in the life of the cartridge.
    pub life: u64,
    /// Bytes since the last load.
    pub load: u64,
}

impl Usage {
    pub(crate) fn add(&mut self, bytes: usize) {
        self.life = self.life.saturating_add(to_u64(bytes));
        self.load = self.load.saturating_add(to_u64(bytes));
    }
}

/// A partition, as far as it was durable when the label was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The capacity in bytes.
    pub capacity: u64,
    /// Where in the stream of the log the data ends.
    pub end: u64,
    /// How many objects are before that.
    pub objects: u64,
    /// How many of them are filemarks.
    pub filemarks: u64,
    /// The epoch of what is written behind that.
    pub epoch: u32,
    /// The first encrypted object plus one, or 0.
    pub first_encrypted: u64,
}

impl Label {
    /// Makes the label of a new cartridge.
    ///
    /// # Errors
    /// A capacity, partition or bar code is not possible.
    pub fn blank(blank: &Blank) -> Result<Self, Error> {
        let (secret, uuid, serial) = random_parts(&blank.entropy);
        let partitions = partitions(blank.profile, blank.is_worm, blank.capacity, &blank.partitions)?;
        let label = Self {
            sequence: 1,
            secret,
            uuid,
            serial,
            date: blank.date,
            profile: blank.profile,
            is_worm: blank.is_worm,
            is_write_protected: false,
            is_unloaded: true,
            barcode: blank.barcode.clone(),
            capacity: blank.capacity,
            segment_len: blank.segment_len,
            next_epoch: 1,
            volume_change: 0,
            formats: 0,
            loads: 0,
            written: Usage::default(),
            read: Usage::default(),
            partitions,
            attributes: Attributes::default(),
        };
        if label.is_possible() { Ok(label) } else { Err(Error::ImpossibleLabel) }
    }

    /// Returns the label file of a new cartridge: both copies.
    pub fn file(&self) -> Vec<u8> {
        let mut file = self.encode();
        file.resize(to_usize(COPY_LEN), 0);
        file.extend_from_within(..);
        file
    }

    /// Writes a copy. Its length is a multiple of the block length.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; to_usize(COPY_LEN)];
        let mut out = Writer::new(&mut bytes);
        // The attributes are bounded, so everything fits; a test fills them.
        let _ = out.zeros(FRAME_LEN).and_then(|()| self.encode_body(&mut out));
        let len = out.len();
        bytes.truncate(len);
        let mut frame = [0; FRAME_LEN];
        let mut out = Writer::new(&mut frame);
        let crc = crc_of(to_u32(len), bytes.get(FRAME_LEN..).unwrap_or_default());
        let _ = out.put(&MAGIC).and_then(|()| {
            out.u32(VERSION)?;
            out.u32(to_u32(len))?;
            out.u32(crc)
        });
        for (to, from) in bytes.iter_mut().zip(frame) {
            *to = from;
        }
        bytes.resize(len.next_multiple_of(4096), 0);
        bytes
    }

    /// Reads a copy.
    ///
    /// # Errors
    /// The bytes are no label, or none that this release can read.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut from = Reader::new(bytes);
        let damaged = |_| Error::NoLabel;
        let magic = from.array::<8>().map_err(damaged)?;
        let version = from.u32().map_err(damaged)?;
        let len = from.u32().map_err(damaged)?;
        let crc = from.u32().map_err(damaged)?;
        let body = bytes.get(FRAME_LEN..to_usize(len)).ok_or(Error::NoLabel)?;
        if magic != MAGIC || crc_of_version(version, len, body) != crc {
            return Err(Error::NoLabel);
        }
        if version != VERSION {
            return Err(Error::UnknownVersion(version));
        }
        let mut from = Reader::new(body);
        let label = Self::decode_body(&mut from).filter(Self::is_possible);
        label.filter(|_| from.is_empty()).ok_or(Error::ImpossibleLabel)
    }

    fn encode_body(&self, out: &mut Writer<'_>) -> Result<(), UnexpectedEof> {
        out.u64(self.sequence)?;
        out.put(&self.secret)?;
        out.put(&self.uuid)?;
        out.put(&self.serial)?;
        out.put(&self.date)?;
        out.u8(self.profile.generation())?;
        let flags = [self.is_worm, self.is_write_protected, self.is_unloaded];
        out.u8(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)))?;
        out.u64(self.capacity)?;
        out.u64(self.segment_len)?;
        out.u32(self.next_epoch)?;
        out.u32(self.volume_change)?;
        out.u16(self.formats)?;
        for number in [self.loads, self.written.life, self.written.load, self.read.life, self.read.load] {
            out.u64(number)?;
        }
        out.u8(u8::try_from(self.barcode.len()).map_err(|_| UnexpectedEof)?)?;
        out.put(self.barcode.as_bytes())?;
        out.u8(u8::try_from(self.partitions.len()).map_err(|_| UnexpectedEof)?)?;
        for part in &self.partitions {
            for number in [part.capacity, part.end, part.objects, part.filemarks, part.first_encrypted] {
                out.u64(number)?;
            }
            out.u32(part.epoch)?;
        }
        self.attributes.encode(out)
    }

    fn decode_body(from: &mut Reader<'_>) -> Option<Self> {
        let sequence = from.u64().ok()?;
        let (secret, uuid) = (from.array().ok()?, from.array().ok()?);
        let (serial, date) = (from.array().ok()?, from.array().ok()?);
        let profile = Profile::of_generation(from.u8().ok()?)?;
        let flags = from.u8().ok().filter(|flags| *flags < 8)?;
        let (capacity, segment_len) = (from.u64().ok()?, from.u64().ok()?);
        let (next_epoch, volume_change, formats) = (from.u32().ok()?, from.u32().ok()?, from.u16().ok()?);
        let mut number = || from.u64().ok();
        let loads = number()?;
        let written = Usage { life: number()?, load: number()? };
        let read = Usage { life: number()?, load: number()? };
        let barcode_len = from.u8().ok()?;
        let barcode = from.take(usize::from(barcode_len)).ok()?;
        let barcode = String::from(core::str::from_utf8(barcode).ok()?);
        let count = from.u8().ok()?;
        let mut partitions = Vec::new();
        for _ in 0..count {
            partitions.push(Checkpoint::decode(from)?);
        }
        let attributes = Attributes::decode(from)?;
        let (is_worm, is_write_protected, is_unloaded) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        Some(Self {
            sequence,
            secret,
            uuid,
            serial,
            date,
            profile,
            is_worm,
            is_write_protected,
            is_unloaded,
            barcode,
            capacity,
            segment_len,
            next_epoch,
            volume_change,
            formats,
            loads,
            written,
            read,
            partitions,
            attributes,
        })
    }

    pub(crate) fn is_possible(&self) -> bool {
        let sum = self.partitions.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.capacity));
        let barcode = self.barcode.as_bytes();
        (1..=self.profile.partitions_max()).contains(&self.partitions.len())
            && sum.is_some_and(|sum| sum <= self.capacity)
            && self.capacity <= CAPACITY_MAX
            && (CHUNK_LEN..=CAPACITY_MAX).contains(&self.segment_len)
            && self.segment_len.is_multiple_of(CHUNK_LEN)
            && self.capacity / self.segment_len <= SEGMENTS_MAX
            && self.sequence <= u64::MAX / 2
            && barcode.len() <= BARCODE_LEN_MAX
            && barcode.iter().all(|byte| byte.is_ascii_graphic())
            && self.serial.iter().chain(&self.date).all(u8::is_ascii_alphanumeric)
            && (!self.is_worm || self.partitions.len() == 1)
            && self.partitions.iter().all(|part| part.is_possible(self.next_epoch))
    }
}

impl Checkpoint {
    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let mut number = || from.u64().ok();
        let (capacity, end, objects) = (number()?, number()?, number()?);
        let (filemarks, first_encrypted) = (number()?, number()?);
        Some(Self { capacity, end, objects, filemarks, epoch: from.u32().ok()?, first_encrypted })
    }

    fn is_possible(&self, next_epoch: u32) -> bool {
        // Padding can end behind the capacity.
        self.capacity >= PARTITION_LEN_MIN
            && self.end.is_multiple_of(HEADER_LEN)
            && self.end <= self.capacity.saturating_add(BLOCK_LEN)
            && occupied(self.end) <= self.capacity.saturating_add(BLOCK_LEN)
            && self.filemarks <= self.objects
            && self.objects <= self.end / HEADER_LEN
            && self.first_encrypted <= self.objects
            && self.epoch < next_epoch.max(1)
    }
}

/// Returns blank partitions.
///
/// # Errors
/// There are too many, they are too small, or larger together than the cartridge.
pub(crate) fn partitions(
    profile: Profile,
    is_worm: bool,
    capacity: u64,
    sizes: &[u64],
) -> Result<Vec<Checkpoint>, Error> {
    let whole = [capacity];
    let sizes = if sizes.is_empty() { &whole } else { sizes };
    let count_max = if is_worm { 1 } else { profile.partitions_max().min(PARTITIONS_MAX) };
    let sum = sizes.iter().try_fold(0_u64, |sum, size| sum.checked_add(*size));
    let fits = sum.is_some_and(|sum| sum <= capacity) && capacity <= CAPACITY_MAX;
    if sizes.len() > count_max || !fits || sizes.iter().any(|size| *size < PARTITION_LEN_MIN) {
        return Err(Error::PartitionSizes);
    }
    let blank = |capacity: &u64| Checkpoint {
        capacity: *capacity,
        end: 0,
        objects: 0,
        filemarks: 0,
        epoch: 0,
        first_encrypted: 0,
    };
    Ok(sizes.iter().map(blank).collect())
}

/// Divides random bytes into the secret, the UUID and the serial number.
fn random_parts(entropy: &[u8; 48]) -> ([u8; 16], [u8; 16], [u8; 10]) {
    const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKLMNPQRSTUVWX";
    let (secret, rest) = entropy.split_first_chunk::<16>().unwrap_or((&[0; 16], &[]));
    let (uuid, rest) = rest.split_first_chunk::<16>().unwrap_or((&[0; 16], &[]));
    let mut uuid = *uuid;
    // A random UUID, version 4 of RFC 9562.
    let [.., six, _, eight, _, _, _, _, _, _, _] = &mut uuid;
    *six = (*six & 0x0f) | 0x40;
    *eight = (*eight & 0x3f) | 0x80;
    let mut serial = [b'0'; 10];
    for (to, from) in serial.iter_mut().zip(rest) {
        *to = DIGITS.get(usize::from(from % 32)).copied().unwrap_or(b'0');
    }
    (*secret, uuid, serial)
}

fn crc_of(len: u32, body: &[u8]) -> u32 {
    crc_of_version(VERSION, len, body)
}

/// Returns the checksum of a copy: over version, length and body.
fn crc_of_version(version: u32, len: u32, body: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(&version.to_be_bytes());
    crc.update(&len.to_be_bytes());
    crc.update(body);
    crc.value()
}

#[cfg(test)]
mod tests;
