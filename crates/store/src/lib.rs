//! The interface of a store, or medium: byte-addressed, asynchronous operations that own their buffers until
//! they complete.
//!
//! The caller submits operations to a [`Store`] and polls it for completions. A store that needs no I/O
//! (`ram`, `null`) completes an operation within `submit`. A store that needs I/O (files, in the crate
//! `backends`) completes it when its driver has collected the result. Filters wrap any store and pass on the
//! operations that they do not change.
//!
//! **Invariant:** this crate knows no SCSI: no logical blocks, no LBAs, no sense data.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod api;
pub mod encrypt;
pub mod fault_inject;
pub mod luks2;
pub mod null;
pub mod powercut;
pub mod ram;
pub mod read_only;
pub mod shared;

pub use api::Store;
