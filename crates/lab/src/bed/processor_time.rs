//! The processor time of another process.

use std::fs;
use std::io;
use std::time::Duration;

/// Returns the processor time that the threads of a process have used, user and system together. Threads that
/// have ended do not count; a target's reactors live as long as the process.
///
/// The kernel counts nanoseconds, and includes the present time slice of a thread that is running with a
/// delay of a timer tick at most.
///
/// # Errors
/// If there is no such process, or if the kernel keeps no such statistics.
pub fn processor_time(process: u32) -> io::Result<Duration> {
    let mut sum = Duration::ZERO;
    for entry in fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(entry?.path().join("schedstat")) else { continue };
        let running = text.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
        sum += Duration::from_nanos(running.ok_or(io::ErrorKind::InvalidData)?);
    }
    Ok(sum)
}

/// Returns how often the threads of a process gave up their processor to wait for something. Threads that
/// have ended do not count.
///
/// # Errors
/// If there is no such process.
pub fn voluntary_switches(process: u32) -> io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(entry?.path().join("status")) else { continue };
        let count = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sum += count.and_then(|count| count.trim().parse::<u64>().ok()).ok_or(io::ErrorKind::InvalidData)?;
    }
    Ok(sum)
}
