//! A store on a reactor of its own, which the thread of the test runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant as Wall};

use backends::open::{Allocation, FileSpec, OpenError, Opened};
use backends::store::FileStore;
use base::buffer::{Bytes, DataList};
use base::ether::FrameMachine;
use base::state_machine::{MediumId, NoStreams};
use base::time::Instant;
use drivers::config::{Config, EngineChoice};
use drivers::reactor::{Reactor, ReactorError};
use store::Store;
use store::api::{Durability, Failure, Op, OpAction, OpId, OpOutput};

/// No step of these tests takes a second; a step that takes this long hangs.
const HANG: Duration = Duration::from_secs(60);

const MEDIUM: MediumId = MediumId(3);

/// A state machine without connections, which is notified of media.
#[derive(Default)]
pub(crate) struct Listener {
    pub(crate) told: usize,
}

impl FrameMachine for Listener {}

impl NoStreams for Listener {
    fn medium_ready(&mut self, _: Instant, medium: MediumId) {
        assert_eq!(medium, MEDIUM);
        self.told += 1;
    }
}

pub(crate) struct Rig {
    pub(crate) store: FileStore,
    pub(crate) listener: Listener,
    reactor: Reactor<Listener>,
    next_id: u64,
    /// The first operation that is under way.
    first: u64,
}

impl Rig {
    /// Serves a medium. Returns `None` and prints the reason if the engine is not available here.
    pub(crate) fn serve(engine: EngineChoice, opened: Opened) -> Option<Self> {
        let config = Config { engine, ..Config::default() };
        let reactor = match Reactor::new(&config) {
            Ok(reactor) => reactor,
            Err(ReactorError::NoUring(why)) => {
                eprintln!("skipped: no io_uring here: {why}");
                return None;
            }
            Err(why) => panic!("{why}"),
        };
        let store = FileStore::new(opened, reactor.files().queue(MEDIUM));
        Some(Self { store, listener: Listener::default(), reactor, next_id: 0, first: 0 })
    }

    /// Submits all of `actions` together and returns their results in the same order.
    pub(crate) fn run(&mut self, actions: Vec<OpAction>) -> Vec<Result<OpOutput, Failure>> {
        self.begin(actions);
        self.finish()
    }

    /// Runs one operation, and switches the write cache while it is under way.
    pub(crate) fn one_switching(&mut self, action: OpAction, cached: bool) -> Result<OpOutput, Failure> {
        self.begin(vec![action]);
        self.store.set_write_cache(cached);
        self.finish().pop().unwrap()
    }

    fn begin(&mut self, actions: Vec<OpAction>) {
        self.first = self.next_id;
        for action in actions {
            self.store.submit(Op { id: OpId(self.next_id), action });
            self.next_id += 1;
        }
    }

    fn finish(&mut self) -> Vec<Result<OpOutput, Failure>> {
        let first = self.first;
        let mut waiting = self.next_id - first;
        let mut results = BTreeMap::new();
        let start = Wall::now();
        while waiting > 0 {
            while let Some(completion) = self.store.poll() {
                assert!(completion.id.0 >= first, "a completion comes twice or late");
                assert!(
                    results.insert(completion.id, completion.result).is_none(),
                    "a completion comes twice"
                );
                waiting -= 1;
            }
            if waiting > 0 {
                assert!(start.elapsed() < HANG, "{waiting} operations never complete");
                self.reactor.run_once(&mut self.listener, Some(Duration::from_secs(1))).unwrap();
            }
        }
        results.into_values().collect()
    }

    pub(crate) fn one(&mut self, action: OpAction) -> Result<OpOutput, Failure> {
        self.run(vec![action]).pop().unwrap()
    }

    pub(crate) fn write(
        &mut self,
        at: u64,
        bytes: &[u8],
        durability: Durability,
    ) -> Result<OpOutput, Failure> {
        self.one(OpAction::Write { at, data: list(bytes), durability })
    }

    pub(crate) fn read(&mut self, at: u64, len: usize) -> Vec<u8> {
        match self.one(OpAction::Read { at, len }) {
            Ok(OpOutput::Data(data)) => flat(&data),
            other => panic!("read of {len} bytes at {at}: {other:?}"),
        }
    }
}

/// Returns the bytes as data in one piece.
pub(crate) fn list(bytes: &[u8]) -> DataList {
    Bytes::copied_from(bytes).into()
}

pub(crate) fn flat(data: &DataList) -> Vec<u8> {
    data.parts().iter().flat_map(|part| part.iter().copied()).collect()
}

/// A directory for one test, removed with its contents at the end.
pub(crate) struct Scratch {
    path: PathBuf,
    mounted: bool,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("media-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self { path, mounted: false }
    }

    /// Mounts a small file system in memory. Returns `None` and prints the reason if the privilege for that
    /// is missing.
    pub(crate) fn small(size: &str) -> Option<Self> {
        let mut scratch = Self::new();
        let option = format!("size={size}");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &option, "tmpfs"]).arg(&scratch.path).output();
        match mount {
            Ok(output) if output.status.success() => {
                scratch.mounted = true;
                Some(scratch)
            }
            Ok(output) => {
                eprintln!(
                    "skipped: no small file system: {}",
                    String::from_utf8_lossy(&output.stderr).trim()
                );
                None
            }
            Err(why) => {
                eprintln!("skipped: no small file system: {why}");
                None
            }
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.mounted {
            let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A loop device over a file.
pub(crate) struct LoopDevice {
    pub(crate) path: PathBuf,
}

impl LoopDevice {
    /// Attaches a loop device. Returns `None` and prints the reason if the privilege for that is missing.
    pub(crate) fn over(file: &Path) -> Option<Self> {
        match Command::new("losetup").args(["--find", "--show"]).arg(file).output() {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8(output.stdout).unwrap();
                Some(Self { path: PathBuf::from(path.trim()) })
            }
            Ok(output) => {
                eprintln!("skipped: no loop device: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(why) => {
                eprintln!("skipped: no loop device: {why}");
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

/// Returns the settings of most tests.
pub(crate) fn spec(path: PathBuf, size: u64) -> FileSpec {
    FileSpec {
        path,
        size: Some(size),
        allocation: Allocation::Sparse,
        read_only: false,
        direct: false,
        write_cache: true,
    }
}

/// Opens with `O_DIRECT`. Returns `None` and prints the reason if the file system does not support it.
pub(crate) fn open_direct(spec: &FileSpec) -> Option<Opened> {
    match (FileSpec { direct: true, ..spec.clone() }).open() {
        Ok(opened) => Some(opened),
        Err(why @ OpenError::NoDirect { .. }) => {
            eprintln!("skipped: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}
