//! The record of a writable disc: what kind of disc an image is, how it is formatted, and its tracks.
//!
//! The image of a writable disc is a file with the sectors of the disc, and after them [`TRAILER_LEN`] bytes
//! with two slots for the record. A record is written to the slot that does not hold the newest one, so that
//! one whole record remains if the write is torn. Each has a version, a sequence number and a checksum.
//!
//! The record is durable before a command that changes it is acknowledged, and the data that it describes is
//! durable before it is written.

pub mod error;
mod sequential;

use alloc::vec;
use alloc::vec::Vec;

use base::bytes::{Reader, UnexpectedEof};

use crate::persistent_state::crc32c;
use error::DiscRecordError;

/// The length of a sector in bytes.
pub const SECTOR_LEN: u64 = 2048;

/// The length of a slot in bytes.
const SLOT_LEN: usize = 32 << 10;

/// The length of what follows the sectors in the image of a writable disc.
pub const TRAILER_LEN: usize = 2 * SLOT_LEN;

const MAGIC: &[u8; 8] = b"TARGEDSC";
const VERSION: u16 = 1;
/// Records are written in whole pieces of this length, as disks have them.
const WRITE_LEN: usize = 512;
/// The length of a record, with its checksum.
const RECORD_LEN: usize = 36;
/// The length of a track in a record.
const TRACK_LEN: usize = 16;

/// The most tracks of a disc, all sessions together.
pub const TRACKS_MAX: usize = 1000;

/// A kind of writable disc (MMC-6: profiles).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritableKind {
    /// DVD+RW: written at any address once it is formatted.
    DvdPlusRw,
    /// BD-RE: the same.
    BdRe,
    /// DVD-R: written from begin to end, in sessions.
    DvdR,
    /// BD-R: the same (sequential recording mode).
    BdR,
}

impl WritableKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::DvdPlusRw, Self::BdRe, Self::DvdR, Self::BdR];

    /// Returns the name, as command lines and listings have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DvdPlusRw => "dvd+rw",
            Self::BdRe => "bd-re",
            Self::DvdR => "dvd-r",
            Self::BdR => "bd-r",
        }
    }

    /// Returns the capacity in sectors of a disc with one layer.
    pub const fn usual_capacity(self) -> u32 {
        match self {
            Self::DvdPlusRw => 2_295_104,
            Self::DvdR => 2_298_496,
            Self::BdRe | Self::BdR => 12_219_392,
        }
    }

    /// Returns how many sectors an error correction block has: 32 KiB on DVDs, 64 KiB on BDs. The capacity is
    /// a multiple of it.
    pub const fn blocking(self) -> u32 {
        match self {
            Self::DvdPlusRw | Self::DvdR => 16,
            Self::BdRe | Self::BdR => 32,
        }
    }

    /// Returns whether it is written from begin to end, and not at any address.
    pub const fn is_sequential(self) -> bool {
        matches!(self, Self::DvdR | Self::BdR)
    }

    const fn code(self) -> u8 {
        match self {
            Self::DvdPlusRw => 1,
            Self::BdRe => 2,
            Self::DvdR => 3,
            Self::BdR => 4,
        }
    }
}

/// A track of a disc that is written sequentially.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track {
    /// The first sector.
    pub start: u32,
    /// The sector behind the last one, if the track is closed or was reserved.
    pub end: Option<u32>,
    /// The sector behind what was written.
    pub next: u32,
    /// The session, from 1.
    pub session: u16,
    /// Whether nothing can be added.
    pub is_closed: bool,
}

/// What a writable disc is and what is on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscRecord {
    /// The kind.
    pub kind: WritableKind,
    /// The capacity in sectors.
    pub capacity: u32,
    /// For how many sectors it is formatted; zero if it is not. A disc that is written sequentially needs no
    /// format.
    pub formatted: u32,
    /// Whether nothing can be added to a disc that is written sequentially.
    pub is_complete: bool,
    /// The tracks of a disc that is written sequentially, in order. Unless it is complete, the last one is
    /// open and has no fixed end.
    tracks: Vec<Track>,
    /// The number of the record, which grows with every one that is written.
    sequence: u64,
    /// The slot that holds the newest record that is known to be durable.
    slot: usize,
}

impl DiscRecord {
    /// Returns the record of a blank disc.
    ///
    /// # Errors
    /// [`DiscRecordError::Capacity`] if the capacity is not a multiple of the kind's blocking, zero, or more
    /// than the usual one.
    pub fn blank(kind: WritableKind, capacity: u32) -> Result<Self, DiscRecordError> {
        if capacity == 0 || capacity > kind.usual_capacity() || !capacity.is_multiple_of(kind.blocking()) {
            return Err(DiscRecordError::Capacity);
        }
        let tracks = if kind.is_sequential() { Vec::from([Track::open(0, 1)]) } else { Vec::new() };
        Ok(Self { kind, capacity, formatted: 0, is_complete: false, tracks, sequence: 0, slot: 1 })
    }

    /// Returns the number of sectors that can be read.
    pub fn readable(&self) -> u32 {
        if self.kind.is_sequential() { self.written_end() } else { self.formatted }
    }

    /// Returns whether the disc can be formatted, which erases it: a BD-R only while it is blank.
    pub fn is_formattable(&self) -> bool {
        match self.kind {
            WritableKind::DvdPlusRw | WritableKind::BdRe => true,
            WritableKind::BdR => self.is_blank() && self.formatted == 0,
            WritableKind::DvdR => false,
        }
    }

    /// Returns whether both have the same contents, whatever their numbers.
    pub fn has_contents_of(&self, other: &Self) -> bool {
        let contents = |record: &Self| (record.formatted, record.is_complete);
        contents(self) == contents(other) && self.tracks == other.tracks
    }

