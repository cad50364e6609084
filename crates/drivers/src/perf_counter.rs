//! Counters of the kernel for tracepoints that other threads pass (perf_event_open(2)).

#![allow(unsafe_code, reason = "a system call that no library has a safe function for")]

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};

/// A counter of how often a thread passes a tracepoint, and all threads that it starts from now on.
#[derive(Debug)]
pub struct TracepointCounter(File);

impl TracepointCounter {
    /// Starts to count. The tracepoint is the number that tracefs gives it ([`tracepoint`]).
    ///
    /// # Errors
    /// Those of perf_event_open(2): without `CAP_PERFMON` in the first user namespace, permission denied.
    pub fn open(tracepoint: u64, thread: u32) -> io::Result<Self> {
        let thread = i32::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput)?;
        // struct perf_event_attr, 64 bytes long: type, size, config, then among others the flags.
        let mut head = [0; 8];
        let [kind, size] = [PERF_TYPE_TRACEPOINT, PERF_ATTR_SIZE_VER0].map(u32::to_ne_bytes);
        head.iter_mut().zip(kind.into_iter().chain(size)).for_each(|(byte, value)| *byte = value);
        let attributes: [u64; 8] = [u64::from_ne_bytes(head), tracepoint, 0, 0, 0, PERF_FLAG_INHERIT, 0, 0];
        let (any_processor, no_group) = (-1, -1);
        // SAFETY: `attributes` is as long as its size field says, and the kernel only reads it; the other
        // arguments are numbers.
        let descriptor = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                attributes.as_ptr(),
                thread,
                any_processor,
                no_group,
                PERF_FLAG_FD_CLOEXEC,
            )
        };
        let descriptor = i32::try_from(descriptor).map_err(|_| io::ErrorKind::InvalidData)?;
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just returned this descriptor, and nobody else has it.
        let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self(owned.into()))
    }

    /// Returns the count so far, threads that have ended included.
    ///
    /// # Errors
    /// Those of reading the counter.
    pub fn count(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        (&self.0).read_exact(&mut count)?;
        Ok(u64::from_ne_bytes(count))
    }
}

/// Returns the number of a tracepoint, such as `raw_syscalls/sys_enter`.
///
/// # Errors
/// If tracefs is not mounted, may not be read, or does not have the tracepoint.
pub fn tracepoint(name: &str) -> io::Result<u64> {
    let read = |root: &str| fs::read_to_string(format!("{root}/events/{name}/id"));
    let text = read("/sys/kernel/tracing").or_else(|_| read("/sys/kernel/debug/tracing"))?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

// linux/perf_event.h
const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_ATTR_SIZE_VER0: u32 = 64;
const PERF_FLAG_INHERIT: u64 = if cfg!(target_endian = "little") { 1 << 1 } else { 1 << 62 };
const PERF_FLAG_FD_CLOEXEC: u32 = 1 << 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_of_a_thread_and_its_children_are_counted() {
        let counter = tracepoint("raw_syscalls/sys_enter").and_then(|number| {
            TracepointCounter::open(number, rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())
        });
        let counter = match counter {
            Ok(counter) => counter,
            Err(why) => {
                eprintln!("skipped: no counters here: {why}");
                return;
            }
        };
        let call = || (0..1000).for_each(|_| drop(fs::metadata("/proc/self/stat")));
        let before = counter.count().unwrap();
        call();
        let alone = counter.count().unwrap() - before;
        assert!((1000..1100).contains(&alone), "{alone}");
        std::thread::spawn(call).join().unwrap();
        let both = counter.count().unwrap() - before;
        assert!((2000..2300).contains(&both), "{both}");
        assert!(tracepoint("no/such").is_err());
    }
}
