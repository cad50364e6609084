//! Keys of encrypted media: a key is made once, stored wrapped beside the disk, and replaced for a
//! cryptographic erase.
//!
//! Each disk has a random key of its own. The key file holds the key encrypted (AES-256-GCM) under a key that
//! is derived from the secret which the configuration names. So reading a disk requires both files, and
//! neither reveals anything without the other. A cryptographic erase replaces the key file as state files are
//! replaced: the new file is written beside the old one, made durable and renamed, and the directory is made
//! durable. Before the rename the old key is kept and after it the new one, even if the daemon crashes in
//! between.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use sha2::{Digest, Sha256};
use store::encrypt::{DataUnit, KeyStore, MEDIA_KEY_LEN, MediaKey, Replaced};
use zeroize::Zeroizing;

use super::state::StateDir;
use crate::config::{Medium, Unit, secret};
use crate::os_error;

/// The key of a unit, and the file that stores it.
#[derive(Clone)]
pub(super) struct MediaKeys {
    pub(super) key: MediaKey,
    pub(super) unit: DataUnit,
    /// `None` for memory, which loses its data and its key together.
    kept: Option<Kept>,
}

/// The file that stores a key.
#[derive(Clone)]
struct Kept {
    path: PathBuf,
    wrap: Wrap,
}

impl std::fmt::Debug for MediaKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MediaKeys").field("unit", &self.unit).finish_non_exhaustive()
    }
}

/// Returns the key of a unit whose medium is open, if the medium is encrypted. A blank medium gets a new key;
/// `created` is called with the path of the key file made for it.
///
/// # Errors
/// A fragment that describes the mistake.
pub(super) fn of(
    unit: &Unit,
    state: &StateDir,
    created: &mut dyn FnMut(&Path),
) -> Result<Option<MediaKeys>, String> {
    let path = key_file_path(unit, state);
    let Some(secret) = &unit.encrypt else {
        let Some(path) = path else { return Ok(None) };
        let name = path.display();
        return match path.try_exists() {
            Ok(false) => Ok(None),
            Ok(true) => {
                Err(format!("it is encrypted, as {name} shows; name the file with its secret (encrypt = …)"))
            }
            Err(error) => {
                Err(format!("cannot determine whether it is encrypted: {name}: {}", os_error(&error)))
            }
        };
    };
    let wrap = Wrap::new(&secret::key_file(secret)?);
    let data_unit = if unit.block_size.bytes() < 4096 { DataUnit::B512 } else { DataUnit::B4096 };
    let Some(path) = path else {
        let key =
            fresh().map_err(|error| format!("cannot get random bytes for a key: {}", os_error(&error)))?;
        return Ok(Some(MediaKeys { key, unit: data_unit, kept: None }));
    };
    let (key, data_unit) = match read(&path)? {
        Some(bytes) => wrap.open(&bytes).map_err(|why| format!("{}: {why}", path.display()))?,
        None => (first_key(unit, &path, &wrap, data_unit, created)?, data_unit),
    };
    if data_unit.bytes() > unit.block_size.bytes() {
        return Err(format!(
            "it was encrypted in sectors of {} bytes, which \"bs\" must be",
            data_unit.bytes()
        ));
    }
    Ok(Some(MediaKeys { key, unit: data_unit, kept: Some(Kept { path, wrap }) }))
}

/// Returns the path of a unit's key file, which exists if the unit is encrypted; `None` for memory.
pub(super) fn key_file_path(unit: &Unit, state: &StateDir) -> Option<PathBuf> {
    match &unit.medium {
        Medium::File { path, .. } => Some(beside(path)),
        Medium::Block { .. } => Some(state.media_key(unit.identity.naa)),
        Medium::Ram { .. } | Medium::Null { .. } => None,
    }
}

/// Makes the first key of a medium. The medium must be blank, because data that it already holds would become
/// unreadable.
fn first_key(
    unit: &Unit,
    path: &Path,
    wrap: &Wrap,
    data_unit: DataUnit,
    created: &mut dyn FnMut(&Path),
) -> Result<MediaKey, String> {
    let medium = unit.medium.path().map_or(path, PathBuf::as_path);
    let missing = path.display();
    if unit.read_only {
        return Err(format!("{missing} does not exist, and \"ro\" does not allow starting encryption"));
    }
    let blank = is_blank(medium).map_err(|error| format!("cannot look for data: {}", os_error(&error)))?;
    if !blank {
        return Err(format!(
            "{missing} does not exist, but the disk holds data: if the data is encrypted, restore that file; \
             if it is not, it cannot be encrypted in place"
        ));
    }
    let made = fresh().and_then(|key| Ok((replace(path, &wrap.seal(&key, data_unit)?), key)));
    if let Ok((Step::Done | Step::Unknown(_), _)) = &made {
        created(path);
    }
    match made {
        Ok((Step::Done, key)) => Ok(key),
        Ok((Step::Kept(error) | Step::Unknown(error), _)) | Err(error) => {
            Err(format!("cannot store a key in {missing}: {}", os_error(&error)))
        }
    }
}

fn beside(disk: &Path) -> PathBuf {
    let mut name = disk.as_os_str().to_owned();
    name.push(".media-key");
    PathBuf::from(name)
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(FILE_LEN + 1).unwrap_or(u64::MAX);
    match File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot read {}: {}", path.display(), os_error(&error))),
    }
}

/// Returns whether the medium holds only zeros.
fn is_blank(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let end = file.seek(SeekFrom::End(0))?;
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    while at < end {
        // Holes are skipped. Block devices have no holes.
        match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => at = data,
            Err(rustix::io::Errno::NXIO) => return Ok(true),
            Err(_) => {}
        }
        let len = file.read_at(&mut piece, at)?;
        if len == 0 {
            break;
        }
        if piece.get(..len).unwrap_or_default().iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at = at.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
    }
    Ok(true)
}

