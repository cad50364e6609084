#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! * [`url`] parses the URL of a logical unit, [`login`] makes the plan of a session from it, and [`open`]
//!   does all of that in one call.
//! * [`discover`] lists the targets of a portal, [`hyperscsi_discovery`] those of an Ethernet network.
//! * [`client`] runs sessions on a thread of its own; [`future`] and [`command_handle`] are its futures.
//!   [`driver`] runs them in a loop of yours; [`sessions`] has its events.
//! * [`command`] is any CDB and its result, [`mod@unit`] decodes what a logical unit reports about itself,
//!   [`disk`] reads and writes bytes, [`identity`] tells one device from another, [`session_error`] says why
//!   there is no session.
//!
//! Sizes and offsets are bytes unless a type says otherwise ([`base::units`]); times are
//! [`std::time::Duration`].
//!
//! The protocols are the state machines of [`iscsi`] and [`hyperscsi`]; sockets and timers belong to the
//! reactor of [`drivers`]. This crate connects them and adds what a user of disks needs.
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
/// The configuration of a reactor ([`drivers::config::Config`]), and its counters.
pub use drivers;
/// The plan and the events of a HyperSCSI session.
pub use hyperscsi;
/// The plan ([`iscsi::initiator::contract::SessionPlan`]) and the events of an iSCSI session; names.
pub use iscsi;
/// CDBs, LUNs, sense data and the data that units report about themselves.
pub use scsi;
/// The operations of a disk ([`store::api::OpAction`]), and the interface that it implements.
pub use store;
/// Commands and task management functions, as every transport carries them.
pub use transport;
