//! The hands: a thread that takes requests from the kernel. What the medium is done with is answered by whoever
//! completes it, with one system call that does not wait.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;

use base::buffer::{Buf, Bytes, DataList, Pool};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use store::api::{Failure, OpAction, OpOutput};
use store::shared::SharedStore;
use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

use super::file_system::{FILE_NAME, FileSystem, Question, Reply, Step, TRANSFER_LEN_MAX, answer};
use super::mountpoint::{Mountpoint, mount};
use super::wire::{InHeader, Opcode, OutHeader, TransferIn};
use crate::events::{EventHandler, submit};
use crate::flush::flush;
use crate::int_cast::{to_u32, to_u64};
use crate::unaligned::UnalignedStore;
use crate::waker::Waker;

/// Requests under way. The kernel hands out 128 asynchronous ones, and one for each program that waits.
const REQUESTS_MAX: usize = 512;
/// Bytes that requests under way may hold before no further one is taken.
const HELD_BYTES_MAX: usize = 64 << 20;
/// Payloads up to this length are copied out of the long buffer that they were received in.
const COPIED_LEN_MAX: usize = 256 << 10;
/// Unused buffers that are kept.
const POOL_KEPT_BYTES: usize = 16 << 20;
/// The header of a request and the fixed part of a write: what lies before a payload.
const HEAD_LEN: usize = size_of::<InHeader>() + size_of::<TransferIn>();
/// The kernel takes so many pieces in one call.
const PIECES_MAX: usize = 1024;

/// Why there is no file.
#[derive(Debug, Error)]
pub enum FuseStartError {
    /// The kernel has no FUSE, or it is not for us.
    #[error("cannot open /dev/fuse")]
    NoFuse(#[source] io::Error),
    /// It takes a privilege.
    #[error("mounting needs root (CAP_SYS_ADMIN); an NBD socket does not")]
    NotAllowed,
    /// Something else has this path.
    #[error("{}: not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// A disk is there already.
    #[error("{}: a disk is attached there already", .0.display())]
    InUse(PathBuf),
    /// Anything else.
    #[error("cannot mount on {}", dir.display())]
    Mount {
        /// Where.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No thread or descriptor is to be had.
    #[error("cannot start to serve")]
    Start(#[source] io::Error),
}

/// How a detach went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detached {
    /// The file is gone.
    Now,
    /// The directory is empty again, but somebody has the file open; it is served until he closes it.
    OnceClosed,
}

/// A mounted file.
#[derive(Debug)]
pub struct Mount {
    shared: Arc<Shared>,
    place: Mountpoint,
    /// Nothing of ours is in the directory any more; what is, is another's.
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
}

/// What is under way.
#[derive(Default)]
struct Load {
    requests: usize,
    held_bytes: usize,
    /// Blocks that the medium gave back.
    returned: Vec<Bytes>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Mount {
    /// Mounts `disk` on `dir` and serves it. `label` is what `df` shows as the device; `ended` is called once it is
    /// no longer mounted, whoever did that.
    ///
    /// # Errors
    /// When it cannot be mounted there.
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
        });
        let theirs = Arc::clone(&shared);
        let serve = move || {
            Reader::new(&theirs).run();
            ended();
        };
        let thread = std::thread::Builder::new().name("fuse".to_owned()).spawn(serve);
        let thread = thread.map_err(|error| {
            // Nobody serves it; if this fails too, the next start takes it back.
            let _ = place.unmount_lazily();
            FuseStartError::Start(error)
        })?;
        Ok(Self { shared, place, detached: AtomicBool::new(false), thread })
    }

    /// Returns the path of the file.
    pub fn file(&self) -> PathBuf {
        self.place.dir.join(FILE_NAME)
    }

    /// Takes the file away from where it is; who has it open keeps it.
    ///
    /// # Errors
    /// The system's.
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

    /// Ends at once, even for those who have the file open: what is under way is finished, what follows fails.
    pub fn abort(&self) {
        if !self.detached.swap(true, Ordering::AcqRel) {
            // It fails when somebody else unmounted it before.
            let _ = self.place.unmount_lazily();
        }
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.waker.wake();
    }

