//! A hostile initiator must not harm other initiators. In each test one misbehaves, before, during or after
//! its login, while a witness on the same unit writes and reads back. `docs/abuse.md` lists the known failure
//! of other targets that each test is about.

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
