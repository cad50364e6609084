//! A file or block device as a [`Store`].
//!
//! # Durability
//!
//! A flush is `fdatasync`. The kernel reports a failed write-back once, forgets it, and lets the next
//! `fdatasync` succeed although the data is lost. So after one flush has failed, every later flush of this
//! store fails too, until the operator accepts the loss ([`FileStore::accept_lost_writes`]): the caller may
//! retry a failed flush, and must not get success for data that is lost. The owner of the store keeps the
//! failure for the processes that serve the medium later ([`Opened::set_lost_writes`]).
//!
//! A stable write is `RWF_DSYNC`: a write, and then what a flush does. If it fails in a way that may have
//! consumed the report of another write's failure, later flushes fail as well. That includes a stable write
//! past the page cache (`O_DIRECT`): it flushes the cache of the device, which reports a failure once too.
//!
//! A stable write that lacks space, or permission, fails before it syncs as a rule. The store tells that from
//! a report by a second open file description of the medium (`Opened::verifier`), to which the kernel reports
//! every failed write-back of a file once more: a sync of that description succeeds if nothing has failed.
//!
//! The report may also be that of a flush or stable write that is under way at the same time and succeeds
//! without it. So the successes of these count together, see `overlap.rs`.
//!
//! On NFS every write through the page cache may take such a report. So each one that fails there counts as a
//! flush that failed.

mod durable;
mod job;
mod loss;
mod size_meter;
mod space_meter;

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

use base::buffer::{Bytes, DataList, PAGE, Pool};
use drivers::files::{
    Errno, FallocateMode, FileError, FileOp, FileOpKind, FileOutcome, FileQueue, IoFile, NOT_BEGUN, ReadBufs,
    ReleasedFile,
};
use store::Store;
use store::api::{
    Capabilities, Completion, Durability, Extent, ExtentState, Failure, Fault, Op, OpAction, OpId, OpOutput,
    Space,
};

use crate::errno_map;
pub use crate::geometry::FileSpace;
use crate::open::{Allocation, Kind, Opened};
use crate::overlap::Overlap;
use job::{Job, Jobs, Work, ZeroWay};
pub use size_meter::SizeMeter;
use space_meter::SpaceMeter;

/// The longest single read or write: the largest transfer that initiators in use request.
pub(crate) const IO_LEN_MAX: usize = 16 << 20;

/// The largest buffer for reads: the largest that the pool keeps.
pub(crate) const BUF_LEN_MAX: usize = 1 << 20;

/// Zeros are written in pieces of this size where the system cannot zero a range itself, so that other I/O is
/// not delayed.
const ZERO_PIECE: usize = 4 << 20;

/// A file or block device, served on one reactor.
#[derive(Debug)]
pub struct FileStore {
    file: IoFile,
    kind: Kind,
    queue: FileQueue,
    profile: Capabilities,
    memory_alignment: usize,
    allocation: Allocation,
    jobs: Jobs,
    ready: VecDeque<Completion>,
    /// Acknowledged changes may not be durable yet. True at first: an earlier process may have left some.
    unsynced: bool,
    /// The operations under way that may take the report of a failed write-back: flushes and stable writes.
    overlap: Overlap,
    /// Another open file description of the medium, with reports of its own. The system may refuse one.
    verifier: Option<IoFile>,
    /// So may the other writes through the page cache.
    reports_in_writes: bool,
    /// Acknowledged writes may be lost: a flush, or what counts as one, has failed.
    lost: Option<Fault>,
    /// The last error of the system, for the log.
    last_error: Option<Errno>,
    /// Whether a read ended before the medium does.
    cut: bool,
    zeros: Option<Bytes>,
    space: SpaceMeter,
}

impl FileStore {
    /// Returns another descriptor of the file or device, with its lock.
    ///
    /// # Errors
    /// The error of the system.
    pub fn try_clone_file(&self) -> std::io::Result<File> {
        self.file.file().try_clone()
    }

