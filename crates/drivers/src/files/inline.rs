//! Where each file operation is carried out: by the thread of the reactor, by the ring, or by other threads.
//!
//! The thread of the reactor serves every medium and every connection, so it makes no system call that can
//! wait for a disk. That leaves it little:
//!
//! * Files in memory.
//! * Reads of pages that are in the page cache. The kernel is asked first whether they are (`cachestat`),
//!   because a read that finds a page missing starts to read ahead even with `RWF_NOWAIT`, and so can wait
//!   for metadata and for a place in the queue of the disk. The read must not update an access time either,
//!   which waits for the journal. It takes no lock that a frozen file system holds.
//! * What the ring begins for it, see [`Ring`].
//!
//! A write into the page cache is mere copying as a rule, and yet it waits: for a file system that is frozen
//! (`fsfreeze`, a snapshot of LVM), for space in the journal, for a page that is being written back, and when
//! too much is to be written back. `RWF_NOWAIT` does not prevent that: ext4 does not support it for such
//! writes, and a frozen file system ignored it for long. So threads do these writes, all that a drain has
//! started in one go.

use std::fs::File;
use std::os::linux::fs::MetadataExt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, OFlags};
use rustix::io::ReadWriteFlags;

use super::sync::{Attempt, StableWrites, progress, raw, transfer};
use super::{Errno, FileError, FileOpKind, PendingOp};
use crate::clock::Clock;

/// The largest read that is done here: some 100 µs, for which other connections wait.
const READ_MAX: usize = 1 << 20;

/// The largest write to a file in memory that is done here. Copying it takes some 20 µs, about as much as
/// passing it to a thread and back.
const WRITE_MAX: usize = 64 << 10;

/// The largest write that is done here if the commands behind it wait: as long as [`READ_MAX`] takes.
const SEQUENTIAL_WRITE_MAX: usize = 1 << 20;

/// The shortest read of a sequential file that is ahead of the commands. A shorter one looks for something.
const AHEAD_MIN: usize = 128 << 10;

/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of linux/magic.h.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// `EXT4_SUPER_MAGIC`, `BTRFS_SUPER_MAGIC` and `XFS_SUPER_MAGIC` of linux/magic.h.
const EXT4: u64 = 0xef53;
const BTRFS: u64 = 0x9123_683e;
const XFS: u64 = 0x5846_5342;

/// `ST_RDONLY` and `ST_NOATIME` of linux/statfs.h: reads do not update the time of the last access.
const WITHOUT_ACCESS_TIME: u64 = 1 | 1 << 10;

/// What is known about a file.
#[derive(Debug)]
pub(super) struct FileBehavior {
    direct: bool,
    /// The file system is in memory, so that no operation waits.
    in_memory: bool,
    is_block_device: bool,
    /// One command after the other uses the next bytes: see [`super::IoFile::sequential`].
    is_sequential: bool,
    /// The thread of the reactor reads what is in the page cache.
    reads_here: AtomicBool,
    ring: Ring,
    pub(super) stable_writes: StableWrites,
}

/// What the kernel begins for a ring without waiting for the disk, proven for each file system from its
/// sources: reads and writes past the page cache of block devices and of XFS, whose metadata is in memory or
/// is left to a worker. ext4 reads metadata of the file for such an operation, and waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ring {
    reads: bool,
    writes: bool,
}

/// Where an operation goes.
pub(super) enum Place {
    /// It was done here, with this result.
    Done(Result<(), FileError>),
    /// The ring does it.
    Ring,
    /// A thread does it.
    Thread,
}

/// What the choice of a place depends on, apart from the file.
pub(super) struct Circumstances<'a> {
    /// There is a ring.
    pub(super) has_ring: bool,
    /// The ring gets other operations of this drain too, all in one call.
    pub(super) ring_has_more: bool,
    pub(super) clock: &'a Clock,
}

