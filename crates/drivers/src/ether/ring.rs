//! The receive ring of a packet socket, memory into which the kernel puts received frames (`PACKET_RX_RING`,
//! packet(7)).
//!
//! The kernel copies each frame into a slot when it arrives, on the processor that received it, and the
//! receiver makes no system call for it: a check for more frames is one read of memory. The memory of the
//! ring is its own. A process that may not exceed the system's limit for socket buffers gets as much of it as
//! one that may.
//!
//! A slot belongs either to the kernel or to us, and its first word says to which. The owner that has
//! finished with the slot writes the other owner there. This is version 2 of the ring. Version 3 delivers
//! many frames at once, and a single frame only when a timer of at least a millisecond expires.

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

/// What the kernel writes before the payload of a frame: its metadata, the address of the sender, and
/// alignment.
const BEFORE_PAYLOAD: usize = 96;

/// The kernel allocates blocks of this size, unless a single frame needs more. Block sizes are multiples of a
/// page.
const BLOCK_BYTES: usize = 1 << 20;
/// Whole pages, whether they have 4, 16 or 64 KiB.
const PAGE: usize = 64 << 10;

/// How much is processed in one turn before other ports get their turn.
const FRAMES_PER_TURN: usize = 512;
const BYTES_PER_TURN: usize = 1 << 20;

/// Slots begin at the lines of the processor's cache.
const LINE: usize = 64;

/// The offset of the sender's address in a slot.
const ADDRESS_AT: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);

/// A ring and its mapped memory.
pub(super) struct Ring {
    memory: NonNull<u8>,
    len: usize,
    shape: Shape,
    /// The slot that the kernel fills next.
    next: usize,
}

// SAFETY: the memory belongs to the ring alone, and nothing binds it to a thread.
unsafe impl Send for Ring {}

/// The arrangement of the slots: a block is whole pages, and no slot crosses the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    slot: usize,
    block: usize,
    per_block: usize,
    blocks: usize,
}

impl Shape {
    /// Returns the arrangement for frames of this payload in `bytes` bytes, but with at least two slots.
    fn of(payload: usize, bytes: usize) -> Self {
        let slot = (BEFORE_PAYLOAD + payload).next_multiple_of(LINE);
        let block = BLOCK_BYTES.min(bytes).max(2 * slot).next_multiple_of(PAGE);
        Self { slot, block, per_block: block / slot, blocks: (bytes / block).max(1) }
    }

    const fn slots(&self) -> usize {
        self.per_block * self.blocks
    }

    /// Returns the offset of a slot.
    const fn offset(&self, slot: usize) -> usize {
        slot / self.per_block * self.block + slot % self.per_block * self.slot
    }
}

impl Ring {
    /// Makes a socket receive into a ring from now on, with slots for frames of this payload.
    ///
    /// # Errors
    /// There is not enough memory, or the kernel does not support receive rings.
    pub(super) fn set_up(socket: &OwnedFd, payload: usize, bytes: usize) -> Result<Self, Errno> {
        let shape = Shape::of(payload, bytes);
        socket::set_receive_ring(socket, shape.block, shape.blocks, shape.slot, shape.slots())?;
        let len = shape.block * shape.blocks;
        // SAFETY: the kernel chooses an address range that is free.
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
            // Without the mapping, nothing could read the frames that would be received into the ring.
            socket::set_receive_ring(socket, 0, 0, 0, 0)?;
            return Err(errno);
        };
        Ok(Self { memory, len, shape, next: 0 })
    }

    /// Makes the socket of this ring receive into its queue again.
    ///
    /// # Errors
    /// None is known.
    pub(super) fn take_down(self, socket: &OwnedFd) -> Result<(), Errno> {
        drop(self);
        socket::set_receive_ring(socket, 0, 0, 0, 0)
    }

    /// Returns how many frames the ring holds at most.
    pub(super) const fn slots(&self) -> usize {
        self.shape.slots()
    }

    /// Returns whether frames of this payload fit into a slot.
    pub(super) const fn fits(&self, payload: usize) -> bool {
        BEFORE_PAYLOAD + payload <= self.shape.slot
    }

    /// Passes the frames that have arrived to `each`, up to the limit of one turn, together with the time.
    /// Returns how many frames there were, and bytes. Frames longer than a slot are skipped.
    pub(super) fn receive(
        &mut self,
        clock: &Clock,
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

    /// Returns whether the next slot is filled.
    pub(super) fn has_more(&self) -> bool {
        self.next_slot().1.load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Returns the next slot, and the word in it that says who owns it.
    fn next_slot(&self) -> (NonNull<u8>, &AtomicU32) {
        // SAFETY: the offset of a slot of this ring is within its memory.
        let slot = unsafe { self.memory.add(self.shape.offset(self.next)) };
        // SAFETY: the slot begins with that word, aligned; both sides use it as an atomic as long as the ring
        // exists.
        let owner = unsafe { AtomicU32::from_ptr(slot.cast().as_ptr()) };
        (slot, owner)
    }

    /// Passes on the frame in the next slot, which is filled, and returns the slot to the kernel. Returns the
    /// length of the frame in bytes.
    fn take(&mut self, now: SystemTime, each: impl FnOnce(RxFrame<'_>)) -> usize {
        let (slot, owner) = self.next_slot();
        // SAFETY: the slot is ours: the kernel has written the header, and writes no more until it owns the
        // slot again.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        // SAFETY: as above; the address follows the header, aligned.
        let name = unsafe { slot.add(ADDRESS_AT).cast::<libc::sockaddr_ll>().read() };
        let (start, len) = (usize::from(header.tp_mac), slab::index(header.tp_snaplen));
        let whole = header.tp_snaplen == header.tp_len && start + len <= self.shape.slot;
        if whole {
            // SAFETY: the range is within the slot, which nothing else uses until `owner` is set to the
            // kernel.
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
        // SAFETY: this is the range that was mapped, and nothing refers to it any more.
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
