//! The commands that initiators send, as CDBs, and what their answers say.

use base::int_cast::to_usize;
use base::rng::Rng;
use scsi::opcode as op;
use scsi::sense::{Sense, SenseKey};
use scsi::status::Status;

use super::plan::{CARTRIDGES, CHANGER, DRIVES, MAIL_SLOTS, SLOTS, TapePlan, name_of};
use crate::scenario::pick;
use crate::transport::{Attribute, CommandOutcome, ScsiCommand};

/// How many elements hold cartridges: the mail slots, then the drives, then the slots.
pub(super) const ELEMENTS: usize = MAIL_SLOTS + DRIVES + SLOTS;
/// The first drive among the elements.
pub(super) const FIRST_DRIVE: usize = MAIL_SLOTS;
/// The most bytes that a READ asks for.
const READ_LEN: u32 = 64 << 10;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TapeCommand {
    /// TEST UNIT READY of a unit.
    Test(usize),
    /// A command of a drive.
    Drive(usize, DriveCommand),
    /// MOVE MEDIUM, from and to an element.
    Move(usize, usize),
    /// EXCHANGE MEDIUM: from an element to the second one, and from there to the third one.
    Exchange(usize, usize, usize),
    /// READ ELEMENT STATUS.
    Elements,
    /// A LOGICAL UNIT RESET of a drive, as far as it changes mode parameters. It is no command on the wire.
    Reset(usize),
}

/// A command of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriveCommand {
    /// WRITE(6) of the record with a number.
    Write(u32, u32),
    /// WRITE FILEMARKS(6), immediate or not.
    Marks(u32, bool),
    Read,
    SpaceRecords(i32),
    SpaceMarks(i32),
    SpaceToEnd,
    Locate(u32),
    Rewind,
    Erase,
    Position,
    Load,
    Unload,
    /// WRITE(6) of so many blocks of a fixed length: the records with this number and those that follow.
    WriteFixed {
        number: u32,
        count: u32,
        len: u32,
    },
    /// READ(6) of so many blocks of a fixed length.
    ReadFixed {
        count: u32,
        len: u32,
    },
    /// MODE SELECT(6).
    SetMode {
        is_buffered: bool,
        block_len: u32,
    },
    /// MODE SENSE(6).
    Mode,
}

/// The most blocks of a fixed length in a command.
pub(super) const FIXED_MAX: u32 = 3;

/// What an initiator knows of the library before it sends a command.
pub(super) struct Seen {
    /// Of each drive: whether it has a cartridge, and whether it is loaded.
    pub(super) drives: [(bool, bool); DRIVES],
    /// An element that holds a cartridge and is no drive.
    pub(super) full_slot: Option<usize>,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// GOOD, with data.
    Good(Vec<u8>),
    /// CHECK CONDITION: sense key, additional sense code and INFORMATION.
    Sense(u8, u16, Option<u32>),
    /// It was not executed.
    NotRun(&'static str),
    /// It may have been executed.
    Doubtful,
    /// No command may end so here.
    Impossible(String),
}

/// Returns the data of a record, which name it.
pub(super) fn record(number: u32, len: u32) -> Vec<u8> {
    let mut bytes = vec![0; to_usize(len)];
    Rng::from_seed(u64::from(number) << 32 | u64::from(len)).fill(&mut bytes);
    bytes
}

impl TapeCommand {
    /// Draws a command. `number` is that of the first record if it writes any, and `seen` may be true: a
    /// drive without a cartridge often gets one. `block_lens` are the block lengths that the initiator
    /// knows.
    pub(super) fn draw(
        plan: &TapePlan,
        rng: &mut Rng,
        number: u32,
        seen: Option<Seen>,
        block_lens: &[Option<u32>; DRIVES],
    ) -> Self {
        let below = |rng: &mut Rng, limit: usize| to_usize(rng.below(u64::try_from(limit).unwrap()));
        if rng.chance(1, plan.moves_one_in) {
            let mut element = || below(rng, ELEMENTS);
            let (from, first, second) = (element(), element(), element());
            return match rng.below(8) {
                0..4 => Self::Move(from, first),
                4 => Self::Exchange(from, first, from),
                5 => Self::Exchange(from, first, second),
                6 => Self::Test(CHANGER),
                _ => Self::Elements,
            };
        }
        let drive = below(rng, DRIVES);
        match seen.map(|seen| (seen.drives[drive], seen.full_slot)) {
            Some(((false, _), Some(slot))) if rng.chance(2, 3) => {
                return Self::Move(slot, FIRST_DRIVE + drive);
            }
            Some(((true, false), _)) if rng.chance(1, 3) => return Self::Drive(drive, DriveCommand::Load),
            _ => {}
        }
        if plan.modes_one_in > 0
            && let Some(command) = DriveCommand::draw_of_mode(plan, rng, number, block_lens[drive])
        {
            return Self::Drive(drive, command);
        }
        let count = i32::try_from(rng.below(9)).unwrap() - 4;
        let command = match rng.below(32) {
            0..9 => {
                let len = 1 + rng.below(u64::from(plan.record_len_max));
                DriveCommand::Write(number, u32::try_from(len).unwrap())
            }
            9..14 => DriveCommand::Marks(u32::try_from(rng.below(3)).unwrap(), rng.chance(1, 3)),
            14..20 => DriveCommand::Read,
            20 | 21 => DriveCommand::SpaceRecords(count),
            22 | 23 => DriveCommand::SpaceMarks(count),
            24 => DriveCommand::SpaceToEnd,
            25 => DriveCommand::Locate(u32::try_from(rng.below(12)).unwrap()),
            26 => DriveCommand::Rewind,
            27 | 28 => DriveCommand::Position,
            29 if rng.chance(1, 2) => DriveCommand::Load,
            30 if rng.chance(1, 4) => DriveCommand::Unload,
            31 if rng.chance(1, 4) => DriveCommand::Erase,
            _ => return Self::Test(drive + 1),
        };
        Self::Drive(drive, command)
    }