impl FileBehavior {
    pub(super) fn of(file: &File, direct: bool) -> Self {
        let facts = rustix::fs::fstatfs(file).ok();
        let system = facts.map_or(0, |facts| u64::try_from(facts.f_type).unwrap_or(0));
        let flags = facts.map_or(0, |facts| u64::try_from(facts.f_flags).unwrap_or(0));
        let mode = file.metadata().map_or(0, |facts| facts.st_mode());
        let kind = FileType::from_raw_mode(mode);
        // The node of a block device may be in memory, as all of /dev is; the data of the device is not.
        let is_node_in_memory = IN_MEMORY.contains(&system);
        let is_block_device = kind == FileType::BlockDevice;
        let is_quiet = is_node_in_memory || forbid_access_time(file) || flags & WITHOUT_ACCESS_TIME != 0;
        let known = is_block_device || [EXT4, BTRFS, XFS].contains(&system);
        let ring = Ring {
            reads: is_quiet && (is_block_device || system == XFS),
            writes: (is_block_device && is_node_in_memory) || (system == XFS && *SKIPS_FROZEN_FILE_SYSTEMS),
        };
        Self {
            direct,
            in_memory: is_node_in_memory && kind == FileType::RegularFile,
            is_block_device,
            is_sequential: false,
            reads_here: AtomicBool::new(!direct && is_quiet && known),
            ring: if direct { ring } else { Ring::default() },
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
    fn is_read_ahead(&self, len: usize) -> bool {
        self.is_sequential && len >= AHEAD_MIN
    }

    fn write_max(&self) -> usize {
        if self.is_sequential { SEQUENTIAL_WRITE_MAX } else { WRITE_MAX }
    }

    /// Returns whether the thread of the reactor may read a range, since all of it is in the page cache.
    fn may_read_here(&self, work: &PendingOp, at: u64, len: usize, clock: &Clock) -> bool {
        if !self.reads_here.load(Ordering::Relaxed)
            // A page can be marked so that its reader reads ahead.
            || work.lane.is_stalled(|| clock.now())
            // A device is locked against reads while a range of it is discarded.
            || (self.is_block_device && work.lane.has_long())
        {
            return false;
        }
        let is_resident = raw::is_resident(work.op.file.file(), at, len);
        if is_resident.is_none() {
            self.reads_here.store(false, Ordering::Relaxed);
        }
        is_resident == Some(true)
    }
}

/// Does `work` if that cannot wait for a disk. Otherwise returns where it is to be done.
pub(super) fn attempt(work: &mut PendingOp, now: &Circumstances<'_>) -> Place {
    match choose(work, now) {
        Choice::Read(flags) => read(work, flags),
        Choice::Write => write(work),
        Choice::Elsewhere(place) => place,
    }
}

enum Choice {
    Read(ReadWriteFlags),
    Write,
    Elsewhere(Place),
}

fn choose(work: &PendingOp, now: &Circumstances<'_>) -> Choice {
    let behavior = &work.op.file.inner.behavior;
    match &work.op.kind {
        FileOpKind::Read { at, len, .. } if *len <= READ_MAX && !behavior.is_read_ahead(*len) => {
            if behavior.in_memory {
                Choice::Read(ReadWriteFlags::empty())
            } else if behavior.direct {
                behavior.ring.choose(now, behavior.ring.reads)
            } else if !behavior.may_read_here(work, *at, *len, now.clock) {
                Choice::Elsewhere(Place::Thread)
            } else if now.has_ring && now.ring_has_more {
                Choice::Elsewhere(Place::Ring)
            } else {
                Choice::Read(ReadWriteFlags::NOWAIT)
            }
        }
        FileOpKind::Read { .. } => behavior.ring.choose(now, behavior.ring.reads),
        FileOpKind::Write { data, .. } if behavior.in_memory && data.len() <= behavior.write_max() => {
            Choice::Write
        }
        FileOpKind::Write { .. } => behavior.ring.choose(now, behavior.ring.writes),
        _ => Choice::Elsewhere(Place::Thread),
    }
}

impl Ring {
    const fn choose(self, now: &Circumstances<'_>, can: bool) -> Choice {
        Choice::Elsewhere(if now.has_ring && can { Place::Ring } else { Place::Thread })
    }
}

fn read(work: &mut PendingOp, flags: ReadWriteFlags) -> Place {
    loop {
        match transfer(&mut work.op, work.done, flags) {
            Err(Errno::AGAIN) => return Place::Thread,
            // Linux 5.9 and 5.10 may return nothing before the end of a file (preadv2(2), BUGS).
            Ok(0) if flags.contains(ReadWriteFlags::NOWAIT) => return Place::Thread,
            Err(Errno::OPNOTSUPP) => {
                work.op.file.inner.behavior.reads_here.store(false, Ordering::Relaxed);
                return Place::Thread;
            }
            result => match progress(work, result) {
                // The rest was not in memory any more.
                Attempt::Again if !flags.is_empty() => return Place::Thread,
                Attempt::Again => {}
                Attempt::Blocked => return Place::Thread,
                Attempt::Finished(result) => return Place::Done(result),
            },
        }
    }
}

fn write(work: &mut PendingOp) -> Place {
    loop {
        let result = transfer(&mut work.op, work.done, ReadWriteFlags::empty());
        match progress(work, result) {
            Attempt::Again => {}
            Attempt::Blocked => return Place::Thread,
            Attempt::Finished(result) => return Place::Done(result),
        }
    }
}

/// Forbids that reads through `file` update the time of the last access. Returns whether that is allowed: the
/// file must be that of the user, or the process privileged.
fn forbid_access_time(file: &File) -> bool {
    rustix::fs::fcntl_getfl(file)
        .and_then(|flags| rustix::fs::fcntl_setfl(file, flags | OFlags::NOATIME))
        .is_ok()
}

/// Whether the kernel hands a write past the page cache to a worker when the file system is frozen, instead
/// of making the thread sleep that submits it (commit 1d60d74e8526 of Linux, CVE-2024-53052).
static SKIPS_FROZEN_FILE_SYSTEMS: LazyLock<bool> = LazyLock::new(|| {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|release| skips_frozen(&release))
});

/// Returns whether a release of Linux has that change. Distributions that have it under an older number are
/// not recognised; there a thread does the write.
fn skips_frozen(release: &str) -> bool {
    let mut numbers = release.split(['.', '-', '\n']).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    match (next(), next(), next()) {
        (5, 15, patch) => patch >= 171,
        (6, 1, patch) => patch >= 116,
        (6, 6, patch) => patch >= 60,
        (6, 11, patch) => patch >= 7,
        (major, minor, _) => (major, minor) >= (6, 12),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "all of this is test code, where a panic is the verdict")]
mod tests {
    use super::*;

    #[test]
    fn a_device_whose_node_is_in_memory_is_not() {
        let node = File::open("/dev/null").unwrap();
        let system = u64::try_from(rustix::fs::fstatfs(&node).unwrap().f_type).unwrap();
        assert!(IN_MEMORY.contains(&system), "/dev is of another kind here: {system:#x}");
        assert!(!FileBehavior::of(&node, false).in_memory);
    }

    #[test]
    fn releases_that_hand_writes_to_a_frozen_file_system_to_a_worker_are_known() {
        for (release, expected) in [
            ("6.18.44-fc-v657\n", true),
            ("6.12.0", true),
            ("6.11.6", false),
            ("6.11.7-rc1", true),
            ("6.6.59", false),
            ("6.1.116", true),
            ("6.1.0-28-amd64", false),
            ("5.15.0-122-generic", false),
            ("7.0.0", true),
            ("", false),
        ] {
            assert_eq!(skips_frozen(release), expected, "{release}");
        }
    }
}
