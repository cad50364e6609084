//! File operations: submitted by the media that need them, carried out by the engine of the reactor.
//!
//! A medium gets a [`FileQueue`] for its number, submits [`FileOp`]s and collects [`FileDone`]s. An operation
//! owns its buffers until it is done. With io_uring, operations go through the ring of the reactor, all
//! operations of one drain in one system call. With epoll, and for calls that io_uring lacks, the calling
//! thread does cached I/O at once, and a few threads do the rest. Operations that are in flight together may
//! take effect in any order.

mod inline;
mod sync;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use base::buffer::{Buf, DataList, Pool};
use base::state_machine::MediumId;
use smallvec::SmallVec;

pub use rustix::io::Errno;

use crate::clock::Clock;
use crate::slab::Slab;
use crate::stats::Stats;
use crate::threads::Threads;
use crate::waker::Waker;
use inline::{FileBehavior, Offload};
pub(crate) use sync::Attempt;
pub(crate) use sync::{rest, room, run_to_end};

/// An open file, as operations name it. Clones share one file, which is closed with the last of them.
#[derive(Clone, Debug)]
pub struct IoFile {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    habits: FileBehavior,
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
        to: Arc<File>,
    },
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

struct QueueState {
    medium: MediumId,
    done: RefCell<VecDeque<FileDone>>,
    /// Whether the queue is listed in `Hub::ready`.
    listed: Cell<bool>,
}

struct Hub {
    /// Whether operations go to a ring, which takes them with `take_work`.
    ring: bool,
    /// An operation was submitted since the ring found the backlog empty.
    ring_has_more: bool,
    backlog: VecDeque<PendingOp>,
    in_ring: usize,
    threads: Threads,
    /// The queue of each operation that a thread works on.
    in_threads: Slab<Rc<QueueState>>,
    ready: VecDeque<Rc<QueueState>>,
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
}

impl PendingOp {
    /// Returns whether nobody waits for the operation yet.
    pub(crate) fn is_ahead(&self) -> bool {
        matches!(&self.op.kind, FileOpKind::Read { len, .. } if self.op.file.inner.habits.is_read_ahead(*len))
    }
}

impl IoFile {
    /// Wraps an open file. `direct` tells whether it was opened with `O_DIRECT`.
    pub fn new(file: File, direct: bool) -> Self {
        let habits = FileBehavior::of(&file, direct);
        let inner = Inner { file, habits };
        Self { inner: Arc::new(inner) }
    }

    /// Wraps an open file of which one command after the other uses the next bytes. Large reads are ahead of
    /// the commands, so the thread of the reactor passes them on, and goes on meanwhile, even if the data is
    /// in memory. For a large write the next command waits, so the thread does it itself if it is mere
    /// copying.
    pub fn sequential(file: File) -> Self {
        let habits = FileBehavior::sequential(&file);
        Self { inner: Arc::new(Inner { file, habits }) }
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.inner.file
    }

    /// Returns whether it was opened with `O_DIRECT`.
    pub fn direct(&self) -> bool {
        self.inner.habits.direct()
    }
}

impl FileQueue {
    /// Starts an operation. [`Self::poll`] returns its result exactly once, perhaps at once.
    pub fn submit(&self, op: FileOp) {
        self.hub.borrow_mut().submit(PendingOp { op, done: 0, lane: Rc::clone(&self.lane) });
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
    pub(crate) fn new(waker: Arc<Waker>, clock: Clock, pool: Pool, threads_max: usize) -> Self {
        let hub = Hub {
            ring: false,
            ring_has_more: false,
            backlog: VecDeque::new(),
            in_ring: 0,
            threads: Threads::new(waker, threads_max),
            in_threads: Slab::new(),
            ready: VecDeque::new(),
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
        let lane = QueueState { medium, done: RefCell::default(), listed: Cell::new(false) };
        let pool = self.hub.borrow().pool.clone();
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

    /// Handles the result that the ring has for `work`: a number of bytes (zero for operations that transfer
    /// none) or an error. Returns the work if it must be submitted again.
    pub(crate) fn ring_finished(
        &self,
        mut work: PendingOp,
        result: Result<usize, Errno>,
    ) -> Option<PendingOp> {
        let attempt = sync::progress(&mut work, result);
        let mut hub = self.hub.borrow_mut();
        match attempt {
            Attempt::Again => return Some(work),
            Attempt::Blocked => {
                hub.in_ring -= 1;
                hub.hand_over(work);
            }
            Attempt::Finished(result) => {
                hub.in_ring -= 1;
                hub.ring_count += 1;
                hub.deliver(work, result);
            }
        }
        None
    }

    /// Collects the operations that threads have finished.
    pub(crate) fn collect(&self) {
        let mut hub = self.hub.borrow_mut();
        if hub.in_threads.is_empty() {
            return;
        }
        for (number, done) in hub.threads.take_done() {
            let Some(lane) = hub.in_threads.remove(number) else { continue };
            hub.threads_count += 1;
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
        hub.in_ring == 0 && hub.backlog.is_empty() && hub.in_threads.is_empty()
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
        let elsewhere = match (self.ring, self.ring_has_more) {
            (false, _) => Offload::Thread,
            (true, false) => Offload::RingFirst,
            (true, true) => Offload::Ring,
        };
        self.ring_has_more = true;
        match inline::attempt(&mut work, elsewhere, &self.clock) {
            Attempt::Finished(result) => {
                self.inline_count += 1;
                self.deliver(work, result);
            }
            Attempt::Again => self.backlog.push_back(work),
            Attempt::Blocked => self.hand_over(work),
        }
    }

    fn hand_over(&mut self, work: PendingOp) {
        let PendingOp { op, done, lane } = work;
        let number = self.in_threads.insert(lane);
        if let Err((op, done)) = self.threads.submit(number, op, done) {
            // No thread could be started: the operation is done here, although it blocks the reactor.
            let done = run_to_end(op, done);
            if let Some(lane) = self.in_threads.remove(number) {
                self.put(&lane, done);
            }
        }
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
