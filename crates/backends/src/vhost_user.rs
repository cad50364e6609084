//! Connects to devices of other processes over vhost-user, and negotiates. This blocks: it is for the threads
//! that open media and that wait for a process to come back, not for a reactor.
//!
//! A [`BlkLink`] then carries the requests of an [`nbd::client::Client`] to a virtio block device, and
//! belongs to a reactor. The client repeats what a lost connection leaves undone, and what a process that
//! dies may have lost; each connection has a queue and memory of its own. [`crate::sg::process`] passes
//! commands to a SCSI device.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use ::nbd::client::{Client, RequestSink};
use ::nbd::handshake::ExportInfo;
use ::nbd::wire::{Cmd, Errno, FLAG_NO_HOLE, Request, transmission};
use base::buffer::DataList;
use base::int_cast::to_u64;
use base::time::Instant;
use drivers::inherited::owner;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use virtio::blk::{self, BlkInfo, BlkQueue, BlkRequest, BlkStatus, ConfigError};
use virtio::memory::{DEVICE_BASE, SharedMemory};
use virtio::ring::{self, RingError};
use vmm_sys_util::eventfd::EventFd;

/// A device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VhostUserError {
    /// The process does not accept the connection.
    #[error("cannot connect to {path}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A resource of this process is missing.
    #[error("cannot set up the queue to {path}")]
    Setup {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The process said nothing in time.
    #[error("the process behind {path} did not answer within {patience:?}")]
    Silent {
        /// The socket.
        path: PathBuf,
        /// How long it had.
        patience: Duration,
    },
    /// The process ended the negotiation, or broke the protocol.
    #[error("the negotiation with {path} failed: {why}")]
    Negotiation {
        /// The socket.
        path: PathBuf,
        /// What the front end says.
        why: String,
    },
    /// The device lacks a feature.
    #[error("the device of {path} does not support {feature}")]
    Missing {
        /// The socket.
        path: PathBuf,
        /// The feature.
        feature: &'static str,
    },
    /// The device cannot be used as it describes itself.
    #[error("the device of {path} cannot be used: {why}")]
    Config {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        why: ConfigError,
    },
}

impl VhostUserError {
    /// Returns whether the process cannot be reached or does not answer, so that it may answer later.
    pub const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Silent { .. })
    }
}

/// A connection to a block device, whose queue is running.
#[derive(Debug)]
pub struct BlkConnection {
    /// The socket. The process says nothing on it any more; its end is that of the device.
    pub socket: OwnedFd,
    /// What the device is, as a client knows exports.
    pub info: ExportInfo,
    /// The queue.
    pub link: BlkLink,
    /// What the process signals when it has ended requests.
    pub call: OwnedFd,
}

/// A failure of one step of the negotiation.
pub(crate) enum Step {
    Protocol(vhost::Error),
    Setup(io::Error),
    Missing(&'static str),
    Config(ConfigError),
}

impl From<vhost::Error> for Step {
    fn from(error: vhost::Error) -> Self {
        Self::Protocol(error)
    }
}

impl From<io::Error> for Step {
    fn from(error: io::Error) -> Self {
        Self::Setup(error)
    }
}

impl Step {
    pub(crate) fn at(self, path: &Path, patience: Duration, is_late: bool) -> VhostUserError {
        let path = path.to_owned();
        match self {
            Self::Protocol(_) if is_late => VhostUserError::Silent { path, patience },
            Self::Protocol(error) => VhostUserError::Negotiation { path, why: error.to_string() },
            Self::Setup(source) => VhostUserError::Setup { path, source },
            Self::Missing(feature) => VhostUserError::Missing { path, feature },
            Self::Config(why) => VhostUserError::Config { path, why },
        }
    }
}

/// Connects to the block device of a socket and starts its queue. Gives up after `patience`.
///
/// # Errors
/// [`VhostUserError`]
pub fn open_blk(path: &Path, patience: Duration) -> Result<BlkConnection, VhostUserError> {
    let socket = connect(path, patience)?;
    let (result, is_late) = within(&socket, patience, || {
        let front = Frontend::from_stream(socket.try_clone()?, 1);
        let (features, _) = negotiate(&front, blk::feature::ALL)?;
        start_blk(front, features)
    });
    let (info, link, call) = result.map_err(|step| step.at(path, patience, is_late))?;
    Ok(BlkConnection { socket: socket.into(), info: export_info(&info), link, call })
}

pub(crate) fn connect(path: &Path, patience: Duration) -> Result<UnixStream, VhostUserError> {
    let failed = |source| VhostUserError::Connect { path: path.to_owned(), source };
    let text = path.to_str().ok_or_else(|| failed(ErrorKind::InvalidInput.into()))?;
    let deadline = std::time::Instant::now() + patience;
    crate::nbd::connect_unix(text, deadline).map(UnixStream::from).map_err(failed)
}

/// Runs a step that waits for the process. Ends the connection if it takes too long: the front end waits
/// without a limit. Returns whether it did.
pub(crate) fn within<T>(
    socket: &UnixStream,
    patience: Duration,
    step: impl FnOnce() -> Result<T, Step>,
) -> (Result<T, Step>, bool) {
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        let guard =
            std::thread::Builder::new().name("vhost-user".to_owned()).spawn_scoped(scope, move || {
                let is_late = is_done.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
                if is_late {
                    // It fails if the connection has ended, which is what is wanted.
                    let _ = socket.shutdown(std::net::Shutdown::Both);
                }
                is_late
            });
        match guard {
            Ok(guard) => {
                let result = step();
                drop(done);
                (result, guard.join().unwrap_or(false))
            }
            Err(error) => (Err(Step::Setup(error)), false),
        }
    })
}

