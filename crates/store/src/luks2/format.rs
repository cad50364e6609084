//! Writes headers: new ones, ones with another key, and copies that were damaged.

use alloc::collections::BTreeMap;
use alloc::format as text;
use alloc::vec;
use alloc::vec::Vec;

use base::int_cast::to_u64;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::binary::{BINARY_LEN, COPY_LEN_MIN, HeaderCopy, Which};
use super::keyslot::{HashName, Kdf, Keyslot, material_len};
use super::metadata::{KeyDigest, Metadata, Segment};
use super::{Copies, Entropy, Error, Header, LuksError, MediumIo};
use crate::encrypt::{DataUnit, MEDIA_KEY_LEN, MediaKey};

/// The first byte of the data behind a header that this crate makes: what cryptsetup chooses too.
pub const DATA_OFFSET: u64 = 16 << 20;

/// The alignment of areas in bytes.
const AREA_ALIGN: u64 = 4096;
/// The iterations of the digest of the volume key, which has no need of a slow one: cryptsetup's least.
const DIGEST_ITERATIONS: u32 = 1000;
const SALT_LEN: usize = 32;
/// The length of the pieces in which an area is overwritten.
const WIPE_PIECE: usize = 64 << 10;
/// How a medium begins whose header is being written. It is in no header and no other format.
const MARK: &[u8] = b"targe: a LUKS2 header is being written here\n";
const MARK_LEN: usize = 512;
const MARK_SUM_LEN: usize = 32;

/// What the derivation of a key costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KdfCost {
    /// The passes over the memory.
    pub passes: u32,
    /// The memory in KiB.
    pub memory_kib: u32,
    /// The lanes, which can be computed in parallel.
    pub lanes: u32,
}

impl Default for KdfCost {
    /// Returns the second recommended option of RFC 9106 §4: 64 MiB, three passes, four lanes.
    fn default() -> Self {
        Self { passes: 3, memory_kib: 64 << 10, lanes: 4 }
    }
}

/// A header to make.
#[derive(Clone, Copy, Debug)]
pub struct NewHeader<'a> {
    /// The key of the data.
    pub key: &'a MediaKey,
    /// The unit of encryption.
    pub sector_len: DataUnit,
    /// The only passphrase that opens the image.
    pub passphrase: &'a [u8],
    /// What the derivation of a key from the passphrase costs.
    pub cost: KdfCost,
}

/// Makes a header at the start of a medium of `medium_len` bytes. Whatever was there is lost; the data
/// from [`DATA_OFFSET`] on is not touched.
///
/// A mark stands at the start of the medium from before the first byte of the header until the primary copy,
/// which is written last, takes its place. After a crash [`is_unfinished`] finds it.
///
/// # Errors
/// [`LuksError::TooSmall`] if the header leaves no room for data; then nothing was written.
pub fn format<M: MediumIo>(
    io: &mut M,
    medium_len: u64,
    new: &NewHeader<'_>,
    entropy: Entropy<'_, M::Error>,
) -> Result<Header, Error<M::Error>> {
    let need = DATA_OFFSET + u64::from(new.sector_len.bytes());
    if medium_len < need {
        return Err(LuksError::TooSmall { have: medium_len, need }.into());
    }
    let segment = Segment { offset: DATA_OFFSET, len: None, iv_tweak: 0, sector_len: new.sector_len };
    let areas_at = to_u64(COPY_LEN_MIN) * 2;
    let (metadata, material) = fresh_metadata(new, segment, areas_at, DATA_OFFSET - areas_at, entropy)?;
    let copy = HeaderCopy {
        copy_len: COPY_LEN_MIN,
        seqid: 1,
        label: [0; 48],
        uuid: fresh_uuid(entropy).map_err(Error::Io)?,
        subsystem: [0; 48],
        json: metadata.encode(COPY_LEN_MIN),
    };
    let header = Header { copy, metadata, copies: Copies::Intact };
    io.write(0, &mark()).and_then(|()| io.flush()).map_err(Error::Io)?;
    io.write(areas_at, &material).and_then(|()| io.flush()).map_err(Error::Io)?;
    header.write_copy(io, Which::Secondary, entropy)?;
    header.write_copy(io, Which::Primary, entropy)?;
    Ok(header)
}

/// Returns whether a call of [`format`] on the medium was interrupted. Then the bytes before [`DATA_OFFSET`]
/// are part of a header, and the call can be repeated if the rest of the medium is still blank.
///
/// # Errors
/// As the medium reports them.
pub fn is_unfinished<M: MediumIo>(io: &mut M, medium_len: u64) -> Result<bool, M::Error> {
    if medium_len < to_u64(BINARY_LEN) {
        return Ok(false);
    }
    let (mut start, mark) = (vec![0; BINARY_LEN], mark());
    io.read(0, &mut start)?;
    // The rest of the block may not have been written.
    Ok(start.get(..MARK_LEN) == mark.get(..MARK_LEN))
}

