//! Buffers of the data path: page-aligned blocks that are filled once and then shared.
//!
//! A [`Buf`] is owned and writable. [`Buf::freeze`] turns it into [`Bytes`], which any number of holders can
//! share without copying. Blocks are taken from a [`Pool`] and returned to it with [`Pool::recycle`]. A block
//! that is dropped instead is freed, so a missing `recycle` costs time but never memory.
//!
//! A block taken from the pool still contains the data of its last user. That is safe because a `Buf` exposes
//! only the bytes that were *filled* since it was taken ([`Buf::filled`]).

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;
use core::ops::Deref;

use smallvec::SmallVec;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The alignment of every buffer, enough for O_DIRECT on any medium in use.
pub const PAGE: usize = 4096;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

#[derive(Clone)]
struct Block {
    pages: Box<[Page]>,
}

impl Block {
    fn with_capacity(len: usize) -> Self {
        let pages = len.div_ceil(PAGE).max(1);
        Self { pages: vec![Page::new_zeroed(); pages].into_boxed_slice() }
    }

    fn capacity(&self) -> usize {
        self.pages.len() * PAGE
    }
}

/// An owned, page-aligned, writable buffer.
///
/// Its contents are the `filled()` bytes at the front; the rest is spare capacity.
pub struct Buf {
    block: Arc<Block>,
    filled: usize,
}

impl Buf {
    /// Allocates a zeroed buffer outside any pool, with capacity for at least `capacity` bytes and nothing
    /// filled.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { block: Arc::new(Block::with_capacity(capacity)), filled: 0 }
    }

    /// Returns the total capacity in bytes, a whole number of pages.
    pub fn capacity(&self) -> usize {
        self.block.capacity()
    }

    /// Returns how many bytes are filled.
    pub const fn len(&self) -> usize {
        self.filled
    }

    /// Returns whether nothing is filled.
    pub const fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Returns the filled bytes.
    pub fn filled(&self) -> &[u8] {
        self.block.pages.as_bytes().get(..self.filled).unwrap_or_default()
    }

    /// Returns the filled bytes for change.
    pub fn filled_mut(&mut self) -> &mut [u8] {
        let filled = self.filled;
        self.all_mut().get_mut(..filled).unwrap_or_default()
    }

    /// Returns the spare capacity after the filled bytes. It contains old data: write to it before you
    /// [`Self::advance`].
    pub fn spare_mut(&mut self) -> &mut [u8] {
        let filled = self.filled;
        self.all_mut().get_mut(filled..).unwrap_or_default()
    }

    /// Marks the next `len` spare bytes as filled; stops at the capacity.
    pub fn advance(&mut self, len: usize) {
        self.filled = self.filled.saturating_add(len).min(self.capacity());
    }

    /// Appends as much of `bytes` as fits and returns how much that was.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let spare = self.spare_mut();
        let taken = spare.len().min(bytes.len());
        if let (Some(to), Some(from)) = (spare.get_mut(..taken), bytes.get(..taken)) {
            to.copy_from_slice(from);
        }
        self.advance(taken);
        taken
    }

    /// Appends up to `len` zeros and returns how many fitted.
    pub fn append_zeros(&mut self, len: usize) -> usize {
        let spare = self.spare_mut();
        let taken = spare.len().min(len);
        if let Some(room) = spare.get_mut(..taken) {
            room.fill(0);
        }
        self.advance(taken);
        taken
    }

    /// Drops the filled bytes after the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.filled = self.filled.min(len);
    }

    /// Makes the filled bytes shareable.
    pub fn freeze(self) -> Bytes {
        Bytes { start: 0, end: self.filled, block: self.block }
    }

    fn all_mut(&mut self) -> &mut [u8] {
        // A `Buf` is the only holder of its block, so `make_mut` never clones.
        Arc::make_mut(&mut self.block).pages.as_mut_bytes()
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} of {})", self.filled, self.capacity())
    }
}

/// A shared range of immutable bytes. Cloning it copies no byte.
#[derive(Clone)]
pub struct Bytes {
    block: Arc<Block>,
    start: usize,
    end: usize,
}

impl Bytes {
    /// Copies `bytes` into a new block.
    pub fn copied_from(bytes: &[u8]) -> Self {
        let mut buf = Buf::with_capacity(bytes.len());
        buf.append(bytes);
        buf.freeze()
    }

    /// Returns bytes `start..end` of this range, shared and cut at its end.
    #[must_use]
    pub fn slice(&self, start: usize, end: usize) -> Self {
        let from = self.start.saturating_add(start).min(self.end);
        let to = self.start.saturating_add(end).min(self.end).max(from);
        Self { block: Arc::clone(&self.block), start: from, end: to }
    }

