//! Media that need I/O: files and block devices.
//!
//! [`open::FileSpec`] and [`open::BlockSpec`] open and lock a medium, on any thread and before the process
//! drops its privileges. [`store::FileStore`] serves an open medium on one reactor, through the file queue of
//! that reactor. [`cartridge_folder`] does both for the folder of a tape cartridge, and [`sg`] for a SCSI
//! device of this host.
//!
//! **Invariant:** this crate knows no SCSI and never blocks the thread of the reactor.
#![forbid(unsafe_code)]

pub mod cartridge_folder;
pub mod errno_map;
pub mod fault_injection;
pub mod open;
pub mod sg;
pub mod store;

mod geometry;
