//! The driver: a thread that takes requests from the kernel and answers them, both through one ring that only
//! this thread may use. The thread that completes a request copies its payload, and queues the answer for the
//! driver thread.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::buffer::{Bytes, DataList, Pool};
use drivers::waker::Waker;
use rustix::io::{Errno, pwritev};
use store::api::{Failure, OpAction, OpOutput};

use super::descriptors::Descriptors;
use super::params::{DEPTH, DeviceParams, IO_BYTES_MAX};
use super::request::{Request, TagCompletion, Tags, parse_request, result};
use super::ring::{Held, Ring, WOKEN};
use super::wire::{Descriptor, IoCommand, IoOp, payload_at};
use crate::events::{AttachEvent, EventHandler, submit};
use crate::unaligned::UnalignedStore;
use base::int_cast::{to_u64, to_usize};

/// The ring's length: a command for each tag, and the poll for wake-ups.
const ENTRIES: u32 = 256;
const _: () = assert!(ENTRIES > DEPTH as u32);
/// The unused buffers that are kept, in bytes.
const POOL_KEPT_BYTES: usize = 16 << 20;
/// The most pieces that the kernel takes in one call.
const PIECES_MAX: usize = 1024;

/// The state that the driver thread shares with the threads that complete requests.
pub(super) struct Shared {
    /// The character device.
    pub(super) device: File,
    pub(super) disk: UnalignedStore,
    pub(super) watch: EventHandler,
    pub(super) waker: Waker,
    pub(super) told: DeviceParams,
    answers: Mutex<Answers>,
}

/// The answers that are queued for the thread: at most one answer and one request's blocks for each tag.
#[derive(Default)]
struct Answers {
    ready: Vec<(u16, i32)>,
    /// The blocks that the medium returned.
    returned: Vec<Bytes>,
}

impl Shared {
    pub(super) fn new(
        device: File,
        disk: UnalignedStore,
        watch: EventHandler,
        told: DeviceParams,
    ) -> io::Result<Self> {
        Ok(Self { device, disk, watch, waker: Waker::new()?, told, answers: Mutex::default() })
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        // No thread panics while it holds this lock.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, tag: u16, result: i32, blocks: DataList) {
        let mut answers = self.answers();
        answers.ready.push((tag, result));
        answers.returned.extend(blocks.into_parts());
        drop(answers);
        self.waker.wake();
    }

    /// Copies the payload of a read to the kernel.
    fn copy_to_kernel(&self, tag: u16, data: &DataList) -> io::Result<()> {
        let (mut at, mut given) = (payload_at(tag), 0);
        while given < data.len() {
            let rest = data.slice(given, data.len());
            let pieces: Vec<IoSlice<'_>> =
                rest.parts().iter().take(PIECES_MAX).map(|part| IoSlice::new(part)).collect();
            match pwritev(&self.device, &pieces, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => {
                    given += len;
                    at += to_u64(len);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Queues the answer to a request that the medium has completed.
    fn completed(&self, tag: u16, len: usize, outcome: Result<OpOutput, Failure>) {
        let mut answer = result(len, &outcome);
        let blocks = match outcome {
            Ok(OpOutput::Data(data)) if answer >= 0 => {
                if let Err(error) = self.copy_to_kernel(tag, &data) {
                    answer = -error.raw_os_error().unwrap_or(libc::EIO);
                }
                data
            }
            Ok(OpOutput::Done(data)) => data,
            _ => DataList::new(),
        };
        self.answer(tag, answer, blocks);
    }
}

/// The queue of a device.
pub(super) struct Queue {
    shared: Arc<Shared>,
    ring: Ring,
    /// The device and the waker, as the ring owns them.
    device: Held,
    waker: Held,
    descriptors: Descriptors,
    tags: Tags,
    pool: Pool,
}

impl Queue {
    /// Makes the ring, on the thread that is to use it. From the first turn of [`Self::run`] on, the command
    /// of each tag waits in the kernel.
    pub(super) fn new(shared: Arc<Shared>) -> io::Result<Self> {
        let mut ring = Ring::new(ENTRIES)?;
        let (device, waker) = (ring.hold(&shared.device)?, ring.hold(&shared.waker)?);
        let descriptors = Descriptors::map(&shared.device, DEPTH)?;
        for tag in 0..DEPTH {
            ring.command(device, IoOp::FETCH, IoCommand::fetch(tag))?;
        }
        ring.watch(waker)?;
        Ok(Self {
            shared,
            ring,
            device,
            waker,
            descriptors,
            tags: Tags::new(DEPTH),
            pool: Pool::new(POOL_KEPT_BYTES),
        })
    }

    /// Serves until the device is stopped and every request is answered.
    pub(super) fn run(mut self) -> io::Result<()> {
        while !self.tags.are_ended() {
            self.ring.wait()?;
            while let Some((name, result)) = self.ring.completed() {
                if name == WOKEN {
                    self.shared.waker.clear();
                    self.ring.watch(self.waker)?;
                } else {
                    self.arrived(name, result);
                }
            }
            self.give_answers()?;
        }
        Ok(())
    }

    fn arrived(&mut self, name: u64, result: i32) {
        match self.tags.arrived(name, result) {
            TagCompletion::Request(tag) => self.serve(tag),
            TagCompletion::Refused(errno) => (self.shared.watch)(AttachEvent::Refused { errno }),
            TagCompletion::Ended | TagCompletion::Unasked => {}
        }
    }

    fn serve(&self, tag: u16) {
        let shared = &self.shared;
        let request = self.descriptors.request(tag).unwrap_or_default();
        match self.parse_and_copy(tag, &request) {
            Ok((len, action)) => {
                let theirs = Arc::clone(shared);
                let done = move |outcome| theirs.completed(tag, len, outcome);
                submit(&shared.disk, action, &shared.watch, Box::new(done));
            }
            Err(errno) => shared.answer(tag, -errno, DataList::new()),
        }
    }

    /// Parses a request and copies its payload. Returns the operation for the medium, and the length to
    /// report in the answer.
    fn parse_and_copy(&self, tag: u16, request: &Descriptor) -> Result<(usize, OpAction), i32> {
        match parse_request(request, &self.shared.told)? {
            Request::Read { at, len } => Ok((len, OpAction::Read { at, len })),
            Request::Plain(action) => Ok((0, action)),
            Request::Write { at, len, durability } => {
                let data = self
                    .copy_from_kernel(tag, len)
                    .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
                Ok((len, OpAction::Write { at, data, durability }))
            }
        }
    }

    /// Copies the payload of a write from the kernel.
    fn copy_from_kernel(&self, tag: u16, len: usize) -> io::Result<DataList> {
        let mut buf = self.pool.take(len.min(to_usize(IO_BYTES_MAX)));
        let room = buf.spare_mut().get_mut(..len).ok_or(io::ErrorKind::InvalidInput)?;
        self.shared.device.read_exact_at(room, payload_at(tag))?;
        buf.advance(len);
        Ok(buf.freeze().into())
    }

    /// Puts the queued answers into the ring.
    fn give_answers(&mut self) -> io::Result<()> {
        let answers = std::mem::take(&mut *self.shared.answers());
        answers.returned.into_iter().for_each(|block| self.pool.recycle(block));
        for (tag, result) in answers.ready {
            if let Some(command) = self.tags.answer(tag, result) {
                self.ring.command(self.device, IoOp::COMMIT_AND_FETCH, command)?;
            }
        }
        Ok(())
    }
}
