//! Tests of the cartridge as a whole, on files in memory.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use base::buffer::{Bytes, DataList};
use base::rng::Rng;
use store::api::{Fault, OpAction, OpOutput};

use super::*;
use crate::blocking::{Files, run};
use crate::command::{Guard, LabelCopies, LoadReport, Record, SpaceUnit, Stop};
use crate::io::FileId;
use crate::label::Blank;
use crate::layout::BODY_LEN;
use crate::profile::Profile;
use crate::testing::MemoryFiles;

mod crash;
mod damage;
mod failed_writes;
mod golden;
mod handover;
mod interruption;
mod model;
#[cfg(feature = "planted")]
mod planted;
mod recovery;
mod sharing;

/// A cartridge with its files.
struct Deck<F> {
    cartridge: Cartridge,
    files: F,
    /// Chooses the next file operation of those that are started, if they are carried out in any order.
    shuffle: Option<Rng>,
    /// The file operations that are started and not carried out.
    outstanding: Vec<Request>,
    /// Whether an unload may leave the label as it is, because there is no space for it.
    is_label_left: bool,
}

impl<F: Files> Deck<F> {
    fn new(files: F) -> Self {
        Self {
            cartridge: Cartridge::new(),
            files,
            shuffle: None,
            outstanding: Vec::new(),
            is_label_left: false,
        }
    }

    fn run(&mut self, command: Command) -> Result<Outcome, Error> {
        let Some(rng) = &mut self.shuffle else {
            return run(&mut self.cartridge, &mut self.files, command);
        };
        self.cartridge.handle_command(command);
        loop {
            self.outstanding.extend(core::iter::from_fn(|| self.cartridge.poll_request()));
            if let Some(outcome) = self.cartridge.poll_outcome() {
                return outcome;
            }
            assert!(!self.outstanding.is_empty(), "the command waits for nothing");
            let request = self.outstanding.swap_remove(model::pick(rng, self.outstanding.len()));
            let result = self.files.perform(request.file, request.action);
            self.cartridge.handle_completion(request.id, result);
        }
    }

    fn load(&mut self) -> LoadReport {
        match self.run(Command::Load { is_writable: true }) {
            Ok(Outcome::Loaded(report)) => report,
            other => panic!("{other:?}"),
        }
    }

    fn unload(&mut self) {
        assert!(matches!(self.run(Command::Unload), Ok(Outcome::Done)));
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.run(Command::Write(record(bytes))).map(drop)
    }

    fn mark(&mut self, count: u32) {
        self.run(Command::WriteFilemarks { count, is_immediate: false }).unwrap();
    }

    fn go(&mut self, partition: u8, object: u64) {
        let destination = Destination::Object(object);
        self.run(Command::Locate { partition, destination }).unwrap();
    }

    fn space(&mut self, unit: SpaceUnit, count: i64) -> (Option<Stop>, u64, u64) {
        match self.run(Command::Space { unit, count }) {
            Ok(Outcome::Moved { stop, left }) => (stop, left, self.cartridge.position().object),
            other => panic!("{other:?}"),
        }
    }

    /// Reads an object: a record, an empty one for a filemark, or nothing at the end of data.
    fn read(&mut self) -> Option<Vec<u8>> {
        match self.run(Command::Read) {
            Ok(Outcome::Record(record)) => Some(bytes_of(&record.data)),
            Ok(Outcome::Filemark) => Some(Vec::new()),
            Ok(Outcome::EndOfData) => None,
            other => panic!("{other:?}"),
        }
    }

    fn read_all(&mut self, partition: u8) -> Vec<Vec<u8>> {
        self.go(partition, 0);
        let mut all = Vec::new();
        while let Some(object) = self.read() {
            all.push(object);
        }
        all
    }
}

fn bytes_of(data: &DataList) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(data.len());
    data.parts().iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

fn record(bytes: &[u8]) -> Record {
    Record { data: Bytes::copied_from(bytes).into(), ..Record::default() }
}

