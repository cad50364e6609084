//! Keyslots: the volume key, split against forensic recovery and encrypted under a key that a passphrase
//! gives (LUKS2 On-Disk Format Specification §3.3; LUKS1 specification §2.4 for the splitter).

use alloc::vec;
use alloc::vec::Vec;

use argon2::{Algorithm, Argon2, Params, Version};
use base::int_cast::to_u64;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};
use zeroize::Zeroizing;

use super::{LuksError, shorten};
use crate::encrypt::MediaKey;
use crate::encrypt::xts::Xts;

/// The number of stripes that a key is split into: every implementation uses this one.
pub(super) const STRIPES: usize = 4000;
/// The length of a sector in a keyslot's area, the unit of its encryption.
const AREA_SECTOR: usize = 512;
/// The most memory in KiB that a keyslot may require for Argon2: what cryptsetup never exceeds by default.
pub const ARGON2_MEMORY_MAX_KIB: u32 = 1 << 20;
/// The most work for Argon2, in passes times KiB: a minute or so of one processor.
const ARGON2_WORK_MAX: u64 = 1 << 26;
/// The most iterations of PBKDF2: half a minute or so of one processor.
const PBKDF2_ITERATIONS_MAX: u32 = 100_000_000;
/// The most lanes of Argon2: more than cryptsetup ever uses.
const ARGON2_LANES_MAX: u32 = 64;

/// A hash function by its name in the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HashName {
    Sha1,
    Sha256,
    Sha512,
}

impl HashName {
    /// The hash functions that this release knows.
    pub(super) const ALL: [Self; 3] = [Self::Sha1, Self::Sha256, Self::Sha512];

    /// Finds a hash function by its name; `used_for` says in a sentence what uses it.
    ///
    /// # Errors
    /// [`LuksError::Hash`]
    pub(super) fn by_name(name: &str, used_for: &'static str) -> Result<Self, LuksError> {
        let found = Self::ALL.into_iter().find(|hash| hash.name() == name);
        found.ok_or_else(|| LuksError::Hash { used_for, name: shorten(name) })
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    /// Returns the length of a digest in bytes.
    pub(super) const fn len(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// Replaces `stripe` by its diffusion: each digest-sized piece by the hash of its number and itself.
    fn diffuse(self, stripe: &mut [u8]) {
        match self {
            Self::Sha1 => diffuse::<Sha1>(stripe),
            Self::Sha256 => diffuse::<Sha256>(stripe),
            Self::Sha512 => diffuse::<Sha512>(stripe),
        }
    }

    /// Fills `out` by PBKDF2 (RFC 8018 §5.2).
    pub(super) fn pbkdf2(self, secret: &[u8], salt: &[u8], iterations: u32, out: &mut [u8]) {
        match self {
            Self::Sha1 => pbkdf2::<Hmac<Sha1>>(secret, salt, iterations, out),
            Self::Sha256 => pbkdf2::<Hmac<Sha256>>(secret, salt, iterations, out),
            Self::Sha512 => pbkdf2::<Hmac<Sha512>>(secret, salt, iterations, out),
        }
    }
}

/// How the key of an area follows from a passphrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kdf {
    /// RFC 9106.
    Argon2 { hybrid: bool, passes: u32, memory_kib: u32, lanes: u32, salt: Vec<u8> },
    /// RFC 8018.
    Pbkdf2 { hash: HashName, iterations: u32, salt: Vec<u8> },
}

impl Kdf {
    /// Checks that the derivation takes no more memory and time than is allowed.
    ///
    /// # Errors
    /// [`LuksError::TooCostly`]
    pub(super) fn check(&self) -> Result<(), LuksError> {
        let allowed = match self {
            Self::Argon2 { passes, memory_kib, lanes, .. } => {
                *memory_kib <= ARGON2_MEMORY_MAX_KIB
                    && *lanes <= ARGON2_LANES_MAX
                    && u64::from(*memory_kib).saturating_mul(u64::from(*passes)) <= ARGON2_WORK_MAX
            }
            Self::Pbkdf2 { iterations, .. } => *iterations <= PBKDF2_ITERATIONS_MAX,
        };
        if allowed { Ok(()) } else { Err(LuksError::TooCostly) }
    }

    /// Returns the work of deriving a key of `key_len` bytes: passes times KiB of Argon2, or a PBKDF2
    /// iteration for each block, which takes about as long.
    fn work(&self, key_len: usize) -> u64 {
        match self {
            Self::Argon2 { passes, memory_kib, .. } => {
                u64::from(*memory_kib).saturating_mul(u64::from(*passes))
            }
            Self::Pbkdf2 { hash, iterations, .. } => pbkdf2_work(*hash, *iterations, key_len),
        }
    }

