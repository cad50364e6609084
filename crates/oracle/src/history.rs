//! Who wrote what when, and so what a read may legally return.
//!
//! The caller tells of each operation when it is submitted and when it ends, in the order in which it sees that happen; the
//! history counts the calls and needs no clock. For each block it then knows which writes a read may show: the last one
//! that ended before the read began, any that was under way, any that failed or whose end nobody knows, and after a crash any
//! that was not yet on stable storage. Every block is judged by itself: an operation on several blocks may be seen half
//! done while it is under way, since no SCSI command that is not said to be atomic promises otherwise.
//!
//! | operation | as a change |
//! |---|---|
//! | WRITE, ORWRITE | [`Planned::Signed`], `stable` when FUA is set or the write cache is off |
//! | WRITE SAME | [`Planned::Same`] or [`Planned::Zero`] |
//! | UNMAP | [`Planned::Zero`], `optional`: a hint |
//! | COMPARE AND WRITE | [`Planned::Signed`], with [`History::judge_compare_and_write`] or [`History::miscompared`] for what was compared |
//! | EXTENDED COPY | [`Planned::CopyOf`] |
//! | FORMAT UNIT, SANITIZE | [`Planned::Zero`] or [`Planned::Anything`] |

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;

use base::units::Lba;

use crate::block_check::BlockCheck;
use crate::block_header::{BlockHeader, DeviceId, Generation, Sequence, WriterId};
use crate::block_model::{BlockModel, ReadWindow, Tick, Version, content_of};
use crate::order::{OrderRule, TaskPosition};

/// What makes one signed block differ from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockSignature {
    /// The device it says it is for.
    pub device: DeviceId,
    /// The address it says it is for.
    pub lba: Lba,
    /// Who wrote it.
    pub writer: WriterId,
    /// In which operation.
    pub sequence: Sequence,
}

/// What a whole block can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    /// Zeros.
    Zero,
    /// A signed block.
    Signed(BlockSignature),
}

impl Content {
    /// Returns the content that a stamp stands for.
    pub const fn of(stamp: BlockHeader) -> Self {
        let BlockHeader { device, lba, writer, sequence, .. } = stamp;
        Self::Signed(BlockSignature { device, lba, writer, sequence })
    }
}

/// What is known of the content of one version.
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

/// What an operation means to leave in the blocks it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    /// Each block signed for its own address, by this writer's operation.
    Signed(WriterId, Sequence),
    /// The same signed block in all of them.
    Same(BlockSignature),
    /// Zeros.
    Zero,
    /// What these blocks hold when they are copied, starting here.
    CopyOf(DeviceId, Lba),
    /// Nobody knows.
    Anything,
}

/// A change to a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The device.
    pub device: DeviceId,
    /// The first block.
    pub lba: Lba,
    /// How many.
    pub blocks: u64,
    /// What it writes.
    pub content: Planned,
    /// It survives a loss of power from its end on.
    pub stable: bool,
    /// The device may leave blocks as they were.
    pub optional: bool,
}

/// Names a change until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeResult {
    /// Well: it has taken effect.
    Done,
    /// With an error: it may have taken effect in any part, and will not any more.
    Failed,
    /// Nobody knows, and it may still take effect until [`History::conclude_unknown`] says otherwise.
    Unknown,
    /// It was refused before anything happened.
    Refused,
}

/// Names a read until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(u64);

/// Names a flush until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushId(DeviceId, Tick);

/// What is wrong with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Violation {
    /// It reads as if nothing was ever written.
    Lost,
    /// It is an older version of the block: a later write is lost, or an old one was executed again.
    Stale,
    /// It is put together from several writes.
    Torn,
    /// It belongs to another address.
    Misdirected,
    /// It belongs to another device, or to a writer that is not ours.
    Foreign,
    /// It is damaged.
    Garbled,
    /// It was never sent, or the command that sent it was refused.
    Unsubmitted,
    /// A comparison found, or failed to find, what the block cannot, or must, have held.
    Miscompared,
    /// A COMPARE AND WRITE wrote it although what it compared differed.
    WrittenDespite,
    /// A COMPARE AND WRITE was not one operation: another write came between its comparison and its write.
    NotAtomic,
    /// A command took effect before one that its task attribute, or that of the other, puts before it.
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
    /// What is wrong.
    pub violation: Violation,
    /// What was read.
    pub found: BlockCheck,
    /// What it could have been.
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

/// What the blocks hold before the first write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialContent {
    /// Zeros.
    Zero,
    /// Anything: the first read of a block tells.
    Anything,
}

/// What was written to any number of devices.
#[derive(Clone, Debug)]
pub struct History {
    initially: InitialContent,
    /// Whether a block may be found torn, sector by sector, after a crash or a failed write.
    tears: bool,
    clock: Tick,
    next_op: u64,
    blocks: BTreeMap<(DeviceId, Lba), BlockModel>,
    ops: BTreeMap<OpId, Change>,
    /// The reading half of each open copy.
    copies: BTreeMap<OpId, ReadId>,
    reads: BTreeMap<ReadId, OpenRead>,
    /// The last crash of each device.
    crashes: BTreeMap<DeviceId, Tick>,
    /// What COMPARE AND WRITE commands sent that found something else than they compared.
    miscompared: BTreeSet<(WriterId, Sequence)>,
    /// Blocks with versions that a flush or a crash decides about.
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
    /// Starts with devices that hold `initially`. With `tears`, a block longer than a sector may be found torn after a crash
    /// or a failed write.
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

    /// Returns the generation that the next write to a block has.
    pub fn next_generation(&self, device: DeviceId, lba: Lba) -> Generation {
        Generation(self.blocks.get(&(device, lba)).map_or(0, |block| block.generation).saturating_add(1))
    }

