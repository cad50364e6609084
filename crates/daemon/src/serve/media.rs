//! Opens media, on the thread that reads configurations, before any reactor depends on them.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use backends::cartridge_folder::CartridgeFolder;
use backends::open::handed_over::HandedOverFiles;
use backends::open::{Allocation, BlockSpec, FileIdentity, FileSpec, Opened, Undo};
use backends::sg::process::ScsiSpec;
use backends::sg::{OpenSg, SgSpec};
use base::buffer::Pool;
use base::state_machine::MediumId;
use base::units::ByteLen;
use drivers::files::Files;
use store::Store;
use store::luks2::DATA_OFFSET;
use store::null::Null;
use target::units::UnitId;

use super::discs::{self, DiscDrive, DiscImage};
use super::disk::{Disk, DiskInfo};
use super::handed_over::{HandedOverMedia, LateMedia, MovedExport};
use super::libraries::{self, OpenLibrary};
use super::media_key::{self, MediaKeys};
use super::memory::{Memory, OpenMemory};
use super::nbd::{ATTEMPT_MAX, ExportAddress, ExportConnection, NbdExport, NbdExports, OpenExport};
use super::pass_through::PassThrough;
use super::state::StateDir;
use super::tape::Tape;
use crate::config::{Medium, Unit};
use crate::{disc_image, luks, os_error};

/// An open medium, which can be moved to the reactor that will serve it.
#[derive(Debug)]
pub(super) struct OpenMedium {
    bare: Bare,
    keys: Option<MediaKeys>,
}

/// A medium without encryption on top.
#[derive(Debug)]
enum Bare {
    /// A file or device, and its path.
    Disk(Opened, PathBuf),
    /// Memory.
    Ram(OpenMemory),
    /// Memory of this length that comes with the sessions of another process.
    AwaitedRam(ByteLen),
    /// No storage: reads return zeros.
    Null(ByteLen),
    /// A drive, and the image of the disc in it.
    Drive(Option<DiscImage>),
    /// A drive for tapes, and the cartridge in it.
    Tape(Option<CartridgeFolder>),
    /// A tape library.
    Library(OpenLibrary),
    /// An export of an NBD server or a block device over vhost-user, with a connection.
    Nbd(OpenExport),
    /// An export of an NBD server whose connection comes with the sessions of another process, or a block
    /// device over vhost-user, whose description does.
    AwaitedNbd(ExportAddress),
    /// A SCSI device of this host whose lock comes with the sessions of another process.
    AwaitedSg(SgSpec),
    /// A SCSI device of another process whose description comes with the sessions.
    AwaitedScsi(ScsiSpec),
    /// A SCSI device of this host or of another process.
    Sg(OpenSg),
}

/// A medium cannot be opened or extended.
#[derive(Debug, thiserror::Error)]
#[error("{unit}: {why}")]
pub struct MediaError {
    unit: String,
    why: String,
}

/// Opens the medium of a unit: creates the file if its size is configured, extends it if it is too short, and
/// locks it. Changes of the file system are recorded in `provisional`. What another process serves and gives
/// to this one is taken from `handed_over`.
pub(super) fn open(
    unit: &Unit,
    state: &StateDir,
    provisional: &mut FileRollback,
    handed_over: Option<&mut HandedOverMedia>,
) -> Result<OpenMedium, MediaError> {
    let is_served = handed_over.is_some();
    let bare = match handed_over {
        None => open_bare(unit, state, provisional, &mut HandedOverFiles::default())?,
        Some(media) => match take_served(unit, media)? {
            Some(served) => served,
            None => open_bare(unit, state, provisional, &mut media.files)?,
        },
    };
    let mut medium = OpenMedium { bare, keys: None };
    let keys = media_key::of(unit, medium.identity(), state, is_served);
    medium.keys = keys.map_err(|why| MediaError { unit: unit.label.clone(), why })?;
    Ok(medium)
}

/// The changes of the file system by a start or a reload that can still fail. Dropping this undoes them.
#[derive(Debug, Default)]
pub(super) struct FileRollback(Vec<Undo>);

impl FileRollback {
    /// Keeps the changes for good.
    pub(super) fn commit(mut self) {
        self.0.clear();
    }
}

