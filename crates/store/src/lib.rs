//! The contract of a medium: byte-addressed, asynchronous, owning its buffers while it works on them.
//!
//! A [`Store`] is handed operations and is asked for completions. A medium that needs no I/O (`ram`, `null`) answers
//! within `submit`; one that does (files, in the room `backends`) answers when its driver has collected the result.
//! Filters wrap any store and pass on what they do not touch.
//!
//! **Invariant:** this room knows no SCSI: no blocks, no LBAs, no sense.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod api;
pub mod encrypt;
pub mod fault_inject;
pub mod null;
pub mod powercut;
pub mod ram;
pub mod read_only;
pub mod shared;

pub use api::Store;