/// Returns the first block of a medium whose header is being written. Its first sector, which the medium
/// writes whole or not, is the mark.
fn mark() -> Vec<u8> {
    let mut block = MARK.to_vec();
    block.resize(MARK_LEN - MARK_SUM_LEN, 0);
    let sum: [u8; MARK_SUM_LEN] = Sha256::digest(&block).into();
    block.extend_from_slice(&sum);
    block.resize(BINARY_LEN, 0);
    block
}

impl Header {
    /// Overwrites what an interrupted change left of former keyslots, and then makes the other copy equal to
    /// the one that was used, if they differ or one is damaged.
    ///
    /// # Errors
    /// As the medium reports them. The copy that was used is still intact then.
    pub fn repair<M: MediumIo>(
        &mut self,
        io: &mut M,
        entropy: Entropy<'_, M::Error>,
    ) -> Result<(), Error<M::Error>> {
        if self.copies == Copies::Intact {
            return Ok(());
        }
        let other = match self.copies {
            Copies::SecondaryDamaged => Which::Secondary,
            Copies::PrimaryDamaged => Which::Primary,
            Copies::Differ | Copies::Intact => {
                let mut start = vec![0; self.copy.copy_len];
                io.read(0, &mut start).map_err(Error::Io)?;
                let primary_used = HeaderCopy::decode(&start).as_ref() == Ok(&self.copy);
                if primary_used { Which::Secondary } else { Which::Primary }
            }
        };
        // Only a header whose copies are not equal is repaired, so the copy is written last: after a crash
        // before that, the next repair overwrites the areas. The copy that was used stays intact.
        self.wipe_former_areas(io)?;
        io.flush().map_err(Error::Io)?;
        self.write_copy(io, other, entropy)?;
        self.copies = Copies::Intact;
        Ok(())
    }

    /// Overwrites everything between the copies and the data that belongs to no keyslot.
    fn wipe_former_areas<M: MediumIo>(&self, io: &mut M) -> Result<(), Error<M::Error>> {
        let areas = Metadata::areas(&self.copy.json);
        let end = self.areas_at().saturating_add(self.metadata.keyslots_len).min(self.data_offset());
        let mut piece = vec![0; WIPE_PIECE];
        let mut at = self.areas_at();
        while at < end {
            let inside = areas.iter().find(|(from, len)| (*from..from.saturating_add(*len)).contains(&at));
            if let Some((from, len)) = inside {
                // An area at the end of all numbers has nothing after it.
                at = from.saturating_add(*len).checked_next_multiple_of(AREA_ALIGN).unwrap_or(end);
                continue;
            }
            let next = areas.iter().map(|(from, _)| *from).filter(|from| *from > at).min().unwrap_or(end);
            let len = (next.min(end) - at).min(to_u64(WIPE_PIECE));
            let piece = piece.get_mut(..base::int_cast::to_usize(len)).unwrap_or_default();
            io.read(at, piece).map_err(Error::Io)?;
            if piece.iter().any(|byte| *byte != 0) {
                piece.fill(0);
                io.write(at, piece).map_err(Error::Io)?;
            }
            at += len;
        }
        Ok(())
    }

    /// Replaces the key of the data by `key`, under one passphrase: a cryptographic erase. All other keyslots
    /// are gone then, and everything that was encrypted under the former key is lost. A crash leaves a header
    /// with the one key or the other.
    ///
    /// # Errors
    /// [`Replacing::Kept`] if the former key is still the one, [`Replacing::Unknown`] if either may be.
    pub fn replace_key<M: MediumIo>(
        &self,
        io: &mut M,
        new: &NewHeader<'_>,
        entropy: Entropy<'_, M::Error>,
    ) -> Result<Self, Replacing<M::Error>> {
        let former = Metadata::areas(&self.copy.json);
        let at = self.free_area(&former).map_err(|why| Replacing::Kept(why.into()))?;
        let segment = Segment { sector_len: new.sector_len, ..self.metadata.segment };
        let (metadata, material) =
            fresh_metadata(new, segment, at, self.metadata.keyslots_len, entropy).map_err(Replacing::Kept)?;
        let json = metadata.encode(self.copy.copy_len);
        let copy = HeaderCopy { seqid: self.copy.seqid.saturating_add(1), json, ..self.copy.clone() };
        let header = Self { copy, metadata, copies: Copies::Intact };
        let stored = io.write(at, &material).and_then(|()| io.flush());
        stored.map_err(|error| Replacing::Kept(Error::Io(error)))?;
        header.write_copy(io, Which::Primary, entropy).map_err(Replacing::Unknown)?;
        // From here on the new key is the one, whatever happens. The secondary copy is written last, so that
        // a crash before that leaves two copies that differ, and the repair overwrites the former areas.
        let finish = |io: &mut M| {
            let zeros = vec![0; WIPE_PIECE];
            for (from, len) in former {
                let end = from.saturating_add(len).min(self.data_offset());
                let mut at = from.max(self.areas_at());
                while at < end {
                    let len = (end - at).min(to_u64(WIPE_PIECE));
                    let zeros = zeros.get(..base::int_cast::to_usize(len)).unwrap_or_default();
                    io.write(at, zeros).map_err(Error::Io)?;
                    at += len;
                }
            }
            io.flush().map_err(Error::Io)?;
            header.write_copy(io, Which::Secondary, entropy)
        };
        finish(io).map_err(Replacing::Unknown)?;
        Ok(header)
    }

