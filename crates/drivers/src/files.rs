//! File operations: submitted by the media that need them, carried out by the engine of the reactor.
//!
//! A medium gets a [`FileQueue`] for its number, submits [`FileOp`]s and collects [`FileDone`]s. An operation
//! owns its buffers until it is done. Operations that are in flight together may take effect in any order.
//!
//! No operation makes the thread of the reactor wait for a disk. That thread does what is mere copying out of
//! memory. The ring does what the kernel begins without waiting. Threads do the rest, with both engines: a
//! ring has workers for this too, but files whose hash is equal share one, so that a disk that hangs delays
//! another one. `inline` decides between the three, `share` bounds what each medium may have in flight.

mod call;
mod closing;
mod inline;
mod share;
mod sync;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use base::buffer::{Buf, DataList, Pool};
use base::state_machine::MediumId;
use smallvec::SmallVec;

pub use rustix::io::Errno;

use crate::clock::Clock;
use crate::slab::Slab;
use crate::stats::Stats;
use crate::threads::{Job, Threads};
use crate::waker::Waker;
pub use call::{Call, CallOutput};
pub use closing::{ReleasedFile, await_closes, close_elsewhere, release};
use inline::{Circumstances, FileBehavior, Place};
use share::{Class, QueueState};
use sync::Attempt;
pub(crate) use sync::{rest, room, run_to_end};

/// The error of an operation that was not begun, because the system allowed no thread to carry it out. An
/// operation that the kernel has executed never ends with it, whatever its file system reports.
pub const NOT_BEGUN: Errno = Errno::AGAIN;

/// An open file, as operations name it. Clones share one file, which is closed with the last of them.
#[derive(Clone, Debug)]
pub struct IoFile {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: ReleasedFile,
    behavior: FileBehavior,
}

/// A file that is closed when no [`IoFile`] is left.
#[derive(Clone, Debug)]
pub struct WeakIoFile {
    inner: Weak<Inner>,
}

impl WeakIoFile {
    /// Returns the file, if it is still open.
    pub fn upgrade(&self) -> Option<IoFile> {
        self.inner.upgrade().map(|inner| IoFile { inner })
    }
}

/// One operation.
#[derive(Debug)]
pub struct FileOp {
    /// Returned with the result. The submitter chooses it.
    pub token: u64,
    /// The file.
    pub file: IoFile,
    /// What to do.
    pub kind: FileOpKind,
}

/// The buffers of a read, filled in order.
pub type ReadBufs = SmallVec<[Buf; 1]>;

/// What an operation does. Offsets and lengths are in bytes.
#[derive(Debug)]
pub enum FileOpKind {
    /// Reads `len` bytes at `at` into the spare capacity of `bufs`, which must suffice.
    Read {
        /// Where to start.
        at: u64,
        /// How many bytes.
        len: usize,
        /// The buffers to fill.
        bufs: ReadBufs,
    },
    /// Writes `data` at `at`.
    Write {
        /// Where to start.
        at: u64,
        /// The bytes.
        data: DataList,
        /// Whether the operation ends only when the data is durable (`RWF_DSYNC`).
        stable: bool,
    },
    /// Makes the file durable.
    Sync {
        /// Whether only the data and what is needed to read it back must be durable (`fdatasync`).
        data_only: bool,
    },
    /// Changes the storage of a range without changing the file's size.
    Fallocate {
        /// What happens to the storage.
        mode: FallocateMode,
        /// Where to start.
        at: u64,
        /// How many bytes.
        len: u64,
    },
    /// Lists data and holes of a range.
    Extents {
        /// Where to start.
        at: u64,
        /// How many bytes.
        len: u64,
        /// At most this many extents.
        count_max: usize,
    },
    /// Drops a range of a block device (`BLKDISCARD`).
    Discard {
        /// Where to start.
        at: u64,
        /// How many bytes.
        len: u64,
    },
    /// Makes a range of a block device read as zeros (`BLKZEROOUT`).
    ZeroOut {
        /// Where to start.
        at: u64,
        /// How many bytes.
        len: u64,
    },
    /// Makes another file have the same contents, in the same storage, until either changes (`FICLONE`).
    CloneTo {
        /// The other file.
        to: Arc<ReleasedFile>,
    },
    /// Calls a function that may wait.
    Call(Call),
}

