//! The target role: every HyperSCSI session of a shard.
//!
//! * `engine` is the value that the owner holds: frames in and out below, commands and data above ([`contract`]).
//! * `enter` takes handshakes to sessions, `end` takes sessions to their end.
//! * `request` makes exchanges of what arrives, `turn` hands them up in order, `management` does so for task management.
//! * `data_out` places data that arrives and asks for more, `answer` sends data and responses.
//!
//! What is lost on the way is repaired below ([`crate::association`]); who may have a session is settled beside
//! ([`crate::login`]).
//!
//! **Invariant:** nothing here knows what a CDB means or what a logical unit is.

mod answer;
pub mod contract;
mod data_out;
mod end;
pub mod engine;
mod enter;
mod exchange;
mod management;
pub(crate) mod request;
mod session;
mod turn;
