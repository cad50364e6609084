//! Protection of frames: a CRC32C without keys, AES-256-GCM with keys, and how each generation of keys
//! follows from the last.
//!
//! An [`Encryptor`] finishes the frames of one direction, a [`Decryptor`] checks those of the other. Both
//! update keys in band: the bit PHASE says which of two successive generations protects a frame. Replayed
//! packet numbers are refused by the path's replay guard (`replay`). The session decides when a sender
//! updates its keys.
//!
//! The nonce of a frame follows from its packet number alone, so a packet number
//! used twice would reveal the authentication key. An [`Encryptor`] therefore refuses a packet number that is
//! not larger than the last of its path.

pub mod handover;
mod schedule;

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::ether::FrameBatch;
use base::time::{Duration, Instant};
use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};
use security::Level;
use security::key_schedule::Secret;

use crate::Role;
use crate::fault_injection::{Bug, is_injected};
use crate::frame::{CRC_LEN, Flags, HEADER_LEN, Header, TAG_LEN};
pub use schedule::SessionKeys;
use schedule::{Generation, UPDATE};

/// Returns how many bytes of trailer follow the payload of a frame of this level.
pub const fn trailer_len(level: Level) -> usize {
    match level {
        Level::None => CRC_LEN,
        Level::Integrity | Level::Encrypt => TAG_LEN,
    }
}

/// Keys are changed after this many frames. AES-256-GCM stays sound for twice as many (RFC 9001 §6.6), which
/// leaves time if the change must wait for an acknowledgement.
pub const UPDATE_AFTER_FRAMES: u64 = 1 << 22;
/// Keys are changed after this many bytes: with 2^32 blocks an adversary has an advantage of 2^-64.
pub const UPDATE_AFTER_BYTES: u64 = 1 << 36;
/// A sender changes keys at most this often, so that a receiver never has to distinguish three generations.
pub const UPDATE_EVERY: Duration = Duration::from_secs(1);
/// A receiver keeps the previous generation of keys for at most this long, half of [`UPDATE_EVERY`].
pub const KEEP_MAX: Duration = Duration::from_millis(500);

/// How much one generation of keys may protect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLimits {
    /// After so many frames keys are changed. After twice as many the sender stops.
    pub frames: u64,
    /// After so many bytes keys are changed. After twice as many the sender stops.
    pub bytes: u64,
}

impl Default for KeyLimits {
    /// Returns the most that the specification allows. The other end accepts lower limits as well.
    fn default() -> Self {
        Self { frames: UPDATE_AFTER_FRAMES, bytes: UPDATE_AFTER_BYTES }
    }
}

/// Why a frame cannot be protected. Such a frame must not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncryptError {
    /// The session has no keys.
    #[error("the session has no keys to protect a frame")]
    NoKeys,
    /// The present keys have reached twice their limits.
    #[error("the session used up its keys")]
    Exhausted,
    /// The packet number is not larger than the last one of its path.
    #[error("a packet number would be used twice")]
    PacketNumber,
    /// The frame in the batch is not as long as its header says.
    #[error("the frame is not as long as its header says")]
    Length,
}

/// Why a received frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecryptError {
    /// The frame is shorter than its header says.
    #[error("the frame is truncated")]
    Short,
    /// The CRC does not match.
    #[error("the CRC does not match")]
    Crc,
    /// The tag does not match, or the frame's keys were discarded.
    #[error("the authentication tag does not match")]
    Tag,
    /// The frame is protected, and the session has no keys.
    #[error("the frame is protected, but the session has no keys")]
    NoKeys,
}

/// Protects the frames that one end of a session sends.
#[derive(Debug)]
pub struct Encryptor {
    keys: Option<Box<SealingKeys>>,
    limits: KeyLimits,
    /// The buffer in which a frame in several pieces is joined, to be authenticated.
    whole: Vec<u8>,
}

#[derive(Debug)]
struct SealingKeys {
    secret: Secret,
    generation: Generation,
    phase: bool,
    frames: u64,
    bytes: u64,
    since: Option<Instant>,
    /// The last packet number of each path.
    last: [u64; 256],
}

impl Encryptor {
    /// Makes the encryptor of a session without keys.
    pub fn without_keys() -> Self {
        Self { keys: None, limits: KeyLimits::default(), whole: Vec::new() }
    }

    /// Makes the encryptor of the frames that `role` sends.
    pub fn for_role(keys: &SessionKeys, role: Role) -> Self {
        let secret = keys.secret_of(role);
        let generation = Generation::of(&secret);
        let keys = SealingKeys {
            secret,
            generation,
            phase: false,
            frames: 0,
            bytes: 0,
            since: None,
            last: [0; 256],
        };
        Self { keys: Some(Box::new(keys)), limits: KeyLimits::default(), whole: Vec::new() }
    }

