//! A medium that corrupts data silently: misdirected writes, lost writes, bit rot, stale reads.
//!
//! A second medium without corruption receives the same writes. Where the contents of the two differ, the
//! corrupting medium is the cause, and no other part.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use base::buffer::{Bytes, DataList};
use base::rng::Rng;
use oracle::block_check::BlockCheck;
use oracle::block_header::{Sequence, WriterId};
use store::Store;
use store::api::{Capabilities, Completion, Op, OpAction, OpId, OpOutput};
use store::ram::Ram;

use crate::scenario::CorruptionPlan;

/// The kinds of corruption, by the names of their counters.
pub const KINDS: [&str; 5] = [
    "writes that media misdirected",
    "writes that media dropped",
    "blocks that rotted",
    "reads that returned stale blocks",
    "reads that returned flipped bits",
];
const MISDIRECTED: usize = 0;
const DROPPED: usize = 1;
const ROTTED: usize = 2;
const STALE: usize = 3;
const FLIPPED: usize = 4;

/// The record of the corruption in a medium. Clones share it.
#[derive(Clone)]
pub struct Corruptions(Rc<RefCell<State>>);

struct State {
    plan: CorruptionPlan,
    rng: Rng,
    block_len: usize,
    len: u64,
    left: u32,
    /// The contents that the medium would hold without corruption.
    truth: Ram,
    /// The contents that each block would have had, without corruption, before its last change.
    before: BTreeMap<u64, Vec<u8>>,
    /// Every block whose contents were wrong at some time.
    harmed: BTreeSet<u64>,
    /// Operations of writers that had at least one block not written as, and where, it should have been.
    victims: BTreeSet<(WriterId, Sequence)>,
    counts: [u64; KINDS.len()],
}

/// The corrupting medium.
pub struct CorruptingStore {
    inner: Box<dyn Store>,
    corruptions: Corruptions,
    done: VecDeque<Completion>,
}

impl CorruptingStore {
    /// Wraps a medium that holds zeros.
    pub fn new(
        inner: Box<dyn Store>,
        plan: CorruptionPlan,
        len: u64,
        block_len: usize,
        seed: u64,
    ) -> (Self, Corruptions) {
        let corruptions = Corruptions(Rc::new(RefCell::new(State {
            plan,
            rng: Rng::from_seed(seed),
            block_len,
            len,
            left: plan.harms_max,
            truth: Ram::new(len),
            before: BTreeMap::new(),
            harmed: BTreeSet::new(),
            victims: BTreeSet::new(),
            counts: [0; KINDS.len()],
        })));
        (Self { inner, corruptions: corruptions.clone(), done: VecDeque::new() }, corruptions)
    }

    fn pass_on(&mut self, op: Op) {
        self.inner.submit(op);
        while let Some(completion) = self.inner.poll() {
            self.done.push_back(completion);
        }
    }

    /// Executes a write, correctly or with corruption.
    fn write(&mut self, op: Op, at: u64, data: &DataList) {
        let corruptions = self.corruptions.clone();
        let mut state = corruptions.0.borrow_mut();
        let (plan, len) = (state.plan, data.len() as u64);
        state.change(at, len, |truth, id| {
            truth.submit(Op { id, action: rewritten(&op.action, at) });
        });
        if let Some(elsewhere) = state.misdirects(at, len) {
            state.strike(MISDIRECTED, &[(at, len), (elsewhere, len)]);
            state.suffer(at, data);
            return self.pass_on(Op { id: op.id, action: rewritten(&op.action, elsewhere) });
        }
        if state.happens(plan.loses_one_in) {
            state.strike(DROPPED, &[(at, len)]);
            state.suffer(at, data);
            return self.done.push_back(Completion { id: op.id, result: Ok(OpOutput::Done(data.clone())) });
        }
        self.pass_on(op);
        if state.happens(plan.rots_one_in) {
            let block = state.some_block(at, len);
            let mut bytes = contents(&mut *self.inner, block, state.block_len);
            state.flip(&mut bytes);
            let mut rotten = DataList::new();
            rotten.push(Bytes::copied_from(&bytes));
            let action =
                OpAction::Write { at: block, data: rotten, durability: store::api::Durability::Stable };
            self.inner.submit(Op { id: OWN, action });
            assert!(self.inner.poll().is_some_and(|rot| rot.result.is_ok()), "a medium refuses to rot");
            let len = state.block_len as u64;
            state.strike(ROTTED, &[(block, len)]);
            state.suffer(at, data);
        }
    }

