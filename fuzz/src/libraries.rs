//! The owner of a tape library beside a medium changer: an operator, and files that cannot be written.

use base::rng::Rng;
use cartridge::library::{Counts, Element, Library};
use cartridge::profile::Profile;
use device::library::{ChangeFailure, LibraryEvent, LibraryInput, MotionFailure, OperatorChange};
use scsi::sense::{Asc, Sense, SenseKey};

/// Tells a changer of a library with two drives, three slots and two mail slots, and three cartridges.
pub fn install() -> LibraryInput {
    let counts = Counts { drives: 2, slots: 3, mail_slots: 2 };
    let mut library = Library::new("FUZZ0001".into(), Profile::Lto8, counts).expect("a possible library");
    for (element, name) in [(Element::Slot(1), "F1"), (Element::Drive(2), "F2"), (Element::Mail(1), "F3")] {
        library.put(element, name, name).expect("a free element");
    }
    LibraryInput::Install { file: library.encode(), unusable: vec!["F2".into()] }
}

/// What an operator does.
pub fn operator(choice: u8) -> LibraryInput {
    let number = u16::from(choice >> 3 & 1) + 1;
    let change = match choice >> 1 & 3 {
        0 => OperatorChange::Load(Element::Slot(3), vec![("F9".into(), String::new())]),
        1 => OperatorChange::Eject(Element::Slot(3)),
        other => OperatorChange::Vault(Element::Mail(number), other == 2),
    };
    LibraryInput::Operator { ticket: u64::from(choice), change }
}

/// Answers as the owner of a library. A cartridge that a drive gives up comes back at once.
pub fn answer(event: &LibraryEvent, fails: bool) -> Option<LibraryInput> {
    match event {
        LibraryEvent::Change(change) => {
            let library = Library::decode(&change.file).expect("the file of a library");
            assert!(library.cartridges().len() <= 4, "no cartridge is there twice");
            let sense = Sense::new(SenseKey::MEDIUM_ERROR, Asc::MEDIA_LOAD_OR_EJECT_FAILED);
            let status = MotionFailure::CheckCondition(sense);
            let failure = ChangeFailure { status, unusable: Some("F1".into()), why: String::new() };
            Some(LibraryInput::Changed(if fails { Err(failure) } else { Ok(()) }))
        }
        LibraryEvent::Ejected(_) => Some(LibraryInput::Inserted),
        LibraryEvent::OperatorDone { .. } => None,
    }
}

/// Makes an input of commands for a medium changer, so that a corpus begins with motions, and with what comes
/// between them.
pub fn motions(seed: u64) -> Vec<u8> {
    /// Elements of the library, one that it does not have, and none.
    const ELEMENTS: &[u16] = &[0, 1, 10, 11, 500, 501, 1000, 1001, 1002, 1003];
    let mut rng = Rng::from_seed(seed);
    let mut input = vec![0xb0];
    for _ in 0..rng.below(40) {
        let mut any = |from: &[u16]| from[usize::try_from(rng.below(from.len() as u64)).unwrap()];
        let [a, b, c] = [any(ELEMENTS), any(ELEMENTS), any(ELEMENTS)];
        let (words, tail): ([u16; 4], [u8; 2]) = match any(&[0xa5, 0xa6, 0xb8, 0x1e, 0x2b]) {
            0xa5 => ([0xa500, 0, a, b], [0, 0]),
            0xa6 => ([0xa600, 1, a, b], c.to_be_bytes()),
            0xb8 => ([0xb810 | any(&[0, 1, 2, 3, 4]), a, any(&[0, 1, 5, 0xffff]), any(&[0, 0x0100, 0x0300])], [1, 0]),
            0x1e => ([0x1e00, 0, any(&[0, 0x0100]), 0], [0, 0]),
            _ => ([0x2b00, 0, a, 0], [0, 0]),
        };
        let mut cdb: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).chain(tail).collect();
        cdb.resize(if cdb[0] == 0x1e { 6 } else if cdb[0] == 0x2b { 10 } else { 12 }, 0);
        let nexus = any(&[0, 1, 2]).to_be_bytes()[1];
        let mut bytes = vec![nexus, 0, 0x40, 0, 0, 0, 0, u8::try_from(cdb.len()).unwrap()];
        bytes.extend(cdb);
        let (mut which, mut choice) = (0, 0);
        if rng.chance(1, 4) {
            // Something that comes between commands: an operator, or an abort.
            (which, choice) = (4 + u8::from(rng.chance(1, 2)), 0xc0 | u8::try_from(rng.below(64)).unwrap());
        }
        if which != 0 {
            bytes[0] = choice;
        }
        input.push(which);
        input.extend(u16::try_from(bytes.len()).unwrap().to_be_bytes());
        input.extend(bytes);
    }
    input
}
