//! What a tape library is, written from SSC and SMC: it shares no code with the device servers.

use std::rc::Rc;

use super::command::{
    Answer, DriveCommand, ELEMENTS, FIRST_DRIVE, FIXED_MAX, Seen, TapeCommand, mode_of, places_of, record,
};
use super::plan::{CARTRIDGES, CHANGER, DRIVES, INITIATORS};
use crate::transport::Ticket;

/// The number of an object that is a filemark. Records have a number and a length.
const MARK: Object = (0, 0);

type Object = (u32, u32);
type Objects = Rc<Vec<Object>>;
/// The cartridge in each element.
pub(super) type Places = [Option<usize>; ELEMENTS];

/// A state of the library.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LibraryState {
    /// Whether a crash is a loss of power. The end of the process loses less.
    is_power: bool,
    places: Places,
    /// What READ ELEMENT STATUS reports: a motion is told when it has ended.
    told: Places,
    tapes: [Tape; CARTRIDGES],
    drives: [Drive; DRIVES],
    modes: [Mode; DRIVES],
}

/// A cartridge.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Tape {
    objects: Objects,
    /// What it has held since everything on it survives the crashes of this world, that included: what a
    /// crash can leave.
    former: Vec<Objects>,
}

/// A drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Drive {
    is_loaded: bool,
    /// Whether it has given up its cartridge, which is not elsewhere yet.
    is_emptied: bool,
    at: usize,
    /// The motion that has put its cartridge in.
    motion: Option<Ticket>,
}

/// The mode parameters of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Mode {
    is_buffered: bool,
    /// The last command that was sent before the buffered mode was set. It, and those before it, can have
    /// begun with the other.
    since: Ticket,
    /// The block length of each initiator's I_T nexus.
    block_lens: [u32; INITIATORS],
}

impl Mode {
    const POWERED_ON: Self = Self { is_buffered: true, since: Ticket(0), block_lens: [0; INITIATORS] };
}

impl Drive {
    /// A drive with a cartridge that was just loaded.
    const LOADED: Self = Self { is_loaded: true, is_emptied: false, at: 0, motion: None };
}

/// Who has sent a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) initiator: usize,
    /// Whether the initiator has another I_T nexus since.
    pub(super) is_former_nexus: bool,
}

/// What the answer to a command must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Expected {
    Good,
    /// So many blocks.
    Records([Object; FIXED_MAX as usize], usize),
    /// The number of the object at the position, and of the filemarks before it.
    Position(usize, usize),
    Places(Places),
    Sense(u8, u16, Option<u32>),
    /// A motion that cannot be made.
    NoMotion,
    /// The buffered mode and the block length.
    Mode(bool, u32),
    /// None: nobody waits for it, or the command has not come to its end.
    Never,
}

/// MEDIUM NOT PRESENT.
const NOT_PRESENT: Expected = Expected::Sense(0x02, 0x3a00, None);
const END_OF_DATA: (u8, u16) = (0x08, 0x0005);
const FILEMARK: (u8, u16) = (0x00, 0x0001);
const BEGINNING: (u8, u16) = (0x00, 0x0004);
/// The length of a block is another one than that of the mode parameters.
const INCORRECT_LENGTH: (u8, u16) = (0x00, 0x0000);
/// INVALID FIELD IN CDB.
const INVALID_FIELD: (u8, u16) = (0x05, 0x2400);

