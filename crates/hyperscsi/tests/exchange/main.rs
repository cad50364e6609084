//! Both roles together over a wire that loses, repeats, swaps and damages frames.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod pair;
#[allow(dead_code, reason = "the vocabulary is ahead of the tests")]
mod world;
