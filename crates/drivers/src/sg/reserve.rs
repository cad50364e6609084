//! The buffer that the SG driver reserves for an open device.
//!
//! SG executes one request at a time with it: the first one that fits and finds it free. For every other
//! request, it allocates pages that are clear (since Linux 4.17). It never clears the reserved buffer, and
//! copies as many bytes of it as were asked for. A device that sends fewer, behind a host adapter that tells
//! no residual count, would thus show one initiator what another one has read or written.
#![allow(unsafe_code, reason = "the buffer belongs to the kernel and has to be mapped")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;

use super::SgData;

/// The mapped buffer.
#[derive(Debug)]
pub(super) struct Reserve {
    memory: NonNull<u8>,
    len: usize,
    /// The number of the request that the kernel executes with the buffer.
    holder: Option<u32>,
}

// SAFETY: the mapping belongs to this value alone, and nothing binds it to a thread.
unsafe impl Send for Reserve {}

impl Reserve {
    /// Maps the buffer of an open device: as many whole pages as `reserved` bytes contain.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn map(file: &File, reserved: u32) -> io::Result<Self> {
        let len = usize::try_from(reserved).unwrap_or(0);
        let len = len - len % rustix::param::page_size();
        // SAFETY: the kernel chooses an address range that is free.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        let mapped = if memory == libc::MAP_FAILED { None } else { NonNull::new(memory.cast()) };
        let memory = mapped.ok_or_else(io::Error::last_os_error)?;
        Ok(Self { memory, len, holder: None })
    }

    /// Returns the length of the buffer in bytes.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.len).unwrap_or(u32::MAX)
    }

    /// Prepares the buffer for a request that is submitted next, if the kernel will use it for that one.
    pub(super) fn lend(&mut self, slot: u32, data: &SgData) {
        let (len, is_filled_by_device) = match data {
            SgData::Nothing => (0, false),
            SgData::In { len, .. } => (*len, true),
            SgData::Out(data) => (data.len(), false),
        };
        if self.holder.is_some() || len == 0 || len > self.len {
            return;
        }
        self.holder = Some(slot);
        if is_filled_by_device {
            // SAFETY: `len` bytes are mapped from here on, and the kernel executes no request with them.
            unsafe { self.memory.write_bytes(0, len) };
        }
    }

    /// Notes that a request has ended and its reply was collected, or that it was not submitted.
    pub(super) fn take_back(&mut self, slot: u32) {
        self.holder.take_if(|holder| *holder == slot);
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and nothing refers to it any more.
        let _ = unsafe { libc::munmap(self.memory.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use base::buffer::{Buf, Bytes, DataList};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    const LEN: u32 = 0x10000;

    /// A file in the place of the device, and its mapping.
    fn mapped() -> (File, Reserve) {
        let file = File::from(memfd_create("reserve", MemfdFlags::CLOEXEC).unwrap());
        fill(&file);
        let reserve = Reserve::map(&file, LEN).unwrap();
        (file, reserve)
    }

    fn fill(file: &File) {
        file.write_all_at(&[7; LEN as usize], 0).unwrap();
    }

    /// Returns how many bytes at the beginning of the buffer are clear. The others are as they were.
    fn clear(file: &File) -> usize {
        let mut bytes = [0; LEN as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let clear = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
        assert!(bytes.iter().skip(clear).all(|byte| *byte == 7));
        clear
    }

    fn read_of(len: usize) -> SgData {
        SgData::In { len, bufs: vec![Buf::with_capacity(len)] }
    }

    fn write_of(len: usize) -> SgData {
        let mut data = DataList::new();
        data.push(Bytes::copied_from(&vec![1; len]));
        SgData::Out(data)
    }

    #[test]
    fn the_buffer_is_clear_before_the_device_fills_it() {
        let (file, mut reserve) = mapped();
        assert_eq!(reserve.len(), LEN);
        for (slot, len) in [1, 36, 4096, 5000, LEN as usize].into_iter().enumerate() {
            let slot = u32::try_from(slot).unwrap();
            reserve.lend(slot, &read_of(len));
            assert_eq!(clear(&file), len);
            reserve.take_back(slot);
            fill(&file);
        }
    }

    #[test]
    fn a_buffer_in_use_is_left_alone() {
        let (file, mut reserve) = mapped();
        for holder in [read_of(512), write_of(512)] {
            reserve.lend(3, &holder);
            fill(&file);
            reserve.lend(4, &read_of(512));
            assert_eq!(clear(&file), 0, "{holder:?}");
            // The end of another request does not return the buffer.
            reserve.take_back(4);
            reserve.lend(5, &read_of(512));
            assert_eq!(clear(&file), 0, "{holder:?}");
            reserve.take_back(3);
            reserve.lend(6, &read_of(512));
            assert_eq!(clear(&file), 512, "{holder:?}");
            reserve.take_back(6);
        }
    }

    #[test]
    fn requests_that_the_kernel_executes_without_the_buffer_do_not_hold_it() {
        let (file, mut reserve) = mapped();
        reserve.lend(0, &SgData::Nothing);
        reserve.lend(1, &read_of(LEN as usize + 1));
        reserve.lend(2, &write_of(LEN as usize + 1));
        assert_eq!(clear(&file), 0);
        reserve.lend(3, &read_of(8));
        assert_eq!(clear(&file), 8);
    }

    #[test]
    fn whole_pages_are_mapped() {
        let (file, _) = mapped();
        let page = u32::try_from(rustix::param::page_size()).unwrap();
        assert_eq!(Reserve::map(&file, page + 512).unwrap().len(), page);
        assert!(Reserve::map(&file, 512).is_err());
    }
}