fn blank() -> Blank {
    Blank {
        profile: Profile::Lto8,
        is_worm: false,
        barcode: String::from("A00001L8"),
        capacity: 64 << 20,
        partitions: Vec::new(),
        segment_len: 2 << 20,
        date: *b"20261125",
        entropy: [5; 48],
    }
}

fn deck_of(blank: &Blank) -> Deck<MemoryFiles> {
    Deck::new(MemoryFiles::new(&Label::blank(blank).unwrap()))
}

fn loaded() -> Deck<MemoryFiles> {
    let mut deck = deck_of(&blank());
    assert_eq!(deck.load(), LoadReport { partitions: vec![Default::default()], ..LoadReport::default() });
    deck
}

#[test]
fn a_record_is_checked_before_a_command_reads_it() {
    let mut deck = loaded();
    // The third record lies in two chunks.
    let records = [vec![1; 400_000], vec![2; 400_000], vec![3; 400_000], vec![4; 1000]];
    records.iter().for_each(|bytes| deck.write(bytes).unwrap());
    deck.mark(1);
    deck.go(0, 0);
    let checked = |deck: &mut Deck<MemoryFiles>| {
        deck.cartridge.check_ahead();
        deck.cartridge.ahead.as_ref().map(|ahead| ahead.header.object)
    };
    assert_eq!(checked(&mut deck), None, "nothing is in memory");
    for (number, bytes) in (1..).zip(&records) {
        assert_eq!(deck.read().as_ref(), Some(bytes));
        assert!(deck.cartridge.ahead.is_none());
        // A filemark is no record.
        assert_eq!(checked(&mut deck), (number < 4).then_some(number));
    }
    deck.go(0, 1);
    assert_eq!(checked(&mut deck), Some(1));
    deck.run(Command::Peek).unwrap();
    assert_eq!(checked(&mut deck), Some(1));
    deck.write(&[7; 400_000]).unwrap();
    assert!(deck.cartridge.ahead.is_none(), "what a command overwrites is not kept");
}

#[test]
fn what_is_written_reads_back_in_this_load_and_the_next() {
    let mut deck = loaded();
    let objects =
        [vec![1], vec![2; 1000], vec![], vec![3; 3 << 20], vec![4; 8 << 20], vec![], vec![], vec![5]];
    for object in &objects {
        if object.is_empty() { deck.mark(1) } else { deck.write(object).unwrap() }
    }
    assert_eq!(deck.read_all(0), objects);
    deck.unload();
    assert_eq!(deck.run(Command::Read).unwrap_err(), Error::NotLoaded);
    assert_eq!(deck.load().partitions[0], Default::default(), "nothing to recover");
    assert_eq!(deck.read_all(0), objects);
    let now = deck.cartridge.partition(0).unwrap();
    assert_eq!((now.objects, now.filemarks), (8, 3));
}

#[test]
fn what_is_kept_with_a_record_comes_back_with_it() {
    let mut deck = loaded();
    for is_compressed in [false, true] {
        let guard = Some(Guard { method: 2, value: 0xdead_beef });
        let data = Bytes::copied_from(&[7; 100_000]).into();
        let record = Record { data, is_compressed, guard, encryption: 3, metadata: vec![9; 200] };
        deck.run(Command::Write(record)).unwrap();
    }
    let before = deck.cartridge.partition(0).unwrap();
    assert!(before.end < 110_000, "the second record is compressed");
    assert_eq!(before.first_encrypted, 1);
    deck.go(0, 0);
    for is_compressed in [false, true] {
        let Ok(Outcome::Record(record)) = deck.run(Command::Read) else { panic!() };
        assert_eq!((record.is_compressed, record.encryption), (is_compressed, 3));
        assert_eq!(record.guard, Some(Guard { method: 2, value: 0xdead_beef }));
        assert_eq!((record.metadata, bytes_of(&record.data)), (vec![9; 200], vec![7; 100_000]));
    }
}

