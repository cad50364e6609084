//! The control device: adds, starts, stops, takes over and removes devices.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::device::UblkStartError;
use super::params::{DEPTH, IO_BYTES_MAX};
use super::ring::{Held, Ring};
use super::wire::{ANY_DEVICE, ControlCommand, ControlOp, DeviceInfo, Params, flags};

/// The path of the control device.
const PATH: &str = "/dev/ublk-control";
/// The ring's length: one command is under way at a time.
const ENTRIES: u32 = 2;
/// The features of the kernel that this module needs.
const NEEDED: u64 =
    flags::USER_RECOVERY | flags::USER_RECOVERY_REISSUE | flags::CMD_IOCTL_ENCODE | flags::USER_COPY;

/// The control device, open.
pub(super) struct Control {
    device: File,
    ring: Ring,
    /// The control device's descriptor, as the ring owns it.
    held: Held,
}

impl Control {
    /// Opens the control device, and checks that the kernel has the features that this module needs.
    pub(super) fn open() -> Result<Self, UblkStartError> {
        let device =
            OpenOptions::new().read(true).write(true).open(PATH).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => missing(),
                io::ErrorKind::PermissionDenied => UblkStartError::NotAllowed,
                _ => UblkStartError::Control(error),
            })?;
        let mut ring = Ring::new(ENTRIES).map_err(UblkStartError::NoRing)?;
        let held = ring.hold(&device).map_err(UblkStartError::Control)?;
        let mut control = Self { device, ring, held };
        let features = match control.command_with(
            ControlOp::GET_FEATURES,
            ControlCommand::plain(ANY_DEVICE, 0),
            0_u64,
        ) {
            Ok(features) => features,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                return Err(UblkStartError::NotAllowed);
            }
            // Kernels before 6.5 do not know this query.
            Err(_) => 0,
        };
        if features & NEEDED == NEEDED { Ok(control) } else { Err(UblkStartError::TooOld) }
    }

    /// Locks out other processes that would add or take over a device, until [`Self::unlock`] or the end of
    /// this process.
    pub(super) fn lock(&self) -> io::Result<()> {
        Ok(flock(&self.device, FlockOperation::LockExclusive)?)
    }

    pub(super) fn unlock(&self) -> io::Result<()> {
        Ok(flock(&self.device, FlockOperation::Unlock)?)
    }

    /// Returns the kernel's information on a device.
    pub(super) fn info(&mut self, device: u32) -> io::Result<DeviceInfo> {
        self.command_with(ControlOp::GET_DEV_INFO, ControlCommand::plain(device, 0), DeviceInfo::default())
    }

    /// Adds a device that is no disk yet, with a note that the kernel keeps for its server. Returns the
    /// device's number.
    pub(super) fn add(&mut self, note: u64) -> io::Result<u32> {
        let wanted = DeviceInfo {
            queues: 1,
            depth: DEPTH,
            io_bytes_max: IO_BYTES_MAX,
            device: ANY_DEVICE,
            flags: NEEDED,
            note,
            ..DeviceInfo::default()
        };
        let made = self.command_with(ControlOp::ADD_DEV, ControlCommand::plain(ANY_DEVICE, 0), wanted)?;
        Ok(made.device)
    }

    pub(super) fn set_params(&mut self, device: u32, params: Params) -> io::Result<()> {
        self.command_with(ControlOp::SET_PARAMS, ControlCommand::plain(device, 0), params).map(drop)
    }

    pub(super) fn params(&mut self, device: u32) -> io::Result<Params> {
        let room = Params { len: super::params::LEN, ..Params::default() };
        self.command_with(ControlOp::GET_PARAMS, ControlCommand::plain(device, 0), room)
    }

    /// Makes a device a disk. All its commands must wait in the kernel already. Returns after the kernel has
    /// scanned for partitions.
    pub(super) fn start(&mut self, device: u32) -> io::Result<()> {
        self.command(ControlOp::START_DEV, device, std::process::id().into())
    }

    /// Stops a disk: requests under way are finished, later ones fail, and every command completes.
    pub(super) fn stop(&mut self, device: u32) -> io::Result<()> {
        self.command(ControlOp::STOP_DEV, device, 0)
    }

    /// Requests the removal of a device as soon as no process has it open, and does not wait for that.
    pub(super) fn remove_in_time(&mut self, device: u32) -> io::Result<()> {
        self.command(ControlOp::DEL_DEV_ASYNC, device, 0)
    }

    /// Removes a device, and waits until no process has it open.
    pub(super) fn remove(&mut self, device: u32) -> io::Result<()> {
        self.command(ControlOp::DEL_DEV, device, 0)
    }

    /// Prepares a device whose server died for another server.
    pub(super) fn begin_recovery(&mut self, device: u32) -> io::Result<()> {
        self.command(ControlOp::START_USER_RECOVERY, device, 0)
    }

    /// Resumes the waiting requests. All commands must wait in the kernel already.
    pub(super) fn end_recovery(&mut self, device: u32) -> io::Result<()> {
        self.command(ControlOp::END_USER_RECOVERY, device, std::process::id().into())
    }

    fn command(&mut self, op: ControlOp, device: u32, inline: u64) -> io::Result<()> {
        self.command_with(op, ControlCommand::plain(device, inline), [0_u8; 0]).map(drop)
    }

    fn command_with<T>(&mut self, op: ControlOp, command: ControlCommand, value: T) -> io::Result<T>
    where
        T: zerocopy::IntoBytes + zerocopy::FromBytes + zerocopy::Immutable,
    {
        self.ring.control(self.held, op, command, value)
    }
}

/// Returns why there is no control device. The system does not load the module by itself.
fn missing() -> UblkStartError {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let block = Path::new("/lib/modules").join(release.trim()).join("kernel/drivers/block");
    let built = ["ublk_drv.ko", "ublk_drv.ko.xz", "ublk_drv.ko.zst", "ublk_drv.ko.gz"];
    if built.iter().any(|name| block.join(name).exists()) {
        UblkStartError::NotLoaded
    } else {
        UblkStartError::NoUblk
    }
}
