//! What a file does to the thread of its reactor, and what a disk that hangs does to other disks.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::buffer::{Buf, Bytes};
use base::state_machine::MediumId;
use drivers::config::{Config, EngineChoice};
use drivers::files::{
    Call, CallOutput, FallocateMode, FileOp, FileOpKind, FileOutcome, FileQueue, IoFile, ReadBufs,
};
use drivers::reactor::Reactor;

use crate::parrot::Parrot;
use crate::rig::HANG;

const LEN: usize = 64 << 10;

/// A file on the file system of this source, removed when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    /// Makes a file of [`LEN`] bytes, which are in the page cache. Returns nothing if the file system is in
    /// memory.
    fn new(name: &str) -> Option<(Self, IoFile)> {
        let (thread, process) = (std::thread::current(), std::process::id());
        let name = format!("{name}-{process}-{}", thread.name().unwrap_or_default().replace("::", "-"));
        let scratch = Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&scratch.0);
        let file = file.unwrap();
        std::fs::write(&scratch.0, vec![1; LEN]).unwrap();
        file.sync_all().unwrap();
        /// `TMPFS_MAGIC` of linux/magic.h.
        const TMPFS: u64 = 0x0102_1994;
        if u64::try_from(rustix::fs::fstatfs(&file).unwrap().f_type) == Ok(TMPFS) {
            eprintln!("skipped: {} is in memory", scratch.0.display());
            return None;
        }
        Some((scratch, IoFile::new(file, false)))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn start(engine: EngineChoice) -> Option<Reactor<Parrot>> {
    match Reactor::new(&Config { engine, ..Config::default() }) {
        Ok(reactor) => Some(reactor),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn submit(queue: &FileQueue, token: u64, file: &IoFile, kind: FileOpKind) {
    queue.submit(FileOp { token, file: file.clone(), kind });
}

fn read_kind() -> FileOpKind {
    FileOpKind::Read { at: 0, len: LEN, bufs: ReadBufs::from_iter([Buf::with_capacity(LEN)]) }
}

/// Runs the reactor until `queue` has a result. Returns its token, and that of a success.
fn next(reactor: &mut Reactor<Parrot>, queue: &FileQueue) -> (u64, FileOutcome) {
    let deadline = Instant::now() + HANG;
    loop {
        if let Some(done) = queue.poll() {
            return (done.token, done.result.unwrap());
        }
        assert!(Instant::now() < deadline, "no result");
        reactor.run_once(&mut Parrot::default(), Some(Duration::from_millis(20))).unwrap();
    }
}

/// No call that can wait for the disk is made by the thread that submits an operation, which is that of the
/// reactor.
pub(crate) fn leaves_every_call_that_can_wait_to_others(engine: EngineChoice) {
    let Some((_scratch, file)) = Scratch::new("waits") else { return };
    let Some(mut reactor) = start(engine) else { return };
    let queue = reactor.files().queue(MediumId(0));
    let write = |len: usize, stable| {
        let data = Bytes::copied_from(&vec![2; len]).into();
        FileOpKind::Write { at: 0, data, stable }
    };
    let kinds: [(&str, FileOpKind); 6] = [
        ("short write", write(512, false)),
        ("long write", write(LEN, false)),
        ("stable write", write(512, true)),
        ("sync", FileOpKind::Sync { data_only: true }),
        ("hole", FileOpKind::Fallocate { mode: FallocateMode::PunchHole, at: 4096, len: 4096 }),
        ("extents", FileOpKind::Extents { at: 0, len: 1 << 20, count_max: 8 }),
    ];
    for (token, (name, kind)) in (1..).zip(kinds) {
        submit(&queue, token, &file, kind);
        assert!(queue.poll().is_none(), "{name}: done by the thread that submitted it");
        assert_eq!(next(&mut reactor, &queue).0, token, "{name}");
    }
    assert_eq!(reactor.stats().file_inline, 0);
    assert_eq!(reactor.stats().file_ring, 0, "the workers of a ring are shared by files");
}

/// A read is done at once if all of it is in the page cache.
pub(crate) fn reads_at_once_only_what_is_in_memory(engine: EngineChoice) {
    let Some((_scratch, file)) = Scratch::new("resident") else { return };
    let Some(mut reactor) = start(engine) else { return };
    let queue = reactor.files().queue(MediumId(0));
    // The first operation of a drain, which the reactor does not leave to the ring.
    let _ = reactor.run_once(&mut Parrot::default(), Some(Duration::ZERO));
    submit(&queue, 1, &file, read_kind());
    match queue.poll() {
        Some(done) => assert!(matches!(done.result, Ok(FileOutcome::Read(_))), "{:?}", done.result),
        None => return eprintln!("skipped: this kernel does not report what is in memory"),
    }
    rustix::fs::fadvise(file.file(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let _ = reactor.run_once(&mut Parrot::default(), Some(Duration::ZERO));
    submit(&queue, 2, &file, read_kind());
    assert!(queue.poll().is_none(), "the submitting thread read what was not in memory");
    let (token, outcome) = next(&mut reactor, &queue);
    assert_eq!(token, 2);
    assert!(matches!(outcome, FileOutcome::Read(bufs) if bufs[0].filled() == vec![1; LEN]));
    assert_eq!(reactor.stats().file_threads, 1);
}

/// Submits operations that end when the returned sender is dropped.
fn hang(queue: &FileQueue, file: &IoFile, count: u64) -> Sender<()> {
    let (go_on, held) = channel::<()>();
    let held: Arc<Mutex<Receiver<()>>> = Arc::new(Mutex::new(held));
    for token in 0..count {
        let held = Arc::clone(&held);
        let call = Call::new(move |_| {
            let _ = held.lock().unwrap().recv();
            Ok(CallOutput::Absent)
        });
        submit(queue, token, file, FileOpKind::Call(call));
    }
    go_on
}

/// However many operations of a disk do not end: those of another disk do, and the reads and writes of the
/// same disk too.
pub(crate) fn a_disk_that_hangs_takes_no_workers_of_another(engine: EngineChoice) {
    let Some((_scratch, file)) = Scratch::new("hangs") else { return };
    let Some(mut reactor) = start(engine) else { return };
    let (hung, healthy) = (reactor.files().queue(MediumId(0)), reactor.files().queue(MediumId(1)));
    let go_on = hang(&hung, &file, 200);
    rustix::fs::fadvise(file.file(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    for queue in [&healthy, &hung] {
        let data = Bytes::copied_from(&[3; 512]).into();
        submit(queue, 1001, &file, FileOpKind::Write { at: 0, data, stable: false });
        assert_eq!(next(&mut reactor, queue).0, 1001);
        let data = Bytes::copied_from(&[3; 512]).into();
        submit(queue, 1002, &file, FileOpKind::Write { at: 0, data, stable: true });
        assert_eq!(next(&mut reactor, queue).0, 1002);
    }
    submit(&healthy, 1003, &file, FileOpKind::Sync { data_only: true });
    assert_eq!(next(&mut reactor, &healthy).0, 1003);
    drop(go_on);
    let mut ended: Vec<u64> = (0..200).map(|_| next(&mut reactor, &hung).0).collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..200).collect::<Vec<_>>());
}

/// All writes of one burst reach the file, more than one thread is given in one piece.
pub(crate) fn writes_a_burst_completely(engine: EngineChoice) {
    let Some((scratch, file)) = Scratch::new("burst") else { return };
    let Some(mut reactor) = start(engine) else { return };
    let queue = reactor.files().queue(MediumId(0));
    for token in 0..500_u64 {
        let data = Bytes::copied_from(&token.to_le_bytes()).into();
        submit(&queue, token, &file, FileOpKind::Write { at: token * 8, data, stable: false });
    }
    let mut ended: Vec<u64> = (0..500).map(|_| next(&mut reactor, &queue).0).collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..500).collect::<Vec<_>>());
    let all = std::fs::read(&scratch.0).unwrap();
    assert!((0..500_u64).zip(all.chunks(8)).all(|(token, bytes)| bytes == token.to_le_bytes()));
}

/// A reactor that stops does not wait for a disk for ever.
pub(crate) fn stops_although_a_disk_hangs(engine: EngineChoice) {
    let Some((_scratch, file)) = Scratch::new("stops") else { return };
    let Some(mut reactor) = start(engine) else { return };
    let queue = reactor.files().queue(MediumId(0));
    let go_on = hang(&queue, &file, 20);
    reactor.handle().stop(Duration::from_millis(10)).unwrap();
    let began = Instant::now();
    reactor.run(&mut Parrot::default()).unwrap();
    drop(reactor);
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
    drop(go_on);
}
