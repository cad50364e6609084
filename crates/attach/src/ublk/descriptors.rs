//! The table in which the kernel describes the request of each tag.
#![allow(unsafe_code, reason = "the table is memory that the kernel writes")]

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::wire::Descriptor;

/// The offset of queue 0's table in the character device.
const TABLE_AT: u64 = 0;

/// The table of one queue, mapped.
pub(super) struct Descriptors {
    table: NonNull<Descriptor>,
    depth: u16,
}

impl Descriptors {
    /// Maps the table of a device whose queue has `depth` tags.
    pub(super) fn map(device: impl AsFd, depth: u16) -> io::Result<Self> {
        let len = usize::from(depth) * size_of::<Descriptor>();
        // SAFETY: no address is requested, so no existing mapping is replaced; this value owns the pages
        // until `drop`.
        let table = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::POPULATE,
                device.as_fd(),
                TABLE_AT,
            )
        }?;
        let table = NonNull::new(table.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { table, depth })
    }

    /// Copies the request of a tag, if there is such a tag. The kernel wrote the request before it completed
    /// the tag's command, and writes it again only after the tag's next command. In between it does not
    /// change.
    pub(super) fn request(&self, tag: u16) -> Option<Descriptor> {
        if tag >= self.depth {
            return None;
        }
        // SAFETY: the table has `depth` entries, which are mapped as long as `self` lives, and a page is
        // aligned for them. Any bytes are a valid descriptor. Should the kernel write all the same, the
        // volatile copy may be torn, and the parser checks it like any other.
        Some(unsafe { self.table.add(tag.into()).read_volatile() })
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let len = usize::from(self.depth) * size_of::<Descriptor>();
        // SAFETY: this is the range that was mapped, and there are no references into it: `request` copies.
        // If the call fails, the pages stay mapped.
        let _ = unsafe { munmap(self.table.as_ptr().cast(), len) };
    }
}
