//! The events that a run counts.

use super::World;
use crate::tape::command::{Answer, DriveCommand, TapeCommand};

pub(super) const EVENTS: [&str; 20] = [
    "records that were read",
    "filemarks that were met",
    "ends of data that were met",
    "positions that were told",
    "motions that were made",
    "motions that could not be made",
    "elements that were told",
    "commands without a cartridge",
    "commands that another cartridge stopped",
    "commands whose end nobody knows",
    "losses of power",
    "losses of power with data that were not synchronised",
    "kills of the process",
    "changes of the library that a crash met",
    "commands that a lost position stopped",
    "mode parameters that were set",
    "mode parameters that were told",
    "immediate filemarks that an unbuffered mode refused",
    "blocks of another length than that of the mode parameters",
    "resets that were answered",
];

impl World {
    pub(super) fn count_end(&mut self, command: TapeCommand, answer: &Answer) {
        let (end, event) = match (command, answer) {
            (TapeCommand::Reset(_), Answer::Good(_)) => return self.count(EVENTS[19]),
            (TapeCommand::Reset(_), _) => return,
            (TapeCommand::Drive(_, DriveCommand::Read | DriveCommand::ReadFixed { .. }), Answer::Good(_)) => {
                (0, Some(EVENTS[0]))
            }
            (TapeCommand::Drive(_, DriveCommand::SetMode { .. }), Answer::Good(_)) => (0, Some(EVENTS[15])),
            (TapeCommand::Drive(_, DriveCommand::Mode), Answer::Good(_)) => (0, Some(EVENTS[16])),
            (TapeCommand::Drive(_, DriveCommand::Marks(..)), Answer::Sense(0x05, ..)) => {
                (1, Some(EVENTS[17]))
            }
            (TapeCommand::Drive(..), Answer::Sense(0x00, 0x0000, _)) => (0, Some(EVENTS[18])),
            (TapeCommand::Drive(_, DriveCommand::Position), Answer::Good(_)) => (0, Some(EVENTS[3])),
            (TapeCommand::Move(..) | TapeCommand::Exchange(..), Answer::Good(_)) => (0, Some(EVENTS[4])),
            (TapeCommand::Elements, Answer::Good(_)) => (0, Some(EVENTS[6])),
            (_, Answer::Good(_)) => (0, None),
            (_, Answer::Sense(0x00, 0x0001, _)) => (0, Some(EVENTS[1])),
            (_, Answer::Sense(0x08, 0x0005, _)) => (0, Some(EVENTS[2])),
            (_, Answer::Sense(0x02, 0x3a00, _)) => (1, Some(EVENTS[7])),
            (_, Answer::Sense(0x05, 0x3b0d | 0x3b0e, _)) => (1, Some(EVENTS[5])),
            (_, Answer::Sense(..) | Answer::Impossible(_)) => (1, None),
            (_, Answer::NotRun("changed")) => (3, Some(EVENTS[8])),
            (_, Answer::NotRun("position lost")) => (3, Some(EVENTS[14])),
            (_, Answer::NotRun(_)) => (3, None),
            (_, Answer::Doubtful) => (2, Some(EVENTS[9])),
        };
        self.ends[end] += 1;
        self.judged += u64::from(end < 2);
        if let Some(event) = event {
            self.count(event);
        }
    }
}
