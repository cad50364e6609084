//! The target role: every HyperSCSI session of a shard.
//!
//! * `engine` is the value that the owner holds: frames in and out below, commands and data above ([`contract`]).
//! * `gateway` takes handshakes to sessions, `closing` takes sessions to their end.
//! * `request` makes exchanges of what arrives, `ordering` hands them up in order, `task_management` does so for task management.
//! * `data_out` places data that arrives and asks for more, `responses` sends data and responses.
//!
//! What is lost on the way is repaired below ([`crate::connection`]); who may have a session is settled beside
//! ([`crate::login`]).
//!
//! **Invariant:** nothing here knows what a CDB means or what a logical unit is.

mod closing;
pub mod contract;
mod data_out;
pub mod engine;
mod exchange;
mod gateway;
mod ordering;
pub(crate) mod request;
mod responses;
mod session;
mod task_management;
