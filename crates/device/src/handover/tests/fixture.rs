//! The fixture of these tests, beside [`crate::testing`]: a medium that two units share, commands that leave
//! state in a unit, and commands that show it.

pub(super) use alloc::boxed::Box;
use alloc::collections::VecDeque;
pub(super) use alloc::rc::Rc;
pub(super) use alloc::vec::Vec;
use core::cell::RefCell;

use base::buffer::Pool;
pub(super) use base::rng::Rng;
pub(super) use base::time::{Duration, Instant};
use base::units::{Blocks, Lba};
use scsi::copy::rod::{BlockRange, PopulateToken};
pub(super) use scsi::opcode as op;
pub(super) use scsi::sense::{Asc, SenseKey};
use store::Store;
use store::api::{Capabilities, Completion, Op, Space};
use store::ram::Ram;

pub(super) use crate::contract::{Nexus, NexusId, UnitConfig};
pub(super) use crate::handover::{RestoreError, UnitBusy, UnitState};
pub(super) use crate::testing::{A, B, BLOCKS, Reply, Rig, cdb_16, cdb_32, config, nexus};
pub(super) use crate::unit::{LogicalUnit, Reset};

/// The numbers of the nexuses of A and B in the second process.
pub(super) const A2: NexusId = NexusId(21);
pub(super) const B2: NexusId = NexusId(12);

/// A medium in memory that outlives a unit.
#[derive(Clone)]
pub(super) struct Shared(Rc<RefCell<Ram>>);

impl Shared {
    pub(super) fn new() -> Self {
        Self(Rc::new(RefCell::new(Ram::new(BLOCKS * 512))))
    }
}

impl Store for Shared {
    fn capabilities(&self) -> Capabilities {
        self.0.borrow().capabilities()
    }

    fn space(&self) -> Option<Space> {
        self.0.borrow().space()
    }

    fn submit(&mut self, op: Op) {
        self.0.borrow_mut().submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().poll()
    }
}

/// Returns a configuration with everything that a unit in memory can have.
pub(super) fn rich() -> UnitConfig {
    UnitConfig { removable: true, ..config() }
}

/// Returns a unit as the next process makes it, before the state is restored.
pub(super) fn next_unit(config: UnitConfig, store: Box<dyn Store>) -> LogicalUnit {
    let mut unit = LogicalUnit::new(config, store, None, Pool::new(1 << 20)).unwrap();
    unit.seed(&[9; 32]);
    for (id, was) in [(A2, A), (B2, B)] {
        unit.nexus_established(Instant::ORIGIN, Nexus { id, ..nexus(was) });
    }
    unit
}

/// Returns a rig for a unit whose nexuses are established.
pub(super) const fn rig_of(unit: LogicalUnit) -> Rig {
    Rig { unit, next_key: 1, events: VecDeque::new() }
}

/// Returns the index of A and B in a document.
pub(super) fn index_of(id: NexusId) -> Option<u32> {
    [A, B].iter().position(|known| *known == id).and_then(|at| u32::try_from(at).ok())
}

/// Returns the nexus with an index in the second process.
pub(super) fn nexus_of(index: u32) -> Option<NexusId> {
    [A2, B2].get(usize::try_from(index).unwrap()).copied()
}

/// Returns the state of a rig, as it is after it was encoded and decoded.
#[track_caller]
pub(super) fn export(rig: &Rig) -> UnitState {
    let state = rig.unit.export(Instant::ORIGIN, index_of).unwrap();
    let text = serde_json::to_string(&state).unwrap();
    let back = serde_json::from_str(&text).unwrap();
    assert_eq!(state, back);
    back
}

/// Returns a rig of the next process over this medium.
#[track_caller]
pub(super) fn resumed(config: UnitConfig, store: Box<dyn Store>, state: &UnitState) -> Rig {
    let mut unit = next_unit(config, store);
    unit.restore(Instant::ORIGIN, state, nexus_of).unwrap();
    rig_of(unit)
}

