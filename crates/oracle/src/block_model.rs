//! One block as a register that many write and read at the same time.
//!
//! Each write to it is a [`Version`] with three moments: `begin`, when it was submitted; `settled_at`, from when on it can take
//! effect no more (it ended, or a read saw it, or whoever executed it is gone); and `superseded_at`, since when a read that begins
//! must not return it, because something that certainly came after it has taken effect. All moments are counts of the
//! history's own clock, so no two are equal.
//!
//! Everything deduced here follows from the order of those moments alone and holds for any medium that executes each
//! write at one moment between its submission and its end. A block that is legal by these rules may still be
//! wrong (concurrent writes leave a choice); one that is illegal is certainly wrong.

use alloc::vec::Vec;

use crate::block_check::{BlockCheck, Piece};
use crate::history::{Content, Known};
use crate::order::{OrderRule, TaskPosition, precedes};

/// A count of the history's clock.
pub(crate) type Tick = u64;

/// One write to one block.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// The operation, as the history numbers it; zero for what was there before.
    pub(crate) op: u64,
    pub(crate) content: Known,
    pub(crate) begin: Tick,
    pub(crate) settled_at: Option<Tick>,
    pub(crate) superseded_at: Option<Tick>,
    /// It ended well, and so has certainly taken effect.
    pub(crate) done: bool,
    /// It failed, or nobody knows: it may have changed a part of the block only.
    pub(crate) broken: bool,
    /// It was refused: it has certainly not taken effect.
    pub(crate) refused: bool,
    /// It may leave what was there (UNMAP is a hint).
    pub(crate) optional: bool,
    /// It survives a loss of power from its end on.
    pub(crate) stable: bool,
    /// Something that certainly came after it is on stable storage: not even a crash brings it back.
    pub(crate) durably_superseded: bool,
    /// It was over before the last crash.
    pub(crate) crashed: bool,
    /// Where its command stands in a task set.
    pub(crate) place: Option<TaskPosition>,
    /// A read has returned it, or it ended well: it has certainly taken effect.
    pub(crate) took_effect: bool,
    /// Like `superseded_at`, by a law and not by the order of time alone.
    pub(crate) excluded_by: Option<(Tick, OrderRule)>,
    /// COMPARE AND WRITE commands that took effect before this, if this takes effect.
    pub(crate) after_compare_writes: Vec<u64>,
    /// The COMPARE AND WRITE that replaced this one.
    pub(crate) replaced_by: Option<u64>,
}

/// When a read happened, and where its command stands in a task set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadWindow {
    pub(crate) from: Tick,
    pub(crate) to: Tick,
    pub(crate) place: Option<TaskPosition>,
}

impl Version {
    /// What a block held before anybody wrote to it.
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

    /// From `now` on no read that begins may return it, by `law`.
    fn pass(&mut self, now: Tick, law: OrderRule) {
        if self.excluded_by.is_none_or(|(passed, _)| now < passed) {
            self.excluded_by = Some((now, law));
        }
    }

    /// Judges by the order of time.
    fn is_timely(&self, look: ReadWindow) -> bool {
        !self.refused && self.begin < look.to && self.superseded_at.is_none_or(|dead| dead >= look.from)
    }

    /// Returns whether this took effect before `other`, if both took effect.
    fn is_before(&self, other: &Self) -> bool {
        self.settled_at.is_some_and(|over| over <= other.begin)
            || precedes(self.place, other.place)
            || other.after_compare_writes.contains(&self.op)
    }
}

/// Everything that is known of one block.
#[derive(Clone, Debug)]
pub(crate) struct BlockModel {
    pub(crate) versions: Vec<Version>,
    pub(crate) generation: u64,
    /// Versions were forgotten that a crash could have brought back.
    pub(crate) forgetful: bool,
}

/// The most versions that one block keeps; the oldest dead ones go first. Who writes a block this often without a flush
/// in between gives up that a crash is judged strictly for it.
const MAX_VERSIONS: usize = 64;

impl BlockModel {
    pub(crate) fn new(content: Known) -> Self {
        Self { versions: alloc::vec![Version::first(content)], generation: 0, forgetful: false }
    }

    pub(crate) fn find(&mut self, op: u64) -> Option<&mut Version> {
        self.versions.iter_mut().rev().find(|version| version.op == op)
    }

