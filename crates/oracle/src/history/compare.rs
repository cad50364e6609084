//! What COMPARE AND WRITE and VERIFY say of blocks, and what that says of other writes.

use alloc::vec::Vec;

use base::units::Lba;

use super::{Content, End, Finding, History, Known, OpId, OpenRead, Planned, ReadId, Wrong};
use crate::reading::Reading;
use crate::register::{Look, Version};

impl History {
    /// Takes note that a COMPARE AND WRITE ended with MISCOMPARE: it has not written anything.
    pub fn miscompared(&mut self, op: OpId) {
        let content = self.ops.get(&op).map(|change| change.content);
        if let Some(Planned::Signed(writer, sequence)) = content {
            self.miscompared.insert((writer, sequence));
        }
        self.end(op, End::Refused);
    }

    /// Judges what a COMPARE AND WRITE or VERIFY said of one block, as a read that began as `read`: that it held `content`, or
    /// that it did not.
    pub fn compared(
        &mut self,
        read: ReadId,
        lba: Lba,
        content: Content,
        matched: bool,
        except: Option<OpId>,
    ) -> Option<Finding> {
        let now = self.tick();
        let OpenRead { device, place, .. } = *self.reads.get(&read)?;
        let look = Look { from: read.0, to: now, place };
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
        let law = block.timely(look).find(fits).and_then(|version| block.broken_law(version, look));
        let wrong = law.map_or(Wrong::Miscompared, Wrong::from);
        let expected = self.expected(device, lba, look);
        let found = Reading::Zero;
        Some(Finding { device, lba, wrong, found, expected })
    }

    /// Judges one block of a COMPARE AND WRITE that ended well, as a read that began as `read`: it held `content`, and nothing
    /// else was written to it before `op` replaced that. To be told before the end of `op`.
    pub fn replaced(&mut self, op: OpId, read: ReadId, lba: Lba, content: Content) -> Option<Finding> {
        if let Some(finding) = self.compared(read, lba, content, true, Some(op)) {
            return Some(finding);
        }
        let OpenRead { device, place, .. } = *self.reads.get(&read)?;
        if self.crashes.get(&device).is_some_and(|crash| *crash > read.0) {
            return None;
        }
        let look = Look { from: read.0, to: self.tick(), place };
        let block = self.block((device, lba));
        let fits = |version: &&Version| version.op != op.0 && version.content.admits(content);
        // Two that wrote the same leave open which one it was.
        let fitting: Vec<u64> = block.readable(look).filter(fits).take(2).map(|version| version.op).collect();
        let [found] = fitting.as_slice() else { return None };
        if block.replaced(op.0, *found, look) {
            return None;
        }
        let expected = self.expected(device, lba, look);
        Some(Finding { device, lba, wrong: Wrong::NotAtomic, found: Reading::Zero, expected })
    }
}
