//! LUKS2 images in files and block devices: opens and formats them, and replaces their key.

pub(crate) mod blank;
mod derivation;

use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use backends::open::FileIdentity;
use blank::{BlankScan, Blankness};
use rustix::fs::{FallocateFlags, FlockOperation};
use store::encrypt::{DataUnit, MediaKey, Replaced, Volume};
use store::luks2::{
    Copies, DATA_OFFSET, Error, Header, KdfCost, LuksError, MediumIo, NewHeader, Replacing, format,
};
use zeroize::Zeroizing;

use crate::answers::{self, ANSWER_MAX, Place, Wait};
use crate::config::{Unit, secret};
use crate::{is_medium_fault, os_error};

/// The length in bytes of the pieces in which zeros are written where the system cannot make a hole.
const ZERO_PIECE: usize = 1 << 20;

/// Why a path is not used.
pub(crate) const OTHER_FILE: &str = "it is another file or device than the one that is served";

/// Accesses a file or block device for its header.
#[derive(Debug)]
pub(crate) struct FileIo(File);

impl FileIo {
    pub(crate) fn open(path: &Path, writable: bool) -> io::Result<Self> {
        OpenOptions::new().read(true).write(writable).open(path).map(Self)
    }

    /// Returns the length in bytes, also that of a device.
    pub(crate) fn len(&self) -> io::Result<u64> {
        use std::io::{Seek, SeekFrom};
        (&self.0).seek(SeekFrom::End(0))
    }
}

impl MediumIo for FileIo {
    type Error = io::Error;

    fn read(&mut self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buf, at)
    }

    fn write(&mut self, at: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, at)
    }

    fn zero(&mut self, at: u64, len: u64) -> io::Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.0, hole, at, len) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODEV) => {}
            done => return Ok(done?),
        }
        let zeros = vec![0; ZERO_PIECE];
        let (mut at, end) = (at, at.saturating_add(len));
        while at < end {
            let piece = usize::try_from(end - at).unwrap_or(ZERO_PIECE).min(ZERO_PIECE);
            self.0.write_all_at(zeros.get(..piece).unwrap_or_default(), at)?;
            at = at.saturating_add(u64::try_from(piece).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.sync_all()
    }
}

/// The file or device with the header of an image, and the secret that opens it.
#[derive(Clone)]
pub(crate) struct ImageFile {
    path: PathBuf,
    secret: Zeroizing<Vec<u8>>,
    /// The file or device that is served: the path may lead to another one later.
    served: Option<FileIdentity>,
}

impl ImageFile {
    pub(crate) fn new(path: &Path, secret: Zeroizing<Vec<u8>>) -> Self {
        Self { path: path.to_owned(), secret, served: None }
    }

    /// Accesses only this file or device from now on, which is served.
    pub(crate) const fn served_as(mut self, identity: Option<FileIdentity>) -> Self {
        self.served = identity;
        self
    }

    fn open(&self, writable: bool) -> io::Result<FileIo> {
        let io = FileIo::open(&self.path, writable)?;
        match self.served {
            Some(served) if FileIdentity::of_file(&io.0)? != served => Err(io::Error::other(OTHER_FILE)),
            _ => Ok(io),
        }
    }

    /// Opens the volume of the image; `None` if there is no header, or one whose writing was interrupted. A
    /// damaged copy of the header is repaired, unless the image is only read.
    ///
    /// # Errors
    /// A fragment that describes the mistake.
    pub(crate) fn volume(&self, read_only: bool) -> Result<Option<Volume>, ImageError> {
        let mut io = self.open(!read_only).map_err(|error| self.inaccessible(&error))?;
        let len = io.len().map_err(|error| self.inaccessible(&error))?;
        let mut header = match Header::load(&mut io, len) {
            Ok(header) => header,
            Err(Error::Luks(LuksError::NotLuks | LuksError::Unfinished)) => return Ok(None),
            Err(why) => return Err(self.described(why)),
        };
        let turn = derivation::turn();
        let volume = header.unlock(&mut io, &self.secret).map_err(|why| self.described(why))?;
        drop(turn);
        if let Some(what) = describe_copies(header.copies()) {
            let path = self.path.display();
            if read_only {
                crate::warning!("{path}: {what}");
            } else {
                header.repair(&mut io, &mut random).map_err(|why| self.described(why))?;
                crate::warning!("{path}: {what}; the header was repaired");
            }
        }
        Ok(Some(volume))
    }

