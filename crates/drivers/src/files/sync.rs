//! Executes operations with plain system calls, and tracks their progress.

use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU8, Ordering};

use base::buffer::{Buf, DataList};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::ReadWriteFlags;
use smallvec::SmallVec;

use super::{
    Errno, FallocateMode, FileDone, FileError, FileExtent, FileOp, FileOpKind, FileOutcome, IoFile,
    NOT_BEGUN, PendingOp,
};
use crate::fault_injection::{self, Bug};

pub(super) mod raw;

/// The most pieces that one system call takes (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

/// The result of an attempt.
pub(crate) enum Attempt {
    /// The operation is finished.
    Finished(Result<(), FileError>),
    /// The operation is not finished, and can be continued in the same way.
    Again,
    /// The operation would block, or cannot be done in this way: a thread has to do it.
    Blocked,
}

pub(crate) type Slices<'a> = SmallVec<[IoSlice<'a>; 16]>;
pub(crate) type SlicesMut<'a> = SmallVec<[IoSliceMut<'a>; 16]>;

/// Records the result of a call for `work`: how many bytes (zero for calls that transfer none), or an error.
pub(crate) fn progress(work: &mut PendingOp, result: Result<usize, Errno>) -> Attempt {
    if is_stable_write(&work.op) {
        let stable_writes = &work.op.file.inner.behavior.stable_writes;
        match result {
            Ok(_) => stable_writes.succeeded(),
            Err(Errno::OPNOTSUPP) if !stable_writes.may_lack_support() => {
                return Attempt::Finished(Err(FileError { errno: Errno::OPNOTSUPP, done: work.done }));
            }
            Err(_) => {}
        }
    }
    advance(&mut work.op, &mut work.done, result)
}

/// Whether a file supports `RWF_DSYNC`.
///
/// `EOPNOTSUPP` is the answer of a file that does not. It can also be the report of a failed write-back,
/// which the kernel makes only once. The same call tells them apart: a report is not repeated.
#[derive(Debug, Default)]
pub(super) struct StableWrites(AtomicU8);

const UNKNOWN: u8 = 0;
const SUPPORTED: u8 = 1;
/// One write has failed, and is tried again.
const IN_DOUBT: u8 = 2;
const UNSUPPORTED: u8 = 3;

