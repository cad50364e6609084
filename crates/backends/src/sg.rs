//! A SCSI generic device as a [`store::Store`] that carries out commands.
//!
//! One thread for each device submits the commands in order, waits for their replies, and wakes the reactor.
//! The device never executes more than [`drivers::sg::IN_FLIGHT_MAX`] commands at a time; the others wait in
//! the thread.

mod device;
pub mod process;
mod serve;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use drivers::files::Errno;
use drivers::sg::{SgData, SgDevice, SgRequest};
use rustix::fs::OFlags;
use store::api::DeviceInfo;

use crate::open::{FileIdentity, OpenError, lock};
use crate::store::IO_LEN_MAX;
use crate::vhost_user::VhostUserError;
pub(crate) use device::Device;
pub use serve::SgStore;
pub(crate) use serve::did;

/// How long a device may take to say what it is.
const COMMAND_MAX: Duration = Duration::from_secs(30);

/// A device to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SgSpec {
    /// The path of the SG node.
    pub path: PathBuf,
    /// Whether to serve a disk that this host uses itself.
    pub shared_with_host: bool,
}

/// A device that is open and locked. It can be sent to the thread that will serve it.
#[derive(Debug)]
pub struct OpenSg {
    pub(crate) device: Device,
    pub(crate) path: PathBuf,
    pub(crate) identity: Option<FileIdentity>,
    pub(crate) info: DeviceInfo,
    /// What the device says of itself: by this it is recognised when it returns.
    pub(crate) names: Vec<Vec<u8>>,
}

/// A device, as it moves to another process.
#[derive(Debug)]
pub struct MovedSg {
    /// The type of the device, and its lengths.
    pub info: DeviceInfo,
    /// What the device says of itself.
    pub names: Vec<Vec<u8>>,
    /// The file by which a device of this host is locked.
    pub locked: Option<File>,
}

/// A device cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SgError {
    /// The node cannot be opened.
    #[error("cannot open {path}")]
    Open {
        /// The node.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The path leads to something else.
    #[error(
        "{path} is not a SCSI generic device (/dev/sgN; `lsscsi -g` and /sys/class/scsi_generic list them)"
    )]
    NotSg {
        /// The path.
        path: PathBuf,
    },
    /// Another process serves the device.
    #[error("{path} is in use by another process")]
    InUse {
        /// The node.
        path: PathBuf,
    },
    /// The device cannot be locked.
    #[error(transparent)]
    Lock(OpenError),
    /// This host uses the disk.
    #[error(
        "{path} is {disk}, which this host itself uses (mounted, swap space, or part of a volume); \
         shared_with_host = true serves it all the same"
    )]
    UsedByHost {
        /// The node.
        path: PathBuf,
        /// The block device.
        disk: PathBuf,
    },
    /// A device over vhost-user cannot be connected to.
    #[error(transparent)]
    VhostUser(#[from] VhostUserError),
    /// The process has no device at logical unit 0 of target 0.
    #[error("the process behind {path} has no device at logical unit 0 of target 0")]
    NoDevice {
        /// The socket.
        path: PathBuf,
    },
    /// The connection to the process of a device has ended.
    #[error("the connection to {path} has ended: {why}; commands wait {wait} for its process")]
    Lost {
        /// The socket.
        path: PathBuf,
        /// Why.
        why: String,
        /// How long commands wait.
        wait: String,
    },
    /// The process of a device broke the protocol or was too slow.
    #[error("{path} is not used any more: {why}; commands fail until its process has closed the connection")]
    Left {
        /// The socket.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Another device has the number of the one that was removed.
    #[error("{path} is not the device that was served before: a restart of targe serves it")]
    AnotherDevice {
        /// The node.
        path: PathBuf,
    },
    /// The device has neither a serial number nor designators.
    #[error(
        "{path} has neither a serial number nor designators, so it may be another device than the one that was served \
         before: a restart of targe serves it"
    )]
    Unnamed {
        /// The node.
        path: PathBuf,
    },
    /// The device does not answer.
    #[error("{path} does not answer")]
    Query {
        /// The node.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl SgError {
    /// Returns whether a process answers, and its device cannot be used as it is.
    pub const fn is_unusable(&self) -> bool {
        matches!(
            self,
            Self::AnotherDevice { .. } | Self::Unnamed { .. } | Self::Left { .. } | Self::NoDevice { .. }
        )
    }

    /// Returns whether a process cannot be reached or does not answer, so that it may answer later.
    pub const fn is_unreachable(&self) -> bool {
        matches!(self, Self::VhostUser(why) if why.is_unreachable())
    }
}

impl SgSpec {
    /// Opens the device and locks it against other processes that serve it.
    ///
    /// # Errors
    /// [`SgError`]
    pub fn open(&self) -> Result<OpenSg, SgError> {
        let mut opened = self.open_quietly()?;
        let failed = |source: io::Error| SgError::Query { path: self.path.clone(), source };
        if has_blocks(opened.info.kind) {
            opened.info.block_len = block_len(&mut opened.device).map_err(failed)?;
        }
        Ok(opened)
    }

