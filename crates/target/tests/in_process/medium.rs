//! A medium whose operations wait until the test releases them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use store::Store;
use store::api::{Capabilities, Completion, Op, OpAction, OpId, OpOutput};
use store::ram::Ram;

/// The medium, for the unit and for the test.
#[derive(Clone)]
pub(crate) struct Held(Rc<RefCell<Inner>>);

struct Inner {
    ram: Ram,
    holds: bool,
    waiting: VecDeque<Op>,
    done: VecDeque<Completion>,
}

impl Held {
    /// Makes a medium of `len` bytes, all zeros. It holds no operations at first.
    pub(crate) fn new(len: u64) -> Self {
        let ram = Ram::new(len);
        Self(Rc::new(RefCell::new(Inner {
            ram,
            holds: false,
            waiting: VecDeque::new(),
            done: VecDeque::new(),
        })))
    }

    /// Lets operations wait from now on.
    pub(crate) fn hold(&self) {
        self.0.borrow_mut().holds = true;
    }

    /// Executes all waiting operations, and lets none wait from now on.
    pub(crate) fn release(&self) {
        let mut inner = self.0.borrow_mut();
        inner.holds = false;
        while let Some(op) = inner.waiting.pop_front() {
            inner.execute(op);
        }
    }

    /// Returns the contents of the medium, without the operations that wait.
    pub(crate) fn peek(&self, at: u64, len: usize) -> Vec<u8> {
        let mut inner = self.0.borrow_mut();
        inner.ram.submit(Op { id: OpId(0), action: OpAction::Read { at, len } });
        let Some(Ok(OpOutput::Data(data))) = inner.ram.poll().map(|done| done.result) else {
            panic!("the medium cannot be read")
        };
        data.parts().iter().flat_map(|part| part.to_vec()).collect()
    }
}

impl Inner {
    fn execute(&mut self, op: Op) {
        self.ram.submit(op);
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
        if inner.holds { inner.waiting.push_back(op) } else { inner.execute(op) }
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().done.pop_front()
    }
}