    fn derive(&self, passphrase: &[u8], key_len: usize) -> Result<Zeroizing<Vec<u8>>, LuksError> {
        self.check()?;
        let mut key = Zeroizing::new(vec![0; key_len]);
        match self {
            Self::Argon2 { hybrid, passes, memory_kib, lanes, salt } => {
                let algorithm = if *hybrid { Algorithm::Argon2id } else { Algorithm::Argon2i };
                let params = Params::new(*memory_kib, *passes, *lanes, Some(key_len))
                    .map_err(|_| LuksError::Metadata("the parameters of a keyslot's KDF are impossible"))?;
                let derived = Argon2::new(algorithm, Version::V0x13, params)
                    .hash_password_into(passphrase, salt, &mut key);
                match derived {
                    Ok(()) => {}
                    Err(argon2::Error::OutOfMemory) => return Err(LuksError::OutOfMemory(*memory_kib)),
                    Err(_) => return Err(LuksError::Metadata("a keyslot's KDF cannot be computed")),
                }
            }
            Self::Pbkdf2 { hash, iterations, salt } => {
                hash.pbkdf2(passphrase, salt, *iterations, &mut key);
            }
        }
        Ok(key)
    }
}

/// A keyslot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keyslot {
    /// The length of the volume key in bytes.
    pub(super) key_len: usize,
    /// The hash of the splitter.
    pub(super) hash: HashName,
    /// The first byte of the area on the medium.
    pub(super) area_at: u64,
    /// The length of the area in bytes.
    pub(super) area_len: u64,
    /// The length in bytes of the key that encrypts the area.
    pub(super) area_key_len: usize,
    pub(super) kdf: Kdf,
}

/// Returns the work of PBKDF2, in the unit of [`Kdf::work`].
pub(super) fn pbkdf2_work(hash: HashName, iterations: u32, out_len: usize) -> u64 {
    u64::from(iterations).saturating_mul(to_u64(out_len.div_ceil(hash.len())))
}

impl Keyslot {
    /// Returns the work of trying a secret, in the unit of [`Kdf::work`].
    pub(super) fn work(&self) -> u64 {
        self.kdf.work(self.area_key_len)
    }

    /// Returns how many bytes of the area the split key takes: whole sectors.
    pub(super) const fn material_len(&self) -> usize {
        material_len(self.key_len)
    }

    /// Returns the volume key that the encrypted `material` of the area holds under `passphrase`. Whether it
    /// is the right one, only the digest tells.
    ///
    /// # Errors
    /// [`LuksError`]
    pub(super) fn open(&self, material: &mut [u8], passphrase: &[u8]) -> Result<MediaKey, LuksError> {
        let xts = self.area_cipher(passphrase)?;
        for (number, sector) in (0..).zip(material.chunks_exact_mut(AREA_SECTOR)) {
            xts.decrypt(number, sector);
        }
        let mut key = Zeroizing::new(vec![0; self.key_len]);
        let mut stripes = material.chunks_exact(self.key_len).take(STRIPES);
        let last = stripes.nth_back(0);
        for stripe in stripes {
            xor(&mut key, stripe);
            self.hash.diffuse(&mut key);
        }
        xor(&mut key, last.unwrap_or_default());
        MediaKey::from_slice(&key).ok_or(LuksError::Metadata("a keyslot has an impossible key length"))
    }

    /// Returns the encrypted material for the area, made from `noise`: random bytes of
    /// [`Self::material_len`].
    ///
    /// # Errors
    /// [`LuksError`]
    pub(super) fn seal(
        &self,
        key: &MediaKey,
        passphrase: &[u8],
        mut noise: Zeroizing<Vec<u8>>,
    ) -> Result<Vec<u8>, LuksError> {
        let xts = self.area_cipher(passphrase)?;
        let mut mixed = Zeroizing::new(vec![0; self.key_len]);
        let mut stripes = noise.chunks_exact_mut(self.key_len).take(STRIPES);
        let last = stripes.nth_back(0);
        for stripe in stripes {
            xor(&mut mixed, stripe);
            self.hash.diffuse(&mut mixed);
        }
        xor(&mut mixed, key.bytes());
        if let Some(last) = last {
            last.copy_from_slice(&mixed);
        }
        for (number, sector) in (0..).zip(noise.chunks_exact_mut(AREA_SECTOR)) {
            xts.encrypt(number, sector);
        }
        Ok(core::mem::take(&mut *noise))
    }

    fn area_cipher(&self, passphrase: &[u8]) -> Result<Xts, LuksError> {
        let key = self.kdf.derive(passphrase, self.area_key_len)?;
        let key = MediaKey::from_slice(&key);
        key.map(|key| Xts::new(&key)).ok_or(LuksError::Metadata("an area has an impossible key length"))
    }
}

/// Returns how many bytes a split key takes: whole sectors.
pub(super) const fn material_len(key_len: usize) -> usize {
    (key_len * STRIPES).next_multiple_of(AREA_SECTOR)
}

fn xor(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to ^= *from);
}

