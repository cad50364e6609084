//! Models one block as a register with concurrent writes and reads.
//!
//! Each write to the block is a [`Version`] with three moments: `begin`, when it was submitted; `settled_at`,
//! from when on it can no longer take effect (it ended, or a read returned it, or the task that executed it
//! no longer exists); and `superseded_at`, since when a read that begins must not return it, because a later
//! write has certainly taken effect. All moments are counts of the history's own clock, so no two are equal.
//!
//! Every deduction here follows from the order of those moments alone and holds for any medium that executes
//! each write at one moment between its submission and its end. A block that is legal by these rules may
//! still be wrong, since concurrent writes leave a choice. A block that is illegal is certainly wrong.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use base::units::Lba;

use crate::block_check::{BlockCheck, Piece};
use crate::block_header::DeviceId;
use crate::history::{Content, Known};
use crate::order::{OrderRule, TaskPosition, precedes};

/// A count of the history's clock.
pub(crate) type Tick = u64;

/// One write to one block.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// The operation, as the history numbers it; zero for the initial content.
    pub(crate) op: u64,
    pub(crate) content: Known,
    pub(crate) begin: Tick,
    pub(crate) settled_at: Option<Tick>,
    pub(crate) superseded_at: Option<Tick>,
    /// The write ended with GOOD, and so has certainly taken effect.
    pub(crate) done: bool,
    /// The write failed, or its result is unknown: it may have changed only a part of the block.
    pub(crate) broken: bool,
    /// The command was refused: the write has certainly not taken effect.
    pub(crate) refused: bool,
    /// The device may leave the old content (UNMAP is a hint).
    pub(crate) optional: bool,
    /// The write survives a loss of power as soon as it has ended.
    pub(crate) stable: bool,
    /// A write that is certainly later is on stable storage: not even a crash brings this version back.
    pub(crate) durably_superseded: bool,
    /// The write was over before the last crash.
    pub(crate) crashed: bool,
    /// The position of its command in a task set.
    pub(crate) place: Option<TaskPosition>,
    /// A read has returned the version, or the write ended with GOOD: it has certainly taken effect.
    pub(crate) took_effect: bool,
    /// Like `superseded_at`, but by an ordering rule and not by the order of time alone.
    pub(crate) excluded_by: Option<(Tick, OrderRule)>,
    /// COMPARE AND WRITE commands that took effect before this version, if this version takes effect.
    pub(crate) after_compare_writes: Vec<u64>,
    /// The COMPARE AND WRITE that replaced this version.
    pub(crate) replaced_by: Option<u64>,
}

/// The time span of a read, and the position of its command in a task set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadWindow {
    pub(crate) from: Tick,
    pub(crate) to: Tick,
    pub(crate) place: Option<TaskPosition>,
}

impl Version {
    /// Returns the version that a block holds before the first write.
    pub(crate) const fn first(content: Known) -> Self {
        Self {
            op: 0,
            content,
            begin: 0,
            settled_at: Some(0),
            superseded_at: None,
            done: true,
            broken: false,
            refused: false,
            optional: false,
            stable: true,
            durably_superseded: false,
            crashed: false,
            place: None,
            took_effect: true,
            excluded_by: None,
            after_compare_writes: Vec::new(),
            replaced_by: None,
        }
    }

    /// Records that by `law` no read that begins after `now` may return this version.
    fn pass(&mut self, now: Tick, law: OrderRule) {
        if self.excluded_by.is_none_or(|(passed, _)| now < passed) {
            self.excluded_by = Some((now, law));
        }
    }

    /// Returns whether a read may return this version by the order of time.
    fn is_timely(&self, look: ReadWindow) -> bool {
        !self.refused && self.begin < look.to && self.superseded_at.is_none_or(|dead| dead >= look.from)
    }

    /// Returns whether this version took effect before `other`, if both took effect.
    fn is_before(&self, other: &Self) -> bool {
        self.settled_at.is_some_and(|over| over <= other.begin)
            || precedes(self.place, other.place)
            || other.after_compare_writes.contains(&self.op)
    }
}

/// The model of one block.
#[derive(Clone, Debug)]
pub(crate) struct BlockModel {
    pub(crate) versions: Vec<Version>,
    pub(crate) generation: u64,
    pub(crate) forgotten: Forgotten,
}

/// The versions that a block has forgotten, although a loss of power could bring them back.
///
/// It keeps no sequence numbers, so its size is bounded by the places that the contents were signed for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forgotten {
    /// The places that the contents were signed for; [`None`] for zeros.
    places: BTreeSet<Option<(DeviceId, Lba)>>,
    /// The content of a forgotten version is not known.
    anything: bool,
    /// From this moment on none of the versions could take effect.
    settled_at: Tick,
}

