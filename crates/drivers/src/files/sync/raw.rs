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

/// Returns how often the calling thread had to wait in the kernel (voluntary context switches).
pub(in crate::files) fn waits() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes one `rusage` to the address, which is valid for that.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: it is plain integers and was zeroed, whether or not the call wrote to it.
    unsafe { usage.assume_init() }.ru_nvcsw
}