/// What happens to the storage of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// The storage is reserved; existing data stays.
    Allocate,
    /// The storage is freed, and the range reads as zeros.
    PunchHole,
    /// The range reads as zeros, and its storage stays reserved.
    ZeroRange,
}

/// The result of an operation.
#[derive(Debug)]
pub struct FileDone {
    /// The token that the submitter chose.
    pub token: u64,
    /// The result.
    pub result: Result<FileOutcome, FileError>,
}

/// A success.
#[derive(Debug)]
pub enum FileOutcome {
    /// A read is done, with the bytes appended to its buffers. There are fewer bytes than requested only
    /// where the file ends.
    Read(ReadBufs),
    /// A write is done completely. The data is returned so that its buffers can be recycled.
    Wrote(DataList),
    /// Any other change is done.
    Done,
    /// The extents of a range, in order, without gaps, starting at its start.
    Extents(Vec<FileExtent>),
    /// A function has returned this.
    Called(CallOutput),
}

/// A failure. The buffers went back to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileError {
    /// The error of the system call.
    pub errno: Errno,
    /// How many bytes were transferred before the failure.
    pub done: usize,
}

/// A run of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Where it starts.
    pub at: u64,
    /// How long it is.
    pub len: u64,
    /// Whether it has storage; a hole reads as zeros.
    pub data: bool,
}

/// All file operations of one reactor. Clones share them. They stay on the thread of the reactor.
#[derive(Clone)]
pub struct Files {
    hub: Rc<RefCell<Hub>>,
}

/// The access of one medium to the file operations of its reactor. Clones share one queue of results.
#[derive(Clone)]
pub struct FileQueue {
    hub: Rc<RefCell<Hub>>,
    lane: Rc<QueueState>,
    pool: Pool,
}

struct Hub {
    /// Whether operations go to a ring, which takes them with `take_work`.
    ring: bool,
    /// An operation was submitted since the ring found the backlog empty.
    ring_has_more: bool,
    /// Operations for the ring.
    backlog: VecDeque<PendingOp>,
    in_ring: usize,
    threads: Threads,
    /// Operations for the threads, which get them when a drain is over.
    for_threads: Vec<PendingOp>,
    /// Media whose writes into the page cache wait for a thread.
    writers: Vec<Rc<QueueState>>,
    /// The queue and class of each operation that a thread has.
    in_threads: Slab<(Rc<QueueState>, Class)>,
    ready: VecDeque<Rc<QueueState>>,
    /// How many queues there are, and how many there were when the ring last heard of it.
    media: Rc<Cell<usize>>,
    media_of_ring: usize,
    clock: Clock,
    pool: Pool,
    inline_count: usize,
    ring_count: usize,
    threads_count: usize,
}

/// An operation under way, and its progress.
pub(crate) struct PendingOp {
    pub(crate) op: FileOp,
    pub(crate) done: usize,
    lane: Rc<QueueState>,
    class: Class,
}

impl IoFile {
    /// Wraps an open file. `direct` tells whether it was opened with `O_DIRECT`. Reads do not update its
    /// access time from now on, if the user may forbid that.
    ///
    /// It asks the file system, and so can wait.
    pub fn new(file: File, direct: bool) -> Self {
        let behavior = FileBehavior::of(&file, direct);
        Self { inner: Arc::new(Inner { file: file.into(), behavior }) }
    }

    /// Wraps an open file of which one command after the other uses the next bytes. Large reads are ahead of
    /// the commands, so a thread does them even if the data is in memory.
    ///
    /// It asks the file system, and so can wait.
    pub fn sequential(file: File) -> Self {
        let behavior = FileBehavior::sequential(&file);
        Self { inner: Arc::new(Inner { file: file.into(), behavior }) }
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.inner.file
    }

    /// Returns a reference that does not keep the file open.
    pub fn downgrade(&self) -> WeakIoFile {
        WeakIoFile { inner: Arc::downgrade(&self.inner) }
    }

    /// Returns whether it was opened with `O_DIRECT`.
    pub fn direct(&self) -> bool {
        self.inner.behavior.direct()
    }
}

impl FileQueue {
    /// Starts an operation. [`Self::poll`] returns its result exactly once, perhaps at once.
    pub fn submit(&self, op: FileOp) {
        let class = Class::of(&op.kind, op.file.direct());
        self.hub.borrow_mut().submit(PendingOp { op, done: 0, lane: Rc::clone(&self.lane), class });
    }

