//! A cartridge on its reactor. The logical unit and the daemon share it. It counts and logs failures.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use backends::cartridge_folder::{CartridgeFolder, CartridgeStore};
use drivers::files::FileQueue;
use store::Store;
use store::api::{Capabilities, Completion, Failure, Fault, Op};

use crate::os_error;

/// The least time between two logged failures of one cartridge.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A cartridge. Clones share one state.
#[derive(Clone)]
pub(super) struct Tape(Rc<RefCell<Inner>>);

struct Inner {
    store: CartridgeStore,
    path: PathBuf,
    label: String,
    capacity: u64,
    errors: u64,
    told: Option<Instant>,
    /// Whether the log says that the cartridge cannot be loaded again.
    told_broken: bool,
}

impl Tape {
    /// Serves an opened cartridge through `queue`.
    pub(super) fn new(folder: CartridgeFolder, queue: FileQueue, label: &str) -> Self {
        let (path, capacity) = (folder.path().to_owned(), folder.capacity());
        let store = CartridgeStore::new(folder, queue);
        let label = label.to_owned();
        Self(Rc::new(RefCell::new(Inner {
            store,
            path,
            label,
            capacity,
            errors: 0,
            told: None,
            told_broken: false,
        })))
    }

    /// Returns the capacity in bytes.
    pub(super) fn capacity(&self) -> u64 {
        self.0.borrow().capacity
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
        let error = self.store.take_error();
        if self.store.is_flush_broken() && !std::mem::replace(&mut self.told_broken, true) {
            let path = self.path.display();
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
        crate::error!("{}: {}: {what}{error}", self.label, self.path.display());
    }
}

impl Store for Tape {
    fn capabilities(&self) -> Capabilities {
        self.0.borrow().store.capabilities()
    }

    fn submit(&mut self, op: Op) {
        self.0.borrow_mut().store.submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut inner = self.0.borrow_mut();
        let completion = inner.store.poll()?;
        if let Err(failure) = completion.result {
            inner.failed(failure);
        }
        Some(completion)
    }
}