    /// Returns the number of the version of the header; `None` if there is no header, or one whose writing
    /// was interrupted.
    ///
    /// # Errors
    /// A fragment that describes the mistake.
    pub(crate) fn version(&self) -> Result<Option<u64>, ImageError> {
        let mut io = self.open(false).map_err(|error| self.inaccessible(&error))?;
        let len = io.len().map_err(|error| self.inaccessible(&error))?;
        match Header::load(&mut io, len) {
            Ok(header) => Ok(Some(header.version())),
            Err(Error::Luks(LuksError::NotLuks | LuksError::Unfinished)) => Ok(None),
            Err(why) => Err(self.described(why)),
        }
    }

    /// Begins to look for data. What an interrupted call of [`Self::format`] has left is none.
    ///
    /// # Errors
    /// A fragment that describes the mistake.
    pub(crate) fn scan(&self) -> Result<BlankScan, ImageError> {
        let mut io = self.open(false).map_err(|error| self.inaccessible(&error))?;
        BlankScan::of(&mut io).map_err(|error| self.inaccessible(&error))
    }

    /// Begins to look for data where [`Self::format`] writes.
    ///
    /// # Errors
    /// A fragment that describes the mistake.
    pub(crate) fn scan_header(&self) -> Result<BlankScan, ImageError> {
        let mut io = self.open(false).map_err(|error| self.inaccessible(&error))?;
        let scan = BlankScan::of(&mut io).map_err(|error| self.inaccessible(&error))?;
        Ok(scan.up_to(DATA_OFFSET))
    }

    /// Returns whether this is the secret of the image.
    pub(crate) fn has_secret(&self, secret: &[u8]) -> bool {
        *self.secret == *secret
    }

    /// Makes a header for a new key at the start of a file or device that [`is_formattable`].
    ///
    /// # Errors
    /// A fragment that describes the mistake.
    pub(crate) fn format(&self, sector_len: DataUnit) -> Result<(), String> {
        let mut io = self.open(true).map_err(|error| self.inaccessible(&error))?;
        let len = io.len().map_err(|error| self.inaccessible(&error))?;
        let key = fresh_key().map_err(|error| no_random(&error))?;
        let new = self.new_header(&key, sector_len);
        format(&mut io, len, &new, &mut random).map_err(|why| self.described(why))?;
        Ok(())
    }

    /// Replaces the key of the image, and logs how that ended.
    pub(crate) fn replace_key(&self) -> Replaced {
        let path = self.path.display();
        let key = match fresh_key() {
            Ok(key) => key,
            Err(error) => {
                crate::error!("{path}: {}", no_random(&error));
                return Replaced::Kept;
            }
        };
        let opened = self.open(true).and_then(|io| Ok((io.len()?, io))).map_err(Error::Io);
        let opened = opened.and_then(|(len, mut io)| Ok((Header::load(&mut io, len)?, io)));
        let (header, mut io) = match opened {
            Ok(opened) => opened,
            Err(why) => {
                crate::error!("{path}: the key cannot be replaced: {}", self.described(why).why);
                return Replaced::Kept;
            }
        };
        let new = self.new_header(&key, header.sector_len());
        match header.replace_key(&mut io, &new, &mut random) {
            Ok(_) => {
                crate::info!("{path}: the key was replaced; earlier data of the disk can no longer be read");
                Replaced::Fresh(key)
            }
            Err(Replacing::Kept(why)) => {
                let why = self.described(why).why;
                crate::error!("{path}: the key cannot be replaced: {why}; the old key stays in use");
                Replaced::Kept
            }
            Err(Replacing::Unknown(why)) => {
                crate::error!(
                    "{path}: the key was replaced, but perhaps not durably: {}; the disk is not served until targe is \
                     restarted",
                    self.described(why).why
                );
                Replaced::Unknown
            }
        }
    }

    fn new_header<'a>(&'a self, key: &'a MediaKey, sector_len: DataUnit) -> NewHeader<'a> {
        NewHeader { key, sector_len, passphrase: &self.secret, cost: KdfCost::default() }
    }

    fn inaccessible(&self, error: &io::Error) -> ImageError {
        ImageError {
            why: format!("cannot access {}: {}", self.path.display(), os_error(error)),
            cause: ImageCause::of(error),
        }
    }

