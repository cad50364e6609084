//! Tests of both roles together over a wire that loses, duplicates, reorders and damages frames.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod closing;
mod handover;
mod hostile;
mod keys;
mod loss;
mod malformed;
mod pair;
mod paths;
mod reinstatement;
mod relogin;
mod rings;
mod task_management;
mod world;