impl Expected {
    /// Returns whether an answer is this one.
    pub(super) fn is(&self, answer: &Answer) -> bool {
        match (self, answer) {
            (Self::Good, Answer::Good(_)) => true,
            (Self::Records(records, count), Answer::Good(data)) => {
                let bytes = records[..*count].iter().flat_map(|(number, len)| record(*number, *len));
                bytes.eq(data.iter().copied())
            }
            (Self::Mode(is_buffered, block_len), Answer::Good(data)) => {
                mode_of(data) == Some((*is_buffered, *block_len))
            }
            (Self::Position(object, marks), Answer::Good(data)) => {
                let told = [*object, *marks].map(|number| u64::try_from(number).unwrap().to_be_bytes());
                data.get(8..24) == Some(&told.concat())
            }
            (Self::Places(places), Answer::Good(data)) => places_of(data).is_some_and(|told| told == *places),
            (Self::Sense(key, asc, information), Answer::Sense(told_key, told_asc, told)) => {
                (key, asc) == (told_key, told_asc) && (information.is_none() || information == told)
            }
            (Self::NoMotion, Answer::Sense(0x05, asc, _)) => matches!(asc, 0x3b0d | 0x3b0e),
            _ => false,
        }
    }
}

impl Tape {
    /// Replaces what is behind a position.
    fn replace(&mut self, at: usize, new: &[Object]) {
        let objects = Rc::make_mut(&mut self.objects);
        let is_cut = objects.len() > at;
        objects.truncate(at);
        if is_cut {
            self.remember();
        }
        for object in new {
            Rc::make_mut(&mut self.objects).push(*object);
            self.remember();
        }
    }

    fn remember(&mut self) {
        if !self.former.contains(&self.objects) {
            self.former.push(Rc::clone(&self.objects));
        }
    }

    fn synchronize(&mut self) {
        self.former = vec![Rc::clone(&self.objects)];
    }
}

impl LibraryState {
    /// Returns the state at the beginning: blank cartridges in the drives and in the first slot.
    pub(super) fn new(is_power: bool) -> Self {
        let mut places = [None; ELEMENTS];
        (0..CARTRIDGES).for_each(|number| places[FIRST_DRIVE + number] = Some(number));
        let tape = Tape { objects: Objects::default(), former: vec![Objects::default()] };
        let tapes = [(); CARTRIDGES].map(|()| tape.clone());
        let (drives, modes) = ([Drive::LOADED; DRIVES], [Mode::POWERED_ON; DRIVES]);
        Self { is_power, places, told: places, tapes, drives, modes }
    }

    /// Returns where a cartridge is.
    pub(super) fn place_of(&self, cartridge: usize) -> Option<usize> {
        self.places.iter().position(|held| *held == Some(cartridge))
    }

    /// Returns what an initiator can know.
    pub(super) fn seen(&self) -> Seen {
        let drive =
            |number: usize| (self.places[FIRST_DRIVE + number].is_some(), self.drives[number].is_loaded);
        let full_slot = (0..ELEMENTS).rfind(|element| self.places[*element].is_some() && !is_drive(*element));
        Seen { drives: std::array::from_fn(drive), full_slot }
    }

    /// Returns whether a command that was sent to a drive was meant for another cartridge: the one that is
    /// loaded was put in by a motion that was sent later.
    pub(super) fn is_outdated(&self, number: usize, ticket: Ticket) -> bool {
        let drive = &self.drives[number];
        drive.is_loaded && drive.motion.is_some_and(|motion| motion > ticket)
    }

    /// Returns an empty slot or mail slot.
    pub(super) fn empty_slot(&self) -> Option<usize> {
        (0..ELEMENTS).find(|element| self.places[*element].is_none() && !is_drive(*element))
    }

    /// Returns whether the cartridges are at these places.
    pub(super) fn is_at(&self, places: Places) -> bool {
        self.places == places
    }