/// Returns a unit that two hosts use.
#[track_caller]
pub(super) fn served(config: UnitConfig, store: Box<dyn Store>) -> Rig {
    let mut rig = Rig::fresh(config, store);
    rig.unit.seed(&[3; 32]);
    for id in [A, B] {
        run(&mut rig, id, &[0; 6], &[])
            .check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    }
    rig
}

/// Runs a command that may request that state be saved or that waits for nothing else.
#[track_caller]
pub(super) fn run(rig: &mut Rig, nexus: NexusId, cdb: &[u8], out: &[u8]) -> Reply {
    rig.run(nexus, cdb, if out.is_empty() { 65_536 } else { 0 }, out)
}

/// Changes the bytes of a mode page by MODE SELECT, whatever the page has.
pub(super) fn change_mode(rig: &mut Rig, nexus: NexusId, page: u8, save: bool, change: (usize, u8)) -> Reply {
    let reply = run(rig, nexus, &[op::MODE_SENSE_6, 8, page, 0, 255, 0], &[]);
    let mut list = reply.data;
    if list.len() < 6 {
        return run(rig, nexus, &[0; 6], &[]);
    }
    list[..4].fill(0);
    list[4] &= 0x3f;
    list[4 + change.0] ^= change.1;
    let len = u8::try_from(list.len()).unwrap();
    run(rig, nexus, &[op::MODE_SELECT_6, 0x10 | u8::from(save), 0, 0, len, 0], &list)
}

/// Sends a PERSISTENT RESERVE OUT.
pub(super) fn pr_out(
    rig: &mut Rig,
    nexus: NexusId,
    (action, kind): (u8, u8),
    (key, action_key): (u64, u64),
    aptpl: bool,
) -> Reply {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&action_key.to_be_bytes());
    list[20] = u8::from(aptpl);
    run(rig, nexus, &[op::PERSISTENT_RESERVE_OUT, action, kind, 0, 0, 0, 0, 0, 24, 0], &list)
}

/// Creates a ROD token.
pub(super) fn populate(rig: &mut Rig, nexus: NexusId, list_id: u32, lba: u64) -> Reply {
    let ranges = alloc::vec![BlockRange { lba: Lba(lba), blocks: Blocks(8) }];
    let list = PopulateToken { immediate: false, rod_type: None, inactivity_timeout_s: 0, ranges }.to_bytes();
    let mut cdb = cdb_16(op::THIRD_PARTY_COPY_OUT, 0x10, 0, u32::try_from(list.len()).unwrap());
    cdb[6..10].copy_from_slice(&list_id.to_be_bytes());
    run(rig, nexus, &cdb, &list)
}

/// Returns a CDB of THIRD-PARTY COPY IN.
fn copy_in(action: u8, list_id: u32) -> [u8; 16] {
    let mut cdb = cdb_16(op::THIRD_PARTY_COPY_IN, action, 0, 4096);
    cdb[2..6].copy_from_slice(&list_id.to_be_bytes());
    cdb
}

