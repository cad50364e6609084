//! A medium in memory that loses unflushed writes when its power is cut.
//!
//! It promises what a disk with a volatile write cache promises, and no more. A sector is written as a whole
//! or not at all. After a loss of power, a sector that was neither flushed nor written with FUA holds its
//! last contents or any version back to the last durable one, each sector independently.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use base::buffer::{Bytes, DataList};
use base::int_cast::to_u64;
use base::rng::Rng;

use crate::api::{
    Capabilities, Completion, Durability, Failure, Fault, Op, OpAction, OpId, OpOutput, Space, Store,
};
use crate::ram::Ram;

/// The length in bytes of a sector, which is written as a whole.
pub const SECTOR: usize = 512;

/// Controls the power of a [`PowerCut`] medium. Clones control the same medium.
#[derive(Clone, Debug)]
pub struct Power {
    state: Rc<RefCell<State>>,
}

/// A medium whose power can be cut.
#[derive(Debug)]
pub struct PowerCut {
    state: Rc<RefCell<State>>,
}

#[derive(Debug)]
struct State {
    /// What reads return.
    cached: Ram,
    /// What certainly survives a cut.
    durable: Ram,
    /// Versions of sectors that may survive a cut, oldest first.
    at_risk: BTreeMap<u64, Vec<Sector>>,
    /// Operations that have not begun; `None` unless operations are held.
    held: Option<VecDeque<Op>>,
    completions: VecDeque<Completion>,
}

type Sector = Box<[u8; SECTOR]>;

impl Power {
    /// Makes a medium of `len` bytes, rounded down to whole sectors, that is all zeros and durable.
    pub fn new(len: u64) -> Self {
        let len = len - len % to_u64(SECTOR);
        Self {
            state: Rc::new(RefCell::new(State {
                cached: Ram::new(len),
                durable: Ram::new(len),
                at_risk: BTreeMap::new(),
                held: None,
                completions: VecDeque::new(),
            })),
        }
    }

    /// Returns the medium. Use one at a time.
    pub fn store(&self) -> PowerCut {
        PowerCut { state: Rc::clone(&self.state) }
    }

    /// Holds operations from now on: they begin only when [`Self::begin_one`] is called.
    pub fn hold(&self) {
        self.state.borrow_mut().held.get_or_insert_default();
    }

    /// Executes one held operation, chosen by `rng`. Returns whether there was one.
    pub fn begin_one(&self, rng: &mut Rng) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(held) = state.held.as_mut().filter(|held| !held.is_empty()) else { return false };
        let at = usize::try_from(rng.below(to_u64(held.len()))).unwrap_or(0);
        let Some(op) = held.remove(at) else { return false };
        state.perform(op);
        true
    }

    /// Cuts the power: each sector at risk takes one of its versions, chosen from `seed`. Operations not
    /// begun are lost, but any sectors of a held write may have been written all the same.
    pub fn cut(&self, seed: u64) {
        let mut rng = Rng::from_seed(seed);
        let mut state = self.state.borrow_mut();
        for op in state.held.take().unwrap_or_default() {
            if let OpAction::Write { at, data, .. } = op.action {
                state.change(at, &data, Durability::Cached);
            }
        }
        let at_risk = core::mem::take(&mut state.at_risk);
        for (number, versions) in at_risk {
            let pick = rng.below(to_u64(versions.len()) + 1);
            let version = usize::try_from(pick).ok().and_then(|pick| versions.get(pick));
            if let Some(sector) = version {
                write(&mut state.durable, number * to_u64(SECTOR), &sector[..]);
            }
        }
        let len = state.durable.capabilities().len;
        state.cached = copy_of(&mut state.durable, len);
        state.completions.clear();
    }

    /// Returns how many sectors a cut could lose now.
    pub fn sectors_at_risk(&self) -> usize {
        self.state.borrow().at_risk.len()
    }
}

impl State {
    fn perform(&mut self, op: Op) {
        let Op { id, action } = op;
        let result = match action {
            OpAction::Write { at, data, durability } => self.check(at, to_u64(data.len())).map(|()| {
                self.change(at, &data, durability);
                data
            }),
            OpAction::WriteZeroes { at, len, durability, .. } => {
                self.check(at, len).map(|()| self.zero(at, len, durability))
            }
            OpAction::Deallocate { at, len } => {
                self.check(at, len).map(|()| self.zero(at, len, Durability::Cached))
            }
            OpAction::Flush => {
                self.flush();
                Ok(DataList::new())
            }
            OpAction::CryptoErase | OpAction::Command(_) | OpAction::Reset => Err(Fault::Unsupported.into()),
            read @ (OpAction::Read { .. } | OpAction::MapStatus { .. }) => {
                self.cached.submit(Op { id, action: read });
                let completion = self.cached.poll();
                self.completions.extend(completion);
                return;
            }
        };
        self.completions.push_back(Completion { id, result: result.map(OpOutput::Done) });
    }

    fn check(&self, at: u64, len: u64) -> Result<(), Failure> {
        let sector = to_u64(SECTOR);
        if !at.is_multiple_of(sector) || !len.is_multiple_of(sector) {
            return Err(Fault::Bug.into());
        }
        match at.checked_add(len) {
            Some(end) if end <= self.durable.capabilities().len => Ok(()),
            _ => Err(Failure { fault: Fault::OutOfRange, at: Some(at) }),
        }
    }

    fn zero(&mut self, at: u64, len: u64, durability: Durability) -> DataList {
        let zeros = Bytes::copied_from(&vec![0; usize::try_from(len).unwrap_or(0)]);
        self.change(at, &zeros.into(), durability);
        DataList::new()
    }