    /// Returns the first byte behind both copies.
    fn areas_at(&self) -> u64 {
        to_u64(self.copy.copy_len) * 2
    }

    /// Returns a place for another area.
    fn free_area(&self, taken: &[(u64, u64)]) -> Result<u64, LuksError> {
        let len = area_len();
        let end = self.areas_at().saturating_add(self.metadata.keyslots_len).min(self.data_offset());
        let behind = taken.iter().map(|(at, len)| at.saturating_add(*len));
        let mut places: Vec<u64> = core::iter::once(self.areas_at()).chain(behind).collect();
        places.sort_unstable();
        places
            .into_iter()
            .filter_map(|place| place.checked_next_multiple_of(AREA_ALIGN))
            .find(|place| {
                let area_end = place.saturating_add(len);
                let free =
                    |(from, other): &(u64, u64)| area_end <= *from || from.saturating_add(*other) <= *place;
                area_end <= end && taken.iter().all(free)
            })
            .ok_or(LuksError::NoRoom)
    }

    fn write_copy<M: MediumIo>(
        &self,
        io: &mut M,
        which: Which,
        entropy: Entropy<'_, M::Error>,
    ) -> Result<(), Error<M::Error>> {
        let mut salt = [0; 64];
        entropy(&mut salt).map_err(Error::Io)?;
        let at = match which {
            Which::Primary => 0,
            Which::Secondary => to_u64(self.copy.copy_len),
        };
        io.write(at, &self.copy.encode(which, &salt)?).map_err(Error::Io)?;
        io.flush().map_err(Error::Io)
    }
}

/// A key was not replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replacing<E> {
    /// The former key is still the one.
    Kept(Error<E>),
    /// The header may hold either key.
    Unknown(Error<E>),
}

fn area_len() -> u64 {
    to_u64(material_len(MEDIA_KEY_LEN)).next_multiple_of(AREA_ALIGN)
}

/// Makes the metadata for one keyslot with its area at `area_at`, and the contents of the area.
fn fresh_metadata<E>(
    new: &NewHeader<'_>,
    segment: Segment,
    area_at: u64,
    keyslots_len: u64,
    entropy: Entropy<'_, E>,
) -> Result<(Metadata, Vec<u8>), Error<E>> {
    let mut salts = [[0; SALT_LEN]; 2];
    entropy(salts.as_flattened_mut()).map_err(Error::Io)?;
    let [kdf_salt, digest_salt] = salts;
    let KdfCost { passes, memory_kib, lanes } = new.cost;
    let slot = Keyslot {
        key_len: new.key.bytes().len(),
        hash: HashName::Sha256,
        area_at,
        area_len: area_len(),
        area_key_len: MEDIA_KEY_LEN,
        kdf: Kdf::Argon2 { hybrid: true, passes, memory_kib, lanes, salt: kdf_salt.to_vec() },
    };
    let mut noise = Zeroizing::new(vec![0; slot.material_len()]);
    entropy(&mut noise).map_err(Error::Io)?;
    let material = slot.seal(new.key, new.passphrase, noise)?;
    let mut digest = vec![0; 32];
    HashName::Sha256.pbkdf2(new.key.bytes(), &digest_salt, DIGEST_ITERATIONS, &mut digest);
    let digest = KeyDigest {
        keyslots: vec![0],
        hash: HashName::Sha256,
        iterations: DIGEST_ITERATIONS,
        salt: digest_salt.to_vec(),
        digest,
    };
    let keyslots = BTreeMap::from([(0, Ok(slot))]);
    Ok((Metadata { keyslots, segment, digests: vec![digest], keyslots_len }, material))
}

/// Returns a random UUID (RFC 9562 §5.4) as text.
fn fresh_uuid<E>(entropy: Entropy<'_, E>) -> Result<[u8; 40], E> {
    let mut random = [0; 16];
    entropy(&mut random)?;
    let number = u128::from_be_bytes(random);
    let number = number & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let digits = text!("{number:032x}");
    let mut uuid = [0; 40];
    let mut places = uuid.iter_mut();
    for (position, digit) in digits.bytes().enumerate() {
        if matches!(position, 8 | 12 | 16 | 20)
            && let Some(place) = places.next()
        {
            *place = b'-';
        }
        if let Some(place) = places.next() {
            *place = digit;
        }
    }
    Ok(uuid)
}
