//! Device servers and the SAM object model: logical units with their task sets, unit attentions, reservations.
//!
//! A [`contract::Command`] goes in, [`contract::Event`]s come out; data travels in shares of buffers. A logical unit
//! is a plain value on one thread: every nexus that reaches it is served by the same reactor, so nothing here locks.
//!
//! **Invariant:** this room knows no transport: not how commands arrive, nor how data is fetched or delivered.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod absent;
mod alua;
mod attention;
pub mod contract;
mod copy;
mod fault;
mod flush;
mod identifying;
mod inquiry;
mod log;
mod medium;
mod mode;
mod nexus;
mod peer;
mod pr;
mod range_lock;
mod removal;
mod report_luns;
mod reserve;
pub mod saved;
mod saving;
mod sbc;
mod scratch;
mod self_test;
mod server;
mod settings;
mod spc;
mod table;
mod task;
mod task_set;
#[cfg(test)]
mod testing;
mod timestamp;
mod tmf;
pub mod unit;
mod verdict;