/// Negotiates the features of the device and of the protocol. Returns both.
pub(crate) fn negotiate(front: &Frontend, wanted: u64) -> Result<(u64, VhostUserProtocolFeatures), Step> {
    let mut front = front.clone();
    front.set_owner()?;
    let offered = front.get_features()?;
    let messages = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
    for (bit, name) in [(blk::feature::VERSION_1, "VIRTIO 1.0"), (messages, "protocol features")] {
        if offered & bit == 0 {
            return Err(Step::Missing(name));
        }
    }
    // Only SCSI devices get an in-flight region: a client of a block device repeats its requests itself.
    let is_block_device = wanted == blk::feature::ALL;
    let region = match is_block_device {
        true => VhostUserProtocolFeatures::empty(),
        false => VhostUserProtocolFeatures::INFLIGHT_SHMFD | VhostUserProtocolFeatures::MQ,
    };
    let known = VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::REPLY_ACK | region;
    let agreed = front.get_protocol_features()? & known;
    // What the configuration of a SCSI device says has defaults, that of a block device has not.
    if is_block_device && !agreed.contains(VhostUserProtocolFeatures::CONFIG) {
        return Err(Step::Missing("VHOST_USER_PROTOCOL_F_CONFIG"));
    }
    front.set_protocol_features(agreed)?;
    if agreed.contains(VhostUserProtocolFeatures::REPLY_ACK) {
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    }
    let features = offered & wanted;
    front.set_features(features | messages)?;
    Ok((features, agreed))
}

/// Reads the configuration of a block device and starts its queue.
fn start_blk(mut front: Frontend, features: u64) -> Result<(BlkInfo, BlkLink, OwnedFd), Step> {
    let has_limits = features & (blk::feature::DISCARD | blk::feature::WRITE_ZEROES) != 0;
    let len = if has_limits { blk::CONFIG_LEN } else { blk::CONFIG_LEN_SHORT };
    let place = vec![0; base::int_cast::to_usize(len)];
    let (_, config) = front.get_config(0, len, VhostUserConfigFlags::empty(), &place)?;
    let info = BlkInfo::parse(features, &config).map_err(Step::Config)?;
    let queue = BlkQueue::new(&info)?;
    share(&front, queue.memory())?;
    let call = call()?;
    let kick = start_queue(&mut front, 0, &call, (0, 0))?;
    Ok((info, BlkLink { queue, kick, error: None }, call))
}

/// Gives the device the memory.
pub(crate) fn share(front: &Frontend, memory: &SharedMemory) -> Result<(), Step> {
    front.set_mem_table(&[VhostUserMemoryRegionInfo {
        guest_phys_addr: DEVICE_BASE,
        memory_size: to_u64(memory.len()),
        userspace_addr: DEVICE_BASE,
        mmap_offset: 0,
        mmap_handle: memory.file().as_raw_fd(),
    }])?;
    Ok(())
}

/// The notices to a device: the write end of a pipe.
///
/// A device could make an eventfd a blocking one, and fill it, since both sides share its flags: then a write
/// here would never end. The flags of this end are not shared.
#[derive(Debug)]
pub(crate) struct Kick(OwnedFd);

