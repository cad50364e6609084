//! HyperSCSI, version 2: SCSI straight on Ethernet frames, both roles, without I/O.
//!
//! `docs/hyperscsi.md` is the specification; this room is one implementation of it and cites it by section.
//!
//! **Invariant:** knows no device types and no sockets: a CDB is bytes, a status is a byte, a port is a number.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod aead;
pub mod connection;
pub mod discovery;
pub mod exchange;
pub mod frame;
mod handle;
pub mod initiator;
pub mod login;
mod path;
pub mod pdu;
pub mod random;
mod send_queue;
pub mod target;

#[cfg(test)]
mod specification;

/// The EtherType of HyperSCSI.
pub const ETHERTYPE: u16 = 0x889a;

/// Which end of a session somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// It sends requests.
    Initiator,
    /// It answers them.
    Target,
}

impl Role {
    /// Returns the other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Target,
            Self::Target => Self::Initiator,
        }
    }
}
