//! Drives of a library: their cartridges are given up and put in, alone and together with a changer.

use std::collections::BTreeMap;
use std::println;

use base::rng::Rng;
use cartridge::library::{Counts, Element, Library};
use store::Store;
use store::api::{Capabilities, Completion, Op};
use store::null::Null;

use super::encryption::{self, ALL, ENCRYPT, KEY};
use super::*;
use crate::contract::{TAPE_TRANSFER_MAX, UnitEvent};
use crate::drain::Drain;
use crate::library::{ChangeFailure, LibraryChange, LibraryEvent, LibraryInput, OperatorChange};
use crate::testing::nexus;

/// The place for a cartridge in a drive. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Bay(Rc<RefCell<Option<Folder>>>);

impl Bay {
    pub(super) fn put(&self, folder: Option<Folder>) {
        *self.0.borrow_mut() = folder;
    }
}

impl Store for Bay {
    fn capabilities(&self) -> Capabilities {
        match &*self.0.borrow() {
            Some(folder) => folder.capabilities(),
            None => Null::new(0).capabilities(),
        }
    }

    fn submit(&mut self, op: Op) {
        self.0.borrow_mut().as_mut().expect("a cartridge").submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().as_mut()?.poll()
    }
}

/// Returns a drive with such a cartridge or none.
pub(super) fn drive_with(folder: Option<Folder>) -> (Rig, Bay) {
    let bay = Bay::default();
    bay.put(folder);
    (Rig::with(drive(), Box::new(bay.clone())), bay)
}

impl Rig {
    pub(super) fn tell_library(&mut self, input: LibraryInput) {
        self.unit.library_input(Instant::ORIGIN, input);
        self.drain();
    }

    fn next_event(&mut self) -> Option<LibraryEvent> {
        let at = self.events.iter().position(|event| matches!(event, UnitEvent::Library(_)))?;
        match self.events.remove(at)? {
            UnitEvent::Library(event) => Some(event),
            _ => None,
        }
    }

    /// Lets the drive give up its cartridge; returns the answer if there is one now.
    pub(super) fn eject(&mut self) -> Option<Result<(), (SenseKey, Asc)>> {
        self.tell_library(LibraryInput::Eject);
        self.ejected()
    }

    fn ejected(&mut self) -> Option<Result<(), (SenseKey, Asc)>> {
        match self.next_event()? {
            LibraryEvent::Ejected(result) => Some(result.map_err(|sense| (sense.key, sense.asc))),
            other => panic!("{other:?}"),
        }
    }
}

const NOT_PRESENT: (SenseKey, Asc) = (SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT);
const FAILED: (SenseKey, Asc) = (SenseKey::MEDIUM_ERROR, Asc::MEDIA_LOAD_OR_EJECT_FAILED);

#[test]
fn an_empty_drive_refuses_what_needs_a_cartridge_and_takes_one_in() {
    let (mut rig, bay) = drive_with(None);
    for cdb in [&[0; 6][..], &cdb_6(op::READ_6, 0, 100), &[0x1b, 0, 0, 0, 1, 0], &[1, 0, 0, 0, 0, 0]] {
        assert_eq!(rig.run(A, cdb, 4096, &[]).sense, Some(NOT_PRESENT), "{cdb:02x?}");
    }
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    assert!(!rig.unit.is_medium_present());
    bay.put(Some(Folder::new(Kind::USUAL)));
    rig.tell_library(LibraryInput::Inserted);
    for nexus in [A, B] {
        rig.test_ready(nexus).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        rig.test_ready(nexus).good();
    }
    rig.write_block(&pattern(100, 1)).good();
}

#[test]
fn a_cartridge_is_made_durable_before_it_leaves() {
    let folder = Folder::new(Kind::USUAL);
    let (mut rig, bay) = drive_with(Some(folder.clone()));
    rig.write_block(&pattern(100, 1)).good();
    assert_eq!(rig.eject(), Some(Ok(())));
    bay.put(None);
    assert_eq!(rig.test_ready(A).sense, Some(NOT_PRESENT));
    // No flush follows, and no power.
    let (mut other, _) = drive_with(Some(folder.after_power_loss()));
    assert_eq!(other.read_block(100).good(), pattern(100, 1));
    // Another cartridge has nothing of the first one.
    bay.put(Some(Folder::new(Kind::USUAL)));
    rig.tell_library(LibraryInput::Inserted);
    rig.test_ready(A).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    assert_eq!(rig.position(), (0, 0, 0));
    rig.read_block(100).stopped(END_OF_DATA, 0, Some(100));
}

