//! A block device of the kernel, `/dev/ublkbN`, whose requests are served by this process (`ublk_drv`, Linux 6.5 or later).
//!
//! Requests come through an io_uring: a command for each of the device's tags lies in the kernel until there is a
//! request, which stands in a table that both see (`descriptors`); the answer to it and the wait for the next are one
//! command. What a request means is understood by machines (`request`, `params`), moved by hands (`queue`, [`Device`]).
//!
//! Payloads are copied through the character device (UBLK_F_USER_COPY), not by the driver into a buffer per tag. That
//! costs a system call for each request with a payload. In return no memory is shared with the kernel for as long as
//! a request lasts: a write lies in a pooled buffer of its own length, from which it leaves for the network without
//! another copy, the data of a read go from where the network put them straight to the request, and memory is taken by
//! requests under way instead of by each tag at its longest.
//!
//! There is one queue. What serves it is one session on one thread, or a few with `--stripe`; more queues would
//! meet there again.
//!
//! A device outlives its server (UBLK_F_USER_RECOVERY): requests wait until another one takes it over. It must serve the
//! same disk: the device keeps the [`DeviceKey`] that says which.

mod control;
mod descriptors;
mod device;
mod device_lookup;
mod params;
mod queue;
mod request;
mod ring;
mod wire;

pub use device::{Device, DeviceUse, EndError, Started, UblkStartError};
pub use device_lookup::{DeviceKey, WaitingDevice, find, initiator_id};
