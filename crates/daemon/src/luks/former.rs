//! The key file of a disk of the former format: the key of the disk, encrypted (AES-256-GCM) under a key that
//! is derived from the secret which the configuration names.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use sha2::{Digest, Sha256};
use store::encrypt::{DataUnit, MEDIA_KEY_LEN, MediaKey};
use zeroize::Zeroizing;

use super::random;
use crate::os_error;

/// Returns the path of the key file of a disk in a file.
pub(crate) fn beside(disk: &Path) -> PathBuf {
    let mut name = disk.as_os_str().to_owned();
    name.push(".media-key");
    PathBuf::from(name)
}

/// Reads a key file; `None` if there is none.
///
/// # Errors
/// A sentence that says why it cannot be read.
pub(crate) fn read_key_file(path: &Path) -> Result<Option<Vec<u8>>, String> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(FILE_LEN + 1).unwrap_or(u64::MAX);
    match File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot read {}: {}", path.display(), os_error(&error))),
    }
}

/// The key that wraps media keys.
#[derive(Clone)]
pub(crate) struct Wrap(Zeroizing<[u8; 32]>);

/// The versions of the key file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// Magic, version, cipher (1: AES-256-XTS), data unit (0: 512 bytes, 1: 4096), zero; a nonce; the key,
    /// encrypted with AES-256-GCM under SHA-256 of "targe media key 1\0" and the secret. The bytes before the
    /// nonce are the additional authenticated data.
    One = 1,
}

const MAGIC: &[u8; 16] = b"targe media key\n";
/// The length in bytes of what comes before the nonce.
pub(crate) const HEADER_LEN: usize = 20;
const NONCE_LEN: usize = 12;
const TAG_LEN: usize = 16;
/// The length of a key file in bytes.
pub(crate) const FILE_LEN: usize = HEADER_LEN + NONCE_LEN + MEDIA_KEY_LEN + TAG_LEN;
const AES_256_XTS: u8 = 1;

impl Wrap {
    pub(crate) fn new(secret: &[u8]) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"targe media key 1\0");
        hash.update(secret);
        Self(Zeroizing::new(hash.finalize().into()))
    }

    fn cipher(&self) -> Aes256Gcm {
        Aes256Gcm::new(&(*self.0).into())
    }

    /// Returns the contents of a key file.
    pub(crate) fn seal(&self, key: &MediaKey, unit: DataUnit) -> io::Result<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        random(&mut nonce)?;
        let mut file = MAGIC.to_vec();
        file.extend([Version::One as u8, AES_256_XTS, u8::from(unit == DataUnit::B4096), 0]);
        let payload = Payload { msg: key.bytes(), aad: &file };
        let sealed = self.cipher().encrypt(&Nonce::from(nonce), payload);
        let sealed = sealed.map_err(|_| io::Error::other("the key cannot be encrypted"))?;
        file.extend(nonce);
        file.extend(sealed);
        Ok(file)
    }

    /// Decrypts the contents of a key file.
    ///
    /// # Errors
    /// A fragment that describes the mistake.
    pub(crate) fn open(&self, file: &[u8]) -> Result<(MediaKey, DataUnit), &'static str> {
        let parts = file.split_at_checked(HEADER_LEN);
        let Some((header @ [magic @ .., version, cipher, unit, 0], rest)) = parts else {
            return Err("this is not a media key");
        };
        if magic != MAGIC {
            return Err("this is not a media key");
        }
        let unit = match (*version, *cipher, *unit) {
            (version, AES_256_XTS, 0) if version == Version::One as u8 => DataUnit::B512,
            (version, AES_256_XTS, 1) if version == Version::One as u8 => DataUnit::B4096,
            _ => return Err("this media key has a version that this release does not support"),
        };
        let Some((nonce, sealed)) = rest.split_first_chunk::<NONCE_LEN>() else {
            return Err("this media key is truncated");
        };
        let payload = Payload { msg: sealed, aad: header };
        let opened = self.cipher().decrypt(&Nonce::from(*nonce), payload).map(Zeroizing::new);
        let opened = opened
            .map_err(|_| "the secret is not the one that this media key was made with, or it is damaged")?;
        match opened.as_chunks().0 {
            [data, tweak] if opened.len() == MEDIA_KEY_LEN => Ok((MediaKey::new([*data, *tweak]), unit)),
            _ => Err("this is not a media key"),
        }
    }
}