/// The commands that show the state of a unit. Those that change something change it alike in both units.
pub(super) fn probes() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut probes: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut ask = |cdb: &[u8]| probes.push((cdb.to_vec(), Vec::new()));
    ask(&[op::REQUEST_SENSE, 0, 0, 0, 252, 0]);
    for code in [0, 0x80, 0x83, 0x86, 0x87, 0x88, 0x8f, 0xb0, 0xb1, 0xb2, 0xb7] {
        ask(&[op::INQUIRY, 1, code, 1, 0, 0]);
    }
    ask(&[op::INQUIRY, 0, 0, 1, 0, 0]);
    for _ in 0..30 {
        ask(&[op::TEST_UNIT_READY, 0, 0, 0, 0, 0]);
    }
    for control in 0..4 {
        ask(&[op::MODE_SENSE_10, 0, control << 6 | 0x3f, 0xff, 0, 0, 0, 0x10, 0, 0]);
    }
    for action in 0..4 {
        ask(&[op::PERSISTENT_RESERVE_IN, action, 0, 0, 0, 0, 0, 0x10, 0, 0]);
    }
    for code in 0..0x40 {
        ask(&[op::LOG_SENSE, 0, 0x40 | code, 0, 0, 0, 0, 0x10, 0, 0]);
    }
    ask(&[op::MAINTENANCE_IN, 0x0f, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0]);
    for kind in [0, 2] {
        ask(&[op::MAINTENANCE_IN, 0x05, 0, 0, 0, 0, 0, 0, 4, 0, kind << 1, 0]);
    }
    ask(&[op::READ_BUFFER_10, 0x02, 0, 0, 0, 0, 0, 0x10, 0, 0]);
    ask(&[op::READ_BUFFER_10, 0x0a, 0, 0, 0, 0, 0, 0x10, 0, 0]);
    ask(&copy_in(0x08, 0));
    for list_id in 0..4 {
        ask(&copy_in(0x07, list_id));
    }
    ask(&cdb_16(op::SERVICE_ACTION_IN_16, 0x10, 0, 32));
    ask(&cdb_16(op::READ_16, 0, 0, 16));
    ask(&[op::START_STOP_UNIT, 0, 0, 0, 2, 0]);
    ask(&[op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 0, 0]);
    ask(&[op::START_STOP_UNIT, 0, 0, 0, 2, 0]);
    ask(&[op::START_STOP_UNIT, 0, 0, 0, 3, 0]);
    ask(&[op::TEST_UNIT_READY, 0, 0, 0, 0, 0]);
    let written = alloc::vec![0x5a; 512];
    probes.push((cdb_16(op::WRITE_16, 0, 3, 1).to_vec(), written.clone()));
    // ORWRITE of generation 7, and of generation 0.
    for generation in [7_u32, 0] {
        let mut cdb = cdb_32(0x000e, 0, 5, 1);
        cdb[20..24].copy_from_slice(&generation.to_be_bytes());
        probes.push((cdb.to_vec(), written.clone()));
    }
    probes.push((alloc::vec![op::RESERVE_6, 0, 0, 0, 0, 0], Vec::new()));
    probes.push((populate_cdb(), populate_list()));
    probes.push((copy_in(0x07, 3).to_vec(), Vec::new()));
    probes
}

fn populate_list() -> Vec<u8> {
    let ranges = alloc::vec![BlockRange { lba: Lba(64), blocks: Blocks(8) }];
    PopulateToken { immediate: false, rod_type: None, inactivity_timeout_s: 0, ranges }.to_bytes()
}

fn populate_cdb() -> Vec<u8> {
    let len = u32::try_from(populate_list().len()).unwrap();
    let mut cdb = cdb_16(op::THIRD_PARTY_COPY_OUT, 0x10, 0, len);
    cdb[9] = 3;
    cdb.to_vec()
}

/// Sends every probe from both nexuses, and returns the replies.
pub(super) fn transcript(rig: &mut Rig, nexuses: [NexusId; 2]) -> Vec<Reply> {
    let mut replies = Vec::new();
    for (cdb, out) in probes() {
        for nexus in nexuses {
            let mut reply = run(rig, nexus, &cdb, &out);
            forget_new_secret(&mut reply);
            replies.push(reply);
        }
    }
    replies
}

/// Erases the secrets of tokens, which every process makes anew.
fn forget_new_secret(reply: &mut Reply) {
    const TOKEN_AT: usize = 38;
    if reply.data.len() >= TOKEN_AT + 512 && reply.data.get(TOKEN_AT + 6..TOKEN_AT + 8) == Some(&[0x01, 0xf8])
    {
        reply.data[TOKEN_AT + 480..TOKEN_AT + 512].fill(0);
    }
}
