//! The cartridge of a drive on its reactor. The logical unit and the daemon share it. It counts and logs
//! failures. The drives of a library can be empty.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use backends::cartridge_folder::{CartridgeFolder, CartridgeStore};
use base::buffer::DataList;
use drivers::files::FileQueue;
use store::Store;
use store::api::{Capabilities, Completion, Failure, Fault, Op, OpAction, OpOutput};
use store::null::Null;

use super::handed_over::MovedCartridge;
use crate::os_error;

/// The least time between two logged failures of one cartridge.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// The place for a cartridge in a drive. Clones share one state.
#[derive(Clone)]
pub(super) struct Tape(Rc<RefCell<Inner>>);

struct Inner {
    cartridge: Option<Loaded>,
    label: String,
    errors: u64,
    told: Option<Instant>,
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
    pub(super) fn new(folder: Option<CartridgeFolder>, queue: FileQueue, label: &str) -> Self {
        let inner = Inner {
            cartridge: None,
            label: label.to_owned(),
            errors: 0,
            told: None,
            without: VecDeque::new(),
        };
        let tape = Self(Rc::new(RefCell::new(inner)));
        if let Some(folder) = folder {
            tape.insert(folder, queue);
        }
        tape
    }

    /// Puts a cartridge into an empty drive.
    pub(super) fn insert(&self, folder: CartridgeFolder, queue: FileQueue) {
        let (path, capacity) = (folder.path().to_owned(), folder.capacity());
        let store = CartridgeStore::new(folder, queue);
        self.0.borrow_mut().cartridge = Some(Loaded { store, path, capacity, told_broken: false });
    }

    /// Takes the cartridge out and closes it. No operation is under way.
    pub(super) fn remove(&self) {
        self.0.borrow_mut().cartridge = None;
    }

    /// Returns the cartridge for another process; `None` if there is none.
    pub(super) fn moved(&self, drive: String) -> Option<io::Result<MovedCartridge>> {
        let inner = self.0.borrow();
        let Loaded { store, path, .. } = inner.cartridge.as_ref()?;
        let (path, read_only) = (path.clone(), store.is_read_only());
        Some(store.try_clone_files().map(|files| MovedCartridge { drive, path, read_only, files }))
    }

    /// Returns why another process cannot serve the cartridge as this one does, if that is so.
    pub(super) fn obstacle(&self) -> Option<String> {
        let why = "the cartridge could not be made durable, and only this process reports that to its hosts";
        self.is_flush_broken().then(|| format!("{}: {why}", self.0.borrow().label))
    }

    /// Returns whether there is no cartridge.
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().cartridge.is_none()
    }

    /// Returns whether the files could not be made durable, so that the cartridge must not be opened again by
    /// this process.
    pub(super) fn is_flush_broken(&self) -> bool {
        self.0.borrow().cartridge.as_ref().is_some_and(|loaded| loaded.store.is_flush_broken())
    }

    /// Returns the capacity in bytes.
    pub(super) fn capacity(&self) -> u64 {
        self.0.borrow().cartridge.as_ref().map_or(0, |loaded| loaded.capacity)
    }

    /// Returns how many operations failed so far.
    pub(super) fn errors(&self) -> u64 {
        self.0.borrow().errors
    }
}

impl Inner {
    /// Counts a failure, and logs it unless another one was logged less than [`TELL_EVERY`] ago.
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
        if self.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
            return;
        }
        self.told = Some(Instant::now());
        let error = error.map_or(String::new(), |errno| format!(": {}", os_error(&errno.into())));
        crate::error!("{}: {}: {what}{error}", self.label, loaded.path.display());
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