    /// Opens the device and locks it, and asks for its names only: INQUIRY takes no unit attention. The
    /// length of its blocks is not known.
    pub(crate) fn open_quietly(&self) -> Result<OpenSg, SgError> {
        let mut device = self.open_node()?;
        match lock(device.locked(), &self.path, false) {
            Ok(()) => {}
            Err(OpenError::InUse { path }) => return Err(SgError::InUse { path }),
            Err(other) => return Err(SgError::Lock(other)),
        }
        let failed = |source: io::Error| SgError::Query { path: self.path.clone(), source };
        let kind = device.device_type().map_err(failed)?;
        let transfer_max = device.reserve_buffer(transfer_wanted()).map_err(failed)?;
        let mut device = Device::Sg(device);
        let (identity, _) = FileIdentity::of_path(&self.path).map_err(failed)?;
        let info = DeviceInfo { kind, block_len: None, transfer_max };
        let names = names(&mut device, COMMAND_MAX).map_err(failed)?;
        Ok(OpenSg { device, path: self.path.clone(), identity: Some(identity), info, names })
    }

    /// Opens a device that another process serves and has locked, without sending it a command: what the
    /// device reports next is for the hosts of that process.
    ///
    /// # Errors
    /// [`SgError`]
    pub fn take(&self, moved: MovedSg) -> Result<OpenSg, SgError> {
        let MovedSg { info, names, locked } = moved;
        let failed = |source: io::Error| SgError::Query { path: self.path.clone(), source };
        let mut device = self.open_device()?;
        let another = || SgError::AnotherDevice { path: self.path.clone() };
        let locked = locked.ok_or_else(another)?;
        let served = SgDevice::new(locked.try_clone().map_err(failed)?).map_err(failed)?;
        let (kind, rdev) = (device.device_type().map_err(failed)?, |file: &File| Ok(file.metadata()?.rdev()));
        // While that file is open, another device gets the number of this one only after it was removed.
        let is_same = rdev(device.locked()).map_err(failed)? == rdev(&locked).map_err(failed)?;
        if !is_same || kind != info.kind || served.device_type().is_err() {
            return Err(another());
        }
        let transfer_max = device.reserve_buffer(transfer_wanted()).map_err(failed)?;
        device.take_lock(locked);
        let (identity, _) = FileIdentity::of_path(&self.path).map_err(failed)?;
        let (info, device) = (DeviceInfo { transfer_max, ..info }, Device::Sg(device));
        Ok(OpenSg { device, path: self.path.clone(), identity: Some(identity), info, names })
    }

    /// Checks that the device could be served, without locking it and without sending it a command.
    ///
    /// # Errors
    /// [`SgError`]
    pub fn check(&self) -> Result<(), SgError> {
        self.open_node().map(drop)
    }

    fn open_node(&self) -> Result<SgDevice, SgError> {
        let device = self.open_device()?;
        let failed = |source: io::Error| SgError::Open { path: self.path.clone(), source };
        let node = device.locked().metadata().map_err(failed)?.rdev();
        match used_by_host(node).filter(|_| !self.shared_with_host) {
            Some(disk) => Err(SgError::UsedByHost { path: self.path.clone(), disk }),
            None => Ok(device),
        }
    }

    fn open_device(&self) -> Result<SgDevice, SgError> {
        let path = &self.path;
        let not_sg = || SgError::NotSg { path: path.clone() };
        let failed = |source: io::Error| SgError::Open { path: path.clone(), source };
        let facts = path.metadata().map_err(failed)?;
        if !facts.file_type().is_char_device() {
            return Err(not_sg());
        }
        match SgDevice::open(path) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTTY) => Err(not_sg()),
            opened => opened.map_err(failed),
        }
    }
}

impl OpenSg {
    /// Returns the identity of the node; a device of another process has none.
    pub const fn identity(&self) -> Option<FileIdentity> {
        self.identity
    }

    /// Returns what the device is.
    pub const fn info(&self) -> DeviceInfo {
        self.info
    }

    /// Returns the path of the node.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether commands reach the device, and need not wait for its process.
    pub const fn is_connected(&self) -> bool {
        match &self.device {
            Device::Sg(_) => true,
            Device::VhostUser(device) => device.is_connected(),
        }
    }
}

fn transfer_wanted() -> u32 {
    u32::try_from(IO_LEN_MAX).unwrap_or(u32::MAX)
}

/// Returns whether devices of a type have blocks of one length, which READ CAPACITY reports.
pub(crate) const fn has_blocks(kind: u8) -> bool {
    matches!(kind, 0x00 | 0x04 | 0x05 | 0x07 | 0x0e | 0x14)
}

fn timeout_ms(patience: Duration) -> u32 {
    u32::try_from(patience.as_millis()).unwrap_or(u32::MAX)
}

