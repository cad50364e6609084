//! The folder of a tape cartridge as one [`Store`], in the address space of
//! [`cartridge::io::FileId::address`].
//!
//! The files of the log are opened, and made, when the first operation needs them: one path lookup for each
//! segment, of which a cartridge has few. No call waits: all go through the file queue of the reactor.
//!
//! # Durability
//!
//! A flush makes durable every file that was written since it was last flushed, and the folder if a file was
//! made. The successes of flushes that are under way together count together, as those of
//! [`crate::store::FileStore`] do, and as there, every flush fails after one has failed: the kernel reports a
//! failed write-back once, on NFS also to a write, so that a write that fails there counts as a flush that
//! failed. The page cache then holds what the disk may not, so the label cannot be read any
//! more and the cartridge cannot be loaded again: a new process reads what is on the disk.

mod label;
mod log_file;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use base::buffer::DataList;
use cartridge::io::FileId;
use cartridge::label::Label;
use cartridge::profile::Profile;
use drivers::files::{
    Call, CallOutput, Errno, FallocateMode, FileError, FileOp, FileOpKind, FileOutcome, FileQueue, IoFile,
    ReadBufs,
};
use store::Store;
use store::api::{Capabilities, Completion, Failure, Fault, Op, OpAction, OpId, OpOutput};

use crate::errno_map;
use crate::geometry;
use crate::open::{FileIdentity, OpenError, identity, lock};
use crate::overlap::{Overlap, Ticket};
use crate::store::{BUF_LEN_MAX, IO_LEN_MAX};
use label::{label_of, open_label};
use log_file::{file_of, open_file};

const LABEL: &str = "label";

/// The longest segment of a log whose bytes all have addresses.
const SEGMENT_LEN_MAX: u64 = 2 << 40;

/// The folder of a cartridge, open and locked. It can be sent to the thread that will serve it.
#[derive(Debug)]
pub struct CartridgeFolder {
    path: PathBuf,
    folder: IoFile,
    label: IoFile,
    /// Writes may take the report of a failed write-back, as flushes do.
    reports_in_writes: bool,
    identity: FileIdentity,
    capacity: u64,
    barcode: String,
    profile: Profile,
    is_read_only: bool,
    /// Whether changes can be there that this process does not know to be durable.
    has_unknown_changes: bool,
}

