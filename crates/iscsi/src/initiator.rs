//! The initiator role of iSCSI: one session as a machine without I/O.

pub mod contract;
mod control;
mod data;
mod dispatch;
mod enter;
mod issue;
mod manage;
mod place;
mod recover;
mod send;
mod session;
mod task;
mod text;
pub mod why;

pub use session::Session;
