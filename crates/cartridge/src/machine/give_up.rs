//! What a failed write of the log gives up: the partition ends behind the last object in the files, and the
//! label says so before the command that failed ends.
//!
//! The failed write may have brought whole objects into the file. Without the new epoch of the label, a load
//! after a crash would take them for data, although the host knows that the data end before them.

use super::write::Writer;
use super::{Cartridge, Halt, end_of};
use crate::error::Error;
use crate::fault_injection::{Bug, is_injected};
use crate::io::Purpose;

/// How far the label is with what a failed write gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivingUp {
    /// Everything before the new end of this partition is flushed.
    Flush(u8),
    /// The label is written.
    Label,
    /// The label says it, or cannot be written.
    Done,
}

impl Cartridge {
    /// Gives up what is not in the files, because a write has failed: the partition ends behind the last
    /// object that is there.
    pub(super) fn give_up_unfiled(&mut self) {
        self.giving_up = Some(GivingUp::Done);
        let Some(Writer { partition, filed, .. }) = self.writer.take() else { return };
        let Ok(part) = self.part_mut(partition) else { return };
        part.now = filed;
        part.durable = part.durable.min(filed.end);
        let position = self.position;
        let is_behind = position.at > filed.end || position.object > filed.objects;
        if position.partition == partition && is_behind {
            self.position = end_of(partition, &filed);
        }
        self.cache.clear();
        if !is_injected(Bug::GivenUpUnlabeled) {
            self.giving_up = Some(GivingUp::Flush(partition));
        }
    }

    /// Makes it durable that the partition ends there, in a new epoch. If the files cannot be flushed, the
    /// label stays as it is. If the label cannot be written, the next synchronisation writes it. Returns
    /// whether that is over.
    pub(super) fn is_giving_up_over(&mut self, mut stage: GivingUp) -> bool {
        loop {
            self.giving_up = Some(stage);
            stage = match stage {
                GivingUp::Flush(_) if self.io.is_pending(Purpose::LogFlush) => return false,
                GivingUp::Flush(_) if matches!(self.lost, Some(Error::WriteLost { is_flush: true, .. })) => {
                    GivingUp::Done
                }
                GivingUp::Flush(partition) => {
                    if self.submit_flushes() {
                        continue;
                    }
                    // Without a new epoch the label cannot say it.
                    if self.begin_epoch(partition).is_ok() { GivingUp::Label } else { GivingUp::Done }
                }
                GivingUp::Label => match self.save_label() {
                    Err(Halt::Wait) => return false,
                    Err(Halt::Fail(_)) => {
                        self.label_write.give_up();
                        GivingUp::Done
                    }
                    Ok(()) => GivingUp::Done,
                },
                GivingUp::Done => {
                    self.giving_up = None;
                    return true;
                }
            };
        }
    }
}
