//! Numbers and structures of the kernel's ublk interface (`linux/ublk_cmd.h`), in the host's byte order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The unit in which the kernel counts offsets and lengths, whatever the blocks of the device.
pub(super) const SECTOR: u64 = 512;
/// The exponent of [`SECTOR`], which is a power of two.
pub(super) const SECTOR_SHIFT: u32 = 9;
/// In an add command: the kernel chooses a free device number.
pub(super) const ANY_DEVICE: u32 = u32::MAX;
/// Stands for no queue, in commands that concern none.
const NO_QUEUE: u16 = u16::MAX;
/// The offset in the character device of the payload of tag 0 of queue 0.
const PAYLOADS_AT: u64 = 0x8000_0000;
/// The number of offset bits for the payload of each tag.
const PAYLOAD_BITS: u32 = 25;
/// A command that completes with this error fetches no more requests: the device ends.
pub(super) const ABORTED: i32 = -libc::ENODEV;

/// A command to the control device, numbered as an ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ControlOp(pub(super) u32);

impl ControlOp {
    pub(super) const GET_DEV_INFO: Self = Self::reading(0x02);
    pub(super) const ADD_DEV: Self = Self::both(0x04);
    pub(super) const DEL_DEV: Self = Self::both(0x05);
    pub(super) const START_DEV: Self = Self::both(0x06);
    pub(super) const STOP_DEV: Self = Self::both(0x07);
    pub(super) const SET_PARAMS: Self = Self::both(0x08);
    pub(super) const GET_PARAMS: Self = Self::reading(0x09);
    pub(super) const START_USER_RECOVERY: Self = Self::both(0x10);
    pub(super) const END_USER_RECOVERY: Self = Self::both(0x11);
    pub(super) const GET_FEATURES: Self = Self::reading(0x13);
    pub(super) const DEL_DEV_ASYNC: Self = Self::reading(0x14);

    const fn reading(number: u32) -> Self {
        Self(ioctl(IOC_READ, size_of::<ControlCommand>(), number))
    }

    const fn both(number: u32) -> Self {
        Self(ioctl(IOC_READ | IOC_WRITE, size_of::<ControlCommand>(), number))
    }
}

/// A command to the character device of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IoOp(pub(super) u32);

impl IoOp {
    pub(super) const FETCH: Self = Self::both(0x20);
    pub(super) const COMMIT_AND_FETCH: Self = Self::both(0x21);

    const fn both(number: u32) -> Self {
        Self(ioctl(IOC_READ | IOC_WRITE, size_of::<IoCommand>(), number))
    }
}

const IOC_WRITE: u32 = 1;
const IOC_READ: u32 = 2;

/// `_IOC` of the kernel's generic `ioctl.h`, of type `u`.
#[allow(
    clippy::cast_possible_truncation,
    reason = "structures of tens of bytes; a test compares the numbers"
)]
const fn ioctl(direction: u32, len: usize, number: u32) -> u32 {
    direction << 30 | (len as u32) << 16 | (b'u' as u32) << 8 | number
}

/// Features of a device, and of the kernel.
pub(super) mod flags {
    /// Requests wait when the server dies.
    pub(in super::super) const USER_RECOVERY: u64 = 1 << 3;
    /// The requests that a dead server had taken are sent again to the next server.
    pub(in super::super) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands are numbered as ioctls.
    pub(in super::super) const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// Payloads are read and written through the character device.
    pub(in super::super) const USER_COPY: u64 = 1 << 7;
}

/// The state of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(super) struct State(pub(super) u16);

impl State {
    /// It is not started, or it is stopped.
    pub(super) const DEAD: Self = Self(0);
    /// Its server died; it is a disk whose requests wait.
    pub(super) const QUIESCED: Self = Self(2);
}

/// `ublksrv_ctrl_cmd`
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct ControlCommand {
    pub(super) device: u32,
    pub(super) queue: u16,
    /// The length of the memory at `addr`.
    pub(super) len: u16,
    pub(super) addr: u64,
    /// An argument that needs no memory.
    pub(super) inline: u64,
    pub(super) path_len: u16,
    pub(super) padding: u16,
    pub(super) reserved: u32,
}

/// `ublksrv_ctrl_dev_info`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DeviceInfo {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) state: State,
    pub(super) padding: u16,
    pub(super) io_bytes_max: u32,
    pub(super) device: u32,
    /// The process that serves it.
    pub(super) server: i32,
    pub(super) padding_2: u32,
    pub(super) flags: u64,
    /// A value for the server, which the kernel keeps.
    pub(super) note: u64,
    pub(super) owner_uid: u32,
    pub(super) owner_gid: u32,
    pub(super) reserved: [u64; 2],
}

