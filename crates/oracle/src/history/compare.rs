//! Judges the outcomes of COMPARE AND WRITE and VERIFY, and derives the order of other writes from them.

use alloc::vec::Vec;

use base::units::Lba;

use super::{ChangeResult, Content, Finding, History, Known, OpId, OpenRead, Planned, ReadId, Violation};
use crate::block_check::BlockCheck;
use crate::block_model::{ReadWindow, Version};

impl History {
    /// Records that a COMPARE AND WRITE ended with MISCOMPARE: it has not written anything.
    pub fn end_miscompared(&mut self, op: OpId) {
        let content = self.ops.get(&op).map(|change| change.content);
        if let Some(Planned::Signed(writer, sequence)) = content {
            self.miscompared.insert((writer, sequence));
        }
        self.end_change(op, ChangeResult::Refused);
    }

    /// Judges the outcome of a COMPARE AND WRITE or VERIFY for one block, as a read that began as `read`.
    /// With `matched` the command reported that the block held `content`, otherwise that it did not.
    pub fn judge_compare(
        &mut self,
        read: ReadId,
        lba: Lba,
        content: Content,
        matched: bool,
        except: Option<OpId>,
    ) -> Option<Finding> {
        let now = self.tick();
        let OpenRead { device, place, .. } = *self.reads.get(&read)?;
        let look = ReadWindow { from: read.0, to: now, place };
        self.refresh_copies((device, lba), now);
        let block = self.block((device, lba));
        let fits = |version: &&Version| {
            Some(OpId(version.op)) != except
                && match matched {
                    true => version.content.admits(content),
                    false => version.content != Known::Exactly(content) || version.broken,
                }
        };
        if block.readable(look).any(|version| fits(&version)) {
            return None;
        }
        let law = block.timely(look).find(fits).and_then(|version| block.broken_rule(version, look));
        let wrong = law.map_or(Violation::Miscompared, Violation::from);
        let expected = self.expected(device, lba, look);
        let found = BlockCheck::Zero;
        Some(Finding { device, lba, violation: wrong, found, expected })
    }

    /// Judges one block of a COMPARE AND WRITE that ended with GOOD, as a read that began as `read`: the
    /// block held `content`, and no other write took effect before `op` replaced it. The caller must call
    /// this before it reports the end of `op`.
    pub fn judge_compare_and_write(
        &mut self,
        op: OpId,
        read: ReadId,
        lba: Lba,
        content: Content,
    ) -> Option<Finding> {
        if let Some(finding) = self.judge_compare(read, lba, content, true, Some(op)) {
            return Some(finding);
        }
        let OpenRead { device, place, .. } = *self.reads.get(&read)?;
        if self.crashes.get(&device).is_some_and(|crash| *crash > read.0) {
            return None;
        }
        let look = ReadWindow { from: read.0, to: self.tick(), place };
        let block = self.block((device, lba));
        let fits = |version: &&Version| version.op != op.0 && version.content.admits(content);
        // If two versions wrote the same content, the comparison does not show which of them it found.
        let fitting: Vec<u64> = block.readable(look).filter(fits).take(2).map(|version| version.op).collect();
        let [found] = fitting.as_slice() else { return None };
        if block.compare_write_replaced(op.0, *found, look) {
            return None;
        }
        let expected = self.expected(device, lba, look);
        Some(Finding { device, lba, violation: Violation::NotAtomic, found: BlockCheck::Zero, expected })
    }
}
