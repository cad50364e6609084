//! Media that need I/O: files and block devices.
//!
//! [`open::FileSpec`] and [`open::BlockSpec`] open and lock a medium, on any thread and before privileges are given
//! up; [`store::FileStore`] serves what was opened on one reactor, through that reactor's file queue.
//!
//! **Invariant:** this room knows no SCSI and never blocks the reactor's thread.
#![forbid(unsafe_code)]

pub mod errno_map;
pub mod open;
pub mod store;

mod geometry;
