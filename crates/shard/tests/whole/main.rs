//! A complete target in memory: what initiators of either protocol receive, and what they must never receive.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "all of this is test code, where a panic is the verdict"
)]

#[allow(dead_code, reason = "a vocabulary of tests, of which each test binary uses a part")]
#[path = "../pair/mod.rs"]
mod pair;

#[allow(dead_code, reason = "as above")]
#[path = "../hostile/medium.rs"]
mod medium;

mod consent;
mod disk;
mod ether;
mod frames;
mod handover;
mod portals;
mod protection;
mod removal;
mod steering;

const ALICE: &str = "iqn.2026-11.org.example:alice";
const BOB: &str = "iqn.2026-11.org.example:bob";
const GOOD: u8 = 0;
const CHECK: u8 = 2;
