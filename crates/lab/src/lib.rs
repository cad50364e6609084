//! The laboratory: what targets promise, measured and judged from outside, ours and others' alike.
//!
//! * [`mod@bench`] loads units and measures rates and latencies.
//! * [`verify`] writes blocks that say what they are, and tells whether they are still that.
//! * [`wire`] lies between two Ethernet interfaces and loses, repeats, swaps and damages frames.
//! * [`proxy`] stands between an initiator and a target and breaks what passes, after TCP has found it whole.
//!
//! **Invariant:** never links a target, so that every target is seen with the same eyes.
#![forbid(unsafe_code)]

pub mod bench;
pub mod proxy;
pub mod verify;
pub mod wire;
