//! The folder of a tape library that is served, and the thread that changes it: no reactor waits for the
//! disk.

use crate::mailbox::{Sender, channel};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use backends::cartridge_folder::CartridgeFolder;
use backends::library_folder::LibraryFolder;
use device::library::{ChangeFailure, LibraryChange, MotionFailure};
use scsi::sense::{Asc, Sense, SenseKey};
use store::Store;
use store::null::Null;

use crate::config::Unit;
use crate::library::with_cause;
use crate::os_error;
use crate::serve::media::MediaError;
use crate::serve::media::handed_over::SessionMedia;
use crate::serve::media::opened::{OpenedMedium, Place};
use crate::serve::media::served::ServedMedium;

/// How the command ends of a change whose files could not be opened or written.
pub(in crate::serve) const FAILED: MotionFailure =
    MotionFailure::CheckCondition(Sense::new(SenseKey::MEDIUM_ERROR, Asc::MEDIA_LOAD_OR_EJECT_FAILED));

/// A library that was opened, and can be moved to the reactor that will serve it.
#[derive(Debug)]
pub(in crate::serve) struct OpenLibrary {
    folder: LibraryFolder,
    /// The path of its folder without links.
    pub(in crate::serve) canonical: PathBuf,
    /// Its file.
    pub(in crate::serve) file: Vec<u8>,
    /// The names of cartridges that cannot be used, with the reasons.
    pub(in crate::serve) unusable: Vec<(String, String)>,
}

impl OpenLibrary {
    /// Opens and locks the folder of a library. Open it before its drives.
    ///
    /// # Errors
    /// A sentence that says why it cannot be served.
    pub(in crate::serve) fn open(path: &Path) -> Result<Self, String> {
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
    pub(in crate::serve) fn take(path: &Path, lock: File) -> Result<Self, String> {
        let canonical =
            path.canonicalize().map_err(|error| format!("{}: {}", path.display(), os_error(&error)))?;
        let folder = LibraryFolder::take(path, lock);
        Ok(Self { folder, canonical, file: Vec::new(), unusable: Vec::new() })
    }

    /// Reads the file of the library.
    ///
    /// # Errors
    /// A sentence that says why it cannot be read.
    fn refresh(&mut self) -> Result<(), String> {
        self.file = self.folder.library().map_err(|error| with_cause(&error))?.encode();
        Ok(())
    }

    /// Returns another descriptor of the lock of the library.
    pub(in crate::serve) fn duplicate_lock(&self) -> io::Result<File> {
        self.folder.duplicate_lock()
    }

    /// Returns the path of the folder.
    pub(in crate::serve) fn path(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Starts the thread that changes the library, and tells `done` of each change. It ends when the sender
    /// is dropped.
    pub(in crate::serve) fn start(
        self,
        done: impl Fn(ChangeOutcome) + Send + 'static,
    ) -> io::Result<Sender<LibraryChange>> {
        let (sender, changes) = channel::<LibraryChange>();
        let Self { folder, .. } = self;
        std::thread::Builder::new()
            .name("library".to_owned())
            .spawn(move || {
                // Another process may have served the library before, with what it had reserved.
                folder.reserve();
                changes.iter().for_each(|change| done(make(&folder, &change)));
            })
            .map(drop)?;
        Ok(sender)
    }
}

impl OpenedMedium for OpenLibrary {
    fn receive(&mut self, unit: &Unit, _media: &mut SessionMedia) -> Result<(), MediaError> {
        self.refresh().map_err(|why| MediaError::new(unit, why))
    }

    fn drive_serials(&self) -> Option<Vec<String>> {
        let library = self.folder.library().ok()?;
        Some((1..=library.counts().drives).map(|number| library.drive_serial(number)).collect())
    }

    fn place(self: Box<Self>, _place: Place<'_>) -> Box<dyn ServedMedium> {
        Box::new(Changer(RefCell::new(Some(*self))))
    }
}

/// A changer on its reactor. It has no medium of its own.
pub(in crate::serve) struct Changer(RefCell<Option<OpenLibrary>>);

impl Changer {
    /// Returns the library that is to be started, once.
    pub(in crate::serve) fn take_library(&self) -> Option<OpenLibrary> {
        self.0.take()
    }
}

impl ServedMedium for Changer {
    fn store(&self) -> Box<dyn Store> {
        Box::new(Null::new(0))
    }
}

/// Opens the cartridge in a drive of a library. One that cannot be opened was found when the library was
/// opened, and leaves the drive empty.
///
/// # Errors
/// A sentence that says why the library cannot be read.
pub(in crate::serve) fn open_drive(path: &Path, number: u16) -> Result<Option<CartridgeFolder>, String> {
    let library = LibraryFolder::read(path).map_err(|error| with_cause(&error))?;
    let drive = format!("drive{number}").parse();
    let held = drive.ok().and_then(|drive| library.at(drive));
    Ok(held.and_then(|held| CartridgeFolder::open(&path.join(&held.name), false).ok()))
}

/// How a change ended: the cartridges that are in drives now, by the number of the drive.
#[derive(Debug)]
pub(in crate::serve) struct ChangeOutcome {
    pub(in crate::serve) cartridges: Vec<(u16, CartridgeFolder)>,
    pub(in crate::serve) result: Result<(), ChangeFailure>,
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
        ChangeFailure { status: FAILED, unusable: None, why }
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
        ChangeFailure { status: FAILED, unusable: Some(name.to_owned()), why }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use cartridge::library::{Counts, Element, Library};
    use cartridge::profile::Profile;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_library_that_is_handed_over_is_changed_without_new_storage() {
        let scratch = Scratch::new();
        let path = scratch.path().join("library");
        let counts = Counts { drives: 2, slots: 200, mail_slots: 4 };
        let mut library = Library::new("LIB00001".to_owned(), Profile::Lto8, counts).unwrap();
        let folder = LibraryFolder::create(&path, &library.encode()).unwrap();
        // As an earlier release leaves it, which reserves nothing.
        fs::remove_file(path.join("library.new")).unwrap();
        fs::remove_file(path.join("library")).unwrap();
        fs::write(path.join("library"), library.encode()).unwrap();
        let (tell, outcomes) = channel();
        let taken = OpenLibrary::take(&path, folder.duplicate_lock().unwrap()).unwrap();
        let changes = taken.start(move |outcome| drop(tell.send(outcome))).unwrap();
        let mut change = |slot| {
            library.put(Element::Slot(slot), &format!("A{slot:05}L8"), "").unwrap();
            let change = LibraryChange { file: library.encode(), ejects: Vec::new(), inserts: Vec::new() };
            changes.send(change).unwrap();
            outcomes.recv().unwrap().result.unwrap();
            ["library", "library.new"].map(|name| path.join(name).metadata().unwrap().blocks())
        };
        let before = change(1);
        assert!(before.iter().all(|blocks| blocks * 512 >= 30_000), "{before:?}");
        for slot in 2..=200 {
            assert_eq!(change(slot), before, "slot {slot}");
        }
        assert_eq!(folder.library().unwrap(), library);
    }
}
