//! Opens media: on the thread that reads configurations, before any reactor depends on them.

use std::cell::RefCell;
use std::error::Error;
use std::fs::OpenOptions;
use std::rc::Rc;

use backends::open::{Allocation, BlockSpec, FileSpec, OpenError, Opened};
use backends::store::FileStore;
use base::buffer::Pool;
use base::machine::MediumId;
use base::units::ByteLen;
use drivers::files::Files;
use store::Store;
use store::contract::{Completion, Op, Profile, Space};
use store::encrypt::Encrypted;
use store::null::Null;
use store::ram::Ram;

use super::media_key::{self, Keeper, MediaKeys};
use super::state::StateDir;
use crate::config::{Medium, Unit};
use crate::os_error;

/// A medium that is open, and can go to the reactor that will serve it.
#[derive(Debug)]
pub(super) struct Open {
    bare: Bare,
    keys: Option<MediaKeys>,
}

/// The same as it lies there.
#[derive(Debug)]
enum Bare {
    /// A file or device.
    Disk(Opened),
    /// Memory.
    Ram(ByteLen),
    /// Zeros.
    Null(ByteLen),
}

/// A medium cannot be opened or made larger.
#[derive(Debug, thiserror::Error)]
#[error("{unit}: {why}")]
pub struct MediaError {
    unit: String,
    why: String,
}

/// Opens the medium of a unit: creates it if its size is given, makes it longer if it is too short, and locks it.
pub(super) fn open(unit: &Unit, state: &StateDir) -> Result<Open, MediaError> {
    let bare = open_bare(unit)?;
    let keys = media_key::of(unit, state).map_err(|why| MediaError { unit: unit.label.clone(), why })?;
    Ok(Open { bare, keys })
}

fn open_bare(unit: &Unit) -> Result<Bare, MediaError> {
    let opened = match &unit.medium {
        Medium::Ram { size } => return Ok(Bare::Ram(*size)),
        Medium::Null { size } => return Ok(Bare::Null(*size)),
        Medium::Block { path, direct } => {
            let (read_only, write_cache) = (unit.read_only, unit.write_cache);
            BlockSpec { path: path.clone(), read_only, direct: *direct, write_cache }.open()
        }
        Medium::File { path, size, direct } => FileSpec {
            path: path.clone(),
            size: size
                .map(|size| size.0)
                .filter(|size| path.metadata().is_ok_and(|meta| meta.len() < *size) || !path.exists()),
            allocation: if unit.thin { Allocation::Sparse } else { Allocation::Full },
            read_only: unit.read_only,
            direct: *direct,
            write_cache: unit.write_cache,
        }
        .open(),
    };
    opened.map(Bare::Disk).map_err(|error| MediaError { unit: unit.label.clone(), why: told(&error) })
}

/// Makes the file of a unit that is served as long as its configuration now asks. Reserves the storage of a full one.
pub(super) fn grow(unit: &Unit) -> Result<(), MediaError> {
    let Medium::File { path, size: Some(size), .. } = &unit.medium else { return Ok(()) };
    if unit.read_only {
        return Ok(());
    }
    let failed = |error: std::io::Error| {
        let why = format!("cannot make {} longer: {}", path.display(), os_error(&error));
        MediaError { unit: unit.label.clone(), why }
    };
    let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() >= size.0 {
        return Ok(());
    }
    if !unit.thin {
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, flags, 0, size.0).map_err(|errno| failed(errno.into()))?;
    }
    file.set_len(size.0).map_err(failed)?;
    file.sync_all().map_err(failed)
}

/// Makes everything that a unit's file or device holds durable.
pub(super) fn sync(unit: &Unit) -> Result<(), MediaError> {
    let Some(path) = unit.medium.path().filter(|_| !unit.read_only) else { return Ok(()) };
    let synced = OpenOptions::new().write(true).open(path).and_then(|file| file.sync_all());
    synced.map_err(|error| {
        let why = format!("cannot make {} durable: {}", path.display(), os_error(&error));
        MediaError { unit: unit.label.clone(), why }
    })
}

/// Writes an error with its cause.
fn told(error: &OpenError) -> String {
    match error.source().and_then(|source| source.downcast_ref::<std::io::Error>()) {
        Some(source) => format!("{error}: {}", os_error(source)),
        None => error.to_string(),
    }
}

/// A file or device on its reactor, where the daemon can look at it as well as the unit.
#[derive(Clone, Debug)]
pub(super) struct Disk(Rc<RefCell<FileStore>>);

impl Disk {
    /// Measures it again; returns whether it has another size.
    pub(super) fn refresh(&self) -> std::io::Result<bool> {
        Ok(self.0.borrow_mut().refresh_len()?)
    }
}

impl Store for Disk {
    fn profile(&self) -> Profile {
        self.0.borrow().profile()
    }

    fn space(&self) -> Option<Space> {
        self.0.borrow().space()
    }

    fn submit(&mut self, op: Op) {
        self.0.borrow_mut().submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().poll()
    }
}

/// A medium on its reactor.
pub(super) struct Placed {
    bare: PlacedBare,
    keys: Option<MediaKeys>,
}

/// The same as it lies there.
enum PlacedBare {
    /// A file or device.
    Disk(Disk),
    /// Memory.
    Ram(ByteLen),
    /// Zeros.
    Null(ByteLen),
}

impl Open {
    /// Brings the medium to the reactor of `files`.
    pub(super) fn place(self, files: &Files, id: MediumId) -> Placed {
        let bare = match self.bare {
            Bare::Disk(opened) => {
                PlacedBare::Disk(Disk(Rc::new(RefCell::new(FileStore::new(opened, files.queue(id))))))
            }
            Bare::Ram(size) => PlacedBare::Ram(size),
            Bare::Null(size) => PlacedBare::Null(size),
        };
        Placed { bare, keys: self.keys }
    }
}

impl Placed {
    /// Makes what a unit works on. Memory is fresh each time. `wake` tells, from another thread, that the medium is to be
    /// looked at.
    pub(super) fn store(&self, pool: &Pool, wake: impl Fn() + Clone + Send + 'static) -> Box<dyn Store> {
        let bare: Box<dyn Store> = match &self.bare {
            PlacedBare::Disk(disk) => Box::new(disk.clone()),
            PlacedBare::Ram(size) => Box::new(Ram::new(size.0)),
            PlacedBare::Null(size) => Box::new(Null::new(size.0)),
        };
        match &self.keys {
            None => bare,
            Some(keys) => {
                let keeper = Keeper::new(keys.clone(), wake);
                Box::new(Encrypted::new(bare, keeper, &keys.key, keys.unit, pool.clone()))
            }
        }
    }

    /// Returns the file or device, if it is one.
    pub(super) fn disk(self) -> Option<Disk> {
        match self.bare {
            PlacedBare::Disk(disk) => Some(disk),
            PlacedBare::Ram(_) | PlacedBare::Null(_) => None,
        }
    }
}
