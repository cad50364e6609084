//! LUKS2 images: media that begin with a header, which holds the key of the data behind it, encrypted
//! under passphrases (LUKS2 On-Disk Format Specification, version 1.1.4).
//!
//! [`Header::load`] reads a header, [`Header::unlock`] returns the key and the place of the data, and
//! [`crate::encrypt::Encrypted::of_volume`] is the medium. [`format()`] makes a header,
//! [`Header::replace_key`] a new key for a cryptographic erase. cryptsetup and dm-crypt read and write the
//! same images.
//!
//! # What is supported
//!
//! One segment of type `crypt` with `aes-xts-plain64` (keys of 32 or 64 bytes) and sectors of 512 or 4096
//! bytes; keyslots of type `luks2` with Argon2id, Argon2i or PBKDF2. A header with requirements (a
//! reencryption that is under way), with an integrity layer or with anything else is refused.
//!
//! # Bounds
//!
//! A header is no proof of good intent. Its copies have 16 KiB to 4 MiB; metadata take at most 64 times
//! as much memory as text. A keyslot is used only if its derivation takes at most
//! [`ARGON2_MEMORY_MAX_KIB`], and a minute or so of one processor; a header, only if trying a secret on every
//! keyslot takes four minutes or so.
//!
//! What cryptsetup refuses is refused: a digest of the key that is shorter than 20 bytes, which a wrong key
//! matches sooner or later; a salt of another length than 32 bytes; areas of keyslots that overlap or are not
//! between the copies of the header and the data; a keyslot with several digests. An attacker who forged such
//! a header could open it with any secret, and then learn the secret from the data that is written.
//!
//! # A crash at any write
//!
//! Each change writes the area of a new keyslot first, then the primary copy, then the secondary one,
//! with a flush in between. A copy that was half written has a wrong checksum, so the other one is used.
//! Of two good copies the one with the higher sequence number is used. While the copies are not equal,
//! something may be left of former keyslots. [`Header::repair`] overwrites that before it makes them equal.

mod binary;
mod format;
mod keyslot;
mod metadata;

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use base::int_cast::{to_u64, to_usize};
use base64ct::{Base64, Encoding};
use zeroize::Zeroizing;

use crate::encrypt::{DataUnit, MediaKey, Volume};
use binary::{BINARY_LEN, COPY_LEN_MAX, COPY_LEN_MIN, HeaderCopy, Which};
pub use format::{DATA_OFFSET, KdfCost, NewHeader, Replacing, format, is_unfinished};
pub use keyslot::ARGON2_MEMORY_MAX_KIB;
use keyslot::HashName;
use metadata::{Metadata, Segment};

/// The longest name of a header that an error message shows, in bytes.
const NAME_SHOWN_MAX: usize = 40;

/// Accesses a medium in order, one operation at a time, for headers and conversions. Offsets and lengths
/// are multiples of 512, or of 4096 where the offset and the length of the data allow it.
pub trait MediumIo {
    /// Why an operation failed.
    type Error;

    /// Fills `buf` with the bytes at `at`.
    ///
    /// # Errors
    /// As the medium reports them.
    fn read(&mut self, at: u64, buf: &mut [u8]) -> Result<(), Self::Error>;

    /// Writes `data` at `at`.
    ///
    /// # Errors
    /// As the medium reports them.
    fn write(&mut self, at: u64, data: &[u8]) -> Result<(), Self::Error>;

    /// Makes a range read as zeros. A thin medium deallocates its storage.
    ///
    /// # Errors
    /// As the medium reports them.
    fn zero(&mut self, at: u64, len: u64) -> Result<(), Self::Error>;

    /// Makes durable what was written before.
    ///
    /// # Errors
    /// As the medium reports them.
    fn flush(&mut self) -> Result<(), Self::Error>;
}

impl<M: MediumIo + ?Sized> MediumIo for &mut M {
    type Error = M::Error;

