//! A SCSI target without I/O: I_T nexuses, their LUN maps, and logical units, over any transport.
//!
//! A transport turns what it receives into the events of [`transport::target`]. [`Target`](target::Target)
//! finds the logical unit that a LUN addresses *for the I_T nexus of the command*; `device` executes the
//! command, and the responses take the same path back. Every access to a unit goes through the LUN map in
//! `nexus`, so LUN masking is decided in one place.
//!
//! **Invariant:** this crate knows no single transport. It has no event loop, no configuration file and no
//! medium of its own.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod bindings;
pub mod fault_injection;
pub mod handover;
mod idle_limiters;
pub mod nexus;
mod owners;
mod pending_tmfs;
pub mod route;
pub mod target;
mod third_party;
mod tmf;
pub mod transport_id;
pub mod transports;
pub mod units;