#[test]
fn writing_ends_the_data_where_it_is() {
    let mut deck = loaded();
    for number in 0..10 {
        deck.write(&[number; 5000]).unwrap();
    }
    deck.mark(1);
    deck.go(0, 4);
    deck.write(b"new").unwrap();
    assert_eq!(deck.read(), None);
    let expected: Vec<Vec<u8>> = (0..4).map(|number| vec![number; 5000]).chain([b"new".to_vec()]).collect();
    assert_eq!(deck.read_all(0), expected);
    deck.unload();
    deck.load();
    assert_eq!(deck.read_all(0), expected);
}

#[test]
fn a_load_after_an_unload_reads_the_label_only() {
    let mut deck = loaded();
    deck.write(&[1; 20 << 20 >> 2]).unwrap();
    deck.unload();
    assert_eq!(counted(&mut Cartridge::new(), &mut deck.files, Command::Load { is_writable: true }).all, 2);
    deck.load();
    deck.go(0, 1);
    deck.write(b"more").unwrap();
    deck.run(Command::Synchronize).unwrap();
    let mut killed = deck.files;
    let mut cartridge = Cartridge::new();
    assert!(counted(&mut cartridge, &mut killed, Command::Load { is_writable: true }).all > 2);
    assert_eq!(cartridge.partition(0).unwrap().objects, 2);
}

/// Files that read into the buffers that they get back.
struct Recycling {
    files: MemoryFiles,
    spare: Option<Buf>,
    recycled: usize,
}

impl Files for Recycling {
    fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, Failure> {
        let output = self.files.perform(file, action)?;
        let OpOutput::Data(data) = output else { return Ok(output) };
        let Some(mut buf) = self.spare.take() else { return Ok(OpOutput::Data(data)) };
        buf.truncate(0);
        data.parts().iter().for_each(|part| {
            buf.append(part);
        });
        Ok(OpOutput::Data(buf.freeze().into()))
    }

    fn recycle(&mut self, buf: Buf) {
        self.spare = Some(buf);
        self.recycled += 1;
    }
}

#[test]
fn buffers_of_chunks_are_used_again_unless_a_record_holds_them() {
    let mut deck = loaded();
    (0..30).for_each(|number| deck.write(&vec![number; 1 << 20]).unwrap());
    deck.unload();
    for is_held in [false, true] {
        let files = Recycling { files: deck.files.clone(), spare: None, recycled: 0 };
        let mut reader = Deck::new(files);
        reader.load();
        let mut held = Vec::new();
        for number in 0..30 {
            let Ok(Outcome::Record(record)) = reader.run(Command::Read) else { panic!() };
            assert!(bytes_of(&record.data) == vec![number; 1 << 20]);
            if is_held {
                held.push(record);
            }
        }
        for (number, record) in (0..).zip(&held) {
            assert!(bytes_of(&record.data) == vec![number; 1 << 20]);
        }
        let recycled = reader.files.recycled;
        assert!(if is_held { recycled == 0 } else { recycled >= 20 }, "{recycled}");
    }
}

#[test]
fn space_stops_where_the_standard_says() {
    let mut deck = loaded();
    // Objects: 0 1 2 mark 4 mark mark 7
    for object in [1, 1, 1, 0, 1, 0, 0, 1] {
        if object == 0 { deck.mark(1) } else { deck.write(b"record").unwrap() }
    }
    deck.go(0, 0);
    let records = SpaceUnit::Records;
    assert_eq!(deck.space(records, 2), (None, 0, 2));
    assert_eq!(deck.space(records, 5), (Some(Stop::Filemark), 4, 4));
    assert_eq!(deck.space(records, -1), (Some(Stop::Filemark), 1, 3));
    assert_eq!(deck.space(records, -9), (Some(Stop::Start), 6, 0));
    let marks = SpaceUnit::Filemarks;
    assert_eq!(deck.space(marks, 2), (None, 0, 6));
    assert_eq!(deck.space(marks, -1), (None, 0, 5));
    assert_eq!(deck.space(marks, -2), (Some(Stop::Start), 1, 0));
    assert_eq!(deck.space(marks, 4), (Some(Stop::EndOfData), 1, 8));
    assert_eq!(deck.space(records, 3), (Some(Stop::EndOfData), 3, 8));
    assert_eq!(deck.space(records, 0), (None, 0, 8));
    deck.go(0, 0);
    assert_eq!(deck.space(SpaceUnit::EndOfData, 0), (None, 0, 8));
}