    /// Returns the unit that the command is for.
    pub(super) const fn unit(self) -> usize {
        match self {
            Self::Test(unit) => unit,
            Self::Drive(drive, _) | Self::Reset(drive) => drive + 1,
            Self::Move(..) | Self::Exchange(..) | Self::Elements => CHANGER,
        }
    }

    /// Returns whether the command depends on the position of a drive.
    pub(super) const fn depends_on_position(self) -> bool {
        matches!(self, Self::Drive(_, command) if command.depends_on_position())
    }

    /// Returns whether the command waits until those before it at its unit have ended. SPACE over nothing
    /// does not use the medium, so its answer does not say that anybody's turn has ended.
    pub(super) const fn waits_its_turn(self) -> bool {
        match self {
            Self::Drive(
                _,
                DriveCommand::SpaceRecords(0)
                | DriveCommand::SpaceMarks(0)
                | DriveCommand::SetMode { .. }
                | DriveCommand::Mode,
            ) => false,
            Self::Drive(..) | Self::Move(..) | Self::Exchange(..) => true,
            Self::Test(_) | Self::Elements | Self::Reset(_) => false,
        }
    }

    /// Returns whether the command changes nothing, not even a position.
    pub(super) const fn changes_nothing(self) -> bool {
        matches!(
            self,
            Self::Test(_) | Self::Elements | Self::Drive(_, DriveCommand::Mode | DriveCommand::Position)
        )
    }

    /// Returns whether the command changes mode parameters and nothing else.
    pub(super) const fn changes_mode(self) -> bool {
        matches!(self, Self::Reset(_) | Self::Drive(_, DriveCommand::SetMode { .. }))
    }

    /// Returns what of the command is carried out if it is aborted between two of its blocks.
    pub(super) fn parts(self) -> Vec<Self> {
        let part = |count: u32| match self {
            Self::Drive(drive, DriveCommand::WriteFixed { number, len, .. }) => {
                Self::Drive(drive, DriveCommand::WriteFixed { number, count, len })
            }
            Self::Drive(drive, DriveCommand::ReadFixed { len, .. }) => {
                Self::Drive(drive, DriveCommand::ReadFixed { count, len })
            }
            other => other,
        };
        let blocks = match self {
            Self::Drive(
                _,
                DriveCommand::WriteFixed { count, .. } | DriveCommand::ReadFixed { count, .. },
            ) => count,
            _ => 1,
        };
        (1..blocks).map(part).collect()
    }

