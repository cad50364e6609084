//! Emulates the faults of a network path, from a seed.
//!
//! A *plan* says how often each fault happens. A *link* executes a plan: the caller sends bytes or frames
//! into one end together with the time, and receives them at the other end when they have arrived, perhaps
//! damaged, late, twice or never. A link owns no socket and no clock, so the simulator and a proxy between
//! real sockets use the same value, and a seed repeats a run.
//!
//! * [`stream`]: a connection that carries a byte stream in both directions. It keeps the guarantee of TCP:
//!   bytes arrive in order. It damages units (PDUs), which a [`stream::Framing`] finds in the stream, *after*
//!   TCP, since the digests of the protocol above are meant to detect such damage. It also loses and repeats
//!   whole units.
//! * [`frame`]: one direction of a packet network: loss, bursts of losses, duplicates, reordering, damage,
//!   delay, a rate with a queue in front, cuts, and a maximum frame length that changes.
//! * [`iscsi`]: the framing of iSCSI.
//!
//! Reordering between connections needs no model of its own, since every link has its own delays.
//!
//! **Invariant:** knows no socket, no clock, and of protocols only where their PDUs begin and end.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod frame;
pub mod iscsi;
pub mod probability;
pub mod stream;