    /// Creates a store that serves an open medium through `queue`.
    pub fn new(opened: Opened, queue: FileQueue) -> Self {
        let Opened {
            file,
            kind,
            layout,
            size,
            space,
            allocation,
            read_only,
            write_cache,
            lost_writes,
            verifier,
            ..
        } = opened;
        let thin = layout.can_deallocate && allocation == Allocation::Sparse;
        let profile = Capabilities {
            len: size - size % u64::from(layout.logical_block_len),
            logical_block_len: layout.logical_block_len,
            preferred_block_len: layout.preferred_block_len,
            io_len_max: IO_LEN_MAX,
            // No file system and no disk reports how much of a write is atomic.
            atomic_len_max: 0,
            read_only,
            volatile_cache: write_cache && !read_only,
            thin,
            // A discard guarantees nothing; a hole in a file reads as zeros.
            deallocated_reads_zero: thin && kind == Kind::File,
            zeroes_by_deallocating: thin && kind == Kind::File,
            deallocated_is_gone: thin && kind == Kind::File,
            rotational: layout.rotational,
            crypto_erase: false,
        };
        Self {
            file,
            kind,
            queue,
            profile,
            memory_alignment: usize::try_from(layout.memory_alignment).unwrap_or(PAGE),
            allocation,
            jobs: Jobs::default(),
            ready: VecDeque::new(),
            unsynced: true,
            overlap: Overlap::default(),
            verifier,
            reports_in_writes: layout.reports_in_writes,
            lost: lost_writes.map(|_| Fault::Medium),
            last_error: None,
            cut: false,
            zeros: None,
            space: SpaceMeter::new(space),
        }
    }

    /// Serves the file or device with the size that it has now, see [`Self::size_meter`]. Returns whether it
    /// changed.
    pub fn adopt_size(&mut self, size: u64) -> bool {
        let len = size - size % u64::from(self.profile.logical_block_len);
        let changed = len != self.profile.len;
        self.profile.len = len;
        self.cut = false;
        // The length may not be durable yet.
        self.unsynced |= changed;
        changed
    }

    /// Sets whether writes may be acknowledged before they are durable, from now on, including writes under
    /// way. Writes that were acknowledged earlier are not made durable by this.
    pub const fn set_write_cache(&mut self, write_cache: bool) {
        self.profile.volatile_cache = write_cache && !self.profile.read_only;
    }

    /// Returns what measures the file or device on another thread. It does not keep it open.
    pub fn size_meter(&self) -> SizeMeter {
        SizeMeter(self.file.downgrade())
    }

    /// Makes another file have the contents that this file has, in the same storage (a reflink). The
    /// completion has this identifier. The caller waits for the completions of all changes before, and
    /// submits none until this is complete.
    pub fn clone_to(&mut self, id: OpId, to: Arc<ReleasedFile>) {
        match (self.kind, self.lost) {
            (Kind::File, None) => self.submit(Job { id, work: Work::Clone }, FileOpKind::CloneTo { to }),
            (Kind::File, Some(fault)) => self.complete(id, Err(fault.into())),
            (Kind::Block, _) => self.complete(id, Err(Fault::Unsupported.into())),
        }
    }

    /// Returns whether a read found the end of the file before the end of the medium: the file was truncated.
    pub const fn is_truncated(&self) -> bool {
        self.cut
    }

    /// Returns the system error of the last failure, if there was one since [`Self::take_error`].
    pub const fn last_error(&self) -> Option<Errno> {
        self.last_error
    }

    /// Returns and clears the system error behind the last failure, if there was one.
    pub const fn take_error(&mut self) -> Option<Errno> {
        self.last_error.take()
    }

    fn begin(&mut self, op: Op) -> Result<(), Failure> {
        let id = op.id;
        match op.action {
            OpAction::Read { at, len } => {
                self.check(at, wide(len), true)?;
                self.read(id, at, len);
            }
            OpAction::Write { at, data, durability } => {
                self.check_writable()?;
                self.check(at, wide(data.len()), true)?;
                self.write(id, at, data, durability);
            }
            OpAction::Flush => self.flush(id)?,
            OpAction::CryptoErase | OpAction::Command(_) | OpAction::Reset => {
                return Err(Fault::Unsupported.into());
            }
            OpAction::Deallocate { at, len } => {
                self.check_writable()?;
                self.check(at, len, false)?;
                self.deallocate(id, at, len)?;
            }
            OpAction::WriteZeroes { at, len, may_deallocate, durability } => {
                self.check_writable()?;
                self.check(at, len, false)?;
                let stable = self.is_stable(durability);
                let way = self.first_zero_way(may_deallocate);
                self.zero(id, at, len, way, stable);
            }
            OpAction::MapStatus { at, len, count_max } => {
                self.check(at, len, false)?;
                self.extents(id, at, len, count_max);
            }
        }
        Ok(())
    }

    /// Returns whether the storage of the medium is known.
    fn has_space(&self) -> bool {
        self.kind == Kind::File && self.profile.thin
    }

