//! Which block lengths initiators believe are in force, as hosts do: by what MODE SELECT and MODE SENSE have
//! told them, until a unit attention says that something has changed.

use super::command::{Answer, DriveCommand, TapeCommand, mode_of};
use super::plan::{DRIVES, INITIATORS};

/// The block length of each drive that each initiator knows.
#[derive(Default)]
pub(super) struct BlockLens([[Option<u32>; DRIVES]; INITIATORS]);

impl BlockLens {
    /// Returns what an initiator knows.
    pub(super) const fn of(&self, initiator: usize) -> &[Option<u32>; DRIVES] {
        &self.0[initiator]
    }

    /// Handles the end of a command.
    pub(super) fn ended(&mut self, initiator: usize, command: TapeCommand, answer: &Answer) {
        let Some(drive) = command.unit().checked_sub(1) else { return };
        let known = &mut self.0[initiator][drive];
        match (command, answer) {
            (TapeCommand::Drive(_, DriveCommand::SetMode { block_len, .. }), Answer::Good(_)) => {
                *known = Some(block_len);
            }
            (TapeCommand::Drive(_, DriveCommand::Mode), Answer::Good(data)) => {
                *known = mode_of(data).map(|(_, block_len)| block_len);
            }
            (_, Answer::NotRun("changed" | "powered on" | "attention")) => *known = None,
            (TapeCommand::Drive(_, DriveCommand::SetMode { .. }), Answer::Doubtful) => *known = None,
            _ => {}
        }
    }

    /// Handles the loss of the I_T nexus of an initiator.
    pub(super) fn nexus_lost(&mut self, initiator: usize) {
        self.0[initiator] = [None; DRIVES];
    }
}
