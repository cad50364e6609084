//! The part of exchanges that both roles share: their numbers, and data that arrives in any order.
//!
//! An exchange is one command, or one task management function, from its request to its end. The transport
//! below (`connection`) retransmits what is lost, so everything arrives at least once; this module processes
//! it exactly once.

pub mod reassembly;
pub mod xid;
