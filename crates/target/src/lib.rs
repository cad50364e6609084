//! A whole SCSI target without I/O: ports, nexuses, access control and logical units, joined.
//!
//! [`shard::Shard`] is a [`base::state_machine::StreamMachine`] and a [`base::ether::FrameMachine`]: drivers feed it bytes and frames.
//! Within, `iscsi` turns bytes and `hyperscsi` frames into commands, this room finds the logical unit that a command means *to the nexus it came from*, `device` executes it,
//! and the answers take the way back. Nothing reaches a unit but through `nexus`'s map, so what an initiator may
//! see is decided in one place.
//!
//! **Invariant:** no event loop, no configuration file, no medium of its own.
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
