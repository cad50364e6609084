//! Opens media: creates, locks, sizes and measures them, and reports clearly why it could not.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use drivers::files::{Errno, IoFile};
use rustix::fs::{
    FallocateFlags, FileType, FlockOperation, Mode, OFlags, fallocate, flock, fsync, ftruncate, open, stat,
};

use self::undo::Undo;
use crate::geometry::{self, Geometry};

mod creation;
pub mod handed_over;
pub mod undo;

/// A regular file to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSpec {
    /// The path of the file.
    pub path: PathBuf,
    /// The size in bytes. A file that does not exist is created with this size; a smaller one is extended to
    /// it. If it is absent, the file must exist.
    pub size: Option<u64>,
    /// Whether the storage is reserved.
    pub allocation: Allocation,
    /// Whether the file is never written.
    pub read_only: bool,
    /// Whether to bypass the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Whether a write may be acknowledged before it is durable (write cache).
    pub write_cache: bool,
}

/// How much storage a file occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// Only the written ranges; the rest are holes.
    #[default]
    Sparse,
    /// The whole length, from the start and permanently.
    Full,
}

/// A block device to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSpec {
    /// The path of the device.
    pub path: PathBuf,
    /// Whether the device is never written.
    pub read_only: bool,
    /// Whether to bypass the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Whether a write may be acknowledged before it is durable (write cache).
    pub write_cache: bool,
}

/// Checks that the file system has space for the storage that a file of `len` bytes still lacks.
///
/// # Errors
/// `ENOSPC` if it has not enough, or the error of the system.
pub fn expect_room(file: &File, len: u64) -> io::Result<()> {
    Ok(geometry::expect_room(file, len)?)
}

/// A medium that is open, locked and measured. It can be sent to the thread that will serve it.
#[derive(Debug)]
pub struct Opened {
    pub(crate) file: IoFile,
    pub(crate) kind: Kind,
    pub(crate) layout: Geometry,
    pub(crate) size: u64,
    /// The storage of a file, and what its file system has left, in bytes.
    pub(crate) space: Option<(u64, u64)>,
    pub(crate) identity: FileIdentity,
    pub(crate) allocation: Allocation,
    pub(crate) read_only: bool,
    pub(crate) write_cache: bool,
    pub(crate) undo: Option<Undo>,
    pub(crate) lost_writes: Option<LostWrites>,
    /// Another open file description of a medium that is written, see [`crate::store`].
    pub(crate) verifier: Option<IoFile>,
}

/// Writes to a medium are lost that were acknowledged, or may have been. The system reports that once, so
/// the process that receives the report keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostWrites {
    /// The system reported it when the medium was opened.
    Reported(Errno),
    /// The caller knows it from an earlier process.
    Known,
}

impl Opened {
    /// Returns the means to undo that the file was created or extended, if it was.
    pub const fn take_undo(&mut self) -> Option<Undo> {
        self.undo.take()
    }

    /// Returns whether the medium was opened for reading only.
    pub const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns how many bytes the file or device has.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Returns the identity of the file or device.
    pub const fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Returns whether writes to the medium are lost.
    pub const fn lost_writes(&self) -> Option<LostWrites> {
        self.lost_writes
    }

    /// Records that writes to the medium were lost in an earlier process: every flush fails.
    pub fn set_lost_writes(&mut self) {
        self.lost_writes.get_or_insert(LostWrites::Known);
    }

    /// Forgets a loss that the operator has accepted, but not what the system reported at the opening.
    pub fn accept_lost_writes(&mut self) {
        self.lost_writes = self.lost_writes.filter(|lost| *lost != LostWrites::Known);
    }

    /// Returns another descriptor of the open medium, which holds its lock too.
    ///
    /// # Errors
    /// The error of the system.
    pub fn duplicate(&self) -> io::Result<File> {
        self.file.file().try_clone()
    }
}

/// The identity of the file or device that a path leads to. Equal identities are one medium, whatever the
/// paths are. If another file is renamed over a file, the path has a new identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileIdentity {
    /// A file, by its file system and inode.
    File(u64, u64),
    /// A device, by its number.
    Block(u64),
}

impl FileIdentity {
    /// Returns the identity of the file or device that `path` leads to now, and its length in bytes if it is
    /// known without opening the medium.
    ///
    /// # Errors
    /// The error of the system.
    pub fn of_path(path: &Path) -> io::Result<(Self, Option<u64>)> {
        let facts = path.metadata()?;
        let identity = Self::of(&facts);
        let len = match identity {
            Self::File(..) => Some(facts.len()),
            Self::Block(device) => geometry::device_len(device),
        };
        Ok((identity, len))
    }