    fn change(&mut self, at: u64, data: &DataList, durability: Durability) {
        let mut bytes = vec![0; data.len()];
        data.copy_to(0, &mut bytes);
        write(&mut self.cached, at, &bytes);
        let first = at / to_u64(SECTOR);
        for (number, sector) in (first..).zip(bytes.as_chunks::<SECTOR>().0) {
            match durability {
                Durability::Cached => self.at_risk.entry(number).or_default().push(Box::new(*sector)),
                // Earlier versions of the sector can no longer return.
                Durability::Stable => {
                    self.at_risk.remove(&number);
                }
            }
        }
        if durability == Durability::Stable {
            write(&mut self.durable, at, &bytes);
        }
    }

    fn flush(&mut self) {
        for (number, versions) in core::mem::take(&mut self.at_risk) {
            if let Some(newest) = versions.last() {
                write(&mut self.durable, number * to_u64(SECTOR), &newest[..]);
            }
        }
    }
}

impl Store for PowerCut {
    fn capabilities(&self) -> Capabilities {
        let inner = self.state.borrow().durable.capabilities();
        let granule = u32::try_from(SECTOR).unwrap_or(u32::MAX);
        Capabilities { logical_block_len: granule, volatile_cache: true, atomic_len_max: 0, ..inner }
    }

    fn space(&self) -> Option<Space> {
        self.state.borrow().durable.space()
    }

    fn submit(&mut self, op: Op) {
        let mut state = self.state.borrow_mut();
        match &mut state.held {
            Some(held) => held.push_back(op),
            None => state.perform(op),
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        self.state.borrow_mut().completions.pop_front()
    }
}

fn write(ram: &mut Ram, at: u64, bytes: &[u8]) {
    let data = Bytes::copied_from(bytes).into();
    ram.submit(Op { id: OpId(0), action: OpAction::Write { at, data, durability: Durability::Cached } });
    ram.poll();
}

fn copy_of(ram: &mut Ram, len: u64) -> Ram {
    let mut copy = Ram::new(len);
    let mut at = 0;
    while at < len {
        let part = (len - at).min(1 << 20);
        let part_len = usize::try_from(part).unwrap_or(0);
        ram.submit(Op { id: OpId(0), action: OpAction::Read { at, len: part_len } });
        if let Some(Completion { result: Ok(OpOutput::Data(data)), .. }) = ram.poll() {
            let mut bytes = vec![0; data.len()];
            data.copy_to(0, &mut bytes);
            write(&mut copy, at, &bytes);
        }
        at += part;
    }
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(store: &mut PowerCut, action: OpAction) -> Result<OpOutput, Failure> {
        store.submit(Op { id: OpId(1), action });
        store.poll().expect("answers at once").result
    }

    fn put(store: &mut PowerCut, sector: u64, byte: u8, durability: Durability) {
        let data = Bytes::copied_from(&[byte; SECTOR]).into();
        let at = sector * to_u64(SECTOR);
        assert!(run(store, OpAction::Write { at, data, durability }).is_ok());
    }

    fn get(store: &mut PowerCut, sector: u64) -> u8 {
        let read = OpAction::Read { at: sector * to_u64(SECTOR), len: SECTOR };
        let Ok(OpOutput::Data(data)) = run(store, read) else { panic!() };
        let first = data.parts()[0][0];
        assert!(data.parts().iter().all(|part| part.iter().all(|byte| *byte == first)), "a torn sector");
        first
    }

    #[test]
    fn what_was_flushed_or_written_through_survives_every_cut() {
        for seed in 0..50 {
            let power = Power::new(1 << 16);
            let mut store = power.store();
            put(&mut store, 0, 1, Durability::Cached);
            assert!(run(&mut store, OpAction::Flush).is_ok());
            put(&mut store, 1, 2, Durability::Cached);
            put(&mut store, 1, 3, Durability::Stable);
            assert_eq!(power.sectors_at_risk(), 0);
            power.cut(seed);
            assert_eq!((get(&mut store, 0), get(&mut store, 1)), (1, 3), "seed {seed}");
        }
    }

    #[test]
    fn what_was_not_is_any_of_its_versions() {
        let mut seen = [false; 4];
        for seed in 0..100 {
            let power = Power::new(1 << 16);
            let mut store = power.store();
            put(&mut store, 5, 1, Durability::Stable);
            put(&mut store, 5, 2, Durability::Cached);
            put(&mut store, 5, 3, Durability::Cached);
            assert_eq!(get(&mut store, 5), 3);
            power.cut(seed);
            seen[usize::from(get(&mut store, 5))] = true;
        }
        assert_eq!(seen, [false, true, true, true]);
    }

    #[test]
    fn held_operations_happen_when_told_and_a_cut_may_have_begun_them() {
        let mut seen = [false; 2];
        for seed in 0..50 {
            let power = Power::new(1 << 16);
            let mut store = power.store();
            power.hold();
            let data = Bytes::copied_from(&[1; SECTOR]).into();
            let write = OpAction::Write { at: 0, data, durability: Durability::Stable };
            store.submit(Op { id: OpId(9), action: write });
            assert!(store.poll().is_none());
            if seed % 2 == 0 {
                let mut rng = Rng::from_seed(seed);
                assert!(power.begin_one(&mut rng) && !power.begin_one(&mut rng));
                assert_eq!(store.poll().unwrap().id, OpId(9));
            }
            power.cut(seed);
            let found = get(&mut store, 0);
            assert!(seed % 2 == 1 || found == 1);
            seen[usize::from(found)] = true;
        }
        assert_eq!(seen, [true, true]);
    }
}
