//! Black-box conformance tests for **any** iSCSI target or initiator: they send raw PDUs over plain sockets
//! and judge the peer by RFC 7143 and RFC 7144.
//!
//! [`target`] acts as an initiator and tests a target; [`initiator`] acts as a scripted target and tests the
//! initiator that connects. Both are tables of cases: an id, the clause, a title, and a function that sends,
//! waits and judges. The cases named `ffp-t-…` and `ffp-i-…` follow the test plans for the full feature phase
//! that the UNH-IOL published in 2003. Those were written for the drafts of RFC 3720; here each case is
//! judged by the clause of RFC 7143 that replaced its own. The other cases are written from the MUSTs of the
//! RFC.
//!
//! A verdict is pass, fail or skip; fail and skip give a reason. A transcript records every PDU of a case, so
//! that a report shows the PDUs sent, the PDUs received and the expectation. Each wait ends: with an answer,
//! with the end of the connection, or with the time limit of the case.
//!
//! **Invariant:** this crate treats targe's own target and initiator like all others. It uses the codec of
//! `iscsi` (PDUs, text, digests, the computation of CHAP responses) and none of its login, session or
//! recovery code, so that a bug in that code cannot hide itself. Only the tests link targe's daemon and
//! initiator: they make peers from them that break one rule each, and each case must find its peers.
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