    /// Waits until the file is gone (after [`Self::detach`], [`Self::abort`], or somebody's `umount`), and makes all
    /// that was written durable.
    ///
    /// # Errors
    /// The medium's, when what was written is not durable.
    pub fn wait(self) -> Result<(), Failure> {
        // A thread that panicked serves no more.
        let _ = self.thread.join();
        flush(&self.shared.disk)
    }
}

/// Takes requests.
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

    /// Serves until the file is unmounted or the end is wanted; then waits for what is under way.
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
        // Whoever completes one wakes us from now on.
        self.shared.stopping.store(true, Ordering::Release);
        while self.shared.load().requests > 0 {
            self.sleep(false);
        }
    }

    /// Puts returned blocks into the pool; returns whether there is too much under way.
    fn collect(&self) -> bool {
        let mut load = self.shared.load();
        load.returned.drain(..).for_each(|part| self.pool.recycle(part));
        load.requests >= REQUESTS_MAX || load.held_bytes >= HELD_BYTES_MAX
    }

    /// Waits until something is completed, or, if `for_requests`, until there is a request.
    fn sleep(&self, for_requests: bool) {
        let mut fds =
            [PollFd::new(&self.shared.waker, PollFlags::IN), PollFd::new(&self.shared.device, PollFlags::IN)];
        let watched = if for_requests { 2 } else { 1 };
        // Interrupted, or out of memory: look again.
        let _ = poll(fds.get_mut(..watched).unwrap_or_default(), None);
        if fds.first().is_some_and(|waker| waker.revents().contains(PollFlags::IN)) {
            self.shared.waker.reset();
        }
    }

    /// Takes a request, or waits for one.
    fn take_one(&mut self) -> Result<(), Errno> {
        let mut head = [0; HEAD_LEN];
        let mut buf = self.pool.take(TRANSFER_LEN_MAX);
        let mut pieces = [IoSliceMut::new(&mut head), IoSliceMut::new(buf.spare_mut())];
        let len = match rustix::io::readv(&self.shared.device, &mut pieces) {
            Ok(len) => len,
            // It was interrupted before it reached us.
            Err(Errno::INTR | Errno::NOENT) => return Ok(()),
            Err(Errno::AGAIN) => {
                self.pool.recycle_buf(buf);
                self.sleep(true);
                return Ok(());
            }
            // Unmounted, or aborted.
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
            Step::Ask(action, question) => {
                let held_bytes = match &action {
                    OpAction::Read { len, .. } => *len,
                    OpAction::Write { data, .. } => data.len(),
                    _ => 0,
                };
                let mut load = self.shared.load();
                load.requests += 1;
                load.held_bytes += held_bytes;
                drop(load);
                self.shared.submit(header.unique, held_bytes, action, question);
            }
        }
    }

    /// Leaves a long payload where it is; moves a short one, so that it does not hold a long buffer.
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
        // Nobody panics while he holds it.
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(self: &Arc<Self>, unique: u64, held_bytes: usize, action: OpAction, question: Question) {
        let shared = Arc::clone(self);
        let done = move |mut result: Result<OpOutput, Failure>| {
            let written = match &mut result {
                Ok(OpOutput::Done(data)) => std::mem::take(data),
                _ => DataList::new(),
            };
            match answer(question, result) {
                Step::Ask(action, question) => shared.submit(unique, held_bytes, action, question),
                Step::Reply(reply) => {
                    shared.reply(unique, &reply);
                    shared.completed(held_bytes, written.into_parts().chain(reply.data.into_parts()));
                }
                Step::Silent => shared.completed(held_bytes, std::iter::empty()),
            }
        };
        submit(&self.disk, action, &self.watch, Box::new(done));
    }

    fn completed(&self, held_bytes: usize, blocks: impl Iterator<Item = Bytes>) {
        let mut load = self.load();
        let was_full = load.requests >= REQUESTS_MAX || load.held_bytes >= HELD_BYTES_MAX;
        load.requests = load.requests.saturating_sub(1);
        load.held_bytes = load.held_bytes.saturating_sub(held_bytes);
        // Blocks that others share are of no use to the pool, nor are more than it keeps.
        if load.returned.len() < REQUESTS_MAX {
            load.returned.extend(blocks);
        }
        drop(load);
        if was_full || self.stopping.load(Ordering::Acquire) {
            self.waker.wake();
        }
    }

    /// Answers a request. Who made it may be gone, as may the mount: then there is nobody to tell.
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
