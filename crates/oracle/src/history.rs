//! Records which writer wrote what and when, and derives what a read may legally return.
//!
//! The caller reports when each operation is submitted and when it ends, in the order in which it observes
//! that. The history counts the calls and needs no clock. For each block it then knows which writes a read
//! may return: the last one that ended before the read began, any that was under way, any that failed or
//! whose result is unknown, and after a crash any that was not yet on stable storage. Every block is judged
//! by itself: a read may return an operation on several blocks half done while it is under way, since SCSI
//! promises more only for commands that it defines as atomic.
//!
//! | operation | as a change |
//! |---|---|
//! | WRITE, ORWRITE | [`Planned::Signed`], `stable` when FUA is set or the write cache is off |
//! | WRITE SAME | [`Planned::Same`] or [`Planned::Zero`] |
//! | UNMAP | [`Planned::Zero`], `optional`: a hint |
//! | COMPARE AND WRITE | [`Planned::Signed`] |
//! | EXTENDED COPY | [`Planned::CopyOf`] |
//! | FORMAT UNIT, SANITIZE | [`Planned::Zero`] or [`Planned::Anything`] |
//!
//! The caller reports the comparison of a COMPARE AND WRITE to [`History::judge_compare_and_write`] or
//! [`History::end_miscompared`].

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;

use base::units::Lba;

use crate::block_check::BlockCheck;
use crate::block_header::{BlockHeader, DeviceId, Generation, Sequence, WriterId};
use crate::block_model::{BlockModel, ReadWindow, Tick, Version, content_of};
use crate::order::{OrderRule, TaskPosition};

/// The fields that tell one signed block from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockSignature {
    /// The device in its header.
    pub device: DeviceId,
    /// The address in its header.
    pub lba: Lba,
    /// The writer.
    pub writer: WriterId,
    /// The operation that wrote it.
    pub sequence: Sequence,
}

/// The content of a whole block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    /// Zeros.
    Zero,
    /// A signed block.
    Signed(BlockSignature),
}

impl Content {
    /// Returns the content that a block header stands for.
    pub const fn of(block_header: BlockHeader) -> Self {
        let BlockHeader { device, lba, writer, sequence, .. } = block_header;
        Self::Signed(BlockSignature { device, lba, writer, sequence })
    }
}

/// The knowledge about the content of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Exactly(Content),
    OneOf(Vec<Content>),
    Anything,
}

impl Known {
    pub(crate) fn admits(&self, content: Content) -> bool {
        match self {
            Self::Exactly(own) => *own == content,
            Self::OneOf(own) => own.contains(&content),
            Self::Anything => true,
        }
    }
}

/// The content that an operation is to leave in the blocks that it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    /// Each block is signed for its own address, with this writer and this operation.
    Signed(WriterId, Sequence),
    /// The same signed block in all of them.
    Same(BlockSignature),
    /// Zeros.
    Zero,
    /// The content of these blocks, starting here, at the time of the copy.
    CopyOf(DeviceId, Lba),
    /// Unknown content.
    Anything,
}

/// A change to a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The device.
    pub device: DeviceId,
    /// The first block.
    pub lba: Lba,
    /// The number of blocks.
    pub blocks: u64,
    /// The content that it writes.
    pub content: Planned,
    /// The change survives a loss of power as soon as it has ended.
    pub stable: bool,
    /// The device may leave blocks unchanged.
    pub optional: bool,
}

/// The id of a change, which is valid until the change ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeResult {
    /// With GOOD: it has taken effect.
    Done,
    /// With an error: any part of it may have taken effect, and no more of it will.
    Failed,
    /// The result is unknown, and the change may still take effect until [`History::conclude_unknown`] is
    /// called.
    Unknown,
    /// The command was refused before it had any effect.
    Refused,
}

/// The id of a read, which is valid until the read ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(u64);

/// The id of a flush, which is valid until the flush ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushId(DeviceId, Tick);