impl StableWrites {
    /// Handles a write that succeeded. What is in doubt is decided by the write that failed.
    fn succeeded(&self) {
        let _ = self.0.compare_exchange(UNKNOWN, SUPPORTED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Handles `EOPNOTSUPP`. Returns whether the write is to be tried again by [`Self::write`].
    fn may_lack_support(&self) -> bool {
        let _ = self.0.compare_exchange(UNKNOWN, IN_DOUBT, Ordering::Relaxed, Ordering::Relaxed);
        self.0.load(Ordering::Relaxed) != SUPPORTED
    }

    /// Makes one write with `dsync`, or with `fallback` if the file does not support that.
    fn write(
        &self,
        mut dsync: impl FnMut() -> Result<usize, Errno>,
        fallback: impl FnOnce() -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        loop {
            let known = self.0.load(Ordering::Relaxed);
            if known == UNSUPPORTED {
                return fallback();
            }
            match (dsync(), known) {
                (Err(Errno::OPNOTSUPP | Errno::NOSYS), UNKNOWN) => {
                    let _ = self.may_lack_support();
                }
                (Err(Errno::OPNOTSUPP | Errno::NOSYS), IN_DOUBT) => {
                    self.0.store(UNSUPPORTED, Ordering::Relaxed);
                }
                (Ok(_), IN_DOUBT) => {
                    self.0.store(SUPPORTED, Ordering::Relaxed);
                    return Err(Errno::OPNOTSUPP);
                }
                (result, _) => {
                    if result.is_ok() {
                        self.succeeded();
                    }
                    return result;
                }
            }
        }
    }
}

/// Returns whether an operation is a write that may get the report of another one's failure. Past the page
/// cache too: such a write flushes the cache of the device.
const fn is_stable_write(op: &FileOp) -> bool {
    matches!(op.kind, FileOpKind::Write { stable: true, .. })
}

fn advance(op: &mut FileOp, done: &mut usize, result: Result<usize, Errno>) -> Attempt {
    let failed = |errno| Attempt::Finished(Err(FileError { errno, done: *done }));
    let count = match result {
        Ok(count) => count,
        // It may be the report of a failed write-back, whatever its number is. The kernel makes it only once,
        // and a second call would succeed.
        Err(errno) if matches!(op.kind, FileOpKind::Sync { .. }) => return failed(executed(errno)),
        Err(errno @ (Errno::INTR | Errno::AGAIN)) if is_stable_write(op) => return failed(executed(errno)),
        Err(Errno::INTR | Errno::AGAIN) => return Attempt::Again,
        Err(Errno::OPNOTSUPP) => return Attempt::Blocked,
        Err(errno) => return failed(errno),
    };
    let whole = match &mut op.kind {
        FileOpKind::Read { bufs, len, .. } => {
            fill(bufs, count);
            if count == 0 {
                return Attempt::Finished(Ok(()));
            }
            *len
        }
        FileOpKind::Write { data, .. } => {
            if count == 0 && !data.is_empty() {
                return failed(Errno::IO);
            }
            data.len()
        }
        _ => 0,
    };
    *done += count;
    if *done >= whole { Attempt::Finished(Ok(())) } else { Attempt::Again }
}

/// Marks the next `count` bytes of the buffers as filled.
fn fill(bufs: &mut [Buf], mut count: usize) {
    for buf in bufs {
        let taken = count.min(buf.capacity() - buf.len());
        buf.advance(taken);
        count -= taken;
    }
}

/// Makes one system call for a read or write of which `done` bytes are done.
pub(super) fn transfer(op: &mut FileOp, done: usize, flags: ReadWriteFlags) -> Result<usize, Errno> {
    let file = op.file.file();
    match &mut op.kind {
        FileOpKind::Read { at, len, bufs } => {
            let mut slices = room(bufs, len.saturating_sub(done));
            let at = offset(*at, done);
            rustix::io::preadv2(file, &mut slices, at, flags)
        }
        FileOpKind::Write { at, data, .. } => {
            let slices = rest(data, done);
            let at = offset(*at, done);
            if flags.is_empty() {
                rustix::io::pwritev(file, &slices, at)
            } else {
                rustix::io::pwritev2(file, &slices, at, flags)
            }
        }
        _ => Err(Errno::INVAL),
    }
}

/// Returns the spare capacity for the next `left` bytes.
pub(crate) fn room(bufs: &mut [Buf], mut left: usize) -> SlicesMut<'_> {
    let mut slices = SlicesMut::new();
    for buf in bufs {
        let spare = buf.spare_mut();
        let len = spare.len().min(left);
        left -= len;
        if let Some(part) = spare.get_mut(..len)
            && !part.is_empty()
            && slices.len() < PIECES_MAX
        {
            slices.push(IoSliceMut::new(part));
        }
    }
    slices
}

/// Returns the data after the first `done` bytes.
pub(crate) fn rest(data: &DataList, mut done: usize) -> Slices<'_> {
    let mut slices = Slices::new();
    for part in data.parts() {
        let skipped = done.min(part.len());
        done -= skipped;
        if let Some(part) = part.get(skipped..)
            && !part.is_empty()
            && slices.len() < PIECES_MAX
        {
            slices.push(IoSlice::new(part));
        }
    }
    slices
}

fn offset(at: u64, done: usize) -> u64 {
    at.saturating_add(u64::try_from(done).unwrap_or(u64::MAX))
}

/// Does the rest of an operation, however long it takes.
pub(crate) fn run_to_end(mut op: FileOp, mut done: usize) -> FileDone {
    let result = loop {
        match &op.kind {
            FileOpKind::Extents { at, len, count_max } => {
                let result = extents(&op.file, *at, *len, *count_max);
                let failed = |errno| FileError { errno: executed(errno), done: 0 };
                let result = result.map(FileOutcome::Extents).map_err(failed);
                return FileDone { token: op.token, result };
            }
            FileOpKind::Call(_) => return call(op),
            FileOpKind::Read { .. } | FileOpKind::Write { .. } => {
                let result = transfer_blocking(&mut op, done);
                match advance(&mut op, &mut done, result) {
                    Attempt::Again => {}
                    Attempt::Blocked => break Err(FileError { errno: Errno::OPNOTSUPP, done }),
                    Attempt::Finished(result) => break result,
                }
            }
            _ => match change(&op) {
                Err(Errno::INTR) if !matches!(op.kind, FileOpKind::Sync { .. }) => {}
                result => break result.map_err(|errno| FileError { errno: executed(errno), done: 0 }),
            },
        }
    };
    conclude(op, result)
}

