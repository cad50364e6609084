//! What can go wrong on a path, as a seeded value.
//!
//! A *plan* says how often what happens; a *link* is a plan at work: bytes or frames go in at one end with the time, and
//! come out at the other when they have arrived, perhaps damaged, late, twice or never. A link owns no socket and no
//! clock, so the simulator and a proxy between real sockets run the same value, and one seed repeats one run.
//!
//! * [`stream`]: a connection that carries a byte stream in both directions. What TCP guarantees it keeps: bytes
//!   arrive in order. Damage is done *after* TCP, to units (PDUs) that a [`stream::Framing`] finds in the stream, since that
//!   is what the digests of the protocol above are for; loss and repetition of whole units belong to it as well.
//! * [`frame`]: one direction of a packet network: loss, bursts of it, duplicates, reordering, damage, delay, a rate with
//!   a queue in front, cuts, and a largest frame that changes.
//! * [`iscsi`]: the framing of iSCSI.
//!
//! Reordering between connections needs no model of its own: every link has delays of its own.
//!
//! **Invariant:** knows no socket, no clock, and of protocols only where their PDUs begin and end.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod frame;
pub mod iscsi;
pub mod probability;
pub mod stream;