/// A kind of wrong block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Violation {
    /// The block reads as if it was never written.
    Lost,
    /// The block holds an older version: a later write is lost, or an old write was executed again.
    Stale,
    /// The block is put together from several writes.
    Torn,
    /// The block belongs to another address.
    Misdirected,
    /// The block belongs to another device, or to a writer that is not ours.
    Foreign,
    /// The block is damaged.
    Garbled,
    /// The block was never sent, or the command that sent it was refused.
    Unsubmitted,
    /// A comparison matched content that the block cannot have held, or did not match content that the block
    /// must have held.
    Miscompared,
    /// A COMPARE AND WRITE wrote the block although its comparison failed.
    WrittenDespite,
    /// A COMPARE AND WRITE was not atomic: another write took effect between its comparison and its write.
    NotAtomic,
    /// A command took effect before another command that must precede it by the task attribute of one of the
    /// two.
    Reordered,
}

impl From<OrderRule> for Violation {
    fn from(law: OrderRule) -> Self {
        match law {
            OrderRule::Order => Self::Reordered,
            OrderRule::Atomic => Self::NotAtomic,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "lost",
            Self::Stale => "stale",
            Self::Torn => "torn",
            Self::Misdirected => "misdirected",
            Self::Foreign => "foreign",
            Self::Garbled => "garbled",
            Self::Unsubmitted => "unsubmitted",
            Self::Miscompared => "miscompared",
            Self::WrittenDespite => "written in spite of a miscompare",
            Self::NotAtomic => "written by a COMPARE AND WRITE that was not atomic",
            Self::Reordered => "out of order",
        })
    }
}

/// A wrong block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The device.
    pub device: DeviceId,
    /// The block.
    pub lba: Lba,
    /// The kind of violation.
    pub violation: Violation,
    /// The block as it was read.
    pub found: BlockCheck,
    /// The contents that would have been legal.
    pub expected: Vec<Content>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of device {:016x} is {}: it holds {}",
            self.lba, self.device.0, self.violation, self.found
        )?;
        for (number, content) in self.expected.iter().enumerate() {
            f.write_str(if number == 0 { "; expected " } else { " or " })?;
            match content {
                Content::Zero => f.write_str("zeros")?,
                Content::Signed(BlockSignature { lba, writer, sequence, .. }) => {
                    write!(f, "operation {} of writer {:08x} for {lba}", sequence.0, writer.0)?;
                }
            }
        }
        Ok(())
    }
}

/// The content of the blocks before the first write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialContent {
    /// Zeros.
    Zero,
    /// Unknown: the first read of a block determines it.
    Anything,
}

/// The history of writes to any number of devices.
#[derive(Clone, Debug)]
pub struct History {
    initially: InitialContent,
    /// Whether a block may be found torn, sector by sector, after a crash or a failed write.
    tears: bool,
    clock: Tick,
    next_op: u64,
    blocks: BTreeMap<(DeviceId, Lba), BlockModel>,
    ops: BTreeMap<OpId, Change>,
    /// The read side of each copy that has not ended.
    copies: BTreeMap<OpId, ReadId>,
    reads: BTreeMap<ReadId, OpenRead>,
    /// The last crash of each device.
    crashes: BTreeMap<DeviceId, Tick>,
    /// The writes of COMPARE AND WRITE commands whose comparison failed.
    miscompared: BTreeSet<(WriterId, Sequence)>,
    /// Blocks with versions that a flush or a crash can still affect.
    unsettled: BTreeSet<(DeviceId, Lba)>,
}

/// A read that has not ended.
#[derive(Clone, Copy, Debug)]
struct OpenRead {
    device: DeviceId,
    lba: Lba,
    blocks: u64,
    place: Option<TaskPosition>,
}

impl History {
    /// Creates a history of devices that hold `initially`. With `tears`, a block longer than a sector may be
    /// found torn after a crash or a failed write.
    pub const fn new(initially: InitialContent, tears: bool) -> Self {
        Self {
            initially,
            tears,
            clock: 0,
            next_op: 0,
            blocks: BTreeMap::new(),
            ops: BTreeMap::new(),
            copies: BTreeMap::new(),
            reads: BTreeMap::new(),
            crashes: BTreeMap::new(),
            miscompared: BTreeSet::new(),
            unsettled: BTreeSet::new(),
        }
    }