    /// Takes note that a write ended well.
    pub(crate) fn done(&mut self, op: u64, now: Tick) {
        let Some(version) = self.find(op) else { return };
        (version.done, version.took_effect) = (true, true);
        // A read that saw it, or a crash, came first.
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

    /// Everything that was over by `by` came before `op`: it is dead from `now` on. So is what laws put before it.
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

    /// A COMPARE AND WRITE, `op`, found the block as `found` left it, in a read at `look`, and replaced that: nothing comes
    /// between the two. Returns whether that can be.
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
            // It came after what was found, and so after what replaced that.
            other.after_compare_writes.push(op);
            passed |= other.took_effect && !other.optional && !other.crashed;
        }
        if passed && let Some(version) = self.find(op) {
            version.pass(look.to, OrderRule::Atomic);
        }
        true
    }

    /// `op` is on stable storage: what came before it never comes back.
    fn mark_durable(&mut self, op: u64, begin: Tick) {
        for other in self.versions.iter_mut().filter(|other| other.op != op) {
            other.durably_superseded |= other.settled_at.is_some_and(|over| over <= begin);
        }
    }

    /// Everything that ended well before `since` is on stable storage.
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

    /// The medium lost what was not on stable storage.
    pub(crate) fn crash(&mut self) {
        for version in self.versions.iter_mut().filter(|version| !version.durably_superseded) {
            version.crashed = version.settled_at.is_some();
            version.broken = true;
            // The answer to what was under way may still arrive, and then says nothing of what the medium kept.
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

    /// Returns the versions that a read may return as far as only the order of time counts.
    pub(crate) fn timely(&self, look: ReadWindow) -> impl Iterator<Item = &Version> {
        self.versions.iter().filter(move |version| version.is_timely(look))
    }

    /// Returns the law that is broken if a read returns a version.
    pub(crate) fn broken_rule(&self, version: &Version, look: ReadWindow) -> Option<OrderRule> {
        if let Some((_, law)) = version.excluded_by.filter(|(passed, _)| *passed < look.from) {
            return Some(law);
        }
        look.place?;
        if precedes(look.place, version.place) {
            return Some(OrderRule::Order);
        }
        // What took effect before the read could begin hides what was before that. The loss of power may have undone it.
        let hides = |other: &Version| {
            let lasts = other.done && !other.optional && !other.crashed;
            lasts && precedes(other.place, look.place) && version.is_before(other)
        };
        self.versions.iter().any(|other| other.op != version.op && hides(other)).then_some(OrderRule::Order)
    }

    /// A read from `from` to `to` returned `content`, which is `op`'s and no other's.
    pub(crate) fn seen(&mut self, op: u64, from: Tick, to: Tick) {
        let Some(version) = self.find(op) else { return };
        version.settled_at = Some(version.settled_at.map_or(to, |over| over.min(to)));
        version.took_effect = true;
        let (begin, crashed) = (version.begin, version.crashed);
        self.supersede(op, begin.max(from), to);
        if crashed {
            // What is found after a crash is what is on stable storage.
            for other in self.versions.iter_mut().filter(|other| other.op != op) {
                other.durably_superseded |= other.crashed;
            }
        }
    }

    /// Returns whether sound pieces of a torn block may lie side by side.
    pub(crate) fn may_be_torn(&self, pieces: &[Piece], look: ReadWindow) -> bool {
        let mut broken = false;
        let all = pieces.iter().all(|piece| {
            let content = piece.header.map_or(Content::Zero, Content::of);
            let mut fitting = self.readable(look).filter(|version| version.content.admits(content));
            let version = fitting.next();
            broken |= version.is_some_and(|version| version.broken);
            piece.from == piece.sectors.start && version.is_some()
        });
        all && broken
    }

    /// Forgets what no read can return any more: those that are open began at `oldest_read` or later.
    pub(crate) fn prune(&mut self, oldest_read: Tick) {
        if self.versions.len() < 2 {
            return;
        }
        let dead = |version: &Version| version.superseded_at.is_some_and(|dead| dead < oldest_read);
        self.versions.retain(|version| !((version.durably_superseded || version.refused) && dead(version)));
        while self.versions.len() > MAX_VERSIONS {
            let Some(at) = self.versions.iter().position(dead) else { break };
            self.versions.remove(at);
            self.forgetful = true;
        }
    }

    /// Returns whether the block is as before anybody wrote to it, or holds one version that nothing can change.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.versions.as_slice(), [only] if only.settled_at.is_some())
    }
}

/// Returns the content that a reading shows, if it shows a whole one.
pub(crate) fn content_of(reading: &BlockCheck) -> Option<Content> {
    match reading {
        BlockCheck::Zero => Some(Content::Zero),
        BlockCheck::Signed(stamp) => Some(Content::of(*stamp)),
        BlockCheck::Torn(_) | BlockCheck::Garbled(_) => None,
    }
}
