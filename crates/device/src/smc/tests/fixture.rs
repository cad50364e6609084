//! The fixture of these tests, beside [`crate::testing`]: a changer whose owner is the test.

pub(super) use alloc::borrow::ToOwned as _;
pub(super) use alloc::boxed::Box;
pub(super) use alloc::string::String;
pub(super) use alloc::vec;
pub(super) use alloc::vec::Vec;

pub(super) use base::time::Instant;
pub(super) use cartridge::library::{Counts, Element, Library};
pub(super) use cartridge::profile::Profile;
pub(super) use scsi::sense::{Asc, Sense, SenseKey};
use store::null::Null;

pub(super) use crate::contract::{DeviceKind, UnitConfig, UnitEvent};
pub(super) use crate::library::{
    ChangeFailure, DriveName, LibraryChange, LibraryEvent, LibraryInput, MotionFailure, OperatorChange,
};
pub(super) use crate::testing::{A, B, Reply, Rig, config};

/// The addresses of the elements that the tests use.
pub(super) const MAIL_1: u16 = 10;
pub(super) const MAIL_2: u16 = 11;
pub(super) const DRIVE_1: u16 = 500;
pub(super) const DRIVE_2: u16 = 501;
pub(super) const SLOT_1: u16 = 1000;
pub(super) const SLOT_2: u16 = 1001;
pub(super) const SLOT_3: u16 = 1002;
pub(super) const SLOT_4: u16 = 1003;

/// Returns a library with two drives, four slots and two mail slots; cartridges are in slots 1 and 2, in
/// drive 2 and in mail slot 2.
pub(super) fn library() -> Library {
    let counts = Counts { drives: 2, slots: 4, mail_slots: 2 };
    let mut library = Library::new("LIB00001".to_owned(), Profile::Lto8, counts).unwrap();
    for (element, name) in [
        (Element::Slot(1), "A00001L8"),
        (Element::Slot(2), "A00002L8"),
        (Element::Slot(3), "A00003L8"),
        (Element::Mail(2), "A00004L8"),
    ] {
        library.put(element, name, name).unwrap();
    }
    library.move_cartridge(Element::Slot(3), Element::Drive(2)).unwrap();
    library
}

/// Returns the configuration of a changer.
pub(super) fn configuration() -> UnitConfig {
    UnitConfig { device: DeviceKind::Changer, removable: true, long_cdbs: false, thin: false, ..config() }
}

/// Returns a changer with the library that [`library`] returns.
pub(super) fn changer() -> Rig {
    let mut rig = Rig::with(configuration(), Box::new(Null::new(0)));
    rig.tell(LibraryInput::Install { file: library().encode(), unusable: Vec::new() });
    let drive = DriveName { vendor: *b"IBM     ", product: *b"ULT3580-TD8     " };
    rig.tell(LibraryInput::Drives(vec![drive; 2]));
    rig
}

/// Returns a CDB with words from byte 2 on.
pub(super) fn cdb_of(opcode: u8, len: usize, words: &[u16]) -> Vec<u8> {
    let mut cdb = vec![opcode, 0];
    cdb.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    cdb.resize(len, 0);
    cdb
}

pub(super) fn move_medium(from: u16, to: u16) -> Vec<u8> {
    cdb_of(0xa5, 12, &[0, from, to])
}

pub(super) fn exchange(from: u16, first: u16, second: u16) -> Vec<u8> {
    cdb_of(0xa6, 12, &[1, from, first, second])
}

/// Returns the CDB of READ ELEMENT STATUS of all elements.
pub(super) fn status(flags: u8, start: u16, count: u16, more: u8, allocation: u32) -> [u8; 12] {
    let ([a, b], [c, d], [_, e, f, g]) = (start.to_be_bytes(), count.to_be_bytes(), allocation.to_be_bytes());
    [0xb8, flags, a, b, c, d, more, e, f, g, 0, 0]
}

impl Rig {
    pub(super) fn tell(&mut self, input: LibraryInput) {
        self.unit.library_input(Instant::ORIGIN, input);
        self.drain();
    }

    /// Takes the next event for the owner of the library.
    pub(super) fn asked(&mut self) -> Option<LibraryEvent> {
        let at = self.events.iter().position(|event| matches!(event, UnitEvent::Library(_)))?;
        match self.events.remove(at)? {
            UnitEvent::Library(event) => Some(event),
            _ => None,
        }
    }

    /// Takes the change that the changer asks for.
    #[track_caller]
    pub(super) fn change(&mut self) -> LibraryChange {
        match self.asked() {
            Some(LibraryEvent::Change(change)) => change,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a command that moves cartridges, and makes the change.
    #[track_caller]
    pub(super) fn moves(&mut self, cdb: &[u8]) -> Reply {
        let key = self.start(A, cdb, 0, 0);
        if let Some(LibraryEvent::Change(_)) = self.asked() {
            self.tell(LibraryInput::Changed(Ok(())));
        }
        self.finish(key, &[])
    }

    /// Returns where the cartridges are: addresses and bar codes.
    #[track_caller]
    pub(super) fn inventory(&mut self) -> Vec<(u16, String)> {
        let data = self.run(A, &status(0x10, 0, 0xffff, 0, 0xff_ffff), 1 << 20, &[]).good();
        descriptors(&data)
            .into_iter()
            .filter(|(_, descriptor)| descriptor[2] & 1 != 0)
            .map(|(_, descriptor)| {
                let tag = core::str::from_utf8(&descriptor[12..44]).unwrap();
                (u16::from_be_bytes([descriptor[0], descriptor[1]]), tag.trim().to_owned())
            })
            .collect()
    }
}

/// Splits element status data into descriptors, each with the header of its page; checks all counts.
#[track_caller]
pub(super) fn descriptors(data: &[u8]) -> Vec<(&[u8], &[u8])> {
    let count24 = |at: &[u8]| usize::try_from(u32::from_be_bytes([0, at[0], at[1], at[2]])).unwrap();
    assert_eq!(count24(&data[5..]), data.len() - 8, "the byte count of the report");
    let (mut rest, mut found) = (&data[8..], Vec::new());
    while !rest.is_empty() {
        let (header, behind) = rest.split_at(8);
        let (page, next) = behind.split_at(count24(&header[5..]));
        let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        assert_eq!(page.len() % len, 0, "whole descriptors");
        found.extend(page.chunks(len).map(|descriptor| (header, descriptor)));
        rest = next;
    }
    assert_eq!(found.len(), usize::from(u16::from_be_bytes([data[2], data[3]])), "the number of elements");
    found
}
