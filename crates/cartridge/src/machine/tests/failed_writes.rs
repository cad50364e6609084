//! Writes of the log that fail: what is told of them, what stays, and what a crash finds of them.

use super::*;

/// Files whose writes fail from some time on.
struct Failing {
    files: MemoryFiles,
    writes_left: u32,
    fault: Fault,
    /// Whether the writes that fail write everything before that.
    is_written: bool,
    /// Whether flushes of the log and writes of the label fail too.
    is_dead: bool,
}

impl Failing {
    fn new(writes_left: u32, fault: Fault) -> Self {
        Self { files: loaded().files, writes_left, fault, is_written: false, is_dead: false }
    }
}

impl Files for Failing {
    fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, Failure> {
        let is_failing = match (&action, file) {
            (OpAction::Write { .. }, FileId::Log { .. }) if self.writes_left == 0 => {
                if self.is_written {
                    self.files.perform(file, action)?;
                }
                return Err(self.fault.into());
            }
            (OpAction::Write { .. }, FileId::Log { .. }) => {
                self.writes_left -= 1;
                false
            }
            (OpAction::Flush, FileId::Log { .. }) | (OpAction::Write { .. }, FileId::Label) => self.is_dead,
            _ => false,
        };
        if is_failing { Err(self.fault.into()) } else { self.files.perform(file, action) }
    }
}

#[test]
fn a_failed_write_is_told_and_the_next_load_ends_before_it() {
    let mut deck = Deck::new(Failing::new(3, Fault::Medium));
    deck.load();
    let mut error = None;
    for number in 0..100 {
        error = deck.write(&[number; 100_000]).err();
        if error.is_some() {
            break;
        }
    }
    let lost = Error::WriteLost { failure: Fault::Medium.into(), is_flush: false };
    assert_eq!(error, Some(lost));
    assert_eq!(deck.run(Command::Synchronize).unwrap_err(), lost);
    assert_eq!(deck.run(Command::Read).unwrap_err(), lost);
    // Once the owner has told of it, everything but writing goes on.
    deck.cartridge.loss_told();
    deck.go(0, 0);
    assert_eq!(deck.read(), Some(vec![0; 100_000]));
    assert_eq!(deck.write(b"more").unwrap_err(), lost);
    assert_eq!(deck.run(Command::Unload).unwrap_err(), lost);
    deck.files.writes_left = 1000;
    assert_eq!(deck.load().partitions[0], Default::default(), "the label tells the end");
    let found = deck.cartridge.partition(0).unwrap().objects;
    assert!((28..=31).contains(&found), "{found}");
    deck.run(Command::Locate { partition: 0, destination: Destination::EndOfData }).unwrap();
    deck.write(b"goes on").unwrap();
    let all = deck.read_all(0);
    assert_eq!(all.last().unwrap(), b"goes on");
    assert!((0..).zip(&all[..all.len() - 1]).all(|(number, object)| *object == [number; 100_000]));
}

/// Returns a cartridge whose files are full from the fourth write of a log on.
fn filling() -> Deck<Failing> {
    let mut deck = Deck::new(Failing::new(3, Fault::NoSpace));
    deck.load();
    deck
}

#[test]
fn a_full_file_system_ends_the_data_behind_the_last_object_in_the_files() {
    let mut deck = filling();
    let mut filed = 0;
    loop {
        // As a drive does: a record counts when it is in the files.
        let written = deck.write(&[filed; 900_000]).and_then(|()| deck.run(Command::Drain).map(drop));
        match written {
            Ok(()) => filed += 1,
            Err(error) => break assert_eq!(error, Error::StorageFull),
        }
    }
    assert!(filed > 0);
    let expected: Vec<Vec<u8>> = (0..filed).map(|number| vec![number; 900_000]).collect();
    assert!(!deck.cartridge.has_lost_writes() && !deck.cartridge.is_unfiled());
    assert_eq!(deck.cartridge.position().object, u64::from(filed));
    // Movements, reads and unloads go on, and so do writes when there is space again.
    assert_eq!(deck.read(), None);
    assert_eq!(deck.read_all(0), expected);
    deck.run(Command::Synchronize).unwrap();
    assert!(deck.cartridge.is_movable());
    assert_eq!(
        deck.write(&[9; 900_000]).and_then(|()| deck.run(Command::Drain).map(drop)),
        Err(Error::StorageFull)
    );
    assert_eq!(deck.read_all(0), expected);
    deck.unload();
    assert_eq!(deck.load().partitions[0], Default::default(), "nothing to recover");
    assert_eq!(deck.read_all(0), expected);
    deck.files.writes_left = 1000;
    deck.write(b"goes on").unwrap();
    deck.mark(1);
    let mut crashed = Deck::new(deck.files.files);
    crashed.load();
    let all = crashed.read_all(0);
    assert_eq!(all[..expected.len()], expected);
    assert_eq!(all[expected.len()..], [b"goes on".to_vec(), Vec::new()]);
}

