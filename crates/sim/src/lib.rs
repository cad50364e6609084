//! A deterministic world from one seed: initiators, what lies between them and a target, the target, its media, and a judge.
//!
//! [`scenario`] says what a seed stands for, [`world`] runs it. Commands come from [`workload`], travel through a [`transport`], and
//! end on [`media`] that are slow, fail and lose power; [`oracle_adapter`] tells the oracle of everything and collects what it finds
//! wrong. There is one clock, no thread, no real I/O and no randomness but the seed's, so a seed is a run: the same to the
//! last byte, which the hash of its [`trace`] shows.
//!
//! What is modelled and what is not stands in `docs/simulation.md`.
//!
//! **Invariant:** real time and real I/O do not exist here.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a simulation is a test: it stops at the first surprise"
)]

pub mod compare;
pub mod corruption;
pub mod layout;
pub mod media;
pub mod oracle_adapter;
pub mod property;
pub mod reservations;
pub mod scenario;
pub mod trace;
pub mod transport;
pub mod units;
pub mod views;
pub mod workload;
pub mod world;
