//! The target role: everything between a byte stream and a SCSI task router (RFC 7143).
//!
//! [`engine::Engine`] is the whole of it; [`contract`] is what it says to the layer above and hears from it. The rest
//! is how, by what a PDU is about:
//!
//! * `dispatch` reads PDUs and gives each to whom it concerns, in the order of its CmdSN (`window`).
//! * `enter`, `logout` begin and end sessions; `converse` is text after the login; `ping` keeps connections alive.
//! * `command` makes tasks of SCSI commands and ends them; `data_out` fetches their data, `send` sends what leaves.
//! * `reassign` keeps tasks whose connection is gone and gives them another; `fence` orders answers over connections.
//! * `retain` keeps what was sent until it is acknowledged, `snack` sends it again, `repair` asks for Data-Out again.
//! * `management` decides when a task management function may pass.
//! * [`states`] are the states of RFC 7143 §8, [`why`] the rules that can be broken, [`crate::recovery`] the answers.
//!
//! **Invariant:** nothing here knows what a CDB means or what a logical unit is.

pub(crate) use base::{arena, memory_quota};
mod admission;
mod command;
mod connection;
pub mod contract;
mod converse;
mod data_in;
mod data_out;
mod dispatch;
pub mod engine;
mod enter;
mod fence;
mod limits;
mod logout;
mod management;
pub mod notes;
mod ping;
mod reassign;
mod repair;
mod retain;
mod run;
mod send;
mod session;
mod snack;
mod stall;
pub mod states;
mod task;
mod timer;
mod view;
pub mod why;
mod window;

#[cfg(test)]
mod tests;

/// The highest ErrorRecoveryLevel that this role serves; no more is agreed to, whatever a key policy allows.
pub const MAX_ERROR_RECOVERY_LEVEL: u8 = 2;

/// The most connections in a session that this role serves; no more are agreed to, whatever a key policy allows.
pub const MAX_CONNECTIONS: u16 = 16;