    /// Returns the identity of an open file or device.
    ///
    /// # Errors
    /// The error of the system.
    pub fn of_file(file: &File) -> io::Result<Self> {
        Ok(Self::of(&file.metadata()?))
    }

    fn of(facts: &std::fs::Metadata) -> Self {
        if facts.file_type().is_block_device() {
            Self::Block(facts.rdev())
        } else {
            Self::File(facts.dev(), facts.ino())
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Block,
}

/// A medium cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The medium cannot be opened.
    #[error("cannot open {path}")]
    Open {
        /// The medium.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// There is no such file, and no size to create it with.
    #[error("{path} does not exist, and no size was given to create it")]
    Missing {
        /// The medium.
        path: PathBuf,
    },
    /// Another process uses the medium.
    #[error("{path} is in use by another process")]
    InUse {
        /// The medium.
        path: PathBuf,
    },
    /// The medium cannot be locked.
    #[error("cannot lock {path}")]
    Lock {
        /// The medium.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The path leads to another kind of file.
    #[error("{path} is not a {expected}")]
    WrongKind {
        /// The medium.
        path: PathBuf,
        /// The kind that is required.
        expected: &'static str,
    },
    /// The medium is larger than the size given; making it smaller would lose data.
    #[error("{path} has {have} bytes, more than the {want} that were requested; it is not truncated")]
    Larger {
        /// The medium.
        path: PathBuf,
        /// Its size.
        have: u64,
        /// The size given.
        want: u64,
    },
    /// The medium is smaller than a single sector.
    #[error("{path} is empty, and no size was given")]
    Empty {
        /// The medium.
        path: PathBuf,
    },
    /// The medium cannot get the size given, or the storage for it.
    #[error("cannot extend {path} to {size} bytes")]
    Size {
        /// The medium.
        path: PathBuf,
        /// The size given.
        size: u64,
        /// The error of the system.
        source: io::Error,
    },
    /// The medium that another process serves, and this one is to serve on, has another size.
    #[error("{path} has {have} bytes, and not the {want} that were requested; it is served as it is")]
    OtherSize {
        /// The medium.
        path: PathBuf,
        /// Its size.
        have: u64,
        /// The size given.
        want: u64,
    },
    /// The file system does not support bypassing the page cache, or not for this file.
    #[error("{path} cannot be opened with O_DIRECT")]
    NoDirect {
        /// The medium.
        path: PathBuf,
    },
    /// The system does not report the properties of the medium.
    #[error("cannot query {path}")]
    Query {
        /// The medium.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl FileSpec {
    /// Opens the file; creates it if necessary, locks it and sets its size.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open(&self) -> Result<Opened, OpenError> {
        self.open_or_take(&mut handed_over::HandedOverFiles::default())
    }

    /// Does the same, but takes the file from `handed_over` if the path leads to one of these. The other
    /// process still serves that file, so its size and its storage stay as they are.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open_or_take(&self, handed_over: &mut handed_over::HandedOverFiles) -> Result<Opened, OpenError> {
        let path = &self.path;
        let flags = access(self.read_only, self.direct);
        expect_kind(path, FileType::RegularFile, "regular file")?;
        if let Some(file) = handed_over.take(path) {
            return self.take(file);
        }
        let (file, created) = match open_with(path, flags, self.direct) {
            Err(OpenError::Missing { .. }) if self.size.is_some() && !self.read_only => {
                (open_with(path, flags | OFlags::CREATE | OFlags::EXCL, self.direct)?, true)
            }
            opened => (opened?, false),
        };
        let failed = |source| OpenError::Query { path: path.to_owned(), source };
        let creation = created.then(|| Undo::creation(path)).transpose().map_err(failed)?;
        if let Err(error) = lock(&file, path, self.read_only) {
            // The process that holds the lock uses the file, although this process created it.
            if let Some(undo) = creation.filter(|_| !matches!(error, OpenError::InUse { .. })) {
                let _ = undo.undo();
            }
            return Err(error);
        }
        // Without the lock, another process could still change the length.
        let undo = creation.map_or_else(|| Undo::growth(path, &file), Ok).map_err(failed)?;
        match self.fit(file, created) {
            Ok(mut opened) => {
                opened.undo = Some(undo).filter(|undo| !undo.has_len(opened.size));
                Ok(opened)
            }
            Err(error) => {
                let untouched = matches!(error, OpenError::Larger { .. } | OpenError::Empty { .. });
                if created || !(untouched || self.read_only) {
                    // The error reported below is enough for the operator to find a file that is left over.
                    let _ = undo.undo();
                }
                Err(error)
            }
        }
    }

    /// Takes a file that another process has opened and locked, and still serves, whatever the path leads to.
    /// Its size and its storage stay as they are.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn take(&self, file: File) -> Result<Opened, OpenError> {
        lock(&file, &self.path, self.read_only)?;
        let size = self.expect_size(&file)?;
        self.measure(file, size)
    }

    /// Opens a file that this process serves once more, by a descriptor that holds its lock
    /// ([`Opened::duplicate`]): the lock would refuse any other descriptor. The lock, the size and the
    /// storage stay as they are.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open_again(&self, locked: File) -> Result<Opened, OpenError> {
        let size = self.expect_size(&locked)?;
        self.measure(locked, size)
    }

