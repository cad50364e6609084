//! A block device of the kernel, `/dev/ublkbN`, whose requests this process serves (`ublk_drv`, Linux 6.5 or
//! later).
//!
//! Requests are received through an io_uring. A command for each of the device's tags waits in the kernel
//! until there is a request. The kernel describes the request in a table that both sides map (`descriptors`).
//! One command both answers a request and waits for the next. State machines parse the requests (`request`,
//! `params`); a driver does the I/O (`queue`, [`Device`]).
//!
//! Payloads are copied through the character device (UBLK_F_USER_COPY), not by the kernel driver into a
//! buffer per tag. That costs a system call for each request with a payload. In return, no memory is shared
//! with the kernel for the duration of a request. A write lies in a pooled buffer of its own length, and is
//! sent to the network from there without another copy. The data of a read are copied to the request from
//! where they were received. Only requests under way take memory, instead of each tag at its longest.
//!
//! There is one queue. One session on one thread serves it, or a few sessions with `--stripe`; more queues
//! would converge on the same threads.
//!
//! A device outlives its server (UBLK_F_USER_RECOVERY): its requests wait until another server takes it over.
//! That server must show the same data, which the device identifies by its
//! [`DeviceKey`](crate::device_key::DeviceKey).

mod control;
mod descriptors;
mod device;
mod device_lookup;
mod params;
mod queue;
mod request;
mod ring;
mod wire;

use control::Control;
pub use device::{Device, DeviceUse, EndError, Started, UblkStartError};
pub use device_lookup::{WaitingDevice, delete_left, find};

/// Checks whether this process can make block devices.
///
/// # Errors
/// [`UblkStartError`]
pub fn probe() -> Result<(), UblkStartError> {
    Control::open().map(drop)
}
