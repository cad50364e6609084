//! Media that need I/O: files and block devices.
//!
//! [`open::FileSpec`] and [`open::BlockSpec`] open and lock a medium, on any thread and before the process
//! drops its privileges. [`store::FileStore`] serves an open medium on one reactor, through the file queue of
//! that reactor. [`cartridge_folder`] does both for the folder of a tape cartridge, and [`library_folder`]
//! holds a tape library, on a thread that may block. [`nbd`] connects to the server of an export,
//! [`vhost_user`] to a device of another process, and [`sg`] passes commands to a SCSI device of this host.
//!
//! **Invariant:** this crate knows no SCSI and never blocks the thread of the reactor.
#![forbid(unsafe_code)]

pub mod cartridge_folder;
pub mod errno_map;
pub mod exchanged_file;
pub mod fault_injection;
pub mod library_folder;
pub mod nbd;
pub mod open;
pub mod sg;
pub mod store;
pub mod unopened;
pub mod vhost_user;

mod geometry;
mod overlap;
