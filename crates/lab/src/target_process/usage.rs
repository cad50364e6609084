//! What a process uses: processor time, memory, context switches.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// Returns the processor time that a process has used, user and system together, in nanoseconds. All of its
/// threads count, also those that have ended.
///
/// # Errors
/// If there is no such process.
pub fn processor_time(process: u32) -> io::Result<Duration> {
    let process = i32::try_from(process).map_err(|_| io::ErrorKind::InvalidInput)?;
    let clock = clock_getcpuclockid(Pid::from_raw(process))?;
    Ok(Duration::from(clock_gettime(clock)?))
}

/// Processor time by where it was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SplitTime {
    /// Seconds in the code of the program.
    pub(crate) user: f64,
    /// Seconds in the kernel.
    pub(crate) system: f64,
    /// How far from the truth each of the two parts can be after [`Self::since`], in seconds, in either
    /// direction; the sum of both is exact.
    pub(crate) unsure: f64,
}

impl SplitTime {
    pub(crate) fn since(self, before: Self) -> Self {
        let [user, system] = [self.user - before.user, self.system - before.system];
        // A process that has ended since counted before.
        Self { user: user.max(0.0), system: system.max(0.0), unsure: self.unsure.max(before.unsure) }
    }
}

impl std::iter::Sum for SplitTime {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            user: sum.user + one.user,
            system: sum.system + one.system,
            unsure: sum.unsure + one.unsure,
        })
    }
}

/// Returns the processor time that a process has used, also in threads that have ended. The kernel shows the
/// two parts in hundredths of a second; their sum is exact.
///
/// # Errors
/// If there is no such process.
pub(crate) fn split_time(process: u32) -> io::Result<SplitTime> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let total = processor_time(process)?.as_secs_f64();
    // Fields 14 and 15 of proc_pid_stat(5).
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields).split_ascii_whitespace().skip(11);
    let ticks: Vec<f64> = fields.take(2).filter_map(|word| word.parse::<u32>().ok()).map(f64::from).collect();
    let [user, _] = ticks.as_slice() else { return Err(io::ErrorKind::InvalidData.into()) };
    let user = (user / TICKS_PER_SECOND).min(total);
    Ok(SplitTime { user, system: total - user, unsure: 1.0 / TICKS_PER_SECOND })
}

/// `USER_HZ`, which is 100 on every architecture of today.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the processes of a group. Under a supervisor, which leads the group, only its program counts and
/// what has another parent.
pub(super) fn processes_of_group(leader: u32, program: Option<u32>) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_part = |process: &u32| {
        let Some((parent, group)) = parent_and_group(*process) else { return false };
        group == leader
            && program.is_none_or(|program| *process == program || (*process != leader && parent != leader))
    };
    numbers.filter(is_part).collect()
}

/// Reads the parent and the process group (proc_pid_stat(5), fields 4 and 5). A zombie has none.
fn parent_and_group(process: u32) -> Option<(u32, u32)> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    (state != "Z").then_some((parent, group))
}

/// Returns the resident memory of a process in bytes.
pub(super) fn resident(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    field(&text, "VmRSS").map(|kib| kib * 1024)
}

/// The voluntary context switches of the threads of processes. A thread that ends keeps its last count.
#[derive(Clone, Debug, Default)]
pub struct ThreadSwitches(BTreeMap<(u32, u32), (u64, u64)>);

impl ThreadSwitches {
    /// Counts what the threads of these processes have done since the last call.
    pub fn observe(&mut self, processes: &[u32], is_first: bool) {
        for process in processes {
            for (thread, count) in threads(*process) {
                // A thread that is new begins with zero.
                let begin = if is_first { count } else { 0 };
                self.0.entry((*process, thread)).or_insert((begin, count)).1 = count;
            }
        }
    }

    /// Returns the switches between the first observation and the last.
    pub fn total(&self) -> u64 {
        self.0.values().map(|(first, last)| last.saturating_sub(*first)).sum()
    }
}

/// Returns how often the present threads of a process gave up their processor to wait for something.
pub fn voluntary_switches(process: u32) -> u64 {
    threads(process).into_iter().map(|(_, count)| count).sum()
}

fn threads(process: u32) -> Vec<(u32, u64)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let count = |entry: fs::DirEntry| {
        let thread = entry.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(entry.path().join("status")).ok()?;
        Some((thread, field(&text, "voluntary_ctxt_switches")?))
    };
    entries.flatten().filter_map(count).collect()
}

/// Reads the number of a line `name:  123 kB`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}