    /// Carries a command of an initiator out; returns its answer. There is none yet for a motion that moves
    /// something: [`Self::give_up`], [`Self::arrive`] and [`Self::tell`] are its steps. `last` is the command
    /// that was sent last.
    pub(super) fn apply(
        &mut self,
        Sender { initiator, is_former_nexus }: Sender,
        command: TapeCommand,
        last: Ticket,
    ) -> Option<Expected> {
        Some(match command {
            TapeCommand::Drive(drive, DriveCommand::SetMode { is_buffered, block_len }) => {
                self.set_buffered(drive, is_buffered, last);
                if !is_former_nexus {
                    self.modes[drive].block_lens[initiator] = block_len;
                }
                Expected::Good
            }
            TapeCommand::Drive(drive, DriveCommand::Mode) => {
                let block_len = if is_former_nexus { 0 } else { self.modes[drive].block_lens[initiator] };
                Expected::Mode(self.modes[drive].is_buffered, block_len)
            }
            TapeCommand::Reset(drive) => {
                self.set_buffered(drive, Mode::POWERED_ON.is_buffered, last);
                self.modes[drive].block_lens = Mode::POWERED_ON.block_lens;
                Expected::Good
            }
            TapeCommand::Test(CHANGER) => Expected::Good,
            TapeCommand::Test(unit) => {
                if self.drives[unit - 1].is_loaded {
                    Expected::Good
                } else {
                    NOT_PRESENT
                }
            }
            TapeCommand::Drive(drive, command) => self.apply_to_drive(drive, command),
            TapeCommand::Elements => Expected::Places(self.told),
            TapeCommand::Move(..) | TapeCommand::Exchange(..) => match self.after_motion(command) {
                None => Expected::NoMotion,
                Some(places) if places == self.places => Expected::Good,
                Some(_) => return None,
            },
        })
    }

    fn set_buffered(&mut self, drive: usize, is_buffered: bool, last: Ticket) {
        let mode = &mut self.modes[drive];
        if mode.is_buffered != is_buffered {
            (mode.is_buffered, mode.since) = (is_buffered, last);
        }
    }

    /// Handles a new I_T nexus of an initiator: what belonged to the former one is gone.
    pub(super) fn nexus_is_new(&mut self, initiator: usize) {
        self.modes.iter_mut().for_each(|mode| mode.block_lens[initiator] = 0);
    }

    /// Returns whether a command may be refused because it has IMMED, which an unbuffered mode does not
    /// allow, and whether it may be carried out.
    pub(super) fn refuses_immediate(&self, command: TapeCommand, ticket: Ticket) -> (bool, bool) {
        let TapeCommand::Drive(drive, DriveCommand::Marks(_, true)) = command else { return (false, true) };
        let mode = self.modes[drive];
        let is_unclear = ticket <= mode.since;
        (is_unclear || !mode.is_buffered, is_unclear || mode.is_buffered)
    }

    /// Returns the answer to such a command.
    pub(super) fn refused_immediate(&self, command: TapeCommand) -> Expected {
        let is_loaded = self.drives[command.unit() - 1].is_loaded;
        if is_loaded { Expected::Sense(INVALID_FIELD.0, INVALID_FIELD.1, None) } else { NOT_PRESENT }
    }

    /// Returns where the cartridges are after a motion; `None` if it cannot be made.
    pub(super) fn after_motion(&self, command: TapeCommand) -> Option<Places> {
        let mut places = self.places;
        match command {
            TapeCommand::Move(from, to) => {
                let is_possible = places[from].is_some() && (from == to || places[to].is_none());
                let cartridge = places[from].take();
                places[to] = cartridge;
                is_possible.then_some(places)
            }
            TapeCommand::Exchange(from, first, second) => {
                let is_possible = places[from].is_some()
                    && places[first].is_some()
                    && from != first
                    && first != second
                    && (second == from || places[second].is_none());
                let (one, other) = (places[from].take(), places[first].take());
                (places[first], places[second]) = (one, other);
                is_possible.then_some(places)
            }
            _ => None,
        }
    }

    /// Returns the drives that have not given up their cartridges yet for a motion.
    pub(super) fn drives_to_empty(&self, places: Places) -> Vec<usize> {
        let leaves = |drive: &usize| {
            let was = self.places[FIRST_DRIVE + drive];
            was.is_some() && was != places[FIRST_DRIVE + drive] && !self.drives[*drive].is_emptied
        };
        (0..DRIVES).filter(leaves).collect()
    }

