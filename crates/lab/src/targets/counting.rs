//! Counts system calls, context switches and memory of a target under load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::bed::to_f64;
use crate::system_calls::SystemCalls;
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
    let counters = SystemCalls::open(&processes);
    let done = AtomicBool::new(false);
    let (commands, (switches, resident)) = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| sample(process, &done));
        let commands = work();
        done.store(true, Ordering::Relaxed);
        (commands, sampler.join().unwrap_or((0, 0)))
    });
    let Some(commands) = commands?.filter(|commands| *commands > 0) else { return Ok(None) };
    let system_calls = counters.map(|counters| to_f64(counters.total()) / to_f64(commands));
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