    /// Executes a read and may corrupt the data that it returns.
    fn read(&mut self, op: Op, at: u64, len: usize) {
        let id = op.id;
        self.pass_on(op);
        let corruptions = self.corruptions.clone();
        let mut state = corruptions.0.borrow_mut();
        let plan = state.plan;
        let block = state.some_block(at, len as u64);
        // The medium may never have held the contents that a corrupted block should have had.
        let may = plan.reads_stale_one_in > 0 && !state.harmed.contains(&block);
        let stale = state.before.get(&block).cloned().filter(|_| may);
        let kind = match stale {
            Some(_) if state.happens(plan.reads_stale_one_in) => STALE,
            _ if state.happens(plan.flips_one_in) => FLIPPED,
            _ => return,
        };
        let Some(Completion { result: Ok(OpOutput::Data(data)), .. }) =
            self.done.back_mut().filter(|completion| completion.id == id)
        else {
            return;
        };
        let mut bytes = bytes_of(data);
        let from = usize::try_from(block - at).unwrap();
        let part = &mut bytes[from..from + state.block_len];
        match stale {
            Some(old) if kind == STALE => {
                if *part == *old {
                    return;
                }
                part.copy_from_slice(&old);
            }
            _ => state.flip(part),
        }
        *data = DataList::new();
        data.push(Bytes::copied_from(&bytes));
        let len = state.block_len as u64;
        state.strike(kind, &[(block, len)]);
    }
}

impl Store for CorruptingStore {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn submit(&mut self, op: Op) {
        match &op.action {
            OpAction::Write { at, data, .. } => {
                let (at, data) = (*at, data.clone());
                self.write(op, at, &data);
            }
            OpAction::Read { at, len } if op.id != OpId(u64::MAX) && *len > 0 => {
                let (at, len) = (*at, *len);
                self.read(op, at, len);
            }
            OpAction::Deallocate { at, len } | OpAction::WriteZeroes { at, len, .. } => {
                let (at, len) = (*at, *len);
                let action = match &op.action {
                    OpAction::Deallocate { .. } => OpAction::Deallocate { at, len },
                    _ => OpAction::WriteZeroes {
                        at,
                        len,
                        may_deallocate: true,
                        durability: store::api::Durability::Cached,
                    },
                };
                self.corruptions.0.borrow_mut().change(at, len, |truth, id| truth.submit(Op { id, action }));
                self.pass_on(op);
            }
            _ => self.pass_on(op),
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
}

impl Corruptions {
    /// Stops corrupting data.
    pub fn end(&self) {
        self.0.borrow_mut().left = 0;
    }

    /// Returns whether a block was ever corrupted.
    pub fn has_corrupted(&self, lba: u64) -> bool {
        let state = self.0.borrow();
        state.harmed.contains(&(lba * state.block_len as u64))
    }

    /// Returns whether at least one block of an operation was not written where, and as, it should have been.
    pub fn has_corrupted_write(&self, writer: WriterId, sequence: Sequence) -> bool {
        self.0.borrow().victims.contains(&(writer, sequence))
    }

    /// Returns the contents that the medium would hold without corruption.
    pub fn truth(&self) -> Vec<u8> {
        let mut state = self.0.borrow_mut();
        let len = usize::try_from(state.len).unwrap();
        contents(&mut state.truth, 0, len)
    }

    /// Returns how often each kind of corruption happened.
    pub fn counts(&self) -> [u64; KINDS.len()] {
        self.0.borrow().counts
    }
}

impl State {
    fn happens(&mut self, one_in: u64) -> bool {
        self.left > 0 && one_in > 0 && self.rng.chance(1, one_in)
    }

    /// Returns the address to which a write is misdirected, if it is.
    fn misdirects(&mut self, at: u64, len: u64) -> Option<u64> {
        if !self.happens(self.plan.misdirects_one_in) {
            return None;
        }
        let by = (1 + self.rng.below(self.plan.shift_max)) * self.block_len as u64;
        let elsewhere = if self.rng.chance(1, 2) { at.checked_sub(by)? } else { at + by };
        (elsewhere + len <= self.len).then_some(elsewhere)
    }

    fn some_block(&mut self, at: u64, len: u64) -> u64 {
        let block_len = self.block_len as u64;
        at + self.rng.below((len / block_len).max(1)) * block_len
    }

