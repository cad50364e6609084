//! The folder of a tape library: the file `library`, which tells where each cartridge is, and the folders of
//! the cartridges.
//!
//! The file is replaced as a whole, so it tells one state or the next one, whatever interrupts the
//! replacement, and although cartridges may have filled the file system ([`crate::exchanged_file`]).
//! Everything here blocks.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cartridge::library::file::{FILE_LEN_MAX, LibraryFileError};
use cartridge::library::{Counts, Element, Library};
use drivers::files::ReleasedFile;

use crate::cartridge_folder::{CartridgeError, CartridgeFolder};
use crate::exchanged_file;
use crate::open::{OpenError, lock};

/// The file of the library.
const LIBRARY: &str = "library";
/// The file that a process locks while it uses the library.
const LOCK: &str = "lock";

/// The folder of a library, which no other process uses.
#[derive(Debug)]
pub struct LibraryFolder {
    path: PathBuf,
    lock: ReleasedFile,
}

/// A library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LibraryFolderError {
    /// A file or folder cannot be used.
    #[error("cannot use {path}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The folder has no file of a library.
    #[error("{path} holds no library: it has no file \"library\" (targe changer create makes a library)")]
    NoLibrary {
        /// The folder.
        path: PathBuf,
    },
    /// The folder holds something already.
    #[error("{path} exists and is not empty")]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// Another process uses the library.
    #[error("the library {path} is in use by another process")]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The folder in which the new one is to be made does not exist.
    #[error("{}: the folder {} does not exist; make it first: mkdir -p {}", path.display(), parent.display(), parent.display())]
    NoParent {
        /// The folder of the library.
        path: PathBuf,
        /// The folder that does not exist.
        parent: PathBuf,
    },
    /// The library cannot be locked.
    #[error(transparent)]
    Lock(OpenError),
    /// The file is none of a library.
    #[error("{path} {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: LibraryFileError,
    },
}

