//! The target role: every HyperSCSI session of a shard.
//!
//! * `engine` is the value that the owner holds: frames in and out below, commands and data above
//!   ([`contract`]).
//! * `gateway` makes sessions of handshakes, `closing` ends sessions.
//! * `request` makes exchanges of received requests, `ordering` submits commands to the layer above in their
//!   order, `task_management` does so for task management functions.
//! * [`handover`] moves sessions to the engine of another process.
//! * `data_out` stores received data and requests more, `responses` sends data and responses.
//!
//! [`crate::connection`] retransmits lost frames. [`crate::login`] decides who may have a session.
//!
//! **Invariant:** this module does not interpret CDBs and does not know logical units.

mod closing;
pub mod contract;
mod data_out;
pub mod engine;
mod exchange;
mod gateway;
pub mod handover;
mod ordering;
pub(crate) mod request;
mod responses;
mod services;
mod session;
mod task_management;
