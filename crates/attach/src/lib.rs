//! A logical unit as a local disk, over any [`store::shared::SharedStore`]: an NBD server on a Unix socket ([`nbd`]),
//! a file in a FUSE mount that `losetup` takes ([`fuse`]), and a block device where the kernel has ublk ([`ublk`]).
//!
//! Each is two layers: a machine that speaks the protocol and does no I/O, and hands that move its bytes. All serve
//! requests of any alignment and length, whatever the medium's blocks ([`unaligned`]), keep a bounded number of them
//! and of their bytes, and answer in the order in which the medium is done.
//!
//! **Invariant:** knows no transport and no SCSI: how the medium is reached, and how long a request may wait for it
//! to come back, is the medium's business.

mod errno;
pub mod events;
mod flush;
pub mod fuse;
mod int_cast;
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
mod waker;
