//! Signs blocks, records the history of writes to them, and checks the blocks that reads return.
//!
//! * [`block_header`]: the signed block. Its header states the device, the address, the time and the writer.
//!   Each of its 512-byte sectors carries a header and is protected by a CRC-64, so that a block put together
//!   from several writes is detected.
//! * [`pattern`]: the filler behind the headers.
//! * [`block_check`]: the check of one block that was read, without knowledge of the history.
//! * [`history`]: which writer wrote what and when, and so what a read may legally return: with concurrent
//!   writes, writes that failed or whose result is unknown, flushes, and crashes.
//! * [`order`]: the position of an operation in a task set, and so which of two operations takes effect
//!   first.
//! * [`reservations`]: which nexuses are registered with a logical unit and which one holds it, and so which
//!   commands a reservation stops.
//! * [`journal`]: the history as bytes that outlive the process that writes them.
//!
//! A caller signs blocks with [`block_header::BlockHeader::sign`], reports each write to the history when it
//! is submitted and when it ends, and passes the data of a read to [`history::History::read_end`], which
//! returns one [`history::Finding`] for each wrong block.
//!
//! The CRC differs from the one of iSCSI's digests, so that damage which one CRC misses is detected by the
//! other.
//!
//! **Invariant:** does not know how blocks travelled: no protocol, no medium, no clock.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod block_check;
pub mod block_header;
mod block_model;
pub mod fault_injection;
pub mod history;
pub mod journal;
pub mod order;
pub mod pattern;
pub mod reservations;
