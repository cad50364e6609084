//! A file or device on its reactor. The logical unit and the daemon share it. It counts and logs failures,
//! and refuses all operations while it is withheld.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use backends::open::{FileIdentity, Opened};
use backends::store::{FileSpace, FileStore, SizeMeter};
use drivers::files::{FileQueue, ReleasedFile};
use store::Store;
use store::api::{Capabilities, Completion, Failure, Fault, Op, OpId, Space};

use self::failures::Failures;
use self::loss::{SYNC_OP, Syncs};
use self::snapshot::{Snapshot, SnapshotId, SnapshotOrder, SnapshotReporter};
use crate::os_error;
use crate::serve::media::identity::MediumIdentity;
use crate::serve::media::image_state::ImageState;
use crate::serve::media::known_loss::{Loss, RecordLoss};
use crate::serve::media::log_throttle::LogThrottle;

mod failures;
pub(in crate::serve) mod loss;
pub(in crate::serve) mod opened;
mod served;
pub(in crate::serve) mod snapshot;

/// The identifier of the operations of a snapshot. The numbers of a unit are lower: their upper half is a
/// generation, which does not come that far.
const SNAPSHOT_OP: OpId = OpId(u64::MAX - 1);

/// The identifier of the flush of a disc that leaves its drive.
pub(in crate::serve) const LEAVING_FLUSH: OpId = OpId(u64::MAX - 2);

/// What a reload found of a disk that it keeps, before it changed anything.
#[derive(Clone, Debug)]
pub(in crate::serve) struct ComparedDisk {
    /// How the file or device differs from what is served, if it does.
    pub(in crate::serve) wrong: Option<String>,
    /// The least length in bytes that is accepted.
    pub(in crate::serve) len_min: u64,
    /// Whether the disk was withheld.
    pub(in crate::serve) was_withheld: bool,
    /// How many bytes the served file or device has, or why that is unknown.
    pub(in crate::serve) size: Result<u64, String>,
}

/// What became of a file or device that was to be served as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Accepted {
    /// It is too short; nothing has changed.
    Shrunk,
    /// It is served.
    Served {
        /// Whether its size changed.
        changed: bool,
        /// Whether it was withheld.
        withheld: bool,
    },
}

/// The properties of a disk that other threads can read.
#[derive(Debug)]
pub(in crate::serve) struct DiskInfo {
    pub(in crate::serve) path: PathBuf,
    pub(in crate::serve) identity: FileIdentity,
    /// What distinguishes the file or device from all others.
    pub(in crate::serve) medium: MediumIdentity,
    /// Whether it was opened for reading only.
    pub(in crate::serve) read_only: bool,
    /// The state of the file when it was opened, if it is the image of a disc.
    pub(in crate::serve) image: Option<ImageState>,
    /// Measures what is served.
    meter: SizeMeter,
    /// The path of the file without links and what the file takes from its file system, as it was measured
    /// last.
    space: Mutex<Option<(PathBuf, FileSpace)>>,
    /// A descriptor that holds the lock of the image of a writable disc, by which it can be opened again.
    locked: Option<ReleasedFile>,
    /// The length in bytes that is served.
    len: AtomicU64,
    /// Whether it is withheld.
    withheld: AtomicBool,
    /// How many operations the file or device has.
    under_way: AtomicUsize,
    /// Whether it is a disc that was taken out of its drive.
    has_left: AtomicBool,
}

impl DiskInfo {
    /// Returns the length in bytes that is served.
    pub(in crate::serve) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns how many bytes the file or device has now, whatever part of it is served. It can wait.
    ///
    /// # Errors
    /// The error of the system, as a text.
    pub(in crate::serve) fn measure(&self) -> Result<u64, String> {
        self.meter.measure().map_err(|errno| os_error(&errno.into()))
    }

    /// Measures what the file takes from its file system. It can wait.
    pub(in crate::serve) fn measure_space(&self) {
        if matches!(self.identity, FileIdentity::File(..)) {
            // The lock is not held while the file system may wait.
            let resolved = || self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
            let measured = self.meter.measure_space().ok().map(|space| (resolved(), space));
            *self.space.lock().unwrap_or_else(PoisonError::into_inner) = measured;
        }
    }

