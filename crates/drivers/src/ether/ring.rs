//! Frames that the kernel puts where they are read: the receive ring of a packet socket (`PACKET_RX_RING`, packet(7)).
//!
//! The kernel copies each frame into a slot when it comes, on the processor that brought it, and nobody makes a system call
//! for it: to see whether there are more is one look at memory. Its room is its own, so that a process that may not pass the
//! system's limit for socket buffers has as much of it as one that may.
//!
//! A slot belongs to the kernel or to us, and its first word says to whom: who is done with it writes the other's name there.
//! Version 2 of the ring is meant. Version 3 hands over many frames at once and a single one only when a timer of at least a
//! millisecond ends.

#![allow(unsafe_code, reason = "memory that is shared with the kernel")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use base::ether::Mac;
use base::time::Instant;

use super::batch::RxFrame;
use super::rx_timestamp;
use super::socket;
use crate::clock::Clock;
use crate::files::Errno;
use crate::slab;

/// What the kernel writes before a frame's payload: what it knows about it, the sender's address, and what aligns that.
const BEFORE_PAYLOAD: usize = 96;

/// The kernel allocates so much at once, unless a single frame needs more, and what it needs is a multiple of this.
const BLOCK_BYTES: usize = 1 << 20;
const PAGE: usize = 4096;

/// How much is handed over in one turn before others have theirs.
const FRAMES_PER_TURN: usize = 512;
const BYTES_PER_TURN: usize = 1 << 20;

/// Slots begin where lines of the processor's cache do.
const LINE: usize = 64;

/// Where the sender's address is in a slot.
const ADDRESS_AT: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);

/// A ring, and what it is mapped to.
pub(super) struct Ring {
    memory: NonNull<u8>,
    len: usize,
    shape: Shape,
    /// The slot that is filled next.
    next: usize,
}

// SAFETY: the memory is the ring's own, which nothing binds to a thread.
unsafe impl Send for Ring {}

/// How the slots lie: a block is whole pages, and no slot crosses from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    slot: usize,
    block: usize,
    per_block: usize,
    blocks: usize,
}

impl Shape {
    /// Returns one for frames of this payload, in so many bytes, but with two slots at least.
    fn of(payload: usize, bytes: usize) -> Self {
        let slot = (BEFORE_PAYLOAD + payload).next_multiple_of(LINE);
        let block = BLOCK_BYTES.min(bytes).max(2 * slot).next_multiple_of(PAGE);
        Self { slot, block, per_block: block / slot, blocks: (bytes / block).max(1) }
    }

    const fn slots(&self) -> usize {
        self.per_block * self.blocks
    }

    /// Returns where a slot begins.
    const fn offset(&self, slot: usize) -> usize {
        slot / self.per_block * self.block + slot % self.per_block * self.slot
    }
}