impl Forgotten {
    fn add(&mut self, version: &Version) {
        self.settled_at = self.settled_at.max(version.settled_at.unwrap_or(Tick::MAX));
        match &version.content {
            Known::Exactly(content) => _ = self.places.insert(place_of(*content)),
            Known::OneOf(contents) => self.places.extend(contents.iter().map(|content| place_of(*content))),
            Known::Anything => self.anything = true,
        }
    }

    /// Forgets all of it if the versions were settled by `begin`, when a write began that is on stable
    /// storage.
    fn mark_durable(&mut self, begin: Tick) {
        if self.settled_at <= begin {
            *self = Self::default();
        }
    }

    fn admits(&self, content: Content) -> bool {
        self.anything || self.places.contains(&place_of(content))
    }
}

/// Returns the place that a content was signed for, or [`None`] for zeros.
const fn place_of(content: Content) -> Option<(DeviceId, Lba)> {
    match content {
        Content::Zero => None,
        Content::Signed(signature) => Some((signature.device, signature.lba)),
    }
}

/// The most versions that one block keeps; the oldest superseded ones are forgotten first. After a crash, a
/// block that was written more often than this without a flush is judged less strictly.
pub(crate) const MAX_VERSIONS: usize = 64;

impl BlockModel {
    pub(crate) fn new(content: Known) -> Self {
        Self {
            versions: alloc::vec![Version::first(content)],
            generation: 0,
            forgotten: Forgotten::default(),
        }
    }

    pub(crate) fn find(&mut self, op: u64) -> Option<&mut Version> {
        self.versions.iter_mut().rev().find(|version| version.op == op)
    }

    /// Records that a write ended with GOOD.
    pub(crate) fn done(&mut self, op: u64, now: Tick) {
        let Some(version) = self.find(op) else { return };
        (version.done, version.took_effect) = (true, true);
        // A read that returned the version, or a crash, may have settled it earlier.
        version.settled_at = Some(version.settled_at.map_or(now, |over| over.min(now)));
        let (begin, optional, stable, crashed) =
            (version.begin, version.optional, version.stable, version.crashed);
        if !optional && !crashed {
            self.supersede(op, begin, now);
            if stable {
                self.mark_durable(op, begin);
            }
        }
    }

    /// Records that `op` took effect: from `now` on no read may return a version that was over by `by`, or
    /// one that an ordering rule puts before `op`.
    fn supersede(&mut self, op: u64, by: Tick, now: Tick) {
        let Some(version) = self.find(op) else { return };
        let (place, behind) = (version.place, version.after_compare_writes.clone());
        for other in self.versions.iter_mut().filter(|other| other.op != op) {
            if other.settled_at.is_some_and(|over| over <= by) {
                other.superseded_at = Some(other.superseded_at.map_or(now, |dead| dead.min(now)));
            }
            if precedes(other.place, place) {
                other.pass(now, OrderRule::Order);
            }
            if behind.contains(&other.op) {
                other.pass(now, OrderRule::Atomic);
            }
        }
    }

    /// Records that the COMPARE AND WRITE `op` found the block as `found` left it, in a read during `look`,
    /// and replaced that content: no write may take effect between the two. Returns whether that is possible.
    pub(crate) fn compare_write_replaced(&mut self, op: u64, found: u64, look: ReadWindow) -> bool {
        self.seen(found, look.from, look.to);
        let Some(before) = self.find(found) else { return true };
        if before.replaced_by.is_some_and(|other| other != op) {
            return false;
        }
        before.replaced_by = Some(op);
        let before = before.clone();
        let mut passed = false;
        for other in self.versions.iter_mut().filter(|other| other.op != op && other.op != found) {
            if other.refused || !before.is_before(other) {
                continue;
            }
            // This version is later than `found`, and so later than `op`, which replaced `found`.
            other.after_compare_writes.push(op);
            passed |= other.took_effect && !other.optional && !other.crashed;
        }
        if passed && let Some(version) = self.find(op) {
            version.pass(look.to, OrderRule::Atomic);
        }
        true
    }

    /// Records that `op` is on stable storage: not even a crash brings back versions that ended before it
    /// began.
    fn mark_durable(&mut self, op: u64, begin: Tick) {
        self.forgotten.mark_durable(begin);
        for other in self.versions.iter_mut().filter(|other| other.op != op) {
            other.durably_superseded |= other.settled_at.is_some_and(|over| over <= begin);
        }
    }

    /// Records that every write that ended with GOOD before `since` is on stable storage.
    pub(crate) fn flushed(&mut self, since: Tick) {
        let stable: Vec<(u64, Tick)> = (self.versions.iter())
            .filter(|version| version.done && !version.optional && !version.crashed)
            .filter(|version| version.settled_at.is_some_and(|over| over < since))
            .map(|version| (version.op, version.begin))
            .collect();
        for (op, begin) in stable {
            self.mark_durable(op, begin);
        }
    }

