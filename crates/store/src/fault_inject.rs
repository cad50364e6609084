//! A filter for fault injection: it fails operations by rules and by random choices from a seed.

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use base::rng::Rng;

use crate::api::{Capabilities, Completion, Failure, Fault, Op, OpAction, Space, Store};

/// The kind of operation that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// `Read`.
    Read,
    /// `Write`.
    Write,
    /// `Flush`.
    Flush,
    /// `Deallocate`.
    Deallocate,
    /// `WriteZeroes`.
    WriteZeroes,
    /// `MapStatus`.
    MapStatus,
}

impl OpKind {
    const fn of(action: &OpAction) -> Self {
        match action {
            OpAction::Read { .. } => Self::Read,
            OpAction::Write { .. } => Self::Write,
            // The others count as a flush: rules are not used on media with their own key, nor on devices.
            OpAction::Flush | OpAction::CryptoErase | OpAction::Command(_) | OpAction::Reset => Self::Flush,
            OpAction::Deallocate { .. } => Self::Deallocate,
            OpAction::WriteZeroes { .. } => Self::WriteZeroes,
            OpAction::MapStatus { .. } => Self::MapStatus,
        }
    }
}

/// Which operations fail, how, and how often.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The kind of operation.
    pub kind: OpKind,
    /// The first byte of the bad range. A flush matches every rule of its kind.
    pub at: u64,
    /// The length of the bad range in bytes.
    pub len: u64,
    /// The fault of the failure.
    pub fault: Fault,
    /// Whether the failure reports the first bad byte.
    pub names_place: bool,
    /// The probability of failure: the first number out of the second.
    pub chance: (u64, u64),
    /// How many more times it fails; `None` without limit.
    pub times: Option<u32>,
}

impl Rule {
    /// Makes a rule that always fails and reports the first bad byte.
    pub const fn always(kind: OpKind, at: u64, len: u64, fault: Fault) -> Self {
        Self { kind, at, len, fault, names_place: true, chance: (1, 1), times: None }
    }

    fn first_bad(&self, kind: OpKind, at: u64, len: u64) -> Option<u64> {
        let overlaps = at < self.at.saturating_add(self.len) && self.at < at.saturating_add(len);
        (kind == self.kind && (overlaps || kind == OpKind::Flush)).then(|| at.max(self.at))
    }
}

/// The rules of a [`FaultInjector`] medium. They can be changed while it is in use. Clones share them.
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

    /// Removes all rules.
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

/// A medium that fails operations by its rules. A failed operation is not passed on to the inner medium.
#[derive(Debug)]
pub struct FaultInjector<S> {
    inner: S,
    faults: FaultRules,
    failed: VecDeque<Completion>,
}

impl<S: Store> FaultInjector<S> {
    /// Wraps `inner`, without rules at first; `seed` seeds the random choices.
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

    fn is_away(&self) -> bool {
        self.inner.is_away()
    }

    fn keeps_changes(&self) -> bool {
        self.inner.keeps_changes()
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
