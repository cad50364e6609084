//! Memory that this process shares with a device.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buf;
use base::int_cast::to_u64;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vm_memory::mmap::MmapRegion;
use vm_memory::{Bytes, FileOffset, VolatileMemory, VolatileSlice};

/// Where the memory begins in the address space of the device. It is not zero, so that an address that a
/// device makes up is not a valid one by chance.
pub const DEVICE_BASE: u64 = 1 << 32;

/// An access outside the memory: a bug of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an access outside the shared memory")]
pub struct OutOfBounds;

/// A range of anonymous memory, mapped here and in the process of the device. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    region: Arc<MmapRegion>,
    file: Arc<File>,
}

impl SharedMemory {
    /// Makes memory of `len` bytes, all zero. The device cannot change its length.
    ///
    /// # Errors
    /// The error of the system.
    pub fn new(len: usize) -> std::io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("targe-vhost-user", flags)?);
        ftruncate(&file, to_u64(len))?;
        // Without the seals a device could cut the file, and the next access here would end this process.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapped = MmapRegion::from_file(FileOffset::new(file.try_clone()?, 0), len);
        let region = mapped.map_err(std::io::Error::other)?;
        Ok(Self { region: Arc::new(region), file: Arc::new(file) })
    }

    /// Returns the file behind the memory, for the device.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.region.size()
    }

    /// Returns whether there is no memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address that the device uses for an offset.
    pub fn device_address(at: usize) -> u64 {
        DEVICE_BASE.saturating_add(to_u64(at))
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// [`OutOfBounds`]
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.slice(at, bytes.len())?.copy_from(bytes);
        Ok(())
    }

    /// Writes zeros.
    ///
    /// # Errors
    /// [`OutOfBounds`]
    pub fn clear(&self, at: usize, len: usize) -> Result<(), OutOfBounds> {
        let place = self.slice(at, len)?;
        let zeros = [0_u8; 4096];
        for chunk in (0..len).step_by(zeros.len()) {
            place.offset(chunk).map_err(|_| OutOfBounds)?.copy_from(&zeros);
        }
        Ok(())
    }

    /// Reads bytes. The device may change them at the same time.
    ///
    /// # Errors
    /// [`OutOfBounds`]
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        self.slice(at, bytes.len())?.copy_to(bytes);
        Ok(())
    }

    /// Appends `len` bytes to a buffer that has room for them.
    ///
    /// # Errors
    /// [`OutOfBounds`], also if the buffer has no room.
    pub fn append_to(&self, at: usize, len: usize, buf: &mut Buf) -> Result<(), OutOfBounds> {
        let room = buf.spare_mut().get_mut(..len).ok_or(OutOfBounds)?;
        self.slice(at, len)?.copy_to(room);
        buf.advance(len);
        Ok(())
    }

    /// Reads a counter that the device writes, and everything that the device wrote before it.
    ///
    /// # Errors
    /// [`OutOfBounds`]
    pub fn load(&self, at: usize) -> Result<u16, OutOfBounds> {
        let value = self.region.as_volatile_slice().load::<u16>(at, Ordering::Acquire);
        value.map(u16::from_le).map_err(|_| OutOfBounds)
    }

    /// Writes a counter that the device reads, after everything that was written before.
    ///
    /// # Errors
    /// [`OutOfBounds`]
    pub fn store(&self, at: usize, value: u16) -> Result<(), OutOfBounds> {
        let stored = self.region.as_volatile_slice().store(value.to_le(), at, Ordering::Release);
        stored.map_err(|_| OutOfBounds)
    }

    fn slice(&self, at: usize, len: usize) -> Result<VolatileSlice<'_>, OutOfBounds> {
        self.region.get_slice(at, len).map_err(|_| OutOfBounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_outside_and_keeps_its_length() {
        let memory = SharedMemory::new(4096).unwrap();
        assert_eq!(memory.write(4090, b"123456"), Ok(()));
        assert_eq!(memory.write(4091, b"123456"), Err(OutOfBounds));
        assert_eq!(memory.read(usize::MAX, &mut [0; 2]), Err(OutOfBounds));
        assert_eq!((memory.load(4095), memory.store(4096, 1)), (Err(OutOfBounds), Err(OutOfBounds)));
        let mut buf = Buf::with_capacity(6);
        assert_eq!(memory.append_to(4090, 6, &mut buf), Ok(()));
        assert_eq!(buf.filled(), b"123456");
        assert_eq!(memory.append_to(0, 1 << 20, &mut buf), Err(OutOfBounds));
        assert!(memory.file().set_len(0).is_err() && memory.file().set_len(8192).is_err());
    }
}