    /// Returns the next result.
    pub fn poll(&self) -> Option<FileDone> {
        self.lane.done.borrow_mut().pop_front()
    }

    /// Returns the buffer pool of the reactor.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl std::fmt::Debug for FileQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileQueue({:?})", self.lane.medium)
    }
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Files")
    }
}

impl Files {
    pub(crate) fn new(waker: Arc<Waker>, clock: Clock, pool: Pool) -> Self {
        let hub = Hub {
            ring: false,
            ring_has_more: false,
            backlog: VecDeque::new(),
            in_ring: 0,
            threads: Threads::new(waker),
            for_threads: Vec::new(),
            writers: Vec::new(),
            in_threads: Slab::new(),
            ready: VecDeque::new(),
            media: Rc::default(),
            media_of_ring: 0,
            clock,
            pool,
            inline_count: 0,
            ring_count: 0,
            threads_count: 0,
        };
        Self { hub: Rc::new(RefCell::new(hub)) }
    }

    /// Creates a queue whose results are announced as those of `medium`.
    pub fn queue(&self, medium: MediumId) -> FileQueue {
        let hub = self.hub.borrow();
        let lane = QueueState::new(medium, Rc::clone(&hub.media));
        let pool = hub.pool.clone();
        FileQueue { hub: Rc::clone(&self.hub), lane: Rc::new(lane), pool }
    }

    /// Sends operations to a ring from now on.
    pub(crate) fn use_ring(&self) {
        self.hub.borrow_mut().ring = true;
    }

    /// Returns whether there is an operation for the ring.
    pub(crate) fn has_work(&self) -> bool {
        !self.hub.borrow().backlog.is_empty()
    }

    /// Takes the next operation for the ring.
    pub(crate) fn take_work(&self) -> Option<PendingOp> {
        let mut hub = self.hub.borrow_mut();
        let work = hub.backlog.pop_front();
        match work {
            Some(_) => hub.in_ring += 1,
            None => hub.ring_has_more = false,
        }
        work
    }

    /// Returns how many operations the ring may have at most, if that has grown: so many workers of the
    /// kernel let none of them wait for one of another medium.
    pub(crate) fn new_ring_limit(&self) -> Option<usize> {
        let mut hub = self.hub.borrow_mut();
        let media = hub.media.get();
        if media <= hub.media_of_ring {
            return None;
        }
        hub.media_of_ring = media;
        Some(media.saturating_mul(share::RING_MAX))
    }

    /// Handles the result that the ring has for `work`: a number of bytes or an error. Returns the work if it
    /// must be submitted again.
    pub(crate) fn ring_finished(
        &self,
        mut work: PendingOp,
        result: Result<usize, Errno>,
    ) -> Option<PendingOp> {
        let attempt = sync::progress(&mut work, result);
        if matches!(attempt, Attempt::Again) {
            return Some(work);
        }
        let mut hub = self.hub.borrow_mut();
        hub.in_ring -= 1;
        hub.ended(&Rc::clone(&work.lane), work.class);
        match attempt {
            Attempt::Finished(result) => {
                hub.ring_count += 1;
                hub.deliver(work, result);
            }
            Attempt::Blocked | Attempt::Again => hub.pass_to_thread(work),
        }
        None
    }

    /// Gives threads the operations that are for them. Returns whether some have ended by that, because there
    /// is no thread. Makes no system call if there are none.
    pub(crate) fn start_threads(&self) -> bool {
        let mut hub = self.hub.borrow_mut();
        let mut has_refused = false;
        while !hub.for_threads.is_empty() || !hub.writers.is_empty() {
            has_refused |= hub.start_threads();
        }
        has_refused
    }

    /// Collects the operations that threads have finished.
    pub(crate) fn collect(&self) {
        let mut hub = self.hub.borrow_mut();
        if hub.in_threads.is_empty() {
            return;
        }
        for (number, done) in hub.threads.take_done() {
            let Some((lane, class)) = hub.in_threads.remove(number) else { continue };
            hub.threads_count += 1;
            hub.ended(&lane, class);
            hub.put(&lane, done);
        }
    }

    /// Returns the next medium that has uncollected results.
    pub(crate) fn next_ready(&self) -> Option<MediumId> {
        let mut hub = self.hub.borrow_mut();
        while let Some(lane) = hub.ready.pop_front() {
            lane.listed.set(false);
            if !lane.done.borrow().is_empty() {
                return Some(lane.medium);
            }
        }
        None
    }

