//! HyperSCSI, version 2: SCSI directly on Ethernet frames. Both roles, initiator and target, as state
//! machines without I/O.
//!
//! `docs/hyperscsi.md` is the specification. This crate is one implementation of it and cites it by section.
//!
//! **Invariant:** this crate knows no device types and no sockets: a CDB is bytes, a status is a byte, a port
//! is a number.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod aead;
pub mod connection;
pub mod discovery;
pub mod exchange;
pub mod fault_injection;
pub mod frame;
pub mod initiator;
pub mod login;
mod path;
pub mod pdu;
mod send_queue;
pub mod target;

#[cfg(test)]
mod specification;

/// The EtherType of HyperSCSI.
pub const ETHERTYPE: u16 = 0x889a;

/// The role that one end of a session has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The initiator: it sends requests.
    Initiator,
    /// The target: it answers requests.
    Target,
}

impl Role {
    /// Returns the role of the other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Target,
            Self::Target => Self::Initiator,
        }
    }
}
