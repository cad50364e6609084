//! Derives the content that changes leave in blocks. The content that a copy leaves depends on the content of
//! its source.

use alloc::vec::Vec;

use base::units::Lba;

use super::{BlockSignature, Change, Content, History, Known, OpId, Planned, keys_of};
use crate::block_header::DeviceId;
use crate::block_model::{ReadWindow, Tick};

impl History {
    /// Returns the content that a change leaves in each of its blocks, as far as it is known, and whether the
    /// block may be torn. A copy reads its source from `begin` to `to`.
    pub(super) fn contents(
        &self,
        change: &Change,
        begin: Tick,
        to: Tick,
    ) -> Vec<((DeviceId, Lba), (Known, bool))> {
        let Change { device, lba: first, .. } = *change;
        let at = |(device, lba): (DeviceId, Lba)| {
            let content = match change.content {
                Planned::Zero => Known::Exactly(Content::Zero),
                Planned::Anything => Known::Anything,
                Planned::Same(mark) => Known::Exactly(Content::Signed(mark)),
                Planned::Signed(writer, sequence) => {
                    Known::Exactly(Content::Signed(BlockSignature { device, lba, writer, sequence }))
                }
                Planned::CopyOf(source, from) => {
                    let from = Lba(from.0.saturating_add(lba.0.saturating_sub(first.0)));
                    return ((device, lba), self.copy_of((source, from), begin, to));
                }
            };
            ((device, lba), (content, false))
        };
        keys_of(device, first, change.blocks).map(at).collect()
    }

    fn copy_of(&self, source: (DeviceId, Lba), from: Tick, to: Tick) -> (Known, bool) {
        let Some(block) = self.blocks.get(&source) else { return (self.initial(), false) };
        let mut contents = Vec::new();
        let mut broken = false;
        for version in block.readable(ReadWindow { from, to, place: None }) {
            broken |= version.broken;
            match &version.content {
                Known::Exactly(content) => contents.push(*content),
                Known::OneOf(own) => contents.extend_from_slice(own),
                Known::Anything => return (Known::Anything, broken),
            }
        }
        contents.sort_unstable();
        contents.dedup();
        match contents.as_slice() {
            [only] => (Known::Exactly(*only), broken),
            _ => (Known::OneOf(contents), broken),
        }
    }

    /// Updates the copies into a block that are still under way: the block may hold any content that the
    /// source held until now.
    pub(super) fn refresh_copies(&mut self, key: (DeviceId, Lba), now: Tick) {
        if self.copies.is_empty() {
            return;
        }
        let ops = self.blocks.get(&key).map(|block| block.versions.as_slice()).unwrap_or_default();
        let open: Vec<OpId> =
            ops.iter().map(|version| OpId(version.op)).filter(|op| self.copies.contains_key(op)).collect();
        for op in open {
            let (Some(change), Some(read)) = (self.ops.get(&op), self.copies.get(&op)) else { continue };
            let Planned::CopyOf(source, from) = change.content else { continue };
            let lba = Lba(from.0.saturating_add(key.1.0.saturating_sub(change.lba.0)));
            let (content, broken) = self.copy_of((source, lba), read.0, now);
            if let Some(version) = self.blocks.get_mut(&key).and_then(|block| block.find(op.0)) {
                version.content = content;
                version.broken |= broken;
            }
        }
    }
}
