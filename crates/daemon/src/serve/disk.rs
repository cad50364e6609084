//! A file or device on its reactor, where the daemon can look at it as well as the unit: it counts and tells failures, and lets
//! nothing through once it is not what it was.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use backends::open::{FileIdentity, Opened};
use backends::store::FileStore;
use drivers::files::FileQueue;
use store::Store;
use store::api::{Capabilities, Completion, Failure, Fault, Op, Space};

use crate::os_error;

/// Failures of one disk are told at most this often; those in between are counted.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// What the threads that look at a disk from outside know of it.
#[derive(Debug)]
pub(super) struct DiskInfo {
    pub(super) path: PathBuf,
    pub(super) identity: FileIdentity,
    /// Whether it was opened for reading only.
    pub(super) read_only: bool,
    /// How many bytes are served.
    len: AtomicU64,
    /// Whether it is withheld.
    withheld: AtomicBool,
}

impl DiskInfo {
    /// Returns how many bytes are served.
    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns whether it is withheld.
    pub(super) fn is_withheld(&self) -> bool {
        self.withheld.load(Ordering::Relaxed)
    }

    /// Compares what the path leads to with what is served.
    ///
    /// # Errors
    /// A sentence that says how they differ.
    pub(super) fn compare(&self) -> Result<(), String> {
        self.compare_with(self.len())
    }

    /// The same where a file may be as short as `len` bytes.
    pub(super) fn compare_with(&self, len: u64) -> Result<(), String> {
        let path = self.path.display();
        match FileIdentity::of_path(&self.path) {
            Ok((identity, _)) if identity != self.identity => {
                Err(format!("{path} is another file or device than the one that is served"))
            }
            Ok((_, Some(has))) if has < len => {
                Err(format!("{path} has shrunk to {has} bytes; {} are served", self.len()))
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(format!("{path} is gone; what is served has that name no more"))
            }
            // Where the daemon may not look, or cannot just now, nothing is known to be wrong.
            Err(_) => Ok(()),
        }
    }
}

/// A file or device.
#[derive(Clone, Debug)]
pub(super) struct Disk(Rc<RefCell<Inner>>);

struct Inner {
    store: FileStore,
    facts: Arc<DiskInfo>,
    label: String,
    /// Completions of what was not let through.
    refused: VecDeque<Completion>,
    withheld: Option<String>,
    errors: u64,
    told: Option<Instant>,
    untold: u64,
    when_cut: Option<Box<dyn Fn()>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").field("label", &self.label).finish_non_exhaustive()
    }
}

impl Disk {
    /// Serves what was opened through `queue`.
    pub(super) fn new(opened: Opened, path: PathBuf, queue: FileQueue, label: &str) -> Self {
        let (identity, read_only) = (opened.identity(), opened.is_read_only());
        let store = FileStore::new(opened, queue);
        let len = AtomicU64::new(store.capabilities().len);
        let facts = Arc::new(DiskInfo { path, identity, read_only, len, withheld: AtomicBool::new(false) });
        Self(Rc::new(RefCell::new(Inner {
            store,
            facts,
            label: label.to_owned(),
            refused: VecDeque::new(),
            withheld: None,
            errors: 0,
            told: None,
            untold: 0,
            when_cut: None,
        })))
    }

    /// Has `tell` called when a read meets the end of a file that was cut.
    pub(super) fn on_truncate(&self, tell: impl Fn() + 'static) {
        self.0.borrow_mut().when_cut = Some(Box::new(tell));
    }

    /// Returns what other threads may look at.
    pub(super) fn info(&self) -> Arc<DiskInfo> {
        Arc::clone(&self.0.borrow().facts)
    }

    /// Returns how often it failed so far.
    pub(super) fn errors(&self) -> u64 {
        self.0.borrow().errors
    }

    /// Returns why it is withheld, if it is.
    pub(super) fn withheld(&self) -> Option<String> {
        self.0.borrow().withheld.clone()
    }