fn transfer_blocking(op: &mut FileOp, done: usize) -> Result<usize, Errno> {
    if !matches!(op.kind, FileOpKind::Write { stable: true, .. })
        || fault_injection::is_injected(Bug::FilesDropDsync)
    {
        return transfer(op, done, ReadWriteFlags::empty());
    }
    let op = RefCell::new(op);
    let dsync = || transfer(&mut op.borrow_mut(), done, ReadWriteFlags::DSYNC);
    let fallback = || {
        let op = &mut op.borrow_mut();
        let count = transfer(op, done, ReadWriteFlags::empty())?;
        rustix::fs::fdatasync(op.file.file()).map_err(final_errno)?;
        Ok(count)
    };
    let file = op.borrow().file.clone();
    file.inner.behavior.stable_writes.write(dsync, fallback)
}

/// Returns the error of a sync whose caller repeats what ends with some errors: a sync must not be repeated.
const fn final_errno(errno: Errno) -> Errno {
    match errno {
        Errno::OPNOTSUPP => Errno::IO,
        errno => executed(errno),
    }
}

/// Returns the error of a call that the kernel has executed. SMB and FUSE pass on `EAGAIN` and `EINTR` of
/// their servers, which must not be taken for [`NOT_BEGUN`], nor for an invitation to repeat a sync.
const fn executed(errno: Errno) -> Errno {
    match errno {
        Errno::INTR | NOT_BEGUN => Errno::IO,
        errno => errno,
    }
}

fn change(op: &FileOp) -> Result<(), Errno> {
    let file = op.file.file();
    match &op.kind {
        FileOpKind::Sync { .. } if fault_injection::is_injected(Bug::FilesSkipFdatasync) => Ok(()),
        FileOpKind::Sync { data_only: true } => rustix::fs::fdatasync(file),
        FileOpKind::Sync { data_only: false } => rustix::fs::fsync(file),
        FileOpKind::Fallocate { mode, at, len } => rustix::fs::fallocate(file, mode.flags(), *at, *len),
        FileOpKind::Discard { at, len } => raw::discard(file, *at, *len),
        FileOpKind::ZeroOut { at, len } => raw::zero_out(file, *at, *len),
        FileOpKind::CloneTo { to } => rustix::fs::ioctl_ficlone(to, file),
        FileOpKind::Read { .. }
        | FileOpKind::Write { .. }
        | FileOpKind::Extents { .. }
        | FileOpKind::Call(_) => Err(Errno::INVAL),
    }
}

fn call(op: FileOp) -> FileDone {
    let FileOp { token, file, kind } = op;
    let result = match kind {
        FileOpKind::Call(call) => (call.0)(file.file()),
        _ => Err(Errno::INVAL),
    };
    let failed = |errno| FileError { errno: executed(errno), done: 0 };
    let result = result.map(FileOutcome::Called).map_err(failed);
    FileDone { token, result }
}

impl FallocateMode {
    pub(crate) fn flags(self) -> FallocateFlags {
        match self {
            Self::Allocate => FallocateFlags::KEEP_SIZE,
            Self::PunchHole => FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE,
            Self::ZeroRange => FallocateFlags::KEEP_SIZE | FallocateFlags::ZERO_RANGE,
        }
    }
}

/// Lists data and holes. A range whose state the file system does not report counts as data; beyond the end
/// of the file is a hole.
fn extents(file: &IoFile, at: u64, len: u64, count_max: usize) -> Result<Vec<FileExtent>, Errno> {
    let end = at.saturating_add(len);
    let mut list = Vec::new();
    let mut at = at;
    while at < end && list.len() < count_max {
        let data = seek(file, SeekFrom::Data(at), end)?;
        if data > at {
            list.push(FileExtent { at, len: data - at, data: false });
            at = data;
            continue;
        }
        let hole = seek(file, SeekFrom::Hole(at), end)?.max(at + 1);
        list.push(FileExtent { at, len: hole - at, data: true });
        at = hole;
    }
    Ok(list)
}

