//! The table in which the kernel says what a tag's request is.
#![allow(unsafe_code, reason = "the table is memory that the kernel writes")]

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::wire::Descriptor;

/// Where the table of queue 0 lies in the character device.
const TABLE_AT: u64 = 0;

/// The table of one queue, as long as we look at it.
pub(super) struct Descriptors {
    table: NonNull<Descriptor>,
    depth: u16,
}

impl Descriptors {
    /// Looks at the table of a device whose queue has so many tags.
    pub(super) fn map(device: impl AsFd, depth: u16) -> io::Result<Self> {
        let len = usize::from(depth) * size_of::<Descriptor>();
        // SAFETY: no address is asked for, so nothing that is there is replaced; the pages are ours until `drop`.
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

    /// Copies the request of a tag, if there is such a tag. The kernel wrote it before it completed the tag's command, and
    /// writes it again only after the tag's next command: in between it stands still.
    pub(super) fn request(&self, tag: u16) -> Option<Descriptor> {
        if tag >= self.depth {
            return None;
        }
        // SAFETY: the table has `depth` entries, which are mapped as long as `self` lives, and a page is aligned for them.
        // Any bytes are a descriptor. Should the kernel write all the same, a volatile copy may be torn, and what is done
        // with it is checked as ever.
        Some(unsafe { self.table.add(tag.into()).read_volatile() })
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let len = usize::from(self.depth) * size_of::<Descriptor>();
        // SAFETY: this is what was mapped, and nobody has a reference into it: `request` copies. What fails leaves the
        // pages mapped.
        let _ = unsafe { munmap(self.table.as_ptr().cast(), len) };
    }
}
