//! A whole SCSI target without I/O: ports, nexuses, access control and logical units, joined.
//!
//! **Invariant:** no event loop, no configuration file, no medium of its own.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod config;
mod directory;