    fn check(&self, at: u64, len: u64, bounded: bool) -> Result<(), Fault> {
        let granule = u64::from(self.profile.logical_block_len);
        if at.checked_add(len).is_none_or(|end| end > self.profile.len) {
            return Err(Fault::OutOfRange);
        }
        let misshapen = !at.is_multiple_of(granule) || !len.is_multiple_of(granule);
        if misshapen || (bounded && len > wide(IO_LEN_MAX)) { Err(Fault::Bug) } else { Ok(()) }
    }

    fn check_writable(&self) -> Result<(), Fault> {
        if self.profile.read_only { Err(Fault::ReadOnly) } else { Ok(()) }
    }

    /// Returns whether a write must be durable when it is acknowledged: without a write cache every write is.
    fn is_stable(&self, durability: Durability) -> bool {
        durability == Durability::Stable || !self.profile.volatile_cache
    }

    fn read(&mut self, id: OpId, at: u64, len: usize) {
        if len == 0 {
            return self.complete(id, Ok(OpOutput::Data(DataList::new())));
        }
        let mut bufs = ReadBufs::new();
        let mut left = len;
        while left > 0 {
            let piece = left.min(BUF_LEN_MAX);
            bufs.push(self.queue.pool().take(piece));
            left -= piece;
        }
        self.submit(Job { id, work: Work::Read { at, len } }, FileOpKind::Read { at, len, bufs });
    }

    fn write(&mut self, id: OpId, at: u64, data: DataList, durability: Durability) {
        if data.is_empty() {
            return self.complete(id, Ok(OpOutput::Done(data)));
        }
        let stable = self.is_stable(durability);
        let bounced = self.needs_bounce(&data).then(|| bounce(&data, self.queue.pool()));
        let (data, original) = match bounced {
            Some(copy) => (copy, Some(data)),
            None => (data, None),
        };
        // Without a verifier, a stable write that fails for lack of space is tried again, see `write_failed`.
        let is_tried_again = stable && self.verifier.is_none() && !self.reports_in_writes;
        let again = is_tried_again.then(|| data.clone());
        let ticket = (stable || self.reports_in_writes).then(|| self.overlap.begin());
        let work = Work::Write { at, stable, ticket, original, again, first_errno: None };
        self.submit(Job { id, work }, FileOpKind::Write { at, data, stable });
    }

    /// Returns whether `data` is misaligned such that `O_DIRECT` would reject it.
    fn needs_bounce(&self, data: &DataList) -> bool {
        let granule = usize::try_from(self.profile.logical_block_len).unwrap_or(PAGE);
        self.file.direct()
            && data.parts().iter().any(|part| {
                part.as_ptr().align_offset(self.memory_alignment) != 0 || part.len() % granule != 0
            })
    }

    fn deallocate(&mut self, id: OpId, at: u64, len: u64) -> Result<(), Failure> {
        if !self.profile.thin {
            return Err(Fault::Unsupported.into());
        }
        if len == 0 {
            self.complete(id, Ok(OpOutput::Done(DataList::new())));
            return Ok(());
        }
        let kind = match self.kind {
            Kind::File => FileOpKind::Fallocate { mode: FallocateMode::PunchHole, at, len },
            Kind::Block => FileOpKind::Discard { at, len },
        };
        let stable = !self.profile.volatile_cache;
        self.submit(Job { id, work: Work::Deallocate { stable } }, kind);
        Ok(())
    }

    fn first_zero_way(&self, may_deallocate: bool) -> ZeroWay {
        match self.kind {
            _ if may_deallocate && self.profile.thin => ZeroWay::Punch,
            Kind::File => ZeroWay::ZeroRange,
            Kind::Block => ZeroWay::ZeroOut,
        }
    }

    fn zero(&mut self, id: OpId, at: u64, len: u64, way: ZeroWay, stable: bool) {
        if len == 0 {
            return self.complete(id, Ok(OpOutput::Done(DataList::new())));
        }
        let kind = match way {
            ZeroWay::Punch => FileOpKind::Fallocate { mode: FallocateMode::PunchHole, at, len },
            ZeroWay::ZeroRange => FileOpKind::Fallocate { mode: FallocateMode::ZeroRange, at, len },
            ZeroWay::ZeroOut => FileOpKind::ZeroOut { at, len },
            ZeroWay::Write => FileOpKind::Write { at, data: self.zeros(len), stable: false },
        };
        let is_reporter = way == ZeroWay::Write && self.reports_in_writes;
        let ticket = is_reporter.then(|| self.overlap.begin());
        self.submit(Job { id, work: Work::Zero { at, len, way, stable, ticket } }, kind);
    }

