//! Both roles together over a wire that loses, repeats, swaps and damages frames.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod anew;
mod farewell;
mod hostile;
mod keys;
mod loss;
mod management;
mod nonsense;
mod pair;
mod places;
mod rings;
mod ways;
mod world;
