//! A complete SCSI target without I/O: ports, I_T nexuses, access control and logical units, joined.
//!
//! [`shard::Shard`] is a [`base::state_machine::StreamMachine`] and a [`base::ether::FrameMachine`]: drivers
//! pass bytes and frames to it. `iscsi` turns bytes into commands, and `hyperscsi` turns frames into
//! commands. This crate finds the logical unit that a LUN addresses *for the I_T nexus of the command*.
//! `device` executes the command, and the responses take the same path back. Every access to a unit goes
//! through the LUN map in `nexus`, so LUN masking is decided in one place.
//!
//! **Invariant:** this crate has no event loop, no configuration file and no medium of its own.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod admin;
mod bindings;
pub mod config;
mod hyperscsi_directory;
mod login_directory;
mod nexus;
mod route;
pub mod shard;
mod third_party;
mod tmf;
mod transport;
