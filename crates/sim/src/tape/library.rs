//! The units of a tape library, and the owner of the library, who moves cartridges as the daemon does.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use base::buffer::Pool;
use base::rng::Rng;
use base::time::{Duration, Instant};
use base::units::BlockSize;
use cartridge::library::{Counts, Element, Library};
use cartridge::profile::Profile;
use device::contract::{DeviceKind, UnitConfig};
use device::library::{ChangeFailure, LibraryChange, LibraryEvent, LibraryInput, MotionFailure};
use device::unit::LogicalUnit;
use netem::probability::DurationRange;
use scsi::sense::Sense;
use store::null::Null;

use super::plan::{CARTRIDGES, CHANGER, DRIVES, MAIL_SLOTS, SLOTS, name_of};
use super::shelf::Shelf;
use crate::transport::direct::UnitSource;
use crate::units;

fn cartridge_of(name: &str) -> usize {
    (0..CARTRIDGES).find(|number| name_of(*number) == name).expect("a cartridge that was never there")
}

/// The file of the library, which survives crashes. Clones share it.
#[derive(Clone)]
pub(super) struct LibraryFile(Rc<RefCell<Vec<u8>>>);

impl LibraryFile {
    /// Makes a library with cartridges in the drives and in the first slot.
    pub(super) fn new() -> Self {
        let count = |number: usize| u16::try_from(number).unwrap();
        let counts = Counts { drives: count(DRIVES), slots: count(SLOTS), mail_slots: count(MAIL_SLOTS) };
        let mut library = Library::new(String::from("SIMLIB01"), Profile::Lto8, counts).unwrap();
        for number in 0..CARTRIDGES {
            let name = name_of(number);
            let element = match number {
                0..DRIVES => Element::Drive(count(number + 1)),
                _ => Element::Slot(count(number - DRIVES + 1)),
            };
            library.put(element, &name, &name).unwrap();
        }
        Self(Rc::new(RefCell::new(library.encode())))
    }

    /// Returns the library that the file describes.
    pub(super) fn read(&self) -> Library {
        Library::decode(&self.0.borrow()).expect("the file of the library can always be read")
    }
}

/// The units, and the owner of the library.
pub(super) struct LibraryOwner {
    shelf: Shelf,
    file: LibraryFile,
    rng: Rng,
    change: Option<Change>,
    /// When the next step of the change is made.
    step_at: Option<Instant>,
    inputs: VecDeque<(usize, LibraryInput)>,
}

/// A change of the library under way.
struct Change {
    change: LibraryChange,
    /// How many drives have not answered yet.
    ejecting: usize,
    /// The drives that have given up their cartridge.
    ejected: Vec<(usize, usize)>,
    refusal: Option<Sense>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Ejecting,
    Writing,
    Answering,
}

impl LibraryOwner {
    pub(super) fn new(shelf: Shelf, file: LibraryFile, seed: u64) -> Self {
        let rng = Rng::from_seed(seed);
        Self { shelf, file, rng, change: None, step_at: None, inputs: VecDeque::new() }
    }

    fn soon(&mut self, now: Instant) -> Instant {
        let span = DurationRange::between(Duration::from_micros(1), Duration::from_millis(3));
        now.after(span.pick(&mut self.rng))
    }

    fn begin(&mut self, now: Instant, change: LibraryChange) {
        let drives: Vec<usize> = change.ejects.iter().map(|(number, _)| usize::from(*number)).collect();
        let stage = if drives.is_empty() { Stage::Writing } else { Stage::Ejecting };
        self.change =
            Some(Change { change, ejecting: drives.len(), ejected: Vec::new(), refusal: None, stage });
        if drives.is_empty() {
            self.step_at = Some(self.soon(now));
        }
        self.inputs.extend(drives.into_iter().map(|drive| (drive, LibraryInput::Eject)));
    }