    /// Returns what was measured last.
    pub(in crate::serve) fn space(&self) -> Option<(PathBuf, FileSpace)> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether the path leads to it.
    pub(in crate::serve) fn is_at(&self, path: &Path) -> bool {
        FileIdentity::of_path(path).is_ok_and(|(identity, _)| identity == self.identity)
    }

    /// Returns a descriptor that holds the lock of the image of a writable disc.
    ///
    /// # Errors
    /// The error of the system.
    pub(in crate::serve) fn duplicate_lock(&self) -> std::io::Result<Option<File>> {
        self.locked.as_ref().map(|file| file.try_clone()).transpose()
    }

    /// Returns whether it is withheld.
    pub(in crate::serve) fn is_withheld(&self) -> bool {
        self.withheld.load(Ordering::Acquire)
    }

    /// Returns whether operations of hosts are under way. None begin on a disc that is withheld.
    pub(in crate::serve) fn has_operations(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0
    }

    /// Records that the disc was taken out of its drive. It is closed when its operations have ended.
    pub(in crate::serve) fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
    }

    /// Returns whether it is a disc that was taken out of its drive.
    pub(in crate::serve) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    /// Returns whether the path is to be compared with what is served. A read-only disc stays in its drive
    /// until a reload, whatever the path leads to. What hosts write to another one must not go to a file that
    /// nobody finds.
    pub(in crate::serve) fn is_watched(&self) -> bool {
        (self.image.is_none() || !self.read_only) && !self.is_withheld() && !self.has_left()
    }

    /// Compares the file or device at the path with the one that is served.
    ///
    /// # Errors
    /// A sentence that describes the difference.
    pub(in crate::serve) fn compare(&self) -> Result<(), String> {
        self.compare_with(self.len())
    }

    /// Compares the same, but accepts a file of at least `len` bytes.
    pub(in crate::serve) fn compare_with(&self, len: u64) -> Result<(), String> {
        let path = self.path.display();
        match FileIdentity::of_path(&self.path) {
            Ok((identity, _)) if identity != self.identity => {
                Err(format!("{path} is not the file or device that is served"))
            }
            Ok((_, Some(has))) if has < len => {
                Err(format!("{path} has shrunk to {has} bytes; {} are served", self.len()))
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(format!("{path} no longer exists; the file or device that is served has lost this name"))
            }
            // If the daemon may not access the file, or cannot at the moment, the file is assumed to be
            // unchanged.
            Err(_) => Ok(()),
        }
    }
}

/// A file or device. Clones share one state.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Disk(Rc<RefCell<Inner>>);

struct Inner {
    store: FileStore,
    facts: Arc<DiskInfo>,
    label: String,
    /// Completions of operations that were refused.
    refused: VecDeque<Completion>,
    withheld: Option<String>,
    errors: u64,
    failures: Failures,
    throttle: LogThrottle,
    when_cut: Option<Box<dyn Fn()>>,
    snapshot: Option<Snapshot>,
    /// Operations that wait for the end of the snapshot, oldest first. There are at most as many as the unit
    /// has under way.
    held: VecDeque<Op>,
    /// What the image of a disc ended with when it was opened.
    trailer: Option<Vec<u8>>,
    /// The writes that were lost, until the operator accepts that.
    loss: Option<Loss>,
    record_loss: Option<RecordLoss>,
    /// Failed operations that are reported when the loss is recorded.
    unrecorded: VecDeque<Completion>,
    syncs: Syncs,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").field("label", &self.label).finish_non_exhaustive()
    }
}