    /// Returns where in the image the next record is to be written, and its bytes.
    pub fn next_record(&mut self) -> (u64, Vec<u8>) {
        self.sequence = self.sequence.saturating_add(1);
        let slot = self.next_slot();
        let in_trailer = u64::try_from(slot * SLOT_LEN).unwrap_or(0);
        (u64::from(self.capacity) * SECTOR_LEN + in_trailer, self.encode())
    }

    /// Records that the last record that [`Self::next_record`] returned is durable. Until then the next one
    /// goes to the same slot.
    pub fn record_written(&mut self) {
        self.slot = self.next_slot();
    }

    const fn next_slot(&self) -> usize {
        1 - self.slot
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::from(MAGIC.as_slice());
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&[self.kind.code(), u8::from(self.is_complete)]);
        bytes.extend_from_slice(&self.sequence.to_be_bytes());
        let count = u32::try_from(self.tracks.len()).unwrap_or(u32::MAX);
        for word in [self.capacity, self.formatted, count] {
            bytes.extend_from_slice(&word.to_be_bytes());
        }
        self.tracks.iter().for_each(|track| track.encode(&mut bytes));
        bytes.extend_from_slice(&crc32c(&bytes).to_be_bytes());
        bytes.resize(bytes.len().next_multiple_of(WRITE_LEN), 0);
        bytes
    }

    /// Returns the record for the next process, and the slot of the newest one that is durable.
    pub(crate) fn export(&self) -> (Vec<u8>, u8) {
        (self.encode(), u8::try_from(self.slot).unwrap_or(0))
    }

    /// Decodes the output of [`Self::export`] for an image of `image_len` bytes; `None` if it is no record of
    /// that image.
    pub(crate) fn restore(bytes: &[u8], slot: u8, image_len: u64) -> Option<Self> {
        let record = Self::decode(bytes).ok().filter(|_| bytes.starts_with(MAGIC) && slot <= 1)?;
        let trailer_len = u64::try_from(TRAILER_LEN).unwrap_or(u64::MAX);
        let is_of_image = u64::from(record.capacity) * SECTOR_LEN + trailer_len == image_len;
        is_of_image.then_some(Self { slot: slot.into(), ..record })
    }

    /// Returns the trailer of the image of a new disc with this record.
    pub fn new_trailer(&mut self) -> Vec<u8> {
        let (_, record) = self.next_record();
        let mut trailer = vec![0; TRAILER_LEN];
        for (to, from) in trailer.iter_mut().zip(record) {
            *to = from;
        }
        self.record_written();
        trailer
    }

    /// Decodes the last bytes of an image of `image_len` bytes. Returns `None` if it is no image of a
    /// writable disc.
    ///
    /// # Errors
    /// [`DiscRecordError`] if it is one, and its record cannot be used.
    pub fn of_trailer(trailer: &[u8], image_len: u64) -> Result<Option<Self>, DiscRecordError> {
        let mut newest: Option<Self> = None;
        let mut fault = None;
        let slots = trailer.chunks(SLOT_LEN).enumerate().take(2);
        for (at, slot) in slots.filter(|(_, slot)| slot.starts_with(MAGIC)) {
            match Self::decode(slot) {
                Ok(record) if newest.as_ref().is_none_or(|newest| newest.sequence < record.sequence) => {
                    newest = Some(Self { slot: at, ..record });
                }
                Ok(_) => {}
                Err(why) => fault = Some(why),
            }
        }
        let Some(record) = newest else { return fault.map_or(Ok(None), Err) };
        // A version that this program does not know may be the newer one.
        if fault == Some(DiscRecordError::UnknownVersion) {
            return Err(DiscRecordError::UnknownVersion);
        }
        let trailer_len = u64::try_from(TRAILER_LEN).unwrap_or(u64::MAX);
        if u64::from(record.capacity) * SECTOR_LEN + trailer_len != image_len {
            return Err(DiscRecordError::Length);
        }
        Ok(Some(record))
    }

    fn decode(slot: &[u8]) -> Result<Self, DiscRecordError> {
        let mut reader = Reader::new(slot);
        reader.take(MAGIC.len())?;
        let version = reader.u16()?;
        let (code, is_complete) = (reader.u8()?, reader.u8()?);
        let sequence = reader.u64()?;
        let (capacity, formatted, count) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(TRACKS_MAX);
        let covered = slot.get(..RECORD_LEN - 4 + count * TRACK_LEN).ok_or(DiscRecordError::Damaged)?;
        let tracks = (0..count).map(|_| Track::take(&mut reader)).collect::<Result<Vec<_>, _>>()?;
        if crc32c(covered) != reader.u32()? {
            // The checksum of another version may cover other bytes.
            let is_other = version != VERSION;
            return Err(if is_other { DiscRecordError::UnknownVersion } else { DiscRecordError::Damaged });
        }
        let kind = WritableKind::ALL.into_iter().find(|kind| kind.code() == code);
        let (VERSION, Some(kind)) = (version, kind) else { return Err(DiscRecordError::UnknownVersion) };
        let blank = Self::blank(kind, capacity)?;
        let record = Self { formatted, is_complete: is_complete == 1, tracks, sequence, ..blank };
        let is_formatted = formatted <= capacity && formatted.is_multiple_of(kind.blocking());
        if is_formatted && record.has_possible_tracks() { Ok(record) } else { Err(DiscRecordError::Damaged) }
    }
}

impl From<UnexpectedEof> for DiscRecordError {
    fn from(_: UnexpectedEof) -> Self {
        Self::Damaged
    }
}

#[cfg(test)]
mod tests;