impl LibraryFolder {
    /// Makes the folder of a new library, durably. The folder does not exist, or is empty. Only the owner can
    /// access it.
    ///
    /// # Errors
    /// [`LibraryFolderError`]
    pub fn create(path: &Path, file: &[u8]) -> Result<Self, LibraryFolderError> {
        let failed = io_failed(path);
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(LibraryFolderError::NoParent {
                    path: path.to_owned(),
                    parent: parent.to_owned(),
                });
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if std::fs::read_dir(path).map_err(&failed)?.next().is_some() {
                    return Err(LibraryFolderError::NotEmpty { path: path.to_owned() });
                }
            }
            made => made.map_err(&failed)?,
        }
        let lock = lock_file(path)?;
        lock.lock().map_err(&failed)?;
        let folder = Self { path: path.to_owned(), lock: lock.into() };
        folder.replace(file).map_err(&failed)?;
        folder.synchronize().map_err(&failed)?;
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
        Ok(folder)
    }

    /// Opens the folder of a library for one process. Waits a moment for a process that is ending.
    ///
    /// # Errors
    /// [`LibraryFolderError`]
    pub fn open(path: &Path) -> Result<Self, LibraryFolderError> {
        Self::open_with(path, |file| match lock(file, path, false) {
            Err(OpenError::InUse { path }) => Err(LibraryFolderError::InUse { path }),
            locked => locked.map_err(LibraryFolderError::Lock),
        })
    }

    /// Opens the folder of a library for one process, if no other one uses it now.
    ///
    /// # Errors
    /// [`LibraryFolderError`]
    pub fn open_at_once(path: &Path) -> Result<Self, LibraryFolderError> {
        Self::open_with(path, |file| {
            file.try_lock().map_err(|error| match error {
                TryLockError::WouldBlock => LibraryFolderError::InUse { path: path.to_owned() },
                TryLockError::Error(source) => io_failed(path)(source),
            })
        })
    }

    /// Takes the folder of a library that another process uses, by a descriptor of its lock. Reserves no
    /// storage ([`Self::reserve`]): the other process can still change the library.
    pub fn take(path: &Path, lock: File) -> Self {
        Self { path: path.to_owned(), lock: lock.into() }
    }

    /// Reserves the storage that changes of the library need, so that a full file system does not prevent
    /// them. An earlier release that served the library may have reserved none.
    pub fn reserve(&self) {
        // Without the library, its changes fail anyway.
        if let Ok(library) = self.library() {
            exchanged_file::reserve(&self.path.join(LIBRARY), longest(&library));
        }
    }

    /// Returns another descriptor of the lock.
    ///
    /// # Errors
    /// The error of the system.
    pub fn duplicate_lock(&self) -> io::Result<File> {
        self.lock.try_clone()
    }

    fn open_with(
        path: &Path,
        lock: impl FnOnce(&File) -> Result<(), LibraryFolderError>,
    ) -> Result<Self, LibraryFolderError> {
        // A folder without a library gets no lock file.
        let library = Self::read(path)?;
        let file = lock_file(path)?;
        lock(&file)?;
        let folder = Self { path: path.to_owned(), lock: file.into() };
        // The name of the file that an earlier process, which was killed, has put there counts from here on.
        folder.synchronize().map_err(io_failed(path))?;
        exchanged_file::reserve(&path.join(LIBRARY), longest(&library));
        Ok(folder)
    }

    /// Reads the file of a library without locking it.
    ///
    /// # Errors
    /// [`LibraryFolderError`]
    pub fn read(path: &Path) -> Result<Library, LibraryFolderError> {
        let name = path.join(LIBRARY);
        let file = match File::open(&name) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound && path.is_dir() => {
                return Err(LibraryFolderError::NoLibrary { path: path.to_owned() });
            }
            Err(error) => return Err(io_failed(&name)(error)),
        };
        let mut bytes = Vec::new();
        let limit = u64::try_from(FILE_LEN_MAX).unwrap_or(u64::MAX).saturating_add(1);
        file.take(limit).read_to_end(&mut bytes).map_err(io_failed(&name))?;
        Library::decode(&bytes).map_err(|why| LibraryFolderError::File { path: name, why })
    }

    /// Reads the file of the library.
    ///
    /// # Errors
    /// [`LibraryFolderError`]
    pub fn library(&self) -> Result<Library, LibraryFolderError> {
        Self::read(&self.path)
    }

    /// Replaces the file of the library. After an error the file is the former one. After this,
    /// [`Self::synchronize`] makes the replacement survive a loss of power.
    ///
    /// # Errors
    /// The error of the system.
    pub fn replace(&self, file: &[u8]) -> io::Result<()> {
        let name = self.path.join(LIBRARY);
        let reserve = Library::decode(file).map_or(0, |library| longest(&library));
        exchanged_file::write_next(&name, file, reserve)?;
        exchanged_file::exchange(&name, reserve)
    }

    /// Makes the names in the folder durable.
    ///
    /// # Errors
    /// The error of the system.
    pub fn synchronize(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Returns the folder of a cartridge.
    pub fn cartridge(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the names of the cartridges that cannot be used, with the reasons. One in a drive must be free
    /// for this process.
    pub fn unusable(&self, library: &Library) -> Vec<(String, CartridgeError)> {
        let problem = |held: &cartridge::library::StoredCartridge| {
            let path = self.cartridge(&held.name);
            let checked = match held.element {
                Element::Drive(_) => CartridgeFolder::open(&path, false).map(drop),
                Element::Mail(_) | Element::Slot(_) => CartridgeFolder::check(&path, false),
            };
            checked.err().map(|error| (held.name.clone(), error))
        };
        library.cartridges().iter().filter_map(problem).collect()
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns how long the file of a library can become when every element has a cartridge.
fn longest(library: &Library) -> u64 {
    /// More than the lines before those of cartridges, and the one behind them.
    const OTHER_LINES_LEN: u64 = 512;
    /// More than the line of a cartridge.
    const LINE_LEN: u64 = 150;
    let Counts { drives, slots, mail_slots } = library.counts();
    let elements = [drives, slots, mail_slots].into_iter().map(u64::from).sum::<u64>();
    OTHER_LINES_LEN + elements * LINE_LEN
}

fn io_failed(path: &Path) -> impl Fn(io::Error) -> LibraryFolderError {
    move |source| LibraryFolderError::Io { path: path.to_owned(), source }
}

fn lock_file(path: &Path) -> Result<File, LibraryFolderError> {
    let name = path.join(LOCK);
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&name);
    file.map_err(io_failed(&name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use cartridge::profile::Profile;

    use super::*;

    /// A path that is removed when this is dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("targe-library-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn library() -> Library {
        let counts = Counts { drives: 1, slots: 3, mail_slots: 0 };
        Library::new("LIB00001".to_owned(), Profile::Lto8, counts).unwrap()
    }

    #[test]
    fn one_process_uses_a_library_and_others_can_read_it() {
        let scratch = Scratch::new("lock");
        let mut library = library();
        let folder = LibraryFolder::create(&scratch.0, &library.encode()).unwrap();
        assert!(matches!(LibraryFolder::open(&scratch.0), Err(LibraryFolderError::InUse { .. })));
        assert!(matches!(LibraryFolder::open_at_once(&scratch.0), Err(LibraryFolderError::InUse { .. })));
        library.put(Element::Slot(1), "A1", "A1").unwrap();
        folder.replace(&library.encode()).unwrap();
        assert_eq!(LibraryFolder::read(&scratch.0).unwrap(), library);
        drop(folder);
        assert_eq!(LibraryFolder::open(&scratch.0).unwrap().library().unwrap(), library);
        let again = LibraryFolder::create(&scratch.0, &library.encode());
        assert!(matches!(again, Err(LibraryFolderError::NotEmpty { .. })));
    }

    #[test]
    fn only_the_owner_can_access_a_library() {
        let scratch = Scratch::new("mode");
        drop(LibraryFolder::create(&scratch.0, &library().encode()).unwrap());
        assert_eq!(scratch.0.metadata().unwrap().mode() & 0o777, 0o700);
        for entry in std::fs::read_dir(&scratch.0).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().mode() & 0o777, 0o600, "{}", entry.path().display());
        }
    }

    #[test]
    fn a_half_written_file_takes_no_place() {
        let scratch = Scratch::new("half");
        let library = library();
        drop(LibraryFolder::create(&scratch.0, &library.encode()).unwrap());
        std::fs::write(scratch.0.join("library.new"), "targe-lib").unwrap();
        let folder = LibraryFolder::open(&scratch.0).unwrap();
        assert_eq!(folder.library().unwrap(), library);
        folder.replace(&library.encode()).unwrap();
        assert_eq!(folder.library().unwrap(), library);
    }

    #[test]
    fn a_library_is_changed_without_new_storage() {
        let scratch = Scratch::new("storage");
        let counts = Counts { drives: 2, slots: 200, mail_slots: 4 };
        let mut library = Library::new("LIB00001".to_owned(), Profile::Lto8, counts).unwrap();
        std::fs::create_dir(&scratch.0).unwrap();
        // As an earlier release made it.
        std::fs::write(scratch.0.join(LIBRARY), library.encode()).unwrap();
        let folder = LibraryFolder::open(&scratch.0).unwrap();
        let storage = || -> u64 {
            std::fs::read_dir(&scratch.0)
                .unwrap()
                .map(|entry| entry.unwrap().metadata().unwrap().blocks())
                .sum()
        };
        let before = storage();
        for number in 1..=200_u16 {
            let name = format!("A{number:05}L8");
            library.put(Element::Slot(number), &name, &name).unwrap();
            folder.replace(&library.encode()).unwrap();
            assert_eq!((folder.library().unwrap(), storage()), (library.clone(), before), "{number}");
        }
    }

    #[test]
    fn what_is_no_library_is_refused_and_left_alone() {
        let scratch = Scratch::new("none");
        std::fs::create_dir(&scratch.0).unwrap();
        assert!(matches!(LibraryFolder::open(&scratch.0), Err(LibraryFolderError::NoLibrary { .. })));
        assert!(matches!(LibraryFolder::open(&scratch.0.join("x")), Err(LibraryFolderError::Io { .. })));
        std::fs::write(scratch.0.join(LIBRARY), vec![b'x'; FILE_LEN_MAX + 10]).unwrap();
        assert!(matches!(LibraryFolder::open(&scratch.0), Err(LibraryFolderError::File { .. })));
        assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 1);
    }

    #[test]
    fn cartridges_that_are_missing_are_named() {
        let scratch = Scratch::new("missing");
        let mut library = library();
        library.put(Element::Slot(1), "A1", "A1").unwrap();
        library.put(Element::Drive(1), "A2", "A2").unwrap();
        let folder = LibraryFolder::create(&scratch.0, &library.encode()).unwrap();
        std::fs::create_dir(folder.cartridge("A1")).unwrap();
        let unusable = folder.unusable(&library);
        let names: Vec<&str> = unusable.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["A2", "A1"]);
        assert!(unusable[1].1.to_string().contains("holds no cartridge"), "{unusable:?}");
    }
}