    /// Sets the size of an open, locked file and measures it.
    fn fit(&self, file: File, is_new: bool) -> Result<Opened, OpenError> {
        let size = self.give_size(&file)?;
        let opened = self.measure(file, size)?;
        // A later flush implies a durable size. Nothing can fail after it and hide what it reports.
        let synced = if self.read_only { Ok(()) } else { fsync(opened.file.file()) };
        let lost_writes = match synced {
            Err(errno) if is_new => {
                return Err(OpenError::Size { path: self.path.clone(), size, source: errno.into() });
            }
            Err(errno) => Some(LostWrites::Reported(errno)),
            Ok(()) => None,
        };
        Ok(Opened { lost_writes, ..opened })
    }

    fn measure(&self, file: File, size: u64) -> Result<Opened, OpenError> {
        let path = &self.path;
        if self.direct && !geometry::can_be_direct(&file).map_err(query(path))? {
            return Err(OpenError::NoDirect { path: path.clone() });
        }
        let layout = geometry::of_file(&file, self.direct).map_err(query(path))?;
        let identity = identity(&file, path)?;
        Ok(Opened {
            identity,
            space: geometry::space(&file).ok(),
            verifier: (!self.read_only && !layout.reports_in_writes)
                .then(|| described_again(&file))
                .flatten(),
            file: IoFile::new(file, self.direct),
            kind: Kind::File,
            layout,
            size,
            allocation: self.allocation,
            read_only: self.read_only,
            write_cache: self.write_cache,
            undo: None,
            lost_writes: None,
        })
    }

    /// Returns the size of a file that is served already, if it is the requested one.
    ///
    /// Nothing is made durable: `fsync` would take the report of a failed write-back from the open file
    /// description, which the store that serves the file uses too, and a later flush would succeed although
    /// blocks are lost.
    fn expect_size(&self, file: &File) -> Result<u64, OpenError> {
        let path = &self.path;
        let have = geometry::size(file).map_err(query(path))?;
        let want = self.size.unwrap_or(have);
        if want != have {
            return Err(OpenError::OtherSize { path: path.clone(), have, want });
        }
        if have == 0 {
            return Err(OpenError::Empty { path: path.clone() });
        }
        Ok(have)
    }

    fn give_size(&self, file: &File) -> Result<u64, OpenError> {
        let path = &self.path;
        let have = geometry::size(file).map_err(query(path))?;
        let want = self.size.unwrap_or(have);
        if want < have {
            return Err(OpenError::Larger { path: path.clone(), have, want });
        }
        if want == 0 || (self.read_only && want != have) {
            return Err(OpenError::Empty { path: path.clone() });
        }
        if self.read_only {
            return Ok(have);
        }
        let failed = |errno: Errno| OpenError::Size { path: path.clone(), size: want, source: errno.into() };
        if self.allocation == Allocation::Full {
            // A failing `fallocate` would occupy space for a while that other files may need.
            geometry::expect_room(file, want).map_err(failed)?;
            fallocate(file, FallocateFlags::empty(), 0, want).map_err(failed)?;
        }
        if want > have {
            ftruncate(file, want).map_err(failed)?;
        }
        Ok(want)
    }
}

