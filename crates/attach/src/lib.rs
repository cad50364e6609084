//! Attaches a logical unit as a local disk, over any [`store::shared::SharedStore`]: an NBD server on a Unix
//! socket ([`nbd`]), a file in a FUSE mount that `losetup` takes ([`fuse`]), and a block device where the
//! kernel has ublk ([`ublk`]).
//!
//! Each way has two layers: a state machine that parses the protocol and does no I/O, and a driver that moves
//! its bytes. All three serve requests of any alignment and length, whatever the logical block length of the
//! medium ([`unaligned`]). They bound the number of requests under way and the bytes that these hold, and
//! they answer requests in the order in which the medium completes them.
//!
//! **Invariant:** this crate knows no transport and no SCSI. The medium decides how it is reached, and how
//! long a request may wait for a lost medium to return.

pub mod device_key;
mod errno;
pub mod events;
mod flush;
pub mod fuse;
pub mod io_flusher;
mod join;
pub mod nbd;
mod range_lock;
pub mod stripe;
#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small")]
mod testing;
pub mod ublk;
pub mod unaligned;