    /// Returns the generation of the next write to a block.
    pub fn next_generation(&self, device: DeviceId, lba: Lba) -> Generation {
        Generation(self.blocks.get(&(device, lba)).map_or(0, |block| block.generation).saturating_add(1))
    }

    /// Records that a change is submitted. From now on a read may return it.
    pub fn submit(&mut self, change: Change) -> OpId {
        self.submit_ordered(change, None)
    }

    /// Records that a change is submitted by a command whose position in its task set is known.
    pub fn submit_ordered(&mut self, change: Change, place: Option<TaskPosition>) -> OpId {
        self.next_op += 1;
        let op = OpId(self.next_op);
        let begin = self.tick();
        if let Planned::CopyOf(source, from) = change.content {
            // A copy reads: the history must keep every version that it may find until the copy ends.
            let blocks = change.blocks;
            self.reads.insert(ReadId(begin), OpenRead { device: source, lba: from, blocks, place: None });
            self.copies.insert(op, ReadId(begin));
        }
        for (key, (content, broken)) in self.contents(&change, begin, begin) {
            let block = self.block(key);
            block.generation += 1;
            block.versions.push(Version {
                op: op.0,
                content,
                begin,
                settled_at: None,
                superseded_at: None,
                done: false,
                broken,
                refused: false,
                optional: change.optional,
                stable: change.stable,
                durably_superseded: false,
                crashed: false,
                place,
                took_effect: false,
                excluded_by: None,
                after_compare_writes: Vec::new(),
                replaced_by: None,
            });
            self.unsettled.insert(key);
        }
        self.ops.insert(op, change);
        op
    }

    /// Records how a change ended. A change that ended with [`ChangeResult::Unknown`] may end a second time.
    pub fn end_change(&mut self, op: OpId, end: ChangeResult) {
        let now = self.tick();
        let Some(change) = self.ops.get(&op).copied() else { return };
        let copied = self.copies.get(&op).map(|read| self.contents(&change, read.0, now));
        for (number, key) in (0..).zip(keys(&change)) {
            let Some(block) = self.blocks.get_mut(&key) else { continue };
            if let (Some(version), Some(copied)) = (block.find(op.0), &copied)
                && let Some((_, (content, broken))) = copied.get(number)
            {
                version.content = content.clone();
                version.broken |= broken;
            }
            match end {
                ChangeResult::Done => block.done(op.0, now),
                ChangeResult::Failed | ChangeResult::Unknown => {
                    if let Some(version) = block.find(op.0) {
                        version.broken = true;
                        if end == ChangeResult::Failed {
                            version.settled_at = Some(version.settled_at.unwrap_or(now));
                        }
                    }
                }
                ChangeResult::Refused => {
                    if let Some(version) = block.find(op.0) {
                        version.refused = true;
                        version.settled_at = Some(now);
                        version.superseded_at = Some(version.begin);
                    }
                }
            }
        }
        if end != ChangeResult::Unknown {
            self.ops.remove(&op);
            let read = self.copies.remove(&op);
            read.and_then(|read| self.reads.remove(&read));
        }
        self.prune_blocks(keys(&change));
    }

    /// Records that a change whose result is unknown can no longer take effect, because the task that might
    /// have executed it no longer exists.
    pub fn conclude_unknown(&mut self, op: OpId) {
        self.end_change(op, ChangeResult::Failed);
    }

    /// Records that the medium of a device lost everything that was not on stable storage. Changes under way
    /// may have begun, and may be carried out afterwards, unless the caller reports their end.
    pub fn crash(&mut self, device: DeviceId) {
        let now = self.tick();
        self.crashes.insert(device, now);
        for (_, block) in self.blocks.range_mut((device, Lba(0))..=(device, Lba(u64::MAX))) {
            block.crash();
        }
    }

    /// Records that a flush is submitted.
    pub fn flush_begin(&mut self, device: DeviceId) -> FlushId {
        FlushId(device, self.tick())
    }

