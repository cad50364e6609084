//! Counts the system calls of threads and processes.

use std::fs;
use std::io;
use std::sync::OnceLock;

use drivers::perf_counter::{TracepointCounter, tracepoint};
use rustix::mount::{MountFlags, mount};

use crate::bed::MountNamespace;

/// The tracepoint that every system call passes.
const TRACEPOINT: &str = "raw_syscalls/sys_enter";
const TRACEFS: &str = "/sys/kernel/tracing";

/// Counters of the system calls of some threads, and of all that these start from now on.
#[derive(Debug)]
pub(crate) struct SystemCalls(Vec<TracepointCounter>);

impl SystemCalls {
    /// Starts to count the system calls of all threads of processes.
    ///
    /// # Errors
    /// Why nothing can be counted, as a sentence.
    pub(crate) fn open(processes: &[u32]) -> Result<Self, String> {
        let mut counters = Vec::new();
        for process in processes {
            let Ok(entries) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
            let threads =
                entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
            for thread in threads {
                counters.extend(Self::of_thread(thread)?.0);
            }
        }
        Ok(Self(counters))
    }

    /// Starts to count the system calls of a thread of this process.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn of_thread(thread: u32) -> Result<Self, String> {
        let counter = TracepointCounter::open(number()?, thread);
        Ok(Self(vec![counter.map_err(|why| format!("the kernel refuses to count: {why}"))?]))
    }

    /// Returns the count so far.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().filter_map(|counter| counter.count().ok()).sum()
    }
}

/// Returns the number of the tracepoint.
fn number() -> Result<u64, String> {
    static NUMBER: OnceLock<Result<u64, String>> = OnceLock::new();
    NUMBER
        .get_or_init(|| tracepoint(TRACEPOINT).or_else(|why| mounted().map_err(|_| why)).map_err(explain))
        .clone()
}

/// Returns the number of the tracepoint where tracefs is not mounted: mounts it, for one thread and as long
/// as it reads.
fn mounted() -> io::Result<u64> {
    let namespace = MountNamespace::create().map_err(io::Error::other)?;
    let read = || {
        mount("tracefs", TRACEFS, "tracefs", MountFlags::RDONLY, None)?;
        tracepoint(TRACEPOINT)
    };
    namespace.run(read).map_err(io::Error::other)?
}

#[allow(clippy::needless_pass_by_value, reason = "called by map_err")]
fn explain(why: io::Error) -> String {
    format!("the kernel's tracepoints cannot be read in {TRACEFS}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_calls_of_this_thread_are_counted() {
        let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let calls = match SystemCalls::of_thread(own) {
            Ok(calls) => calls,
            Err(why) => {
                // With the rights of the machine's root, the kernel only refuses where it has no tracefs.
                let has_tracefs =
                    fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains("tracefs"));
                let is_root = fs::read_to_string("/proc/self/uid_map")
                    .is_ok_and(|map| map.contains("4294967295"))
                    && rustix::process::geteuid().is_root();
                assert!(!has_tracefs || !is_root || why.contains("refuses"), "{why}");
                eprintln!("skipped: {why}");
                return;
            }
        };
        let before = calls.total();
        (0..1000).for_each(|_| drop(fs::metadata("/proc/self/stat")));
        let counted = calls.total() - before;
        assert!((1000..1100).contains(&counted), "{counted}");
    }
}
