//! Provided buffers: the kernel picks one when bytes arrive, so that an idle connection owns no receive
//! buffer.
#![allow(unsafe_code, reason = "memory shared with the kernel")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

/// How many buffers there are (a power of two). If more connections receive data in one turn, the remaining
/// ones are served in the next turn.
const COUNT: u16 = 64;

/// The size of one buffer: enough for many small requests at once, or for some immediate data. Pages that no
/// receive has reached use no memory.
const BYTES: u32 = 64 << 10;

/// The group number of the buffers in the kernel.
pub(super) const GROUP: u16 = 0;

/// The alignment of the memory: the kernel refuses a ring that does not begin at a page, and pages have 4, 16
/// or 64 KiB.
const PAGE: usize = 64 << 10;

pub(super) struct ProvidedBuffers {
    entries: NonNull<BufRingEntry>,
    bytes: NonNull<u8>,
    tail: u16,
    /// Whether each buffer is ours: the kernel has filled it and it was not returned.
    ours: [bool; COUNT as usize],
}

impl ProvidedBuffers {
    /// Registers buffers for `ring` with the kernel.
    ///
    /// # Errors
    /// The kernel does not support buffer rings, or has no memory.
    pub(super) fn register(ring: &IoUring) -> io::Result<Self> {
        let mut buffers = Self {
            entries: allocate(entries_layout()).cast(),
            bytes: allocate(bytes_layout()),
            tail: 0,
            ours: [true; COUNT as usize],
        };
        let address = buffers.entries.as_ptr().addr();
        let address = u64::try_from(address).unwrap_or(u64::MAX);
        // SAFETY: the memory is page-aligned, has space for `COUNT` entries (a power of two), and is freed
        // only when `self` is dropped, which the engine does after the ring was closed, or never.
        unsafe { ring.submitter().register_buf_ring_with_flags(address, COUNT, GROUP, 0) }?;
        for number in 0..COUNT {
            buffers.give_back(number);
        }
        Ok(buffers)
    }

    /// Returns the first `len` bytes of a buffer that the kernel has filled and passed to us.
    pub(super) fn filled(&mut self, number: u16, len: usize) -> &[u8] {
        let Some(ours) = self.ours.get_mut(usize::from(number)) else { return &[] };
        *ours = true;
        let len = len.min(BYTES as usize);
        // SAFETY: `number` is below `COUNT` (it has an entry in `ours`), so that the offset is within the
        // allocation.
        let start = unsafe { self.bytes.add(usize::from(number) * BYTES as usize) };
        // SAFETY: the range is in the allocation and initialised (it was allocated zeroed); the kernel writes
        // to it only after `give_back`, which needs `&mut self` and so cannot be called while the slice
        // lives.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Returns a buffer to the kernel.
    pub(super) fn give_back(&mut self, number: u16) {
        match self.ours.get_mut(usize::from(number)) {
            Some(ours) if *ours => *ours = false,
            _ => return,
        }
        let slot = usize::from(self.tail & (COUNT - 1));
        // SAFETY: `slot` is below `COUNT`, and so many entries are allocated.
        let entry = unsafe { self.entries.add(slot) };
        // SAFETY: `number` is below `COUNT`, as above.
        let start = unsafe { self.bytes.add(usize::from(number) * BYTES as usize) };
        // SAFETY: the entry is initialised (zeroed) memory, and the kernel does not read it before the tail
        // includes it: at most `COUNT` entries are out at a time, since each buffer is in the ring at most
        // once (`ours`).
        let entry = unsafe { &mut *entry.as_ptr() };
        entry.set_addr(u64::try_from(start.as_ptr().addr()).unwrap_or(u64::MAX));
        entry.set_len(BYTES);
        entry.set_bid(number);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the address is that of the first entry of the ring, which is initialised.
        let tail = unsafe { BufRingEntry::tail(self.entries.as_ptr()) };
        // SAFETY: the tail is an aligned 16-bit field in the allocation, which only we write while the kernel
        // reads it, both atomically; it overlaps a reserved field that `set_*` above does not touch.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }
}

impl Drop for ProvidedBuffers {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated in `register` with the same layout; the engine drops `self` only
        // when the kernel has no receive under way that could write to it.
        unsafe { dealloc(self.bytes.as_ptr(), bytes_layout()) };
        // SAFETY: the same, and the ring that the memory was registered with is closed or was unregistered.
        unsafe { dealloc(self.entries.as_ptr().cast(), entries_layout()) };
    }
}

const fn entries_layout() -> Layout {
    layout(COUNT as usize * size_of::<BufRingEntry>())
}

const fn bytes_layout() -> Layout {
    layout(COUNT as usize * BYTES as usize)
}

const fn layout(size: usize) -> Layout {
    match Layout::from_size_align(size, PAGE) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    }
}

fn allocate(layout: Layout) -> NonNull<u8> {
    // SAFETY: the size is not zero: both layouts hold `COUNT` items.
    let start = unsafe { alloc_zeroed(layout) };
    NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout))
}