    /// Turns this range back into a writable buffer with the same bytes, if it is the only holder of its
    /// block and begins where the block begins.
    ///
    /// # Errors
    /// The range itself, if others hold the block or it begins later in the block.
    pub fn try_into_buf(mut self) -> Result<Buf, Self> {
        if self.start == 0 && Arc::get_mut(&mut self.block).is_some() {
            Ok(Buf { filled: self.end, block: self.block })
        } else {
            Err(self)
        }
    }

    /// Returns the whole block as an empty buffer, if this range is its only holder.
    pub fn into_spare(mut self) -> Option<Buf> {
        Arc::get_mut(&mut self.block)?;
        Some(Buf { block: self.block, filled: 0 })
    }

    /// Overwrites the bytes with zeros because they are secret, unless others hold the block.
    pub fn erase(&mut self) {
        let (start, end) = (self.start, self.end);
        let Some(block) = Arc::get_mut(&mut self.block) else { return };
        if let Some(own) = block.pages.as_mut_bytes().get_mut(start..end) {
            own.fill(0);
            core::hint::black_box(own);
        }
    }

    /// Returns how much memory this range keeps allocated: its whole block, in bytes.
    pub fn block_len(&self) -> usize {
        self.block.capacity()
    }

    /// Overwrites the bytes at `at` with `data`. If others share the block, copies the block first. Bytes
    /// that do not fit are left out.
    ///
    /// With this a memory medium stays correct while responses that point into it are still being sent.
    pub fn overwrite(&mut self, at: usize, data: &[u8]) {
        let (start, end) = (self.start, self.end);
        let whole = Arc::make_mut(&mut self.block).pages.as_mut_bytes();
        let Some(room) = whole.get_mut(start..end).and_then(|own| own.get_mut(at..)) else { return };
        let len = room.len().min(data.len());
        if let (Some(to), Some(from)) = (room.get_mut(..len), data.get(..len)) {
            to.copy_from_slice(from);
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.pages.as_bytes().get(self.start..self.end).unwrap_or_default()
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.end - self.start)
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}

/// A sequence of bytes in one or more pieces, in order. Two pieces fit without an allocation.
#[derive(Clone, Debug, Default)]
pub struct DataList {
    parts: SmallVec<[Bytes; 2]>,
    len: usize,
}

impl DataList {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends `part`.
    pub fn push(&mut self, part: Bytes) {
        self.len = self.len.saturating_add(part.len());
        self.parts.push(part);
    }

    /// Returns the length of all parts together.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the parts in order.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// Takes the parts out, in order.
    pub fn into_parts(self) -> impl Iterator<Item = Bytes> {
        self.parts.into_iter()
    }

    /// Returns bytes `start..end`, shared and cut at the end.
    #[must_use]
    pub fn slice(&self, start: usize, end: usize) -> Self {
        let mut out = Self::new();
        let mut at = 0;
        for part in &self.parts {
            let next = at + part.len();
            if next > start && at < end {
                out.push(part.slice(start.saturating_sub(at), end - at));
            }
            at = next;
        }
        out
    }

    /// Copies bytes from `start` on into `out`. Returns how many were copied.
    pub fn copy_to(&self, start: usize, out: &mut [u8]) -> usize {
        let (mut at, mut done) = (0, 0);
        for part in &self.parts {
            let skip = start.saturating_sub(at).min(part.len());
            at += part.len();
            let (Some(from), Some(room)) = (part.get(skip..), out.get_mut(done..)) else { continue };
            let len = from.len().min(room.len());
            if let (Some(to), Some(from)) = (room.get_mut(..len), from.get(..len)) {
                to.copy_from_slice(from);
            }
            done += len;
        }
        done
    }
}

impl From<Bytes> for DataList {
    fn from(part: Bytes) -> Self {
        let mut list = Self::new();
        list.push(part);
        list
    }
}

/// The buffer pool of a reactor, by size class. Clones share one pool; it stays on one thread.
#[derive(Clone, Debug)]
pub struct Pool {
    shelves: Rc<RefCell<Shelves>>,
}

#[derive(Debug)]
struct Shelves {
    free: [Vec<Arc<Block>>; CLASSES.len()],
    kept_bytes: usize,
    kept_bytes_max: usize,
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({})", self.capacity())
    }
}

/// Capacities of pooled buffers. A larger buffer is allocated and freed each time.
const CLASSES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

impl Pool {
    /// Creates a pool that keeps at most `kept_bytes_max` bytes of unused buffers.
    pub fn new(kept_bytes_max: usize) -> Self {
        let shelves = Shelves { free: Default::default(), kept_bytes: 0, kept_bytes_max };
        Self { shelves: Rc::new(RefCell::new(shelves)) }
    }