    /// Returns whether no operation is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let hub = self.hub.borrow();
        hub.in_ring == 0
            && hub.backlog.is_empty()
            && hub.for_threads.is_empty()
            && hub.writers.is_empty()
            && hub.in_threads.is_empty()
    }

    pub(crate) fn count(&self, stats: &mut Stats) {
        let mut hub = self.hub.borrow_mut();
        Stats::bump(&mut stats.file_inline, std::mem::take(&mut hub.inline_count));
        Stats::bump(&mut stats.file_ring, std::mem::take(&mut hub.ring_count));
        Stats::bump(&mut stats.file_threads, std::mem::take(&mut hub.threads_count));
    }
}

impl Hub {
    fn submit(&mut self, mut work: PendingOp) {
        let now =
            Circumstances { has_ring: self.ring, ring_has_more: self.ring_has_more, clock: &self.clock };
        let place = inline::attempt(&mut work, &now);
        self.ring_has_more = true;
        match place {
            Place::Done(result) => {
                self.inline_count += 1;
                self.deliver(work, result);
            }
            Place::Ring => {
                work.class = Class::Ring;
                self.start(work);
            }
            Place::Thread => self.pass_to_thread(work),
        }
    }

    fn pass_to_thread(&mut self, mut work: PendingOp) {
        work.class = Class::of(&work.op.kind, work.op.file.direct());
        if work.class == Class::CachedWrite {
            let lane = Rc::clone(&work.lane);
            lane.put_write(work);
            self.list_writer(&lane);
        } else {
            self.start(work);
        }
    }

    /// Starts an operation now, or when another one of its medium has ended.
    fn start(&mut self, work: PendingOp) {
        let lane = Rc::clone(&work.lane);
        let clock = self.clock.clone();
        if let Some(work) = lane.begin(work, || clock.now()) {
            self.place(work);
        }
    }

    fn place(&mut self, work: PendingOp) {
        match work.class {
            Class::Ring => self.backlog.push_back(work),
            Class::CachedWrite | Class::Transfer | Class::Long => self.for_threads.push(work),
        }
    }

    /// Ends an operation of a medium, and starts the next one that had to wait for it.
    fn ended(&mut self, lane: &Rc<QueueState>, class: Class) {
        match lane.end(class, self.clock.now()) {
            Some(next) => self.place(next),
            None if class == Class::CachedWrite => self.list_writer(lane),
            None => {}
        }
    }

    fn list_writer(&mut self, lane: &Rc<QueueState>) {
        if lane.may_write() && !lane.writes.replace(true) {
            self.writers.push(Rc::clone(lane));
        }
    }

    fn start_threads(&mut self) -> bool {
        let mut jobs: Vec<Job> = Vec::new();
        for lane in std::mem::take(&mut self.writers) {
            lane.writes.set(false);
            let clock = self.clock.clone();
            let works = lane.begin_writes(|| clock.now());
            jobs.push(works.into_iter().map(|work| self.hand_over(work)).collect());
        }
        for work in std::mem::take(&mut self.for_threads) {
            jobs.push(Job::from_iter([self.hand_over(work)]));
        }
        let refused = self.threads.submit(jobs);
        let has_refused = !refused.is_empty();
        for (number, op, done) in refused.into_iter().flatten() {
            // No thread could be started. The operation must not be done here, where it could wait.
            if let Some((lane, class)) = self.in_threads.remove(number) {
                self.ended(&lane, class);
                let failure = FileError { errno: NOT_BEGUN, done };
                self.put(&lane, sync::conclude(op, Err(failure)));
            }
        }
        has_refused
    }

    fn hand_over(&mut self, work: PendingOp) -> (u32, FileOp, usize) {
        let PendingOp { op, done, lane, class } = work;
        (self.in_threads.insert((lane, class)), op, done)
    }

    fn deliver(&mut self, work: PendingOp, result: Result<(), FileError>) {
        let PendingOp { op, lane, .. } = work;
        let done = sync::conclude(op, result);
        self.put(&lane, done);
    }

    fn put(&mut self, lane: &Rc<QueueState>, done: FileDone) {
        lane.done.borrow_mut().push_back(done);
        if !lane.listed.replace(true) {
            self.ready.push_back(Rc::clone(lane));
        }
    }
}

/// Returns the error number of a system error, as operations report it.
pub(crate) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
