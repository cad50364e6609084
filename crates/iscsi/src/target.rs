//! The target role: the layer between a byte stream and a SCSI task router (RFC 7143).
//!
//! [`engine::Engine`] is the public type of this role. [`contract`] holds the messages between it and the
//! SCSI layer above. The other modules, by the PDUs that they handle:
//!
//! * `dispatch` reads PDUs, decodes each once (`incoming`) and passes it to the module that handles it, in
//!   the order of its CmdSN (`window`).
//! * `login` begins sessions, `logout` and `teardown` end them; `text` handles text negotiation after the
//!   login; `ping` keeps connections alive.
//! * `command` makes tasks of SCSI commands and ends them; `data_out` requests and receives their data, which
//!   `data_out_transfer` keeps for each task; `send` builds the PDUs to send.
//! * `allegiance` ties tasks to connections and records lost ones, `reassignment` reassigns detached tasks;
//!   `response_fence` and `fenced_send` order responses across connections.
//! * `status_log` keeps sent PDUs until they are acknowledged (`acknowledgement`), `snack` sends them again,
//!   `recovery_r2t` requests lost Data-Out again.
//! * [`handover`] moves idle sessions to another engine.
//! * `management` decides when a task management function may be passed to the SCSI layer.
//! * [`states`] are the states of RFC 7143 §8, [`protocol_error`] lists the rules that an initiator can
//!   break, and [`crate::recovery`] decides the recovery actions.
//!
//! **Invariant:** this module and its submodules know neither the meaning of a CDB nor what a logical unit
//! is.

pub(crate) use base::arena;
mod acknowledgement;
mod admission;
mod allegiance;
mod command;
mod connection;
pub mod contract;
mod data_in;
mod data_out;
mod data_out_sequence;
mod data_out_transfer;
mod dispatch;
pub mod engine;
mod fenced_send;
mod guess_state;
pub mod handover;
mod incoming;
pub mod initiator_notes;
#[cfg(any(test, feature = "injected-keys"))]
mod injected_keys;
mod limits;
mod login;
mod logout;
mod logout_cause;
mod management;
mod memory_waiters;
mod output;
mod password_guess;
mod pending_logout;
mod ping;
pub mod protection;
pub mod protocol_error;
mod reassignment;
mod recovery_r2t;
mod response_fence;
mod send;
mod sequence_progress;
mod services;
mod session;
mod snack;
mod stall;
pub mod states;
mod status_log;
mod task;
mod teardown;
mod text;
mod timer;
mod tracing;
mod view;
mod violation;
mod window;

#[cfg(test)]
mod tests;

/// The highest ErrorRecoveryLevel that this role supports. The negotiation never agrees on a higher one,
/// whatever a key policy allows.
pub const MAX_ERROR_RECOVERY_LEVEL: u8 = 2;

/// The most connections in a session that this role supports. The negotiation never agrees on more, whatever
/// a key policy allows.
pub const MAX_CONNECTIONS: u16 = 16;
