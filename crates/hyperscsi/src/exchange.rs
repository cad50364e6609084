//! What both roles know of exchanges: their numbers, and data that arrives in any order.
//!
//! An exchange is one command, or one task management function, from its request to its end. The transport below
//! (`association`) repeats what is lost, so everything arrives at least once; this room makes that exactly once.

pub mod reassembly;
pub mod xid;
