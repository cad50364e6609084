//! Opens media, on the thread that reads configurations, before any reactor depends on them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use backends::cartridge_folder::CartridgeFolder;
use backends::open::handed_over::HandedOverFiles;
use backends::open::undo::Undo;
use backends::open::{Allocation, BlockSpec, FileIdentity, FileSpec, Opened};
use backends::sg::process::ScsiSpec;
use backends::sg::{OpenSg, SgError, SgSpec};
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
use super::handed_over::{HandedOverMedia, MovedExport, SessionMedia};
use super::key_file;
use super::libraries::{self, OpenLibrary};
use super::media_key::{self, MediaKeys, UnitKeys, UnreadImage};
use super::medium_identity::MediumIdentity;
use super::memory::{Memory, OpenMemory};
use super::nbd::{ATTEMPT_MAX, ExportAddress, ExportConnection, NbdExport, NbdExports, OpenExport};
use super::pass_through::PassThrough;
use super::sanitize_record::SanitizeRecord;
use super::state::StateDir;
use super::tape::Tape;
use crate::config::{Medium, Unit, expect_block_len};
#[cfg(test)]
use crate::luks::blank::BlankScan;
use crate::{disc_image, luks, os_error};
pub(super) use error::MediaError;
use error::describe_error;

mod contents;
mod error;
pub(super) mod growth;
pub(super) mod loss;

/// An open medium, which can be moved to the reactor that will serve it.
#[derive(Debug)]
pub(super) struct OpenMedium {
    bare: Bare,
    keys: Option<MediaKeys>,
    /// What is to be read before the medium gets a key, if it is to be encrypted and has none.
    unread: Option<UnreadImage>,
    /// Why writes to it are lost, if some are.
    loss: Option<String>,
    /// When its file or folder was created, if it has one and the system knows that.
    created: Option<SystemTime>,
    /// What a SANITIZE that has not ended is recorded with.
    record: Option<Arc<SanitizeRecord>>,
}

/// A medium without encryption on top.
#[derive(Debug)]
enum Bare {
    /// A file or device, what distinguishes it from others, and its path.
    Disk((Opened, MediumIdentity), PathBuf),
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
    media_key::expect_disk_of_key(unit, state).map_err(|why| MediaError::of_image(unit, why))?;
    let bare = match handed_over {
        None => open_bare(unit, state, provisional, &mut HandedOverFiles::default())?,
        Some(media) => match take_served(unit, media)? {
            Some(served) => served,
            None => open_bare(unit, state, provisional, &mut media.files)?,
        },
    };
    let mut medium = OpenMedium { bare, keys: None, unread: None, loss: None, created: None, record: None };
    medium.check_loss(unit, state)?;
    let keys = media_key::of(unit, medium.identity(), state, is_served);
    match keys.map_err(|why| MediaError::of_image(unit, why))? {
        Some(UnitKeys::Ready(keys)) => medium.keys = Some(keys),
        Some(UnitKeys::Unread(unread)) => medium.unread = Some(unread),
        None => {}
    }
    medium.expect_a_block(unit)?;
    medium.look_at_identity(unit);
    Ok(medium)
}

/// The changes of the file system by a start or a reload that can still fail. Dropping this undoes them.
#[derive(Debug, Default)]
pub(super) struct FileRollback(Vec<Undo>);

