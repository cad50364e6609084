//! Black-box conformance tests for **any** iSCSI target or initiator: raw PDUs over plain sockets, judged by RFC 7143
//! and RFC 7144.
//!
//! [`target`] plays an initiator and tests a target; [`initiator`] plays a scripted target and tests whatever connects.
//! Both are tables of cases: an id, the clause, a title, and a function that sends, waits and judges. The cases named
//! `ffp-t-…` and `ffp-i-…` follow the test plans for the full feature phase that the UNH-IOL published in 2003 (written
//! for the drafts of RFC 3720; here each is judged by the clause of RFC 7143 that took its place); the others are written
//! from the RFC's MUSTs.
//!
//! A verdict is pass, fail or skip, and both fail and skip say why. Every PDU of a case is recorded, so that a report
//! shows what was sent, what came and what was expected. Each wait ends: with an answer, with the end of the connection,
//! or with the time limit of the case.
//!
//! **Invariant:** knows our own target and initiator no better than anybody else's. It takes the codec of `iscsi` (PDUs,
//! text, digests, CHAP's arithmetic) and nothing of its logins, sessions or recovery, so that a mistake there does not
//! judge itself.
#![forbid(unsafe_code)]

#[macro_use]
mod verdict;

pub mod initiator;
pub mod report;
pub mod target;

mod cdb;
mod entropy;
mod suite;
mod text;
mod transcript;
mod wire;

#[cfg(test)]
mod tests;

pub use iscsi::chap::{Credentials, Secret};
pub use suite::{CaseInfo, CaseResult, Selection, Summary};
pub use verdict::Verdict;
