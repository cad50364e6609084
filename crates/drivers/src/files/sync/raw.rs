//! System calls for which there is no safe interface.
#![allow(unsafe_code, reason = "calls with pointers")]

use std::fs::File;
use std::os::fd::AsRawFd;

use super::Errno;

/// `_IO(0x12, 119)` of linux/fs.h.
const BLKDISCARD: libc::Ioctl = 0x1277;
/// `_IO(0x12, 127)` of linux/fs.h.
const BLKZEROOUT: libc::Ioctl = 0x127f;

pub(super) fn discard(file: &File, at: u64, len: u64) -> Result<(), Errno> {
    on_range(file, BLKDISCARD, at, len)
}

pub(super) fn zero_out(file: &File, at: u64, len: u64) -> Result<(), Errno> {
    on_range(file, BLKZEROOUT, at, len)
}

fn on_range(file: &File, request: libc::Ioctl, at: u64, len: u64) -> Result<(), Errno> {
    let range: [u64; 2] = [at, len];
    // SAFETY: both requests read a start and a length, two 64-bit numbers, from their argument, which points
    // to `range` and outlives the call; the descriptor is open while `file` is borrowed.
    let outcome = unsafe { libc::ioctl(file.as_raw_fd(), request, range.as_ptr()) };
    if outcome < 0 {
        return Err(super::super::errno_of(&std::io::Error::last_os_error()));
    }
    Ok(())
}

/// Returns whether all of a range is in the page cache, or nothing if the kernel does not answer this for the
/// file.
pub(in crate::files) fn is_resident(file: &File, at: u64, len: usize) -> Option<bool> {
    /// `cachestat`, the same number for every architecture that this project runs on (Linux 6.5).
    const CACHESTAT: libc::c_long = 451;
    let len = u64::try_from(len).ok()?;
    let range: [u64; 2] = [at, len];
    let mut counts = [0_u64; 5];
    // SAFETY: the call reads a start and a length, two 64-bit numbers, from `range`, and writes five 64-bit
    // numbers to `counts`; both outlive it. It has no flags.
    let outcome =
        unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0) };
    if outcome != 0 {
        return None;
    }
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    let last = at.checked_add(len)?.checked_sub(1)?;
    Some(counts[0] > last / page - at / page)
}
