//! The medium of virtual tape: a cartridge, which is a folder with a label file and the log files of one to
//! four partitions. `docs/cartridge.md` specifies the format.
//!
//! [`Cartridge`] is a state machine without I/O. Its owner gives it one [`command::Command`] at a time,
//! carries out the file operations of [`Cartridge::poll_request`], gives their completions to
//! [`Cartridge::handle_completion`], and takes the outcome of the command from [`Cartridge::poll_outcome`]. A
//! record that is written is acknowledged when it is in the write buffer; [`command::Command::Drain`], when
//! everything before it is in the files; [`command::Command::Synchronize`], and filemarks that are not
//! immediate, when everything before them is durable.
//!
//! Memory is bounded: 4 MiB of writes under way, 8 MiB of the log for reads, and one record. A position is
//! found by a binary search over headers in the log, so there is no index in memory.
//!
//! **Invariant:** knows no SCSI command, no sense data, no file name and no operating system.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod attributes;
pub mod blocking;
pub mod command;
pub mod compression;
pub mod error;
pub mod fault_injection;
pub mod io;
pub mod label;
pub mod layout;
pub mod library;
mod machine;
pub mod profile;
pub mod tap;
pub mod testing;

pub use machine::{Cartridge, handover};