#[test]
fn a_cartridge_leaves_when_the_command_that_uses_it_has_ended() {
    let folder = Folder::new(Kind::USUAL);
    let (mut rig, _) = drive_with(Some(folder.clone()));
    rig.write_block(&pattern(100, 1)).good();
    folder.answer(false);
    let mark = rig.start(A, &cdb_6(op::WRITE_FILEMARKS_6, 0, 1), 0, 0);
    let read = rig.start(B, &cdb_6(op::READ_6, 0, 100), 100, 0);
    assert_eq!(rig.eject(), None);
    folder.answer(true);
    rig.ready();
    rig.finish(mark, &[]).good();
    assert_eq!(rig.ejected(), Some(Ok(())));
    assert_eq!(rig.finish(read, &[]).sense, Some(NOT_PRESENT));
}

#[test]
fn a_key_whose_list_is_awaited_while_a_cartridge_comes_is_set() {
    for clears_on_demount in [false, true] {
        let (mut rig, bay) = drive_with(Some(Folder::new(Kind::USUAL)));
        rig.unit.seed(&[5; 32]);
        let third = NexusId(7);
        rig.unit.nexus_established(Instant::ORIGIN, nexus(third));
        rig.run(third, &[0; 6], 0, &[])
            .check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
        // The data of two long WRITEs are awaited, so the parameter list is requested in its turn only.
        let longest = cdb_6(op::WRITE_6, 0, TAPE_TRANSFER_MAX);
        let len = usize::try_from(TAPE_TRANSFER_MAX).unwrap();
        let writes = [A, B].map(|nexus| rig.start(nexus, &longest, 0, len));
        assert_eq!(rig.eject(), Some(Ok(())));
        bay.put(None);
        let list = encryption::page(ALL, if clears_on_demount { 0x04 } else { 0 }, ENCRYPT, &KEY, &[]);
        let list_len = u8::try_from(list.len()).unwrap();
        let cdb = [0xb5, 0x20, 0, 0x10, 0, 0, 0, 0, 0, list_len, 0, 0];
        let key = rig.start(third, &cdb, 0, list.len());
        bay.put(Some(Folder::new(Kind::USUAL)));
        rig.tell_library(LibraryInput::Inserted);
        let reply = rig.finish(key, &list);
        if clears_on_demount {
            // The key was to be forgotten with a cartridge that was in the drive when the host sent it.
            reply.check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        } else {
            reply.good();
        }
        for write in writes {
            let reply = rig.finish(write, &pattern(len, 1));
            reply.check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        }
    }
}

#[test]
fn a_host_keeps_the_cartridge_in_its_drive() {
    let (mut rig, _) = drive_with(Some(Folder::new(Kind::USUAL)));
    rig.run(B, &[0x1e, 0, 0, 0, 1, 0], 0, &[]).good();
    assert_eq!(rig.eject(), Some(Err((SenseKey::ILLEGAL_REQUEST, Asc::MEDIUM_REMOVAL_PREVENTED))));
    rig.test_ready(A).good();
    rig.unit.nexus_lost(Instant::ORIGIN, B);
    assert_eq!(rig.eject(), Some(Ok(())));
}

#[test]
fn a_cartridge_that_cannot_be_written_stays_and_the_loss_is_told() {
    let folder = Folder::new(Kind::USUAL);
    let (mut rig, _) = drive_with(Some(folder.clone()));
    rig.write_block(&pattern(100, 1)).good();
    folder.fail_writes(Some(Fault::Medium));
    assert_eq!(rig.eject(), Some(Err(FAILED)));
    folder.fail_writes(None);
    let reply = rig.run(B, &[0x1b, 0, 0, 0, 1, 0], 0, &[]);
    reply.check(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR);
    assert!(reply.is_deferred());
    rig.run(B, &[0x1b, 0, 0, 0, 1, 0], 0, &[]).good();
    rig.test_ready(B).good();
    // What is on it can be carried away.
    assert_eq!(rig.eject(), Some(Ok(())));
}

