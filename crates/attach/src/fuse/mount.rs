//! The driver: a thread that reads requests from the kernel. The thread that completes an operation of the
//! medium answers the request, with one system call that does not block.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;

use base::buffer::{Buf, Bytes, DataList, Pool};
use drivers::waker::Waker;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use store::api::{Failure, OpAction, OpOutput};
use store::shared::SharedStore;
use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

use super::file_system::{FILE_NAME, FileSystem, Question, Reply, Step, TRANSFER_LEN_MAX, answer, opened};
use super::mountpoint::{Mountpoint, mount};
use super::wire::{InHeader, Opcode, OutHeader, TransferIn};
use crate::events::{EventHandler, submit};
use crate::flush::flush;
use crate::unaligned::UnalignedStore;
use base::int_cast::{to_u32, to_u64};

/// The most requests under way. The kernel sends 128 asynchronous ones, and one for each program that waits.
const REQUESTS_MAX: usize = 512;
/// The bytes that requests under way may hold before the thread reads no further one.
const HELD_BYTES_MAX: usize = 64 << 20;
/// Payloads up to this length are copied out of the long buffer that they were received in.
const COPIED_LEN_MAX: usize = 256 << 10;
/// The unused buffers that are kept, in bytes.
const POOL_KEPT_BYTES: usize = 16 << 20;
/// The length of the header of a request and the fixed part of a write: all that precedes a payload.
const HEAD_LEN: usize = size_of::<InHeader>() + size_of::<TransferIn>();
/// The most pieces that the kernel takes in one call.
const PIECES_MAX: usize = 1024;

/// Why the disk cannot be mounted.
#[derive(Debug, Error)]
pub enum FuseStartError {
    /// The kernel has no FUSE, or this process may not open it.
    #[error("cannot open /dev/fuse")]
    NoFuse(#[source] io::Error),
    /// Mounting takes a privilege that this process lacks.
    #[error("mounting needs root (CAP_SYS_ADMIN); an NBD socket does not")]
    NotAllowed,
    /// The directory does not exist.
    #[error("the directory {} does not exist; make it first: mkdir -p {}", .0.display(), .0.display())]
    NoDirectory(PathBuf),
    /// The path is no directory.
    #[error("{}: not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// A disk is attached there already.
    #[error("{}: a disk is attached there already", .0.display())]
    InUse(PathBuf),
    /// Any other error.
    #[error("cannot mount on {}", dir.display())]
    Mount {
        /// The directory.
        dir: PathBuf,
        /// The error that the system returned.
        source: io::Error,
    },
    /// The system has no thread or descriptor to spare.
    #[error("cannot start the server")]
    Start(#[source] io::Error),
}

/// The result of a detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detached {
    /// The file is gone.
    Now,
    /// The directory is empty again, but a process has the file open; it is served until that process closes
    /// it.
    OnceClosed,
}

/// A mounted file.
#[derive(Debug)]
pub struct Mount {
    shared: Arc<Shared>,
    place: Mountpoint,
    /// Whether the file was unmounted from the directory. A later mount there belongs to another process.
    detached: AtomicBool,
    thread: JoinHandle<()>,
}

struct Shared {
    device: OwnedFd,
    disk: UnalignedStore,
    watch: EventHandler,
    stopping: AtomicBool,
    waker: Waker,
    load: Mutex<Load>,
    open_files: Mutex<OpenFiles>,
}

/// The open files, by number. Each is a client of its own, whose next flush reports what the medium has lost.
#[derive(Default)]
struct OpenFiles {
    disks: BTreeMap<u64, UnalignedStore>,
    last: u64,
}

/// The requests under way.
#[derive(Default)]
struct Load {
    requests: usize,
    held_bytes: usize,
    /// The blocks that the medium returned.
    returned: Vec<Bytes>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Mount {
    /// Mounts `disk` on `dir` and serves it. `label` is what `df` shows as the device. `ended` is called once
    /// the file is no longer mounted, whichever process unmounted it.
    ///
    /// # Errors
    /// Fails when the disk cannot be mounted there.
    pub fn start(
        dir: &Path,
        disk: Arc<dyn SharedStore>,
        label: &str,
        watch: EventHandler,
        ended: Box<dyn FnOnce() + Send>,
    ) -> Result<Self, FuseStartError> {
        let waker = Waker::new().map_err(FuseStartError::Start)?;
        let (device, place) = mount(dir, label)?;
        let shared = Arc::new(Shared {
            device,
            disk: UnalignedStore::new(disk),
            watch,
            stopping: AtomicBool::new(false),
            waker,
            load: Mutex::default(),
            open_files: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        let serve = move || {
            Reader::new(&theirs).run();
            ended();
        };
        let thread = std::thread::Builder::new().name("fuse".to_owned()).spawn(serve);
        let thread = thread.map_err(|error| {
            // No thread serves the mount. If this fails too, the next start clears the mount.
            let _ = place.unmount_lazily();
            FuseStartError::Start(error)
        })?;
        Ok(Self { shared, place, detached: AtomicBool::new(false), thread })
    }

    /// Returns the path of the file.
    pub fn file(&self) -> PathBuf {
        self.place.dir.join(FILE_NAME)
    }

    /// Unmounts the file from its directory. Processes that have the file open keep it.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn detach(&self) -> io::Result<Detached> {
        let how = match self.place.unmount() {
            Ok(()) => Detached::Now,
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                self.place.unmount_lazily()?;
                Detached::OnceClosed
            }
            Err(error) => return Err(error),
        };
        self.detached.store(true, Ordering::Release);
        Ok(how)
    }

    /// Ends the service at once, even for processes that have the file open: requests under way are finished,
    /// and later ones fail.
    pub fn abort(&self) {
        if !self.detached.swap(true, Ordering::AcqRel) {
            // Unmounting fails when another process unmounted it before.
            let _ = self.place.unmount_lazily();
        }
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.waker.wake();
    }

    /// Waits until the file is gone (after [`Self::detach`], [`Self::abort`], or an `umount` by another
    /// process), and makes all that was written durable.
    ///
    /// # Errors
    /// Returns the medium's failure when what was written is not durable.
    pub fn wait(self) -> Result<(), Failure> {
        // A thread that panicked serves no more.
        let _ = self.thread.join();
        flush(&self.shared.disk)
    }
}

/// Reads requests from the kernel.
struct Reader<'a> {
    shared: &'a Arc<Shared>,
    machine: FileSystem,
    pool: Pool,
}

impl<'a> Reader<'a> {
    fn new(shared: &'a Arc<Shared>) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let machine = FileSystem::new(uid, gid, since.as_secs());
        Self { shared, machine, pool: Pool::new(POOL_KEPT_BYTES) }
    }

