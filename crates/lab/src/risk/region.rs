//! The blocks that one session uses, and what they must contain.

use std::ops::Range;

use base::units::Lba;
use oracle::block_header::{BlockHeader, DeviceId, Generation, Sequence, WriterId};
use oracle::pattern::Pattern;

/// A range of logical blocks with signed contents. Every write increments the generation of its blocks.
#[derive(Clone, Debug)]
pub struct Region {
    device: DeviceId,
    block_len: usize,
    first: u64,
    generations: Vec<u32>,
}

impl Region {
    /// Creates a region of `blocks`, of generation 1.
    pub fn new(device: DeviceId, block_len: usize, blocks: &Range<u64>) -> Self {
        let count = usize::try_from(blocks.end.saturating_sub(blocks.start)).unwrap_or(0);
        Self { device, block_len, first: blocks.start, generations: vec![1; count] }
    }

    /// Returns its blocks.
    pub fn blocks(&self) -> Range<u64> {
        self.first..self.first + u64::try_from(self.generations.len()).unwrap_or(0)
    }

    /// Returns the logical block length in bytes.
    pub const fn block_len(&self) -> usize {
        self.block_len
    }

    /// Increments the generation of some blocks.
    pub fn renew(&mut self, blocks: &Range<u64>) {
        let (skipped, count) = (self.index(blocks.start), blocks.end.saturating_sub(blocks.start));
        let count = usize::try_from(count).unwrap_or(0);
        self.generations.iter_mut().skip(skipped).take(count).for_each(|generation| *generation += 1);
    }

    /// Returns the bytes that some blocks must contain.
    pub fn content(&self, blocks: &Range<u64>) -> Vec<u8> {
        let count = usize::try_from(blocks.end.saturating_sub(blocks.start)).unwrap_or(0);
        let mut bytes = vec![0; count * self.block_len];
        for (lba, block) in blocks.clone().zip(bytes.chunks_mut(self.block_len)) {
            // The length of the blocks was checked when the device was opened.
            let _ = self.header(lba).sign(block);
        }
        bytes
    }

    /// Returns the blocks from `first` on that differ in `bytes` from what they must contain.
    pub fn wrong_blocks(&self, first: u64, bytes: &[u8]) -> Vec<u64> {
        let mut expected = vec![0; self.block_len];
        let mut wrong = Vec::new();
        for (lba, block) in (first..).zip(bytes.chunks(self.block_len)) {
            let _ = self.header(lba).sign(&mut expected);
            if block != expected {
                wrong.push(lba);
            }
        }
        wrong
    }

    fn index(&self, lba: u64) -> usize {
        usize::try_from(lba.saturating_sub(self.first)).unwrap_or(usize::MAX)
    }

    fn header(&self, lba: u64) -> BlockHeader {
        let generation = self.generations.get(self.index(lba)).copied().unwrap_or(0);
        BlockHeader {
            device: self.device,
            lba: Lba(lba),
            generation: Generation(generation.into()),
            writer: WriterId(1),
            sequence: Sequence(generation.into()),
            time_ns: 0,
            seed: generation,
            pattern: Pattern::Random,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_foreign_and_damaged_blocks_are_wrong() {
        let mut region = Region::new(DeviceId(7), 512, &(100..120));
        let old = region.content(&(100..120));
        assert!(region.wrong_blocks(100, &old).is_empty());
        region.renew(&(104..106));
        assert_eq!(region.wrong_blocks(100, &old), [104, 105]);
        let mut new = region.content(&(100..120));
        assert!(region.wrong_blocks(100, &new).is_empty());
        new[512 * 3 + 17] ^= 1;
        assert_eq!(region.wrong_blocks(100, &new), [103]);
        assert_eq!(region.wrong_blocks(101, &old[..512]), [101], "the content of another block");
        assert_eq!(region.blocks(), 100..120);
    }
}