    fn described(&self, why: Error<io::Error>) -> ImageError {
        let why = match why {
            Error::Luks(why) => why,
            Error::Io(error) => return self.inaccessible(&error),
        };
        let cause = match why {
            LuksError::WrongSecret => ImageCause::WrongSecret,
            LuksError::Damaged => ImageCause::Fault,
            _ => ImageCause::Mistake,
        };
        ImageError { why: format!("{}: {why}", self.path.display()), cause }
    }
}

/// Why an image cannot be opened.
#[derive(Debug)]
pub(crate) struct ImageError {
    /// A fragment that describes the mistake.
    pub(crate) why: String,
    pub(crate) cause: ImageCause,
}

/// What keeps an image from being opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageCause {
    /// A mistake, or another obstacle that is not the medium.
    Mistake,
    /// No keyslot opens with the secret. Finding that out takes seconds.
    WrongSecret,
    /// The medium fails, or does not hold the image that it should.
    Fault,
}

impl ImageCause {
    /// Returns the cause of an error of the system.
    pub(crate) fn of(error: &io::Error) -> Self {
        if is_medium_fault(error) { Self::Fault } else { Self::Mistake }
    }
}

impl From<String> for ImageError {
    fn from(why: String) -> Self {
        Self { why, cause: ImageCause::Mistake }
    }
}

impl From<ImageError> for String {
    fn from(error: ImageError) -> Self {
        error.why
    }
}

impl std::fmt::Debug for ImageFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Returns the first byte of the data of the image at `path`; `None` if there is no usable header.
pub(crate) fn data_offset(path: &Path) -> Option<u64> {
    let mut io = FileIo::open(path, false).ok()?;
    let len = io.len().ok()?;
    Header::load(&mut io, len).ok().map(|header| header.data_offset())
}

/// The most bytes of an image before its data that [`header_hash`] reads.
const HASHED_MAX: u64 = 2 * DATA_OFFSET;

/// Returns a hash of everything before the data of the image at `path`, which decides whether a secret opens
/// it; `None` if it cannot be read.
pub(crate) fn header_hash(path: &Path) -> Option<u64> {
    let len = data_offset(path)?.min(HASHED_MAX);
    let (mut header, mut piece) = (File::open(path).ok()?.take(len), vec![0; 1 << 16]);
    let mut hasher = DefaultHasher::new();
    loop {
        match header.read(&mut piece).ok()? {
            0 => return Some(hasher.finish()),
            count => hasher.write(piece.get(..count)?),
        }
    }
}

/// Says what a LUN needs whose logical blocks are shorter than the sectors of its image.
pub(crate) fn wanted_block_length(sector_len: DataUnit) -> String {
    let bytes = sector_len.bytes();
    format!("it is encrypted in sectors of {bytes} bytes: add bs = {bytes}")
}

/// Checks the header of an encrypted unit as far as that needs no secret: a start would refuse the unit
/// otherwise. A unit without a header yet has no mistake.
///
/// # Errors
/// A sentence that says what is wrong.
pub(crate) fn check_header(unit: &Unit) -> Result<(), String> {
    let (Some(_), Some(path)) = (&unit.encrypt, unit.medium.path()) else { return Ok(()) };
    // That a medium cannot be opened is a mistake of its own.
    let Ok(mut io) = FileIo::open(path, false) else { return Ok(()) };
    let Ok(len) = io.len() else { return Ok(()) };
    let wrong = |why: String| Err(format!("{}: {}: {why}", unit.label, path.display()));
    match Header::load(&mut io, len) {
        Ok(header) if header.sector_len().bytes() > unit.block_size.bytes() => {
            wrong(wanted_block_length(header.sector_len()))
        }
        Ok(header) => header.expect_keyslot().or_else(|why| wrong(why.to_string())),
        Err(Error::Luks(LuksError::NotLuks | LuksError::Unfinished)) => Ok(()),
        Err(Error::Luks(why)) => wrong(why.to_string()),
        Err(Error::Io(why)) => wrong(os_error(&why)),
    }
}