#[test]
fn unloaded_and_unusable_cartridges_leave_too() {
    let (mut rig, _) = drive_with(Some(Folder::new(Kind::USUAL)));
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    assert_eq!(rig.eject(), Some(Ok(())));
    let folder = Folder::new(Kind::USUAL);
    folder.lose_label();
    let (mut rig, _) = drive_with(Some(folder));
    assert_eq!(rig.test_ready(A).sense.unwrap().0, SenseKey::MEDIUM_ERROR);
    assert_eq!(rig.eject(), Some(Ok(())));
    assert_eq!(rig.test_ready(A).sense, Some(NOT_PRESENT));
}

/// The page Set Data Encryption with a key for all nexuses.
fn key_page(flags: u8) -> Vec<u8> {
    let mut page = vec![0, 0x10, 0, 48, 0x40, flags, 2, 3, 1];
    page.resize(19, 0);
    page.push(32);
    page.extend([0x11; 32]);
    page
}

/// Sets what is bound to a cartridge: a key with CKOD, a division into partitions, and append-only mode; or a
/// key that stays.
fn bind(rig: &mut Rig, is_bound: bool) {
    const CKOD: u8 = 0x04;
    let key = key_page(if is_bound { CKOD } else { 0 });
    rig.run(A, &[0xb5, 0x20, 0, 0x10, 0, 0, 0, 0, 0, 52, 0, 0], 0, &key).good();
    if is_bound {
        let partitions = [0, 0, 0x10, 0, 0x11, 14, 3, 3, 0x44, 3, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        rig.run(A, &[0x15, 0x10, 0, 0, 20, 0], 0, &partitions).good();
        append_only(rig);
    }
}

fn append_only(rig: &mut Rig) {
    let mut list = vec![0, 0, 0, 0x10, 0, 0, 0, 0, 0x50, 1, 0, 28, 0, 0x10];
    list.resize(40, 0);
    rig.run(A, &[0x55, 0x10, 0, 0, 0, 0, 0, 0, 40, 0], 0, &list).good();
}

/// Returns the encryption mode, whether the medium partition page is set, and the write mode.
fn bound(rig: &mut Rig) -> (u8, bool, u8) {
    let mode = rig.run(A, &[0xa2, 0x20, 0, 0x20, 0, 0, 0, 0, 0, 255, 0, 0], 255, &[]).good()[5];
    let partitions = rig.query(&[0x1a, 8, 0x11, 0, 255, 0]);
    let write_mode = rig.query(&[0x5a, 8, 0x10, 1, 0, 0, 0, 0, 255, 0])[8 + 5];
    (mode, partitions[4 + 4] & 0xe0 != 0, write_mode)
}

#[test]
fn what_is_bound_to_a_cartridge_leaves_with_it() {
    let folder = || Folder::new(Kind { capacity: 100_000_000_000, ..Kind::USUAL });
    for (is_bound, is_unloaded) in [(true, false), (true, true), (false, false), (false, true)] {
        let (mut rig, bay) = drive_with(Some(folder()));
        rig.unit.seed(&[5; 32]);
        bind(&mut rig, is_bound);
        assert_eq!(bound(&mut rig), if is_bound { (2, true, 0x10) } else { (2, false, 0) });
        if is_unloaded {
            rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
            let left = if is_bound { 0 } else { 2 };
            assert_eq!(bound(&mut rig), (left, false, 0));
            append_only(&mut rig);
        }
        assert_eq!(rig.eject(), Some(Ok(())));
        bay.put(Some(folder()));
        rig.tell_library(LibraryInput::Inserted);
        while rig.test_ready(A).sense.is_some() {}
        let left = if is_bound { 0 } else { 2 };
        assert_eq!(bound(&mut rig), (left, false, 0), "{is_bound} {is_unloaded}");
    }
}

#[test]
fn a_cartridge_that_stays_keeps_what_is_bound_to_it() {
    let (mut rig, _) = drive_with(Some(Folder::new(Kind { capacity: 100_000_000_000, ..Kind::USUAL })));
    rig.unit.seed(&[5; 32]);
    bind(&mut rig, true);
    rig.run(B, &[0; 6], 0, &[]);
    rig.run(B, &[0x1e, 0, 0, 0, 1, 0], 0, &[]).good();
    assert_eq!(rig.eject(), Some(Err((SenseKey::ILLEGAL_REQUEST, Asc::MEDIUM_REMOVAL_PREVENTED))));
    assert_eq!(bound(&mut rig), (2, true, 0x10));
}

const CHANGED: (SenseKey, Asc) = (SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);

/// Writes a block and a filemark to a cartridge, in another drive.
fn recorded(byte: u8) -> Folder {
    let folder = Folder::new(Kind::USUAL);
    let (mut rig, _) = drive_with(Some(folder.clone()));
    rig.write_block(&pattern(100, byte)).good();
    rig.mark(1).good();
    folder.after_power_loss()
}

#[test]
fn what_waits_for_one_cartridge_is_not_done_to_the_next() {
    let (first, second) = (recorded(1), recorded(2));
    let (mut rig, bay) = drive_with(Some(first));
    let write = rig.start(A, &cdb_6(op::WRITE_6, 0, 100), 0, 100);
    // It is behind the write, and was answered.
    rig.run(A, &[op::ERASE_6, 2, 0, 0, 0, 0], 0, &[]).good();
    let space = rig.start(A, &cdb_6(op::SPACE_6, 0, 1), 0, 0);
    assert_eq!(rig.eject(), Some(Ok(())));
    bay.put(Some(second));
    rig.tell_library(LibraryInput::Inserted);
    // The host learns of the change before its data leave it.
    assert_eq!(rig.test_ready(A).sense, Some(CHANGED));
    assert_eq!(rig.finish(write, &pattern(100, 9)).sense, Some(CHANGED));
    let told = rig.finish(space, &[]);
    assert_eq!(told.sense, Some(CHANGED));
    assert!(told.is_deferred(), "the erasure that was answered was not done");
    assert_eq!(rig.position(), (0, 0, 0));
    assert_eq!(rig.read_block(100).good(), pattern(100, 2));
    rig.rewind();
    rig.write_block(&pattern(100, 9)).good();
}

#[test]
fn what_waits_is_not_done_when_the_cartridge_comes_back_rewound() {
    let folder = recorded(1);
    let (mut rig, _) = drive_with(Some(folder));
    rig.read_block(100).good();
    let write = rig.start(A, &cdb_6(op::WRITE_6, 0, 100), 0, 100);
    assert_eq!(rig.eject(), Some(Ok(())));
    // The change has failed.
    rig.tell_library(LibraryInput::Inserted);
    assert_eq!(rig.finish(write, &pattern(100, 9)).sense, Some(CHANGED));
    assert_eq!(rig.test_ready(A).sense, Some(CHANGED));
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
}

/// Puts a blank cartridge in, in place of the one that is in the drive, and returns it.
fn exchange(rig: &mut Rig, bay: &Bay) -> Folder {
    assert_eq!(rig.eject(), Some(Ok(())));
    let next = Folder::new(Kind { capacity: 100_000_000_000, ..Kind::USUAL });
    bay.put(Some(next.clone()));
    rig.tell_library(LibraryInput::Inserted);
    assert_eq!(rig.test_ready(A).sense, Some(CHANGED));
    next
}

#[test]
fn attributes_whose_list_is_under_way_are_not_written_to_the_next_cartridge() {
    let (mut rig, bay) = drive_with(Some(recorded(1)));
    // A user medium text label.
    let list = [0, 0, 0, 9, 0x08, 0x03, 2, 0, 4, b'm', b'i', b'n', b'e'];
    let cdb = [op::WRITE_ATTRIBUTE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 13, 0, 0];
    let write = rig.start(A, &cdb, 0, list.len());
    let next = exchange(&mut rig, &bay);
    assert_eq!(rig.finish(write, &list).sense, Some(CHANGED));
    rig.mark(1).good();
    assert_eq!(next.count_of(b"mine"), 0);
    rig.run(A, &cdb, 0, &list).good();
    assert_ne!(next.count_of(b"mine"), 0);
}

#[test]
fn mode_parameters_of_a_cartridge_do_not_come_into_force_for_the_next_one() {
    let large = || Folder::new(Kind { capacity: 100_000_000_000, ..Kind::USUAL });
    let (mut rig, bay) = drive_with(Some(large()));
    rig.unit.seed(&[5; 32]);
    let partitions = [0, 0, 0x10, 0, 0x11, 14, 3, 3, 0x44, 3, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let divide = rig.start(A, &[0x15, 0x10, 0, 0, 20, 0], 0, partitions.len());
    exchange(&mut rig, &bay);
    // It was set before the cartridge left, and forgotten then.
    rig.finish(divide, &partitions).good();
    assert_eq!(bound(&mut rig), (0, false, 0));
    // The settings that are being saved are those of the former cartridge too.
    append_only(&mut rig);
    let mut list = rig.query(&[0x1a, 8, 0x0a, 0, 16, 0]);
    list[..4].fill(0);
    list[4] &= 0x3f;
    let select = rig.start(A, &[0x15, 0x11, 0, 0, 16, 0], 0, list.len());
    rig.send(select, &list, 0, 16);
    assert!(rig.event_of(select).is_some_and(|event| matches!(event, UnitEvent::FetchDataOut { .. })));
    assert!(rig.event_of(select).is_none(), "it is being saved");
    exchange(&mut rig, &bay);
    rig.finish(select, &[]).good();
    assert_eq!(bound(&mut rig), (0, false, 0));
}

#[test]
fn a_key_that_a_cartridge_takes_along_is_not_set_for_the_next_one() {
    const CKOD: u8 = 0x04;
    for (flags, sense, mode) in [(CKOD, Some(CHANGED), 0), (0, None, 2)] {
        let (mut rig, bay) = drive_with(Some(Folder::new(Kind::USUAL)));
        rig.unit.seed(&[5; 32]);
        let page = key_page(flags);
        let set = rig.start(A, &[0xb5, 0x20, 0, 0x10, 0, 0, 0, 0, 0, 52, 0, 0], 0, page.len());
        exchange(&mut rig, &bay);
        assert_eq!(rig.finish(set, &page).sense, sense);
        assert_eq!(bound(&mut rig).0, mode);
    }
}

#[test]
fn an_overwrite_that_was_allowed_is_not_one_of_the_next_cartridge() {
    for what in [1, 2] {
        let (mut rig, bay) = drive_with(Some(recorded(1)));
        rig.configure(0x10, 0).good();
        rig.allow(what, 0).good();
        assert_eq!(rig.eject(), Some(Ok(())));
        bay.put(Some(recorded(2)));
        rig.tell_library(LibraryInput::Inserted);
        assert_eq!(rig.test_ready(A).sense, Some(CHANGED));
        // The mode ended with the first cartridge.
        rig.configure(0x10, 0).good();
        rig.write_block(&pattern(50, 9)).check(SenseKey::DATA_PROTECT, Asc::WRITE_APPEND_ERROR);
        let format = rig.run(A, &[0x04, 0, 0, 0, 0, 0], 0, &[]);
        format.check(SenseKey::DATA_PROTECT, Asc::WRITE_APPEND_ERROR);
        assert_eq!(rig.read_block(100).good(), pattern(100, 2));
    }
}

#[test]
fn an_empty_drive_retires() {
    let (mut rig, bay) = drive_with(Some(Folder::new(Kind::USUAL)));
    assert_eq!(rig.eject(), Some(Ok(())));
    bay.put(Some(Folder::new(Kind::USUAL)));
    rig.unit.retire(Instant::ORIGIN);
    assert!(rig.unit.is_retired() && !rig.unit.has_lost_writes());
}

/// A library whose owner is the test: a changer, two drives, and the files.
struct Owned {
    changer: Rig,
    drives: Vec<(Rig, Bay)>,
    /// The file of the library, and the cartridges by name.
    file: Vec<u8>,
    cartridges: BTreeMap<String, Folder>,
    /// What each cartridge holds durably: the numbers of its blocks.
    model: BTreeMap<String, Vec<u8>>,
}

const ELEMENTS: [Element; 8] = [
    Element::Mail(1),
    Element::Mail(2),
    Element::Drive(1),
    Element::Drive(2),
    Element::Slot(1),
    Element::Slot(2),
    Element::Slot(3),
    Element::Slot(4),
];

const fn address(element: Element) -> u16 {
    match element {
        Element::Mail(number) => 9 + number,
        Element::Drive(number) => 499 + number,
        Element::Slot(number) => 999 + number,
    }
}

impl Owned {
    fn new() -> Self {
        let counts = Counts { drives: 2, slots: 4, mail_slots: 2 };
        let mut library = Library::new(String::from("LIB00001"), Profile::Lto8, counts).unwrap();
        let mut cartridges = BTreeMap::new();
        for (number, name) in (1..).zip(["C1", "C2", "C3"]) {
            library.put(Element::Slot(number), name, name).unwrap();
            cartridges.insert(String::from(name), Folder::new(Kind::USUAL));
        }
        let model = cartridges.keys().map(|name| (name.clone(), Vec::new())).collect();
        Self::started(library.encode(), cartridges, model)
    }

    /// Starts the process: units for what the file says.
    fn started(
        file: Vec<u8>,
        cartridges: BTreeMap<String, Folder>,
        model: BTreeMap<String, Vec<u8>>,
    ) -> Self {
        let library = Library::decode(&file).unwrap();
        let device = DeviceKind::Changer;
        let config = UnitConfig { device, removable: true, long_cdbs: false, thin: false, ..config() };
        let mut changer = Rig::with(config, Box::new(Null::new(0)));
        changer.tell_library(LibraryInput::Install { file: file.clone(), unusable: Vec::new() });
        let in_drive = |number| library.at(Element::Drive(number)).map(|held| cartridges[&held.name].clone());
        let drives = [1, 2].map(|number| drive_with(in_drive(number))).into_iter().collect();
        Self { changer, drives, file, cartridges, model }
    }

    /// Kills the process: nothing but the files stays, and of the cartridges what was durable.
    fn killed(self) -> Self {
        let cartridges =
            self.cartridges.into_iter().map(|(name, folder)| (name, folder.after_power_loss())).collect();
        Self::started(self.file, cartridges, self.model)
    }

    fn library(&self) -> Library {
        Library::decode(&self.file).unwrap()
    }

    fn drive(&mut self, number: u16) -> &mut (Rig, Bay) {
        &mut self.drives[usize::from(number) - 1]
    }

    /// Makes a change as the owner of a library does, up to `steps` steps. Returns `None` if the steps were
    /// not enough.
    fn make(&mut self, change: &LibraryChange, steps: &mut u64) -> Option<Result<(), ChangeFailure>> {
        let mut step = || {
            *steps = steps.checked_sub(1)?;
            Some(())
        };
        for (number, _) in &change.ejects {
            step()?;
            let (rig, bay) = &mut self.drives[usize::from(*number) - 1];
            assert_eq!(rig.eject(), Some(Ok(())));
            bay.put(None);
        }
        step()?;
        self.file.clone_from(&change.file);
        for (number, name) in &change.inserts {
            step()?;
            let folder = self.cartridges[name].clone();
            let (rig, bay) = &mut self.drives[usize::from(*number) - 1];
            bay.put(Some(folder));
            rig.tell_library(LibraryInput::Inserted);
        }
        step()?;
        Some(Ok(()))
    }

    /// Writes a block and a filemark to the cartridge in a drive, behind what it holds.
    fn write(&mut self, number: u16, byte: u8) {
        let Some(name) = self.library().at(Element::Drive(number)).map(|held| held.name.clone()) else {
            return;
        };
        let (rig, _) = self.drive(number);
        // The unit attention of a load comes first.
        let _ = rig.test_ready(A);
        rig.run(A, &[0x1b, 0, 0, 0, 1, 0], 0, &[]).good();
        rig.space(3, 0).good();
        rig.write_block(&[byte; 64]).good();
        rig.mark(1).good();
        self.model.get_mut(&name).unwrap().push(byte);
    }

    /// Checks that each cartridge in a drive holds what was written to it.
    fn check(&mut self) {
        let library = self.library();
        let names: Vec<&str> = library.cartridges().iter().map(|held| held.name.as_str()).collect();
        assert_eq!(names.len(), self.cartridges.len(), "no cartridge is lost or there twice");
        for number in [1, 2] {
            let held = library.at(Element::Drive(number)).map(|held| held.name.clone());
            let expected = held.map(|name| self.model[&name].clone());
            let (rig, _) = self.drive(number);
            let _ = rig.test_ready(A);
            let Some(expected) = expected else {
                assert_eq!(rig.test_ready(A).sense, Some(NOT_PRESENT));
                continue;
            };
            rig.run(A, &[0x1b, 0, 0, 0, 1, 0], 0, &[]).good();
            for byte in expected {
                assert_eq!(rig.read_block(64).good(), vec![byte; 64]);
                rig.read_block(64).stopped(FILEMARK, MARK, Some(64));
            }
            rig.read_block(64).stopped(END_OF_DATA, 0, Some(64));
        }
    }
}

/// Random motions, operators and kills at every step of a change, beside a model of the library and of what
/// each cartridge holds.
#[test]
fn random_motions_and_kills_lose_no_cartridge_and_no_block() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(23);
    println!("SEED={seed}");
    let mut rng = Rng::from_seed(seed);
    let mut owned = Owned::new();
    for byte in (0..250).map(|round: u16| u8::try_from(round % 251).unwrap()) {
        let mut any = || ELEMENTS[usize::try_from(rng.below(8)).unwrap()];
        let [from, to, other] = [any(), any(), any()];
        let words = [0, address(from), address(to), address(other)].map(u16::to_be_bytes);
        let mut cdb = vec![if rng.chance(1, 3) { 0xa6 } else { 0xa5 }, 0];
        cdb.extend(words.as_flattened());
        if cdb[0] == 0xa5 {
            cdb[8..].fill(0);
        }
        cdb.resize(12, 0);
        let before = owned.library();
        let mut expected = before.clone();
        let is_operator = rng.chance(1, 6);
        let (allowed, key) = if is_operator {
            let change = OperatorChange::Vault(from, rng.chance(1, 2));
            let allowed = change.apply(&mut expected).is_ok();
            owned.changer.tell_library(LibraryInput::Operator { ticket: 1, change });
            (allowed, None)
        } else {
            let allowed = match cdb[0] {
                0xa5 => expected.move_cartridge(from, to).is_ok(),
                _ => expected.exchange(from, to, other).is_ok(),
            };
            // The unit attentions of operators come first.
            while owned.changer.test_ready(A).sense.is_some() {}
            (allowed, Some(owned.changer.start(A, &cdb, 0, 0)))
        };
        let mut steps = if rng.chance(1, 4) { rng.below(6) } else { 100 };
        match owned.changer.next_event() {
            Some(LibraryEvent::Change(change)) => {
                assert!(allowed, "{cdb:02x?}");
                let Some(result) = owned.make(&change, &mut steps) else {
                    owned = owned.killed();
                    let found = owned.library();
                    assert!(found == before || found == expected, "one place or the other");
                    owned.check();
                    continue;
                };
                owned.changer.tell_library(LibraryInput::Changed(result));
                assert_eq!(owned.library(), expected);
            }
            Some(LibraryEvent::OperatorDone { result, .. }) => {
                assert_eq!(result.is_ok(), allowed);
                continue;
            }
            Some(other) => panic!("{other:?}"),
            None => assert!(!allowed || expected == before, "{cdb:02x?}"),
        }
        match key {
            Some(key) => assert_eq!(owned.changer.finish(key, &[]).sense.is_none(), allowed, "{cdb:02x?}"),
            None => assert!(matches!(owned.changer.next_event(), Some(LibraryEvent::OperatorDone { .. }))),
        }
        owned.write(1 + u16::from(rng.chance(1, 2)), byte);
        owned.check();
    }
}

/// PREVENT ALLOW MEDIUM REMOVAL ends at once, also while an eject or an unload waits for its turn.
#[test]
fn a_cartridge_stays_if_its_removal_is_prevented_while_that_waits() {
    const PREVENTED: (SenseKey, Asc) = (SenseKey::ILLEGAL_REQUEST, Asc::MEDIUM_REMOVAL_PREVENTED);
    for by_host in [false, true] {
        let folder = Folder::new(Kind::USUAL);
        let (mut rig, _) = drive_with(Some(folder.clone()));
        rig.write_block(&pattern(100, 1)).good();
        folder.answer(false);
        let mark = rig.start(A, &cdb_6(op::WRITE_FILEMARKS_6, 0, 1), 0, 0);
        let unload = by_host.then(|| rig.start(B, &[0x1b, 0, 0, 0, 0, 0], 0, 0));
        if !by_host {
            assert_eq!(rig.eject(), None);
        }
        rig.run(A, &[0x1e, 0, 0, 0, 1, 0], 0, &[]).good();
        folder.answer(true);
        rig.ready();
        rig.finish(mark, &[]).good();
        match unload {
            Some(unload) => assert_eq!(rig.finish(unload, &[]).sense, Some(PREVENTED)),
            None => assert_eq!(rig.ejected(), Some(Err(PREVENTED))),
        }
        rig.test_ready(A).good();
        rig.run(A, &[0x1e, 0, 0, 0, 0, 0], 0, &[]).good();
        assert_eq!(rig.eject(), Some(Ok(())));
    }
}

#[test]
fn an_unload_that_waits_for_one_cartridge_leaves_the_next_one_loaded() {
    let (mut rig, bay) = drive_with(Some(recorded(1)));
    let write = rig.start(A, &cdb_6(op::WRITE_6, 0, 10), 0, 10);
    let unload = rig.start(A, &[0x1b, 0, 0, 0, 0, 0], 0, 0);
    exchange(&mut rig, &bay);
    assert!(rig.finish(write, &[1; 10]).sense.is_some());
    assert_eq!(rig.finish(unload, &[]).sense, Some((SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED)));
    let _ = rig.test_ready(A);
    rig.test_ready(A).good();
}

#[test]
fn a_cartridge_that_comes_into_a_drained_drive_is_loaded_after_the_drain() {
    let (mut rig, bay) = drive_with(None);
    rig.unit.set_drained(Instant::ORIGIN, true);
    assert_eq!(rig.unit.drain(), Drain::Ended { flush_failed: false });
    let folder = Folder::new(Kind::USUAL);
    folder.answer(false);
    bay.put(Some(folder.clone()));
    rig.tell_library(LibraryInput::Inserted);
    assert_eq!((folder.held(), rig.unit.drain()), (0, Drain::Ended { flush_failed: false }));
    folder.answer(true);
    rig.unit.set_drained(Instant::ORIGIN, false);
    rig.ready();
    while rig.test_ready(A).sense.is_some_and(|(key, _)| key == SenseKey::UNIT_ATTENTION) {}
    rig.write_block(&pattern(100, 1)).good();
}

#[test]
fn a_host_writes_on_after_a_drain_and_hears_of_a_cartridge_that_was_exchanged_meanwhile() {
    for is_exchanged in [false, true] {
        let (mut rig, bay) = drive_with(Some(Folder::new(Kind::USUAL)));
        rig.write_block(&pattern(100, 1)).good();
        rig.unit.set_drained(Instant::ORIGIN, true);
        assert_eq!(rig.write_block(&pattern(100, 2)).status, scsi::status::Status::BUSY);
        if is_exchanged {
            assert_eq!(rig.eject(), Some(Ok(())));
            bay.put(Some(Folder::new(Kind::USUAL)));
            rig.tell_library(LibraryInput::Inserted);
        }
        rig.unit.set_drained(Instant::ORIGIN, false);
        rig.ready();
        let write = rig.write_block(&pattern(100, 2));
        if is_exchanged {
            write.check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        } else {
            write.good();
            assert_eq!(rig.position().1, 2);
        }
    }
}

#[test]
fn a_drain_ends_after_the_cartridge_has_left() {
    let folder = Folder::new(Kind::USUAL);
    let (mut rig, _) = drive_with(Some(folder.clone()));
    rig.write_block(&pattern(100, 1)).good();
    folder.answer(false);
    assert_eq!(rig.eject(), None);
    rig.unit.set_drained(Instant::ORIGIN, true);
    assert_eq!(rig.unit.drain(), Drain::Ending);
    folder.answer(true);
    rig.ready();
    assert_eq!(rig.ejected(), Some(Ok(())));
    assert_eq!(rig.unit.drain(), Drain::Ended { flush_failed: false });
}
