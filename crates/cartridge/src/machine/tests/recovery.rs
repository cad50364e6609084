//! How much a load recovers after a crash, and what is left of it when it is interrupted.

use super::*;

/// The records of these tests.
const RECORD_LEN: usize = 500_000;
const RECORDS: u8 = 80;

/// Writes records without synchronising, and returns the files as a crash leaves them.
fn crashed() -> MemoryFiles {
    let mut deck = loaded();
    write_records(&mut deck);
    deck.files
}

fn write_records(deck: &mut Deck<MemoryFiles>) {
    for number in 0..RECORDS {
        deck.write(&[number; RECORD_LEN]).unwrap();
        deck.run(Command::Drain).unwrap();
    }
}

/// The same, as if the label had never been written since the first record.
fn crashed_without_checkpoint() -> MemoryFiles {
    let mut deck = loaded();
    deck.write(b"first").unwrap();
    deck.run(Command::Drain).unwrap();
    let label = deck.files.files[&FileId::Label].clone();
    write_records(&mut deck);
    assert_ne!(deck.files.files[&FileId::Label], label);
    deck.files.files.insert(FileId::Label, label);
    deck.files
}

fn check_records(all: &[Vec<u8>]) {
    assert_eq!(all.len(), usize::from(RECORDS));
    assert!((0..).zip(all).all(|(number, record)| *record == [number; RECORD_LEN]));
}

#[test]
fn a_host_that_does_not_synchronise_leaves_little_to_recover() {
    let mut deck = Deck::new(crashed());
    let recovered = deck.load().partitions[0].recovered;
    let len = recovered * to_u64(RECORD_LEN);
    assert!(len < (16 << 20) + (2 << 20), "{len} bytes of {}", usize::from(RECORDS) * RECORD_LEN);
    check_records(&deck.read_all(0));
}

/// Files of a machine that is switched off after some operations.
struct Ending {
    files: MemoryFiles,
    operations_left: u32,
}

impl Files for Ending {
    fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, Failure> {
        self.operations_left = self.operations_left.checked_sub(1).ok_or(Fault::Gone)?;
        self.files.perform(file, action)
    }
}

#[test]
fn a_load_that_is_interrupted_goes_on_where_it_was() {
    let mut files = crashed_without_checkpoint();
    let mut deck = Deck::new(files.clone());
    let all = deck.load().partitions[0].recovered;
    assert_eq!(all, u64::from(RECORDS) + 1, "without an interruption everything is recovered");
    let mut loads = 0;
    let recovered = loop {
        let mut deck = Deck::new(Ending { files, operations_left: 34 });
        let loaded = deck.run(Command::Load { is_writable: true });
        files = deck.files.files;
        loads += 1;
        if let Ok(Outcome::Loaded(report)) = loaded {
            break report.partitions[0].recovered;
        }
        assert!(loads < 20, "it begins at zero each time");
    };
    assert!(loads > 1 && recovered < all, "{loads} loads, {recovered} records in the last one");
    let mut deck = Deck::new(files);
    deck.load();
    let objects = deck.read_all(0);
    assert_eq!(objects[0], b"first");
    check_records(&objects[1..]);
}

#[test]
fn a_load_tells_how_far_it_is() {
    let mut files = crashed_without_checkpoint();
    let mut cartridge = Cartridge::new();
    let mut told = Vec::new();
    cartridge.handle_command(Command::Load { is_writable: true });
    while let Some(request) = cartridge.poll_request() {
        told.extend(cartridge.load_progress());
        let result = files.perform(request.file, request.action);
        cartridge.handle_completion(request.id, result);
    }
    assert!(cartridge.poll_outcome().unwrap().is_ok());
    assert!(told.is_sorted() && told.iter().all(|(_, total)| *total == 64 << 20), "{told:?}");
    assert!(told.last().unwrap().0 > 39_000_000, "{told:?}");
    assert_eq!(cartridge.load_progress(), None);
}

#[test]
fn a_label_that_cannot_be_written_keeps_no_cartridge_from_being_loaded() {
    /// Files whose label cannot be written.
    struct Sealed(MemoryFiles);

    impl Files for Sealed {
        fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, Failure> {
            match (file, &action) {
                (FileId::Label, OpAction::Write { .. }) => Err(Fault::NoSpace.into()),
                _ => self.0.perform(file, action),
            }
        }
    }

    let mut deck = Deck::new(Sealed(crashed_without_checkpoint()));
    deck.load();
    check_records(&deck.read_all(0)[1..]);
    // Everything is in the log, and the next load finds it there.
    deck.unload();
    deck.load();
    check_records(&deck.read_all(0)[1..]);
}