impl Kick {
    /// Makes a pipe. Returns its write end and the descriptor for the device.
    fn new() -> io::Result<(Self, OwnedFd)> {
        let (end, kick) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // The device would get an eventfd from others, and may write to it to remind itself, as SPDK does. So
        // it gets the pipe as a file that it can read and write. Without /proc it gets the read end.
        let place = format!("/proc/self/fd/{}", end.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok((Self(kick), rustix::fs::open(place, flags, Mode::empty()).unwrap_or(end)))
    }

    /// Notifies the device.
    pub(crate) fn notify(&self) {
        // It fails when the pipe is full, and then the device is notified already, or when the device is
        // gone, which the connection tells.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// Makes the eventfd that a device signals when it has ended requests.
pub(crate) fn call() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

/// Gives the device a queue at an offset of the memory, and the index from which it goes on. Returns the
/// notices to it.
pub(crate) fn start_queue(
    front: &mut Frontend,
    number: usize,
    call: &OwnedFd,
    (at, index): (usize, u16),
) -> Result<Kick, Step> {
    let (kick, kicked) = Kick::new()?;
    front.set_vring_num(number, ring::SIZE)?;
    front.set_vring_addr(
        number,
        &VringConfigData {
            queue_max_size: ring::SIZE,
            queue_size: ring::SIZE,
            flags: 0,
            desc_table_addr: SharedMemory::device_address(at + ring::DESCRIPTORS),
            used_ring_addr: SharedMemory::device_address(at + ring::USED),
            avail_ring_addr: SharedMemory::device_address(at + ring::AVAILABLE),
            log_addr: None,
        },
    )?;
    front.set_vring_base(number, index)?;
    front.set_vring_call(number, &owner::<EventFd>(call.try_clone()?))?;
    front.set_vring_kick(number, &owner(kicked))?;
    front.set_vring_enable(number, true)?;
    Ok(kick)
}

/// Returns what a device is, as a client knows exports.
fn export_info(info: &BlkInfo) -> ExportInfo {
    let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
    let change_lens = [info.discard_len_max, info.zeroes_len_max];
    ExportInfo {
        len: info.len,
        flags: transmission::HAS_FLAGS
            | flag(info.read_only, transmission::READ_ONLY)
            | flag(info.flush, transmission::SEND_FLUSH)
            | flag(info.discard_len_max > 0, transmission::SEND_TRIM)
            | flag(info.zeroes_len_max > 0, transmission::SEND_WRITE_ZEROES),
        block_len: info.block_len,
        preferred_block_len: info.physical_block_len,
        payload_len_max: info.data_len_max,
        change_len_max: change_lens.into_iter().filter(|len| *len > 0).min().unwrap_or(info.block_len),
        structured: false,
        allocation_id: None,
    }
}

/// The queue to a block device, as a client sees it.
pub struct BlkLink {
    queue: BlkQueue,
    kick: Kick,
    /// Why a request could not be put into the queue.
    error: Option<RingError>,
}

impl fmt::Debug for BlkLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlkLink")
    }
}

impl BlkLink {
    /// Tells the device of the requests that were put.
    ///
    /// # Errors
    /// [`RingError`]; the connection must be ended.
    pub fn kick(&mut self) -> Result<(), RingError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.queue.tell()? {
            self.kick.notify();
        }
        Ok(())
    }

    /// Passes on what the device has ended.
    ///
    /// # Errors
    /// [`RingError`]; the connection must be ended.
    pub fn collect(&mut self, now: Instant, client: &mut Client) -> Result<(), RingError> {
        while let Some(reply) = self.queue.next_reply()? {
            let result = match reply.status {
                BlkStatus::Done => Ok(()),
                BlkStatus::Failed => Err(Errno::IO),
                BlkStatus::Unsupported => Err(Errno::NOTSUP),
            };
            let memory = self.queue.memory();
            client.replied(now, reply.token, result, |buf| {
                if let Some((at, len)) = reply.data {
                    // If it fails, the client finds that data are missing.
                    let _ = memory.append_to(at, len, buf);
                }
            });
        }
        Ok(())
    }

    fn submit(&mut self, request: &Request, data: Option<&DataList>) -> Result<(), RingError> {
        let Request { flags, command, cookie, at, len } = *request;
        let request = match (command, data) {
            (Cmd::READ, _) => BlkRequest::Read { at, len },
            (Cmd::WRITE, Some(data)) => BlkRequest::Write { at, data },
            (Cmd::FLUSH, _) => BlkRequest::Flush,
            (Cmd::TRIM, _) => BlkRequest::Discard { at, len },
            (Cmd::WRITE_ZEROES, _) => {
                BlkRequest::WriteZeroes { at, len, may_deallocate: flags & FLAG_NO_HOLE == 0 }
            }
            // A client takes leave; here the end of the connection says that.
            (Cmd::DISC, _) => return Ok(()),
            _ => return Err(RingError::Bug("a request that no block device knows")),
        };
        self.queue.submit(cookie, request)
    }
}

impl RequestSink for BlkLink {
    fn is_full(&self) -> bool {
        self.queue.is_full() || self.error.is_some()
    }

    fn put(&mut self, request: Request, data: Option<DataList>) {
        if let Err(error) = self.submit(&request, data.as_ref()) {
            self.error.get_or_insert(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};

    use rustix::fs::fcntl_setfl;

    use super::*;

    #[test]
    fn a_device_can_notify_itself_and_cannot_block_a_notice() {
        let (kick, end) = Kick::new().unwrap();
        let mut end = File::from(end);
        end.write_all(&1_u64.to_ne_bytes()).unwrap();
        kick.notify();
        let mut notices = [0; 64];
        assert_eq!(end.read(&mut notices).unwrap(), 16);
        while end.write(&notices).is_ok() {}
        fcntl_setfl(&end, OFlags::RDWR).unwrap();
        kick.notify();
    }
}
