//! Keys of encrypted media, and their replacement for a cryptographic erase.
//!
//! A file or device is a LUKS2 image ([`crate::luks`]): its header holds the key. Memory has a key that
//! is lost with it.
//!
//! # The former format
//!
//! Before LUKS2, a disk had no header. A key file beside the disk, which such a disk still has, holds the
//! key encrypted ([`crate::luks::former`]). A cryptographic erase replaces the key file as state files
//! are replaced: the new file is written beside the old one, made durable and renamed, and the directory
//! is made durable. Before the rename the old key is kept and after it the new one, even if the daemon
//! crashes in between.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use backends::open::FileIdentity;
use base::buffer::Pool;
use store::Store;
use store::encrypt::{DataUnit, Encrypted, KeyStore, MediaKey, Replaced, Volume};

use super::state::StateDir;
use crate::config::{Medium, Unit, secret};
use crate::luks::convert::journal_path;
use crate::luks::former::{FILE_LEN, Wrap, beside, read_key_file};
use crate::luks::{ImageFile, OTHER_FILE, fresh_key, is_blank, is_image};
use crate::os_error;

/// The key of a unit, and what stores it.
#[derive(Clone)]
pub(super) enum MediaKeys {
    /// The key of a LUKS2 image, which this version of its header stores.
    Luks { volume: Volume, image: ImageFile, version: u64 },
    /// The key of memory, which loses its data and its key together, or of a disk of the former format.
    Bare { key: MediaKey, unit: DataUnit, kept: Option<Kept> },
}

/// The file that stores a key of the former format.
#[derive(Clone)]
pub(super) struct Kept {
    path: PathBuf,
    /// The path of the disk, if the file is beside it, and the disk that is served: the path may lead to
    /// another one later, whose key the file is then.
    beside: Option<(PathBuf, FileIdentity)>,
    wrap: Wrap,
    /// What it held when the key was read.
    sealed: Vec<u8>,
}

impl Kept {
    /// Checks that the file is still beside the disk that is served.
    fn expect_same_disk(&self) -> io::Result<()> {
        let Some((disk, served)) = &self.beside else { return Ok(()) };
        let (found, _) = FileIdentity::of_path(disk)?;
        if found == *served { Ok(()) } else { Err(io::Error::other(OTHER_FILE)) }
    }
}

impl std::fmt::Debug for MediaKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MediaKeys").field("unit", &self.unit()).finish_non_exhaustive()
    }
}

impl MediaKeys {
    /// Returns the length of the sectors that are encrypted.
    fn unit(&self) -> DataUnit {
        match self {
            Self::Luks { volume, .. } => volume.sector_len,
            Self::Bare { unit, .. } => *unit,
        }
    }

    /// Makes the medium that `bare` holds encrypted.
    pub(super) fn decrypt(
        &self,
        bare: Box<dyn Store>,
        pool: &Pool,
        wake: impl Fn() + Clone + Send + 'static,
    ) -> Box<dyn Store> {
        let keeper = Keeper::new(self.clone(), wake);
        match self {
            Self::Luks { volume, .. } => Box::new(Encrypted::of_volume(bare, keeper, volume, pool.clone())),
            Self::Bare { key, unit, .. } => Box::new(Encrypted::new(bare, keeper, key, *unit, pool.clone())),
        }
    }

    /// Checks that the key is still the one of the medium, which another process served until now.
    ///
    /// # Errors
    /// A fragment that describes the mistake.
    pub(super) fn check_current(&self) -> Result<(), String> {
        let is_current = match self {
            Self::Luks { image, version, .. } => image.version()? == Some(*version),
            Self::Bare { kept: Some(kept), .. } => read_key_file(&kept.path)?.as_ref() == Some(&kept.sealed),
            Self::Bare { kept: None, .. } => true,
        };
        let replaced =
            "its key was replaced, or its header changed, while the new process started; try again";
        if is_current { Ok(()) } else { Err(replaced.to_owned()) }
    }

    fn replaced(&self) -> Replaced {
        match self {
            Self::Luks { image, .. } => image.replace_key(),
            Self::Bare { unit, kept, .. } => replaced(kept.as_ref(), *unit),
        }
    }
}

