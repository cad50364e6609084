//! The fixture of the unit's tests: a [`Rig`] is a logical unit with two nexuses that a test sends commands
//! for.
//!
//! The test `in_process` of `target` compiles this file and the files of tests that use it a second time.
//! There `crate::unit::LogicalUnit` is a unit behind a transport, so that every call and every event of a rig
//! passes through `target` and the traits of `transport`. What only a test beside the unit can see does not
//! belong here, but into a file of tests that `in_process` does not compile.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use base::buffer::{Bytes, DataList, Pool};
use base::time::Instant;
use base::units::BlockSize;
use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::sense::{Asc, SenseKey};
use scsi::status::{Status, TaskAttribute};
use scsi::transport_id::TransportId;
use store::Store;
use store::api::{Capabilities, Completion, Fault, Op, OpAction, OpOutput};
use store::ram::Ram;

use crate::contract::{
    Access, Command, Identity, InquiryOverrides, Nexus, NexusId, RelativePort, TargetPort, TaskKey,
    TaskRules, Tmf, TmfKey, TmfOutcome, UnitConfig, UnitEvent,
};
use crate::unit::LogicalUnit;

/// The nexuses of two initiators.
pub(crate) const A: NexusId = NexusId(1);
pub(crate) const B: NexusId = NexusId(2);

/// How many blocks a rig's medium has by default.
pub(crate) const BLOCKS: u64 = 4096;

/// Commands of SPC that use the medium although they do not need a unit that is ready: a self-test, a stop
/// and a disabled write cache.
pub(crate) const USERS_OF_THE_MEDIUM: [[u8; 6]; 5] = [
    [0x1d, 0x04, 0, 0, 0, 0],
    [0x1d, 0x20, 0, 0, 0, 0],
    [0x1b, 0, 0, 0, 0, 0],
    [0x1b, 0, 0, 0, 0x30, 0],
    [0x15, 0x10, 0, 0, 24, 0],
];

/// A unit under test.
pub(crate) struct Rig {
    pub(crate) unit: LogicalUnit,
    pub(crate) next_key: u64,
    /// Events that no `run` has taken.
    pub(crate) events: VecDeque<UnitEvent>,
}

/// The result of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: Status,
    /// Key and code of the sense data.
    pub(crate) sense: Option<(SenseKey, Asc)>,
    /// All of the sense data.
    pub(crate) sense_bytes: Vec<u8>,
    pub(crate) data: Vec<u8>,
    pub(crate) transferable: u64,
}

impl Reply {
    /// Panics unless the command ended with GOOD; returns its data.
    #[track_caller]
    pub(crate) fn good(self) -> Vec<u8> {
        assert_eq!(self.status, Status::GOOD, "{self:?}");
        self.data
    }

    /// Panics unless the command ended with CHECK CONDITION and this sense data.
    #[track_caller]
    pub(crate) fn check(&self, key: SenseKey, asc: Asc) {
        assert_eq!((self.status, self.sense), (Status::CHECK_CONDITION, Some((key, asc))), "{self:?}");
    }

    /// Panics unless the command ended with ILLEGAL REQUEST and this code.
    #[track_caller]
    pub(crate) fn illegal(&self, asc: Asc) {
        self.check(SenseKey::ILLEGAL_REQUEST, asc);
    }

    /// Returns the INFORMATION field of fixed format sense data, if valid.
    pub(crate) fn information(&self) -> Option<u32> {
        let bytes = self.sense_bytes.get(3..7)?;
        (self.sense_bytes[0] & 0x80 != 0).then(|| u32::from_be_bytes(bytes.try_into().unwrap()))
    }
}