impl Disk {
    /// Serves an opened file or device through `queue`.
    pub(in crate::serve) fn new(
        (opened, medium): (Opened, MediumIdentity),
        (path, image): (PathBuf, Option<ImageState>),
        queue: FileQueue,
        label: &str,
    ) -> Self {
        let (identity, read_only) = (opened.identity(), opened.is_read_only());
        let duplicate = (image.is_some() && !read_only).then(|| opened.duplicate());
        let locked = duplicate.and_then(|duplicate| match duplicate {
            Ok(duplicate) => Some(duplicate),
            Err(error) => {
                let why = os_error(&error);
                crate::warning!("{label}: if its disc is withheld, a reload cannot serve it again: {why}");
                None
            }
        });
        let store = FileStore::new(opened, queue);
        let meter = store.size_meter();
        let len = AtomicU64::new(store.capabilities().len);
        let withheld = AtomicBool::new(false);
        let (under_way, has_left) = (AtomicUsize::new(0), AtomicBool::new(false));
        let facts = Arc::new(DiskInfo {
            path,
            identity,
            medium,
            read_only,
            image,
            meter,
            space: Mutex::default(),
            locked: locked.map(ReleasedFile::from),
            len,
            withheld,
            under_way,
            has_left,
        });
        Self(Rc::new(RefCell::new(Inner {
            store,
            facts,
            label: label.to_owned(),
            refused: VecDeque::new(),
            withheld: None,
            errors: 0,
            failures: Failures::default(),
            throttle: LogThrottle::default(),
            when_cut: None,
            snapshot: None,
            held: VecDeque::new(),
            trailer: None,
            loss: None,
            record_loss: None,
            unrecorded: VecDeque::new(),
            syncs: Syncs::default(),
        })))
    }

    /// Keeps what the image of a disc ended with when it was opened.
    pub(in crate::serve) fn with_trailer(self, trailer: Option<Vec<u8>>) -> Self {
        self.0.borrow_mut().trailer = trailer;
        self
    }

    /// Sets the function that is called when a read passes the end of a file that was truncated.
    pub(in crate::serve) fn on_truncate(&self, tell: impl Fn() + 'static) {
        self.0.borrow_mut().when_cut = Some(Box::new(tell));
    }

    /// Returns the properties that other threads can read.
    pub(in crate::serve) fn info(&self) -> Arc<DiskInfo> {
        Arc::clone(&self.0.borrow().facts)
    }

    /// Returns why it is withheld, if it is.
    pub(in crate::serve) fn withheld(&self) -> Option<String> {
        self.0.borrow().withheld.clone()
    }

    /// Begins to make `to` have the contents of the file, in the same storage, and reports each step.
    /// Everything that was acknowledged before the file is cloned is in it.
    pub(in crate::serve) fn begin_snapshot(
        &self,
        id: SnapshotId,
        to: Arc<ReleasedFile>,
        reporter: SnapshotReporter,
    ) {
        self.0.borrow_mut().begin_snapshot(id, to, reporter);
    }

    /// Carries out an order for a snapshot. The caller polls the disk then, since nothing else announces what
    /// has ended at once.
    pub(in crate::serve) fn order_snapshot(&self, id: SnapshotId, order: SnapshotOrder) {
        self.0.borrow_mut().order_snapshot(id, order);
    }

    /// Returns another descriptor of the file or device, with its lock.
    pub(in crate::serve) fn try_clone_file(&self) -> std::io::Result<File> {
        self.0.borrow().store.try_clone_file()
    }

    /// Returns another descriptor of the second open file description of the file or device, which has a
    /// report of failed writes of its own; `None` if there is none.
    pub(in crate::serve) fn try_clone_verifier(&self) -> Option<std::io::Result<File>> {
        self.0.borrow().store.try_clone_verifier()
    }

    /// Withholds the disk: refuses all further operations. Returns whether the disk was not withheld before.
    pub(in crate::serve) fn withhold(&self, why: &str) -> bool {
        let mut inner = self.0.borrow_mut();
        if inner.withheld.is_some() {
            return false;
        }
        crate::error!(
            "{}: {why}: nothing is read or written until this is corrected and the configuration is reloaded",
            inner.label
        );
        inner.withheld = Some(why.to_owned());
        inner.facts.withheld.store(true, Ordering::Release);
        true
    }

    /// Serves the file or device with the size that it has now, if that is at least `len_min` bytes.
    pub(in crate::serve) fn accept_size(&self, size: u64, len_min: u64) -> Accepted {
        let mut inner = self.0.borrow_mut();
        if size < len_min {
            return Accepted::Shrunk;
        }
        let changed = inner.store.adopt_size(size);
        let len = inner.store.capabilities().len;
        inner.facts.len.store(len, Ordering::Relaxed);
        inner.facts.withheld.store(false, Ordering::Relaxed);
        if inner.withheld.is_some() {
            inner.failures.clear();
        }
        Accepted::Served { changed, withheld: inner.withheld.take().is_some() }
    }
}

