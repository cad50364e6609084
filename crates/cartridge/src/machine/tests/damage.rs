//! Damage: what is wrong is told, and nothing else is lost.

use super::*;

/// Flips a bit of a log.
fn damage(deck: &mut Deck<MemoryFiles>, at: u64) {
    let segment_len = u64::from(2_u32 << 20);
    let segment = u32::try_from(at / segment_len).unwrap();
    let file = deck.files.files.get_mut(&FileId::Log { partition: 0, segment }).unwrap();
    file[usize::try_from(at % segment_len).unwrap()] ^= 4;
}

fn skipped(deck: &mut Deck<MemoryFiles>) -> u64 {
    match deck.run(Command::SkipDamage) {
        Ok(Outcome::Skipped { objects }) => objects,
        other => panic!("{other:?}"),
    }
}

fn written(count: u8, len: usize) -> Deck<MemoryFiles> {
    let mut deck = loaded();
    for number in 0..count {
        deck.write(&vec![number; len]).unwrap();
    }
    deck.unload();
    deck
}

#[test]
fn a_damaged_record_is_told_and_the_others_are_read() {
    let item_len = 64 + 100_032;
    for (place, checks_ahead) in [(64 + 64 + 30_000, false), (64 + 64 + 30_000, true), (64 + 8, true)] {
        let mut deck = written(30, 100_000);
        damage(&mut deck, place + 3 * item_len);
        deck.load();
        let mut read = Vec::new();
        loop {
            if checks_ahead {
                deck.cartridge.check_ahead();
            }
            match deck.run(Command::Read) {
                Ok(Outcome::Record(record)) => read.push(bytes_of(&record.data)[0]),
                Ok(Outcome::EndOfData) => break,
                Err(Error::Damaged { object: 3 }) => assert_eq!(skipped(&mut deck), 1),
                other => panic!("{other:?}"),
            }
        }
        let expected: Vec<u8> = (0..30).filter(|number| *number != 3).collect();
        assert_eq!(read, expected);
        deck.go(0, 20);
        assert_eq!(deck.read(), Some(vec![20; 100_000]));
        deck.go(0, 4);
        assert_eq!(deck.read(), Some(vec![4; 100_000]));
    }
}

#[test]
fn a_damaged_chunk_header_is_remembered_and_objects_are_found_all_the_same() {
    for chunks in [vec![1], vec![1, 2, 3], vec![5, 6, 7], vec![1, 2, 3, 4, 5, 6, 7]] {
        let mut deck = written(80, 100_000);
        for chunk in &chunks {
            damage(&mut deck, chunk * CHUNK_LEN + 20);
        }
        deck.load();
        for object in [0, 12, 25, 44, 79_u8] {
            deck.go(0, u64::from(object));
            assert_eq!(deck.read(), Some(vec![object; 100_000]), "{chunks:?}");
        }
        assert_eq!(deck.read_all(0).len(), 80);
        let found: Vec<u64> = deck.cartridge.damaged_headers().map(|(_, chunk)| chunk).collect();
        assert_eq!(found, chunks);
    }
}

#[test]
fn damage_to_synchronized_data_is_no_torn_end() {
    // The last records were synchronised and never unloaded, and one before them is damaged.
    let mut deck = loaded();
    for number in 0..3 {
        deck.write(&[number; 1000]).unwrap();
        deck.mark(1);
    }
    damage(&mut deck, 4096 + 64 + 200);
    let mut crashed = Deck::new(deck.files);
    let report = crashed.load();
    assert_eq!((report.partitions[0].recovered, report.partitions[0].damaged), (5, 1));
    assert_eq!(crashed.read(), Some(vec![0; 1000]));
    crashed.go(0, 2);
    assert_eq!(crashed.run(Command::Read).unwrap_err(), Error::Damaged { object: 2 });
    assert_eq!(skipped(&mut crashed), 1);
    assert_eq!(crashed.read(), Some(Vec::new()));
    assert_eq!(crashed.read(), Some(vec![2; 1000]));
}

#[test]
fn one_copy_of_the_label_is_enough_and_none_is_refused() {
    let mut deck = written(2, 1000);
    let label = deck.files.files[&FileId::Label].clone();
    for at in [20, 65_536 + 20] {
        let mut one = label.clone();
        one[at] ^= 1;
        deck.files.files.insert(FileId::Label, one);
        assert_eq!(deck.load().label_copies, LabelCopies::OneDamaged);
        assert_eq!(deck.read_all(0).len(), 2);
        deck.unload();
        assert_eq!(deck.load().label_copies, LabelCopies::Whole, "repaired");
        deck.unload();
    }
    for broken in [vec![], vec![0; 100], vec![0; 200_000]] {
        deck.files.files.insert(FileId::Label, broken);
        assert_eq!(deck.run(Command::Load { is_writable: true }).unwrap_err(), Error::NoLabel);
    }
    deck.files.files.insert(FileId::Label, label);
    assert_eq!(deck.load().partitions[0], Default::default());
}

