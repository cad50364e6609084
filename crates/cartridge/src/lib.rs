//! The medium of virtual tape: a cartridge, which is a folder of files that survive a crash at any byte.
//!
//! **Invariant:** knows no SCSI command, no sense data, no file name and no operating system.
#![no_std]
#![forbid(unsafe_code)]

pub mod profile;