    /// The first step of a motion: a drive gives up its cartridge.
    pub(super) fn give_up(&mut self, drive: usize) {
        self.drives[drive] = Drive { is_emptied: true, ..Drive::default() };
    }

    /// The second step of a motion: the cartridges are elsewhere, also after a crash, and what has left a
    /// drive is durable. Drives load theirs.
    pub(super) fn arrive(&mut self, places: Places, motion: Ticket) {
        for (number, drive) in self.drives.iter_mut().enumerate() {
            let (was, is) = (self.places[FIRST_DRIVE + number], places[FIRST_DRIVE + number]);
            if was != is {
                was.iter().for_each(|cartridge| self.tapes[*cartridge].synchronize());
                *drive = if is.is_some() { Drive::LOADED } else { Drive::default() };
                drive.motion = Some(motion);
            }
        }
        self.places = places;
    }

    /// The last step of a motion.
    pub(super) fn tell(&mut self) {
        self.told = self.places;
    }

    /// Handles the answer GOOD to a command: it may have promised that everything before is durable, or at
    /// least survives the end of the process.
    pub(super) fn promised(&mut self, command: TapeCommand, ticket: Ticket) {
        let TapeCommand::Drive(drive, command) = command else { return };
        // The mode that counts is the one in force when the last block is written.
        let mode = self.modes[drive];
        let is_unbuffered = !mode.is_buffered && ticket > mode.since;
        let survives = match command {
            DriveCommand::Marks(_, false) | DriveCommand::Unload => true,
            DriveCommand::Write(..) | DriveCommand::WriteFixed { .. } => is_unbuffered || !self.is_power,
            DriveCommand::Marks(1.., true) | DriveCommand::Erase => !self.is_power,
            _ => false,
        };
        if survives && let Some(cartridge) = self.places[FIRST_DRIVE + drive] {
            self.tapes[cartridge].synchronize();
        }
    }

    fn apply_to_drive(&mut self, number: usize, command: DriveCommand) -> Expected {
        let drive = &mut self.drives[number];
        let held = self.places[FIRST_DRIVE + number].filter(|_| !drive.is_emptied);
        match (command, held) {
            (DriveCommand::Load, Some(_)) => {
                *drive = Drive { motion: drive.motion, ..Drive::LOADED };
                return Expected::Good;
            }
            (DriveCommand::Unload, _) => {
                *drive = Drive { is_loaded: false, at: 0, ..*drive };
                return Expected::Good;
            }
            _ => {}
        }
        let Some(cartridge) = held.filter(|_| drive.is_loaded) else { return NOT_PRESENT };
        let tape = &mut self.tapes[cartridge];
        let end = tape.objects.len();
        let sense = |(key, asc): (u8, u16), left: Option<u32>| Expected::Sense(key, asc, left);
        match command {
            DriveCommand::Write(number, len) => {
                tape.replace(drive.at, &[(number, len)]);
                drive.at += 1;
            }
            DriveCommand::Marks(0, _) => {}
            DriveCommand::Marks(count, _) => {
                let count = usize::try_from(count).unwrap();
                tape.replace(drive.at, &vec![MARK; count]);
                drive.at += count;
            }
            DriveCommand::Erase => tape.replace(drive.at, &[]),
            DriveCommand::Read => {
                let object = tape.objects.get(drive.at).copied();
                drive.at = (drive.at + 1).min(end);
                return match object {
                    None => sense(END_OF_DATA, None),
                    Some(MARK) => sense(FILEMARK, None),
                    Some(record) => Expected::Records([record; FIXED_MAX as usize], 1),
                };
            }
            DriveCommand::WriteFixed { number, count, len } => {
                let blocks: Vec<Object> = (number..number + count).map(|number| (number, len)).collect();
                tape.replace(drive.at, &blocks);
                drive.at += blocks.len();
            }
            DriveCommand::ReadFixed { count, len } => return read_fixed(&tape.objects, drive, count, len),
            DriveCommand::Locate(object) => {
                let object = usize::try_from(object).unwrap();
                drive.at = object.min(end);
                if object > end {
                    return sense(END_OF_DATA, None);
                }
            }
            DriveCommand::SpaceToEnd => drive.at = end,
            DriveCommand::Rewind => drive.at = 0,
            DriveCommand::Position => {
                let before = tape.objects.iter().take(drive.at);
                return Expected::Position(drive.at, before.filter(|object| **object == MARK).count());
            }
            DriveCommand::SpaceRecords(count) => return space(&tape.objects, drive, count, false),
            DriveCommand::SpaceMarks(count) => return space(&tape.objects, drive, count, true),
            // Those are carried out above.
            DriveCommand::Load | DriveCommand::Unload | DriveCommand::SetMode { .. } | DriveCommand::Mode => {
            }
        }
        Expected::Good
    }

