//! What a hostile initiator does to the others: nothing. Each test lets one misbehave, half logged in or fully, while a
//! witness on the same unit writes and reads back; `docs/abuse.md` says which failure of the field each one is about.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

#[allow(dead_code, reason = "a vocabulary of tests, of which each test file uses a part")]
#[path = "../pair/mod.rs"]
mod pair;

#[allow(dead_code, reason = "as above")]
mod medium;
#[allow(dead_code, reason = "as above")]
mod peer;

mod digests;
mod memory;
mod requests;
mod teardown;