    /// Takes note that a change is submitted. From now on a read may show it.
    pub fn submit(&mut self, change: Change) -> OpId {
        self.submit_ordered(change, None)
    }

    /// The same, of a command whose place in its task set is known.
    pub fn submit_ordered(&mut self, change: Change, place: Option<TaskPosition>) -> OpId {
        self.next_op += 1;
        let op = OpId(self.next_op);
        let begin = self.tick();
        if let Planned::CopyOf(source, from) = change.content {
            // A copy reads: what it may find must not be forgotten before it ends.
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

    /// Takes note of how a change ended. A change whose end is unknown may end once more.
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

    /// Takes note that a change whose end is unknown can take effect no more: whoever might have executed it is gone.
    pub fn conclude_unknown(&mut self, op: OpId) {
        self.end_change(op, ChangeResult::Failed);
    }

    /// Takes note that the medium of a device lost what was not on stable storage. What is under way may have been begun, and
    /// may be carried out afterwards, unless its end is told.
    pub fn crash(&mut self, device: DeviceId) {
        let now = self.tick();
        self.crashes.insert(device, now);
        for (_, block) in self.blocks.range_mut((device, Lba(0))..=(device, Lba(u64::MAX))) {
            block.crash();
        }
    }

    /// Takes note that a flush is submitted.
    pub fn flush_begin(&mut self, device: DeviceId) -> FlushId {
        FlushId(device, self.tick())
    }

    /// Takes note that a flush ended well: what ended before it began is on stable storage. One that failed need not be told.
    pub fn flush_end(&mut self, flush: FlushId) {
        let FlushId(device, begin) = flush;
        self.tick();
        // One that a crash came into may have been carried out before or after it.
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

    /// Takes note that a read is submitted.
    pub fn read_begin(&mut self, device: DeviceId, lba: Lba, blocks: u64) -> ReadId {
        self.read_begin_ordered(device, lba, blocks, None)
    }

    /// The same, of a command whose place in its task set is known.
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

    /// Judges what a read returned: a whole number of blocks of `block_len` bytes, from its first on. What is missing at the
    /// end is not judged.
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

    /// Takes note that a read gave nothing.
    pub fn read_failed(&mut self, read: ReadId) {
        self.reads.remove(&read);
    }

    /// Returns what a read of a block that begins now and ends before anything else happens may return.
    pub fn expected_content(&self, device: DeviceId, lba: Lba) -> Vec<Content> {
        let (from, to) = (self.clock.saturating_add(1), self.clock.saturating_add(2));
        self.expected(device, lba, ReadWindow { from, to, place: None })
    }

    /// Returns the blocks of a device that were ever written to, in order.
    pub fn touched(&self, device: DeviceId) -> impl Iterator<Item = Lba> {
        self.blocks.range((device, Lba(0))..=(device, Lba(u64::MAX))).map(|((_, lba), _)| *lba)
    }

    /// Returns the changes that have not ended, or whose end is unknown.
    pub fn open(&self) -> impl Iterator<Item = (OpId, &Change)> {
        self.ops.iter().map(|(op, change)| (*op, change))
    }

    /// Returns how many versions are kept in all: what the memory goes to.
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
        // What was read before or after a crash says nothing of what the crash left.
        let telling = self.crashes.get(&key.0).is_none_or(|crash| *crash < from);
        let block = self.block(key);
        let legal = match (&found, content_of(&found)) {
            (BlockCheck::Torn(pieces), _) if tears && block.may_be_torn(pieces, window) => true,
            (_, Some(content)) => {
                let fits = |version: &&Version| version.content.admits(content);
                let fitting: Vec<u64> =
                    block.readable(window).filter(fits).take(2).map(|version| version.op).collect();
                // Two that wrote the same leave open which one it was.
                if let [op] = fitting.as_slice()
                    && telling
                {
                    block.seen(*op, from, to);
                    if let Some(version) = block.find(*op) {
                        version.content = Known::Exactly(content);
                    }
                }
                !fitting.is_empty() || (block.forgetful && is_plausible(block, key, &found))
            }
            // What was there before need not be ours.
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
        // What the order of time allows and is wrong all the same breaks a law.
        let lawless = block.zip(content_of(reading)).and_then(|(block, content)| {
            let mut timely = block.timely(window).filter(|version| version.content.admits(content));
            timely.find_map(|version| block.broken_rule(version, window))
        });
        if let Some(law) = lawless {
            return law.into();
        }
        let stamp = match reading {
            BlockCheck::Zero => return Violation::Lost,
            BlockCheck::Torn(_) => return Violation::Torn,
            BlockCheck::Garbled(_) => return Violation::Garbled,
            BlockCheck::Signed(stamp) => stamp,
        };
        let versions = block.map(|block| block.versions.as_slice()).unwrap_or_default();
        let content = Content::of(*stamp);
        let known = versions.iter().rev().find(|version| version.content == Known::Exactly(content));
        let generation = block.map_or(0, |block| block.generation);
        match known {
            _ if self.miscompared.contains(&(stamp.writer, stamp.sequence)) => Violation::WrittenDespite,
            Some(version) if version.refused => Violation::Unsubmitted,
            Some(_) => Violation::Stale,
            None if stamp.device != device => Violation::Foreign,
            None if stamp.lba != lba => Violation::Misdirected,
            None if stamp.generation.0 < generation => Violation::Stale,
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

/// Returns whether a block can be a version that was forgotten, brought back by a crash.
fn is_plausible(block: &BlockModel, (device, lba): (DeviceId, Lba), reading: &BlockCheck) -> bool {
    let crashed = block.versions.iter().any(|version| version.crashed);
    crashed && matches!(reading, BlockCheck::Signed(stamp) if stamp.device == device && stamp.lba == lba)
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