/// `ublk_params`: its types BASIC and DISCARD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Params {
    pub(super) len: u32,
    pub(super) types: u32,
    pub(super) basic: BasicParams,
    pub(super) discard: DiscardParams,
    /// Device numbers and zones, which this process does not set.
    pub(super) rest: [u32; 13],
}

pub(super) const PARAMS_BASIC: u32 = 1 << 0;
pub(super) const PARAMS_DISCARD: u32 = 1 << 1;

/// `ublk_param_basic`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct BasicParams {
    pub(super) attributes: u32,
    pub(super) logical_shift: u8,
    pub(super) physical_shift: u8,
    pub(super) io_opt_shift: u8,
    pub(super) io_min_shift: u8,
    pub(super) io_sectors_max: u32,
    pub(super) chunk_sectors: u32,
    pub(super) sectors: u64,
    pub(super) virt_boundary_mask: u64,
}

/// Attributes of the disk.
pub(super) mod attributes {
    pub(in super::super) const READ_ONLY: u32 = 1 << 0;
    pub(in super::super) const ROTATIONAL: u32 = 1 << 1;
    pub(in super::super) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(in super::super) const FUA: u32 = 1 << 3;
}

/// `ublk_param_discard`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DiscardParams {
    pub(super) alignment: u32,
    pub(super) granularity: u32,
    pub(super) discard_sectors_max: u32,
    pub(super) write_zeroes_sectors_max: u32,
    pub(super) segments_max: u16,
    pub(super) reserved: u16,
}

/// `ublksrv_io_desc`: a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Descriptor {
    /// The operation in the lowest byte, flags above.
    pub(super) op_flags: u32,
    pub(super) sectors: u32,
    pub(super) start: u64,
    pub(super) addr: u64,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestOp(pub(super) u32);

impl RequestOp {
    pub(super) const READ: Self = Self(0);
    pub(super) const WRITE: Self = Self(1);
    pub(super) const FLUSH: Self = Self(2);
    pub(super) const DISCARD: Self = Self(3);
    pub(super) const WRITE_ZEROES: Self = Self(5);
}

/// The write must be durable before it is answered (force unit access).
pub(super) const REQUEST_FUA: u32 = 1 << 13;
/// The zeros keep their storage.
pub(super) const REQUEST_NOUNMAP: u32 = 1 << 15;

impl Descriptor {
    pub(super) const fn op(&self) -> RequestOp {
        RequestOp(self.op_flags & 0xff)
    }

    pub(super) const fn has(&self, flag: u32) -> bool {
        self.op_flags & flag != 0
    }
}

/// `ublksrv_io_cmd`
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct IoCommand {
    pub(super) queue: u16,
    pub(super) tag: u16,
    /// A count of bytes, or a negative error number.
    pub(super) result: i32,
    /// The address of a buffer; unused where payloads are copied through the device.
    pub(super) addr: u64,
}

const _: () = assert!(size_of::<ControlCommand>() == 32);
const _: () = assert!(size_of::<DeviceInfo>() == 64);
const _: () = assert!(size_of::<Params>() == 112);
const _: () = assert!(size_of::<BasicParams>() == 32);
const _: () = assert!(size_of::<DiscardParams>() == 20);
const _: () = assert!(size_of::<Descriptor>() == 24);
const _: () = assert!(size_of::<IoCommand>() == 16);

impl ControlCommand {
    /// Makes a command about a device, with `inline` as its only argument.
    pub(super) const fn plain(device: u32, inline: u64) -> Self {
        Self { device, queue: NO_QUEUE, len: 0, addr: 0, inline, path_len: 0, padding: 0, reserved: 0 }
    }
}

impl IoCommand {
    /// Makes the first command of a tag.
    pub(super) const fn fetch(tag: u16) -> Self {
        Self { queue: 0, tag, result: 0, addr: 0 }
    }

    /// Makes the command that answers a request.
    pub(super) const fn commit(tag: u16, result: i32) -> Self {
        Self { queue: 0, tag, result, addr: 0 }
    }
}

/// Returns where the payload of a tag lies in the character device.
pub(super) fn payload_at(tag: u16) -> u64 {
    PAYLOADS_AT + (u64::from(tag) << PAYLOAD_BITS)
}

#[cfg(test)]
mod tests;