    fn read(&mut self, at: u64, buf: &mut [u8]) -> Result<(), Self::Error> {
        (**self).read(at, buf)
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Result<(), Self::Error> {
        (**self).write(at, data)
    }

    fn zero(&mut self, at: u64, len: u64) -> Result<(), Self::Error> {
        (**self).zero(at, len)
    }

    fn flush(&mut self) -> Result<(), Self::Error> {
        (**self).flush()
    }
}

/// An image cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LuksError {
    /// There is no header.
    #[error("this is no LUKS2 image")]
    NotLuks,
    /// The header is of another version.
    #[error("this is a LUKS image of version {0}; only version 2 is supported")]
    Version(u16),
    /// Formatting was interrupted.
    #[error("writing the LUKS2 header was interrupted; repeat it (targe luks format)")]
    Unfinished,
    /// Neither copy of the header is intact.
    #[error("both copies of the LUKS2 header are damaged")]
    Damaged,
    /// The checksum of the header is not SHA-256.
    #[error("the LUKS2 header has a checksum that is not SHA-256")]
    Checksum,
    /// The metadata contradict the specification, or use what this release does not know.
    #[error("the LUKS2 header is not usable: {0}")]
    Metadata(&'static str),
    /// The metadata use a hash function that this release does not know.
    #[error(
        "the LUKS2 header is not usable: {used_for} the hash \"{name}\"; supported are {}",
        HashName::ALL.map(HashName::name).join(", ")
    )]
    Hash {
        /// What uses it.
        used_for: &'static str,
        /// Its name.
        name: String,
    },
    /// The header requires a feature.
    #[error("the LUKS2 image requires \"{0}\", which this release does not support")]
    Requirement(String),
    /// There is not exactly one segment.
    #[error("the LUKS2 image has {0} segments; exactly one is supported")]
    Segments(usize),
    /// The segment is of another type.
    #[error("the LUKS2 image has a segment of type \"{0}\"; only \"crypt\" is supported")]
    SegmentType(String),
    /// The segment has an integrity layer.
    #[error("the LUKS2 image has an integrity layer (dm-integrity), which this release does not support")]
    Integrity,
    /// The segment has another cipher.
    #[error("the LUKS2 image is encrypted with \"{0}\"; only aes-xts-plain64 is supported")]
    Cipher(String),
    /// The segment has sectors of another length.
    #[error("the LUKS2 image has sectors that are neither of 512 nor of 4096 bytes")]
    SectorLen,
    /// The derivation of a key takes too much memory or time.
    #[error(
        "a keyslot of the LUKS2 image requires more than {} MiB of memory for its KDF, or more than about a \
         minute; give it a cheaper one (cryptsetup luksConvertKey)",
        ARGON2_MEMORY_MAX_KIB >> 10
    )]
    TooCostly,
    /// Trying every keyslot takes too much time.
    #[error(
        "the keyslots of the LUKS2 image require more than about four minutes together to try a secret; remove some, \
         or give them a cheaper KDF (cryptsetup luksConvertKey)"
    )]
    TooCostlyTogether,
    /// The memory for a derivation is missing.
    #[error("a keyslot of the LUKS2 image requires {0} KiB of memory for its KDF, which cannot be allocated")]
    OutOfMemory(u32),
    /// No keyslot is left.
    #[error("the LUKS2 image has no keyslot, so no secret opens it")]
    NoKeyslot,
    /// The passphrase is wrong.
    #[error("the secret opens no keyslot of the LUKS2 image")]
    WrongSecret,
    /// The medium is shorter than the header says.
    #[error("the LUKS2 image is too small: it has {have} bytes where at least {need} are needed")]
    TooSmall {
        /// The length of the medium in bytes.
        have: u64,
        /// The least length in bytes.
        need: u64,
    },
    /// The header has no room for another keyslot.
    #[error("the LUKS2 header has no room for another keyslot")]
    NoRoom,
}

/// An image cannot be used, or its medium cannot be accessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error<E> {
    /// The image cannot be used.
    Luks(LuksError),
    /// The medium cannot be accessed, or random bytes are missing.
    Io(E),
}

impl<E> From<LuksError> for Error<E> {
    fn from(error: LuksError) -> Self {
        Self::Luks(error)
    }
}

/// A source of random bytes that nobody can guess.
pub type Entropy<'a, E> = &'a mut dyn FnMut(&mut [u8]) -> Result<(), E>;

/// The condition of the two copies of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// Both are intact and equal.
    Intact,
    /// The primary copy is damaged, and the secondary one was used.
    PrimaryDamaged,
    /// The secondary copy is damaged.
    SecondaryDamaged,
    /// The copies differ: a change was interrupted. The newer one was used.
    Differ,
}

