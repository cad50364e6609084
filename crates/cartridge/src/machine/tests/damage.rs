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
    for place in [64 + 64 + 30_000, 64 + 8] {
        let mut deck = written(30, 100_000);
        damage(&mut deck, place + 3 * item_len);
        deck.load();
        let mut read = Vec::new();
        loop {
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