    /// Records that a flush ended with GOOD: changes that ended before it began are on stable storage. The
    /// caller need not report a flush that failed.
    pub fn flush_end(&mut self, flush: FlushId) {
        let FlushId(device, begin) = flush;
        self.tick();
        // A flush that a crash interrupted may have been carried out before or after the crash.
        if self.crashes.get(&device).is_some_and(|crash| *crash > begin) {
            return;
        }
        let keys: Vec<_> =
            self.unsettled.range((device, Lba(0))..=(device, Lba(u64::MAX))).copied().collect();
        for key in &keys {
            if let Some(block) = self.blocks.get_mut(key) {
                block.flushed(begin);
            }
        }
        self.prune_blocks(keys.into_iter());
    }

    /// Records that a read is submitted.
    pub fn read_begin(&mut self, device: DeviceId, lba: Lba, blocks: u64) -> ReadId {
        self.read_begin_ordered(device, lba, blocks, None)
    }

    /// Records that a read is submitted by a command whose position in its task set is known.
    pub fn read_begin_ordered(
        &mut self,
        device: DeviceId,
        lba: Lba,
        blocks: u64,
        place: Option<TaskPosition>,
    ) -> ReadId {
        let id = ReadId(self.tick());
        self.reads.insert(id, OpenRead { device, lba, blocks, place });
        id
    }

    /// Judges the data of a read: a whole number of blocks of `block_len` bytes, beginning with the first
    /// block of the read. Blocks that are missing at the end are not judged.
    pub fn read_end(&mut self, read: ReadId, block_len: usize, data: &[u8]) -> Vec<Finding> {
        let now = self.tick();
        let Some(OpenRead { device, lba: first, blocks, place }) = self.reads.remove(&read) else {
            return Vec::new();
        };
        let window = ReadWindow { from: read.0, to: now, place };
        let mut findings = Vec::new();
        for (number, bytes) in (0..blocks).zip(data.chunks(block_len.max(1))) {
            let Some(lba) = first.after(base::units::Blocks(number)) else { break };
            findings.extend(self.judge((device, lba), BlockCheck::found_at(lba, bytes), window));
        }
        self.prune_blocks(keys_of(device, first, blocks));
        findings
    }

    /// Records that a read returned no data.
    pub fn read_failed(&mut self, read: ReadId) {
        self.reads.remove(&read);
    }

    /// Returns the contents that a read of a block may return if it begins now and ends before any other
    /// event.
    pub fn expected_content(&self, device: DeviceId, lba: Lba) -> Vec<Content> {
        let (from, to) = (self.clock.saturating_add(1), self.clock.saturating_add(2));
        self.expected(device, lba, ReadWindow { from, to, place: None })
    }

    /// Returns the blocks of a device that were ever written to, in order.
    pub fn touched(&self, device: DeviceId) -> impl Iterator<Item = Lba> {
        self.blocks.range((device, Lba(0))..=(device, Lba(u64::MAX))).map(|((_, lba), _)| *lba)
    }

    /// Returns the changes that have not ended or whose result is unknown.
    pub fn open(&self) -> impl Iterator<Item = (OpId, &Change)> {
        self.ops.iter().map(|(op, change)| (*op, change))
    }

    /// Returns the number of versions in memory, which determines the memory that the history uses.
    pub fn versions(&self) -> usize {
        self.blocks.values().map(|block| block.versions.len()).sum()
    }

    fn tick(&mut self) -> Tick {
        self.clock += 1;
        self.clock
    }

    fn block(&mut self, key: (DeviceId, Lba)) -> &mut BlockModel {
        let content = self.initial();
        self.blocks.entry(key).or_insert_with(|| BlockModel::new(content))
    }

    const fn initial(&self) -> Known {
        match self.initially {
            InitialContent::Zero => Known::Exactly(Content::Zero),
            InitialContent::Anything => Known::Anything,
        }
    }

    fn expected(&self, device: DeviceId, lba: Lba, window: ReadWindow) -> Vec<Content> {
        let mut expected = Vec::new();
        let Some(block) = self.blocks.get(&(device, lba)) else {
            return match self.initially {
                InitialContent::Zero => alloc::vec![Content::Zero],
                InitialContent::Anything => expected,
            };
        };
        for version in block.readable(window) {
            match &version.content {
                Known::Exactly(content) => expected.push(*content),
                Known::OneOf(own) => expected.extend_from_slice(own),
                Known::Anything => {}
            }
        }
        expected
    }