fn diffuse<H: Digest>(stripe: &mut [u8]) {
    for (number, piece) in (0_u32..).zip(stripe.chunks_mut(<H as Digest>::output_size())) {
        let mut hash = H::new();
        hash.update(number.to_be_bytes());
        hash.update(&*piece);
        let digest = hash.finalize();
        piece.iter_mut().zip(digest.iter()).for_each(|(to, from)| *to = *from);
    }
}

fn pbkdf2<M: Mac + KeyInit + Clone>(secret: &[u8], salt: &[u8], iterations: u32, out: &mut [u8]) {
    // HMAC takes keys of any length.
    let Ok(keyed) = <M as KeyInit>::new_from_slice(secret) else { return };
    for (number, block) in (1_u32..).zip(out.chunks_mut(M::output_size())) {
        let mut mac = keyed.clone();
        mac.update(salt);
        mac.update(&number.to_be_bytes());
        let mut last = mac.finalize().into_bytes();
        block.iter_mut().zip(last.iter()).for_each(|(to, from)| *to = *from);
        for _ in 1..iterations {
            let mut mac = keyed.clone();
            mac.update(&last);
            last = mac.finalize().into_bytes();
            xor(block, &last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> alloc::string::String {
        bytes.iter().map(|byte| alloc::format!("{byte:02x}")).collect()
    }

    /// Checks vectors of RFC 6070 (SHA-1) and RFC 7914 §11 (SHA-256), and one that Python's hashlib computed.
    #[test]
    fn pbkdf2_gives_the_published_vectors() {
        let mut out = [0; 20];
        HashName::Sha1.pbkdf2(b"password", b"salt", 2, &mut out);
        assert_eq!(hex(&out), "ea6c014dc72d6f8ccd1ed92ace1d41f0d8de8957");
        let mut out = [0; 64];
        HashName::Sha256.pbkdf2(b"passwd", b"salt", 1, &mut out);
        let want = "55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc\
                    49ca9cccf179b645991664b39d77ef317c71b845b1e30bd509112041d3a19783";
        assert_eq!(hex(&out), want);
        let mut out = [0; 70];
        HashName::Sha512.pbkdf2(b"passwd", b"salt", 3, &mut out);
        let want = "2ad6a1074a28addf332db771afaa5928b0bebc600f287167c366a1d730f8835f94e70d2d478279cd\
                    c0dae70e154cc5fb0442760e84694adb85f6aa1db4e7807c1686b79e5ff8";
        assert_eq!(hex(&out), want);
    }

    #[test]
    fn a_key_comes_out_of_its_keyslot_only_with_the_passphrase() {
        for (key_len, hash) in [(64, HashName::Sha256), (32, HashName::Sha512), (64, HashName::Sha1)] {
            let kdf = Kdf::Pbkdf2 { hash, iterations: 10, salt: vec![7; 32] };
            let area_len = to_u64(material_len(key_len));
            let slot = Keyslot { key_len, hash, area_at: 32768, area_len, area_key_len: key_len, kdf };
            let key = MediaKey::from_slice(&vec![0x5a; key_len]).unwrap();
            let mut noise = Zeroizing::new(vec![0; slot.material_len()]);
            base::rng::Rng::from_seed(1).fill(&mut noise);
            let material = slot.seal(&key, b"right", noise).unwrap();
            assert_eq!(slot.open(&mut material.clone(), b"right").unwrap().bytes(), key.bytes());
            assert_ne!(slot.open(&mut material.clone(), b"wrong").unwrap().bytes(), key.bytes());
            let mut damaged = material.clone();
            damaged[key_len * 2000] ^= 1;
            assert_ne!(slot.open(&mut damaged, b"right").unwrap().bytes(), key.bytes());
        }
    }

    #[test]
    fn a_derivation_that_takes_too_much_memory_or_time_is_refused() {
        let argon2 = |memory_kib, passes, lanes| {
            Kdf::Argon2 { hybrid: true, passes, memory_kib, lanes, salt: vec![0; 32] }.check()
        };
        assert_eq!(argon2(ARGON2_MEMORY_MAX_KIB, 4, 4), Ok(()));
        assert_eq!(argon2(ARGON2_MEMORY_MAX_KIB + 1, 1, 1), Err(LuksError::TooCostly));
        assert_eq!(argon2(ARGON2_MEMORY_MAX_KIB, 65, 1), Err(LuksError::TooCostly));
        assert_eq!(argon2(64, u32::MAX, 1), Err(LuksError::TooCostly));
        assert_eq!(argon2(1 << 16, 1, 65), Err(LuksError::TooCostly));
        let pbkdf2 = |iterations| Kdf::Pbkdf2 { hash: HashName::Sha256, iterations, salt: vec![] }.check();
        assert_eq!((pbkdf2(100_000_000), pbkdf2(100_000_001)), (Ok(()), Err(LuksError::TooCostly)));
    }
}