/// Returns the key of a unit whose medium is open, and is this file or device, if the medium is encrypted. A
/// blank medium becomes a LUKS2 image with a new key. If another process serves the medium (`is_served`),
/// nothing is written to it.
///
/// # Errors
/// A fragment that describes the mistake.
pub(super) fn of(
    unit: &Unit,
    identity: Option<FileIdentity>,
    state: &StateDir,
    is_served: bool,
) -> Result<Option<MediaKeys>, String> {
    let former = key_file_path(unit, state);
    let Some(secret) = &unit.encrypt else {
        // Reading from the node of a SCSI device means something else.
        let is_device = matches!(unit.medium, Medium::Sg { .. });
        if let Some(path) = unit.medium.path().filter(|path| !is_device && is_image(path)) {
            crate::warning!(
                "{}: {} is a LUKS2 image and is served as it is, header included, because it has no \"encrypt\"",
                unit.label,
                path.display()
            );
        }
        let Some(path) = former else { return Ok(None) };
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
    let secret = secret::key_file(secret)?;
    let sector_len = if unit.block_size.bytes() < 4096 { DataUnit::B512 } else { DataUnit::B4096 };
    let (Some(former), Some(disk)) = (former, unit.medium.path()) else {
        let key = fresh_key();
        let key = key.map_err(|error| format!("cannot get random bytes for a key: {}", os_error(&error)))?;
        return Ok(Some(MediaKeys::Bare { key, unit: sector_len, kept: None }));
    };
    let keys = match read_key_file(&former)? {
        Some(bytes) => {
            expect_no_conversion(disk)?;
            let wrap = Wrap::new(&secret);
            let opened = wrap.open(&bytes);
            let (key, unit) = opened.map_err(|why| format!("{}: {why}", former.display()))?;
            let is_beside = matches!(identity, Some(FileIdentity::File(..)));
            let beside = identity.filter(|_| is_beside).map(|identity| (disk.clone(), identity));
            let kept = Kept { path: former, beside, wrap, sealed: bytes };
            MediaKeys::Bare { key, unit, kept: Some(kept) }
        }
        None => {
            let image = ImageFile::new(disk, secret).served_as(identity);
            image_keys(image, disk, unit.read_only || is_served, sector_len)?
        }
    };
    if keys.unit().bytes() > unit.block_size.bytes() {
        return Err(format!(
            "it was encrypted in sectors of {} bytes, which \"bs\" must be",
            keys.unit().bytes()
        ));
    }
    Ok(Some(keys))
}

/// Opens a LUKS2 image. A blank disk becomes one.
fn image_keys(
    image: ImageFile,
    disk: &Path,
    read_only: bool,
    sector_len: DataUnit,
) -> Result<MediaKeys, String> {
    // Before the key: a header that changes in between has another version than this.
    let mut version = image.version()?;
    let mut volume = image.volume(read_only)?;
    if volume.is_none() {
        let name = disk.display();
        let blank = is_blank(disk).map_err(|error| format!("cannot look for data: {}", os_error(&error)))?;
        if !blank {
            return Err(format!(
                "{name} holds data, but no LUKS2 header and no key beside it: if the data is encrypted, restore what \
                 is missing; if it is not, it cannot be encrypted in place"
            ));
        }
        if read_only {
            return Err(format!("{name} is blank, and \"ro\" does not allow making a LUKS2 image of it"));
        }
        image.format(sector_len)?;
        version = image.version()?;
        volume = image.volume(read_only)?;
    }
    match volume.zip(version) {
        Some((volume, version)) if volume.is_aligned(4096) => Ok(MediaKeys::Luks { volume, image, version }),
        _ => Err(format!("{}: the LUKS2 image does not align its data to 4096 bytes", disk.display())),
    }
}

/// Refuses a disk whose conversion is not completed: part of it is moved.
fn expect_no_conversion(disk: &Path) -> Result<(), String> {
    let journal = journal_path(disk);
    match journal.try_exists() {
        Ok(false) => Ok(()),
        Ok(true) => Err(format!(
            "its conversion to LUKS2 was interrupted, as {} shows; complete it with: targe luks convert {}",
            journal.display(),
            disk.display()
        )),
        Err(error) => Err(format!("cannot access {}: {}", journal.display(), os_error(&error))),
    }
}

/// Returns the path of a unit's key file, which exists if the unit is encrypted; `None` for memory.
pub(super) fn key_file_path(unit: &Unit, state: &StateDir) -> Option<PathBuf> {
    match &unit.medium {
        Medium::File { path, .. } => Some(beside(path)),
        Medium::Block { .. } => Some(state.media_key(unit.identity.naa)),
        Medium::Ram { .. }
        | Medium::Null { .. }
        | Medium::Disc { .. }
        | Medium::Tape { .. }
        | Medium::Nbd { .. }
        | Medium::VhostUserBlk { .. }
        | Medium::VhostUserScsi { .. }
        | Medium::Sg { .. }
        | Medium::Changer { .. }
        | Medium::LibraryDrive { .. } => None,
    }
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

/// Owns the key of a medium while the medium is served. `wake` is called on another thread when a
/// replacement has ended.
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
        let (keys, wake) = (self.keys.clone(), self.wake.clone());
        let not_begun = sender.clone();
        // The thread waits for the disk, so that the reactor does not.
        let thread = std::thread::Builder::new().name("media key".to_owned()).spawn(move || {
            let _ = sender.send(keys.replaced());
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
    let key = match fresh_key() {
        Ok(key) => key,
        Err(error) => {
            crate::error!("cannot get random bytes for a media key: {}", os_error(&error));
            return Replaced::Kept;
        }
    };
    let Some(kept) = kept else { return Replaced::Fresh(key) };
    let sealed = kept.expect_same_disk().and_then(|()| kept.wrap.seal(&key, unit));
    let Kept { path, .. } = kept;
    let step = sealed.map_or_else(Step::Kept, |bytes| replace(path, &bytes));
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