impl BlockSpec {
    /// Opens the device and claims it.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open(&self) -> Result<Opened, OpenError> {
        self.open_or_take(&mut handed_over::HandedOverFiles::default())
    }

    /// Does the same, but takes the device from `handed_over` if the path leads to one of these.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open_or_take(&self, handed_over: &mut handed_over::HandedOverFiles) -> Result<Opened, OpenError> {
        let path = &self.path;
        // For a block device, EXCL claims it exclusively: it fails if the device is mounted or claimed.
        let claim = if self.read_only { OFlags::empty() } else { OFlags::EXCL };
        expect_kind(path, FileType::BlockDevice, "block device")?;
        let flags = access(self.read_only, self.direct) | claim;
        let file = handed_over.take(path).map_or_else(|| open_with(path, flags, self.direct), Ok)?;
        lock(&file, path, self.read_only)?;
        let size = geometry::size(&file).map_err(query(path))?;
        let layout = geometry::of_block_device(&file, self.direct).map_err(query(path))?;
        let identity = identity(&file, path)?;
        if size < u64::from(layout.logical_block_len) {
            return Err(OpenError::Empty { path: path.clone() });
        }
        Ok(Opened {
            identity,
            space: None,
            verifier: (!self.read_only).then(|| described_again(&file)).flatten(),
            file: IoFile::new(file, self.direct),
            kind: Kind::Block,
            layout,
            size,
            allocation: Allocation::Sparse,
            read_only: self.read_only,
            write_cache: self.write_cache,
            undo: None,
            lost_writes: None,
        })
    }
}

/// Opens the file or device of a descriptor once more, if the system allows that: a clone of the descriptor
/// would share its reports of failed write-backs.
fn described_again(file: &File) -> Option<IoFile> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Some(IoFile::new(File::open(path).ok()?, false))
}

/// Rejects other kinds of files before opening them: opening a pipe or a tape has side effects, and may hang.
fn expect_kind(path: &Path, kind: FileType, expected: &'static str) -> Result<(), OpenError> {
    match stat(path) {
        Ok(facts) if FileType::from_raw_mode(facts.st_mode) != kind => {
            Err(OpenError::WrongKind { path: path.to_owned(), expected })
        }
        // Opening it will report the error, or create the file.
        _ => Ok(()),
    }
}

fn access(read_only: bool, direct: bool) -> OFlags {
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let direct = if direct { OFlags::DIRECT } else { OFlags::empty() };
    access | direct | OFlags::CLOEXEC | OFlags::NOCTTY
}

fn open_with(path: &Path, flags: OFlags, direct: bool) -> Result<File, OpenError> {
    let owned = path.to_owned();
    let mut opened = open(path, flags, Mode::RUSR | Mode::WUSR);
    if matches!(opened, Err(Errno::BUSY)) {
        // A reactor may just have dropped the device.
        drivers::files::await_closes(LOCK_PAUSE * LOCK_TRIES);
        opened = open(path, flags, Mode::RUSR | Mode::WUSR);
    }
    match opened {
        Ok(file) => Ok(File::from(file)),
        Err(Errno::INVAL) if direct => Err(OpenError::NoDirect { path: owned }),
        Err(Errno::BUSY) => Err(OpenError::InUse { path: owned }),
        Err(Errno::NOENT)
            if path.parent().is_none_or(|parent| parent.as_os_str().is_empty() || parent.exists()) =>
        {
            Err(OpenError::Missing { path: owned })
        }
        Err(errno) => Err(OpenError::Open { path: owned, source: errno.into() }),
    }
}

/// A locked medium is tried again for a second. The kernel closes the files in the ring of a killed daemon a
/// moment after the daemon has ended, and a daemon that is restarted at once shall not fail with
/// [`OpenError::InUse`] because of that.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Locks the medium against other daemons: shared for reading, exclusive for writing.
pub(crate) fn lock(file: &File, path: &Path, read_only: bool) -> Result<(), OpenError> {
    let operation = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    let mut locked = flock(file, operation);
    for _ in 0..LOCK_TRIES {
        if locked != Err(Errno::WOULDBLOCK) {
            break;
        }
        std::thread::sleep(LOCK_PAUSE);
        locked = flock(file, operation);
    }
    match locked {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(OpenError::InUse { path: path.to_owned() }),
        Err(errno) => Err(OpenError::Lock { path: path.to_owned(), source: errno.into() }),
    }
}

pub(crate) fn identity(file: &File, path: &Path) -> Result<FileIdentity, OpenError> {
    let facts = file.metadata().map_err(|source| OpenError::Query { path: path.to_owned(), source })?;
    Ok(FileIdentity::of(&facts))
}

fn query(path: &Path) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::Query { path: path.to_owned(), source: errno.into() }
}