    fn judge(&mut self, key: (DeviceId, Lba), found: BlockCheck, window: ReadWindow) -> Option<Finding> {
        let ReadWindow { from, to, .. } = window;
        self.refresh_copies(key, to);
        let tears = self.tears;
        // A read that was under way during a crash does not show what the crash left.
        let telling = self.crashes.get(&key.0).is_none_or(|crash| *crash < from);
        let block = self.block(key);
        let legal = match (&found, content_of(&found)) {
            (BlockCheck::Torn(pieces), _) if tears && block.may_be_torn(pieces, window) => true,
            (_, Some(content)) => {
                let fits = |version: &&Version| version.content.admits(content);
                let fitting: Vec<u64> =
                    block.readable(window).filter(fits).take(2).map(|version| version.op).collect();
                // If two versions wrote the same content, the read does not show which of them it returned.
                if let [op] = fitting.as_slice()
                    && telling
                {
                    block.seen(*op, from, to);
                    if let Some(version) = block.find(*op) {
                        version.content = Known::Exactly(content);
                    }
                }
                !fitting.is_empty() || block.may_be_back(content)
            }
            // The initial content of an unknown medium need not be a signed block.
            _ => block.readable(window).any(|version| version.content == Known::Anything),
        };
        if legal {
            return None;
        }
        let violation = self.wrong(key, &found, window);
        let (device, lba) = key;
        Some(Finding { device, lba, violation, found, expected: self.expected(device, lba, window) })
    }

    fn wrong(&self, key: (DeviceId, Lba), reading: &BlockCheck, window: ReadWindow) -> Violation {
        let (device, lba) = key;
        let block = self.blocks.get(&key);
        // A version that is legal by the order of time, but still illegal, breaks an ordering rule.
        let lawless = block.zip(content_of(reading)).and_then(|(block, content)| {
            let mut timely = block.timely(window).filter(|version| version.content.admits(content));
            timely.find_map(|version| block.broken_rule(version, window))
        });
        if let Some(law) = lawless {
            return law.into();
        }
        let block_header = match reading {
            BlockCheck::Zero => return Violation::Lost,
            BlockCheck::Torn(_) => return Violation::Torn,
            BlockCheck::Garbled(_) => return Violation::Garbled,
            BlockCheck::Signed(block_header) => block_header,
        };
        let versions = block.map(|block| block.versions.as_slice()).unwrap_or_default();
        let content = Content::of(*block_header);
        let known = versions.iter().rev().find(|version| version.content == Known::Exactly(content));
        let generation = block.map_or(0, |block| block.generation);
        match known {
            _ if self.miscompared.contains(&(block_header.writer, block_header.sequence)) => {
                Violation::WrittenDespite
            }
            Some(version) if version.refused => Violation::Unsubmitted,
            Some(_) => Violation::Stale,
            None if block_header.device != device => Violation::Foreign,
            None if block_header.lba != lba => Violation::Misdirected,
            None if block_header.generation.0 < generation => Violation::Stale,
            None => Violation::Unsubmitted,
        }
    }

    fn prune_blocks(&mut self, keys: impl Iterator<Item = (DeviceId, Lba)>) {
        let oldest_read = self.reads.first_key_value().map_or(self.clock, |(read, _)| read.0);
        for key in keys {
            let Some(block) = self.blocks.get_mut(&key) else { continue };
            block.prune(oldest_read);
            if block.is_settled() {
                self.unsettled.remove(&key);
            }
        }
    }
}

fn keys(change: &Change) -> impl Iterator<Item = (DeviceId, Lba)> + use<> {
    keys_of(change.device, change.lba, change.blocks)
}

fn keys_of(device: DeviceId, first: Lba, blocks: u64) -> impl Iterator<Item = (DeviceId, Lba)> {
    (first.0..first.0.saturating_add(blocks)).map(move |lba| (device, Lba(lba)))
}

mod compare;
mod copies;
#[cfg(test)]
mod tests;