    /// Records that the medium lost everything that was not on stable storage.
    pub(crate) fn crash(&mut self) {
        for version in self.versions.iter_mut().filter(|version| !version.durably_superseded) {
            version.crashed = version.settled_at.is_some();
            version.broken = true;
            // The response of a command under way may still arrive. It then does not show what the medium
            // kept.
            version.optional |= version.settled_at.is_none() && !version.stable;
            if !version.refused {
                version.superseded_at = None;
            }
            (version.excluded_by, version.replaced_by) = (None, None);
            version.after_compare_writes.clear();
        }
    }

    /// Returns the versions that a read may return.
    pub(crate) fn readable(&self, look: ReadWindow) -> impl Iterator<Item = &Version> {
        self.timely(look).filter(move |version| self.broken_rule(version, look).is_none())
    }

    /// Returns the versions that a read may return if only the order of time counts.
    pub(crate) fn timely(&self, look: ReadWindow) -> impl Iterator<Item = &Version> {
        self.versions.iter().filter(move |version| version.is_timely(look))
    }

    /// Returns the ordering rule that a read breaks if it returns a version.
    pub(crate) fn broken_rule(&self, version: &Version, look: ReadWindow) -> Option<OrderRule> {
        if let Some((_, law)) = version.excluded_by.filter(|(passed, _)| *passed < look.from) {
            return Some(law);
        }
        look.place?;
        if precedes(look.place, version.place) {
            return Some(OrderRule::Order);
        }
        // A write that took effect before the read could begin hides older versions. A loss of power may have
        // undone that write.
        let hides = |other: &Version| {
            let lasts = other.done && !other.optional && !other.crashed;
            lasts && precedes(other.place, look.place) && version.is_before(other)
        };
        self.versions.iter().any(|other| other.op != version.op && hides(other)).then_some(OrderRule::Order)
    }

    /// Records that a read from `from` to `to` returned content that only `op` wrote.
    pub(crate) fn seen(&mut self, op: u64, from: Tick, to: Tick) {
        let Some(version) = self.find(op) else { return };
        version.settled_at = Some(version.settled_at.map_or(to, |over| over.min(to)));
        version.took_effect = true;
        let (begin, crashed) = (version.begin, version.crashed);
        self.supersede(op, begin.max(from), to);
        if crashed {
            // The content that a read finds after a crash is on stable storage.
            for other in self.versions.iter_mut().filter(|other| other.op != op) {
                other.durably_superseded |= other.crashed;
            }
        }
    }

    /// Returns whether the intact pieces of a torn block may stand side by side.
    pub(crate) fn may_be_torn(&self, pieces: &[Piece], look: ReadWindow) -> bool {
        let mut broken = false;
        let all = pieces.iter().all(|piece| {
            let content = piece.header.map_or(Content::Zero, Content::of);
            let mut fitting = self.readable(look).filter(|version| version.content.admits(content));
            let version = fitting.next();
            let is_back = version.is_none() && self.may_be_back(content);
            broken |= is_back || version.is_some_and(|version| version.broken);
            piece.from == piece.sectors.start && (is_back || version.is_some())
        });
        all && broken
    }

    /// Returns whether a crash may have brought back a forgotten version with this content.
    pub(crate) fn may_be_back(&self, content: Content) -> bool {
        self.forgotten.admits(content) && self.versions.iter().any(|version| version.crashed)
    }

    /// Forgets versions that no read can return any more. All reads under way began at `oldest_read` or
    /// later.
    pub(crate) fn prune(&mut self, oldest_read: Tick) {
        if self.versions.len() < 2 {
            return;
        }
        let dead = |version: &Version| version.superseded_at.is_some_and(|dead| dead < oldest_read);
        self.versions.retain(|version| !((version.durably_superseded || version.refused) && dead(version)));
        while self.versions.len() > MAX_VERSIONS {
            let Some(at) = self.versions.iter().position(dead) else { break };
            self.forgotten.add(&self.versions.remove(at));
        }
    }

    /// Returns whether the block has only one version, which nothing can change any more.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.versions.as_slice(), [only] if only.settled_at.is_some())
    }
}

/// Returns the content that a block check found, if the block is whole.
pub(crate) fn content_of(reading: &BlockCheck) -> Option<Content> {
    match reading {
        BlockCheck::Zero => Some(Content::Zero),
        BlockCheck::Signed(block_header) => Some(Content::of(*block_header)),
        BlockCheck::Torn(_) | BlockCheck::Garbled(_) => None,
    }
}