#[test]
fn records_that_were_written_before_the_file_system_was_full_stay() {
    // One record of several chunks that are in the files, and one that is not.
    let mut deck = filling();
    let error = (0..100).find_map(|number| deck.write(&[number; 100_000]).err());
    assert_eq!(error, Some(Error::StorageFull));
    let filed = deck.cartridge.position().object;
    assert!((28..=31).contains(&filed), "three chunks are in the files: {filed}");
    let all = deck.read_all(0);
    assert_eq!(to_u64(all.len()), filed);
    assert!((0..).zip(&all).all(|(number, object)| *object == [number; 100_000]));
}

#[test]
fn an_unload_tells_what_did_not_fit_and_unloads() {
    let mut deck = filling();
    deck.files.writes_left = 0;
    deck.write(&[1; 1000]).unwrap();
    assert_eq!(deck.run(Command::Unload).unwrap_err(), Error::StorageFull);
    assert_eq!(deck.run(Command::Unload).unwrap_err(), Error::NotLoaded);
    deck.load();
    assert_eq!(deck.read_all(0), [[0; 0]; 0]);
}

/// Writes records that are acknowledged as a drive does, until one fails.
fn write_until_failure(deck: &mut Deck<Failing>) -> (Vec<Vec<u8>>, Error) {
    let mut acknowledged = Vec::new();
    loop {
        let record = vec![u8::try_from(acknowledged.len()).unwrap(); 300_000];
        match deck.write(&record).and_then(|()| deck.run(Command::Drain).map(drop)) {
            Ok(()) => acknowledged.push(record),
            Err(error) => return (acknowledged, error),
        }
    }
}

#[test]
fn blocks_that_were_given_up_do_not_come_back_after_a_kill() {
    for fault in [Fault::NoSpace, Fault::Medium] {
        let mut deck = Deck::new(Failing { is_written: true, ..Failing::new(8, fault) });
        deck.load();
        let (acknowledged, error) = write_until_failure(&mut deck);
        assert_eq!(matches!(error, Error::WriteLost { .. }), fault == Fault::Medium, "{error:?}");
        let told = deck.cartridge.partition(0).unwrap().objects;
        assert_eq!(told, to_u64(acknowledged.len()));
        // What the failed write has brought into the file is whole.
        let mut killed = Deck::new(deck.files.files);
        assert_eq!(killed.load().partitions[0], Default::default(), "nothing is behind the label");
        assert_eq!(killed.read_all(0), acknowledged);
        killed.write(b"goes on").unwrap();
        killed.mark(1);
        let mut killed = Deck::new(killed.files);
        killed.load();
        assert_eq!(killed.read_all(0)[acknowledged.len()..], [b"goes on".to_vec(), Vec::new()]);
    }
}

#[test]
fn a_record_of_several_writes_that_was_given_up_does_not_come_back() {
    // The first writes of a record of 8 MiB succeed.
    let mut deck = Deck::new(Failing { is_written: true, ..Failing::new(9, Fault::NoSpace) });
    deck.load();
    deck.write(&[1; 1000]).unwrap();
    deck.run(Command::Drain).unwrap();
    let written = deck.write(&vec![2; 8 << 20]).and_then(|()| deck.run(Command::Drain).map(drop));
    assert_eq!(written, Err(Error::StorageFull));
    assert_eq!(deck.cartridge.position().object, 1);
    let mut killed = Deck::new(deck.files.files);
    killed.load();
    assert_eq!(killed.read_all(0), [vec![1; 1000]]);
}

#[test]
fn a_write_that_fails_with_everything_else_is_told_as_a_loss() {
    let mut deck = Deck::new(Failing { is_written: true, ..Failing::new(4, Fault::NoSpace) });
    deck.load();
    deck.write(&[1; 1000]).unwrap();
    deck.run(Command::Synchronize).unwrap();
    deck.files.is_dead = true;
    let (_, error) = write_until_failure(&mut deck);
    assert!(matches!(error, Error::WriteLost { is_flush: true, .. }), "acknowledged records too: {error:?}");
}

#[test]
fn a_label_that_cannot_be_written_says_later_what_was_given_up() {
    /// Files with a label that cannot be written.
    struct Labelless(Failing, bool);

    impl Files for Labelless {
        fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, Failure> {
            match (file, &action) {
                (FileId::Label, OpAction::Write { .. }) if self.1 => Err(Fault::NoSpace.into()),
                _ => self.0.perform(file, action),
            }
        }
    }

    let files = Failing { is_written: true, ..Failing::new(2, Fault::NoSpace) };
    let mut deck = Deck::new(Labelless(files, false));
    deck.load();
    deck.write(&[1; 1000]).unwrap();
    deck.run(Command::Synchronize).unwrap();
    deck.files.1 = true;
    deck.write(&[2; 1000]).unwrap();
    deck.run(Command::Drain).unwrap();
    let written = deck.write(&[3; 1000]).and_then(|()| deck.run(Command::Drain).map(drop));
    assert_eq!(written, Err(Error::StorageFull));
    assert_eq!(deck.read_all(0), [[1; 1000], [2; 1000]]);
    deck.files.1 = false;
    deck.run(Command::Synchronize).unwrap();
    let mut killed = Deck::new(deck.files.0.files);
    killed.load();
    assert_eq!(killed.read_all(0), [[1; 1000], [2; 1000]]);
}
