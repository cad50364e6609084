//! TLS 1.3 around the connections of targets and initiators.
//!
//! A thread per connection relays between the TCP connection, on which it speaks TLS, and one end of a pair
//! of local sockets. The other end is given to a reactor, which treats it like a TCP connection in the clear.
//! The reactors, the protocols and the path of connections without TLS know nothing of it.
//!
//! * [`ServerSettings`] and [`ClientSettings`] read certificates and keys from files.
//! * [`Portal`] accepts connections, and delivers each once its handshake is complete.
//! * [`connect`] makes a connection, and returns once its handshake is complete.
//! * [`Proxy`] accepts connections in the clear on this host, and carries each over TLS to a portal.
//! * [`Acceptor`] is what both accept with.
//!
//! Rustls completes the handshakes. Afterwards the relays protect the records themselves, so that the
//! connections of a portal can move to another process ([`Portal::pause_relays`]).
//!
//! Only TLS 1.3 is spoken (RFC 8446), with the ciphers of AWS-LC. Sessions are not resumed, and no early data
//! is accepted: a connection of a SAN lives for days, and its requests must not be replayed. Bounds: a
//! handshake has [`HANDSHAKE_TIMEOUT`], a portal or a proxy has at most [`CONNECTIONS_MAX`] connections, one
//! address and one IPv6 network hold at most their [`Share`] of those of a portal, and a connection buffers
//! less than 1 MiB.
#![forbid(unsafe_code)]

mod acceptor;
mod alert;
mod certified;
mod chunk;
mod client;
mod error;
mod handshake;
mod keys;
mod moved;
mod moving;
mod places;
mod portal;
mod proxy;
mod record;
mod relay;
mod settings;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use acceptor::{Acceptor, Pauser, Serve};
pub use certified::CertifiedNames;
pub use client::connect;
pub use error::TlsError;
pub use moved::MovedRelay;
pub use moving::{MovingRelay, PausedRelays, RelayState};
pub use places::{NoPlace, Share};
pub use portal::{Accepted, Deliver, Portal, PortalPauser, Refused};
pub use proxy::{Proxy, Upstream};
pub use record::{DirectionState, RecordState};
pub use settings::{ClientSettings, ServerSettings};

/// How long a handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The most connections of a portal or a proxy at a time, with those whose handshake is not complete.
pub const CONNECTIONS_MAX: usize = 1024;

/// The most connections of one address to a portal at a time. Four addresses are needed to hold all places.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = CONNECTIONS_MAX / 4;

/// The most connections of one IPv6 network of 64 bits to a portal at a time: that can be all initiators of a
/// LAN, or one attacker with many addresses. Others always find a quarter of the places.
pub const CONNECTIONS_PER_NETWORK_MAX: usize = CONNECTIONS_MAX / 4 * 3;