    /// Serves until the file is unmounted or a stop is requested; then waits for the requests under way.
    fn run(mut self) {
        while !self.shared.stopping.load(Ordering::Acquire) {
            let full = self.collect();
            if !full && self.take_one().is_err() {
                break;
            }
            if full {
                self.sleep(false);
            }
        }
        // From now on, each completion wakes this thread.
        self.shared.stopping.store(true, Ordering::Release);
        while self.shared.load().requests > 0 {
            self.sleep(false);
        }
    }

    /// Puts returned blocks into the pool. Returns whether too much is under way to read another request.
    fn collect(&self) -> bool {
        let mut load = self.shared.load();
        load.returned.drain(..).for_each(|part| self.pool.recycle(part));
        load.requests >= REQUESTS_MAX || load.held_bytes >= HELD_BYTES_MAX
    }

    /// Waits until an operation is completed, or, if `for_requests`, until a request arrives.
    fn sleep(&self, for_requests: bool) {
        let mut fds =
            [PollFd::new(&self.shared.waker, PollFlags::IN), PollFd::new(&self.shared.device, PollFlags::IN)];
        let watched = if for_requests { 2 } else { 1 };
        // If the call was interrupted or out of memory, the caller checks again.
        let _ = poll(fds.get_mut(..watched).unwrap_or_default(), None);
        if fds.first().is_some_and(|waker| waker.revents().contains(PollFlags::IN)) {
            self.shared.waker.clear();
        }
    }

    /// Reads a request, or waits for one.
    fn take_one(&mut self) -> Result<(), Errno> {
        let mut head = [0; HEAD_LEN];
        let mut buf = self.pool.take(TRANSFER_LEN_MAX);
        let mut pieces = [IoSliceMut::new(&mut head), IoSliceMut::new(buf.spare_mut())];
        let len = match rustix::io::readv(&self.shared.device, &mut pieces) {
            Ok(len) => len,
            // The request was interrupted before this process received it.
            Err(Errno::INTR | Errno::NOENT) => return Ok(()),
            Err(Errno::AGAIN) => {
                self.pool.recycle_buf(buf);
                self.sleep(true);
                return Ok(());
            }
            // The file was unmounted, or the service aborted.
            Err(errno) => return Err(errno),
        };
        buf.advance(len.saturating_sub(HEAD_LEN));
        let Ok((header, fixed)) =
            InHeader::read_from_prefix(head.get(..len.min(HEAD_LEN)).unwrap_or_default())
        else {
            return Err(Errno::PROTO);
        };
        self.understand(&header, fixed, buf);
        Ok(())
    }