    /// Returns the command on the wire.
    pub(super) fn order(self) -> ScsiCommand {
        let (cdb, data_out, data_in_len) = match self {
            Self::Test(_) | Self::Reset(_) => (vec![0; 6], Vec::new(), 0),
            Self::Drive(_, command) => command.parts(),
            Self::Move(from, to) => {
                let mut cdb = vec![op::MOVE_MEDIUM, 0, 0, 0];
                [from, to].iter().for_each(|element| cdb.extend(address(*element)));
                cdb.resize(12, 0);
                (cdb, Vec::new(), 0)
            }
            Self::Exchange(from, first, second) => {
                let mut cdb = vec![op::EXCHANGE_MEDIUM, 0, 0, 0];
                [from, first, second].iter().for_each(|element| cdb.extend(address(*element)));
                cdb.resize(12, 0);
                (cdb, Vec::new(), 0)
            }
            // VOLTAG.
            Self::Elements => {
                let cdb = vec![op::READ_ELEMENT_STATUS, 0x10, 0, 0, 0xff, 0xff, 0, 0, 0x10, 0, 0, 0];
                (cdb, Vec::new(), 0x1000)
            }
        };
        let unit = u16::try_from(self.unit()).unwrap();
        let attribute = Attribute::Simple;
        ScsiCommand { unit, cdb, data_out, data_in_len, attribute, immediate: false, replay: false }
    }
}

impl DriveCommand {
    /// Draws a command that concerns mode parameters, or none.
    fn draw_of_mode(plan: &TapePlan, rng: &mut Rng, number: u32, block_len: Option<u32>) -> Option<Self> {
        if rng.chance(1, plan.modes_one_in) {
            let lens: &[u32] = if plan.has_fixed_blocks() { &[0, 64, 64, 4096] } else { &[0] };
            let mode = Self::SetMode { is_buffered: rng.chance(1, 2), block_len: *pick(rng, lens) };
            return Some(if rng.chance(2, 3) { mode } else { Self::Mode });
        }
        if !plan.has_fixed_blocks() || !rng.chance(1, 3) {
            return None;
        }
        let count = 1 + u32::try_from(rng.below(u64::from(FIXED_MAX))).unwrap();
        match block_len {
            None => Some(Self::Mode),
            Some(0) => None,
            Some(len) => Some(match rng.below(4) {
                0 | 1 => Self::WriteFixed { number, count, len },
                2 => Self::ReadFixed { count, len },
                // Blocks that were just written are read then.
                _ => Self::SpaceRecords(-i32::try_from(count).unwrap()),
            }),
        }
    }

    /// Returns whether the command depends on the position.
    pub(super) const fn depends_on_position(self) -> bool {
        match self {
            Self::Write(..)
            | Self::Marks(..)
            | Self::Read
            | Self::SpaceRecords(_)
            | Self::SpaceMarks(_)
            | Self::WriteFixed { .. }
            | Self::ReadFixed { .. }
            | Self::Erase => true,
            Self::SpaceToEnd
            | Self::Locate(_)
            | Self::Rewind
            | Self::Position
            | Self::Load
            | Self::SetMode { .. }
            | Self::Mode
            | Self::Unload => false,
        }
    }

    /// Returns whether the command moves to a position that does not depend on the former one.
    pub(super) const fn moves_absolutely(self) -> bool {
        matches!(self, Self::SpaceToEnd | Self::Locate(_) | Self::Rewind | Self::Load | Self::Unload)
    }

