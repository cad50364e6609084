//! Opens media, on the thread that reads configurations, before any reactor depends on them.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use backends::cartridge_folder::CartridgeFolder;
use backends::open::handed_over::HandedOverFiles;
use backends::open::undo::Undo;
use backends::open::{Allocation, BlockSpec, FileIdentity, FileSpec};
use backends::sg::process::ScsiSpec;
use backends::sg::{SgError, SgSpec};
use base::buffer::Pool;
use store::Store;
use store::luks2::DATA_OFFSET;

use self::disk::DiskInfo;
use self::disk::opened::OpenDisk;
use self::nbd::{ConnectedExport, ExportAddress};
use self::pass_through::OpenDevice;
use self::ram::{LunMemory, OpenMemory};
use self::tape::OpenTape;
use super::media::handed_over::{HandedOverMedia, SessionMedia};
use super::media_key::{self, MediaKeys, UnitKeys, UnreadImage};
use super::sanitize_record::SanitizeRecord;
use super::state::StateDir;
use crate::config::{Medium, Unit, expect_block_len};
#[cfg(test)]
use crate::luks::blank::BlankScan;
use crate::{disc_image, luks, os_error};
use changer::OpenLibrary;
use disc::{DiscImage, OpenDrive};
pub(super) use error::MediaError;
use error::describe_error;
use opened::{OpenedMedium, Place};
use served::{NoStorage, ServedMedium};

pub(super) mod changer;
mod contents;
pub(super) mod disc;
pub(super) mod disk;
pub(super) mod error;
pub(super) mod export_queue;
pub(super) mod growth;
pub(super) mod handed_over;
pub(super) mod identity;
mod image_state;
pub(super) mod known_loss;
pub(super) mod log_throttle;
pub(super) mod loss;
pub(super) mod lost_writes;
pub(super) mod nbd;
pub(super) mod opened;
pub(super) mod pass_through;
pub(super) mod ram;
pub(super) mod served;
pub(super) mod tape;

/// An open medium, which can be moved to the reactor that will serve it.
#[derive(Debug)]
pub(super) struct OpenMedium {
    bare: Box<dyn OpenedMedium>,
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
        None => open_bare(unit, provisional, &mut HandedOverFiles::default())?,
        Some(media) => match take_served(unit, media)? {
            Some(served) => served,
            None => open_bare(unit, provisional, &mut media.files)?,
        },
    };
    let mut medium = OpenMedium { bare, keys: None, unread: None, loss: None, created: None, record: None };
    medium.loss = medium.bare.check_loss(unit, state)?;
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
fn header_len(unit: &Unit) -> u64 {
    match unit.medium.path().filter(|_| unit.encrypt.is_some()) {
        Some(path) => luks::data_offset(path).unwrap_or(DATA_OFFSET),
        None => 0,
    }
}

/// Returns the drive of a unit, if the unit is one, with what is in it in the process that serves. The
/// configuration can name another medium. Exports, devices and memory are awaited.
fn take_served(
    unit: &Unit,
    media: &mut HandedOverMedia,
) -> Result<Option<Box<dyn OpenedMedium>>, MediaError> {
    Ok(Some(match &unit.medium {
        Medium::Disc { .. } => {
            let disc = media.take_disc(unit.identity.naa);
            let image = disc.map(|(disc, file)| disc::take(disc, file)).transpose();
            Box::new(OpenDrive(image.map_err(|error| MediaError::of_open(unit, &error))?))
        }
        // Its cartridge comes with the sessions.
        Medium::Tape { .. } | Medium::LibraryDrive { .. } => Box::new(OpenTape(None)),
        Medium::Changer { path } => {
            let library = match media.take_library(unit.identity.naa) {
                Some(lock) => OpenLibrary::take(path, lock),
                None => Err("the lock of the library is missing".to_owned()),
            };
            Box::new(library.map_err(|why| MediaError::new(unit, why))?)
        }
        Medium::Nbd { uri, .. } => Box::new(ConnectedExport::awaited(ExportAddress::Nbd(uri.clone()))),
        Medium::VhostUserBlk { path, .. } => {
            Box::new(ConnectedExport::awaited(ExportAddress::VhostUser(path.clone())))
        }
        Medium::VhostUserScsi { path, patience, .. } => {
            Box::new(OpenDevice::AwaitedScsi(ScsiSpec { path: path.clone(), patience: *patience }))
        }
        Medium::Sg { path, shared_with_host, .. } => {
            let spec = SgSpec { path: path.clone(), shared_with_host: *shared_with_host };
            Box::new(OpenDevice::AwaitedSg(spec))
        }
        Medium::Ram { size } => Box::new(LunMemory::Awaited(size.0)),
        Medium::File { .. } | Medium::Block { .. } | Medium::Null { .. } => return Ok(None),
    }))
}

