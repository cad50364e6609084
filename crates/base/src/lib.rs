//! Types that every crate shares: units, serial numbers, byte readers and writers, buffers, and the interface
//! between state machines (which do no I/O) and drivers (which know no protocol).
//!
//! **Invariant:** this crate knows no protocol, no medium and no operating system.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod arena;
pub mod buffer;
pub mod bytes;
mod code;
pub mod ether;
pub mod fairness;
pub mod fault_injection;
pub mod int_cast;
pub mod memory_quota;
pub mod pcapng;
pub mod rng;
pub mod serial;
pub mod state_machine;
pub mod time;
pub mod transmit;
pub mod units;