impl Inner {
    /// Counts a failure, and logs it unless one was logged shortly before. Returns its reason if the medium
    /// has caused it.
    fn failed(&mut self, failure: Failure) -> Option<String> {
        let what = match failure.fault {
            Fault::NoSpace => "no space left",
            Fault::ReadOnly => "it is not writable",
            Fault::Gone if self.store.is_truncated() => "the file ends before the disk does",
            Fault::Gone => "it does not respond",
            Fault::Medium => "read or write failed",
            Fault::Hardware | Fault::Bug => "internal error of targe",
            // These failures are not caused by the medium.
            Fault::OutOfRange
            | Fault::Unsupported
            | Fault::Reserved
            | Fault::Forbidden
            | Fault::Busy
            | Fault::Aborted
            | Fault::NotSubmitted => return None,
        };
        self.errors = self.errors.saturating_add(1);
        let error = self.store.take_error();
        let error = error.map_or(String::new(), |errno| format!(": {}", os_error(&errno.into())));
        let why = Some(format!("{what}{error}"));
        let Some(more) = self.throttle.may_log() else { return why };
        let at = failure.at.map_or(String::new(), |at| format!(" at byte {at}"));
        let (label, path) = (&self.label, self.facts.path.display());
        crate::error!("{label}: {path}: {what}{at}{error}{more}");
        why
    }
}

impl Inner {
    /// Returns whether operations wait for the end of a snapshot.
    fn is_holding(&self) -> bool {
        self.snapshot.as_ref().is_some_and(Snapshot::is_holding)
    }

    fn begin(&mut self, op: Op) {
        // What hosts wrote before a disc was withheld is made durable when it leaves the drive.
        if self.withheld.is_some() && op.id != LEAVING_FLUSH {
            self.refused.push_back(Completion { id: op.id, result: Err(Fault::NotSubmitted.into()) });
        } else {
            self.facts.under_way.fetch_add(1, Ordering::Release);
            self.failures.begin(op.id, &op.action);
            self.store.submit(op);
        }
    }

    /// Handles the end of an operation of the unit.
    fn ended(&mut self, completion: Completion) -> Completion {
        self.facts.under_way.fetch_sub(1, Ordering::Release);
        self.continue_snapshot();
        let result = match &completion.result {
            Ok(_) => Some(Ok(())),
            Err(failure) => self.failed(*failure).map(Err),
        };
        self.failures.end(completion.id, result);
        if completion.result.is_err() {
            let cut = self.store.is_truncated() && self.withheld.is_none();
            if cut && let Some(tell) = &self.when_cut {
                tell();
            }
        }
        completion
    }
}

impl Store for Disk {
    fn capabilities(&self) -> Capabilities {
        self.0.borrow().store.capabilities()
    }

    fn space(&self) -> Option<Space> {
        self.0.borrow().store.space()
    }

    fn trailer(&self) -> Option<Vec<u8>> {
        self.0.borrow().trailer.clone()
    }

    fn submit(&mut self, op: Op) {
        let mut inner = self.0.borrow_mut();
        if inner.is_holding() {
            inner.held.push_back(op);
        } else {
            inner.begin(op);
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut inner = self.0.borrow_mut();
        loop {
            if let Some(refused) = inner.refused.pop_front() {
                return Some(refused);
            }
            if !inner.is_recording_loss()
                && let Some(failed) = inner.unrecorded.pop_front()
            {
                return Some(failed);
            }
            let completion = inner.store.poll()?;
            inner.notice_loss();
            match completion.id {
                SNAPSHOT_OP => inner.snapshot_step_ended(completion.result.map(drop)),
                SYNC_OP => inner.sync_ended(completion.result.map(drop)),
                _ => {
                    let completion = inner.ended(completion);
                    if completion.result.is_ok() || !inner.is_recording_loss() {
                        return Some(completion);
                    }
                    inner.unrecorded.push_back(completion);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