/// Checks the headers of encrypted units as far as that needs no secret: a start would refuse the units
/// otherwise. A header that does not answer is a mistake too.
pub fn check_headers(units: &[Unit]) -> Vec<String> {
    let encrypted = units.iter().filter(|unit| unit.encrypt.is_some());
    let units: Vec<(&Unit, &PathBuf)> =
        encrypted.filter_map(|unit| Some((unit, unit.medium.path()?))).collect();
    let checks = units.iter().map(|(unit, path)| {
        let unit = (*unit).clone();
        (Place::of(path), move || check_header(&unit).err())
    });
    let found = answers::of_or_late(checks, Wait::Each(ANSWER_MAX), |_, late| drop(late));
    let found = units.into_iter().zip(found).map(|((unit, path), found)| {
        found.unwrap_or_else(|| Some(format!("{}: {} does not answer", unit.label, path.display())))
    });
    found.flatten().collect()
}

/// Reads the secret of an image from a file that only its owner can read: all bytes, as `cryptsetup
/// --key-file` does.
///
/// # Errors
/// A fragment that describes the mistake.
pub fn secret_of(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    secret::key_file(path)
}

/// Returns a sentence about a header whose copies are not both intact.
pub const fn describe_copies(copies: Copies) -> Option<&'static str> {
    match copies {
        Copies::Intact => None,
        Copies::PrimaryDamaged => Some("the primary LUKS2 header is damaged, and the backup header was used"),
        Copies::SecondaryDamaged => Some("the backup LUKS2 header is damaged"),
        Copies::Differ => {
            Some("the two LUKS2 headers differ, as after an interrupted change; the newer one was used")
        }
    }
}

/// Formats a blank file or block device as a LUKS2 image, also after an interrupted call.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn format_file(path: &Path, key_file: &Path, sector_len: DataUnit) -> Result<(), String> {
    let image = ImageFile::new(path, secret_of(key_file)?);
    let io = locked(path)?;
    if !is_formattable(path).map_err(|error| image.inaccessible(&error))? {
        let path = path.display();
        return Err(match image.version() {
            Ok(Some(_)) => format!("{path} holds data: it is a LUKS2 image already"),
            _ => format!("{path} holds data; only a blank file or device is formatted"),
        });
    }
    image.format(sector_len)?;
    drop(io);
    Ok(())
}

/// Reads the header of a file or block device, without any secret.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn header_of(path: &Path) -> Result<Header, String> {
    let image = ImageFile::new(path, Zeroizing::default());
    let mut io = FileIo::open(path, false).map_err(|error| image.inaccessible(&error))?;
    let len = io.len().map_err(|error| image.inaccessible(&error))?;
    Ok(Header::load(&mut io, len).map_err(|why| image.described(why))?)
}

/// Opens a file or device that no other targe uses, and keeps others from using it until it is closed.
fn locked(path: &Path) -> Result<FileIo, String> {
    let name = path.display();
    let cannot = |error: io::Error| format!("cannot open {name}: {}", os_error(&error));
    let io = FileIo::open(path, true).map_err(cannot)?;
    match rustix::fs::flock(&io.0, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(io),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(format!("{name} is in use by another process")),
        Err(errno) => Err(cannot(errno.into())),
    }
}

/// Returns whether the file or device begins like a LUKS2 image. One that cannot be read does not.
pub(crate) fn is_image(path: &Path) -> bool {
    let mut begin = [0; 6];
    let read = File::open(path).and_then(|mut file| io::Read::read_exact(&mut file, &mut begin));
    read.is_ok() && begin == *b"LUKS\xba\xbe"
}

/// Returns whether the file or device holds only zeros, or in addition a part of a header whose writing was
/// interrupted.
pub(crate) fn is_formattable(path: &Path) -> io::Result<bool> {
    let mut io = FileIo::open(path, false)?;
    Ok(BlankScan::of(&mut io)?.read(u64::MAX)? == Blankness::Blank)
}

/// Returns a fresh random key.
pub(crate) fn fresh_key() -> io::Result<MediaKey> {
    let mut halves = Zeroizing::new([[0; 32]; 2]);
    random(halves.as_flattened_mut())?;
    Ok(MediaKey::new(*halves))
}

fn no_random(error: &io::Error) -> String {
    format!("cannot get random bytes for a key: {}", os_error(error))
}

/// Fills `bytes` with random bytes of the operating system.
///
/// # Errors
/// The error of the system.
pub fn random(bytes: &mut [u8]) -> io::Result<()> {
    crate::random::fill(bytes)
}