    /// Lowers the limits after which keys are changed. Limits above the default have no effect.
    #[must_use]
    pub fn limited(self, limits: KeyLimits) -> Self {
        let most = KeyLimits::default();
        let limits =
            KeyLimits { frames: limits.frames.min(most.frames), bytes: limits.bytes.min(most.bytes) };
        Self { limits, ..self }
    }

    /// Returns the key phase of the next protected frame, which [`Flags::PHASE`] in its header indicates.
    pub fn phase(&self) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.phase)
    }

    /// Returns whether a key update is due. The session then waits until a frame of the present phase was
    /// acknowledged, and calls [`Encryptor::update`].
    pub fn wants_update(&self, now: Instant) -> bool {
        self.keys.as_ref().is_some_and(|keys| {
            (keys.frames >= self.limits.frames || keys.bytes >= self.limits.bytes)
                && !is_injected(Bug::FramesKeepKeys)
                && keys.since.is_none_or(|since| now.since(since) >= UPDATE_EVERY)
        })
    }

    /// Updates to the next generation of keys.
    pub fn update(&mut self, now: Instant) {
        if let Some(keys) = &mut self.keys {
            keys.secret = keys.secret.expand(UPDATE);
            keys.generation = Generation::of(&keys.secret);
            keys.phase = !keys.phase;
            (keys.frames, keys.bytes, keys.since) = (0, 0, Some(now));
        }
    }

    /// Finishes the frame begun in `batch`, whose header was put first and whose payload follows: encrypts
    /// the payload if `header` says so, and appends CRC or tag. The caller then ends the frame, or cancels it
    /// on an error.
    ///
    /// # Errors
    /// [`EncryptError`]
    pub fn seal(&mut self, header: &Header, batch: &mut FrameBatch) -> Result<(), EncryptError> {
        let len = batch.open_pieces().map(<[u8]>::len).sum::<usize>();
        if len != HEADER_LEN + usize::from(header.len) {
            return Err(EncryptError::Length);
        }
        if !header.protected {
            put_crc(batch);
            return Ok(());
        }
        let keys = self.keys.as_mut().ok_or(EncryptError::NoKeys)?;
        let nonce = keys.take(header.pn, len, self.limits)?;
        let tag = if header.flags.has(Flags::ENCRYPTED) {
            batch.gather();
            let Some((head, payload)) = batch.written().split_at_mut_checked(HEADER_LEN) else {
                return Err(EncryptError::Length);
            };
            keys.generation.encrypt.seal(nonce, head, payload)
        } else {
            let mut pieces = batch.open_pieces();
            match (pieces.next(), pieces.next()) {
                (Some(only), None) => keys.generation.integrity.seal(nonce, only, &mut []),
                _ => {
                    self.whole.clear();
                    batch.open_pieces().for_each(|piece| self.whole.extend_from_slice(piece));
                    keys.generation.integrity.seal(nonce, &self.whole, &mut [])
                }
            }
        };
        batch.put(&tag.ok_or(EncryptError::Length)?);
        Ok(())
    }
}

impl SealingKeys {
    /// Records that this packet number is used now, for the only time.
    fn take(&mut self, pn: u64, len: usize, limits: KeyLimits) -> Result<u64, EncryptError> {
        //= hyperscsi#section-7.4
        //# A sender that could not change MUST stop at twice those numbers
        let used_up = self.frames >= 2 * limits.frames || self.bytes >= 2 * limits.bytes;
        if used_up && !is_injected(Bug::FramesKeepKeys) {
            return Err(EncryptError::Exhausted);
        }
        let [path, ..] = pn.to_be_bytes();
        //= hyperscsi#section-7.3
        //# a sender MUST NOT seal a frame whose PN is not larger than the last of its path.
        match self.last.get_mut(usize::from(path)) {
            Some(last) if pn & PN_COUNT > *last || is_injected(Bug::FramesReuseNumber) => {
                *last = pn & PN_COUNT
            }
            _ => return Err(EncryptError::PacketNumber),
        }
        self.frames += 1;
        self.bytes += u64::try_from(len).unwrap_or(u64::MAX);
        Ok(pn)
    }
}

/// Checks the frames that one end of a session receives.
#[derive(Debug)]
pub struct Decryptor {
    keys: Option<Box<OpeningKeys>>,
    forged: u64,
}

#[derive(Debug)]
struct OpeningKeys {
    secret: Secret,
    generation: Generation,
    phase: bool,
    /// The previous generation, and until when it is accepted.
    previous: Option<(Generation, Instant)>,
    /// The next generation, computed when a frame first seemed to use it.
    next: Option<(Secret, Generation)>,
    keep: Duration,
}

impl Decryptor {
    /// Makes the decryptor of a session without keys.
    pub const fn without_keys() -> Self {
        Self { keys: None, forged: 0 }
    }

    /// Makes the decryptor of the frames that the other end sends to `role`.
    pub fn for_role(keys: &SessionKeys, role: Role) -> Self {
        let secret = keys.secret_of(role.other());
        let generation = Generation::of(&secret);
        let (phase, keep) = (false, KEEP_MAX);
        let keys = OpeningKeys { secret, generation, phase, previous: None, next: None, keep };
        Self { keys: Some(Box::new(keys)), forged: 0 }
    }

