//! Keys of encrypted media, and their replacement for a cryptographic erase.
//!
//! A file or device is a LUKS2 image ([`crate::luks`]): its header holds the key. Memory has a key that
//! is lost with it.

use crate::mailbox::{Receiver, TryRecvError, channel};
use std::io;
use std::path::{Path, PathBuf};

use backends::open::FileIdentity;
use base::buffer::Pool;
use store::Store;
use store::encrypt::{DataUnit, Encrypted, KeyStore, MediaKey, Replaced, Volume};

use super::served_size::header;
use super::state::StateDir;
use super::write_trace::WriteTrace;
use crate::config::{Medium, Unit, secret};
use crate::luks::blank::{BlankScan, Blankness};
use crate::luks::{ImageCause, ImageError, ImageFile, fresh_key, is_image, wanted_block_length};
use crate::os_error;

/// The key of a unit, and what stores it.
#[derive(Clone)]
pub(super) enum MediaKeys {
    /// The key of a LUKS2 image, which this version of its header stores.
    Luks { volume: Volume, image: ImageFile, version: u64 },
    /// The key of memory, which loses its data and its key together.
    Memory { key: MediaKey, unit: DataUnit },
}

/// What is known of the key of a unit.
#[derive(Debug)]
pub(super) enum UnitKeys {
    Ready(MediaKeys),
    /// The medium has no header. It gets one if it is blank, and all of it must be read to know that.
    Unread(UnreadImage),
}

/// How much of a medium without a header the thread that opens media reads. A larger one is read by a thread
/// of its own.
const READ_WHILE_OPENING: u64 = 16 << 20;

/// How much of it that thread reads before it looks whether it is to go on.
const READ_STEP: u64 = 1 << 20;

/// A medium that becomes a LUKS2 image if it is blank.
#[derive(Debug)]
pub(super) struct UnreadImage {
    image: ImageFile,
    disk: PathBuf,
    sector_len: DataUnit,
    scan: BlankScan,
    /// What the system knew of writes to the medium before it was read.
    written: Option<WriteTrace>,
    /// The file with the secret.
    secret: PathBuf,
    /// The name of the unit.
    label: String,
}

impl UnreadImage {
    /// Returns its path.
    pub(super) fn path(&self) -> &Path {
        &self.disk
    }

    /// Returns its length in bytes.
    pub(super) const fn len(&self) -> u64 {
        self.scan.len()
    }

    /// Reads the medium, and makes a LUKS2 image of it. `goes_on` is called after each piece with the
    /// percentage that was read. Returns `None` if it returns `false`.
    ///
    /// # Errors
    /// A fragment that describes the mistake.
    pub(super) fn prepare(
        mut self,
        mut goes_on: impl FnMut(u64) -> bool,
    ) -> Result<Option<MediaKeys>, String> {
        loop {
            match self.read(READ_STEP)? {
                Blankness::Unknown if goes_on(self.scan.percent()) => {}
                Blankness::Unknown => return Ok(None),
                Blankness::Data => return Err(holds_data(&self.disk).why),
                Blankness::Blank if goes_on(100) => return self.format().map(Some),
                Blankness::Blank => return Ok(None),
            }
        }
    }

    fn read(&mut self, bytes: u64) -> Result<Blankness, ImageError> {
        self.scan.read(bytes).map_err(|error| unreadable(&error))
    }

    /// Makes a LUKS2 image of the medium, which holds only zeros. Reading it can have taken hours: what
    /// another program has written meanwhile is not overwritten, and the secret is the present one.
    fn format(self) -> Result<MediaKeys, String> {
        let Self { image, disk, sector_len, written, secret, label, .. } = self;
        let name = disk.display();
        if !image.has_secret(&secret::key_file(&secret)?) {
            return Err(format!("the secret in {} has changed while {name} was read", secret.display()));
        }
        if WriteTrace::of(&disk) != written {
            return Err(format!("{name} was written to while it was read to find out whether it is blank"));
        }
        if image.scan_header()?.read(u64::MAX).map_err(|error| unreadable(&error))? != Blankness::Blank {
            return Err(holds_data(&disk).why);
        }
        image.format(sector_len)?;
        crate::info!("{label}: {name} is blank, and has become a LUKS2 image");
        // Before the key: a header that changes in between has another version than this.
        let version = image.version()?;
        usable(image.volume(false)?, version, image, &disk)
    }

    #[cfg(test)]
    pub(super) fn with_scan(self, scan: BlankScan) -> Self {
        Self { scan, ..self }
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
            Self::Memory { unit, .. } => *unit,
        }
    }

    /// Returns how many bytes of a medium of this length are data.
    pub(super) fn data_len(&self, len: u64) -> u64 {
        match self {
            Self::Luks { volume, .. } => {
                let rest = len.saturating_sub(volume.offset);
                volume.len.map_or(rest, |data| data.min(rest))
            }
            Self::Memory { .. } => len,
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
            Self::Memory { key, unit } => Box::new(Encrypted::new(bare, keeper, key, *unit, pool.clone())),
        }
    }

    /// Checks that the key is still the one of the medium, which another process served until now.
    ///
    /// # Errors
    /// A fragment that describes the mistake.
    pub(super) fn check_current(&self) -> Result<(), String> {
        let is_current = match self {
            Self::Luks { image, version, .. } => image.version()? == Some(*version),
            Self::Memory { .. } => true,
        };
        let replaced =
            "its key was replaced, or its header changed, while the new process started; try again";
        if is_current { Ok(()) } else { Err(replaced.to_owned()) }
    }

    fn replaced(&self) -> Replaced {
        match self {
            Self::Luks { image, .. } => image.replace_key(),
            Self::Memory { .. } => match memory_key() {
                Ok(key) => Replaced::Fresh(key),
                Err(why) => {
                    crate::error!("{why}");
                    Replaced::Kept
                }
            },
        }
    }
}