    /// Calls it otherwise from now on.
    pub(super) fn rename(&self, label: &str) {
        let mut inner = self.0.borrow_mut();
        if inner.label != label {
            label.clone_into(&mut inner.label);
        }
    }

    /// Says whether writes may be acknowledged before they are durable.
    pub(super) fn set_write_cache(&self, write_cache: bool) {
        self.0.borrow_mut().store.set_write_cache(write_cache);
    }

    /// Lets nothing through any more; returns whether that is new.
    pub(super) fn withhold(&self, why: &str) -> bool {
        let mut inner = self.0.borrow_mut();
        if inner.withheld.is_some() {
            return false;
        }
        crate::error!(
            "{}: {why}: nothing is read or written until that is put right and the configuration is read again",
            inner.label
        );
        inner.withheld = Some(why.to_owned());
        inner.facts.withheld.store(true, Ordering::Relaxed);
        true
    }

    /// Serves it as it is now; returns whether it has another size, and whether it was withheld.
    ///
    /// # Errors
    /// What the system says; then it stays as it was.
    pub(super) fn accept_current_file(&self) -> std::io::Result<(bool, bool)> {
        let mut inner = self.0.borrow_mut();
        let changed = inner.store.refresh_len()?;
        let len = inner.store.capabilities().len;
        inner.facts.len.store(len, Ordering::Relaxed);
        inner.facts.withheld.store(false, Ordering::Relaxed);
        Ok((changed, inner.withheld.take().is_some()))
    }
}

impl Inner {
    /// Counts a failure, and tells of it unless another was told lately.
    fn failed(&mut self, failure: Failure) {
        let what = match failure.fault {
            Fault::NoSpace => "no space is left",
            Fault::ReadOnly => "it cannot be written",
            Fault::Gone if self.store.is_truncated() => "the file ends before the disk does",
            Fault::Gone => "it does not respond",
            Fault::Medium => "reading or writing failed",
            Fault::Hardware | Fault::Bug => "targe failed",
            // What others than the medium are to blame for.
            Fault::OutOfRange
            | Fault::Unsupported
            | Fault::Reserved
            | Fault::Forbidden
            | Fault::Busy
            | Fault::Aborted
            | Fault::NotSubmitted => return,
        };
        self.errors = self.errors.saturating_add(1);
        let error = self.store.take_error();
        if self.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
            self.untold = self.untold.saturating_add(1);
            return;
        }
        self.told = Some(Instant::now());
        let more = match std::mem::take(&mut self.untold) {
            0 => String::new(),
            more => format!(" ({more} more failures since the last one that was told)"),
        };
        let at = failure.at.map_or(String::new(), |at| format!(" at byte {at}"));
        let error = error.map_or(String::new(), |errno| format!(": {}", os_error(&errno.into())));
        let (label, path) = (&self.label, self.facts.path.display());
        crate::error!("{label}: {path}: {what}{at}{error}{more}");
    }
}

impl Store for Disk {
    fn capabilities(&self) -> Capabilities {
        self.0.borrow().store.capabilities()
    }

    fn space(&self) -> Option<Space> {
        self.0.borrow().store.space()
    }

    fn submit(&mut self, op: Op) {
        let mut inner = self.0.borrow_mut();
        if inner.withheld.is_some() {
            inner.refused.push_back(Completion { id: op.id, result: Err(Fault::NotSubmitted.into()) });
        } else {
            inner.store.submit(op);
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut inner = self.0.borrow_mut();
        if let Some(refused) = inner.refused.pop_front() {
            return Some(refused);
        }
        let completion = inner.store.poll()?;
        if let Err(failure) = &completion.result {
            let cut = inner.store.is_truncated() && inner.withheld.is_none();
            inner.failed(*failure);
            if cut && let Some(tell) = &inner.when_cut {
                tell();
            }
        }
        Some(completion)
    }
}
