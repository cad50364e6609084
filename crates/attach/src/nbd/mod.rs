//! An NBD server: the protocol as a machine ([`Session`]) and a Unix socket as its hands ([`Server`]).
//!
//! The protocol is that of the [NBD project](https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md):
//! fixed newstyle negotiation, simple and structured replies, `base:allocation`. There is no TLS and no TCP: who may
//! use the disk is decided by the permissions of the socket.

mod block_status;
mod handshake;
mod server;
mod session;
mod socket;
mod wire;

pub use server::{NbdStartError, Server};
pub use session::{Session, Ticket};
pub use wire::ProtocolError;

/// What is exported, as clients see it.
#[derive(Clone, Debug, Default)]
pub struct Export {
    /// Its name. The empty name, which asks for the default, always means it too.
    pub name: String,
    /// A line for people.
    pub description: String,
}
