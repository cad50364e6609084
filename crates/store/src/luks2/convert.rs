//! Converts an image of targe's former format into LUKS2, in place: moves the data back by
//! [`DATA_OFFSET`] bytes, from the end to the start, and writes the header into the room that this makes.
//!
//! The key of the data stays the same. Sectors of 512 bytes keep their contents too. Sectors of 4096
//! bytes are encrypted again, because dm-crypt gives them other numbers. Sectors of zeros stay zeros.
//!
//! # A crash at any write
//!
//! The data are moved in pieces of at most [`DATA_OFFSET`] bytes. No piece overlaps its destination, so a
//! piece that was moved partly is moved again. A journal on a medium of its own says how much was moved.
//! Its two slots are written in turn, each with a checksum, and each only after the data were flushed.

use alloc::vec;
use alloc::vec::Vec;

use base::int_cast::{to_u64, to_usize};
use sha2::{Digest, Sha256};

use super::format::{DATA_OFFSET, NewHeader, format};
use super::{Entropy, Error, LuksError, MediumIo};
use crate::encrypt::xts::Xts;
use crate::encrypt::{DataUnit, MediaKey};

/// The length of the journal in bytes.
pub const JOURNAL_LEN: u64 = 2 * SLOT_DISTANCE;

const SLOT_DISTANCE: u64 = 4096;
const SLOT_LEN: usize = 512;
/// The most bytes moved between two records of the journal. No piece may overlap its destination.
const PIECE_LEN: u64 = DATA_OFFSET;
/// The length in bytes of the parts of a piece, of which those of zeros become holes.
const PART_LEN: u64 = 64 << 10;
const READ_LEN: u64 = 1 << 20;

/// The versions of a slot of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// Magic (16 bytes), version (4), data unit (4), sequence number, length of the data, bytes still to be
    /// moved (8 each), whether the header is written (4), SHA-256 of all that; big-endian.
    One = 1,
}

const MAGIC: &[u8; 16] = b"targe to LUKS2 \n";
const FIELDS_LEN: usize = 16 + 4 + 4 + 8 + 8 + 8 + 4;

/// A conversion, as far as it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversion {
    unit: DataUnit,
    sequence: u64,
    len: u64,
    left: u64,
    header_written: bool,
}

impl Conversion {
    /// Plans the conversion of `len` bytes that were encrypted in sectors of `unit`. Bytes behind the last
    /// whole sector are dropped.
    pub const fn new(len: u64, unit: DataUnit) -> Self {
        let len = len - len % unit.bytes() as u64;
        Self { unit, sequence: 0, len, left: len, header_written: false }
    }

    /// Reads how far an interrupted conversion has come. `None`: it has moved nothing yet.
    ///
    /// # Errors
    /// As the journal reports them.
    pub fn load<J: MediumIo>(journal: &mut J) -> Result<Option<Self>, J::Error> {
        let mut newest: Option<Self> = None;
        for at in [0, SLOT_DISTANCE] {
            let mut slot = [0; SLOT_LEN];
            journal.read(at, &mut slot)?;
            let found = Self::decode(&slot);
            if found.as_ref().map(|found| found.sequence) > newest.as_ref().map(|newest| newest.sequence) {
                newest = found;
            }
        }
        Ok(newest)
    }

    /// Writes how far the conversion has come, durably. The caller does this before the first
    /// [`Self::move_piece`].
    ///
    /// # Errors
    /// As the journal reports them.
    pub fn store<J: MediumIo>(&mut self, journal: &mut J) -> Result<(), J::Error> {
        self.sequence = self.sequence.saturating_add(1);
        journal.write((self.sequence % 2) * SLOT_DISTANCE, &self.encode())?;
        journal.flush()
    }

    /// Returns the length of the data in bytes. The medium must have [`DATA_OFFSET`] bytes more.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether there are no data.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many bytes are still to be moved.
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// Returns the unit of encryption, before and after.
    pub const fn unit(&self) -> DataUnit {
        self.unit
    }

    /// Returns whether the image is a LUKS2 image.
    pub const fn is_done(&self) -> bool {
        self.header_written
    }