impl FileRollback {
    /// Adds the changes of another one.
    pub(super) fn extend(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Returns whether there is nothing to undo.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

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
    let former = key_file::path(unit, state).is_none_or(|path| path.exists());
    match unit.medium.path().filter(|_| unit.encrypt.is_some() && !former) {
        Some(path) => luks::data_offset(path).unwrap_or(DATA_OFFSET),
        None => 0,
    }
}

/// Returns the drive of a unit, if the unit is one, with what is in it in the process that serves. The
/// configuration can name another medium. Exports, devices and memory are awaited.
fn take_served(unit: &Unit, media: &mut HandedOverMedia) -> Result<Option<Bare>, MediaError> {
    let failed = |error| MediaError::of_open(unit, &error);
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
            let failed = |why| MediaError::new(unit, why);
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
            let failed = |error| MediaError::of_open(unit, &error);
            return opened.map(|folder| Bare::Tape(Some(folder))).map_err(failed);
        }
        Medium::Changer { path } => {
            let opened = OpenLibrary::open(path);
            return opened.map(Bare::Library).map_err(|why| MediaError::new(unit, why));
        }
        Medium::LibraryDrive { path, number } => {
            let opened = libraries::open_drive(path, *number);
            return opened.map(Bare::Tape).map_err(|why| MediaError::new(unit, why));
        }
        Medium::Nbd { uri, .. } => return open_export(unit, ExportAddress::Nbd(uri.clone())),
        Medium::VhostUserBlk { path, .. } => {
            return open_export(unit, ExportAddress::VhostUser(path.clone()));
        }
        Medium::Sg { path, shared_with_host, .. } => {
            let opened = SgSpec { path: path.clone(), shared_with_host: *shared_with_host }.open();
            let failed = |error| MediaError::of_open(unit, &error);
            return opened.map(Bare::Sg).map_err(failed);
        }
        Medium::VhostUserScsi { path, patience, .. } => {
            let opened = ScsiSpec { path: path.clone(), patience: *patience }.open();
            let failed =
                |error: SgError| MediaError::of_server(unit, describe_error(&error), error.is_unreachable());
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
    let mut opened = opened.map_err(|error| MediaError::of_open(unit, &error))?;
    provisional.0.extend(opened.take_undo());
    let direct = matches!(unit.medium, Medium::File { direct: true, .. });
    let block_len = backends::unopened::block_len(&path, direct).unwrap_or(1);
    let fits = expect_block_len(&path, block_len, unit.block_size);
    fits.map_err(|why| MediaError::new(unit, why))?;
    let identity = MediumIdentity::of_opened(&opened);
    Ok(Bare::Disk((opened, identity), path))
}

fn open_export(unit: &Unit, address: ExportAddress) -> Result<Bare, MediaError> {
    let connection = address.open(ATTEMPT_MAX);
    let connection =
        connection.map_err(|error| MediaError::of_server(unit, error.why, error.is_unreachable))?;
    let export = OpenExport::new(unit, address, connection.info, Some(connection));
    export.map(Bare::Nbd).map_err(|why| MediaError::new(unit, why))
}

/// Opens the image of a disc; for writing only if it is that of a writable disc. Without a file there is no
/// disc.
pub(super) fn open_disc(unit: &Unit, path: &Path) -> Result<Option<DiscImage>, MediaError> {
    discs::open(path, unit.read_only || !disc_image::is_writable(path))
        .map_err(|error| MediaError::of_open(unit, &error))
}

/// The action of a reload on the writable disc in a drive, whose image is at the path.
#[derive(Debug)]
pub(super) enum SameDisc {
    /// It is served again.
    OpenedAgain(Option<Box<DiscImage>>),
    /// It stays withheld, for this reason.
    StaysWithheld(String),
}

/// Opens the image of the writable disc in a drive again, if the disc is withheld. `served` is at `path`.
///
/// # Errors
/// If the disc is not withheld: hosts can write it, under another path.
pub(super) fn open_disc_again(unit: &Unit, path: &Path, served: &DiskInfo) -> Result<SameDisc, MediaError> {
    let fail = |why| MediaError::new(unit, why);
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
    opened
        .map(|image| SameDisc::OpenedAgain(image.map(Box::new)))
        .map_err(|error| fail(describe_error(&error)))
}

/// Returns whether the unit is a tape drive that hosts can write, which holds what they wrote until it is
/// removed.
pub(super) const fn holds_hosts_writes(unit: &Unit) -> bool {
    matches!(unit.medium, Medium::Tape { .. } | Medium::LibraryDrive { .. }) && !unit.read_only
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
            Bare::Disk((opened, _), _) => Some(opened.identity()),
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

    /// Returns what is to be read before the medium can be served, if anything is. This can take hours.
    pub(super) const fn unread(&self) -> Option<&UnreadImage> {
        self.unread.as_ref()
    }

    /// Reads the medium if it is to be read, and makes a LUKS2 image of it. `goes_on` is called with the
    /// percentage that was read. Returns `false` if `goes_on` did.
    ///
    /// # Errors
    /// A fragment that describes the mistake.
    pub(super) fn prepare(&mut self, goes_on: impl FnMut(u64) -> bool) -> Result<bool, String> {
        if let Some(unread) = self.unread.take() {
            self.keys = unread.prepare(goes_on)?;
            return Ok(self.keys.is_some());
        }
        Ok(true)
    }

    /// Replaces what is read of an unread medium.
    #[cfg(test)]
    pub(super) fn reads(&mut self, scan: BlankScan) {
        self.unread = self.unread.take().map(|unread| unread.with_scan(scan));
    }

    /// Returns why writes to it are lost, if some are.
    pub(super) fn loss(&self) -> Option<&str> {
        self.loss.as_deref()
    }

    fn check_loss(&mut self, unit: &Unit, state: &StateDir) -> Result<(), MediaError> {
        let opened = match &mut self.bare {
            Bare::Disk((opened, identity), path) => Some(((opened, path.clone()), identity.clone())),
            Bare::Drive(Some(image)) => {
                let (opened, path) = image.opened();
                let identity = MediumIdentity::of_opened(opened);
                Some(((opened, path), identity))
            }
            _ => None,
        };
        if let Some(((opened, path), identity)) = opened {
            self.loss = loss::check(unit, (opened, &path), identity, state)?;
        }
        let address = match &self.bare {
            Bare::Nbd(export) => Some(export.address()),
            Bare::AwaitedNbd(address) => Some(address),
            _ => None,
        };
        if let Some(address) = address {
            self.loss = loss::check_export(unit, address, state)?;
        }
        Ok(())
    }

    /// Takes what could change until the other process had given up its sessions: the cartridge in a drive,
    /// the file of a library, the connection to an NBD server, a device of this host, what a device of
    /// another process is, memory, and what it has lost.
    pub(super) fn receive(
        &mut self,
        unit: &Unit,
        state: &StateDir,
        late: &mut SessionMedia,
    ) -> Result<(), MediaError> {
        // The operator can have accepted a loss since the medium was opened.
        self.check_loss(unit, state)?;
        let failed = |why| MediaError::new(unit, why);
        // A cryptographic erase may have replaced a key since it was read.
        self.keys.as_ref().map_or(Ok(()), MediaKeys::check_current).map_err(failed)?;
        self.receive_bare(unit, late)?;
        self.look_at_identity(unit);
        Ok(())
    }

    fn receive_bare(&mut self, unit: &Unit, late: &mut SessionMedia) -> Result<(), MediaError> {
        let failed = |why| MediaError::new(unit, why);
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
pub(super) mod tests {
    use super::*;
    use crate::config::{Config, Environment, Flags};

    /// Returns the unit of a LUN with these keys. Paths begin in the directory.
    pub(in crate::serve) fn unit(directory: &Path, keys: &str) -> Unit {
        units(directory, keys).remove(0)
    }

    /// Returns the units of a LUN: the drives of a library follow it.
    pub(in crate::serve) fn units(directory: &Path, keys: &str) -> Vec<Unit> {
        config(directory, keys).units
    }

    /// Returns the configuration of a target with a LUN with these keys.
    pub(in crate::serve) fn config(directory: &Path, keys: &str) -> Config {
        let file = directory.join("targe.toml");
        let text = format!("[[target]]\nname = \"iqn.2001-04.com.example:a\"\nlun = [{{ {keys} }}]\n");
        let environment = Environment::for_tests(directory);
        let flags = Flags { config: Some(file.clone()), ..Flags::default() };
        let loaded = Config::load_text_without_media(&flags, &environment, &file, &text, None);
        loaded.map_err(|report| report.to_string()).unwrap().config
    }
}
