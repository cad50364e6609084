//! A FUSE mount: a directory with one file, `disk`, which is the medium, for programs that take a file, above
//! all `losetup`.
//!
//! This module speaks the kernel's protocol directly, on `/dev/fuse`. A state machine (`file_system`)
//! parses the requests; [`Mount`] mounts the directory and does the I/O. Many requests are under way at once,
//! and the thread that completes a request answers it. The kernel caches nothing: a write that was
//! acknowledged is as durable as the medium reports, and `fsync` reaches the medium.

mod file_system;
mod mount;
mod mountpoint;
mod wire;

pub use mount::{Detached, FuseStartError, Mount};
pub use mountpoint::refuse_served;

/// Checks whether the kernel has FUSE and this process may open it. Mounting takes CAP_SYS_ADMIN besides.
///
/// # Errors
/// [`FuseStartError::NoFuse`]
pub fn probe() -> Result<(), FuseStartError> {
    mountpoint::open_device().map(drop)
}
