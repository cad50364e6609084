//! A third transport, in memory: a target needs no more of a transport than the traits of `transport`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "all of this is test code, where a panic is the verdict"
)]

mod commands;
mod copies;
mod medium;
mod protection;
mod remap;
mod removal;
mod reservations;
mod task_management;
mod transport;
mod two_transports;
mod world;
