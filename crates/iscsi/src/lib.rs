//! RFC 7143 (iSCSI) and RFC 7144 as values and state machines, for both roles: names, text keys, login, and what
//! follows it.
//!
//! **Invariant:** this room knows no SCSI device type and no transport; it does no I/O and has no clock or
//! randomness but what it is handed.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod chap;
pub mod digest;
pub mod discovery;
pub mod framing;
pub mod initiator;
pub mod keys;
pub mod login;
pub mod name;
pub mod negotiate;
pub mod pdu;
mod pdu_writer;
pub mod recovery;
pub mod serial;
pub mod target;
pub mod text;