    /// Returns the states that a crash can leave.
    pub(super) fn after_crash(&self) -> Vec<Self> {
        let is_full = |number: usize| self.places[FIRST_DRIVE + number].is_some();
        let drive = |number| if is_full(number) { Drive::LOADED } else { Drive::default() };
        let drives = [drive(0), drive(1)];
        let modes = [Mode::POWERED_ON; DRIVES];
        let mut states = vec![Self { told: self.places, drives, modes, ..self.clone() }];
        for number in 0..CARTRIDGES {
            let mut next = Vec::new();
            for state in states {
                for objects in &self.tapes[number].former {
                    let mut left = state.clone();
                    left.tapes[number] =
                        Tape { objects: Rc::clone(objects), former: vec![Rc::clone(objects)] };
                    next.push(left);
                }
            }
            states = next;
        }
        states
    }

    /// Returns the contents between which a crash has to choose for the cartridge in a drive.
    pub(super) fn contents_of(&self, drive: usize) -> usize {
        self.places[FIRST_DRIVE + drive].map_or(1, |cartridge| self.tapes[cartridge].former.len())
    }

    /// Returns whether a crash has to choose between contents.
    pub(super) fn has_unsynchronized(&self) -> bool {
        self.tapes.iter().any(|tape| tape.former.len() > 1)
    }
}

fn is_drive(element: usize) -> bool {
    (FIRST_DRIVE..FIRST_DRIVE + DRIVES).contains(&element)
}

/// READ of blocks of a fixed length.
fn read_fixed(objects: &[Object], drive: &mut Drive, count: u32, len: u32) -> Expected {
    let mut records = [MARK; FIXED_MAX as usize];
    for (left, number) in (1..=count).rev().zip(0..) {
        let stopped = |(key, asc): (u8, u16)| Expected::Sense(key, asc, Some(left));
        let Some(object) = objects.get(drive.at).copied() else { return stopped(END_OF_DATA) };
        drive.at += 1;
        match object {
            MARK => return stopped(FILEMARK),
            (_, other) if other != len => return stopped(INCORRECT_LENGTH),
            record => records[number] = record,
        }
    }
    Expected::Records(records, usize::try_from(count).unwrap())
}

/// SPACE over records or filemarks.
fn space(objects: &[Object], drive: &mut Drive, count: i32, over_marks: bool) -> Expected {
    let mut left = count.unsigned_abs();
    let stopped = |(key, asc): (u8, u16), left: u32| Expected::Sense(key, asc, Some(left));
    while left > 0 {
        let next = if count > 0 { Some(drive.at) } else { drive.at.checked_sub(1) };
        let Some(next) = next else { return stopped(BEGINNING, left) };
        let Some(object) = objects.get(next) else { return stopped(END_OF_DATA, left) };
        drive.at = if count > 0 { next + 1 } else { next };
        let is_mark = *object == MARK;
        if is_mark && !over_marks {
            return stopped(FILEMARK, left);
        }
        left -= u32::from(is_mark == over_marks);
    }
    Expected::Good
}