/// A cartridge cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum CartridgeError {
    /// The folder cannot be opened.
    #[error("cannot open {path}")]
    Open {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The folder has no label.
    #[error("{path} holds no cartridge: it has no file \"label\" (targe tape create makes a cartridge)")]
    NoLabel {
        /// The folder.
        path: PathBuf,
    },
    /// Another process uses the cartridge.
    #[error("the cartridge {path} is in use by another process")]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The cartridge cannot be locked.
    #[error(transparent)]
    Lock(OpenError),
    /// The label is none that can be served.
    #[error("{path}: {why}")]
    Label {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl CartridgeFolder {
    /// Opens the folder of a cartridge and locks it: for one process that writes, or for several that read.
    ///
    /// # Errors
    /// [`CartridgeError`]
    pub fn open(path: &Path, is_read_only: bool) -> Result<Self, CartridgeError> {
        let (folder, label) = open_label(path, is_read_only)?;
        match lock(&label, path, is_read_only) {
            Ok(()) => {}
            Err(OpenError::InUse { path }) => return Err(CartridgeError::InUse { path }),
            Err(other) => return Err(CartridgeError::Lock(other)),
        }
        let found = label_of(path, &label)?;
        let io_failed = |source: io::Error| CartridgeError::Open { path: path.join(LABEL), source };
        if !is_read_only {
            // What an earlier process wrote or made, and was killed before it flushed, counts from here on.
            label.sync_all().and_then(|()| folder.sync_all()).map_err(io_failed)?;
        }
        let (identity, _) = FileIdentity::of_path(&path.join(LABEL)).map_err(io_failed)?;
        let Label { capacity, barcode, profile, .. } = found;
        Ok(Self {
            path: path.to_owned(),
            reports_in_writes: geometry::reports_in_writes(&label),
            folder: IoFile::sequential(folder),
            label: IoFile::sequential(label),
            identity,
            capacity,
            barcode,
            profile,
            is_read_only,
            has_unknown_changes: false,
        })
    }

    /// Takes a cartridge that another process has opened and locked: its label and its folder, whatever the
    /// path leads to. Nothing is made durable, because that process can go on.
    ///
    /// # Errors
    /// [`CartridgeError`]
    pub fn take(path: &Path, is_read_only: bool, [label, folder]: [File; 2]) -> Result<Self, CartridgeError> {
        let Label { capacity, barcode, profile, .. } = label_of(path, &label)?;
        let identity = identity(&label, path).map_err(CartridgeError::Lock)?;
        Ok(Self {
            path: path.to_owned(),
            reports_in_writes: geometry::reports_in_writes(&label),
            folder: IoFile::sequential(folder),
            label: IoFile::sequential(label),
            identity,
            capacity,
            barcode,
            profile,
            is_read_only,
            has_unknown_changes: true,
        })
    }

    /// Checks that a folder holds a cartridge that can be served, without locking it.
    ///
    /// # Errors
    /// [`CartridgeError`]
    pub fn check(path: &Path, is_read_only: bool) -> Result<(), CartridgeError> {
        let (_, label) = open_label(path, is_read_only)?;
        label_of(path, &label).map(drop)
    }

    /// Returns the identity of the label file, by which a cartridge is recognised.
    pub const fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Returns the capacity of the cartridge in bytes.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the bar code, or nothing.
    pub fn barcode(&self) -> &str {
        &self.barcode
    }

    /// Returns the generation.
    pub const fn profile(&self) -> Profile {
        self.profile
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The files of a cartridge, served on one reactor.
#[derive(Debug)]
pub struct CartridgeStore {
    folder: OpenFile,
    files: BTreeMap<FileId, OpenFile>,
    is_read_only: bool,
    queue: FileQueue,
    jobs: BTreeMap<u64, Job>,
    /// The operations that wait until a file is open, oldest first.
    opening: BTreeMap<FileId, Vec<Op>>,
    flushes: BTreeMap<OpId, Flush>,
    overlap: Overlap,
    /// Writes may take the report of a failed write-back, as flushes do.
    reports_in_writes: bool,
    token_next: u64,
    ready: VecDeque<Completion>,
    sync_failed: Option<Fault>,
    /// The last error of the system, for the log.
    last_error: Option<Errno>,
}

/// An open file, or the folder.
#[derive(Debug)]
struct OpenFile {
    file: IoFile,
    /// Counts the changes that were acknowledged.
    changes: u64,
    /// The changes that are durable.
    durable: u64,
}

impl OpenFile {
    const fn new(file: IoFile, changes: u64) -> Self {
        Self { file, changes, durable: 0 }
    }

    const fn is_dirty(&self) -> bool {
        self.changes != self.durable
    }
}

/// A file operation under way.
#[derive(Debug)]
enum Job {
    Open {
        file: FileId,
    },
    Read {
        id: OpId,
        len: usize,
    },
    Change {
        id: OpId,
        file: FileId,
        /// That of a write that may take the report of another one's failure.
        ticket: Option<Ticket>,
    },
    /// A part of a flush: of a file, or of the folder.
    Sync {
        id: OpId,
        file: Option<FileId>,
        covers: u64,
    },
}

#[derive(Debug)]
struct Flush {
    /// How many files are not flushed yet.
    left: usize,
    failed: Option<Fault>,
    ticket: Ticket,
}

impl CartridgeStore {
    /// Creates a store that serves a cartridge through `queue`.
    pub fn new(folder: CartridgeFolder, queue: FileQueue) -> Self {
        let CartridgeFolder { folder, label, reports_in_writes, is_read_only, has_unknown_changes, .. } =
            folder;
        let changes = u64::from(has_unknown_changes);
        Self {
            folder: OpenFile::new(folder, changes),
            files: BTreeMap::from([(FileId::Label, OpenFile::new(label, changes))]),
            opening: BTreeMap::new(),
            is_read_only,
            queue,
            jobs: BTreeMap::new(),
            flushes: BTreeMap::new(),
            overlap: Overlap::default(),
            reports_in_writes,
            token_next: 0,
            ready: VecDeque::new(),
            sync_failed: None,
            last_error: None,
        }
    }

    /// Returns other descriptors of the label, which holds the lock, and of the folder.
    ///
    /// # Errors
    /// The error of the system.
    pub fn try_clone_files(&self) -> io::Result<[File; 2]> {
        let label = self.files.get(&FileId::Label).ok_or(ErrorKind::NotFound)?;
        Ok([label.file.file().try_clone()?, self.folder.file.file().try_clone()?])
    }

    /// Returns whether the cartridge is served for reading only.
    pub const fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns whether a flush has failed, so that the cartridge cannot be loaded again.
    pub const fn is_flush_broken(&self) -> bool {
        self.sync_failed.is_some()
    }

    /// Returns and clears the system error behind the last failure, if there was one.
    pub const fn take_error(&mut self) -> Option<Errno> {
        self.last_error.take()
    }

    fn begin(&mut self, op: Op) -> Result<(), Failure> {
        match &op.action {
            OpAction::Read { at, len } => {
                if *len > IO_LEN_MAX {
                    return Err(Fault::Bug.into());
                }
                let (file, _) = FileId::of_address(*at);
                if let Some(fault) = self.sync_failed.filter(|_| file == FileId::Label) {
                    return Err(fault.into());
                }
            }
            OpAction::Write { .. } | OpAction::Deallocate { .. } => self.check_writable()?,
            _ => {}
        }
        match file_of(&op.action) {
            Some(number) => match self.files.get(&number) {
                Some(opened) => {
                    let file = opened.file.clone();
                    self.begin_on(number, file, op)
                }
                None => {
                    self.await_file(number, op);
                    Ok(())
                }
            },
            None if matches!(op.action, OpAction::Flush) => self.flush(op.id),
            None => Err(Fault::Unsupported.into()),
        }
    }

    /// Begins an operation on a file that is open.
    fn begin_on(&mut self, number: FileId, file: IoFile, op: Op) -> Result<(), Failure> {
        let id = op.id;
        match op.action {
            OpAction::Read { at, len } => {
                let (_, at) = FileId::of_address(at);
                let kind = FileOpKind::Read { at, len, bufs: self.buffers(len) };
                self.start(Job::Read { id, len }, file, kind);
            }
            OpAction::Write { at, data, .. } => {
                let (_, at) = FileId::of_address(at);
                let kind = FileOpKind::Write { at, data, stable: false };
                let ticket = self.reports_in_writes.then(|| self.overlap.begin());
                self.start(Job::Change { id, file: number, ticket }, file, kind);
            }
            OpAction::Deallocate { at, len } => {
                let (_, at) = FileId::of_address(at);
                let kind = FileOpKind::Fallocate { mode: FallocateMode::PunchHole, at, len };
                self.start(Job::Change { id, file: number, ticket: None }, file, kind);
            }
            _ => return Err(Fault::Bug.into()),
        }
        Ok(())
    }

    const fn check_writable(&self) -> Result<(), Fault> {
        if self.is_read_only { Err(Fault::ReadOnly) } else { Ok(()) }
    }

    fn buffers(&self, len: usize) -> ReadBufs {
        let mut bufs = ReadBufs::new();
        let mut left = len;
        while left > 0 {
            let piece = left.min(BUF_LEN_MAX);
            bufs.push(self.queue.pool().take(piece));
            left -= piece;
        }
        bufs
    }

    /// Keeps an operation until its file is open, and begins to open the file. It is made for a write.
    fn await_file(&mut self, number: FileId, op: Op) {
        let makes = matches!(op.action, OpAction::Write { .. });
        let waiting = self.opening.entry(number).or_default();
        waiting.push(op);
        if waiting.len() > 1 {
            return;
        }
        let is_read_only = self.is_read_only;
        let call = Call::new(move |folder| open_file(folder, number, is_read_only, makes));
        let folder = self.folder.file.clone();
        self.start(Job::Open { file: number }, folder, FileOpKind::Call(call));
    }

    /// Begins the operations that waited for a file.
    fn opened(&mut self, number: FileId, result: Result<FileOutcome, Failure>) {
        let waiting = self.opening.remove(&number).unwrap_or_default();
        match result {
            Ok(FileOutcome::Called(CallOutput::Opened { file, is_new })) => {
                if is_new {
                    self.folder.changes += 1;
                }
                // An earlier process may have left changes that are not durable.
                self.files.insert(number, OpenFile::new(file, u64::from(!is_new)));
                waiting.into_iter().for_each(|op| Store::submit(self, op));
            }
            Ok(FileOutcome::Called(CallOutput::Absent)) => {
                for op in waiting {
                    match op.action {
                        // Another operation, which does not make the file, came first.
                        OpAction::Write { .. } => self.await_file(number, op),
                        OpAction::Read { .. } => self.complete(op.id, Err(Fault::OutOfRange.into())),
                        _ => self.complete(op.id, Ok(OpOutput::Done(DataList::new()))),
                    }
                }
            }
            Ok(_) => waiting.into_iter().for_each(|op| self.complete(op.id, Err(Fault::Bug.into()))),
            Err(failure) => waiting.into_iter().for_each(|op| self.complete(op.id, Err(failure))),
        }
    }

    fn failure(&mut self, errno: Errno) -> Failure {
        self.last_error = Some(errno);
        errno_map::fault_of(errno).into()
    }

    fn flush(&mut self, id: OpId) -> Result<(), Failure> {
        if let Some(fault) = self.sync_failed {
            return Err(fault.into());
        }
        let dirty = |(number, opened): (&FileId, &OpenFile)| {
            opened.is_dirty().then(|| (Some(*number), opened.file.clone(), opened.changes))
        };
        let mut targets: Vec<_> = self.files.iter().filter_map(dirty).collect();
        if self.folder.is_dirty() {
            targets.push((None, self.folder.file.clone(), self.folder.changes));
        }
        if self.is_read_only {
            self.complete(id, Ok(OpOutput::Done(DataList::new())));
            return Ok(());
        }
        let ticket = self.overlap.begin();
        if targets.is_empty() {
            // The flushes under way cover all changes.
            self.flushed(id, ticket, None);
            return Ok(());
        }
        self.flushes.insert(id, Flush { left: targets.len(), failed: None, ticket });
        for (file, target, covers) in targets {
            let data_only = file.is_some();
            self.start(Job::Sync { id, file, covers }, target, FileOpKind::Sync { data_only });
        }
        Ok(())
    }

    fn start(&mut self, job: Job, file: IoFile, kind: FileOpKind) {
        let token = self.token_next;
        self.token_next = token.wrapping_add(1);
        self.jobs.insert(token, job);
        self.queue.submit(FileOp { token, file, kind });
    }

    fn complete(&mut self, id: OpId, result: Result<OpOutput, Failure>) {
        self.ready.push_back(Completion { id, result });
    }

    fn finish(&mut self, job: Job, result: Result<FileOutcome, FileError>) {
        let result = result.map_err(|error| self.failure(error.errno));
        match job {
            Job::Open { file } => self.opened(file, result),
            Job::Read { id, len } => {
                let result = result.and_then(|outcome| match outcome {
                    FileOutcome::Read(bufs) => Ok(OpOutput::Data(padded(bufs, len))),
                    _ => Err(Fault::Bug.into()),
                });
                self.complete(id, result);
            }
            Job::Change { id, file, ticket } => {
                if let Some(ticket) = ticket {
                    self.write_ended(ticket, result.as_ref().err().map(|failure| failure.fault));
                }
                if let Some(opened) = self.files.get_mut(&file) {
                    opened.changes += 1;
                }
                self.complete(
                    id,
                    result.map(|outcome| match outcome {
                        FileOutcome::Wrote(data) => OpOutput::Done(data),
                        _ => OpOutput::Done(DataList::new()),
                    }),
                );
            }
            Job::Sync { id, file, covers } => self.synced(id, file, covers, result.map(drop)),
        }
    }

    /// Ends a write or flush that may have taken the report of another one's failure, if it has failed.
    fn write_ended(&mut self, ticket: Ticket, failed: Option<Fault>) {
        match failed {
            // It was not begun, so it has taken no report.
            None | Some(Fault::NotSubmitted) => self.overlap.leave(ticket, &mut self.ready),
            Some(fault) => {
                self.sync_failed.get_or_insert(fault);
                self.overlap.fail(ticket, fault, &mut self.ready);
            }
        }
    }

    fn synced(&mut self, id: OpId, file: Option<FileId>, covers: u64, result: Result<(), Failure>) {
        let opened = match file {
            Some(number) => self.files.get_mut(&number),
            None => Some(&mut self.folder),
        };
        if let (Some(opened), Ok(())) = (opened, &result) {
            opened.durable = opened.durable.max(covers);
        }
        let failed = result.err().map(|failure| failure.fault);
        if let Some(fault) = failed.filter(|fault| *fault != Fault::NotSubmitted) {
            self.sync_failed.get_or_insert(fault);
        }
        let Entry::Occupied(mut entry) = self.flushes.entry(id) else { return };
        let flush = entry.get_mut();
        flush.left -= 1;
        flush.failed = flush.failed.filter(|fault| *fault != Fault::NotSubmitted).or(failed).or(flush.failed);
        if flush.left == 0 {
            let Flush { failed, ticket, .. } = entry.remove();
            self.flushed(id, ticket, failed);
        }
    }

    /// Completes a flush, as soon as its success counts.
    fn flushed(&mut self, id: OpId, ticket: Ticket, failed: Option<Fault>) {
        match failed {
            Some(fault) => {
                self.write_ended(ticket, Some(fault));
                self.complete(id, Err(fault.into()));
            }
            None => {
                let completion = Completion { id, result: Ok(OpOutput::Done(DataList::new())) };
                self.overlap.succeed(ticket, completion, &mut self.ready);
            }
        }
    }
}

impl Store for CartridgeStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // The address space, not the capacity of the cartridge.
            len: u64::MAX,
            logical_block_len: 1,
            preferred_block_len: 4096,
            io_len_max: IO_LEN_MAX,
            atomic_len_max: 0,
            read_only: self.is_read_only,
            volatile_cache: !self.is_read_only,
            thin: false,
            deallocated_reads_zero: false,
            zeroes_by_deallocating: false,
            deallocated_is_gone: false,
            rotational: false,
            crypto_erase: false,
        }
    }

    fn submit(&mut self, op: Op) {
        let id = op.id;
        if let Err(failure) = self.begin(op) {
            self.complete(id, Err(failure));
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(ready);
            }
            let done = self.queue.poll()?;
            if let Some(job) = self.jobs.remove(&done.token) {
                self.finish(job, done.result);
            }
        }
    }
}