impl Drop for FileRollback {
    fn drop(&mut self) {
        while let Some(undo) = self.0.pop() {
            let path = undo.path().to_path_buf();
            if let Err(error) = undo.undo() {
                crate::warning!("cannot undo the change of {}: {}", path.display(), os_error(&error));
            }
        }
    }
}

/// Returns how many bytes of a unit's file are before its data: the header of a LUKS2 image. `size` does not
/// count them.
fn header_len(unit: &Unit, state: &StateDir) -> u64 {
    let former = media_key::key_file_path(unit, state).is_none_or(|path| path.exists());
    match unit.medium.path().filter(|_| unit.encrypt.is_some() && !former) {
        Some(path) => luks::data_offset(path).unwrap_or(DATA_OFFSET),
        None => 0,
    }
}

/// Returns the drive of a unit, if the unit is one, with what is in it in the process that serves. The
/// configuration can name another medium. Exports, devices and memory are awaited.
fn take_served(unit: &Unit, media: &mut HandedOverMedia) -> Result<Option<Bare>, MediaError> {
    let failed = |error| MediaError { unit: unit.label.clone(), why: describe_error(&error) };
    match &unit.medium {
        Medium::Disc { .. } => {
            let disc = media.take_disc(unit.identity.naa);
            let image = disc.map(|(disc, file)| discs::take(disc, file)).transpose();
            image.map(|image| Some(Bare::Drive(image))).map_err(failed)
        }
        // Its cartridge comes with the sessions.
        Medium::Tape { .. } | Medium::LibraryDrive { .. } => Ok(Some(Bare::Tape(None))),
        Medium::Changer { path } => {
            let library = match media.take_library(unit.identity.naa) {
                Some(lock) => OpenLibrary::take(path, lock),
                None => Err("the lock of the library is missing".to_owned()),
            };
            let failed = |why| MediaError { unit: unit.label.clone(), why };
            library.map(|library| Some(Bare::Library(library))).map_err(failed)
        }
        // A server may accept one connection only, or end after it.
        Medium::Nbd { uri, .. } => Ok(Some(Bare::AwaitedNbd(ExportAddress::Nbd(uri.clone())))),
        Medium::VhostUserBlk { path, .. } => {
            Ok(Some(Bare::AwaitedNbd(ExportAddress::VhostUser(path.clone()))))
        }
        Medium::VhostUserScsi { path, patience, .. } => {
            Ok(Some(Bare::AwaitedScsi(ScsiSpec { path: path.clone(), patience: *patience })))
        }
        // What it reports to a command could be meant for a host.
        Medium::Sg { path, shared_with_host, .. } => {
            let spec = SgSpec { path: path.clone(), shared_with_host: *shared_with_host };
            Ok(Some(Bare::AwaitedSg(spec)))
        }
        Medium::Ram { size } => Ok(Some(Bare::AwaitedRam(*size))),
        _ => Ok(None),
    }
}

