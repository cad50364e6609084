//! The cartridge of a drive on its reactor. The logical unit and the daemon share it. It counts and logs
//! failures. The drives of a library can be empty.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;

use backends::cartridge_folder::{CartridgeFolder, CartridgeStore};
use backends::open::FileIdentity;
use base::buffer::DataList;
use drivers::files::FileQueue;
use scsi::sense::{Sense, SenseKeySpecific};
use store::Store;
use store::api::{Capabilities, Completion, Failure, Fault, Op, OpAction, OpOutput};
use store::null::Null;
use target::target::UnitReport;

use crate::config::Unit;
use crate::os_error;
use crate::serve::media::MediaError;
use crate::serve::media::error::describe_error;
use crate::serve::media::handed_over::{MovedCartridge, MovingMedium, Obstacle, SessionMedia};
use crate::serve::media::log_throttle::LogThrottle;
use crate::serve::media::opened::{OpenedMedium, Place};
use crate::serve::media::served::{MediumHealth, ServedMedium, describe_not_ready};

/// The place for a cartridge in a drive. Clones share one state.
#[derive(Clone)]
pub(in crate::serve) struct Tape(Rc<RefCell<Inner>>);

struct Inner {
    cartridge: Option<Loaded>,
    label: String,
    errors: u64,
    throttle: LogThrottle,
    /// Completions of operations that an empty drive got.
    without: VecDeque<Completion>,
}

/// A cartridge.
struct Loaded {
    store: CartridgeStore,
    path: PathBuf,
    capacity: u64,
    /// Whether the log says that the cartridge cannot be loaded again.
    told_broken: bool,
}

impl Tape {
    /// Serves an opened cartridge, or none, through `queue`.
    pub(in crate::serve) fn new(folder: Option<CartridgeFolder>, queue: FileQueue, label: &str) -> Self {
        let inner = Inner {
            cartridge: None,
            label: label.to_owned(),
            errors: 0,
            throttle: LogThrottle::default(),
            without: VecDeque::new(),
        };
        let tape = Self(Rc::new(RefCell::new(inner)));
        if let Some(folder) = folder {
            tape.insert(folder, queue);
        }
        tape
    }

    /// Puts a cartridge into an empty drive.
    pub(in crate::serve) fn insert(&self, folder: CartridgeFolder, queue: FileQueue) {
        let (path, capacity) = (folder.path().to_owned(), folder.capacity());
        let store = CartridgeStore::new(folder, queue);
        self.0.borrow_mut().cartridge = Some(Loaded { store, path, capacity, told_broken: false });
    }

    /// Takes the cartridge out and closes it. No operation is under way.
    pub(in crate::serve) fn remove(&self) {
        self.0.borrow_mut().cartridge = None;
    }

    /// Returns whether there is no cartridge.
    pub(in crate::serve) fn is_empty(&self) -> bool {
        self.0.borrow().cartridge.is_none()
    }

    /// Returns whether the files could not be made durable, so that the cartridge must not be opened again by
    /// this process.
    pub(in crate::serve) fn is_flush_broken(&self) -> bool {
        self.0.borrow().cartridge.as_ref().is_some_and(|loaded| loaded.store.is_flush_broken())
    }
}

/// Says why hosts find a tape drive not ready: it can be checking a cartridge that was not unloaded.
fn describe_loading(sense: Sense) -> Cow<'static, str> {
    match sense.specific {
        Some(SenseKeySpecific::Progress(progress)) => {
            let percent = u32::from(progress) * 100 / 65_536;
            format!("the cartridge was not unloaded and is checked; {percent} % of its capacity so far")
                .into()
        }
        _ => describe_not_ready(sense).into(),
    }
}

impl ServedMedium for Tape {
    fn store(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }

    fn configure(&self, unit: &Unit) {
        unit.label.clone_into(&mut self.0.borrow_mut().label);
    }

