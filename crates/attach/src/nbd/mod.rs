//! An NBD server: the protocol as a state machine ([`Session`]) and a driver that serves it on a Unix socket
//! ([`Server`]).
//!
//! The protocol is that of the [NBD
//! project](https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md): fixed newstyle negotiation,
//! simple and structured replies, `base:allocation`. There is no TLS and no TCP: the permissions of the
//! socket decide which users can access the disk.

mod block_status;
mod error;
mod handshake;
mod server;
mod session;
mod socket;

use crate::device_key::DeviceKey;

pub use error::ProtocolError;
pub use server::{NbdStartError, Server};
pub use session::{Session, Ticket};
pub use socket::refuse_served;

/// The export, as clients see it.
#[derive(Clone, Debug, Default)]
pub struct Export {
    /// The name. A client can also ask for the empty name, which selects the default export.
    pub name: String,
    /// A line of description for display.
    pub description: String,
    /// Identifies what clients see, if the next server on the same socket is to show the same: clients
    /// connect to it by themselves after the death of this one, and write to it what they have cached.
    pub key: Option<DeviceKey>,
}