/// Asks a device for its names: standard INQUIRY data, the unit serial number and the designators.
pub(crate) fn names(device: &mut Device, patience: Duration) -> io::Result<Vec<Vec<u8>>> {
    [(0, 0x00, 36), (1, 0x80, 252), (1, 0x83, 252)]
        .into_iter()
        .map(|(vital, page, len)| {
            let bufs = vec![base::buffer::Buf::with_capacity(usize::from(len))];
            let data = SgData::In { len: usize::from(len), bufs };
            let command = vec![0x12, vital, page, 0, len, 0];
            let timeout_ms = timeout_ms(patience);
            let reply = device.execute(SgRequest { token: 0, command, data, timeout_ms })?;
            Ok(match (reply.host_status, reply.status, reply.data) {
                (0, 0, SgData::In { bufs, .. }) => {
                    bufs.first().map(|buf| buf.filled().to_vec()).unwrap_or_default()
                }
                // A device may have no such page.
                _ => Vec::new(),
            })
        })
        .collect()
}

/// Checks that a device which has come back is the one that was served before.
pub(crate) fn check_same(path: &Path, served: &[Vec<u8>], found: &[Vec<u8>]) -> Result<(), SgError> {
    if found != served {
        return Err(SgError::AnotherDevice { path: path.to_owned() });
    }
    // Devices of one model have the same INQUIRY data. A device can return a page without a name: the header
    // alone, or a serial number of spaces.
    let is_name =
        |page: &Vec<u8>| page.get(4..).is_some_and(|name| name.iter().any(|byte| !matches!(byte, 0 | b' ')));
    match found {
        [_, pages @ ..] if pages.iter().any(is_name) => Ok(()),
        _ => Err(SgError::Unnamed { path: path.to_owned() }),
    }
}

/// Asks a device for the length of its blocks. `None` if it has no medium, or does not say.
pub(crate) fn block_len(device: &mut Device) -> io::Result<Option<u32>> {
    // A device may have unit attentions pending; each is reported once.
    for _ in 0..4 {
        let bufs = vec![base::buffer::Buf::with_capacity(8)];
        let data = SgData::In { len: 8, bufs };
        let command = vec![0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let timeout_ms = timeout_ms(COMMAND_MAX);
        let reply = device.execute(SgRequest { token: 0, command, data, timeout_ms })?;
        if let (0, 0, SgData::In { bufs, .. }) = (reply.host_status, reply.status, &reply.data) {
            let filled = bufs.first().map(|buf| buf.filled()).unwrap_or_default();
            let len = filled.get(4..8).and_then(|len| Some(u32::from_be_bytes(len.try_into().ok()?)));
            return Ok(len.filter(|len| *len > 0));
        }
    }
    Ok(None)
}

/// Returns the block device of an SG node if this host uses it: an exclusive open of a device fails if it, or
/// a partition of it, is mounted or belongs to a volume. A CD drive is not opened: when it is closed, the
/// kernel allows the removal of its medium, which a host of ours may have prevented.
fn used_by_host(node: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(node), rustix::fs::minor(node));
    let disks = std::fs::read_dir(format!("/sys/dev/char/{major}:{minor}/device/block")).ok()?;
    let exclusive = (OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC).bits().cast_signed();
    disks.flatten().map(|disk| Path::new("/dev").join(disk.file_name())).find(|disk| {
        if disk.to_string_lossy().starts_with("/dev/sr") {
            return is_mounted(disk);
        }
        let opened = OpenOptions::new().read(true).custom_flags(exclusive).open(disk);
        opened.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::BUSY))
    })
}

/// Returns whether a block device is mounted.
fn is_mounted(disk: &Path) -> bool {
    let (Ok(facts), Ok(mounts)) = (disk.metadata(), std::fs::read_to_string("/proc/self/mountinfo")) else {
        return false;
    };
    let number = format!("{}:{}", rustix::fs::major(facts.rdev()), rustix::fs::minor(facts.rdev()));
    mounts.lines().any(|mount| mount.split(' ').nth(2) == Some(number.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_no_sg_device() {
        let spec = |path: &str| SgSpec { path: PathBuf::from(path), shared_with_host: false };
        for path in ["/dev/null", "/dev/zero", "/proc/self/status", "/tmp"] {
            assert!(matches!(spec(path).open(), Err(SgError::NotSg { .. })), "{path}");
            assert!(matches!(spec(path).check(), Err(SgError::NotSg { .. })), "{path}");
        }
        let info = DeviceInfo { kind: 0, block_len: None, transfer_max: 0 };
        let moved = MovedSg { info, names: Vec::new(), locked: Some(File::open("/dev/null").unwrap()) };
        assert!(matches!(spec("/dev/null").take(moved), Err(SgError::NotSg { .. })));
        let missing = spec("/dev/no-such-sg").check();
        assert!(matches!(missing, Err(SgError::Open { .. })), "{missing:?}");
    }
}
