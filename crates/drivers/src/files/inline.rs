//! File operations that the thread of the reactor does itself, instead of passing them to a ring or to
//! another thread.
//!
//! Copying data that is in memory is faster than passing the operation on. The difficulty is to know whether
//! it is in memory. Reads ask the kernel not to wait (`RWF_NOWAIT`). Most file systems do not support that
//! flag for writes. A write of moderate size is mere copying there too, unless the system makes writers wait
//! because too much data is to be written back. So writes are done here until one had to wait; after that,
//! the writes of the file are passed on for a while.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::ReadWriteFlags;

use super::sync::{Attempt, StableWrites, progress, raw, transfer};
use super::{Errno, FileOpKind, PendingOp};
use crate::clock::Clock;

/// The largest read that is done here: some 100 µs, for which other connections wait.
const READ_MAX: usize = 1 << 20;

/// The largest write that is done here. Copying it takes some 20 µs, about as much as passing it to a thread
/// and back.
const WRITE_MAX: usize = 64 << 10;

/// The largest write that is done here if the commands behind it wait: as long as [`READ_MAX`] takes.
const SEQUENTIAL_WRITE_MAX: usize = 1 << 20;

/// The shortest read of a sequential file that is ahead of the commands. A shorter one looks for something.
const AHEAD_MIN: usize = 128 << 10;

/// A write that took this long was no mere copy, or the thread lost the processor.
const SLOW: Duration = Duration::from_millis(2);

/// After a slow write, so many writes are checked for a wait in the kernel, at the cost of two system calls
/// each, to tell the two cases apart.
const WATCHED: u32 = 256;

/// After a write had to wait, the writes of its file are passed on for this long. A wait lasts from 10 to 200
/// ms, so at worst every second event is delayed by one.
const REST: Duration = Duration::from_millis(200);

/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of linux/magic.h.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// What was learnt about a file.
#[derive(Debug)]
pub(super) struct FileBehavior {
    direct: bool,
    /// The file system is in memory, so that no operation waits.
    in_memory: bool,
    /// One command after the other uses the next bytes: see [`super::IoFile::sequential`].
    is_sequential: bool,
    reads_without_wait: AtomicBool,
    /// One of the constants below.
    writes_without_wait: AtomicU8,
    rest_until: AtomicU64,
    watched: AtomicU32,
    pub(super) stable_writes: StableWrites,
}

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// Where an operation is done that the thread of the reactor does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offload {
    /// By a thread.
    Thread,
    /// By a ring, which takes everything that a drain starts in one call; this is the first operation of the
    /// drain.
    RingFirst,
    /// By a ring, together with other operations.
    Ring,
}

impl FileBehavior {
    pub(super) fn of(file: &File, direct: bool) -> Self {
        Self {
            direct,
            in_memory: is_in_memory(file),
            is_sequential: false,
            reads_without_wait: AtomicBool::new(true),
            writes_without_wait: AtomicU8::new(UNKNOWN),
            rest_until: AtomicU64::new(0),
            watched: AtomicU32::new(0),
            stable_writes: StableWrites::default(),
        }
    }

    pub(super) fn direct(&self) -> bool {
        self.direct
    }

    pub(super) fn sequential(file: &File) -> Self {
        Self { is_sequential: true, ..Self::of(file, false) }
    }

    /// Returns whether nobody waits yet for a read of `len` bytes.
    pub(super) fn is_read_ahead(&self, len: usize) -> bool {
        self.is_sequential && len >= AHEAD_MIN
    }

    fn write_max(&self) -> usize {
        if self.is_sequential { SEQUENTIAL_WRITE_MAX } else { WRITE_MAX }
    }

    fn rests(&self, clock: &Clock) -> bool {
        let until = self.rest_until.load(Ordering::Relaxed);
        until != 0 && until > clock.now().0
    }
}

/// Returns whether the data of a regular file is in memory and nowhere else. The node of a block device may
/// be in such a file system, as all of `/dev` is; the data of the device is not.
fn is_in_memory(file: &File) -> bool {
    let kind = rustix::fs::fstatfs(file).map_or(0, |facts| u64::try_from(facts.f_type).unwrap_or(0));
    IN_MEMORY.contains(&kind) && file.metadata().is_ok_and(|facts| facts.is_file())
}

impl Offload {
    const fn attempt(self) -> Attempt {
        match self {
            Self::Thread => Attempt::Blocked,
            Self::RingFirst | Self::Ring => Attempt::Again,
        }
    }
}

