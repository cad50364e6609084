//! RFC 7143 (iSCSI) and RFC 7144 as values and state machines, for both roles: names, text keys, login, and
//! the full feature phase.
//!
//! **Invariant:** this crate knows no SCSI device type and no transport. It does no I/O. Its callers pass in
//! the time and all random bytes.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod aead;
pub mod chap;
pub mod digest;
pub mod discovery;
pub mod fault_injection;
pub mod framing;
pub mod initiator;
pub mod keys;
pub mod login;
pub mod name;
pub mod negotiate;
pub mod opaque;
pub mod pdu;
mod pdu_writer;
pub mod proxy;
pub mod recovery;
pub mod serial;
pub mod target;
pub mod text;
pub mod trace;
