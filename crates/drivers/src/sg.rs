//! SCSI generic devices (`/dev/sgN`): commands are submitted without waiting, and their replies collected.
//!
//! The interface is version 3 of the Linux SG driver: `write` submits a request, `poll` waits for a reply,
//! and `read` collects it. A request keeps its buffers until its reply is collected; the kernel accesses them
//! only within these two calls.

mod raw;
mod reserve;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use base::buffer::{Buf, DataList};
use rustix::event::{PollFd, PollFlags, poll};

use self::reserve::Reserve;
use crate::files::Errno;
use crate::slab::Slab;
use crate::waker::Waker;

/// The most requests that the kernel queues for one descriptor (`SG_MAX_QUEUE`).
pub const IN_FLIGHT_MAX: usize = 16;

/// The longest command, in bytes (`SG_MAX_CDB_SIZE`).
pub const COMMAND_LEN_MAX: usize = 252;

/// How long to wait between two looks at a device that was removed.
const HANG_UP_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// The oldest version of the driver that has this interface.
const VERSION_MIN: u32 = 30_000;

/// An open device, and the requests that it executes.
#[derive(Debug)]
pub struct SgDevice {
    file: File,
    /// The file by which the device is locked: that of another process, if this one goes on for it.
    locked: Arc<File>,
    reserve: Option<Reserve>,
    in_flight: Slab<Box<raw::Pending>>,
}

/// A command for a device.
#[derive(Debug)]
pub struct SgRequest {
    /// Returned with the reply. The submitter chooses it.
    pub token: u64,
    /// The command: 6 to [`COMMAND_LEN_MAX`] bytes.
    pub command: Vec<u8>,
    /// Its data.
    pub data: SgData,
    /// After how many milliseconds the kernel aborts it.
    pub timeout_ms: u32,
}

/// The data of a command.
#[derive(Debug)]
pub enum SgData {
    /// None.
    Nothing,
    /// The device sends up to `len` bytes into the spare capacity of the buffers, which must suffice.
    In {
        /// How many bytes.
        len: usize,
        /// The buffers to fill.
        bufs: Vec<Buf>,
    },
    /// The device receives these bytes.
    Out(DataList),
}

/// The end of a command.
#[derive(Debug)]
pub struct SgReply {
    /// The token of the request.
    pub token: u64,
    /// The SCSI status byte.
    pub status: u8,
    /// What the host adapter says (`DID_*` of the kernel): zero if the command reached the device.
    pub host_status: u16,
    /// The sense data.
    pub sense: Vec<u8>,
    /// How many bytes were transferred.
    pub transferred: usize,
    /// The data of the request. Buffers are filled up to `transferred` bytes.
    pub data: SgData,
}