fn open_bare(
    unit: &Unit,
    state: &StateDir,
    provisional: &mut FileRollback,
    handed_over: &mut HandedOverFiles,
) -> Result<Bare, MediaError> {
    let opened = match &unit.medium {
        Medium::Disc { path, .. } => return Ok(Bare::Drive(open_disc(unit, path)?)),
        Medium::Tape { path } => {
            let opened = CartridgeFolder::open(path, unit.read_only);
            let failed = |error| MediaError { unit: unit.label.clone(), why: describe_error(&error) };
            return opened.map(|folder| Bare::Tape(Some(folder))).map_err(failed);
        }
        Medium::Changer { path } => {
            let opened = OpenLibrary::open(path);
            return opened.map(Bare::Library).map_err(|why| MediaError { unit: unit.label.clone(), why });
        }
        Medium::LibraryDrive { path, number } => {
            let opened = libraries::open_drive(path, *number);
            return opened.map(Bare::Tape).map_err(|why| MediaError { unit: unit.label.clone(), why });
        }
        Medium::Nbd { uri, .. } => return open_export(unit, ExportAddress::Nbd(uri.clone())),
        Medium::VhostUserBlk { path, .. } => {
            return open_export(unit, ExportAddress::VhostUser(path.clone()));
        }
        Medium::Sg { path, shared_with_host, .. } => {
            let opened = SgSpec { path: path.clone(), shared_with_host: *shared_with_host }.open();
            let failed = |error| MediaError { unit: unit.label.clone(), why: describe_error(&error) };
            return opened.map(Bare::Sg).map_err(failed);
        }
        Medium::VhostUserScsi { path, patience, .. } => {
            let opened = ScsiSpec { path: path.clone(), patience: *patience }.open();
            let failed = |error| MediaError { unit: unit.label.clone(), why: describe_error(&error) };
            return opened.map(Bare::Sg).map_err(failed);
        }
        Medium::Ram { size } => return Ok(Bare::Ram(OpenMemory::new(size.0))),
        Medium::Null { size } => return Ok(Bare::Null(*size)),
        Medium::Block { path, direct } => {
            let (read_only, write_cache) = (unit.read_only, unit.write_cache);
            BlockSpec { path: path.clone(), read_only, direct: *direct, write_cache }
                .open_or_take(handed_over)
        }
        Medium::File { path, size, direct } => FileSpec {
            path: path.clone(),
            size: size
                .map(|size| size.0.saturating_add(header_len(unit, state)))
                .filter(|size| path.metadata().is_ok_and(|meta| meta.len() < *size) || !path.exists()),
            allocation: if unit.thin { Allocation::Sparse } else { Allocation::Full },
            read_only: unit.read_only,
            direct: *direct,
            write_cache: unit.write_cache,
        }
        .open_or_take(handed_over),
    };
    let path = unit.medium.path().cloned().unwrap_or_default();
    let mut opened =
        opened.map_err(|error| MediaError { unit: unit.label.clone(), why: describe_error(&error) })?;
    provisional.0.extend(opened.take_undo());
    Ok(Bare::Disk(opened, path))
}

fn open_export(unit: &Unit, address: ExportAddress) -> Result<Bare, MediaError> {
    let connection = address.open(ATTEMPT_MAX);
    let export =
        connection.and_then(|connection| OpenExport::new(unit, address, connection.info, Some(connection)));
    export.map(Bare::Nbd).map_err(|why| MediaError { unit: unit.label.clone(), why })
}

/// Opens the image of a disc; for writing only if it is that of a writable disc. Without a file there is no
/// disc.
pub(super) fn open_disc(unit: &Unit, path: &Path) -> Result<Option<DiscImage>, MediaError> {
    discs::open(path, unit.read_only || !disc_image::is_writable(path))
        .map_err(|error| MediaError { unit: unit.label.clone(), why: describe_error(&error) })
}

/// The action of a reload on the writable disc in a drive, whose image is at the path.
#[derive(Debug)]
pub(super) enum SameDisc {
    /// It is served again.
    OpenedAgain(Option<DiscImage>),
    /// It stays withheld, for this reason.
    StaysWithheld(String),
}

/// Opens the image of the writable disc in a drive again, if the disc is withheld. `served` is at `path`.
///
/// # Errors
/// If the disc is not withheld: hosts can write it, under another path.
pub(super) fn open_disc_again(unit: &Unit, path: &Path, served: &DiskInfo) -> Result<SameDisc, MediaError> {
    let fail = |why| MediaError { unit: unit.label.clone(), why };
    let told = path.display();
    // In this order: no operation begins on a disc that is withheld, so none changes the record after it is
    // read.
    if !served.is_withheld() {
        return Err(fail(format!(
            "{told} is the same file as {}, which is in the drive and which hosts can write; if it was renamed, \
             reload the configuration again when the drive is not ready",
            served.path.display()
        )));
    }
    if served.has_operations() {
        return Ok(SameDisc::StaysWithheld(format!(
            "operations that began before it was withheld are under way on {told}; reload the configuration \
             again"
        )));
    }
    if !disc_image::is_writable(path) {
        return Ok(SameDisc::StaysWithheld(format!(
            "{told} is not the image of a writable disc any more; restore it, or serve a copy of it from \
             another path, and reload the configuration again"
        )));
    }
    let opened = discs::open_again(path, served);
    opened.map(SameDisc::OpenedAgain).map_err(|error| fail(describe_error(&error)))
}