/// Returns the configuration of most tests: 512-byte blocks, thin, write cache on, one task set for all
/// nexuses.
pub(crate) fn config() -> UnitConfig {
    UnitConfig {
        device: crate::contract::DeviceKind::Disk,
        identity: Identity {
            vendor: *b"TARGE   ",
            product: *b"DISK            ",
            revision: *b"0001",
            serial: "SERIAL0001".to_string(),
            naa: vec![0x60, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        },
        block_size: BlockSize::B512,
        physical_exponent: 3,
        read_only: false,
        removable: false,
        long_cdbs: true,
        atomic_blocks: 1,
        thin: true,
        write_cache: true,
        overrides: InquiryOverrides::default(),
        tasks: TaskRules::SHARED,
        task_set_max: 64,
        io_timeout: None,
        limit: Default::default(),
        transfer_blocks_max: 16384,
        ports: [TargetPort {
            relative: RelativePort(1),
            group: 1,
            port_name: "iqn.2026-11.org.targe:t,t,0x0001".to_string(),
            device_name: "iqn.2026-11.org.targe:t".to_string(),
            protocol: 5,
        }]
        .into(),
    }
}

/// Returns a nexus of an initiator of its own.
pub(crate) fn nexus(id: NexusId) -> Nexus {
    let [.., last] = id.0.to_be_bytes();
    let port = TransportId::iscsi_port("iqn.2026-11.org.initiator", [0, 2, 0x3d, 0, 0, last]).unwrap();
    Nexus {
        id,
        initiator_port: Rc::from(port.encode()),
        initiator_name: Rc::from("iqn.2026-11.org.initiator"),
        target_port: RelativePort(1),
        access: Access::ReadWrite,
        rfc_7144_functions: true,
        luns: Rc::from([Lun(0)].as_slice()),
        limiter: None,
    }
}

impl Rig {
    /// Creates a unit in memory with two nexuses that have received their first unit attention.
    pub(crate) fn new() -> Self {
        Self::with(config(), Box::new(Ram::new(BLOCKS * 512)))
    }

    /// Creates such a unit with another configuration and medium.
    pub(crate) fn with(config: UnitConfig, store: Box<dyn Store>) -> Self {
        let mut rig = Self::fresh(config, store);
        rig.hear_power_on();
        rig
    }

    /// Creates a rig for an existing unit.
    pub(crate) fn of(unit: LogicalUnit) -> Self {
        let mut rig = Self { unit, next_key: 1, events: VecDeque::new() };
        for id in [A, B] {
            rig.unit.nexus_established(Instant::ORIGIN, nexus(id));
        }
        rig.hear_power_on();
        rig
    }

    fn hear_power_on(&mut self) {
        for id in [A, B] {
            self.run(id, &[0; 6], 0, &[])
                .check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
        }
    }

    /// Creates a unit whose nexuses have not received their first unit attention.
    pub(crate) fn fresh(config: UnitConfig, store: Box<dyn Store>) -> Self {
        let mut unit = LogicalUnit::new(config, store, None, Pool::new(1 << 20)).unwrap();
        for id in [A, B] {
            unit.nexus_established(Instant::ORIGIN, nexus(id));
        }
        Self { unit, next_key: 1, events: VecDeque::new() }
    }

    /// Starts a command and returns its key.
    pub(crate) fn start(
        &mut self,
        nexus: NexusId,
        cdb: &[u8],
        data_in_len: usize,
        data_out_len: usize,
    ) -> TaskKey {
        self.start_as(nexus, TaskAttribute::Simple, cdb, data_in_len, data_out_len)
    }

    /// Starts a command with a task attribute and returns its key.
    pub(crate) fn start_as(
        &mut self,
        nexus: NexusId,
        attribute: TaskAttribute,
        cdb: &[u8],
        data_in_len: usize,
        data_out_len: usize,
    ) -> TaskKey {
        let command = self.command(nexus, attribute, cdb, data_in_len, data_out_len);
        let key = command.key;
        self.unit.execute(Instant::ORIGIN, command);
        self.drain();
        key
    }

    fn command(
        &mut self,
        nexus: NexusId,
        attribute: TaskAttribute,
        cdb: &[u8],
        data_in_len: usize,
        data_out_len: usize,
    ) -> Command {
        let key = TaskKey(self.next_key);
        self.next_key += 1;
        Command {
            nexus,
            key,
            level: security::Level::None,
            attribute,
            priority: 0,
            cdb: Cdb::from_bytes(cdb).unwrap(),
            data_in_len: u32::try_from(data_in_len).unwrap(),
            data_out_len: u32::try_from(data_out_len).unwrap(),
        }
    }

    /// Runs a command to its end: the initiator accepts `room` bytes and sends `out`.
    #[track_caller]
    pub(crate) fn run(&mut self, nexus: NexusId, cdb: &[u8], room: usize, out: &[u8]) -> Reply {
        let command = self.command(nexus, TaskAttribute::Simple, cdb, room, out.len());
        let key = command.key;
        self.unit.execute_with(Instant::ORIGIN, command, out);
        self.drain();
        self.finish(key, out)
    }

    /// Sends a command the data that it fetches until it ends.
    #[track_caller]
    pub(crate) fn finish(&mut self, key: TaskKey, out: &[u8]) -> Reply {
        let mut data = Vec::new();
        loop {
            let at = self.events.iter().position(|event| concerns(event, key));
            let Some(event) = at.and_then(|at| self.events.remove(at)) else {
                assert!(self.keep(true).is_some(), "the command goes on");
                continue;
            };
            match event {
                UnitEvent::FetchDataOut { offset, len, .. } => self.send(key, out, offset, len),
                UnitEvent::DataIn { offset, data: list, .. } => {
                    assert_eq!(usize::try_from(offset).unwrap(), data.len(), "in order, without gaps");
                    list.parts().iter().for_each(|part| data.extend_from_slice(part));
                }
                UnitEvent::CommandComplete { status, sense, transferable, .. } => {
                    let sense_bytes = sense.map_or_else(Vec::new, |sense| sense.bytes().to_vec());
                    let sense = decode(&sense_bytes);
                    return Reply { status, sense, sense_bytes, data, transferable };
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Answers the oldest request to save state, if there is one, and returns the state.
    pub(crate) fn keep(&mut self, ok: bool) -> Option<Vec<u8>> {
        let at = self.events.iter().position(|event| matches!(event, UnitEvent::SaveState { .. }))?;
        let Some(UnitEvent::SaveState { ticket, state }) = self.events.remove(at) else { return None };
        self.unit.state_saved(Instant::ORIGIN, ticket, ok);
        self.drain();
        Some(state)
    }

    /// Sends part of a Data-Out buffer.
    pub(crate) fn send(&mut self, key: TaskKey, out: &[u8], offset: u32, len: u32) {
        let start = usize::try_from(offset).unwrap();
        let part = &out[start..start + usize::try_from(len).unwrap()];
        // Two pieces, as from a transport where a PDU ends in between.
        let (head, tail) = part.split_at(part.len() / 2);
        let mut list = DataList::new();
        for piece in [head, tail].into_iter().filter(|piece| !piece.is_empty()) {
            list.push(Bytes::copied_from(piece));
        }
        self.unit.data_out(Instant::ORIGIN, key, offset, Ok(list));
        self.drain();
    }

    /// Requests a task management function and returns its outcome, if it is answered at once.
    pub(crate) fn manage(&mut self, nexus: NexusId, function: Tmf) -> Option<TmfOutcome> {
        let key = TmfKey(self.next_key);
        self.next_key += 1;
        self.unit.execute_tmf(Instant::ORIGIN, nexus, key, function);
        self.drain();
        self.managed(key)
    }

    /// Returns the outcome of a task management function that was answered meanwhile.
    pub(crate) fn managed(&mut self, key: TmfKey) -> Option<TmfOutcome> {
        let mine =
            |event: &UnitEvent| matches!(event, UnitEvent::TmfComplete { key: found, .. } if *found == key);
        let at = self.events.iter().position(mine)?;
        match self.events.remove(at)? {
            UnitEvent::TmfComplete { outcome, .. } => Some(outcome),
            _ => None,
        }
    }

    /// Reads blocks.
    #[track_caller]
    pub(crate) fn read(&mut self, lba: u64, blocks: u32) -> Vec<u8> {
        let len = usize::try_from(blocks * self.unit.block_size().bytes()).unwrap();
        self.run(A, &cdb_16(0x88, 0, lba, blocks), len, &[]).good()
    }

    /// Writes blocks.
    #[track_caller]
    pub(crate) fn write(&mut self, lba: u64, data: &[u8]) {
        let blocks = u32::try_from(data.len()).unwrap() / self.unit.block_size().bytes();
        self.run(A, &cdb_16(0x8a, 0, lba, blocks), 0, data).good();
    }

    /// Sets bits of the control mode page by MODE SELECT of A, of which B is notified. `byte` counts from the
    /// start of the page.
    #[track_caller]
    pub(crate) fn set_control_bits(&mut self, byte: usize, bits: u8) {
        const HEADER: usize = 4;
        let mut list = self.run(A, &[0x1a, 8, 0x0a, 0, 255, 0], 255, &[]).good();
        list[..HEADER].fill(0);
        list[HEADER] &= 0x3f;
        list[HEADER + byte] |= bits;
        self.run(A, &[0x15, 0x10, 0, 0, u8::try_from(list.len()).unwrap(), 0], 0, &list).good();
        self.run(B, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
    }

    /// Takes all events of the unit.
    pub(crate) fn drain(&mut self) {
        while let Some(event) = self.unit.poll() {
            self.events.push_back(event);
        }
    }

    /// Lets the unit collect completions.
    pub(crate) fn ready(&mut self) {
        self.unit.store_ready(Instant::ORIGIN);
        self.drain();
    }

    /// Removes and returns the first event of a task, if there is one.
    pub(crate) fn event_of(&mut self, key: TaskKey) -> Option<UnitEvent> {
        let at = self.events.iter().position(|event| concerns(event, key))?;
        self.events.remove(at)
    }
}

fn concerns(event: &UnitEvent, key: TaskKey) -> bool {
    match event {
        UnitEvent::FetchDataOut { key: found, .. }
        | UnitEvent::DataIn { key: found, .. }
        | UnitEvent::CommandComplete { key: found, .. }
        | UnitEvent::Aborted { key: found } => *found == key,
        _ => false,
    }
}

pub(crate) fn decode(sense: &[u8]) -> Option<(SenseKey, Asc)> {
    let code = |high: usize| Asc(u16::from_be_bytes([sense[high], sense[high + 1]]));
    match sense.first()? & 0x7f {
        0x70 | 0x71 => Some((SenseKey(sense[2] & 0xf), code(12))),
        _ => Some((SenseKey(sense[1] & 0xf), code(2))),
    }
}

/// Returns a 12-byte CDB in the form of READ(12) and WRITE(12).
pub(crate) fn cdb_12(opcode: u8, flags: u8, lba: u32, blocks: u32) -> [u8; 12] {
    let mut cdb = [0; 12];
    (cdb[0], cdb[1]) = (opcode, flags);
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[6..10].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// Returns a 32-byte CDB in the form of READ(32) and WRITE(32).
pub(crate) fn cdb_32(action: u16, flags: u8, lba: u64, blocks: u32) -> [u8; 32] {
    let mut cdb = [0; 32];
    (cdb[0], cdb[7], cdb[10]) = (0x7f, 0x18, flags);
    cdb[8..10].copy_from_slice(&action.to_be_bytes());
    cdb[12..20].copy_from_slice(&lba.to_be_bytes());
    cdb[28..32].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// A medium that completes operations only while its gate is open.
pub(crate) struct Slow {
    inner: Ram,
    gate: Gate,
}

/// Opens and closes a [`Slow`] medium.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    state: Rc<RefCell<GateState>>,
}

#[derive(Default)]
struct GateState {
    open: bool,
    held: VecDeque<Op>,
    /// The fault of flushes, if they fail.
    flush_fault: Option<Fault>,
    /// Whether a completed write returns no data.
    keeps_data: bool,
    failed: VecDeque<Completion>,
}

impl Slow {
    /// Creates a medium of `len` bytes, open at first.
    pub(crate) fn new(len: u64) -> (Self, Gate) {
        let gate = Gate::default();
        gate.open();
        (Self { inner: Ram::new(len), gate: gate.clone() }, gate)
    }
}

impl Gate {
    pub(crate) fn open(&self) {
        self.state.borrow_mut().open = true;
    }

    pub(crate) fn close(&self) {
        self.state.borrow_mut().open = false;
    }

    /// Makes flushes fail from now on, including those that wait; or stops that.
    pub(crate) fn lose_flushes(&self, loses: bool) {
        self.state.borrow_mut().flush_fault = loses.then_some(Fault::Medium);
    }

    /// Keeps flushes from being submitted to the medium from now on; or stops that.
    pub(crate) fn refuse_flushes(&self, refuses: bool) {
        self.state.borrow_mut().flush_fault = refuses.then_some(Fault::NotSubmitted);
    }

    /// Makes completed writes return no data from now on.
    pub(crate) fn keep_data(&self) {
        self.state.borrow_mut().keeps_data = true;
    }

    /// Makes an operation that waits fail, of several the one at this index.
    pub(crate) fn fail_held(&self, index: usize, fault: Fault) {
        let mut state = self.state.borrow_mut();
        let op = state.held.remove(index).expect("an operation that waits");
        state.failed.push_back(Completion { id: op.id, result: Err(fault.into()) });
    }

    /// Returns how many operations wait.
    pub(crate) fn held(&self) -> usize {
        self.state.borrow().held.len()
    }
}

impl Store for Slow {
    fn capabilities(&self) -> Capabilities {
        Capabilities { volatile_cache: true, ..self.inner.capabilities() }
    }

    fn submit(&mut self, op: Op) {
        self.gate.state.borrow_mut().held.push_back(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut state = self.gate.state.borrow_mut();
        while state.open
            && let Some(op) = state.held.pop_front()
        {
            if let Some(fault) = state.flush_fault.filter(|_| matches!(op.action, OpAction::Flush)) {
                state.failed.push_back(Completion { id: op.id, result: Err(fault.into()) });
            } else {
                self.inner.submit(op);
            }
        }
        let mut completion = state.failed.pop_front().or_else(|| self.inner.poll())?;
        if let (Ok(OpOutput::Done(data)), true) = (&mut completion.result, state.keeps_data) {
            *data = DataList::new();
        }
        Some(completion)
    }
}

/// Returns a 10-byte CDB in the form of READ(10) and WRITE(10).
pub(crate) fn cdb_10(opcode: u8, flags: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let (l, n) = (lba.to_be_bytes(), blocks.to_be_bytes());
    [opcode, flags, l[0], l[1], l[2], l[3], 0, n[0], n[1], 0]
}

/// Returns a 16-byte CDB in the form of READ(16) and WRITE(16).
pub(crate) fn cdb_16(opcode: u8, flags: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (opcode, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// Returns `len` bytes that differ from block to block.
pub(crate) fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at / 512 + at) % 251).unwrap() ^ salt).collect()
}
