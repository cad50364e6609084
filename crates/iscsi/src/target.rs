//! The target role: everything between a byte stream and a SCSI task router (RFC 7143).
//!
//! [`engine::Engine`] is the whole of it; [`contract`] is what it says to the layer above and hears from it. The rest
//! is how, by what a PDU is about:
//!
//! * `dispatch` reads PDUs and gives each to whom it concerns, in the order of its CmdSN (`window`).
//! * `login`, `logout` begin and end sessions; `text` is text after the login; `ping` keeps connections alive.
//! * `command` makes tasks of SCSI commands and ends them; `data_out` fetches their data, `send` sends what leaves.
//! * `allegiance` keeps tasks whose connection is gone and gives them another; `response_fence` orders answers over connections.
//! * `status_log` keeps what was sent until it is acknowledged, `snack` sends it again, `recovery_r2t` asks for Data-Out again.
//! * `management` decides when a task management function may pass.
//! * [`states`] are the states of RFC 7143 §8, [`protocol_error`] the rules that can be broken, [`crate::recovery`] the answers.
//!
//! **Invariant:** nothing here knows what a CDB means or what a logical unit is.

pub(crate) use base::{arena, memory_quota};
mod admission;
mod allegiance;
mod command;
mod connection;
pub mod contract;
mod data_in;
mod data_out;
mod data_out_sequence;
mod dispatch;
pub mod engine;
pub mod initiator_notes;
mod limits;
mod login;
mod logout;
mod management;
mod ping;
pub mod protocol_error;
mod recovery_r2t;
mod response_fence;
mod send;
mod session;
mod snack;
mod stall;
pub mod states;
mod status_log;
mod task;
mod text;
mod timer;
mod view;
mod window;

#[cfg(test)]
mod tests;

/// The highest ErrorRecoveryLevel that this role serves; no more is agreed to, whatever a key policy allows.
pub const MAX_ERROR_RECOVERY_LEVEL: u8 = 2;

/// The most connections in a session that this role serves; no more are agreed to, whatever a key policy allows.
pub const MAX_CONNECTIONS: u16 = 16;
