#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! * [`url`] is what is to be reached, [`login`] makes a plan of a session from it, [`open`] does all of that in one call.
//! * [`discover`] asks a portal, [`hyperscsi_discovery`] an Ethernet, for what is there.
//! * [`client`] has sessions on a thread of its own; [`future`] and [`command_handle`] are its futures. [`driver`] has them in a loop of
//!   yours; [`sessions`] is what it tells.
//! * [`command`] is any CDB and what comes of it, [`mod@unit`] what a logical unit says of itself, [`disk`] reads and writes
//!   bytes, [`identity`] tells one device from another, [`session_error`] says why there is no session.
//!
//! Sizes and offsets are bytes unless a type says otherwise ([`base::units`]); times are [`std::time::Duration`].
//!
//! The protocols are the machines of [`iscsi`] and [`hyperscsi`], sockets and timers are the reactor of [`drivers`]; this room
//! joins them and adds what a user of disks wants.
//!
//! **Invariant:** knows nothing of the kernel's block layer, of command lines, and of how to print.
#![forbid(unsafe_code)]

pub mod client;
pub mod command;
pub mod command_handle;
pub mod discover;
pub mod disk;
pub mod driver;
mod fault_injection;
pub mod future;
pub mod hyperscsi_discovery;
pub mod identity;
pub mod login;
pub mod open;
pub mod session_error;
pub mod sessions;
pub mod unit;
pub mod url;

mod protocol;
mod retry;

/// Units, buffers ([`base::buffer::DataList`]) and the time.
pub use base;
/// How a reactor is set up ([`drivers::config::Config`]), and what it counts.
pub use drivers;
/// What a session of HyperSCSI is planned with and tells.
pub use hyperscsi;
/// What a session of iSCSI is planned with ([`iscsi::initiator::contract::SessionPlan`]) and tells; names, task management.
pub use iscsi;
/// CDBs, LUNs, sense data and what units say of themselves.
pub use scsi;
/// The operations of a disk ([`store::api::OpAction`]), and the contract that it keeps.
pub use store;
