use alloc::borrow::ToOwned as _;
use alloc::vec;
use std::collections::BTreeMap;
use std::println;

use base::rng::Rng;

use super::file::LibraryFileError;
use super::*;

const COUNTS: Counts = Counts { drives: 2, slots: 4, mail_slots: 2 };

fn library() -> Library {
    let mut library = Library::new("ABCD1234".to_owned(), Profile::Lto8, COUNTS).unwrap();
    library.put(Element::Slot(1), "A1", "A00001L8").unwrap();
    library.put(Element::Slot(3), "A3", "A00003L8").unwrap();
    library.put(Element::Mail(2), "A2", "").unwrap();
    library
}

#[test]
fn the_file_of_a_library_is_as_documented() {
    let mut library = library();
    library.move_cartridge(Element::Slot(3), Element::Drive(2)).unwrap();
    library.set_vaulted(Element::Mail(2), true).unwrap();
    let text = "targe-library 1\nserial ABCD1234\nprofile lto8\ndrives 2\nslots 4\nmail-slots 2\n\
                cartridge A2 - vault 2 -\ncartridge A3 A00003L8 drive 2 3\ncartridge A1 A00001L8 slot 1 -\n\
                crc32c baeab16a\n";
    let file = library.encode();
    assert_eq!(core::str::from_utf8(&file).unwrap(), text);
    assert_eq!(Library::decode(&file), Ok(library));
}

#[test]
fn a_damaged_file_is_refused() {
    let file = library().encode();
    for at in 0..file.len() {
        for bit in 0..8 {
            let mut damaged = file.clone();
            damaged[at] ^= 1 << bit;
            assert!(Library::decode(&damaged).is_err(), "byte {at} bit {bit}");
        }
        assert!(Library::decode(&file[..at]).is_err(), "{at} bytes");
    }
    assert_eq!(Library::decode(b"").unwrap_err(), LibraryFileError::NotALibrary);
    assert_eq!(Library::decode(&[0xff; 64]).unwrap_err(), LibraryFileError::NotALibrary);
}

/// Returns a file whose checksum is right.
fn sealed(body: &str) -> Vec<u8> {
    let mut crc = crate::layout::Crc::new();
    crc.update(body.as_bytes());
    alloc::format!("{body}crc32c {:08x}\n", crc.value()).into_bytes()
}

#[test]
fn a_file_with_impossible_lines_is_refused() {
    let head = "targe-library 1\nserial ABCD1234\nprofile lto8\ndrives 2\nslots 4\nmail-slots 2\n";
    let body = |lines: &str| sealed(&alloc::format!("{head}{lines}"));
    let cases = [
        (sealed("targe-library 2\nanything\n"), LibraryFileError::UnknownVersion(2)),
        (sealed("targe-library 1\nserial abc\n"), LibraryFileError::Line(2)),
        (sealed(&head.replace("lto8", "lto4")), LibraryFileError::Line(3)),
        (sealed(&head.replace("drives 2", "drives 0")), LibraryFileError::Value(6, LibraryError::Counts)),
        (sealed(&head.replace("slots 4", "slots 2001")), LibraryFileError::Value(6, LibraryError::Counts)),
        (sealed(&head.replace("ABCD1234", "ABCD123")), LibraryFileError::Value(6, LibraryError::Serial)),
        (body("cartridge A1 - slot 5 -\n"), LibraryFileError::Value(7, LibraryError::NoElement)),
        (body("cartridge ../A1 - slot 1 -\n"), LibraryFileError::Value(7, LibraryError::Name)),
        (body("cartridge A1 a - slot 1 -\n"), LibraryFileError::Line(7)),
        (body("cartridge A1 abc slot 1 -\n"), LibraryFileError::Value(7, LibraryError::Barcode)),
        (
            body("cartridge A1 - slot 1 -\ncartridge A1 - slot 2 -\n"),
            LibraryFileError::Value(8, LibraryError::NameTwice),
        ),
        (
            body("cartridge A1 B slot 1 -\ncartridge A2 B slot 2 -\n"),
            LibraryFileError::Value(8, LibraryError::BarcodeTwice),
        ),
        (
            body("cartridge A1 - slot 1 -\ncartridge A2 - slot 1 -\n"),
            LibraryFileError::Value(8, LibraryError::Full),
        ),
        // Another order, and other digits, than the encoder writes.
        (body("cartridge A1 - slot 2 -\ncartridge A2 - slot 1 -\n"), LibraryFileError::Line(8)),
        (body("cartridge A1 - slot 02 -\n"), LibraryFileError::Line(7)),
    ];
    for (file, expected) in cases {
        assert_eq!(Library::decode(&file).unwrap_err(), expected, "{:?}", core::str::from_utf8(&file));
    }
}