    fn parts(self) -> (Vec<u8>, Vec<u8>, u32) {
        /// FIXED.
        const FIXED: u8 = 0x01;
        /// SILI.
        const ANY_LENGTH: u8 = 0x02;
        let six = |opcode: u8, flags: u8, count: u32| {
            let [_, a, b, c] = count.to_be_bytes();
            vec![opcode, flags, a, b, c, 0]
        };
        let signed = |count: i32| count.cast_unsigned() & 0x00ff_ffff;
        let cdb = match self {
            Self::Write(number, len) => return (six(op::WRITE_6, 0, len), record(number, len), 0),
            Self::WriteFixed { number, count, len } => {
                let blocks = (number..number + count).flat_map(|number| record(number, len));
                return (six(op::WRITE_6, FIXED, count), blocks.collect(), 0);
            }
            Self::ReadFixed { count, len } => {
                return (six(op::READ_6, FIXED, count), Vec::new(), count * len);
            }
            Self::SetMode { is_buffered, block_len } => {
                let [_, a, b, c] = block_len.to_be_bytes();
                let list = vec![0, 0, if is_buffered { BUFFERED } else { 0 }, 8, 0, 0, 0, 0, 0, a, b, c];
                return (vec![op::MODE_SELECT_6, 0x10, 0, 0, 12, 0], list, 0);
            }
            Self::Mode => return (vec![op::MODE_SENSE_6, 0, 0, 0, 0xff, 0], Vec::new(), 0xff),
            Self::Read => return (six(op::READ_6, ANY_LENGTH, READ_LEN), Vec::new(), READ_LEN),
            Self::Position => return (vec![op::READ_POSITION, 6, 0, 0, 0, 0, 0, 0, 0, 0], Vec::new(), 32),
            Self::Marks(count, is_immediate) => six(op::WRITE_FILEMARKS_6, u8::from(is_immediate), count),
            Self::SpaceRecords(count) => six(op::SPACE_6, 0, signed(count)),
            Self::SpaceMarks(count) => six(op::SPACE_6, 1, signed(count)),
            Self::SpaceToEnd => six(op::SPACE_6, 3, 0),
            Self::Rewind => six(op::REWIND, 0, 0),
            Self::Erase => six(op::ERASE_6, 0, 0),
            Self::Load => vec![op::LOAD_UNLOAD, 0, 0, 0, 1, 0],
            Self::Unload => vec![op::LOAD_UNLOAD, 0, 0, 0, 0, 0],
            Self::Locate(object) => {
                let [a, b, c, d] = object.to_be_bytes();
                vec![op::LOCATE_10, 0, 0, a, b, c, d, 0, 0, 0]
            }
        };
        (cdb, Vec::new(), 0)
    }
}

/// BUFFERED MODE 1h.
const BUFFERED: u8 = 0x10;

/// Returns the buffered mode and the block length that MODE SENSE(6) reports.
pub(super) fn mode_of(data: &[u8]) -> Option<(bool, u32)> {
    const BUFFERED_MODE: u8 = 0x70;
    let is_buffered = match data.get(2)? & BUFFERED_MODE {
        0 => false,
        BUFFERED => true,
        _ => return None,
    };
    let (8, [_, a, b, c]) = (*data.get(3)?, data.get(8..12)?) else { return None };
    Some((is_buffered, u32::from_be_bytes([0, *a, *b, *c])))
}

/// Returns the address of an element.
fn address(element: usize) -> [u8; 2] {
    let (first, number) = match element {
        0..FIRST_DRIVE => (10, element),
        number if number < FIRST_DRIVE + DRIVES => (500, number - FIRST_DRIVE),
        number => (1000, number - FIRST_DRIVE - DRIVES),
    };
    u16::try_from(first + number).unwrap().to_be_bytes()
}

/// Returns the cartridge in each element, as READ ELEMENT STATUS with volume tags reports them.
pub(super) fn places_of(data: &[u8]) -> Option<Vec<Option<usize>>> {
    let mut places = vec![None; ELEMENTS];
    let mut pages = data.get(8..)?;
    while let Some(header) = pages.get(..8) {
        let descriptor_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let len = usize::from(u16::from_be_bytes([header[6], header[7]]));
        for descriptor in pages.get(8..8 + len)?.chunks(descriptor_len) {
            let element = (0..ELEMENTS).find(|element| descriptor.starts_with(&address(*element)));
            let is_full = descriptor.get(2)? & 1 == 1;
            let tag = descriptor.get(12..44)?;
            let found = (0..CARTRIDGES).find(|number| tag.starts_with(name_of(*number).as_bytes()));
            match (element, is_full, found) {
                (Some(element), true, Some(_)) => places[element] = found,
                (_, false, _) => {}
                _ => return None,
            }
        }
        pages = pages.get(8 + len..)?;
    }
    Some(places)
}

impl Answer {
    /// Returns what the end of a command means.
    pub(super) fn of(ended: &CommandOutcome) -> Self {
        let CommandOutcome::Status { status, sense, data } = ended else {
            return match ended {
                CommandOutcome::Refused => Self::NotRun("refused"),
                _ => Self::Doubtful,
            };
        };
        match (Status(*status), Sense::parse(sense)) {
            (Status::GOOD, _) => Self::Good(data.clone()),
            (Status::BUSY | Status::TASK_SET_FULL, _) => Self::NotRun("busy"),
            (Status::TASK_ABORTED, _) => Self::Doubtful,
            (Status::CHECK_CONDITION, Ok(sense)) => Self::of_sense(sense),
            (status, sense) => Self::Impossible(format!("{status:?} {sense:?}")),
        }
    }

    fn of_sense(sense: Sense) -> Self {
        const BECOMING_READY: u16 = 0x0401;
        const CHANGED: u16 = 0x2800;
        const RESET_OR_POWERED_ON: u16 = 0x2900;
        const POWERED_ON: u16 = 0x2901;
        const POSITIONING_ERROR: u16 = 0x3b00;
        if sense.deferred {
            return Self::Impossible(format!("a deferred error without any fault: {sense:?}"));
        }
        match (sense.key, sense.asc.0) {
            (SenseKey::UNIT_ATTENTION, CHANGED) => Self::NotRun("changed"),
            (SenseKey::UNIT_ATTENTION, RESET_OR_POWERED_ON | POWERED_ON) => Self::NotRun("powered on"),
            (SenseKey::UNIT_ATTENTION, _) => Self::NotRun("attention"),
            (SenseKey::MEDIUM_ERROR, POSITIONING_ERROR) => Self::NotRun("position lost"),
            (SenseKey::NOT_READY, BECOMING_READY) => Self::NotRun("loading"),
            // The transport has lost data of the command.
            (SenseKey::ABORTED_COMMAND, asc) if matches!(asc >> 8, 0x0c | 0x47 | 0x4b) => Self::Doubtful,
            (key, asc) => {
                let information = sense.information.map(|value| u32::try_from(value & 0xffff_ffff).unwrap());
                Self::Sense(key.0, asc, information)
            }
        }
    }
}