/// Returns the key of a unit whose medium is open, and is this file or device, if the medium is encrypted. A
/// blank medium becomes a LUKS2 image with a new key, later if it is long. If another process serves the
/// medium (`is_served`), nothing is written to it.
///
/// # Errors
/// A fragment that describes the mistake.
pub(super) fn of(
    unit: &Unit,
    identity: Option<FileIdentity>,
    state: &StateDir,
    is_served: bool,
) -> Result<Option<UnitKeys>, ImageError> {
    let Some(secret_file) = &unit.encrypt else {
        expect_plain(unit, state).map_err(other_disk)?;
        return Ok(None);
    };
    let secret = secret::key_file(secret_file)?;
    let sector_len = if unit.block_size.bytes() < 4096 { DataUnit::B512 } else { DataUnit::B4096 };
    let Some(disk) = unit.medium.path() else {
        return Ok(Some(UnitKeys::Ready(MediaKeys::Memory { key: memory_key()?, unit: sector_len })));
    };
    let image = ImageFile::new(disk, secret).served_as(identity);
    let read_only = unit.read_only || is_served;
    let keys = match image_keys((image, secret_file), disk, (unit, state), read_only, sector_len)? {
        UnitKeys::Ready(keys) => keys,
        unread @ UnitKeys::Unread(_) => return Ok(Some(unread)),
    };
    if keys.unit().bytes() > unit.block_size.bytes() {
        return Err(wanted_block_length(keys.unit()).into());
    }
    Ok(Some(UnitKeys::Ready(keys)))
}

/// Returns a new key for memory.
///
/// # Errors
/// A sentence.
fn memory_key() -> Result<MediaKey, String> {
    fresh_key().map_err(|error| format!("cannot get random bytes for a key: {}", os_error(&error)))
}

/// Opens a LUKS2 image. A blank disk becomes one, also where that was interrupted, unless it takes long to
/// find out that it is blank.
fn image_keys(
    (image, secret_file): (ImageFile, &Path),
    disk: &Path,
    (unit, state): (&Unit, &StateDir),
    read_only: bool,
    sector_len: DataUnit,
) -> Result<UnitKeys, ImageError> {
    // Before the key: a header that changes in between has another version than this.
    let version = image.version()?;
    if let Some(volume) = image.volume(read_only)? {
        return Ok(UnitKeys::Ready(usable(Some(volume), version, image, disk)?));
    }
    header::check_new(unit, state).map_err(other_disk)?;
    let (written, secret, label) = (WriteTrace::of(disk), secret_file.to_owned(), unit.label.clone());
    let scan = image.scan()?;
    let mut unread = UnreadImage { image, disk: disk.to_owned(), sector_len, scan, written, secret, label };
    let name = disk.display();
    match unread.read(READ_WHILE_OPENING)? {
        Blankness::Data => Err(holds_data(disk)),
        Blankness::Blank if read_only => {
            Err(format!("{name} is blank, and \"ro\" does not allow making a LUKS2 image of it").into())
        }
        Blankness::Unknown if read_only => {
            let why = "\"ro\" does not allow making a LUKS2 image of it";
            Err(format!("{name} has no LUKS2 header, and {why}").into())
        }
        Blankness::Blank => Ok(UnitKeys::Ready(unread.format()?)),
        Blankness::Unknown => Ok(UnitKeys::Unread(unread)),
    }
}

fn unreadable(error: &io::Error) -> ImageError {
    let why = format!("cannot look for data: {}", os_error(error));
    ImageError { why, cause: ImageCause::of(error) }
}

fn holds_data(disk: &Path) -> ImageError {
    let why = format!(
        "{} holds data, but no LUKS2 header: if the data is encrypted, restore the header; if it is not, it cannot be \
         encrypted in place",
        disk.display()
    );
    other_disk(why)
}

/// Returns the error of a medium that is not what the configuration says; everything else is served.
fn other_disk(why: String) -> ImageError {
    ImageError { why, cause: ImageCause::Fault }
}

/// Refuses a disk that was encrypted and is to be served as it is: hosts would take what is encrypted for
/// their data, and overwrite it.
fn expect_plain(unit: &Unit, state: &StateDir) -> Result<(), String> {
    header::check_plain(unit, state)?;
    // Reading from the node of a SCSI device means something else.
    let is_device = matches!(unit.medium, Medium::Sg { .. });
    if let Some(path) = unit.medium.path().filter(|path| !is_device && is_image(path)) {
        crate::warning!(
            "{}: {} is a LUKS2 image and is served as it is, header included, because it has no \"encrypt\"",
            unit.label,
            path.display()
        );
    }
    Ok(())
}

/// Returns the keys of an image whose volume is open.
fn usable(
    volume: Option<Volume>,
    version: Option<u64>,
    image: ImageFile,
    disk: &Path,
) -> Result<MediaKeys, String> {
    match volume.zip(version) {
        Some((volume, version)) if volume.is_aligned(4096) => Ok(MediaKeys::Luks { volume, image, version }),
        _ => Err(format!("{}: the LUKS2 image does not align its data to 4096 bytes", disk.display())),
    }
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

#[cfg(test)]
mod tests;