/// Extends the file of a served unit, which has this identity, to its configured size. Allocates the storage
/// of a fully provisioned file.
pub(super) fn grow(
    unit: &Unit,
    served: FileIdentity,
    state: &StateDir,
    provisional: &mut FileRollback,
) -> Result<(), MediaError> {
    let Medium::File { path, size: Some(size), .. } = &unit.medium else { return Ok(()) };
    if unit.read_only {
        return Ok(());
    }
    let size = size.0.saturating_add(header_len(unit, state));
    let failed = |error: std::io::Error| {
        let why = format!("cannot extend {}: {}", path.display(), os_error(&error));
        MediaError { unit: unit.label.clone(), why }
    };
    let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
    // The path was compared before, but it can lead to another file since.
    if FileIdentity::of_file(&file).map_err(failed)? != served {
        let why = format!("{} is not the file or device that is served", path.display());
        return Err(MediaError { unit: unit.label.clone(), why });
    }
    if file.metadata().map_err(failed)?.len() >= size {
        return Ok(());
    }
    provisional.0.push(Undo::growth(path, &file).map_err(failed)?);
    if !unit.thin {
        backends::open::expect_room(&file, size).map_err(failed)?;
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, flags, 0, size).map_err(|errno| failed(errno.into()))?;
    }
    file.set_len(size).map_err(failed)?;
    file.sync_all().map_err(failed)
}

/// Makes all data of the file or device of a unit durable. The file is the one that is served, since its path
/// can lead to another one.
pub(super) fn sync(unit: &Unit, path: &Path, file: std::io::Result<File>) -> Result<(), MediaError> {
    file.and_then(|file| file.sync_all()).map_err(|error| {
        let why = format!("cannot make {} durable: {}", path.display(), os_error(&error));
        MediaError { unit: unit.label.clone(), why }
    })
}

/// Returns whether the unit is a tape drive that hosts can write, which holds what they wrote until it is
/// removed.
pub(super) const fn holds_hosts_writes(unit: &Unit) -> bool {
    matches!(unit.medium, Medium::Tape { .. } | Medium::LibraryDrive { .. }) && !unit.read_only
}

