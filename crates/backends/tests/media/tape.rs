//! The folder of a cartridge as a store, under a cartridge.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant as Wall};

use backends::cartridge_folder::{CartridgeError, CartridgeFolder, CartridgeStore};
use base::state_machine::MediumId;
use cartridge::Cartridge;
use cartridge::command::{Command, Outcome, Record};
use cartridge::error::Error;
use cartridge::io::Request;
use cartridge::label::{Blank, Label};
use cartridge::profile::Profile;
use drivers::config::{Config, EngineChoice};
use drivers::reactor::{Reactor, ReactorError};
use store::Store;
use store::api::{Op, OpAction, OpId};

use crate::rig::{Listener, Scratch, flat, list};

const HANG: Duration = Duration::from_secs(60);

/// Makes the folder of a blank cartridge whose segments have 1 MiB.
fn blank(scratch: &Scratch) -> PathBuf {
    let path = scratch.file("cartridge");
    let label = Label::blank(&Blank {
        profile: Profile::Lto8,
        is_worm: false,
        barcode: String::new(),
        capacity: 64 << 20,
        partitions: Vec::new(),
        segment_len: 1 << 20,
        date: *b"20261125",
        entropy: [9; 48],
    })
    .unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("label"), label.file()).unwrap();
    path
}

/// A cartridge on a store on a reactor of its own.
struct Drive {
    cartridge: Cartridge,
    store: CartridgeStore,
    under_way: BTreeMap<OpId, OpId>,
    reactor: Reactor<Listener>,
    listener: Listener,
}

impl Drive {
    fn serve(engine: EngineChoice, path: &Path, is_read_only: bool) -> Option<Self> {
        let reactor = match Reactor::new(&Config { engine, ..Config::default() }) {
            Ok(reactor) => reactor,
            Err(ReactorError::NoUring(why)) => {
                eprintln!("skipped: no io_uring here: {why}");
                return None;
            }
            Err(why) => panic!("{why}"),
        };
        let folder = CartridgeFolder::open(path, is_read_only).unwrap();
        let store = CartridgeStore::new(folder, reactor.files().queue(MediumId(3)));
        let mut drive = Self {
            cartridge: Cartridge::new(),
            store,
            under_way: BTreeMap::new(),
            reactor,
            listener: Listener::default(),
        };
        drive.run(Command::Load { is_writable: !is_read_only }).unwrap();
        Some(drive)
    }

    fn run(&mut self, command: Command) -> Result<Outcome, Error> {
        let start = Wall::now();
        self.cartridge.handle_command(command);
        loop {
            while let Some(Request { id, file, mut action }) = self.cartridge.poll_request() {
                if let OpAction::Read { at, .. }
                | OpAction::Write { at, .. }
                | OpAction::Deallocate { at, .. } = &mut action
                {
                    *at = file.address(*at).unwrap();
                }
                let number = OpId(id.0 + 1000);
                self.under_way.insert(number, id);
                self.store.submit(Op { id: number, action });
            }
            if let Some(outcome) = self.cartridge.poll_outcome() {
                return outcome;
            }
            match self.store.poll() {
                Some(done) => {
                    let id = self.under_way.remove(&done.id).expect("one completion for each operation");
                    self.cartridge.handle_completion(id, done.result);
                }
                None => {
                    assert!(start.elapsed() < HANG, "an operation never completes");
                    self.reactor.run_once(&mut self.listener, Some(Duration::from_millis(50))).unwrap();
                }
            }
        }
    }

    fn write(&mut self, byte: u8, len: usize) {
        let record = Record { data: list(&vec![byte; len]), ..Record::default() };
        assert!(matches!(self.run(Command::Write(record)), Ok(Outcome::Written(_))));
    }

    /// Reads records until something else comes; returns the first byte and the length of each.
    fn records(&mut self) -> Vec<(u8, usize)> {
        let mut records = Vec::new();
        while let Outcome::Record(record) = self.run(Command::Read).unwrap() {
            let data = flat(&record.data);
            assert!(data.iter().all(|byte| *byte == data[0]));
            records.push((data[0], data.len()));
        }
        records
    }
}