fn open_bare(
    unit: &Unit,
    provisional: &mut FileRollback,
    handed_over: &mut HandedOverFiles,
) -> Result<Box<dyn OpenedMedium>, MediaError> {
    Ok(match &unit.medium {
        Medium::Disc { path, .. } => Box::new(OpenDrive(open_disc(unit, path)?)),
        Medium::Tape { path } => {
            let opened = CartridgeFolder::open(path, unit.read_only);
            let failed = |error| MediaError::of_open(unit, &error);
            Box::new(OpenTape(Some(opened.map_err(failed)?)))
        }
        Medium::Changer { path } => {
            Box::new(OpenLibrary::open(path).map_err(|why| MediaError::new(unit, why))?)
        }
        Medium::LibraryDrive { path, number } => {
            let opened = changer::open_drive(path, *number);
            Box::new(OpenTape(opened.map_err(|why| MediaError::new(unit, why))?))
        }
        Medium::Nbd { uri, .. } => Box::new(ConnectedExport::open(unit, ExportAddress::Nbd(uri.clone()))?),
        Medium::VhostUserBlk { path, .. } => {
            Box::new(ConnectedExport::open(unit, ExportAddress::VhostUser(path.clone()))?)
        }
        Medium::Sg { path, shared_with_host, .. } => {
            let opened = SgSpec { path: path.clone(), shared_with_host: *shared_with_host }.open();
            let opened = opened.map_err(|error| MediaError::of_open(unit, &error))?;
            Box::new(OpenDevice::Open(Box::new(opened)))
        }
        Medium::VhostUserScsi { path, patience, .. } => {
            let opened = ScsiSpec { path: path.clone(), patience: *patience }.open();
            let failed =
                |error: SgError| MediaError::of_server(unit, describe_error(&error), error.is_unreachable());
            Box::new(OpenDevice::Open(Box::new(opened.map_err(failed)?)))
        }
        Medium::Ram { size } => Box::new(LunMemory::Open(OpenMemory::new(size.0))),
        Medium::Null { size } => Box::new(NoStorage(*size)),
        Medium::Block { .. } | Medium::File { .. } => {
            Box::new(open_file_or_device(unit, provisional, handed_over)?)
        }
    })
}

fn open_file_or_device(
    unit: &Unit,
    provisional: &mut FileRollback,
    handed_over: &mut HandedOverFiles,
) -> Result<OpenDisk, MediaError> {
    let path = unit.medium.path().cloned().unwrap_or_default();
    let (read_only, write_cache) = (unit.read_only, unit.write_cache);
    let (opened, is_direct_file) = match &unit.medium {
        Medium::File { size, direct, .. } => {
            let spec = FileSpec {
                path: path.clone(),
                size: size
                    .map(|size| size.0.saturating_add(header_len(unit)))
                    .filter(|size| path.metadata().is_ok_and(|meta| meta.len() < *size) || !path.exists()),
                allocation: if unit.thin { Allocation::Sparse } else { Allocation::Full },
                read_only,
                direct: *direct,
                write_cache,
            };
            (spec.open_or_take(handed_over), *direct)
        }
        medium => {
            let direct = matches!(medium, Medium::Block { direct: true, .. });
            let spec = BlockSpec { path: path.clone(), read_only, direct, write_cache };
            (spec.open_or_take(handed_over), false)
        }
    };
    let mut opened = opened.map_err(|error| MediaError::of_open(unit, &error))?;
    provisional.0.extend(opened.take_undo());
    let block_len = backends::unopened::block_len(&path, is_direct_file).unwrap_or(1);
    let fits = expect_block_len(&path, block_len, unit.block_size);
    fits.map_err(|why| MediaError::new(unit, why))?;
    Ok(OpenDisk::new(opened, path))
}

/// Opens the image of a disc; for writing only if it is that of a writable disc. Without a file there is no
/// disc.
pub(super) fn open_disc(unit: &Unit, path: &Path) -> Result<Option<DiscImage>, MediaError> {
    disc::open(path, unit.read_only || !disc_image::is_writable(path))
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
    let opened = disc::open_again(path, served);
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
    pub(super) medium: Box<dyn ServedMedium>,
    keys: Option<MediaKeys>,
}

impl OpenMedium {
    /// Returns the identity of the file or device, if the medium is one.
    pub(super) fn identity(&self) -> Option<FileIdentity> {
        self.bare.identity()
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
        self.loss = self.bare.check_loss(unit, state)?;
        let failed = |why| MediaError::new(unit, why);
        // A cryptographic erase may have replaced a key since it was read.
        self.keys.as_ref().map_or(Ok(()), MediaKeys::check_current).map_err(failed)?;
        self.bare.receive(unit, late)?;
        self.look_at_identity(unit);
        Ok(())
    }

    /// Moves the medium to a reactor.
    pub(super) fn move_to_reactor(self, place: Place<'_>) -> ReactorMedium {
        ReactorMedium { medium: self.bare.place(place), keys: self.keys }
    }
}

impl ReactorMedium {
    /// Makes the store that a unit uses. `wake` notifies the reactor from another thread that the medium has
    /// results.
    pub(super) fn store(&self, pool: &Pool, wake: impl Fn() + Clone + Send + 'static) -> Box<dyn Store> {
        let bare = self.medium.store();
        match &self.keys {
            None => bare,
            Some(keys) => keys.decrypt(bare, pool, wake),
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
