//! Storage for records and secrets when the data of volumes have filled the file system of the pool.
//!
//! A node must lose and get a volume then, and volumes must be removed. So the pool keeps spare files with
//! reserved storage. A file that is written anew and finds the file system full is a spare file that gets its
//! contents and its name. The file that it replaces becomes a spare file in turn, and so does a secret that
//! ends. What frees storage restores the number of spare files and their storage.
//!
//! A spare file is empty: its storage is reserved after its end. Where the file system cannot reserve
//! storage, spare files still have the inodes.

use std::fs::{File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, OFlags, fallocate};

use crate::link_free;

/// How many spare files there are: enough for the two secrets and the record of five publications.
const FILES: usize = 16;
/// The storage of a spare file: a record with 128 publications is shorter.
const LEN: u64 = 64 << 10;
/// The least storage that is worth a spare file: most records and secrets are shorter.
const LEN_MIN: u64 = 4096;
/// The unit of the storage that a file has.
const BLOCK: u64 = 512;

/// The spare files of a pool.
#[derive(Debug)]
pub(crate) struct Spares {
    folder: PathBuf,
    /// Whether there are fewer than [`FILES`], or some have less storage than [`LEN`].
    is_short: AtomicBool,
}

impl Spares {
    /// Takes the spare files in a folder, and makes those that are missing if there is room.
    pub(crate) fn open(folder: PathBuf) -> Self {
        let spares = Self { folder, is_short: AtomicBool::new(true) };
        spares.stock();
        spares
    }

    /// Returns whether spare files are missing.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::SeqCst)
    }

    /// Makes the spare files that are missing, as long as there is room.
    pub(crate) fn stock(&self) {
        if self.is_short() {
            let stocked = (0..FILES).all(|number| reserve(&self.path(number)).is_ok());
            self.is_short.store(!stocked, Ordering::SeqCst);
        }
    }

    /// Makes a file that only its owner can read, in the place of one that a process before left. `fill`
    /// writes at most `len` bytes, and makes them durable. If the file system is full, the file is a spare
    /// file.
    ///
    /// # Errors
    /// The system's error; there is no file then.
    pub(crate) fn make(
        &self,
        path: &Path,
        len: usize,
        fill: impl Fn(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let made = match link_free::create_anew(path).and_then(|mut file| fill(&mut file)) {
            Err(error) if is_full(&error) => {
                let _ = link_free::remove(path);
                self.take(path, len).and_then(|mut file| fill(&mut file))
            }
            made => made,
        };
        made.inspect_err(|_| self.recycle(path))
    }

    /// Gives a spare file another name, and opens it for writing.
    fn take(&self, path: &Path, len: usize) -> io::Result<File> {
        self.is_short.store(true, Ordering::SeqCst);
        for spare in self.best_for(len) {
            match self.with_room(|| link_free::rename(&spare, path)) {
                // Another call has taken it.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    let file = link_free::open(path, OFlags::WRONLY)?;
                    file.set_permissions(Permissions::from_mode(0o600))?;
                    if file.metadata()?.len() > 0 {
                        empty(&file)?;
                    }
                    return Ok(file);
                }
            }
        }
        Err(ErrorKind::StorageFull.into())
    }

    /// Returns the spare files: first those with so much storage, beginning with the least.
    fn best_for(&self, len: usize) -> Vec<PathBuf> {
        let wanted = u64::try_from(len).unwrap_or(u64::MAX);
        let storage = |number| Some((storage(&link_free::stat(&self.path(number)).ok()?), self.path(number)));
        let mut found: Vec<(u64, PathBuf)> = (0..FILES).filter_map(storage).collect();
        found.sort_by_key(|(storage, _)| if *storage < wanted { u64::MAX - storage } else { *storage });
        found.into_iter().map(|(_, path)| path).collect()
    }

    /// Removes a file that nobody needs any more. It becomes a spare file, if one is missing.
    pub(crate) fn recycle(&self, path: &Path) {
        let emptied = || empty(&link_free::open(path, OFlags::WRONLY)?);
        if self.is_short() && emptied().is_ok() {
            let is_kept = (0..FILES).any(|number| link_free::rename_new(path, &self.path(number)).is_ok());
            if is_kept {
                return self.stock();
            }
        }
        // Otherwise the next start removes it.
        let _ = link_free::remove(path);
        self.stock();
    }

    /// Changes names in folders. A folder can need new storage for a name: if there is none, a spare file is
    /// removed.
    ///
    /// # Errors
    /// The error of the change.
    pub(crate) fn with_room(&self, change: impl Fn() -> io::Result<()>) -> io::Result<()> {
        match change() {
            Err(error) if is_full(&error) => {
                let freed = (0..FILES).any(|number| link_free::remove(&self.path(number)).is_ok());
                self.is_short.store(true, Ordering::SeqCst);
                if freed { change() } else { Err(error) }
            }
            changed => changed,
        }
    }

    fn path(&self, number: usize) -> PathBuf {
        self.folder.join(number.to_string())
    }
}

/// Returns whether a file system has no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Returns the bytes of storage that a file has.
fn storage(found: &rustix::fs::Stat) -> u64 {
    u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(BLOCK)
}

/// Makes a spare file with its storage, unless there is one. Its contents are not touched: another call may
/// have given it another name meanwhile.
fn reserve(path: &Path) -> io::Result<()> {
    if link_free::stat(path).is_ok_and(|found| found.st_size == 0 && storage(&found) >= LEN) {
        return Ok(());
    }
    let file = match link_free::create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            link_free::open(path, OFlags::WRONLY).or_else(|_| link_free::create_anew(path))?
        }
        made => made?,
    };
    reserve_in(&file, LEN)
}

/// Empties a file, and reserves storage for it: as much as it had, if there is no more.
fn empty(file: &File) -> io::Result<()> {
    let former = file.metadata()?.blocks().saturating_mul(BLOCK).max(LEN_MIN);
    file.set_len(0)?;
    reserve_in(file, LEN).or_else(|_| reserve_in(file, former)).or_else(|_| reserve_in(file, LEN_MIN))
}

fn reserve_in(file: &File, len: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, len).map_err(io::Error::from) {
        // Where storage cannot be reserved, there may be some when it is needed.
        Err(error) if !is_full(&error) => Ok(()),
        reserved => reserved,
    }
}