impl SgDevice {
    /// Opens a device.
    ///
    /// # Errors
    /// The error of the system; `ENOTTY` if the path does not lead to an SG device.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        if raw::version(&file)? < VERSION_MIN {
            return Err(Errno::NOTTY.into());
        }
        Self::new(file)
    }

    /// Uses an SG device that was opened with `O_NONBLOCK`.
    ///
    /// # Errors
    /// The error of the system: there are too many open files.
    pub fn new(file: File) -> io::Result<Self> {
        let locked = Arc::new(file.try_clone()?);
        Ok(Self { file, locked, reserve: None, in_flight: Slab::new() })
    }

    /// Keeps the lock of another process, which has the same device open. The kernel lets no process use a
    /// file that another one opened.
    pub fn take_lock(&mut self, locked: File) {
        self.locked = Arc::new(locked);
    }

    /// Returns the file by which the device is locked. Nothing else keeps it open.
    pub const fn locked(&self) -> &Arc<File> {
        &self.locked
    }

    /// Returns the type of the device, as its INQUIRY data reported it to the kernel.
    ///
    /// # Errors
    /// The error of the system.
    pub fn device_type(&self) -> io::Result<u8> {
        raw::device_type(&self.file)
    }

    /// Reserves a buffer in the kernel for the longest transfer of the host adapter, at most `wanted` bytes,
    /// and returns how many bytes one command can transfer. From then on, no command's data contains bytes of
    /// an earlier command, even if the host adapter tells no residual count. For a device that has executed
    /// no request yet.
    ///
    /// # Errors
    /// The error of the system.
    pub fn reserve_buffer(&mut self, wanted: u32) -> io::Result<u32> {
        let (reserved, adapter) = raw::reserve_buffer(&self.file, wanted)?;
        let reserve = Reserve::map(&self.file, reserved)?;
        let len = reserve.len();
        self.reserve = Some(reserve);
        Ok(len.min(adapter))
    }

    /// Resets the device, and nothing beyond it. Waits until the kernel has done so.
    ///
    /// # Errors
    /// The error of the system: `EACCES` without CAP_SYS_ADMIN and CAP_SYS_RAWIO.
    pub fn reset(&self) -> io::Result<()> {
        raw::reset(&self.file)
    }

    /// Returns how many requests the device executes.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Submits a request. The caller has fewer than [`IN_FLIGHT_MAX`] in flight.
    ///
    /// # Errors
    /// The request and the error of the system, if it was not submitted.
    pub fn submit(&mut self, request: SgRequest) -> Result<(), (SgRequest, Errno)> {
        let slot = self.in_flight.insert(Box::new(raw::Pending::new(request)));
        let Some(pending) = self.in_flight.get_mut(slot) else { return Ok(()) };
        if let Some(reserve) = &mut self.reserve {
            reserve.lend(slot, pending.data());
        }
        let Err(errno) = pending.write(&self.file, slot) else { return Ok(()) };
        self.take_back(slot);
        match self.in_flight.remove(slot) {
            Some(pending) => Err((pending.into_request(), errno)),
            None => Ok(()),
        }
    }

    /// Returns the next reply, or `None` if there is none yet.
    ///
    /// # Errors
    /// The error of the system: the device is gone. [`Self::abandon`] returns its requests then.
    pub fn receive(&mut self) -> Result<Option<SgReply>, Errno> {
        if self.in_flight.is_empty() {
            return Ok(None);
        }
        match raw::read(&self.file) {
            Ok(end) => {
                self.take_back(end.slot);
                let pending = self.in_flight.remove(end.slot).ok_or(Errno::IO)?;
                Ok(Some(pending.into_reply(&end)))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn take_back(&mut self, slot: u32) {
        if let Some(reserve) = &mut self.reserve {
            reserve.take_back(slot);
        }
    }

    /// Closes the device, and returns every request in flight: the kernel does not access their buffers any
    /// more.
    pub fn abandon(self) -> Vec<SgRequest> {
        let Self { file, locked, reserve, mut in_flight } = self;
        // The kernel closes the device when its buffer is not mapped any more either.
        drop((reserve, file, locked));
        let numbers = in_flight.numbers();
        let pending = numbers.into_iter().filter_map(|slot| in_flight.remove(slot));
        pending.map(|pending| pending.into_request()).collect()
    }

    /// Waits until there is a reply, or `waker` is signalled.
    pub fn wait(&self, waker: Option<&Waker>) {
        let mut fds = Vec::with_capacity(2);
        if !self.in_flight.is_empty() {
            fds.push(PollFd::new(&self.file, PollFlags::IN));
        }
        fds.extend(waker.map(|waker| PollFd::new(waker, PollFlags::IN)));
        // A wait that fails ends early, and the caller looks again.
        let _ = poll(&mut fds, None);
        let is_hung_up =
            |fd: &PollFd<'_>| fd.revents().contains(PollFlags::HUP) && !fd.revents().contains(PollFlags::IN);
        if !self.in_flight.is_empty() && fds.first().is_some_and(is_hung_up) {
            // The device was removed. `poll` does not wait any more until the kernel has ended its requests.
            std::thread::sleep(HANG_UP_PAUSE);
        }
    }

    /// Executes one request and waits for its end. For a device without requests in flight.
    ///
    /// # Errors
    /// The error of the system.
    pub fn execute(&mut self, request: SgRequest) -> io::Result<SgReply> {
        self.submit(request).map_err(|(_, errno)| io::Error::from(errno))?;
        loop {
            if let Some(reply) = self.receive()? {
                return Ok(reply);
            }
            self.wait(None);
        }
    }
}