    /// Takes an empty buffer with capacity for at least `capacity` bytes.
    pub fn take(&self, capacity: usize) -> Buf {
        let Some((class, size)) = CLASSES.iter().enumerate().find(|(_, size)| **size >= capacity) else {
            return Buf::with_capacity(capacity);
        };
        let mut shelves = self.shelves.borrow_mut();
        match shelves.free.get_mut(class).and_then(Vec::pop) {
            Some(block) => {
                shelves.kept_bytes = shelves.kept_bytes.saturating_sub(*size);
                Buf { block, filled: 0 }
            }
            None => Buf::with_capacity(*size),
        }
    }

    /// Returns a range that is no longer needed. If it was the last holder, its block is reused.
    pub fn recycle(&self, mut bytes: Bytes) {
        if Arc::get_mut(&mut bytes.block).is_some() {
            self.keep(bytes.block);
        }
    }

    /// Returns a buffer that is no longer needed to the pool.
    pub fn recycle_buf(&self, buf: Buf) {
        self.keep(buf.block);
    }

    /// Returns how many bytes of unused buffers the pool holds.
    pub fn kept_bytes(&self) -> usize {
        self.shelves.borrow().kept_bytes
    }

    fn keep(&self, block: Arc<Block>) {
        let size = block.capacity();
        let Some(class) = CLASSES.iter().position(|class| *class == size) else { return };
        let mut shelves = self.shelves.borrow_mut();
        if shelves.kept_bytes.saturating_add(size) <= shelves.kept_bytes_max {
            shelves.kept_bytes += size;
            if let Some(shelf) = shelves.free.get_mut(class) {
                shelf.push(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buf_of(bytes: &[u8]) -> Buf {
        let mut buf = Buf::with_capacity(bytes.len());
        assert_eq!(buf.append(bytes), bytes.len());
        buf
    }

    #[test]
    fn a_pooled_buffer_hides_what_its_last_user_left() {
        let pool = Pool::new(1 << 20);
        let mut buf = pool.take(100);
        buf.append(b"secret");
        pool.recycle(buf.freeze());
        assert_eq!(pool.kept_bytes(), 4096);
        let again = pool.take(10);
        assert!(again.filled().is_empty());
        assert_eq!(pool.kept_bytes(), 0);
    }

    #[test]
    fn a_shared_block_is_not_recycled() {
        let pool = Pool::new(1 << 20);
        let bytes = pool.take(10).freeze();
        let other = bytes.clone();
        pool.recycle(bytes);
        assert_eq!(pool.kept_bytes(), 0);
        pool.recycle(other);
        assert_eq!(pool.kept_bytes(), 4096);
    }

    #[test]
    fn the_pool_keeps_no_more_than_it_may() {
        let pool = Pool::new(4096);
        let (a, b) = (pool.take(1), pool.take(1));
        pool.recycle_buf(a);
        pool.recycle_buf(b);
        assert_eq!(pool.kept_bytes(), 4096);
    }

    #[test]
    fn erasing_leaves_what_others_hold_and_what_is_beside() {
        let whole = buf_of(b"a key here").freeze();
        let mut key = whole.slice(2, 5);
        key.erase();
        assert_eq!(*key, *b"key");
        drop(whole);
        key.erase();
        assert_eq!(*key, [0; 3]);
        assert_eq!(key.block.pages.as_bytes()[..10], *b"a \0\0\0 here");
    }

    #[test]
    fn overwriting_a_shared_block_leaves_the_other_share_alone() {
        let mut medium = buf_of(b"old data").freeze();
        let answer = medium.slice(0, 3);
        medium.overwrite(0, b"new");
        assert_eq!(&*answer, b"old");
        assert_eq!(&*medium, b"new data");
    }

    #[test]
    fn a_data_list_slices_and_copies_across_its_parts() {
        let mut list = DataList::new();
        for part in [&b"abc"[..], b"de", b"fghi"] {
            list.push(buf_of(part).freeze());
        }
        let middle = list.slice(2, 7);
        assert_eq!(middle.len(), 5);
        let mut out = [0; 9];
        assert_eq!(middle.copy_to(0, &mut out), 5);
        assert_eq!(&out[..5], b"cdefg");
        assert_eq!(list.copy_to(4, &mut out), 5);
        assert_eq!(&out[..5], b"efghi");
        assert_eq!(list.slice(9, 12).len(), 0);
    }

    #[test]
    fn buffers_are_page_aligned() {
        let mut buf = Buf::with_capacity(5000);
        assert_eq!(buf.capacity(), 8192);
        assert_eq!(buf.spare_mut().as_ptr().align_offset(PAGE), 0);
    }

    #[test]
    fn the_only_share_becomes_a_buffer_again() {
        let bytes = buf_of(b"x").freeze();
        let other = bytes.clone();
        let bytes = bytes.try_into_buf().unwrap_err();
        drop(other);
        assert_eq!(bytes.try_into_buf().unwrap().filled(), b"x");
    }
}