    /// Returns up to [`ZERO_PIECE`] bytes of zeros.
    fn zeros(&mut self, len: u64) -> DataList {
        let zeros = self.zeros.get_or_insert_with(|| {
            let mut buf = self.queue.pool().take(BUF_LEN_MAX);
            buf.append_zeros(BUF_LEN_MAX);
            buf.freeze()
        });
        let mut list = DataList::new();
        let mut left = usize::try_from(len).unwrap_or(ZERO_PIECE).min(ZERO_PIECE);
        while left > 0 {
            let part = zeros.slice(0, left);
            left -= part.len();
            list.push(part);
        }
        list
    }

    fn extents(&mut self, id: OpId, at: u64, len: u64, count_max: usize) {
        if len == 0 || count_max == 0 {
            return self.complete(id, Ok(OpOutput::MapStatus(Vec::new())));
        }
        if self.kind == Kind::Block {
            let all = Extent { at, len, state: ExtentState::Mapped };
            return self.complete(id, Ok(OpOutput::MapStatus(vec![all])));
        }
        self.submit(Job { id, work: Work::Extents }, FileOpKind::Extents { at, len, count_max });
    }

    fn submit(&mut self, job: Job, kind: FileOpKind) {
        let token = self.jobs.insert(job);
        self.queue.submit(FileOp { token, file: self.file.clone(), kind });
    }

    fn complete(&mut self, id: OpId, result: Result<OpOutput, Failure>) {
        self.ready.push_back(Completion { id, result });
    }

    /// Handles the result of one file operation. The job may continue with another operation.
    fn finish(&mut self, job: Job, result: Result<FileOutcome, FileError>) {
        let Job { id, work } = job;
        if let Err(error) = &result {
            self.last_error = Some(error.errno);
        }
        if self.has_space() && work.changes_storage() {
            self.space.changed(&self.queue, &self.file, result.is_err());
        }
        match work {
            Work::Read { at, len } => {
                let result = read_result(at, len, result);
                self.cut |= matches!(result, Err(Failure { fault: Fault::Gone, at: Some(_) }));
                self.complete(id, result);
            }
            Work::Write { at, stable, ticket, original, again, first_errno } => match result {
                Ok(FileOutcome::Wrote(_)) if first_errno.is_some() => {
                    // There is space now, so the first attempt failed to make data durable, of this write or
                    // of another.
                    let fault = first_errno.map_or(Fault::NoSpace, errno_map::fault_of);
                    self.lose(ticket, fault);
                    self.complete(id, Err(fault.into()));
                }
                // The write cache was disabled while the write was under way.
                Ok(FileOutcome::Wrote(_)) if !stable && !self.profile.volatile_cache => {
                    self.leave(ticket);
                    self.changed(id, true);
                }
                Ok(FileOutcome::Wrote(data)) => {
                    drop(again);
                    self.unsynced |= !stable;
                    let data = match original {
                        Some(original) => {
                            data.into_parts().for_each(|part| self.queue.pool().recycle(part));
                            original
                        }
                        None => data,
                    };
                    if stable {
                        self.succeed(ticket, id, data);
                    } else {
                        self.leave(ticket);
                        self.succeed(None, id, data);
                    }
                }
                Ok(_) => {
                    self.leave(ticket);
                    self.complete(id, Err(Fault::Bug.into()));
                }
                Err(error) => {
                    let again = again.filter(|_| first_errno.is_none());
                    self.write_failed((id, at, stable), (ticket, again), error);
                }
            },
            Work::Sync(ticket) => match result {
                Ok(_) => self.succeed(Some(ticket), id, DataList::new()),
                Err(error) => self.sync_failed(id, ticket, errno_map::sync_fault_of(error.errno)),
            },
            Work::Verify { ticket, failure } => self.verified(id, ticket, failure, result),
            Work::Deallocate { stable } => match result {
                Ok(_) => self.changed(id, stable),
                Err(error) => self.complete(id, Err(errno_map::fault_of(error.errno).into())),
            },
            Work::Zero { at, len, way, stable, ticket } => {
                match &result {
                    Err(error) if ticket.is_some() && error.errno != NOT_BEGUN => {
                        self.lose(ticket, errno_map::fault_of(error.errno));
                    }
                    _ => self.leave(ticket),
                }
                self.zero_finished(id, (at, len), way, stable, result);
            }
            Work::Clone => {
                let done = result.map(|_| OpOutput::Done(DataList::new()));
                self.complete(id, done.map_err(|error| errno_map::fault_of(error.errno).into()));
            }
            Work::Extents => {
                let result = self.extents_result(result);
                self.complete(id, result);
            }
        }
    }