    fn flip(&mut self, bytes: &mut [u8]) {
        for _ in 0..=self.rng.below(3) {
            let bit = usize::try_from(self.rng.below(bytes.len() as u64 * 8)).unwrap();
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Changes the medium without corruption, and keeps the former contents of the blocks.
    fn change(&mut self, at: u64, len: u64, how: impl FnOnce(&mut Ram, OpId)) {
        let block_len = self.block_len;
        let old = contents(&mut self.truth, at, usize::try_from(len).unwrap());
        for (number, block) in (0..).zip(old.chunks(block_len)) {
            self.before.insert(at + number * block_len as u64, block.to_vec());
        }
        how(&mut self.truth, OWN);
        assert!(self.truth.poll().is_some_and(|done| done.result.is_ok()), "memory failed");
    }

    fn strike(&mut self, kind: usize, places: &[(u64, u64)]) {
        self.left -= 1;
        self.counts[kind] += 1;
        for (at, len) in places {
            let blocks = (*at..at + len).step_by(self.block_len);
            self.harmed.extend(blocks);
        }
    }

    /// Records the writers of the blocks of a corrupted write. A copied block at another address does not
    /// count as a write of its writer.
    fn suffer(&mut self, at: u64, data: &DataList) {
        let first = at / self.block_len as u64;
        for (lba, block) in (first..).zip(bytes_of(data).chunks(self.block_len)) {
            if let BlockCheck::Signed(block_header) = BlockCheck::of(block)
                && block_header.lba.0 == lba
            {
                self.victims.insert((block_header.writer, block_header.sequence));
            }
        }
    }
}

/// The id of the operations that this module submits itself.
const OWN: OpId = OpId(u64::MAX - 1);

/// Returns the same write at another address.
fn rewritten(action: &OpAction, at: u64) -> OpAction {
    match action {
        OpAction::Write { data, durability, .. } => {
            OpAction::Write { at, data: data.clone(), durability: *durability }
        }
        other => panic!("{other:?} is not a write"),
    }
}

fn contents(store: &mut dyn Store, at: u64, len: usize) -> Vec<u8> {
    store.submit(Op { id: OWN, action: OpAction::Read { at, len } });
    match store.poll() {
        Some(Completion { result: Ok(OpOutput::Data(data)), .. }) => bytes_of(&data),
        other => panic!("a medium cannot be inspected: {other:?}"),
    }
}

fn bytes_of(data: &DataList) -> Vec<u8> {
    let mut bytes = vec![0; data.len()];
    data.copy_to(0, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::api::Durability;

    const NONE: CorruptionPlan = CorruptionPlan {
        misdirects_one_in: 0,
        shift_max: 1,
        loses_one_in: 0,
        rots_one_in: 0,
        reads_stale_one_in: 0,
        flips_one_in: 0,
        harms_max: 1,
    };

    fn write(medium: &mut CorruptingStore, block: u64, fill: u8) {
        let mut data = DataList::new();
        data.push(Bytes::copied_from(&[fill; 512]));
        let action = OpAction::Write { at: block * 512, data, durability: Durability::Cached };
        medium.submit(Op { id: OpId(1), action });
        assert!(medium.poll().is_some_and(|done| done.result.is_ok()), "it does not tell");
    }

    #[test]
    fn every_harm_is_done_once_and_known() {
        let plans = [
            CorruptionPlan { misdirects_one_in: 1, ..NONE },
            CorruptionPlan { loses_one_in: 1, ..NONE },
            CorruptionPlan { rots_one_in: 1, ..NONE },
            CorruptionPlan { reads_stale_one_in: 1, ..NONE },
            CorruptionPlan { flips_one_in: 1, ..NONE },
        ];
        for (kind, plan) in plans.into_iter().enumerate() {
            let (mut medium, corruptions) =
                CorruptingStore::new(Box::new(Ram::new(64 << 10)), plan, 64 << 10, 512, 7);
            write(&mut medium, 8, 1);
            medium.submit(Op { id: OpId(2), action: OpAction::Read { at: 8 * 512, len: 512 } });
            let Some(Completion { result: Ok(OpOutput::Data(read)), .. }) = medium.poll() else { panic!() };
            assert_ne!(bytes_of(&read), [1; 512], "{}", KINDS[kind]);
            assert!(corruptions.has_corrupted(8) && !corruptions.has_corrupted(12));
            assert_eq!(corruptions.counts()[kind], 1);
            assert_eq!(corruptions.truth()[8 * 512..9 * 512], [1; 512]);
            // This was the last corruption that the plan allows.
            write(&mut medium, 9, 2);
            assert_eq!(contents(&mut medium, 9 * 512, 512), [2; 512]);
        }
    }
}
