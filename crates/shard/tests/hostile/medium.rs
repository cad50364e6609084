//! A medium whose operations wait until the test releases them, one by one and in any order.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use base::state_machine::{MediumId, StreamMachine as _};
use store::Store;
use store::api::{Capabilities, Completion, Op, OpAction};
use store::ram::Ram;

use crate::pair::World;

/// The medium, for the unit.
pub(crate) struct Held(Rc<RefCell<Inner>>);

/// The controls of the medium, for the test.
#[derive(Clone)]
pub(crate) struct Keeper(Rc<RefCell<Inner>>);

struct Inner {
    ram: Ram,
    holds: bool,
    waiting: VecDeque<Op>,
    done: VecDeque<Completion>,
}

/// Makes a medium of `len` bytes, all zeros. It holds no operations until [`Keeper::hold`] is called.
pub(crate) fn held(len: u64) -> (Box<dyn Store>, Keeper) {
    let inner = Inner { ram: Ram::new(len), holds: false, waiting: VecDeque::new(), done: VecDeque::new() };
    let inner = Rc::new(RefCell::new(inner));
    (Box::new(Held(Rc::clone(&inner))), Keeper(inner))
}

impl Keeper {
    /// Sets whether operations wait from now on.
    pub(crate) fn hold(&self, holds: bool) {
        self.0.borrow_mut().holds = holds;
    }

    /// Returns the medium once more, for a unit of another process.
    #[allow(dead_code, reason = "not every test binary hands units over")]
    pub(crate) fn again(&self) -> Box<dyn Store> {
        Box::new(Held(Rc::clone(&self.0)))
    }

    /// Returns how many operations wait.
    pub(crate) fn waiting(&self) -> usize {
        self.0.borrow().waiting.len()
    }

    /// Returns how many writes wait.
    pub(crate) fn writes_waiting(&self) -> usize {
        let writes = |op: &&Op| matches!(op.action, OpAction::Write { .. });
        self.0.borrow().waiting.iter().filter(writes).count()
    }

    /// Executes and completes the oldest or the youngest waiting operation. Returns whether there was one.
    pub(crate) fn release(&self, world: &mut World, unit: u32, youngest: bool) -> bool {
        let mut inner = self.0.borrow_mut();
        let op = if youngest { inner.waiting.pop_back() } else { inner.waiting.pop_front() };
        let Some(op) = op else { return false };
        inner.ram.submit(op);
        inner.collect();
        drop(inner);
        world.shard.medium_ready(world.now, MediumId(unit));
        world.drain();
        true
    }

    /// Executes all waiting operations, and all that follow from them.
    pub(crate) fn release_all(&self, world: &mut World, unit: u32) {
        while self.release(world, unit, false) {}
    }

    /// Returns the contents of the medium, without the operations that wait.
    pub(crate) fn peek(&self, at: u64, len: usize) -> Vec<u8> {
        let mut inner = self.0.borrow_mut();
        assert!(inner.ram.poll().is_none());
        inner.ram.submit(Op { id: store::api::OpId(0), action: OpAction::Read { at, len } });
        let Some(Ok(store::api::OpOutput::Data(data))) = inner.ram.poll().map(|done| done.result) else {
            panic!("the medium cannot be read")
        };
        data.parts().iter().flat_map(|part| part.to_vec()).collect()
    }
}

impl Inner {
    fn collect(&mut self) {
        while let Some(done) = self.ram.poll() {
            self.done.push_back(done);
        }
    }
}

impl Store for Held {
    fn capabilities(&self) -> Capabilities {
        self.0.borrow().ram.capabilities()
    }

    fn submit(&mut self, op: Op) {
        let mut inner = self.0.borrow_mut();
        if inner.holds {
            inner.waiting.push_back(op);
        } else {
            inner.ram.submit(op);
            inner.collect();
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().done.pop_front()
    }
}