    /// Moves the next piece and records it. Call this until [`Self::left`] is zero.
    ///
    /// # Errors
    /// As the medium or the journal report them. The conversion can go on later.
    pub fn move_piece<M, J>(&mut self, io: &mut M, journal: &mut J, key: &MediaKey) -> Result<(), M::Error>
    where
        M: MediumIo,
        J: MediumIo<Error = M::Error>,
    {
        let xts = Xts::new(key);
        let from = self.left.saturating_sub(PIECE_LEN);
        let mut end = self.left;
        let mut bytes = vec![0; to_usize(READ_LEN)];
        while end > from {
            let at = from.max(end.saturating_sub(READ_LEN));
            let part = bytes.get_mut(..to_usize(end - at)).unwrap_or_default();
            io.read(at, part)?;
            self.write_parts(io, at, part, &xts)?;
            end = at;
        }
        io.flush()?;
        self.left = from;
        self.store(journal)
    }

    /// Writes the header, once all data are moved. The image is a LUKS2 image then.
    ///
    /// # Errors
    /// As the medium or the journal report them. The conversion can go on later.
    pub fn write_header<M, J>(
        &mut self,
        io: &mut M,
        journal: &mut J,
        new: &NewHeader<'_>,
        entropy: Entropy<'_, M::Error>,
    ) -> Result<(), Error<M::Error>>
    where
        M: MediumIo,
        J: MediumIo<Error = M::Error>,
    {
        if self.left > 0 || new.sector_len != self.unit {
            return Err(LuksError::Metadata("the header is written before all data are moved").into());
        }
        if self.header_written {
            return Ok(());
        }
        io.zero(0, DATA_OFFSET).map_err(Error::Io)?;
        format(io, self.len.saturating_add(DATA_OFFSET), new, entropy)?;
        self.header_written = true;
        self.store(journal).map_err(Error::Io)
    }

    /// Writes the data that were at `at` to their new place.
    fn write_parts<M: MediumIo>(
        &self,
        io: &mut M,
        at: u64,
        bytes: &mut [u8],
        xts: &Xts,
    ) -> Result<(), M::Error> {
        let mut to = at.saturating_add(DATA_OFFSET);
        let mut number = at / u64::from(self.unit.bytes());
        for part in bytes.chunks_mut(to_usize(PART_LEN)) {
            let len = to_u64(part.len());
            if part.iter().all(|byte| *byte == 0) {
                io.zero(to, len)?;
                number += len / u64::from(self.unit.bytes());
            } else {
                for sector in part.chunks_exact_mut(to_usize(self.unit.bytes())) {
                    if self.unit == DataUnit::B4096 && sector.iter().any(|byte| *byte != 0) {
                        xts.decrypt(number, sector);
                        xts.encrypt(number.saturating_mul(8), sector);
                    }
                    number += 1;
                }
                io.write(to, part)?;
            }
            to = to.saturating_add(len);
        }
        Ok(())
    }

    fn encode(&self) -> Vec<u8> {
        let mut slot = Vec::with_capacity(SLOT_LEN);
        slot.extend_from_slice(MAGIC);
        slot.extend_from_slice(&(Version::One as u32).to_be_bytes());
        slot.extend_from_slice(&self.unit.bytes().to_be_bytes());
        for number in [self.sequence, self.len, self.left] {
            slot.extend_from_slice(&number.to_be_bytes());
        }
        slot.extend_from_slice(&u32::from(self.header_written).to_be_bytes());
        let sum: [u8; 32] = Sha256::digest(&slot).into();
        slot.extend_from_slice(&sum);
        slot.resize(SLOT_LEN, 0);
        slot
    }

    fn decode(slot: &[u8; SLOT_LEN]) -> Option<Self> {
        let (fields, rest) = slot.split_at_checked(FIELDS_LEN)?;
        let sum: [u8; 32] = Sha256::digest(fields).into();
        if rest.first_chunk() != Some(&sum) {
            return None;
        }
        let (magic, fields) = fields.split_first_chunk::<16>()?;
        let (version, fields) = fields.split_first_chunk()?;
        let (unit, fields) = fields.split_first_chunk()?;
        let (sequence, fields) = fields.split_first_chunk()?;
        let (len, fields) = fields.split_first_chunk()?;
        let (left, fields) = fields.split_first_chunk()?;
        let (written, _) = fields.split_first_chunk()?;
        if magic != MAGIC || u32::from_be_bytes(*version) != Version::One as u32 {
            return None;
        }
        let unit = match u32::from_be_bytes(*unit) {
            512 => DataUnit::B512,
            4096 => DataUnit::B4096,
            _ => return None,
        };
        Some(Self {
            unit,
            sequence: u64::from_be_bytes(*sequence),
            len: u64::from_be_bytes(*len),
            left: u64::from_be_bytes(*left),
            header_written: u32::from_be_bytes(*written) == 1,
        })
    }
}