/// Several segments are written, one after the other; a later process finds them, and can overwrite them.
pub(crate) fn keeps_a_cartridge_in_its_folder(engine: EngineChoice) {
    let scratch = Scratch::new();
    let path = blank(&scratch);
    let Some(mut drive) = Drive::serve(engine, &path, false) else { return };
    for byte in 1..=4 {
        drive.write(byte, 900_000);
    }
    drive.run(Command::WriteFilemarks { count: 1, is_immediate: false }).unwrap();
    drop(drive);
    let segments = || {
        let names = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    let logs: Vec<String> = (0..4).map(|number| format!("p0-{number:08}.log")).collect();
    assert_eq!(segments(), [vec!["label".to_owned()], logs].concat());
    let mut drive = Drive::serve(engine, &path, false).unwrap();
    let written: Vec<(u8, usize)> = (1..=4).map(|byte| (byte, 900_000)).collect();
    assert_eq!(drive.records(), written);
    drive
        .run(Command::Locate { partition: 0, destination: cartridge::command::Destination::Object(1) })
        .unwrap();
    drive.write(9, 50);
    drive.run(Command::Unload).unwrap();
    drop(drive);
    let mut drive = Drive::serve(engine, &path, true).unwrap();
    assert_eq!(drive.records(), [(1, 900_000), (9, 50)]);
}

/// Erasing frees storage, and the files stay readable.
pub(crate) fn frees_what_is_erased(engine: EngineChoice) {
    let scratch = Scratch::new();
    let path = blank(&scratch);
    let Some(mut drive) = Drive::serve(engine, &path, false) else { return };
    for byte in 1..=4 {
        drive.write(byte, 900_000);
    }
    drive.run(Command::WriteFilemarks { count: 1, is_immediate: false }).unwrap();
    drive
        .run(Command::Locate { partition: 0, destination: cartridge::command::Destination::Object(0) })
        .unwrap();
    drive.run(Command::Erase).unwrap();
    drive.run(Command::Unload).unwrap();
    let used: u64 = (0..4)
        .map(|number| {
            use std::os::unix::fs::MetadataExt as _;
            fs::metadata(path.join(format!("p0-{number:08}.log"))).unwrap().blocks() * 512
        })
        .sum();
    assert!(used <= 1 << 20, "{used} bytes are still allocated");
    drive.run(Command::Load { is_writable: true }).unwrap();
    assert_eq!(drive.records(), []);
}

#[test]
fn a_folder_without_a_cartridge_is_refused_with_a_reason() {
    let scratch = Scratch::new();
    let path = scratch.file("cartridge");
    let told = |path: &Path| CartridgeFolder::open(path, false).unwrap_err().to_string();
    assert!(told(&path).starts_with("cannot open "), "{}", told(&path));
    fs::create_dir(&path).unwrap();
    assert!(told(&path).contains("holds no cartridge: it has no file \"label\""), "{}", told(&path));
    fs::write(path.join("label"), [0; 100]).unwrap();
    assert!(told(&path).contains("both copies of the label are damaged"), "{}", told(&path));
    assert!(CartridgeFolder::check(&path, false).is_err());
    fs::write(path.join("label"), vec![0; 200_000]).unwrap();
    assert!(told(&path).contains("longer than that of a cartridge"), "{}", told(&path));
}

#[test]
fn one_process_writes_or_several_read() {
    let scratch = Scratch::new();
    let path = blank(&scratch);
    let writer = CartridgeFolder::open(&path, false).unwrap();
    for is_read_only in [false, true] {
        let refused = CartridgeFolder::open(&path, is_read_only).unwrap_err();
        assert!(matches!(refused, CartridgeError::InUse { .. }), "{refused}");
    }
    CartridgeFolder::check(&path, false).unwrap();
    drop(writer);
    let _reader = CartridgeFolder::open(&path, true).unwrap();
    let other = CartridgeFolder::open(&path, true).unwrap();
    assert_eq!(other.capacity(), 64 << 20);
    assert!(CartridgeFolder::open(&path, false).is_err());
}
