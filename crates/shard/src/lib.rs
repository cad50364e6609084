//! A target with the transports that reach it, as one value on one thread: [`Shard`](shard::Shard).
//!
//! This crate joins what knows nothing of each other: `target` (sessions and logical units, any transport),
//! `iscsi` and `hyperscsi`. Drivers use a shard as a [`base::state_machine::StreamMachine`] and a
//! [`base::ether::FrameMachine`]. The crate answers the questions of logins from the configuration: which
//! initiator may reach which target, through which portal or group, and which LUNs it sees there. A new
//! transport is added here and nowhere else.
//!
//! **Invariant:** this crate has no event loop and no configuration file. It executes no command.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod admin;
pub mod bindings;
pub mod config;
pub mod handover;
mod hyperscsi_directory;
mod ingress;
mod login_directory;
pub mod losses;
mod lost_writes;
mod medium_removal;
mod reservations;
pub mod session_counts;
pub mod shard;
mod slow_commands;
mod space;
pub mod trace;
