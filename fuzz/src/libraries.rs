//! The owner of a tape library beside a medium changer: an operator at work, and files that cannot be written.

use base::rng::Rng;
use cartridge::library::{Counts, Element, Library};
use cartridge::profile::Profile;
use device::library::{ChangeFailure, LibraryEvent, LibraryInput, OperatorChange};
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
            let failure = ChangeFailure { sense, unusable: Some("F1".into()), why: String::new() };
            Some(LibraryInput::Changed(if fails { Err(failure) } else { Ok(()) }))
        }
        LibraryEvent::Ejected(_) => Some(LibraryInput::Inserted),
        LibraryEvent::OperatorDone { .. } => None,
    }
}

/// Puts addresses of elements into the CDB of a command that moves cartridges or lists them, most of the time.
pub fn put_elements(cdb: &mut [u8], rng: &mut Rng) {
    /// Elements of a library, one that it does not have, and none.
    const ELEMENTS: &[u16] = &[0, 1, 10, 11, 500, 501, 1000, 1001, 1002, 1003];
    let words = match cdb[0] {
        0xa5 => 2..4,
        0xa6 => 2..5,
        0xb8 => 1..2,
        _ => return,
    };
    if rng.chance(3, 4) {
        for at in words.map(|word| word * 2) {
            let element = ELEMENTS[usize::try_from(rng.below(ELEMENTS.len() as u64)).unwrap()];
            cdb[at..at + 2].copy_from_slice(&element.to_be_bytes());
        }
    }
}