/// The header of a LUKS2 image.
#[derive(Clone, Debug)]
pub struct Header {
    copy: HeaderCopy,
    metadata: Metadata,
    copies: Copies,
}

impl Header {
    /// Reads the header of a medium of `medium_len` bytes. If one copy is damaged, the other is used, and
    /// [`Self::copies`] says so.
    ///
    /// # Errors
    /// [`LuksError::NotLuks`] if the medium has no header, [`LuksError::Unfinished`] if one was begun, other
    /// errors if it has one that cannot be used.
    pub fn load<M: MediumIo>(io: &mut M, medium_len: u64) -> Result<Self, Error<M::Error>> {
        if medium_len < to_u64(COPY_LEN_MIN) * 2 {
            return Err(LuksError::NotLuks.into());
        }
        // The backup copy can be whole, and the keyslot can be that of the next attempt.
        if is_unfinished(io, medium_len).map_err(Error::Io)? {
            return Err(LuksError::Unfinished.into());
        }
        let primary = read_copy(io, Which::Primary, 0, medium_len)?;
        let secondary = match &primary {
            Ok(copy) => read_copy(io, Which::Secondary, to_u64(copy.copy_len), medium_len)?,
            Err(_) => search_secondary(io, medium_len)?,
        };
        let (copy, copies) = match (primary, secondary) {
            (Ok(first), Ok(second)) if second.seqid > first.seqid => (second, Copies::Differ),
            (Ok(first), Ok(second)) if first != second => (first, Copies::Differ),
            (Ok(first), Ok(_)) => (first, Copies::Intact),
            (Ok(first), Err(_)) => (first, Copies::SecondaryDamaged),
            (Err(LuksError::Version(version)), _) => return Err(LuksError::Version(version).into()),
            (Err(_), Ok(second)) => (second, Copies::PrimaryDamaged),
            (Err(why), Err(_)) => return Err(why.into()),
        };
        let metadata = Metadata::parse(&copy.json, copy.copy_len)?;
        let segment = &metadata.segment;
        let least = segment.len.unwrap_or_else(|| u64::from(segment.sector_len.bytes()));
        let need = segment.offset.checked_add(least);
        let need = need.ok_or(LuksError::Metadata("the data goes beyond the end of every medium"))?;
        if need > medium_len {
            return Err(LuksError::TooSmall { have: medium_len, need }.into());
        }
        Ok(Self { copy, metadata, copies })
    }

    /// Returns the condition of the two copies.
    pub const fn copies(&self) -> Copies {
        self.copies
    }

    /// Returns the number of this version of the header: every change has a greater one.
    pub const fn version(&self) -> u64 {
        self.copy.seqid
    }

    /// Returns the first byte of the data on the medium.
    pub const fn data_offset(&self) -> u64 {
        self.metadata.segment.offset
    }

    /// Returns the length of the data in bytes; `None` if it goes to the end of the medium.
    pub const fn data_len(&self) -> Option<u64> {
        self.metadata.segment.len
    }

    /// Returns the unit of encryption.
    pub const fn sector_len(&self) -> DataUnit {
        self.metadata.segment.sector_len
    }

    /// Returns the UUID as the header spells it, without control characters.
    pub fn uuid(&self) -> String {
        let text = self.copy.uuid.iter().take_while(|byte| **byte != 0);
        text.filter(|byte| byte.is_ascii_graphic()).map(|byte| char::from(*byte)).collect()
    }

    /// Names the volume: its UUID, the place and the form of its data, and the digests of its key. Two
    /// headers have the same name only if both decrypt the same medium to the same data.
    pub fn volume_name(&self) -> String {
        let Segment { offset, len, iv_tweak, sector_len } = self.metadata.segment;
        let digests = self.metadata.digests.iter().map(|digest| Base64::encode_string(&digest.digest));
        let digests = digests.collect::<Vec<_>>().join(" ");
        alloc::format!("{} {offset} {len:?} {} {iv_tweak} {digests}", self.uuid(), sector_len.bytes())
    }