    fn zero_finished(
        &mut self,
        id: OpId,
        (at, len): (u64, u64),
        way: ZeroWay,
        stable: bool,
        result: Result<FileOutcome, FileError>,
    ) {
        match result {
            Ok(FileOutcome::Wrote(data)) => {
                let written = wide(data.len());
                drop(data);
                if written < len {
                    self.zero(id, at.saturating_add(written), len - written, way, stable);
                } else {
                    self.zeros = None;
                    self.changed(id, stable);
                }
            }
            Ok(_) => self.changed(id, stable),
            Err(error) => match (errno_map::fault_of(error.errno), way.next(self.kind)) {
                (Fault::Unsupported, Some(next)) => self.zero(id, at, len, next, stable),
                (fault, _) => self.complete(id, Err(fault.into())),
            },
        }
    }

    fn extents_result(&self, result: Result<FileOutcome, FileError>) -> Result<OpOutput, Failure> {
        let hole = match self.allocation {
            Allocation::Sparse => ExtentState::Hole,
            Allocation::Full => ExtentState::Anchored,
        };
        match result {
            Ok(FileOutcome::Extents(list)) => Ok(OpOutput::MapStatus(
                list.into_iter()
                    .map(|it| Extent {
                        at: it.at,
                        len: it.len,
                        state: if it.data { ExtentState::Mapped } else { hole },
                    })
                    .collect(),
            )),
            Ok(_) => Err(Fault::Bug.into()),
            Err(error) => Err(errno_map::fault_of(error.errno).into()),
        }
    }
}

impl Store for FileStore {
    fn capabilities(&self) -> Capabilities {
        self.profile.clone()
    }

    /// Returns the numbers that the file system last reported for a file, and asks for new ones, which a
    /// thread measures: the file system may make it wait. A device does not report the storage behind it.
    fn space(&self) -> Option<Space> {
        if !self.has_space() {
            return None;
        }
        self.space.measure(&self.queue, &self.file);
        let (used, free) = self.space.last()?;
        let used = used.min(self.profile.len);
        Some(Space { used, available: free.min(self.profile.len - used), shared: true })
    }

    fn submit(&mut self, op: Op) {
        let id = op.id;
        if let Err(failure) = self.begin(op) {
            self.complete(id, Err(failure));
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        loop {
            if let Some(completion) = self.ready.pop_front() {
                return Some(completion);
            }
            let done = self.queue.poll()?;
            if done.token == space_meter::TOKEN {
                self.space.measured(done.result);
            } else if done.token == loss::DRAIN_TOKEN {
                // What it reported is accepted.
            } else if let Some(job) = self.jobs.remove(done.token) {
                self.finish(job, done.result);
            }
        }
    }
}

fn read_result(at: u64, len: usize, result: Result<FileOutcome, FileError>) -> Result<OpOutput, Failure> {
    match result {
        Ok(FileOutcome::Read(bufs)) => {
            let mut data = DataList::new();
            for buf in bufs {
                if !buf.is_empty() {
                    data.push(buf.freeze());
                }
            }
            if data.len() == len {
                Ok(OpOutput::Data(data))
            } else {
                // The file ends before the medium does: it was truncated.
                Err(Failure { fault: Fault::Gone, at: Some(at.saturating_add(wide(data.len()))) })
            }
        }
        Ok(_) => Err(Fault::Bug.into()),
        Err(error) => {
            let fault = errno_map::fault_of(error.errno);
            let at = (fault == Fault::Medium).then(|| at.saturating_add(wide(error.done)));
            Err(Failure { fault, at })
        }
    }
}

/// Copies `data` into buffers with the alignment that `O_DIRECT` requires.
fn bounce(data: &DataList, pool: &Pool) -> DataList {
    let mut copy = DataList::new();
    let mut at = 0;
    while at < data.len() {
        let len = (data.len() - at).min(BUF_LEN_MAX);
        let mut buf = pool.take(len);
        buf.append_zeros(len);
        at += data.copy_to(at, buf.filled_mut());
        copy.push(buf.freeze());
    }
    copy
}

/// Converts a length. `usize` has at most 64 bits.
fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
