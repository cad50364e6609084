//! The copy manager (SPC-4 §5.17): EXTENDED COPY, and copies by ROD tokens as Windows makes them (ODX).
//!
//! It reads and writes units, its own among them, by [`crate::contract::PeerCall`]s in the name of the nexus that asked,
//! and by no other way: what that nexus may not do itself is not done for it. The target decides which unit a call
//! reaches.
//!
//! What is bytes stands in `scsi::copy`; here is what copies do and what becomes of tokens.

pub(crate) mod operations;
pub(crate) mod secret;
pub(crate) mod tokens;
pub(crate) mod transfer;