#[test]
fn locate_finds_objects_filemarks_and_the_end() {
    let mut deck = loaded();
    for number in 0..60_u8 {
        for _ in 0..20 {
            deck.write(&vec![number; 10_000 + usize::from(number)]).unwrap();
        }
        deck.run(Command::WriteFilemarks { count: 1, is_immediate: true }).unwrap();
    }
    deck.unload();
    deck.load();
    for number in [0, 7, 30, 59_u8] {
        deck.go(0, u64::from(number) * 21 + 3);
        assert_eq!(deck.cartridge.position().filemarks, u64::from(number));
        assert_eq!(deck.read(), Some(vec![number; 10_000 + usize::from(number)]));
        let destination = Destination::Filemark(u64::from(number));
        deck.run(Command::Locate { partition: 0, destination }).unwrap();
        assert_eq!(deck.cartridge.position().object, u64::from(number) * 21);
    }
    let mut moved = |destination| match deck.run(Command::Locate { partition: 0, destination }) {
        Ok(Outcome::Moved { stop, left }) => (stop, left, deck.cartridge.position().object),
        other => panic!("{other:?}"),
    };
    assert_eq!(moved(Destination::EndOfData), (None, 0, 1260));
    assert_eq!(moved(Destination::Object(1260)), (None, 0, 1260));
    assert_eq!(moved(Destination::Object(1262)), (Some(Stop::EndOfData), 2, 1260));
    assert_eq!(moved(Destination::Filemark(61)), (Some(Stop::EndOfData), 1, 1260));
    let elsewhere = Command::Locate { partition: 1, destination: Destination::EndOfData };
    assert_eq!(deck.run(elsewhere).unwrap_err(), Error::NoPartition);
}

#[test]
fn partitions_are_apart_and_a_format_blanks_them() {
    let mut deck = loaded();
    deck.write(b"old").unwrap();
    deck.cartridge.set_attribute(0, 0x080c, AttributeFormat::Binary, &[1; 70]).unwrap();
    deck.run(Command::Format { partitions: vec![8 << 20, 8 << 20, 8 << 20] }).unwrap();
    assert_eq!(deck.cartridge.attribute(0, 0x080c), None);
    for partition in [2, 0, 1, 2] {
        deck.run(Command::Locate { partition, destination: Destination::EndOfData }).unwrap();
        deck.write(&[partition; 100_000]).unwrap();
    }
    for _ in 0..2 {
        for partition in [0, 1, 2_u8] {
            let count = if partition == 2 { 2 } else { 1 };
            assert_eq!(deck.read_all(partition), vec![vec![partition; 100_000]; count]);
        }
        deck.unload();
        deck.load();
    }
    let too_large = Command::Format { partitions: vec![60 << 20, 8 << 20] };
    assert_eq!(deck.run(too_large).unwrap_err(), Error::PartitionSizes);
    assert_eq!(deck.read_all(1).len(), 1);
}