/// Formats an error with its cause.
fn describe_error(error: &(dyn Error + 'static)) -> String {
    match error.source().and_then(|source| source.downcast_ref::<std::io::Error>()) {
        Some(source) => format!("{error}: {}", os_error(source)),
        None => error.to_string(),
    }
}

/// A medium on its reactor.
pub(super) struct ReactorMedium {
    bare: PlacedBare,
    keys: Option<MediaKeys>,
}

/// A medium on its reactor, without encryption on top.
enum PlacedBare {
    /// A file or device.
    Disk(Disk),
    /// Memory.
    Ram(Memory),
    /// No storage: reads return zeros.
    Null(ByteLen),
    /// A drive for discs.
    Drive(DiscDrive),
    /// A drive for tapes.
    Tape(Tape),
    /// An export of an NBD server, or a block device over vhost-user.
    Nbd(NbdExport),
    /// A tape library.
    Library(OpenLibrary),
    /// A SCSI device of this host or of another process.
    Sg(PassThrough),
}

impl OpenMedium {
    /// Returns the identity of the file or device, if the medium is one.
    pub(super) fn identity(&self) -> Option<FileIdentity> {
        match &self.bare {
            Bare::Disk(opened, _) => Some(opened.identity()),
            Bare::Sg(device) => device.identity(),
            Bare::Tape(folder) => folder.as_ref().map(CartridgeFolder::identity),
            Bare::Ram(_)
            | Bare::AwaitedRam(_)
            | Bare::Null(_)
            | Bare::Drive(_)
            | Bare::Library(_)
            | Bare::Nbd(_)
            | Bare::AwaitedNbd(_)
            | Bare::AwaitedSg(_)
            | Bare::AwaitedScsi(_) => None,
        }
    }

    /// Takes what could change until the other process had given up its sessions: the cartridge in a drive,
    /// the file of a library, the connection to an NBD server, a device of this host, what a device of
    /// another process is, and memory.
    pub(super) fn receive(&mut self, unit: &Unit, late: &mut LateMedia) -> Result<(), MediaError> {
        let failed = |why| MediaError { unit: unit.label.clone(), why };
        // A cryptographic erase may have replaced a key since it was read.
        self.keys.as_ref().map_or(Ok(()), MediaKeys::check_current).map_err(failed)?;
        match &mut self.bare {
            Bare::Tape(place) => {
                if let Some(moved) = late.cartridges.remove(&unit.identity.naa.to_string()) {
                    let cartridge = CartridgeFolder::take(&moved.path, moved.read_only, moved.files);
                    *place = Some(cartridge.map_err(|error| failed(describe_error(&error)))?);
                }
                Ok(())
            }
            Bare::Library(library) => library.refresh().map_err(failed),
            Bare::AwaitedNbd(address) => {
                let moved = late.exports.remove(&unit.identity.naa.to_string());
                let moved = moved.filter(|moved| moved.socket.is_none() == address.is_device());
                let moved = moved.ok_or_else(|| failed(format!("the connection to {address} is missing")))?;
                let MovedExport { info, socket } = moved;
                let connection = socket.map(|socket| ExportConnection::taken_over(info, socket));
                let export = OpenExport::new(unit, address.clone(), info, connection);
                self.bare = Bare::Nbd(export.map_err(failed)?);
                Ok(())
            }
            Bare::AwaitedScsi(spec) => {
                let moved = late.devices.remove(&unit.identity.naa.to_string());
                let moved = moved.ok_or_else(|| failed("the device is missing".to_owned()))?;
                let device = spec.take(moved).map_err(|error| failed(describe_error(&error)))?;
                self.bare = Bare::Sg(device);
                Ok(())
            }
            Bare::AwaitedSg(spec) => {
                let moved = late.devices.remove(&unit.identity.naa.to_string());
                let moved = moved.ok_or_else(|| failed("the lock of the device is missing".to_owned()))?;
                let device = spec.take(moved).map_err(|error| failed(describe_error(&error)))?;
                self.bare = Bare::Sg(device);
                Ok(())
            }
            Bare::AwaitedRam(size) => {
                let moved = late.memories.remove(&unit.identity.naa.to_string());
                let moved = moved.ok_or_else(|| failed("its memory is missing".to_owned()))?;
                let memory = OpenMemory::take(size.0, moved);
                self.bare = Bare::Ram(memory.ok_or_else(|| failed("its memory does not fit".to_owned()))?);
                Ok(())
            }
            Bare::Disk(..) | Bare::Ram(_) | Bare::Null(_) | Bare::Drive(_) | Bare::Nbd(_) | Bare::Sg(_) => {
                Ok(())
            }
        }
    }

    /// Moves the medium to the reactor that has these files, pool and exports.
    pub(super) fn move_to_reactor(
        self,
        (files, pool, exports): (&Files, &Pool, &mut NbdExports),
        id: MediumId,
        label: &str,
    ) -> ReactorMedium {
        let bare = match self.bare {
            Bare::Disk(opened, path) => {
                PlacedBare::Disk(Disk::new(opened, (path, None), files.queue(id), label))
            }
            Bare::Drive(image) => {
                PlacedBare::Drive(DiscDrive::new(image.map(|image| image.place(files, id, label))))
            }
            Bare::Tape(folder) => PlacedBare::Tape(Tape::new(folder, files.queue(id), label)),
            Bare::Nbd(export) => PlacedBare::Nbd(exports.add(export, UnitId(id.0), label, pool)),
            Bare::Library(library) => PlacedBare::Library(library),
            Bare::Sg(device) => PlacedBare::Sg(PassThrough::new(device, files.queue(id), label)),
            Bare::Ram(memory) => PlacedBare::Ram(Memory::new(memory)),
            Bare::Null(size) => PlacedBare::Null(size),
            // It was received before.
            Bare::AwaitedNbd(_) | Bare::AwaitedSg(_) | Bare::AwaitedScsi(_) | Bare::AwaitedRam(_) => {
                PlacedBare::Null(ByteLen(0))
            }
        };
        ReactorMedium { bare, keys: self.keys }
    }
}

impl ReactorMedium {
    /// Makes the store that a unit uses. `wake` notifies the reactor from
    /// another thread that the medium has results.
    pub(super) fn store(&self, pool: &Pool, wake: impl Fn() + Clone + Send + 'static) -> Box<dyn Store> {
        let bare: Box<dyn Store> = match &self.bare {
            PlacedBare::Disk(disk) => Box::new(disk.clone()),
            PlacedBare::Drive(drive) => Box::new(drive.clone()),
            PlacedBare::Tape(tape) => Box::new(tape.clone()),
            PlacedBare::Nbd(export) => Box::new(export.clone()),
            PlacedBare::Sg(device) => Box::new(device.clone()),
            PlacedBare::Ram(memory) => Box::new(memory.clone()),
            PlacedBare::Null(size) => Box::new(Null::new(size.0)),
            PlacedBare::Library(_) => Box::new(Null::new(0)),
        };
        match &self.keys {
            None => bare,
            Some(keys) => keys.decrypt(bare, pool, wake),
        }
    }

    /// Returns the cartridge, if the medium is one.
    pub(super) fn tape(&self) -> Option<Tape> {
        match &self.bare {
            PlacedBare::Tape(tape) => Some(tape.clone()),
            _ => None,
        }
    }

    /// Returns the device that commands are passed to, if the medium is one.
    pub(super) fn pass_through(&self) -> Option<PassThrough> {
        match &self.bare {
            PlacedBare::Sg(device) => Some(device.clone()),
            _ => None,
        }
    }

    /// Returns the memory, if the medium is that.
    pub(super) fn memory(&self) -> Option<Memory> {
        match &self.bare {
            PlacedBare::Ram(memory) => Some(memory.clone()),
            _ => None,
        }
    }

    /// Returns the file or device, if the medium is one, the drive, if it is in a drive for discs, and the
    /// library, if it is one.
    pub(super) fn into_parts(self) -> (Option<Disk>, Option<DiscDrive>, Option<OpenLibrary>) {
        match self.bare {
            PlacedBare::Disk(disk) => (Some(disk), None, None),
            PlacedBare::Drive(drive) => (drive.disc(), Some(drive), None),
            PlacedBare::Library(library) => (None, None, Some(library)),
            PlacedBare::Ram(_)
            | PlacedBare::Null(_)
            | PlacedBare::Tape(_)
            | PlacedBare::Sg(_)
            | PlacedBare::Nbd(_) => (None, None, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Environment, Flags};
    use crate::scratch::Scratch;

    /// Returns the unit of a LUN with these keys. Paths begin in the directory.
    fn unit(directory: &Path, keys: &str) -> Unit {
        let file = directory.join("targe.toml");
        let text = format!("[[target]]\nname = \"iqn.2001-04.com.example:a\"\nlun = [{{ {keys} }}]\n");
        let environment = Environment::for_tests(directory);
        let flags = Flags { config: Some(file.clone()), ..Flags::default() };
        let loaded = Config::load_text_without_media(&flags, &environment, &file, &text, None);
        loaded.map_err(|report| report.to_string()).unwrap().config.units.remove(0)
    }

    #[test]
    fn a_file_that_has_taken_the_place_of_the_served_one_is_not_extended() {
        let scratch = Scratch::new();
        let (path, state) = (scratch.path().join("disk.img"), StateDir::open(scratch.path()).unwrap());
        let unit = unit(scratch.path(), "type = \"file\", path = \"disk.img\", size = \"2M\"");
        std::fs::write(&path, [0; 4096]).unwrap();
        let (served, _) = FileIdentity::of_path(&path).unwrap();
        std::fs::rename(&path, scratch.path().join("renamed.img")).unwrap();
        std::fs::write(&path, [0; 4096]).unwrap();
        let grow = |served| {
            let mut provisional = FileRollback::default();
            let grown = grow(&unit, served, &state, &mut provisional);
            provisional.commit();
            grown.map(|()| path.metadata().unwrap().len())
        };
        let why = grow(served).unwrap_err().to_string();
        assert!(why.ends_with("disk.img is not the file or device that is served"), "{why}");
        assert_eq!(path.metadata().unwrap().len(), 4096);
        assert_eq!(grow(FileIdentity::of_path(&path).unwrap().0).unwrap(), 2 << 20);
    }
}