/// Returns where the next data or hole starts, but at most `end`.
fn seek(file: &IoFile, from: SeekFrom, end: u64) -> Result<u64, Errno> {
    match (rustix::fs::seek(file.file(), from), from) {
        (Ok(found), _) => Ok(found.min(end)),
        // There is no data or hole before the end of the file.
        (Err(Errno::NXIO), _) => Ok(end),
        // The file system or device does not support holes.
        (Err(Errno::INVAL | Errno::OPNOTSUPP), SeekFrom::Data(at)) => Ok(at),
        (Err(Errno::INVAL | Errno::OPNOTSUPP), _) => Ok(end),
        (Err(errno), _) => Err(errno),
    }
}

/// Turns a finished operation into its result for the submitter.
pub(crate) fn conclude(op: FileOp, result: Result<(), FileError>) -> FileDone {
    let FileOp { token, kind, .. } = op;
    let result = result.map(|()| match kind {
        FileOpKind::Read { bufs, .. } => FileOutcome::Read(bufs),
        FileOpKind::Write { data, .. } => FileOutcome::Wrote(data),
        _ => FileOutcome::Done,
    });
    FileDone { token, result }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "all of this is test code, where a panic is the verdict")]
mod tests {
    use std::cell::Cell;
    use std::fs::File;

    use super::*;

    const UNSURE: Result<usize, Errno> = Err(Errno::OPNOTSUPP);

    #[test]
    fn a_sync_that_fails_is_not_repeated_whatever_the_error_is() {
        let file = IoFile::new(File::open("/dev/null").unwrap(), false);
        // Nobody may take the failure for an operation that was not begun.
        let (io, unsupported) = (Errno::IO, Errno::OPNOTSUPP);
        for (errno, reported) in [(unsupported, unsupported), (NOT_BEGUN, io), (Errno::INTR, io), (io, io)] {
            let kind = FileOpKind::Sync { data_only: true };
            let mut op = FileOp { token: 0, file: file.clone(), kind };
            let attempt = advance(&mut op, &mut 0, Err(errno));
            let expected = FileError { errno: reported, done: 0 };
            assert!(matches!(attempt, Attempt::Finished(Err(error)) if error == expected), "{errno}");
        }
    }

    #[test]
    fn a_stable_write_that_was_executed_is_not_repeated() {
        for direct in [false, true] {
            let file = IoFile::new(File::open("/dev/null").unwrap(), direct);
            for errno in [NOT_BEGUN, Errno::INTR] {
                let attempt = |stable| {
                    let data = base::buffer::Bytes::copied_from(&[1; 512]).into();
                    let kind = FileOpKind::Write { at: 0, data, stable };
                    advance(&mut FileOp { token: 0, file: file.clone(), kind }, &mut 0, Err(errno))
                };
                let expected = FileError { errno: Errno::IO, done: 0 };
                assert!(
                    matches!(attempt(true), Attempt::Finished(Err(error)) if error == expected),
                    "{errno}"
                );
                assert!(matches!(attempt(false), Attempt::Again), "{errno}");
            }
        }
    }

    #[test]
    fn an_error_of_the_kernel_is_never_that_of_an_operation_that_was_not_begun() {
        for number in 1..=133 {
            assert_ne!(executed(Errno::from_raw_os_error(number)), NOT_BEGUN, "{number}");
        }
    }

    #[test]
    fn a_stable_write_that_is_not_supported_is_told_from_one_that_reports_a_failure() {
        let write = |known: &StableWrites, results: &[Result<usize, Errno>]| {
            let at = Cell::new(0);
            let dsync = || {
                at.set(at.get() + 1);
                results[at.get() - 1]
            };
            let result = known.write(dsync, || Ok(99));
            assert_eq!(at.get(), results.len(), "calls");
            result
        };
        // The first write gets a report.
        let known = StableWrites::default();
        assert_eq!(write(&known, &[UNSURE, Ok(1)]), UNSURE);
        assert_eq!(write(&known, &[Ok(1)]), Ok(1));
        assert_eq!(write(&known, &[UNSURE]), UNSURE);
        // The file supports no such write.
        let known = StableWrites::default();
        assert_eq!(write(&known, &[UNSURE, UNSURE]), Ok(99));
        assert_eq!(write(&known, &[]), Ok(99));
        assert!(known.may_lack_support());
        // A ring got the report, and its other write succeeds before the first one is tried again.
        let known = StableWrites::default();
        assert!(known.may_lack_support());
        known.succeeded();
        assert_eq!(write(&known, &[Ok(1)]), UNSURE);
        assert!(!known.may_lack_support());
    }
}