    /// Sets how long the previous generation is kept after a key update: three times the probe timeout, and
    /// never more than [`KEEP_MAX`].
    pub fn keep_for(&mut self, span: Duration) {
        if let Some(keys) = &mut self.keys {
            keys.keep = span.min(KEEP_MAX);
        }
    }

    /// Returns how many protected frames had a tag that did not match.
    pub const fn forged(&self) -> u64 {
        self.forged
    }

    /// Checks the CRC or the tag of `frame`, which begins with `header`, and decrypts the frame in place.
    /// Returns the payload. If the check fails, the payload is destroyed.
    ///
    /// # Errors
    /// [`DecryptError`]
    pub fn open<'a>(
        &mut self,
        now: Instant,
        header: &Header,
        frame: &'a mut [u8],
    ) -> Result<&'a mut [u8], DecryptError> {
        if !header.protected {
            return check_crc(header, frame);
        }
        let keys = self.keys.as_mut().ok_or(DecryptError::NoKeys)?;
        let opened = keys.open(now, header, frame);
        if opened.is_err() {
            self.forged = self.forged.saturating_add(1);
        }
        opened
    }
}

impl OpeningKeys {
    fn open<'a>(
        &mut self,
        now: Instant,
        header: &Header,
        frame: &'a mut [u8],
    ) -> Result<&'a mut [u8], DecryptError> {
        if self.previous.as_ref().is_some_and(|(_, until)| now >= *until) {
            self.previous = None;
        }
        if header.flags.has(Flags::PHASE) == self.phase {
            return open_with(&self.generation, header, frame);
        }
        // The other phase belongs to a late frame or to the first frame of the next generation. While the
        // previous keys are kept, it is a late frame: a sender does not update keys again in that time.
        if let Some((previous, _)) = &self.previous {
            return open_with(previous, header, frame);
        }
        let (_, next) = self.next.get_or_insert_with(|| {
            let secret = self.secret.expand(UPDATE);
            let generation = Generation::of(&secret);
            (secret, generation)
        });
        let payload = open_with(next, header, frame)?;
        if let Some((secret, generation)) = self.next.take() {
            let old = core::mem::replace(&mut self.generation, generation);
            self.previous = Some((old, now.after(self.keep)));
            self.secret = secret;
            self.phase = !self.phase;
        }
        Ok(payload)
    }
}

fn open_with<'a>(
    generation: &Generation,
    header: &Header,
    frame: &'a mut [u8],
) -> Result<&'a mut [u8], DecryptError> {
    let len = HEADER_LEN + usize::from(header.len);
    let (whole, tail) = frame.split_at_mut_checked(len).ok_or(DecryptError::Short)?;
    let tag = tail.get(..TAG_LEN).ok_or(DecryptError::Short)?;
    if header.flags.has(Flags::ENCRYPTED) {
        let (head, payload) = whole.split_at_mut_checked(HEADER_LEN).ok_or(DecryptError::Short)?;
        generation.encrypt.open(header.pn, head, tag, payload).ok_or(DecryptError::Tag)?;
        Ok(payload)
    } else {
        generation.integrity.open(header.pn, whole, tag, &mut []).ok_or(DecryptError::Tag)?;
        whole.get_mut(HEADER_LEN..).ok_or(DecryptError::Short)
    }
}

/// Appends the CRC to the frame begun in `batch`. Frames outside sessions need it too.
pub fn put_crc(batch: &mut FrameBatch) {
    let crc = crc_of(batch).to_be_bytes();
    batch.put(&crc);
}

fn crc_of(batch: &FrameBatch) -> u32 {
    let mut pieces = batch.open_pieces();
    if let (Some(only), None) = (pieces.next(), pieces.next()) {
        return crc32_iscsi(only);
    }
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    batch.open_pieces().for_each(|piece| digest.update(piece));
    // A 32-bit CRC has 32 bits.
    u32::try_from(digest.finalize()).unwrap_or_default()
}

/// Checks the CRC of `frame`, which begins with `header`. Returns the payload.
///
/// # Errors
/// [`DecryptError`]
pub fn check_crc<'a>(header: &Header, frame: &'a mut [u8]) -> Result<&'a mut [u8], DecryptError> {
    let len = HEADER_LEN + usize::from(header.len);
    let (whole, tail) = frame.split_at_mut_checked(len).ok_or(DecryptError::Short)?;
    let crc = tail.first_chunk::<CRC_LEN>().ok_or(DecryptError::Short)?;
    if crc32_iscsi(whole) != u32::from_be_bytes(*crc) && !is_injected(Bug::FramesSkipCrc) {
        return Err(DecryptError::Crc);
    }
    whole.get_mut(HEADER_LEN..).ok_or(DecryptError::Short)
}

/// The bits of a packet number below the path.
const PN_COUNT: u64 = (1 << 56) - 1;

#[cfg(test)]
mod tests;
