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
#[allow(dead_code, reason = "the commands that use it come with the logical unit")]
mod alua;
pub mod contract;
#[allow(dead_code, reason = "the commands that use it come with the logical unit")]
mod identifying;
#[allow(dead_code, reason = "the commands that use it come with the logical unit")]
mod inquiry;
#[allow(dead_code, reason = "the commands that use it come with the logical unit")]
mod pr;
#[allow(dead_code, reason = "the commands that use it come with the logical unit")]
mod removal;
mod report_luns;
#[allow(dead_code, reason = "the commands that use it come with the logical unit")]
mod reserve;
#[allow(dead_code, reason = "the commands that use it come with the logical unit")]
pub mod saved;
#[allow(dead_code, reason = "the commands that use it come with the logical unit")]
mod scratch;