    /// Returns how many keyslots can open the image, whether this release supports them or not.
    pub fn keyslots(&self) -> usize {
        self.metadata.keyslots.len()
    }

    /// Checks that at least one keyslot can be tried.
    ///
    /// # Errors
    /// Why the first one cannot, if none can; [`LuksError::NoKeyslot`] if there is none.
    pub fn expect_keyslot(&self) -> Result<(), LuksError> {
        let mut why = LuksError::NoKeyslot;
        for slot in self.metadata.keyslots.values() {
            match slot.as_ref().map_err(LuksError::clone).and_then(|slot| slot.kdf.check()) {
                Ok(()) => return Ok(()),
                Err(first) if why == LuksError::NoKeyslot => why = first,
                Err(_) => {}
            }
        }
        Err(why)
    }

    /// Tries every keyslot with `passphrase`, and returns the key and the place of the data. This takes
    /// seconds and the memory that the KDF requires.
    ///
    /// # Errors
    /// [`LuksError::WrongSecret`] if no keyslot opens, other errors if none can be tried.
    pub fn unlock<M: MediumIo>(&self, io: &mut M, passphrase: &[u8]) -> Result<Volume, Error<M::Error>> {
        let mut failed = LuksError::NoKeyslot;
        for (id, slot) in &self.metadata.keyslots {
            let opened = match slot {
                Ok(slot) => {
                    let mut material = Zeroizing::new(vec![0; slot.material_len()]);
                    io.read(slot.area_at, &mut material).map_err(Error::Io)?;
                    slot.open(&mut material, passphrase)
                }
                Err(why) => Err(why.clone()),
            };
            match opened {
                Ok(key) => {
                    let mut digests = self.metadata.digests.iter();
                    if digests.any(|digest| digest.keyslots.contains(id) && digest.matches(&key)) {
                        return Ok(self.volume(key));
                    }
                    failed = LuksError::WrongSecret;
                }
                Err(why) if failed == LuksError::NoKeyslot => failed = why,
                Err(_) => {}
            }
        }
        Err(failed.into())
    }

    const fn volume(&self, key: MediaKey) -> Volume {
        let segment = &self.metadata.segment;
        Volume {
            key,
            offset: segment.offset,
            len: segment.len,
            sector_len: segment.sector_len,
            iv_tweak: segment.iv_tweak,
        }
    }
}

/// Returns text of a header for an error message: bounded, and without control characters.
fn shorten(text: &str) -> String {
    let harmless = |c: &char| c.is_ascii_graphic() || *c == ' ';
    let short: String = text.chars().filter(harmless).take(NAME_SHOWN_MAX).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}

/// Reads one copy; the outer error is that of the medium.
fn read_copy<M: MediumIo>(
    io: &mut M,
    which: Which,
    at: u64,
    medium_len: u64,
) -> Result<Result<HeaderCopy, LuksError>, Error<M::Error>> {
    let fits = |len: usize| at.checked_add(to_u64(len)).is_some_and(|end| end <= medium_len);
    if !fits(COPY_LEN_MIN) {
        return Ok(Err(LuksError::NotLuks));
    }
    let mut start = [0; BINARY_LEN];
    io.read(at, &mut start).map_err(Error::Io)?;
    let len = match binary::claimed_len(which, &start, at) {
        Ok(len) if fits(len) && (which == Which::Primary || to_u64(len) == at) => len,
        Ok(_) => return Ok(Err(LuksError::Damaged)),
        Err(why) => return Ok(Err(why)),
    };
    let mut bytes: Vec<u8> = vec![0; len];
    io.read(at, &mut bytes).map_err(Error::Io)?;
    Ok(HeaderCopy::decode(&bytes))
}

/// Searches the secondary copy at every place where the specification allows one.
fn search_secondary<M: MediumIo>(
    io: &mut M,
    medium_len: u64,
) -> Result<Result<HeaderCopy, LuksError>, Error<M::Error>> {
    let mut len = to_u64(COPY_LEN_MIN);
    while to_usize(len) <= COPY_LEN_MAX {
        if let Ok(copy) = read_copy(io, Which::Secondary, len, medium_len)? {
            return Ok(Ok(copy));
        }
        len *= 2;
    }
    Ok(Err(LuksError::NotLuks))
}

#[cfg(test)]
mod tests;