/// Returns the bytes that were read, with zeros behind the end of the file.
fn padded(bufs: ReadBufs, len: usize) -> DataList {
    let mut list = DataList::new();
    let mut left = len;
    for mut buf in bufs {
        let wanted = left.min(BUF_LEN_MAX);
        buf.append_zeros(wanted.saturating_sub(buf.len()));
        left -= wanted;
        list.push(buf.freeze());
    }
    list
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use base::ether::FrameMachine;
    use base::state_machine::{MediumId, NoStreams};
    use drivers::config::Config;
    use drivers::reactor::Reactor;

    use super::*;

    struct NoConnections;

    impl FrameMachine for NoConnections {}

    impl NoStreams for NoConnections {}

    /// A folder with a blank cartridge, which is removed when this is dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("targe-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            let label = Label::blank(&cartridge::label::Blank {
                profile: Profile::Lto8,
                is_worm: false,
                barcode: String::new(),
                capacity: 64 << 20,
                partitions: Vec::new(),
                segment_len: 1 << 20,
                date: *b"20261125",
                entropy: [9; 48],
            });
            std::fs::write(path.join(LABEL), label.unwrap().file()).unwrap();
            Self(path)
        }

        fn serve(&self) -> (CartridgeStore, Reactor<NoConnections>) {
            let reactor = Reactor::new(&Config::default()).unwrap();
            let folder = CartridgeFolder::open(&self.0, false).unwrap();
            (CartridgeStore::new(folder, reactor.files().queue(MediumId(1))), reactor)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn wait(store: &mut CartridgeStore, reactor: &mut Reactor<NoConnections>) {
        loop {
            if let Some(done) = store.poll() {
                done.result.unwrap();
                return;
            }
            reactor.run_once(&mut NoConnections, Some(Duration::from_millis(50))).unwrap();
        }
    }

    #[test]
    fn a_flush_reaches_every_file_that_was_written_and_the_folder_of_a_new_one() {
        let scratch = Scratch::new("flush");
        let (mut store, mut reactor) = scratch.serve();
        let log = |segment| FileId::Log { partition: 0, segment };
        let write = |store: &mut CartridgeStore, reactor: &mut _, file: FileId| {
            let data = base::buffer::Bytes::copied_from(&[1; 512]).into();
            let at = file.address(0).unwrap();
            let durability = store::api::Durability::Cached;
            store.submit(Op { id: OpId(1), action: OpAction::Write { at, data, durability } });
            wait(store, reactor);
        };
        let flushed = |store: &mut CartridgeStore, reactor: &mut _| {
            store.submit(Op { id: OpId(2), action: OpAction::Flush });
            let files = store.jobs.values().map(|job| match job {
                Job::Sync { file, .. } => *file,
                other => panic!("{other:?}"),
            });
            let files: BTreeSet<Option<FileId>> = files.collect();
            wait(store, reactor);
            files
        };
        for file in [FileId::Label, log(0), log(1)] {
            write(&mut store, &mut reactor, file);
        }
        let all = [None, Some(FileId::Label), Some(log(0)), Some(log(1))];
        assert_eq!(flushed(&mut store, &mut reactor), BTreeSet::from(all));
        assert_eq!(flushed(&mut store, &mut reactor), BTreeSet::new());
        write(&mut store, &mut reactor, log(1));
        assert_eq!(flushed(&mut store, &mut reactor), BTreeSet::from([Some(log(1))]));
    }

    #[test]
    fn a_file_is_opened_by_another_thread_and_the_operations_on_it_wait_for_that() {
        let scratch = Scratch::new("opens");
        let (mut store, mut reactor) = scratch.serve();
        let log = scratch.0.join("p0-00000000.log");
        let at = FileId::Log { partition: 0, segment: 0 }.address(0).unwrap();
        let write = |byte| OpAction::Write {
            at,
            data: base::buffer::Bytes::copied_from(&[byte; 512]).into(),
            durability: store::api::Durability::Cached,
        };
        let submit = |store: &mut CartridgeStore, number, action| {
            store.submit(Op { id: OpId(number), action });
            assert!(!log.exists(), "the thread of the reactor made the file");
        };
        // The first of them does not make the file, the others do.
        submit(&mut store, 1, OpAction::Read { at, len: 512 });
        submit(&mut store, 2, write(1));
        submit(&mut store, 3, write(1));
        let mut results = BTreeMap::new();
        while results.len() < 3 {
            while let Some(done) = store.poll() {
                results.insert(done.id.0, done.result.map(drop).map_err(|failure| failure.fault));
            }
            reactor.run_once(&mut NoConnections, Some(Duration::from_millis(50))).unwrap();
        }
        assert_eq!(results, BTreeMap::from([(1, Err(Fault::OutOfRange)), (2, Ok(())), (3, Ok(()))]));
        assert_eq!(std::fs::read(&log).unwrap(), [1; 512]);
        assert!(store.opening.is_empty() && store.jobs.is_empty());
        assert!(store.folder.is_dirty(), "the folder has a new file");
    }

    #[test]
    fn flushes_under_way_together_fail_together() {
        for fails_first in [false, true] {
            let scratch = Scratch::new(if fails_first { "first" } else { "second" });
            let (mut store, _reactor) = scratch.serve();
            store.files.get_mut(&FileId::Label).unwrap().changes += 1;
            for number in [1, 2] {
                store.submit(Op { id: OpId(number), action: OpAction::Flush });
            }
            let mut jobs: Vec<Job> = std::mem::take(&mut store.jobs).into_values().collect();
            let count = jobs.len();
            assert_eq!(count, 2, "{jobs:?}");
            if fails_first {
                jobs.reverse();
            }
            for (at, job) in jobs.into_iter().enumerate() {
                let fails = matches!(job, Job::Sync { id: OpId(2), .. });
                let result =
                    if fails { Err(FileError { errno: Errno::IO, done: 0 }) } else { Ok(FileOutcome::Done) };
                store.finish(job, result);
                assert_eq!(store.ready.is_empty(), !fails && at + 1 < count, "a success that does not count");
            }
            let results: Vec<_> = store.ready.drain(..).map(|done| done.result.unwrap_err().fault).collect();
            assert_eq!(results, [Fault::Medium; 2]);
        }
    }

    #[test]
    fn where_writes_take_reports_one_that_fails_is_a_flush_that_failed() {
        for takes_reports in [false, true] {
            let scratch = Scratch::new(if takes_reports { "takes" } else { "keeps" });
            let (mut store, _reactor) = scratch.serve();
            store.reports_in_writes = takes_reports;
            store.files.get_mut(&FileId::Label).unwrap().changes += 1;
            store.submit(Op { id: OpId(1), action: OpAction::Flush });
            let data = base::buffer::Bytes::copied_from(&[1; 512]).into();
            let at = FileId::Label.address(0).unwrap();
            let durability = store::api::Durability::Cached;
            store.submit(Op { id: OpId(2), action: OpAction::Write { at, data, durability } });
            let mut jobs = std::mem::take(&mut store.jobs).into_values();
            let (sync, change) = (jobs.next().unwrap(), jobs.next().unwrap());
            store.finish(sync, Ok(FileOutcome::Done));
            assert_eq!(store.ready.is_empty(), takes_reports, "a success that does not count");
            store.finish(change, Err(FileError { errno: Errno::NOSPC, done: 0 }));
            let results = store.ready.drain(..).map(|done| (done.id.0, done.result.is_ok()));
            assert_eq!(BTreeSet::from_iter(results), BTreeSet::from([(1, !takes_reports), (2, false)]));
            assert_eq!(store.is_flush_broken(), takes_reports);
        }
    }

    #[test]
    fn a_cartridge_whose_flush_failed_is_not_read_from_the_page_cache() {
        let scratch = Scratch::new("cartridge");
        let (mut store, _reactor) = scratch.serve();
        let ticket = store.overlap.begin();
        store.flushes.insert(OpId(1), Flush { left: 1, failed: None, ticket });
        store.synced(OpId(1), Some(FileId::Label), 1, Err(Fault::Medium.into()));
        assert!(store.is_flush_broken());
        let read = OpAction::Read { at: FileId::Label.address(0).unwrap(), len: 512 };
        store.submit(Op { id: OpId(2), action: read });
        store.submit(Op { id: OpId(3), action: OpAction::Flush });
        for id in [1, 2, 3] {
            let done = store.poll().unwrap();
            assert_eq!(done.id, OpId(id));
            assert_eq!(done.result.unwrap_err().fault, Fault::Medium);
        }
    }
}
