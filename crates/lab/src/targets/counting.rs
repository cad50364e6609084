//! Counts system calls, context switches and memory of a target under load.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drivers::perf_counter::{TracepointCounter, tracepoint};

use crate::bed::to_f64;
use crate::target_process::{TargetProcess, ThreadSwitches};

use super::samples::Counts;

/// How often the threads and the memory are read: rarely, since a target with many threads would be disturbed
/// more than others.
const INTERVAL: Duration = Duration::from_millis(50);

/// Counts while `work` runs, which returns the number of commands. A kernel target has no processes; nothing
/// is counted then.
pub(super) fn count<E>(
    process: &TargetProcess,
    work: impl FnOnce() -> Result<Option<u64>, E>,
) -> Result<Option<Counts>, E> {
    let processes = process.processes();
    if processes.is_empty() {
        return Ok(work()?.map(|_| Counts::default()));
    }
    let counters = open_counters(&processes);
    let done = AtomicBool::new(false);
    let (commands, (switches, resident)) = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| sample(process, &done));
        let commands = work();
        done.store(true, Ordering::Relaxed);
        (commands, sampler.join().unwrap_or((0, 0)))
    });
    let Some(commands) = commands?.filter(|commands| *commands > 0) else { return Ok(None) };
    let system_calls = counters.map(|counters| {
        let calls: u64 = counters.iter().filter_map(|counter| counter.count().ok()).sum();
        to_f64(calls) / to_f64(commands)
    });
    Ok(Some(Counts {
        system_calls: Some(system_calls),
        switches: Some(to_f64(switches) / to_f64(commands)),
        resident: Some(to_f64(resident)),
    }))
}

/// Returns the context switches and the largest resident memory until `done`.
fn sample(process: &TargetProcess, done: &AtomicBool) -> (u64, u64) {
    let (mut switches, mut resident) = (ThreadSwitches::default(), 0);
    switches.observe(&process.processes(), true);
    loop {
        let is_last = done.load(Ordering::Relaxed);
        switches.observe(&process.processes(), false);
        resident = resident.max(process.resident());
        if is_last {
            return (switches.total(), resident);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Opens a counter of system calls for each thread. Threads and processes that these start are counted too.
fn open_counters(processes: &[u32]) -> Result<Vec<TracepointCounter>, String> {
    let number = tracepoint("raw_syscalls/sys_enter")
        .map_err(|why| format!("the kernel's tracepoints cannot be read in /sys/kernel/tracing: {why}"))?;
    let mut counters = Vec::new();
    for process in processes {
        let Ok(entries) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        let threads = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        for thread in threads {
            let counter = TracepointCounter::open(number, thread);
            counters.push(counter.map_err(|why| format!("the kernel refuses to count: {why}"))?);
        }
    }
    Ok(counters)
}