    fn understand(&self, header: &InHeader, fixed: &[u8], buf: Buf) {
        let profile = self.shared.disk.capabilities();
        let step = if Opcode(header.opcode) == Opcode::WRITE {
            self.machine.request(header, fixed, self.payload(buf), &profile)
        } else {
            let body = [fixed, buf.filled()].concat();
            self.pool.recycle_buf(buf);
            self.machine.request(header, &body, DataList::new(), &profile)
        };
        match step {
            Step::Silent => {}
            Step::Reply(reply) => self.shared.reply(header.unique, &reply),
            Step::Open => {
                let fh = self.shared.open_file();
                self.shared.reply(header.unique, &opened(fh));
            }
            Step::Close(fh) => {
                self.shared.open_files().disks.remove(&fh);
                self.shared.reply(header.unique, &Reply::default());
            }
            Step::Flush(fh) => {
                let disk = self.shared.open_files().disks.get(&fh).cloned();
                self.start(
                    header,
                    disk.as_ref().unwrap_or(&self.shared.disk),
                    OpAction::Flush,
                    Question::Plain,
                );
            }
            Step::Ask(action, question) => self.start(header, &self.shared.disk, action, question),
        }
    }

    /// Starts an operation for a request.
    fn start(&self, header: &InHeader, disk: &UnalignedStore, action: OpAction, question: Question) {
        let held_bytes = match &action {
            OpAction::Read { len, .. } => *len,
            OpAction::Write { data, .. } => data.len(),
            _ => 0,
        };
        let mut load = self.shared.load();
        load.requests += 1;
        load.held_bytes += held_bytes;
        drop(load);
        self.shared.submit(header.unique, disk, held_bytes, action, question);
    }

    /// Keeps a long payload in its buffer; copies a short one, so that it does not hold a long buffer.
    fn payload(&self, buf: Buf) -> DataList {
        if buf.len() > COPIED_LEN_MAX {
            return buf.freeze().into();
        }
        let mut fitting = self.pool.take(buf.len());
        fitting.append(buf.filled());
        self.pool.recycle_buf(buf);
        fitting.freeze().into()
    }
}

impl Shared {
    fn load(&self) -> MutexGuard<'_, Load> {
        // No thread panics while it holds this lock.
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_files(&self) -> MutexGuard<'_, OpenFiles> {
        self.open_files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the file, and returns its number.
    fn open_file(&self) -> u64 {
        let mut files = self.open_files();
        files.last += 1;
        let fh = files.last;
        files.disks.insert(fh, self.disk.for_new_client());
        fh
    }

    fn submit(
        self: &Arc<Self>,
        unique: u64,
        disk: &UnalignedStore,
        held_bytes: usize,
        action: OpAction,
        question: Question,
    ) {
        let shared = Arc::clone(self);
        let done = move |mut result: Result<OpOutput, Failure>| {
            let written = match &mut result {
                Ok(OpOutput::Done(data)) => std::mem::take(data),
                _ => DataList::new(),
            };
            match answer(question, result) {
                Step::Ask(action, question) => {
                    shared.submit(unique, &shared.disk, held_bytes, action, question);
                }
                Step::Reply(reply) => {
                    shared.reply(unique, &reply);
                    shared.completed(held_bytes, written.into_parts().chain(reply.data.into_parts()));
                }
                // A result leads to an answer, or to the next operation.
                Step::Silent | Step::Open | Step::Flush(_) | Step::Close(_) => {
                    shared.completed(held_bytes, std::iter::empty());
                }
            }
        };
        submit(disk, action, &self.watch, Box::new(done));
    }

    fn completed(&self, held_bytes: usize, blocks: impl Iterator<Item = Bytes>) {
        let mut load = self.load();
        let was_full = load.requests >= REQUESTS_MAX || load.held_bytes >= HELD_BYTES_MAX;
        load.requests = load.requests.saturating_sub(1);
        load.held_bytes = load.held_bytes.saturating_sub(held_bytes);
        // The pool cannot use blocks that other owners share, and keeps only a limited number.
        if load.returned.len() < REQUESTS_MAX {
            load.returned.extend(blocks);
        }
        drop(load);
        if was_full || self.stopping.load(Ordering::Acquire) {
            self.waker.wake();
        }
    }

    /// Answers a request. The program that made the request may be gone, as may the mount; then the answer is
    /// dropped.
    fn reply(&self, unique: u64, reply: &Reply) {
        let ok = reply.errno == 0;
        let len = if ok { reply.body.len() + reply.data.len() } else { 0 };
        let header =
            OutHeader { len: to_u32(to_u64(len + size_of::<OutHeader>())), error: -reply.errno, unique };
        let mut pieces = vec![IoSlice::new(header.as_bytes())];
        let mut whole;
        if ok {
            pieces.push(IoSlice::new(&reply.body));
            if reply.data.parts().len() + 2 > PIECES_MAX {
                whole = vec![0; reply.data.len()];
                reply.data.copy_to(0, &mut whole);
                pieces.push(IoSlice::new(&whole));
            } else {
                pieces.extend(reply.data.parts().iter().map(|part| IoSlice::new(part)));
            }
        }
        let _ = rustix::io::writev(&self.device, &pieces);
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]
mod tests;