#[test]
fn a_log_that_is_missing_is_damage() {
    let mut deck = written(50, 100_000);
    let second = FileId::Log { partition: 0, segment: 1 };
    deck.files.files.remove(&second).unwrap();
    deck.load();
    let mut read = 0;
    let mut lost = 0;
    loop {
        match deck.run(Command::Read) {
            Ok(Outcome::Record(_)) => read += 1,
            Ok(Outcome::EndOfData) => break,
            Err(Error::Damaged { .. }) => lost += skipped(&mut deck),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((read + lost, read), (50, 28));
}

/// Files of which one segment cannot be read.
struct Unreadable {
    files: MemoryFiles,
    segment: u32,
}

impl Files for Unreadable {
    fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, Failure> {
        let unreadable = FileId::Log { partition: 0, segment: self.segment };
        if matches!(action, OpAction::Read { .. }) && file == unreadable {
            return Err(Fault::Medium.into());
        }
        self.files.perform(file, action)
    }
}

#[test]
fn what_the_disk_cannot_read_is_told_and_the_rest_is_found() {
    let deck = written(80, 100_000);
    let mut deck = Deck::new(Unreadable { files: deck.files, segment: 1 });
    deck.load();
    for object in [0, 19, 42, 79_u8] {
        deck.go(0, u64::from(object));
        assert_eq!(deck.read(), Some(vec![object; 100_000]));
    }
    let destination = Destination::Object(30);
    let lost = deck.run(Command::Locate { partition: 0, destination }).unwrap_err();
    assert_eq!(lost, Error::Damaged { object: 30 });
    deck.go(0, 20);
    assert_eq!(deck.run(Command::Read).unwrap_err(), Error::Read(Fault::Medium.into()));
    assert!(matches!(deck.run(Command::SkipDamage), Ok(Outcome::Skipped { objects: 22 })));
    assert_eq!(deck.read(), Some(vec![42; 100_000]));
}

/// Returns a cartridge whose records were overwritten by others of the same length, as if the write of chunk
/// 1 had been lost then.
fn with_a_lost_write(before: &[Vec<u8>], after: &[Vec<u8>]) -> Deck<MemoryFiles> {
    let chunk = 1 << 20..2 << 20;
    let first = FileId::Log { partition: 0, segment: 0 };
    let mut deck = loaded();
    before.iter().for_each(|record| deck.write(record).unwrap());
    deck.unload();
    let old = deck.files.files[&first][chunk.clone()].to_vec();
    deck.load();
    after.iter().for_each(|record| deck.write(record).unwrap());
    deck.unload();
    deck.files.files.get_mut(&first).unwrap()[chunk].copy_from_slice(&old);
    deck.load();
    deck
}

#[test]
fn a_lost_write_does_not_bring_back_what_was_overwritten() {
    let records = |first: u8| (first..first + 40).map(|number| vec![number; 100_000]).collect::<Vec<_>>();
    let mut deck = with_a_lost_write(&records(0), &records(100));
    let (mut read, mut lost) = (Vec::new(), Vec::new());
    loop {
        match deck.run(Command::Read) {
            Ok(Outcome::Record(record)) => read.push(bytes_of(&record.data)[0]),
            Ok(Outcome::EndOfData) => break,
            Err(Error::Damaged { object }) => lost.push((object, skipped(&mut deck))),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lost, [(10, 11)], "the records that chunk 1 held a part of");
    assert_eq!(read, (100..110).chain(121..140).collect::<Vec<u8>>());
    for object in 0..40_u8 {
        let destination = Destination::Object(u64::from(object));
        let found = deck.run(Command::Locate { partition: 0, destination });
        match object {
            12..=20 => assert_eq!(found.unwrap_err(), Error::Damaged { object: u64::from(object) }),
            10 | 11 => {
                let error = Error::Damaged { object: u64::from(object) };
                assert_eq!(deck.run(Command::Read).unwrap_err(), error);
            }
            _ => assert_eq!(deck.read(), Some(vec![100 + object; 100_000])),
        }
    }
}

#[test]
fn a_chunk_of_an_earlier_epoch_within_a_record_is_damage() {
    // Both records have the same bytes, so only the header of the chunk tells that a write was lost.
    let records = [vec![7; 3 << 20]];
    let mut deck = with_a_lost_write(&records, &records);
    assert_eq!(deck.run(Command::Read).unwrap_err(), Error::Damaged { object: 0 });
    assert_eq!(skipped(&mut deck), 1);
    assert_eq!(deck.read(), None);
}

/// Files that return less of a chunk than was asked for.
struct Short(MemoryFiles);

impl Files for Short {
    fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, Failure> {
        match (file, self.0.perform(file, action)?) {
            (FileId::Log { .. }, OpOutput::Data(data)) => Ok(OpOutput::Data(data.slice(0, 8192))),
            (_, output) => Ok(output),
        }
    }
}

#[test]
fn a_read_that_returns_less_than_a_chunk_has_failed() {
    let mut deck = Deck::new(Short(written(1, 100).files));
    let loaded = deck.run(Command::Load { is_writable: false });
    let read = loaded.and_then(|_| deck.run(Command::Read));
    assert_eq!(read.unwrap_err(), Error::Read(Fault::Bug.into()));
}

/// Files with sectors that cannot be read.
struct BadSectors {
    files: MemoryFiles,
    /// Where in the log of partition 0 they are.
    sectors: Vec<u64>,
}

impl Files for BadSectors {
    fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, Failure> {
        if let (OpAction::Read { at, len }, FileId::Log { segment, .. }) = (&action, file) {
            let start = u64::from(segment) * (2 << 20) + at;
            let range = start..start + to_u64(*len);
            if self.sectors.iter().any(|sector| range.contains(sector)) {
                return Err(Fault::Medium.into());
            }
        }
        self.files.perform(file, action)
    }
}

/// Returns a cartridge with 30 records of 10,000 bytes that was not unloaded, and a sector in each of these
/// records that cannot be read.
fn with_bad_sectors(records: &[u64]) -> Deck<BadSectors> {
    let mut deck = loaded();
    for number in 0..30 {
        deck.write(&[number; 10_000]).unwrap();
    }
    deck.run(Command::Synchronize).unwrap();
    let sectors = records.iter().map(|record| 64 + record * 10_112 + 5000).collect();
    Deck::new(BadSectors { files: deck.files, sectors })
}

#[test]
fn a_sector_behind_the_checkpoint_that_cannot_be_read_costs_its_record() {
    for is_writable in [false, true] {
        let mut deck = with_bad_sectors(&[12]);
        let Ok(Outcome::Loaded(report)) = deck.run(Command::Load { is_writable }) else { panic!() };
        let part = report.partitions[0];
        assert_eq!((part.recovered, part.damaged, part.is_end_unreadable), (29, 1, false));
        for number in (0..30).filter(|number| *number != 12) {
            deck.go(0, u64::from(number));
            assert_eq!(deck.read(), Some(vec![number; 10_000]));
        }
        assert_eq!(deck.read(), None);
        deck.go(0, 11);
        deck.read();
        assert_eq!(deck.run(Command::Read).unwrap_err(), Error::Read(Fault::Medium.into()));
        assert!(matches!(deck.run(Command::SkipDamage), Ok(Outcome::Skipped { objects: 1 })));
        assert_eq!(deck.read(), Some(vec![13; 10_000]));
    }
}

#[test]
fn an_end_that_cannot_be_read_is_told_and_not_overwritten() {
    // The padding behind the last record cannot be read either.
    let padding = 64 + 30 * 10_112;
    let mut deck = with_bad_sectors(&[29]);
    deck.files.sectors.push(padding);
    let unreadable = Error::Read(Fault::Medium.into());
    let part = deck.load().partitions[0];
    assert_eq!((part.recovered, part.damaged, part.is_end_unreadable), (29, 0, true));
    deck.go(0, 28);
    assert_eq!(deck.read(), Some(vec![28; 10_000]));
    for _ in 0..2 {
        assert_eq!(deck.run(Command::Read).unwrap_err(), unreadable);
    }
    assert_eq!(deck.write(b"more").unwrap_err(), unreadable);
    assert!(matches!(deck.run(Command::SkipDamage), Ok(Outcome::Skipped { objects: 0 })));
    assert_eq!(deck.read(), None);
    deck.unload();
    // The sector can be read again: nothing was given up.
    deck.files.sectors.clear();
    assert_eq!(deck.load().partitions[0].recovered, 1);
    assert_eq!(deck.read_all(0).len(), 30);
    deck.unload();
    // Overwriting what can be read is no matter of what cannot.
    let mut deck = with_bad_sectors(&[29]);
    deck.files.sectors.push(padding);
    deck.load();
    deck.go(0, 5);
    deck.write(b"new").unwrap();
    assert_eq!(deck.read(), None);
}

#[test]
fn a_read_that_failed_is_tried_again() {
    let mut deck = with_bad_sectors(&[3]);
    deck.load();
    deck.go(0, 3);
    for _ in 0..2 {
        assert_eq!(deck.run(Command::Read).unwrap_err(), Error::Read(Fault::Medium.into()));
    }
    deck.files.sectors.clear();
    assert_eq!(deck.read(), Some(vec![3; 10_000]));
}
