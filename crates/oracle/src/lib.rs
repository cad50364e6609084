//! Tells the truth about blocks.
//!
//! * [`block_header`]: a block that says of itself whose it is, where it belongs, when it was written and by whom; each of its
//!   512-byte sectors says so, and each is protected by a CRC-64, so that a block put together from several writes shows.
//! * [`pattern`]: what fills the rest of it.
//! * [`block_check`]: what a block that was read turns out to be, by itself.
//! * [`history`]: who wrote what when, and so what a read may legally return: with writes under way at the same time, writes
//!   that failed or whose end nobody knows, flushes, and crashes.
//! * [`order`]: where an operation stands in a task set, and so which of two takes effect first.
//! * [`reservations`]: who is registered with a logical unit and who holds it, and so which commands a reservation stops.
//! * [`journal`]: the history as bytes that outlive the process that makes it.
//!
//! A caller signs blocks with [`block_header::BlockHeader::sign`], tells the history of each write when it is submitted and when it ends,
//! and hands what it reads to [`history::History::read_end`], which gives one [`history::Finding`] for each wrong block.
//!
//! The CRC is not the one of iSCSI's digests: a damage that slips through one does not slip through the other.
//!
//! **Invariant:** does not know how blocks travelled: no protocol, no medium, no clock.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod block_check;
pub mod block_header;
mod block_model;
pub mod history;
pub mod journal;
pub mod order;
pub mod pattern;
pub mod reservations;
