//! The client side of the Internet Storage Name Service (iSNS), RFC 4171: what a target tells a name server,
//! so that initiators find it there.
//!
//! * [`message`]: PDUs and their attributes as bytes.
//! * [`registration`]: a Network Entity with its Portals, Storage Nodes and Portal Groups, and the messages
//!   that register it.
//! * [`client`]: what is registered with one server, and what has to be said to it next.
//! * [`inquiry`]: the answers to the messages that a server sends on its own: Entity Status Inquiries and
//!   State Change Notifications.
//!
//! **Invariant:** this crate knows no socket, no clock and no SCSI.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod client;
pub mod inquiry;
pub mod message;
pub mod registration;

/// The TCP port that name servers listen on (RFC 4171 §2.9.1).
pub const PORT: u16 = 3205;