fn fresh() -> io::Result<MediaKey> {
    let mut halves = Zeroizing::new([[0; 32]; 2]);
    random(halves.as_flattened_mut())?;
    Ok(MediaKey::new(*halves))
}

fn random(bytes: &mut [u8]) -> io::Result<()> {
    let fill = || rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty());
    let filled = rustix::io::retry_on_intr(fill)?;
    // A request of up to 256 bytes is never filled partially (getrandom(2)).
    if filled == bytes.len() { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// The result of replacing a key file.
#[derive(Debug)]
enum Step {
    Done,
    /// Failed before the rename: the old key is kept.
    Kept(io::Error),
    /// Renamed, but perhaps not durably.
    Unknown(io::Error),
}

fn replace(path: &Path, bytes: &[u8]) -> Step {
    let old = OpenOptions::new().write(true).open(path).ok();
    let new = temp_path(path);
    if let Err(error) = write_durably(&new, bytes).and_then(|()| fs::rename(&new, path)) {
        return Step::Kept(error);
    }
    let directory = path.parent().unwrap_or(Path::new("."));
    if let Err(error) = File::open(directory).and_then(|directory| directory.sync_all()) {
        return Step::Unknown(error);
    }
    // Overwrites the old file. On a file system that writes in place, the old key is then no longer on the
    // disk. A remaining copy does no harm: the secret that wraps the key is known only to those who had the
    // key anyway.
    if let Some(old) = old {
        let _ = old.write_all_at(&[0; FILE_LEN], 0).and_then(|()| old.sync_all());
    }
    Step::Done
}

/// Returns the path of the temporary file for the next contents of a file.
fn temp_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The key that wraps media keys.
#[derive(Clone)]
struct Wrap(Zeroizing<[u8; 32]>);

/// The versions of the key file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// Magic, version, cipher (1: AES-256-XTS), data unit (0: 512 bytes, 1: 4096), zero; a nonce; the key,
    /// encrypted with AES-256-GCM under SHA-256 of "targe media key 1\0" and the secret. The bytes before the
    /// nonce are the additional authenticated data.
    One = 1,
}

const MAGIC: &[u8; 16] = b"targe media key\n";
const HEADER_LEN: usize = 20;
const NONCE_LEN: usize = 12;
const TAG_LEN: usize = 16;
const FILE_LEN: usize = HEADER_LEN + NONCE_LEN + MEDIA_KEY_LEN + TAG_LEN;
const AES_256_XTS: u8 = 1;

impl Wrap {
    fn new(secret: &[u8]) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"targe media key 1\0");
        hash.update(secret);
        Self(Zeroizing::new(hash.finalize().into()))
    }

    fn cipher(&self) -> Aes256Gcm {
        Aes256Gcm::new(&(*self.0).into())
    }

    /// Returns the contents of a key file.
    fn seal(&self, key: &MediaKey, unit: DataUnit) -> io::Result<Vec<u8>> {
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
    fn open(&self, file: &[u8]) -> Result<(MediaKey, DataUnit), &'static str> {
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

/// Owns the key of a medium while the medium is served. `wake` is called on another thread when a replacement
/// has ended.
pub(super) struct Keeper<W> {
    keys: MediaKeys,
    wake: W,
    under_way: Option<Receiver<Replaced>>,
}

impl<W: Fn() + Clone + Send + 'static> Keeper<W> {
    pub(super) const fn new(keys: MediaKeys, wake: W) -> Self {
        Self { keys, wake, under_way: None }
    }
}

impl<W: Fn() + Clone + Send + 'static> KeyStore for Keeper<W> {
    fn replace(&mut self) {
        let (sender, receiver) = channel();
        self.under_way = Some(receiver);
        let (kept, unit, wake) = (self.keys.kept.clone(), self.keys.unit, self.wake.clone());
        let not_begun = sender.clone();
        // The thread waits for the disk, so that the reactor does not.
        let thread = std::thread::Builder::new().name("media key".to_owned()).spawn(move || {
            let _ = sender.send(replaced(kept.as_ref(), unit));
            wake();
        });
        if let Err(error) = thread {
            crate::error!("cannot replace a media key: {}", os_error(&error));
            let _ = not_begun.send(Replaced::Kept);
        }
    }

    fn poll(&mut self) -> Option<Replaced> {
        let ended = match self.under_way.as_ref()?.try_recv() {
            Ok(ended) => ended,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Replaced::Unknown,
        };
        self.under_way = None;
        Some(ended)
    }
}

fn replaced(kept: Option<&Kept>, unit: DataUnit) -> Replaced {
    let key = match fresh() {
        Ok(key) => key,
        Err(error) => {
            crate::error!("cannot get random bytes for a media key: {}", os_error(&error));
            return Replaced::Kept;
        }
    };
    let Some(Kept { path, wrap }) = kept else { return Replaced::Fresh(key) };
    let step = wrap.seal(&key, unit).map_or_else(Step::Kept, |bytes| replace(path, &bytes));
    let path = path.display();
    match step {
        Step::Done => {
            crate::info!(
                "{path}: the media key was replaced; earlier data of the disk can no longer be read"
            );
            Replaced::Fresh(key)
        }
        Step::Kept(error) => {
            crate::error!("{path} cannot be replaced: {}; the old key stays in use", os_error(&error));
            Replaced::Kept
        }
        Step::Unknown(error) => {
            crate::error!(
                "{path} was replaced, but perhaps not durably: {}; the disk is not served until targe is restarted",
                os_error(&error)
            );
            Replaced::Unknown
        }
    }
}

#[cfg(test)]
mod tests;