    fn ejected(&mut self, now: Instant, drive: usize, result: Result<(), Sense>) {
        let Some(change) = &mut self.change else { panic!("drive {drive} gave up what nobody asked for") };
        let name = change.change.ejects.iter().find(|(number, _)| usize::from(*number) == drive);
        let (_, name) = name.expect("a drive that was not asked gave up its cartridge");
        match result {
            Ok(()) => {
                change.ejected.push((drive, cartridge_of(name)));
                self.shelf.put(drive - 1, None);
            }
            Err(sense) => change.refusal = Some(sense),
        }
        change.ejecting -= 1;
        if change.ejecting == 0 {
            change.stage = Stage::Writing;
            self.step_at = Some(self.soon(now));
        }
    }

    /// Makes the next step of the change.
    fn step(&mut self, now: Instant) {
        self.step_at = None;
        let Some(mut change) = self.change.take() else { return };
        match (change.stage, change.refusal) {
            (Stage::Writing, None) => {
                self.file.0.borrow_mut().clone_from(&change.change.file);
                let inserts = change.change.inserts.iter();
                let inserts: Vec<_> =
                    inserts.map(|(number, name)| (usize::from(*number), cartridge_of(name))).collect();
                self.insert(inserts);
            }
            // The cartridges that had left their drives go back.
            (Stage::Writing, Some(_)) => {
                let ejected = std::mem::take(&mut change.ejected);
                self.insert(ejected);
            }
            (_, refusal) => {
                let failure = |sense| ChangeFailure {
                    status: MotionFailure::CheckCondition(sense),
                    unusable: None,
                    why: String::from("a drive refuses"),
                };
                self.inputs.push_back((
                    CHANGER,
                    LibraryInput::Changed(refusal.map_or(Ok(()), |sense| Err(failure(sense)))),
                ));
                return;
            }
        }
        change.stage = Stage::Answering;
        self.change = Some(change);
        self.step_at = Some(self.soon(now));
    }

    fn insert(&mut self, cartridges: Vec<(usize, usize)>) {
        for (drive, cartridge) in cartridges {
            self.shelf.put(drive - 1, Some(cartridge));
            self.inputs.push_back((drive, LibraryInput::Inserted));
        }
    }
}

impl UnitSource for LibraryOwner {
    fn build(&mut self, saved: &[Option<Vec<u8>>], pool: &Pool) -> Vec<LogicalUnit> {
        (self.change, self.step_at) = (None, None);
        self.inputs.clear();
        let library = self.file.read();
        let install = LibraryInput::Install { file: self.file.0.borrow().clone(), unusable: Vec::new() };
        self.inputs.push_back((CHANGER, install));
        let unit = |number: usize, device, store| {
            let id = u16::try_from(number).unwrap();
            let config = UnitConfig {
                device,
                removable: true,
                thin: false,
                ..units::unit_config(id, BlockSize::B512, 64)
            };
            LogicalUnit::new(config, store, saved[number].as_deref(), pool.clone()).unwrap()
        };
        let mut all = vec![unit(CHANGER, DeviceKind::Changer, Box::new(Null::new(0)))];
        for drive in 0..DRIVES {
            let element = Element::Drive(u16::try_from(drive + 1).unwrap());
            self.shelf.put(drive, library.at(element).map(|held| cartridge_of(&held.name)));
            all.push(unit(drive + 1, DeviceKind::Tape, self.shelf.bay(drive)));
        }
        all
    }

    fn is_ready(&self, unit: usize, now: Instant) -> bool {
        unit != CHANGER && self.shelf.is_ready(unit - 1, now)
    }

    fn library_event(&mut self, now: Instant, unit: usize, event: LibraryEvent) {
        match event {
            LibraryEvent::Change(change) => {
                assert!(self.change.is_none(), "the changer asks for two changes at a time");
                self.begin(now, change);
            }
            LibraryEvent::Ejected(result) => self.ejected(now, unit, result),
            LibraryEvent::OperatorDone { .. } => panic!("there is no operator"),
        }
    }

    fn poll_library(&mut self, now: Instant) -> Option<(usize, LibraryInput)> {
        if self.step_at.is_some_and(|at| at <= now) {
            self.step(now);
        }
        self.inputs.pop_front()
    }

    fn next(&self) -> Option<Instant> {
        if self.inputs.is_empty() { self.step_at } else { Some(Instant::ORIGIN) }
    }
}