#[test]
fn a_format_is_counted_and_changes_the_volume() {
    let mut deck = loaded();
    let mut counts = Vec::new();
    for _ in 0..2 {
        for id in [0x0007, 0x0009] {
            let value = deck.cartridge.attribute(0, id).unwrap().value;
            counts.push(value.iter().fold(0_u64, |all, byte| all << 8 | u64::from(*byte)));
        }
        deck.run(Command::Format { partitions: vec![8 << 20, 8 << 20, 8 << 20] }).unwrap();
    }
    assert_eq!([counts[2] - counts[0], counts[3] - counts[1]], [1, 1]);
}

#[test]
fn a_full_partition_warns_first_and_loses_nothing() {
    let mut deck = deck_of(&Blank { capacity: (20 << 20) + 777, ..blank() });
    deck.load();
    let (mut written, mut warned) = (0_u64, None);
    let error = loop {
        match deck.run(Command::Write(record(&[1; 100_000]))) {
            Ok(Outcome::Written(space)) => {
                written += 1;
                if space.is_early_warning && warned.is_none() {
                    warned = Some(space.remaining);
                }
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::EndOfPartition);
    assert!(warned.is_some_and(|left| left > 3 << 20) && written > 200, "{warned:?} {written}");
    deck.mark(1);
    deck.unload();
    deck.load();
    assert_eq!(deck.read_all(0).len(), usize::try_from(written).unwrap() + 1);
    assert!(matches!(deck.write(&[1; 100_000]), Err(Error::EndOfPartition)));
    deck.unload();
    deck.load();
}

#[test]
fn trailing_filemarks_of_worm_can_be_overwritten_but_the_first() {
    let worm = || {
        let mut deck = deck_of(&Blank { is_worm: true, ..blank() });
        deck.load();
        deck
    };
    let mut deck = worm();
    // As programs do that end their data with two filemarks.
    for number in 0..3_u8 {
        deck.write(&[number; 1000]).unwrap();
        deck.mark(2);
        assert_eq!(deck.space(SpaceUnit::Filemarks, -1), (None, 0, 2 * u64::from(number) + 2));
    }
    let mut expected: Vec<Vec<u8>> = (0..3_u8).flat_map(|number| [vec![number; 1000], Vec::new()]).collect();
    expected.push(Vec::new());
    assert_eq!(deck.read_all(0), expected);
    for object in [0, 1, 5] {
        deck.go(0, object);
        assert_eq!(deck.write(b"x").unwrap_err(), Error::Worm, "object {object}");
        assert_eq!(deck.run(Command::Erase).unwrap_err(), Error::Worm);
    }
    deck.go(0, 6);
    assert_eq!(deck.run(Command::Erase).unwrap_err(), Error::Worm, "an erasure is no write");
    // In the next load too, and with more filemarks.
    deck.unload();
    deck.load();
    deck.go(0, 7);
    deck.mark(3);
    deck.go(0, 8);
    deck.write(b"more").unwrap();
    deck.mark(1);
    assert_eq!(deck.read_all(0)[7..], [Vec::new(), b"more".to_vec(), Vec::new()]);
    deck.go(0, 7);
    assert_eq!(deck.write(b"x").unwrap_err(), Error::Worm, "a record is behind");
    // Nothing is before the first of these filemarks.
    let mut deck = worm();
    deck.mark(3);
    deck.go(0, 0);
    assert_eq!(deck.write(b"x").unwrap_err(), Error::Worm);
    deck.go(0, 1);
    deck.write(b"x").unwrap();
    assert_eq!(deck.read_all(0), [Vec::new(), b"x".to_vec()]);
}

#[test]
fn worm_is_append_only_after_a_restart_too() {
    let mut deck = deck_of(&Blank { is_worm: true, ..blank() });
    deck.load();
    deck.run(Command::Format { partitions: Vec::new() }).unwrap();
    deck.write(b"first").unwrap();
    deck.write(b"second").unwrap();
    for _ in 0..2 {
        deck.go(0, 1);
        for command in [
            Command::Write(record(b"other")),
            Command::WriteFilemarks { count: 1, is_immediate: true },
            Command::Erase,
            Command::Format { partitions: Vec::new() },
        ] {
            assert_eq!(deck.run(command).unwrap_err(), Error::Worm);
        }
        deck.unload();
        deck.load();
    }
    deck.go(0, 2);
    deck.write(b"third").unwrap();
    assert_eq!(deck.read_all(0), [b"first".to_vec(), b"second".to_vec(), b"third".to_vec()]);
}

#[test]
fn a_write_protected_cartridge_is_not_changed() {
    let mut deck = loaded();
    deck.write(b"data").unwrap();
    deck.cartridge.set_write_protected(true).unwrap();
    deck.run(Command::SaveLabel).unwrap();
    deck.unload();
    deck.load();
    assert_eq!(deck.write(b"more").unwrap_err(), Error::WriteProtected);
    assert_eq!(deck.run(Command::Erase).unwrap_err(), Error::WriteProtected);
    let refused = deck.cartridge.set_attribute(0, 0x0801, AttributeFormat::Ascii, b"x");
    assert_eq!(refused, Err(Error::WriteProtected));
    deck.cartridge.set_write_protected(false).unwrap();
    deck.write(b"more").unwrap();
    deck.unload();
    let before = deck.files.files.clone();
    deck.run(Command::Load { is_writable: false }).unwrap();
    assert_eq!(deck.read_all(0).len(), 1);
    assert_eq!(deck.write(b"more").unwrap_err(), Error::WriteProtected);
    deck.unload();
    assert_eq!(deck.files.files, before, "a read-only load writes nothing");
}

#[test]
fn erase_removes_what_is_behind_and_frees_its_storage() {
    let mut deck = loaded();
    for _ in 0..12 {
        deck.write(&[1; 1 << 20]).unwrap();
    }
    deck.go(0, 2);
    deck.run(Command::Erase).unwrap();
    let stored: usize = deck.files.files.values().map(Vec::len).sum();
    assert!(stored < 5 << 20, "{stored}");
    assert_eq!(deck.read(), None);
    deck.unload();
    deck.load();
    assert_eq!(deck.read_all(0).len(), 2);
}

/// How many operations a command started.
struct Counted {
    /// At the same time, at most.
    most: usize,
    /// In all.
    all: usize,
}

fn counted(cartridge: &mut Cartridge, files: &mut impl Files, command: Command) -> Counted {
    cartridge.handle_command(command);
    let mut counted = Counted { most: 0, all: 0 };
    loop {
        let requests: Vec<_> = core::iter::from_fn(|| cartridge.poll_request()).collect();
        counted.most = counted.most.max(requests.len());
        counted.all += requests.len();
        for request in requests {
            let result = files.perform(request.file, request.action);
            cartridge.handle_completion(request.id, result);
        }
        if let Some(outcome) = cartridge.poll_outcome() {
            outcome.unwrap();
            return counted;
        }
    }
}

/// Files that keep nothing.
struct Nothing;

impl Files for Nothing {
    fn perform(&mut self, _: FileId, action: OpAction) -> Result<OpOutput, Failure> {
        match action {
            OpAction::Read { .. } => Err(Fault::OutOfRange.into()),
            _ => Ok(OpOutput::Done(DataList::new())),
        }
    }
}

#[test]
fn freeing_many_segments_starts_some_operations_at_a_time() {
    let segments = 100_000;
    let mut label = Label::blank(&Blank { capacity: 1 << 40, segment_len: CHUNK_LEN, ..blank() }).unwrap();
    label.next_epoch = 2;
    let part = &mut label.partitions[0];
    (part.end, part.objects, part.epoch) = (BODY_LEN * segments, 7, 1);
    for command in [Command::Erase, Command::Format { partitions: Vec::new() }] {
        let mut deck = deck_of(&blank());
        deck.files = MemoryFiles::new(&label);
        deck.load();
        let Counted { most, all } = counted(&mut deck.cartridge, &mut Nothing, command);
        assert!(most <= 64 && all >= 100_000, "{most} of {all}");
    }
}

#[test]
fn flushing_many_segments_starts_some_operations_at_a_time() {
    let mut deck = deck_of(&Blank { capacity: 1 << 40, segment_len: CHUNK_LEN, ..blank() });
    deck.load();
    let data = DataList::from(Bytes::copied_from(&vec![1; 8 << 20]));
    let write = Command::Write(Record { data, ..Record::default() });
    let commands = core::iter::repeat_n(write, 300).chain([Command::Synchronize]);
    let (mut most, mut all) = (0, 0);
    for command in commands {
        let now = counted(&mut deck.cartridge, &mut Nothing, command);
        (most, all) = (most.max(now.most), all + now.all);
    }
    assert!(most <= 64 && all >= 4800, "{most} of {all}");
    assert_eq!(deck.cartridge.dirty.len(), 0);
}

#[test]
fn attributes_tell_what_the_cartridge_is_and_was() {
    let mut deck = loaded();
    deck.write(&[1; 3 << 20]).unwrap();
    deck.read_all(0);
    deck.cartridge.set_attribute(0, 0x0803, AttributeFormat::Text, b"label").unwrap();
    deck.unload();
    deck.load();
    let value = |deck: &Deck<MemoryFiles>, id| deck.cartridge.attribute(0, id).unwrap().value;
    assert_eq!(value(&deck, 0x0803), b"label");
    assert_eq!(value(&deck, 0x0806), b"A00001L8                        ");
    assert_eq!(value(&deck, 0x0001), 64_u64.to_be_bytes(), "capacity in MiB");
    assert_eq!(value(&deck, 0x0000), 60_u64.to_be_bytes(), "remaining MiB");
    assert_eq!(value(&deck, 0x0407), 16384_u64.to_be_bytes(), "the size of the memory");
    let left = u64::from_be_bytes(value(&deck, 0x0004).try_into().unwrap());
    assert_eq!(left, 16384 - 6 - 5, "less the attribute of the host");
    assert_eq!(value(&deck, 0x0003), 2_u64.to_be_bytes(), "loads");
    assert_eq!((value(&deck, 0x0220), value(&deck, 0x0222)), (3_u64.to_be_bytes().into(), vec![0; 8]));
    assert_eq!(value(&deck, 0x0221), 3_u64.to_be_bytes());
    assert_eq!(value(&deck, 0x0405), [0x5e]);
    let ids = deck.cartridge.attribute_ids(0);
    assert!(ids.is_sorted() && ids.iter().all(|id| deck.cartridge.attribute(0, *id).is_some()));
    assert!(ids.contains(&0x0806) && !ids.contains(&0x0224));
}

#[test]
fn records_are_counted_as_they_are_stored() {
    let mut deck = loaded();
    deck.write(&[1; 5000]).unwrap();
    let counts = deck.cartridge.stored_counts();
    assert_eq!(counts, StoredCounts { written: 5000, read: 0 });
    deck.run(Command::Write(Record { is_compressed: true, ..record(&[7; 100_000]) })).unwrap();
    let compressed = deck.cartridge.stored_counts().written - 5000;
    assert!((1..10_000).contains(&compressed), "{compressed}");
    deck.read_all(0);
    let counts = deck.cartridge.stored_counts();
    assert_eq!(counts.read, counts.written);
}

#[test]
fn records_of_impossible_length_are_refused() {
    let mut deck = loaded();
    assert_eq!(deck.write(b""), Err(Error::RecordLen));
    assert_eq!(deck.write(&vec![0; (8 << 20) + 1]), Err(Error::RecordLen));
    let metadata = vec![0; 1025];
    assert_eq!(deck.run(Command::Write(Record { metadata, ..record(b"x") })).unwrap_err(), Error::RecordLen);
    assert_eq!(deck.run(Command::Load { is_writable: true }).unwrap_err(), Error::AlreadyLoaded);
}
