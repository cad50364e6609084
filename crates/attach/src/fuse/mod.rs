//! A directory with one file, `disk`, which is the medium: for whatever takes a file, `losetup` above all.
//!
//! The kernel's protocol is spoken directly, on `/dev/fuse`: requests are understood by a machine (`state_machine`), mounted
//! and moved by its hands ([`Mount`]). Many requests are under way at once, and answered by whoever completes them.
//! Nothing is cached in the kernel: what a program was told to be written is written as far as the medium says so, and
//! `fsync` reaches the medium.

mod file_system;
mod mount;
mod mountpoint;
mod wire;

pub use mount::{Detached, FuseStartError, Mount};