/// Does `work` at once if that is expected to be fast. Work that is not finished continues at `elsewhere`.
pub(super) fn attempt(work: &mut PendingOp, elsewhere: Offload, clock: &Clock) -> Attempt {
    let habits = &work.op.file.inner.habits;
    match &work.op.kind {
        FileOpKind::Extents { .. }
        | FileOpKind::Discard { .. }
        | FileOpKind::ZeroOut { .. }
        | FileOpKind::CloneTo { .. } => Attempt::Blocked,
        FileOpKind::Read { len, .. } if *len <= READ_MAX && !work.is_ahead() => {
            if habits.in_memory {
                read(work, ReadWriteFlags::empty(), elsewhere)
            } else if habits.direct
                || elsewhere == Offload::Ring
                || !habits.reads_without_wait.load(Ordering::Relaxed)
            {
                elsewhere.attempt()
            } else {
                read(work, ReadWriteFlags::NOWAIT, elsewhere)
            }
        }
        FileOpKind::Write { data, stable, .. } if data.len() <= habits.write_max() => {
            if habits.in_memory {
                write(work)
            } else if habits.direct || *stable {
                elsewhere.attempt()
            } else {
                cached_write(work, elsewhere, clock)
            }
        }
        _ => elsewhere.attempt(),
    }
}

fn read(work: &mut PendingOp, flags: ReadWriteFlags, elsewhere: Offload) -> Attempt {
    loop {
        match transfer(&mut work.op, work.done, flags) {
            Err(Errno::AGAIN) => return elsewhere.attempt(),
            // Linux 5.9 and 5.10 may return nothing before the end of a file (preadv2(2), BUGS).
            Ok(0) if flags.contains(ReadWriteFlags::NOWAIT) => return elsewhere.attempt(),
            Err(Errno::OPNOTSUPP) => {
                work.op.file.inner.habits.reads_without_wait.store(false, Ordering::Relaxed);
                return elsewhere.attempt();
            }
            result => match progress(work, result) {
                Attempt::Again => {}
                over => return over,
            },
        }
    }
}

fn cached_write(work: &mut PendingOp, elsewhere: Offload, clock: &Clock) -> Attempt {
    let habits = &work.op.file.inner.habits;
    match (elsewhere, habits.writes_without_wait.load(Ordering::Relaxed)) {
        (Offload::Ring, YES) => Attempt::Again,
        (Offload::RingFirst | Offload::Ring, UNKNOWN | YES) => write_without_wait(work, clock),
        _ if habits.rests(clock) => elsewhere.attempt(),
        _ => write_with_care(work, clock),
    }
}

/// Writes what can be written without waiting. The ring does the rest, and likewise does the writes that
/// follow.
fn write_without_wait(work: &mut PendingOp, clock: &Clock) -> Attempt {
    match transfer(&mut work.op, work.done, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP) => {
            work.op.file.inner.habits.writes_without_wait.store(NO, Ordering::Relaxed);
            write_with_care(work, clock)
        }
        result => {
            work.op.file.inner.habits.writes_without_wait.store(YES, Ordering::Relaxed);
            progress(work, result)
        }
    }
}

/// Writes, and finds out whether the write had to wait.
fn write_with_care(work: &mut PendingOp, clock: &Clock) -> Attempt {
    let file = work.op.file.clone();
    let habits = &file.inner.habits;
    let watched = habits.watched.load(Ordering::Relaxed);
    let waits = if watched > 0 { raw::waits() } else { 0 };
    let start = clock.now();
    let attempt = write(work);
    let end = clock.now();
    let slow = end.since(start) >= SLOW;
    if watched > 0 {
        habits.watched.store(watched - 1, Ordering::Relaxed);
        if slow && raw::waits() > waits {
            habits.rest_until.store(end.after(REST).0, Ordering::Relaxed);
            habits.watched.store(WATCHED, Ordering::Relaxed);
        }
    } else if slow {
        habits.watched.store(WATCHED, Ordering::Relaxed);
    }
    attempt
}

fn write(work: &mut PendingOp) -> Attempt {
    loop {
        let result = transfer(&mut work.op, work.done, ReadWriteFlags::empty());
        match progress(work, result) {
            Attempt::Again => {}
            over => return over,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "all of this is test code, where a panic is the verdict")]
mod tests {
    use super::*;

    #[test]
    fn a_device_whose_node_is_in_memory_is_not() {
        let node = File::open("/dev/null").unwrap();
        let kind = u64::try_from(rustix::fs::fstatfs(&node).unwrap().f_type).unwrap();
        assert!(IN_MEMORY.contains(&kind), "/dev is of another kind here: {kind:#x}");
        assert!(!is_in_memory(&node));
    }
}
