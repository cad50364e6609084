//! Which initiators do not know where the tape is: the drive has reported to a READ or WRITE of theirs that
//! it was powered on, or that its cartridge may have changed. Such a drive executes no command that depends
//! on the position, until the initiator has moved to a position that does not depend on the former one.

use super::command::{Answer, DriveCommand, TapeCommand};
use super::plan::{DRIVES, INITIATORS};
use crate::property::{Property, PropertyViolation};

/// What initiators know of positions.
#[derive(Default)]
pub(super) struct Positions([[Known; DRIVES]; INITIATORS]);

#[derive(Clone, Copy, Default)]
struct Known {
    /// Whether the drive may say that the position is lost.
    may_be_lost: bool,
    /// Whether the drive must not execute a command that depends on the position.
    is_lost: bool,
}

impl Positions {
    /// Returns whether the drive may say to an initiator that the position is lost.
    pub(super) const fn may_be_lost(&self, initiator: usize, drive: usize) -> bool {
        self.0[initiator][drive].may_be_lost
    }

    /// Returns whether a drive must not execute a command that is sent now. `open` are the commands of the
    /// initiator that have not ended.
    pub(super) fn forbids(
        &self,
        initiator: usize,
        command: TapeCommand,
        mut open: impl Iterator<Item = TapeCommand>,
    ) -> bool {
        let TapeCommand::Drive(drive, of_drive) = command else { return false };
        // Another one may still make the position known.
        let is_certain = open.all(|other| other.unit() != command.unit() || other.depends_on_position());
        of_drive.depends_on_position() && self.0[initiator][drive].is_lost && is_certain
    }

    /// Handles the end of a command. `is_forbidden` is what [`Self::forbids`] returned when it was sent.
    ///
    /// # Errors
    /// The drive has said that the position is lost when it is not, or has executed a command when it is.
    pub(super) fn ended(
        &mut self,
        initiator: usize,
        command: TapeCommand,
        is_forbidden: bool,
        answer: &Answer,
    ) -> Result<(), PropertyViolation> {
        let (drive, of_drive) = match command {
            TapeCommand::Drive(drive, of_drive) => (drive, Some(of_drive)),
            TapeCommand::Test(unit) if unit > 0 => (unit - 1, None),
            _ => return Ok(()),
        };
        let known = &mut self.0[initiator][drive];
        let depends = of_drive.is_some_and(DriveCommand::depends_on_position);
        let moves = of_drive.is_some_and(DriveCommand::moves_absolutely);
        let wrong = |how: &str| Err(PropertyViolation::new(Property::Records, format!("{command:?} {how}")));
        match answer {
            Answer::NotRun("changed" | "powered on") if depends || of_drive.is_none() => {
                *known = Known { may_be_lost: depends, is_lost: depends };
            }
            // What the drive owed is told.
            Answer::NotRun("changed" | "powered on") if !known.may_be_lost => known.is_lost = false,
            Answer::NotRun("position lost") if !depends || !known.may_be_lost => {
                return wrong("is told that the position is lost, which is known");
            }
            Answer::Good(_) | Answer::Sense(0x00 | 0x08, ..) if is_forbidden => {
                return wrong("is executed at a position that the initiator does not know");
            }
            Answer::Good(_) if moves => *known = Known::default(),
            _ => {}
        }
        Ok(())
    }

    /// Handles the end of a command whose answer was lost on the way: the drive may believe to have told the
    /// initiator that it does not know the position, or to know that it does.
    pub(super) fn answer_lost(&mut self, initiator: usize, command: TapeCommand) {
        if let Some(drive) = command.unit().checked_sub(1) {
            self.0[initiator][drive] = Known { may_be_lost: true, is_lost: false };
        }
    }

    /// Handles the loss of the I_T nexus of an initiator. A drive whose position it did not know owes it a
    /// unit attention before it executes anything.
    pub(super) fn nexus_lost(&mut self, initiator: usize) {
        self.0[initiator].iter_mut().for_each(|known| known.may_be_lost = false);
    }
}
