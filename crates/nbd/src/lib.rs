//! The NBD protocol: what clients and servers send ([`wire`]), the addresses of exports ([`uri`]), and the
//! client: the negotiation ([`handshake`]) and a medium over a connection that may break ([`client`]).
//!
//! The protocol is that of the [NBD
//! project](https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md). The client negotiates fixed
//! newstyle with `NBD_OPT_GO`, structured replies and `base:allocation`.
//!
//! **Invariant:** knows no SCSI, no socket and no clock.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod client;
pub mod handshake;
pub mod uri;
pub mod wire;
