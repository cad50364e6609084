//! The label file: its two copies are written one after the other, so that one is always whole.

use base::buffer::Bytes;
use store::api::{Durability, Failure, OpAction, OpOutput};

use super::cache::bytes_of;
use super::{Cartridge, Halt};
use crate::command::Outcome;
use crate::error::Error;
use crate::fault_injection::{Bug, is_injected};
use crate::io::{FileId, Purpose};
use crate::label::COPY_LEN;

#[derive(Debug, Default)]
pub(super) struct LabelWrite {
    is_changed: bool,
    stage: Stage,
    /// The copy to write first: not the newest one.
    first: u8,
    bytes: Option<Bytes>,
    failure: Option<Failure>,
    /// What was read of the copies.
    pub(super) copies: [Option<Result<Option<Bytes>, Failure>>; 2],
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    #[default]
    Idle,
    /// The copy is being written; true if the other one is already.
    Writing(u8, bool),
    /// The copy is being flushed.
    Flushing(u8, bool),
}

impl LabelWrite {
    pub(super) fn mark_changed(&mut self) {
        self.is_changed = true;
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    pub(super) fn handle_copy(&mut self, copy: u8, result: Result<OpOutput, Failure>) {
        if let Some(slot) = self.copies.get_mut(usize::from(copy)) {
            *slot = Some(bytes_of(result));
        }
    }

    /// Sets which copy is the newest one.
    pub(super) fn set_newest(&mut self, copy: u8) {
        self.first = 1 - copy.min(1);
    }

    /// Returns whether the label is being written.
    pub(super) const fn is_under_way(&self) -> bool {
        !matches!(self.stage, Stage::Idle)
    }

    /// Returns whether the label was changed since it was written, and which copy is to be written first.
    pub(super) const fn export(&self) -> (bool, u8) {
        (self.is_changed, self.first)
    }

    /// Sets these.
    pub(super) fn restore(&mut self, is_changed: bool, first: u8) {
        (self.is_changed, self.first) = (is_changed, first.min(1));
    }

    /// Starts from the first copy the next time.
    pub(super) fn give_up(&mut self) {
        self.stage = Stage::Idle;
        self.failure = None;
    }
}

impl Cartridge {
    /// Writes the label if it has changed.
    pub(super) fn save_label(&mut self) -> Result<(), Halt> {
        loop {
            if self.io.is_pending(Purpose::Label) {
                return Err(Halt::Wait);
            }
            if let Some(failure) = self.label_write.failure {
                return Err(Error::LabelWrite(failure).into());
            }
            match self.label_write.stage {
                Stage::Idle => {
                    let Some(label) = self.label.as_mut().filter(|_| self.label_write.is_changed) else {
                        return Ok(());
                    };
                    label.sequence += 1;
                    self.label_write.bytes = Some(Bytes::copied_from(&label.encode()));
                    self.write_copy(self.label_write.first, false);
                }
                Stage::Writing(copy, false) if is_injected(Bug::LabelCopiesTogether) => {
                    self.write_copy(1 - copy, true);
                }
                Stage::Writing(copy, is_last) => {
                    self.io.submit(Purpose::Label, FileId::Label, OpAction::Flush);
                    self.label_write.stage = Stage::Flushing(copy, is_last);
                }
                Stage::Flushing(copy, is_last) => {
                    self.label_write.first = 1 - copy;
                    if is_last {
                        self.label_write.stage = Stage::Idle;
                        self.label_write.is_changed = false;
                        return Ok(());
                    }
                    self.write_copy(1 - copy, true);
                }
            }
        }
    }

    pub(super) fn step_save_label(&mut self) -> Result<Outcome, Halt> {
        if !self.is_writable {
            return Err(Error::WriteProtected.into());
        }
        self.save_label().map(|()| Outcome::Done)
    }

    fn write_copy(&mut self, copy: u8, is_last: bool) {
        let Some(bytes) = self.label_write.bytes.clone() else { return };
        let at = u64::from(copy) * COPY_LEN;
        let action = OpAction::Write { at, data: bytes.into(), durability: Durability::Cached };
        self.io.submit(Purpose::Label, FileId::Label, action);
        self.label_write.stage = Stage::Writing(copy, is_last);
    }
}
