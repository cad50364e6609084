//! A filter that makes operations fail: by rules, and by dice with a seed.

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use base::rng::Rng;

use crate::api::{Capabilities, Completion, Failure, Fault, Op, OpAction, Space, Store};

/// Which operations a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Deallocations.
    Deallocate,
    /// Zeroing.
    WriteZeroes,
    /// Questions for extents.
    MapStatus,
}

impl OpKind {
    const fn of(action: &OpAction) -> Self {
        match action {
            OpAction::Read { .. } => Self::Read,
            OpAction::Write { .. } => Self::Write,
            // No medium with a key of its own is tortured by rules.
            OpAction::Flush | OpAction::CryptoErase => Self::Flush,
            OpAction::Deallocate { .. } => Self::Deallocate,
            OpAction::WriteZeroes { .. } => Self::WriteZeroes,
            OpAction::MapStatus { .. } => Self::MapStatus,
        }
    }
}

/// What fails, how, and how often.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The kind of operation.
    pub kind: OpKind,
    /// The first byte of the bad range. A flush meets every rule of its kind.
    pub at: u64,
    /// The length of the bad range.
    pub len: u64,
    /// How it fails.
    pub fault: Fault,
    /// Whether the failure names the first bad byte.
    pub names_place: bool,
    /// It fails this many times out of the second number.
    pub chance: (u64, u64),
    /// How often more it fails; `None` for ever.
    pub times: Option<u32>,
}

impl Rule {
    /// A rule that always fails, and says where.
    pub const fn always(kind: OpKind, at: u64, len: u64, fault: Fault) -> Self {
        Self { kind, at, len, fault, names_place: true, chance: (1, 1), times: None }
    }

    fn first_bad(&self, kind: OpKind, at: u64, len: u64) -> Option<u64> {
        let overlaps = at < self.at.saturating_add(self.len) && self.at < at.saturating_add(len);
        (kind == self.kind && (overlaps || kind == OpKind::Flush)).then(|| at.max(self.at))
    }
}

/// The rules of a [`FaultInjector`] medium, to be changed while it serves. Clones share them.
#[derive(Clone, Debug)]
pub struct FaultRules {
    rules: Rc<RefCell<Rules>>,
}

#[derive(Debug)]
struct Rules {
    rules: Vec<Rule>,
    rng: Rng,
}

impl FaultRules {
    /// Adds a rule.
    pub fn add(&self, rule: Rule) {
        self.rules.borrow_mut().rules.push(rule);
    }

    /// Heals the medium.
    pub fn clear(&self) {
        self.rules.borrow_mut().rules.clear();
    }

    fn judge(&self, action: &OpAction) -> Option<Failure> {
        let Rules { rules, rng } = &mut *self.rules.borrow_mut();
        let kind = OpKind::of(action);
        let (at, len) = action.range();
        for rule in rules {
            let Some(bad) = rule.first_bad(kind, at, len) else { continue };
            if rule.times == Some(0) || !rng.chance(rule.chance.0, rule.chance.1) {
                continue;
            }
            rule.times = rule.times.map(|times| times - 1);
            let place = rule.names_place && kind != OpKind::Flush;
            return Some(Failure { fault: rule.fault, at: place.then_some(bad) });
        }
        None
    }
}

/// A medium that fails where its rules say. An operation that fails has not happened.
#[derive(Debug)]
pub struct FaultInjector<S> {
    inner: S,
    faults: FaultRules,
    failed: VecDeque<Completion>,
}

impl<S: Store> FaultInjector<S> {
    /// Wraps `inner`, without rules yet; the dice start from `seed`.
    pub fn new(inner: S, seed: u64) -> (Self, FaultRules) {
        let rules = Rules { rules: Vec::new(), rng: Rng::from_seed(seed) };
        let faults = FaultRules { rules: Rc::new(RefCell::new(rules)) };
        (Self { inner, faults: faults.clone(), failed: VecDeque::new() }, faults)
    }
}

impl<S: Store> Store for FaultInjector<S> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn space(&self) -> Option<Space> {
        self.inner.space()
    }

    fn submit(&mut self, op: Op) {
        match self.faults.judge(&op.action) {
            Some(failure) => self.failed.push_back(Completion { id: op.id, result: Err(failure) }),
            None => self.inner.submit(op),
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        self.failed.pop_front().or_else(|| self.inner.poll())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::OpId;
    use crate::ram::Ram;

    fn read(store: &mut FaultInjector<Ram>, at: u64, len: usize) -> Option<Failure> {
        store.submit(Op { id: OpId(1), action: OpAction::Read { at, len } });
        store.poll().unwrap().result.err()
    }

    #[test]
    fn fails_where_the_rule_says_and_nowhere_else() {
        let (mut store, faults) = FaultInjector::new(Ram::new(1 << 20), 0);
        faults.add(Rule::always(OpKind::Read, 1000, 10, Fault::Medium));
        for (at, len, bad) in [
            (0, 1000, None),
            (0, 1001, Some(1000)),
            (1005, 1, Some(1005)),
            (1010, 5, None),
            (0, 4096, Some(1000)),
        ] {
            assert_eq!(
                read(&mut store, at, len),
                bad.map(|at| Failure { fault: Fault::Medium, at: Some(at) })
            );
        }
        store.submit(Op { id: OpId(1), action: OpAction::Flush });
        assert!(store.poll().unwrap().result.is_ok());
        faults.clear();
        assert_eq!(read(&mut store, 1000, 1), None);
    }

    #[test]
    fn a_rule_wears_off_and_dice_repeat_with_their_seed() {
        let (mut store, faults) = FaultInjector::new(Ram::new(1 << 20), 0);
        faults.add(Rule { times: Some(2), ..Rule::always(OpKind::Read, 0, 1, Fault::NoSpace) });
        let failed: Vec<bool> = (0..4).map(|_| read(&mut store, 0, 1).is_some()).collect();
        assert_eq!(failed, [true, true, false, false]);
        let throws = |seed| -> Vec<bool> {
            let (mut store, faults) = FaultInjector::new(Ram::new(1 << 20), seed);
            faults.add(Rule { chance: (1, 2), ..Rule::always(OpKind::Read, 0, 1, Fault::Medium) });
            (0..64).map(|_| read(&mut store, 0, 1).is_some()).collect()
        };
        assert_eq!(throws(3), throws(3));
        assert!(throws(3).contains(&true) && throws(3).contains(&false));
    }
}
