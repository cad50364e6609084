//! LUKS2 images in files and block devices: opens and formats them, replaces their key, and converts images
//! of the former format.

pub mod convert;
pub(crate) mod former;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use backends::open::FileIdentity;
use rustix::fs::{FallocateFlags, FlockOperation};
use store::encrypt::{DataUnit, MediaKey, Replaced, Volume};
use store::luks2::{Copies, Error, Header, KdfCost, LuksError, MediumIo, NewHeader, Replacing, format};
use zeroize::Zeroizing;

use crate::config::secret;
use crate::os_error;

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

    fn is_device(&self) -> io::Result<bool> {
        Ok(self.0.metadata()?.file_type().is_block_device())
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

    /// Opens the volume of the image; `None` if there is no header. A damaged copy of the header is repaired,
    /// unless the image is only read.
    ///
    /// # Errors
    /// A fragment that describes the mistake.
    pub(crate) fn volume(&self, read_only: bool) -> Result<Option<Volume>, String> {
        let mut io = self.open(!read_only).map_err(|error| self.inaccessible(&error))?;
        let len = io.len().map_err(|error| self.inaccessible(&error))?;
        let mut header = match Header::load(&mut io, len) {
            Ok(header) => header,
            Err(Error::Luks(LuksError::NotLuks)) => return Ok(None),
            Err(why) => return Err(self.described(why)),
        };
        let volume = header.unlock(&mut io, &self.secret).map_err(|why| self.described(why))?;
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

    /// Returns the number of the version of the header; `None` if there is no header.
    ///
    /// # Errors
    /// A fragment that describes the mistake.
    pub(crate) fn version(&self) -> Result<Option<u64>, String> {
        let mut io = self.open(false).map_err(|error| self.inaccessible(&error))?;
        let len = io.len().map_err(|error| self.inaccessible(&error))?;
        match Header::load(&mut io, len) {
            Ok(header) => Ok(Some(header.version())),
            Err(Error::Luks(LuksError::NotLuks)) => Ok(None),
            Err(why) => Err(self.described(why)),
        }
    }

    /// Makes a header for a new key at the start of a blank file or device.
    ///
    /// # Errors
    /// A fragment that describes the mistake.
    pub(crate) fn format(&self, sector_len: DataUnit) -> Result<(), String> {
        let mut io = self.open(true).map_err(|error| self.inaccessible(&error))?;
        let len = io.len().map_err(|error| self.inaccessible(&error))?;
        let key = fresh_key().map_err(|error| no_random(&error))?;
        let new = self.new_header(&key, sector_len);
        format(&mut io, len, &new, &mut random).map(drop).map_err(|why| self.described(why))
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
                crate::error!("{path}: the key cannot be replaced: {}", self.described(why));
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
                let why = self.described(why);
                crate::error!("{path}: the key cannot be replaced: {why}; the old key stays in use");
                Replaced::Kept
            }
            Err(Replacing::Unknown(why)) => {
                crate::error!(
                    "{path}: the key was replaced, but perhaps not durably: {}; the disk is not served until targe is \
                     restarted",
                    self.described(why)
                );
                Replaced::Unknown
            }
        }
    }

    fn new_header<'a>(&'a self, key: &'a MediaKey, sector_len: DataUnit) -> NewHeader<'a> {
        NewHeader { key, sector_len, passphrase: &self.secret, cost: KdfCost::default() }
    }

    fn inaccessible(&self, error: &io::Error) -> String {
        format!("cannot access {}: {}", self.path.display(), os_error(error))
    }

    fn described(&self, why: Error<io::Error>) -> String {
        match why {
            Error::Luks(why) => format!("{}: {why}", self.path.display()),
            Error::Io(error) => self.inaccessible(&error),
        }
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

/// Formats a blank file or block device as a LUKS2 image.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn format_file(path: &Path, key_file: &Path, sector_len: DataUnit) -> Result<(), String> {
    let image = ImageFile::new(path, secret_of(key_file)?);
    let io = locked(path)?;
    let is_blank = is_blank(path).map_err(|error| image.inaccessible(&error))?;
    if !is_blank {
        return Err(format!("{} holds data; only a blank file or device is formatted", path.display()));
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
    Header::load(&mut io, len).map_err(|why| image.described(why))
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

/// Returns whether the file or device holds only zeros.
pub(crate) fn is_blank(path: &Path) -> io::Result<bool> {
    let FileIo(mut file) = FileIo::open(path, false)?;
    let end = io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
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
    // A request of up to 256 bytes is never filled partially (getrandom(2)).
    for piece in bytes.chunks_mut(256) {
        let fill = || rustix::rand::getrandom(&mut *piece, rustix::rand::GetRandomFlags::empty());
        let filled = rustix::io::retry_on_intr(fill)?;
        if filled != piece.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}