#[test]
fn changes_that_are_not_possible_change_nothing() {
    use Element::{Drive, Mail, Slot};
    use LibraryError as E;
    type Change = fn(&mut Library) -> Result<(), LibraryError>;
    let cases: &[(Change, LibraryError)] = &[
        (|l| l.move_cartridge(Slot(2), Slot(4)), E::Empty),
        (|l| l.move_cartridge(Slot(1), Slot(3)), E::Full),
        (|l| l.move_cartridge(Slot(5), Slot(1)), E::NoElement),
        (|l| l.move_cartridge(Slot(1), Drive(3)), E::NoElement),
        (|l| l.move_cartridge(Slot(1), Mail(0)), E::NoElement),
        (|l| l.move_cartridge(Mail(2), Mail(1)), E::Vaulted),
        (|l| l.exchange(Slot(1), Slot(2), Slot(4)), E::Empty),
        (|l| l.exchange(Slot(1), Slot(3), Mail(2)), E::Full),
        (|l| l.exchange(Slot(1), Slot(3), Slot(3)), E::Full),
        (|l| l.exchange(Slot(1), Mail(2), Slot(1)), E::Vaulted),
        (|l| l.put(Slot(1), "B1", ""), E::Full),
        (|l| l.put(Slot(2), "A1", ""), E::NameTwice),
        (|l| l.put(Slot(2), "B1", "A00001L8"), E::BarcodeTwice),
        (|l| l.put(Slot(2), ".hidden", ""), E::Name),
        (|l| l.put(Slot(2), "a/b", ""), E::Name),
        (|l| l.put(Slot(2), "B1", "lower"), E::Barcode),
        (|l| l.take(Slot(2)).map(drop), E::Empty),
        (|l| l.set_vaulted(Slot(1), true), E::NotMailSlot),
        (|l| l.set_vaulted(Mail(1), true), E::Empty),
    ];
    let mut before = library();
    before.set_vaulted(Mail(2), true).unwrap();
    for (number, (change, expected)) in cases.iter().enumerate() {
        let mut library = before.clone();
        assert_eq!(change(&mut library).unwrap_err(), *expected, "case {number}");
        assert_eq!(library, before, "case {number}");
    }
    assert_eq!(library().set_vaulted(Mail(2), false), Err(E::NotVaulted));
}

#[test]
fn a_cartridge_remembers_the_slot_that_it_came_from() {
    let mut library = library();
    library.move_cartridge(Element::Slot(1), Element::Drive(1)).unwrap();
    library.move_cartridge(Element::Drive(1), Element::Mail(1)).unwrap();
    assert_eq!(library.at(Element::Mail(1)).unwrap().source, Some(1));
    library.exchange(Element::Slot(3), Element::Mail(1), Element::Slot(3)).unwrap();
    assert_eq!(library.at(Element::Slot(3)).unwrap().name, "A1");
    assert_eq!(library.at(Element::Mail(1)).unwrap().source, Some(3));
}

#[test]
fn elements_are_written_as_operators_name_them() {
    let cases = [
        ("5", Ok(Element::Slot(5))),
        ("slot5", Ok(Element::Slot(5))),
        ("mail1", Ok(Element::Mail(1))),
        ("drive2", Ok(Element::Drive(2))),
        ("", Err(LibraryError::ElementName)),
        ("mail", Err(LibraryError::ElementName)),
        ("-1", Err(LibraryError::ElementName)),
        ("65536", Err(LibraryError::ElementName)),
    ];
    for (text, expected) in cases {
        assert_eq!(text.parse::<Element>(), expected, "{text}");
    }
}

/// Random changes beside a map from elements to names. After each, the file is read again.
#[test]
fn random_changes_are_those_of_a_model() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(17);
    println!("SEED={seed}");
    let mut rng = Rng::from_seed(seed);
    let mut library = Library::new("ABCD1234".to_owned(), Profile::Lto9, COUNTS).unwrap();
    let elements: Vec<Element> = library.elements().collect();
    let mut model: BTreeMap<Element, (String, bool)> = BTreeMap::new();
    let mut next = 0;
    for _ in 0..4000 {
        let mut any = || elements[usize::try_from(rng.below(8)).unwrap()];
        let [from, to, other] = [any(), any(), any()];
        let is_free = |model: &BTreeMap<Element, (String, bool)>, at| !model.contains_key(&at);
        let is_movable =
            |model: &BTreeMap<Element, (String, bool)>, at| model.get(&at).is_some_and(|held| !held.1);
        match rng.below(6) {
            0 => {
                let name = alloc::format!("C{next}");
                next += 1;
                let put = library.put(to, &name, &name).is_ok();
                assert_eq!(put, is_free(&model, to));
                if put {
                    model.insert(to, (name, false));
                }
            }
            1 => assert_eq!(
                library.take(from).ok().map(|held| held.name),
                model.remove(&from).map(|held| held.0)
            ),
            2 => {
                let vault = rng.chance(1, 3);
                let held = model.get_mut(&from).filter(|_| matches!(from, Element::Mail(_)));
                let fits = held.as_ref().is_some_and(|held| vault || held.1);
                assert_eq!(library.set_vaulted(from, vault).is_ok(), fits);
                held.into_iter().for_each(|held| held.1 = vault);
            }
            3 => {
                let fits = is_movable(&model, from)
                    && is_movable(&model, to)
                    && from != to
                    && to != other
                    && (other == from || is_free(&model, other));
                assert_eq!(library.exchange(from, to, other).is_ok(), fits);
                if fits {
                    let (one, two) = (model.remove(&from).unwrap(), model.remove(&to).unwrap());
                    model.extend(vec![(to, one), (other, two)]);
                }
            }
            _ => {
                let fits = is_movable(&model, from) && (from == to || is_free(&model, to));
                assert_eq!(library.move_cartridge(from, to).is_ok(), fits);
                if fits {
                    let held = model.remove(&from).unwrap();
                    model.insert(to, held);
                }
            }
        }
        let held = |one: &StoredCartridge| (one.element, (one.name.clone(), one.is_vaulted));
        assert_eq!(library.cartridges().iter().map(held).collect::<BTreeMap<_, _>>(), model);
        assert_eq!(Library::decode(&library.encode()).as_ref(), Ok(&library));
    }
}

#[test]
fn a_motion_to_the_same_element_changes_nothing() {
    let mut moved = library();
    moved.move_cartridge(Element::Slot(1), Element::Slot(1)).unwrap();
    assert_eq!(moved, library());
    assert_eq!(moved.move_cartridge(Element::Slot(2), Element::Slot(2)), Err(LibraryError::Empty));
}
