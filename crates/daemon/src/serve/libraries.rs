//! The folder of a tape library that is served, and the thread that changes it: no reactor waits for the
//! disk.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};

use backends::cartridge_folder::CartridgeFolder;
use backends::library_folder::LibraryFolder;
use device::library::{ChangeFailure, LibraryChange};
use scsi::sense::{Asc, Sense, SenseKey};

use crate::library::with_cause;
use crate::os_error;

/// The sense data of a change whose files could not be opened or written.
pub(super) const FAILED: Sense = Sense::new(SenseKey::MEDIUM_ERROR, Asc::MEDIA_LOAD_OR_EJECT_FAILED);

/// A library that was opened, and can be moved to the reactor that will serve it.
#[derive(Debug)]
pub(super) struct OpenLibrary {
    folder: LibraryFolder,
    /// The path of its folder without links.
    pub(super) canonical: PathBuf,
    /// Its file.
    pub(super) file: Vec<u8>,
    /// The names of cartridges that cannot be used, with the reasons.
    pub(super) unusable: Vec<(String, String)>,
}

impl OpenLibrary {
    /// Opens and locks the folder of a library. Open it before its drives.
    ///
    /// # Errors
    /// A sentence that says why it cannot be served.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let folder = LibraryFolder::open(path).map_err(|error| with_cause(&error))?;
        let library = folder.library().map_err(|error| with_cause(&error))?;
        let unusable = folder.unusable(&library).into_iter();
        let unusable = unusable.map(|(name, error)| (name, with_cause(&error))).collect();
        let canonical =
            path.canonicalize().map_err(|error| format!("{}: {}", path.display(), os_error(&error)))?;
        Ok(Self { file: library.encode(), folder, canonical, unusable })
    }

    /// Takes a library that another process serves, by a descriptor of its lock. That process can change it
    /// until it has given up its sessions ([`Self::refresh`]). What cannot be used comes with them.
    ///
    /// # Errors
    /// A sentence that says why it cannot be served.
    pub(super) fn take(path: &Path, lock: File) -> Result<Self, String> {
        let canonical =
            path.canonicalize().map_err(|error| format!("{}: {}", path.display(), os_error(&error)))?;
        let folder = LibraryFolder::take(path, lock);
        Ok(Self { folder, canonical, file: Vec::new(), unusable: Vec::new() })
    }

    /// Reads the file of the library.
    ///
    /// # Errors
    /// A sentence that says why it cannot be read.
    pub(super) fn refresh(&mut self) -> Result<(), String> {
        self.file = self.folder.library().map_err(|error| with_cause(&error))?.encode();
        Ok(())
    }

    /// Returns another descriptor of the lock of the library.
    pub(super) fn duplicate_lock(&self) -> io::Result<File> {
        self.folder.duplicate_lock()
    }

    /// Returns the path of the folder.
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Starts the thread that changes the library, and tells `done` of each change. It ends when the sender
    /// is dropped.
    pub(super) fn start(
        self,
        done: impl Fn(ChangeOutcome) + Send + 'static,
    ) -> io::Result<Sender<LibraryChange>> {
        let (sender, changes) = channel::<LibraryChange>();
        let Self { folder, .. } = self;
        std::thread::Builder::new()
            .name("library".to_owned())
            .spawn(move || changes.iter().for_each(|change| done(make(&folder, &change))))
            .map(drop)?;
        Ok(sender)
    }
}

/// Opens the cartridge in a drive of a library. One that cannot be opened was found when the library was
/// opened, and leaves the drive empty.
///
/// # Errors
/// A sentence that says why the library cannot be read.
pub(super) fn open_drive(path: &Path, number: u16) -> Result<Option<CartridgeFolder>, String> {
    let library = LibraryFolder::read(path).map_err(|error| with_cause(&error))?;
    let drive = format!("drive{number}").parse();
    let held = drive.ok().and_then(|drive| library.at(drive));
    Ok(held.and_then(|held| CartridgeFolder::open(&path.join(&held.name), false).ok()))
}

/// How a change ended: the cartridges that are in drives now, by the number of the drive.
#[derive(Debug)]
pub(super) struct ChangeOutcome {
    pub(super) cartridges: Vec<(u16, CartridgeFolder)>,
    pub(super) result: Result<(), ChangeFailure>,
}

/// Makes a change: opens the cartridges that go into drives, and replaces the file. If that fails, the drives
/// get back what they have given up.
fn make(folder: &LibraryFolder, change: &LibraryChange) -> ChangeOutcome {
    match try_make(folder, change) {
        Ok(cartridges) => ChangeOutcome { cartridges, result: Ok(()) },
        Err(mut failure) => {
            let mut cartridges = Vec::new();
            for (number, name) in &change.ejects {
                match open(folder, name) {
                    Ok(cartridge) => cartridges.push((*number, cartridge)),
                    Err(again) => failure = again,
                }
            }
            ChangeOutcome { cartridges, result: Err(failure) }
        }
    }
}

fn try_make(
    folder: &LibraryFolder,
    change: &LibraryChange,
) -> Result<Vec<(u16, CartridgeFolder)>, ChangeFailure> {
    let open = |(number, name): &(u16, String)| Ok((*number, open(folder, name)?));
    let cartridges = change.inserts.iter().map(open).collect::<Result<Vec<_>, ChangeFailure>>()?;
    folder.replace(&change.file).map_err(|error| {
        let why = format!("cannot write in {}: {}", folder.path().display(), os_error(&error));
        crate::error!("{why}");
        ChangeFailure { sense: FAILED, unusable: None, why }
    })?;
    if let Err(error) = folder.synchronize() {
        // The change was made. A loss of power may undo it, which leaves every cartridge in one place too.
        crate::warning!("cannot make {} durable: {}", folder.path().display(), os_error(&error));
    }
    Ok(cartridges)
}

fn open(folder: &LibraryFolder, name: &str) -> Result<CartridgeFolder, ChangeFailure> {
    CartridgeFolder::open(&folder.cartridge(name), false).map_err(|error| {
        let why = with_cause(&error);
        crate::error!("{why}");
        ChangeFailure { sense: FAILED, unusable: Some(name.to_owned()), why }
    })
}