impl Ring {
    /// Has a socket receive into a ring from now on, with slots for frames of this payload.
    ///
    /// # Errors
    /// There is not so much memory, or the kernel knows no rings.
    pub(super) fn set_up(socket: &OwnedFd, payload: usize, bytes: usize) -> Result<Self, Errno> {
        let shape = Shape::of(payload, bytes);
        socket::set_receive_ring(socket, shape.block, shape.blocks, shape.slot, shape.slots())?;
        let len = shape.block * shape.blocks;
        // SAFETY: the kernel chooses a place where nothing is.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                socket.as_raw_fd(),
                0,
            )
        };
        let mapped = if memory == libc::MAP_FAILED { None } else { NonNull::new(memory.cast()) };
        let Some(memory) = mapped else {
            let errno = super::interface::last_error();
            // Nobody else could read what would come into it.
            socket::set_receive_ring(socket, 0, 0, 0, 0)?;
            return Err(errno);
        };
        Ok(Self { memory, len, shape, next: 0 })
    }

    /// Has a socket, which is this ring's, receive into its queue again.
    ///
    /// # Errors
    /// None that is known.
    pub(super) fn take_down(self, socket: &OwnedFd) -> Result<(), Errno> {
        drop(self);
        socket::set_receive_ring(socket, 0, 0, 0, 0)
    }

    /// Returns how many frames have room.
    pub(super) const fn slots(&self) -> usize {
        self.shape.slots()
    }

    /// Returns whether frames of this payload have room in a slot.
    pub(super) const fn fits(&self, payload: usize) -> bool {
        BEFORE_PAYLOAD + payload <= self.shape.slot
    }

    /// Hands over what came, up to what one turn may have, and the moment at which it does. Returns how many frames these
    /// were, and bytes. What is longer than a slot is left out.
    pub(super) fn receive(
        &mut self,
        clock: Clock,
        mut each: impl FnMut(Instant, RxFrame<'_>),
    ) -> (usize, usize) {
        let (mut frames, mut bytes) = (0, 0);
        if !self.has_more() {
            return (0, 0);
        }
        let (now, wall) = (clock.now(), SystemTime::now());
        while frames < FRAMES_PER_TURN && bytes < BYTES_PER_TURN && self.has_more() {
            bytes += self.take(wall, |taken| each(now, taken));
            frames += 1;
        }
        (frames, bytes)
    }

    /// Returns whether the slot that is filled next was.
    pub(super) fn has_more(&self) -> bool {
        self.next_slot().1.load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Returns the slot that is filled next, and the word in it that says whose it is.
    fn next_slot(&self) -> (NonNull<u8>, &AtomicU32) {
        // SAFETY: the offset of a slot of this ring is within its memory.
        let slot = unsafe { self.memory.add(self.shape.offset(self.next)) };
        // SAFETY: the slot begins with that word, aligned, which both sides use as an atomic one as long as the ring exists.
        let owner = unsafe { AtomicU32::from_ptr(slot.cast().as_ptr()) };
        (slot, owner)
    }

    /// Hands over the frame in the next slot, which is filled, and gives the slot back. Returns how many bytes it had.
    fn take(&mut self, now: SystemTime, each: impl FnOnce(RxFrame<'_>)) -> usize {
        let (slot, owner) = self.next_slot();
        // SAFETY: the slot is ours: the kernel has written this, and writes no more until it is told to.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        // SAFETY: as above; the address follows the header, aligned.
        let name = unsafe { slot.add(ADDRESS_AT).cast::<libc::sockaddr_ll>().read() };
        let (start, len) = (usize::from(header.tp_mac), slab::index(header.tp_snaplen));
        let whole = header.tp_snaplen == header.tp_len && start + len <= self.shape.slot;
        if whole {
            // SAFETY: within the slot, which nobody else uses until `owner` says so.
            let bytes = unsafe { std::slice::from_raw_parts_mut(slot.add(start).as_ptr(), len) };
            let [a, b, c, d, e, f, ..] = name.sll_addr;
            let came = Duration::new(header.tp_sec.into(), header.tp_nsec.min(999_999_999));
            let (source, kind) = (Mac([a, b, c, d, e, f]), name.sll_pkttype);
            each(RxFrame { source, kind, age: rx_timestamp::age(came, now), bytes });
        }
        owner.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.shape.slots();
        if whole { len } else { 0 }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, and nothing refers to it any more.
        let result = unsafe { libc::munmap(self.memory.as_ptr().cast(), self.len) };
        debug_assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_lie_within_blocks_of_whole_pages_and_within_the_bytes_allowed() {
        for payload in [46, 1500, 4074, 9000, 16_384, 65_535] {
            for bytes in [1, 16 << 10, 1 << 20, 5 << 20, 32 << 20] {
                let shape = Shape::of(payload, bytes);
                assert!(
                    shape.slots() >= 2 && shape.block.is_multiple_of(PAGE) && shape.slot.is_multiple_of(LINE)
                );
                assert!(shape.slot >= payload + BEFORE_PAYLOAD);
                assert!(shape.blocks * shape.block <= bytes.max(2 * shape.slot).next_multiple_of(PAGE));
                let mut end = 0;
                for slot in 0..shape.slots() {
                    let start = shape.offset(slot);
                    assert!(start >= end && start / shape.block == (start + shape.slot - 1) / shape.block);
                    end = start + shape.slot;
                }
                assert!(end <= shape.block * shape.blocks);
            }
        }
    }
}
