//! The fixture of these tests, beside [`crate::testing`]: a recording medium and the names that every file
//! uses.

pub(super) use alloc::boxed::Box;
pub(super) use alloc::collections::VecDeque;
pub(super) use alloc::rc::Rc;
pub(super) use alloc::vec::Vec;
pub(super) use core::cell::RefCell;

pub(super) use base::time::Instant;
pub(super) use scsi::opcode as op;
pub(super) use scsi::sense::{Asc, SenseKey};
pub(super) use store::Store;
pub(super) use store::api::{Capabilities, Completion, Durability, Op, OpAction};
pub(super) use store::ram::Ram;

pub(super) use crate::contract::{NexusId, UnitEvent};
pub(super) use crate::testing::{A, B, BLOCKS, Reply, Rig, config};

pub(super) const TEST_UNIT_READY: [u8; 6] = [0; 6];

/// Returns a unit with a removable medium.
pub(super) fn removable() -> Rig {
    let config = crate::contract::UnitConfig { removable: true, ..config() };
    Rig::with(config, Box::new(Ram::new(BLOCKS * 512)))
}

impl Rig {
    /// Sends TEST UNIT READY.
    #[track_caller]
    pub(super) fn ready_for(&mut self, nexus: NexusId) -> Reply {
        self.run(nexus, &TEST_UNIT_READY, 0, &[])
    }

    /// Expects this unit attention, and no other after it.
    #[track_caller]
    pub(super) fn hears(&mut self, nexus: NexusId, asc: Asc) {
        self.ready_for(nexus).check(SenseKey::UNIT_ATTENTION, asc);
        self.ready_for(nexus).good();
    }

    /// Answers the oldest request to save state, and returns the state.
    #[track_caller]
    pub(super) fn save(&mut self, ok: bool) -> Vec<u8> {
        self.keep(ok).unwrap_or_else(|| panic!("nothing is to be saved: {:?}", self.events))
    }
}

/// A medium in memory that records its operations, and can be made to answer later.
pub(super) struct Recorder {
    inner: Ram,
    shared: Rc<RefCell<Recording>>,
}

#[derive(Default)]
pub(super) struct Recording {
    pub(super) flushes: usize,
    pub(super) writes: Vec<Durability>,
    pub(super) hold: bool,
    /// Whether every write is durable when it is acknowledged.
    pub(super) write_through: bool,
    held: VecDeque<Completion>,
    pub(super) fail_flushes: bool,
    pub(super) fail_reads: bool,
}

impl Recorder {
    pub(super) fn new() -> (Self, Rc<RefCell<Recording>>) {
        let shared = Rc::<RefCell<Recording>>::default();
        (Self { inner: Ram::new(BLOCKS * 512), shared: Rc::clone(&shared) }, shared)
    }
}

impl Store for Recorder {
    fn capabilities(&self) -> Capabilities {
        let volatile_cache = !self.shared.borrow().write_through;
        Capabilities { volatile_cache, ..self.inner.capabilities() }
    }

    fn submit(&mut self, op: Op) {
        let mut shared = self.shared.borrow_mut();
        match &op.action {
            OpAction::Flush => shared.flushes += 1,
            OpAction::Write { durability, .. } => shared.writes.push(*durability),
            _ => {}
        }
        let failing = match op.action {
            OpAction::Flush => shared.fail_flushes,
            OpAction::Read { .. } => shared.fail_reads,
            _ => false,
        };
        if failing {
            let result = Err(store::api::Fault::Medium.into());
            shared.held.push_back(Completion { id: op.id, result });
            return;
        }
        self.inner.submit(op);
        while let Some(completion) = self.inner.poll() {
            shared.held.push_back(completion);
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut shared = self.shared.borrow_mut();
        if shared.hold { None } else { shared.held.pop_front() }
    }
}

/// READ(10) of one block.
pub(super) const READ: [u8; 10] = [op::READ_10, 0, 0, 0, 0, 1, 0, 0, 1, 0];
/// WRITE(10) of one block.
pub(super) const WRITE: [u8; 10] = [op::WRITE_10, 0, 0, 0, 0, 1, 0, 0, 1, 0];

/// Reads a block.
pub(super) fn read(rig: &mut Rig, nexus: NexusId) -> Reply {
    rig.run(nexus, &READ, 512, &[])
}

/// Writes a block.
pub(super) fn write(rig: &mut Rig, nexus: NexusId) -> Reply {
    rig.run(nexus, &WRITE, 0, &[0xa5; 512])
}

/// Both nexuses.
pub(super) const BOTH: [NexusId; 2] = [A, B];
