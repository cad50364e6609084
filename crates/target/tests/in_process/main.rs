//! A third transport, in memory: a target needs no more of a transport than the traits of `transport`.
//!
//! Two suites pass through it: tests of the target, which drive it with the fixture `world`, and the device
//! suite (`device_suite`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "all of this is test code, where a panic is the verdict"
)]

extern crate alloc;

mod commands;
mod contract;
mod copies;
mod device_suite;
mod limits;
mod medium;
mod protection;
mod remap;
mod removal;
mod reservations;
mod task_management;
mod testbed;
#[path = "../../../device/src/testing.rs"]
mod testing;
mod transport;
mod two_transports;
mod unit;
mod world;

use device::{disc_record, drain, no_lun, removal_obstacle, space_threshold, state_decode_error};