    fn health(&self) -> MediumHealth {
        MediumHealth { errors: self.0.borrow().errors, ..MediumHealth::default() }
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.0.borrow().cartridge.as_ref().map_or(0, |loaded| loaded.capacity))
    }

    fn why_not_ready(&self, report: &UnitReport) -> Option<Cow<'static, str>> {
        if self.is_empty() {
            Some("there is no cartridge in the drive".into())
        } else if !report.medium_present {
            Some("an initiator has unloaded the cartridge".into())
        } else {
            report.not_ready.map(describe_loading)
        }
    }

    fn obstacle(&self) -> Option<Obstacle> {
        let why = "the cartridge could not be made durable, and only this process reports that to its hosts";
        self.is_flush_broken().then(|| Obstacle::lasting(format!("{}: {why}", self.0.borrow().label)))
    }

    fn export(&self, unit: &str) -> Result<Option<MovingMedium>, String> {
        let inner = self.0.borrow();
        let Some(Loaded { store, path, .. }) = inner.cartridge.as_ref() else { return Ok(None) };
        let (drive, path, read_only) = (unit.to_owned(), path.clone(), store.is_read_only());
        let files = store.try_clone_files();
        let files = files.map_err(|error| format!("cannot pass a cartridge on: {}", os_error(&error)))?;
        Ok(Some(MovingMedium::Cartridge(MovedCartridge { drive, path, read_only, files })))
    }
}

/// A drive for tapes before it is on its reactor, with the cartridge in it.
#[derive(Debug)]
pub(in crate::serve) struct OpenTape(pub(in crate::serve) Option<CartridgeFolder>);

impl OpenedMedium for OpenTape {
    fn identity(&self) -> Option<FileIdentity> {
        self.0.as_ref().map(CartridgeFolder::identity)
    }

    fn receive(&mut self, unit: &Unit, media: &mut SessionMedia) -> Result<(), MediaError> {
        if let Some(moved) = media.cartridges.remove(&unit.identity.naa.to_string()) {
            let cartridge = CartridgeFolder::take(&moved.path, moved.read_only, moved.files);
            let failed = |error| MediaError::new(unit, describe_error(&error));
            self.0 = Some(cartridge.map_err(failed)?);
        }
        Ok(())
    }

    fn place(self: Box<Self>, place: Place<'_>) -> Box<dyn ServedMedium> {
        Box::new(Tape::new(self.0, place.files.queue(place.id), place.label))
    }
}

impl Inner {
    /// Counts a failure, and logs it unless one was logged shortly before.
    fn failed(&mut self, failure: Failure) {
        let what = match failure.fault {
            // A file of the log that does not exist holds nothing, and a file system may not free storage.
            Fault::OutOfRange | Fault::Unsupported => return,
            Fault::NoSpace => "no space left",
            Fault::ReadOnly => "it is not writable",
            _ => "read or write failed",
        };
        self.errors = self.errors.saturating_add(1);
        let Some(loaded) = &mut self.cartridge else { return };
        let error = loaded.store.take_error();
        if loaded.store.is_flush_broken() && !std::mem::replace(&mut loaded.told_broken, true) {
            let path = loaded.path.display();
            crate::error!(
                "{}: {path} could not be made durable; once it is unloaded, it cannot be loaded again until targe is restarted",
                self.label
            );
        }
        let Some(more) = self.throttle.may_log() else { return };
        let error = error.map_or(String::new(), |errno| format!(": {}", os_error(&errno.into())));
        crate::error!("{}: {}: {what}{error}{more}", self.label, loaded.path.display());
    }
}

impl Store for Tape {
    fn capabilities(&self) -> Capabilities {
        match &self.0.borrow().cartridge {
            Some(loaded) => loaded.store.capabilities(),
            None => Null::new(0).capabilities(),
        }
    }

    fn submit(&mut self, op: Op) {
        let mut inner = self.0.borrow_mut();
        match &mut inner.cartridge {
            Some(loaded) => loaded.store.submit(op),
            None => {
                // There is nothing that is not durable.
                let result = match op.action {
                    OpAction::Flush => Ok(OpOutput::Done(DataList::new())),
                    _ => Err(Fault::NotSubmitted.into()),
                };
                inner.without.push_back(Completion { id: op.id, result });
            }
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut inner = self.0.borrow_mut();
        if let Some(completion) = inner.without.pop_front() {
            return Some(completion);
        }
        let completion = inner.cartridge.as_mut()?.store.poll()?;
        if let Err(failure) = completion.result {
            inner.failed(failure);
        }
        Some(completion)
    }
}
