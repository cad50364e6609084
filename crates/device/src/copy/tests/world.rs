//! The fixture of these tests: a [`World`] is a few units, and the nexuses that see some of them. Between the
//! units is `super::units`: here a router that a test can slow down, and in the test `in_process` of
//! `target`, which compiles this file too, a target.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use base::buffer::{Bytes, DataList, Pool};
use base::rng::Rng;
use base::time::{Duration, Instant};
use base::units::{BlockSize, Blocks, Lba};
use scsi::cdb::Cdb;
use scsi::copy::ListId;
use scsi::copy::cscd::{Cscd, CscdId};
use scsi::copy::list::{CopyList, Format, ListIdUsage};
use scsi::copy::rod::BlockRange;
use scsi::copy::segment::SegmentAction;
use scsi::status::TaskAttribute;
use security::Level;
use store::Store;
use store::api::{Capabilities, Completion, Fault, Op, OpAction};
use store::ram::Ram;

use super::units::Units;
use crate::contract::{Access, Command, NexusId, TaskKey, Tmf, TmfKey, TmfOutcome, UnitConfig, UnitEvent};
use crate::testing::{self, A, B, Reply, config};
use crate::unit::{LogicalUnit, Reset};

/// A medium that holds operations back and fails operations on request.
#[derive(Clone)]
pub(super) struct Gate(Rc<RefCell<GateState>>);

struct GateState {
    ram: Ram,
    shut: bool,
    waiting: Vec<Op>,
    failed: VecDeque<Completion>,
    /// Which operations fail: writes (true) or reads, and from which byte on.
    bad: Option<(bool, u64)>,
    writes: usize,
}

impl Gate {
    fn new(len: u64) -> Self {
        let ram = Ram::new(len);
        let state = GateState {
            ram,
            shut: false,
            waiting: Vec::new(),
            failed: VecDeque::new(),
            bad: None,
            writes: 0,
        };
        Self(Rc::new(RefCell::new(state)))
    }

    /// Makes the medium hold all operations back from now on, or execute them.
    pub(super) fn shut(&self, shut: bool) {
        self.0.borrow_mut().shut = shut;
    }

    /// Makes writes, or reads, from byte `at` on fail.
    pub(super) fn break_at(&self, writes: bool, at: u64) {
        self.0.borrow_mut().bad = Some((writes, at));
    }

    /// Returns how many writes the medium has received.
    pub(super) fn writes(&self) -> usize {
        self.0.borrow().writes
    }

    /// Returns how many operations are held back.
    pub(super) fn waiting(&self) -> usize {
        self.0.borrow().waiting.len()
    }

    /// Executes one held operation, chosen at random. Returns whether there was one.
    pub(super) fn release(&self, rng: &mut Rng) -> bool {
        let mut state = self.0.borrow_mut();
        if state.waiting.is_empty() {
            return false;
        }
        let at = usize::try_from(rng.below(state.waiting.len() as u64)).unwrap();
        let op = state.waiting.swap_remove(at);
        state.run(op);
        true
    }
}

impl GateState {
    fn run(&mut self, op: Op) {
        let (writes, at, len) = match &op.action {
            OpAction::Read { at, len } => (false, *at, *len as u64),
            OpAction::Write { at, data, .. } => (true, *at, data.len() as u64),
            _ => (true, 0, 0),
        };
        match self.bad {
            Some((bad_writes, bad)) if bad_writes == writes && at + len > bad => {
                let failure = store::api::Failure { fault: Fault::Medium, at: Some(bad.max(at)) };
                self.failed.push_back(Completion { id: op.id, result: Err(failure) });
            }
            _ => self.ram.submit(op),
        }
    }
}

impl Store for Gate {
    fn capabilities(&self) -> Capabilities {
        self.0.borrow().ram.capabilities()
    }

    fn submit(&mut self, op: Op) {
        let mut state = self.0.borrow_mut();
        state.writes += usize::from(matches!(op.action, OpAction::Write { .. }));
        if state.shut { state.waiting.push(op) } else { state.run(op) }
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut state = self.0.borrow_mut();
        state.failed.pop_front().or_else(|| state.ram.poll())
    }
}

/// A few units, and which nexus sees which.
pub(super) struct World {
    units: Units,
    pub(super) gates: Vec<Gate>,
    now: Instant,
    /// The protection of every command.
    level: Level,
    events: VecDeque<(usize, UnitEvent)>,
    next_key: u64,
}

/// The block size and the number of blocks of each unit.
pub(super) type Sizes<'a> = &'a [(BlockSize, u64)];

pub(super) const MIB_512: (BlockSize, u64) = (BlockSize::B512, 2048);

impl World {
    /// Creates units that nexuses [`A`] and [`B`] both see, and whose first unit attention both have
    /// received.
    pub(super) fn new(sizes: Sizes<'_>) -> Self {
        let (mut units, mut gates) = (Vec::new(), Vec::new());
        for (number, (block, blocks)) in sizes.iter().enumerate() {
            let gate = Gate::new(blocks << block.shift());
            let config = named(number, *block);
            let mut unit =
                LogicalUnit::new(config, Box::new(gate.clone()), None, Pool::new(1 << 20)).unwrap();
            unit.seed(&[u8::try_from(number).unwrap(); 32]);
            gates.push(gate);
            units.push(unit);
        }
        let all: Vec<usize> = (0..units.len()).collect();
        let (units, now) = (Units::new(units), Instant::ORIGIN);
        let (level, events) = (Level::None, VecDeque::new());
        let mut world = Self { units, gates, now, level, events, next_key: 1 };
        for id in [A, B] {
            world.units.establish(now, id);
            world.take_attentions(id, &all);
        }
        world
    }

    /// Changes what a nexus may do with a unit, and takes the unit attention that tells the nexus.
    pub(super) fn grant(&mut self, unit: usize, id: NexusId, access: Access) {
        self.units.grant(self.now, unit, id, access);
        self.take_attentions(id, &[unit]);
    }

    /// Changes which units a nexus sees, and takes the unit attentions that tell the nexus.
    pub(super) fn show(&mut self, id: NexusId, units: &[usize]) {
        self.units.show(self.now, id, units);
        self.take_attentions(id, units);
    }

    /// Gives all later commands this protection.
    pub(super) const fn protect(&mut self, level: Level) {
        self.level = level;
        self.units.expect_level(level);
    }

    fn take_attentions(&mut self, id: NexusId, units: &[usize]) {
        for unit in units {
            while self.run(*unit, id, &[0; 6], 0, &[]).sense.is_some() {}
        }
    }

    /// Ends the session of a nexus.
    pub(super) fn lose(&mut self, id: NexusId) {
        self.units.lose(self.now, id);
        self.pump();
    }

    /// Resets a unit.
    pub(super) fn reset(&mut self, unit: usize, why: Reset) {
        self.units.reset(self.now, unit, why);
        self.pump();
    }

    /// Drains a unit and ends that, or withholds its medium and gives it back, so that it may be another. The
    /// nexus takes the unit attentions that tell this.
    pub(super) fn change_medium(&mut self, unit: usize, id: NexusId, drains: bool) {
        for is_away in [true, false] {
            if drains {
                self.units.set_drained(self.now, unit, is_away);
            } else {
                self.units.withhold(self.now, unit, is_away);
            }
            self.pump();
        }
        self.take_attentions(id, &[unit]);
    }

    /// Changes the configuration of a unit.
    pub(super) fn reconfigure(&mut self, unit: usize, config: UnitConfig) {
        self.units.reconfigure(self.now, unit, config);
        self.pump();
    }

    /// Returns how many tasks a unit has.
    pub(super) fn tasks(&self, unit: usize) -> u64 {
        self.units.tasks(unit)
    }

    pub(super) fn after(&mut self, seconds: u64) {
        self.now = self.now.after(Duration::from_secs(seconds));
    }

    /// Starts a command.
    pub(super) fn start(&mut self, unit: usize, id: NexusId, cdb: &[u8], room: usize, out: usize) -> TaskKey {
        let key = TaskKey(self.next_key);
        self.next_key += 1;
        let command = Command {
            nexus: id,
            key,
            level: self.level,
            attribute: TaskAttribute::Simple,
            priority: 0,
            cdb: Cdb::from_bytes(cdb).unwrap(),
            data_in_len: u32::try_from(room).unwrap(),
            data_out_len: u32::try_from(out).unwrap(),
        };
        self.units.execute(self.now, unit, command);
        self.pump();
        key
    }

    /// Runs a command to its end.
    #[track_caller]
    pub(super) fn run(&mut self, unit: usize, id: NexusId, cdb: &[u8], room: usize, out: &[u8]) -> Reply {
        let key = self.start(unit, id, cdb, room, out.len());
        self.feed(unit, key, out);
        self.ended(unit, key).expect("the command has ended")
    }

    /// Starts a command and sends its parameter list.
    pub(super) fn start_with(&mut self, unit: usize, id: NexusId, cdb: &[u8], out: &[u8]) -> TaskKey {
        let key = self.start(unit, id, cdb, 0, out.len());
        self.feed(unit, key, out);
        key
    }

    /// Sends the data that a command fetches.
    pub(super) fn feed(&mut self, unit: usize, key: TaskKey, out: &[u8]) {
        let mine = |event: &(usize, UnitEvent)| matches!(event, (at, UnitEvent::FetchDataOut { key: found, .. }) if *at == unit && *found == key);
        while let Some(at) = self.events.iter().position(mine) {
            let Some((_, UnitEvent::FetchDataOut { offset, len, .. })) = self.events.remove(at) else {
                return;
            };
            let start = usize::try_from(offset).unwrap();
            let data = Bytes::copied_from(&out[start..start + usize::try_from(len).unwrap()]);
            self.units.data_out(self.now, unit, key, offset, DataList::from(data));
            self.pump();
        }
    }

    /// Returns the reply of a command, if it has ended.
    pub(super) fn ended(&mut self, unit: usize, key: TaskKey) -> Option<Reply> {
        let finish = |event: &(usize, UnitEvent)| matches!(event, (at, UnitEvent::CommandComplete { key: found, .. }) if *at == unit && *found == key);
        let at = self.events.iter().position(finish)?;
        let Some((_, UnitEvent::CommandComplete { status, sense, transferable, .. })) =
            self.events.remove(at)
        else {
            return None;
        };
        let mut data = Vec::new();
        self.events.retain(|event| match event {
            (at, UnitEvent::DataIn { key: found, data: list, .. }) if *at == unit && *found == key => {
                list.parts().iter().for_each(|part| data.extend_from_slice(part));
                false
            }
            _ => true,
        });
        let sense_bytes = sense.map_or_else(Vec::new, |sense| sense.bytes().to_vec());
        let sense = testing::decode(&sense_bytes);
        Some(Reply { status, sense, sense_bytes, data, transferable })
    }

    /// Returns whether a task was reported aborted.
    pub(super) fn aborted(&mut self, unit: usize, key: TaskKey) -> bool {
        self.events.iter().any(
            |event| matches!(event, (at, UnitEvent::Aborted { key: found }) if *at == unit && *found == key),
        )
    }

    /// Requests a task management function.
    pub(super) fn manage(&mut self, unit: usize, id: NexusId, function: Tmf) -> TmfKey {
        let key = TmfKey(self.next_key);
        self.next_key += 1;
        self.units.execute_tmf(self.now, unit, id, key, function);
        self.pump();
        key
    }

    /// Returns the outcome of a task management function, if it has one.
    pub(super) fn managed(&self, key: TmfKey) -> Option<TmfOutcome> {
        self.events.iter().find_map(|(_, event)| match event {
            UnitEvent::TmfComplete { key: found, outcome } if *found == key => Some(*outcome),
            _ => None,
        })
    }

    /// Processes every event that does not require a held call or operation.
    fn pump(&mut self) {
        while let Some(event) = self.units.poll(self.now) {
            self.events.push_back(event);
        }
    }

    /// Executes one held call or operation, chosen at random. Returns whether there was one.
    pub(super) fn chance(&mut self, rng: &mut Rng) -> bool {
        let (first, units) = (rng.below(3), self.gates.len() as u64);
        let start = rng.below(units);
        let released = (0..units).find(|at| {
            let unit = usize::try_from((start + at) % units).unwrap();
            first != 0 && self.gates[unit].release(rng)
        });
        if released.is_some() {
            self.units.store_ready(self.now);
            self.pump();
            return true;
        }
        let is_routed = self.units.route(self.now, rng);
        self.pump();
        is_routed || first == 0 && self.gates.iter().any(|gate| gate.waiting() > 0)
    }

    /// Shuts every gate and holds every call, so that only `chance` makes progress; or opens them again.
    pub(super) fn slow(&mut self, slow: bool) {
        self.units.hold_calls(slow);
        self.gates.iter().for_each(|gate| gate.shut(slow));
    }

    /// Executes held calls and operations in any order until a command has ended.
    #[track_caller]
    pub(super) fn finish(&mut self, rng: &mut Rng, unit: usize, key: TaskKey) -> Reply {
        loop {
            if let Some(reply) = self.ended(unit, key) {
                return reply;
            }
            assert!(self.chance(rng), "nothing can happen and the command has not ended");
        }
    }

    /// Executes all held calls and operations.
    pub(super) fn settle(&mut self, rng: &mut Rng) {
        while self.chance(rng) {}
    }

    /// Writes blocks with a command.
    #[track_caller]
    pub(super) fn put(&mut self, unit: usize, lba: u64, data: &[u8]) {
        let blocks = u32::try_from(data.len() >> self.units.block_size(unit).shift()).unwrap();
        self.run(unit, A, &testing::cdb_16(scsi::opcode::WRITE_16, 0, lba, blocks), 0, data).good();
    }

    /// Reads blocks with a command.
    #[track_caller]
    pub(super) fn get(&mut self, unit: usize, lba: u64, blocks: u32) -> Vec<u8> {
        let len = usize::try_from(blocks << self.units.block_size(unit).shift()).unwrap();
        self.run(unit, A, &testing::cdb_16(scsi::opcode::READ_16, 0, lba, blocks), len, &[]).good()
    }

    /// Fills a unit with data in which no two blocks are equal, and returns the data.
    pub(super) fn fill(&mut self, rng: &mut Rng, unit: usize) -> Vec<u8> {
        let len =
            usize::try_from(self.units.capacity(unit).0 << self.units.block_size(unit).shift()).unwrap();
        let data = noise(rng, len);
        for (at, part) in data.chunks(1 << 20).enumerate() {
            let lba = (at << 20 >> self.units.block_size(unit).shift()) as u64;
            self.put(unit, lba, part);
        }
        data
    }

    /// Returns all data of a unit.
    pub(super) fn dump(&mut self, unit: usize) -> Vec<u8> {
        let (blocks, shift) = (self.units.capacity(unit).0, self.units.block_size(unit).shift());
        let step = 1 << 20 >> shift;
        (0..blocks).step_by(step).fold(Vec::new(), |mut all, lba| {
            let count = (blocks - lba).min(step as u64);
            all.extend(self.get(unit, lba, u32::try_from(count).unwrap()));
            all
        })
    }

    /// Runs an EXTENDED COPY on `unit`.
    #[track_caller]
    pub(super) fn copy(&mut self, unit: usize, id: NexusId, list: &CopyList) -> Reply {
        let bytes = list.to_bytes();
        self.run(unit, id, &copy_cdb(list, bytes.len()), 0, &bytes)
    }

    /// Starts an EXTENDED COPY on `unit`.
    pub(super) fn start_copy(&mut self, unit: usize, id: NexusId, list: &CopyList) -> TaskKey {
        let bytes = list.to_bytes();
        self.start_with(unit, id, &copy_cdb(list, bytes.len()), &bytes)
    }

    /// Runs a THIRD-PARTY COPY IN command with a one-byte list identifier.
    #[track_caller]
    pub(super) fn ask_lid1(&mut self, unit: usize, id: NexusId, action: u16, list_id: u8) -> Reply {
        let mut cdb = in_cdb(action, 4096);
        cdb[2] = list_id;
        self.run(unit, id, &cdb, 4096, &[])
    }

    /// Runs a THIRD-PARTY COPY IN command with a four-byte list identifier.
    #[track_caller]
    pub(super) fn ask_lid4(&mut self, unit: usize, id: NexusId, action: u16, list_id: u32) -> Reply {
        let mut cdb = in_cdb(action, 4096);
        cdb[2..6].copy_from_slice(&list_id.to_be_bytes());
        self.run(unit, id, &cdb, 4096, &[])
    }
}

/// Returns a configuration with names that no other unit has.
pub(super) fn named(number: usize, block_size: BlockSize) -> UnitConfig {
    let mut config = UnitConfig { block_size, ..config() };
    config.identity.serial = format!("SERIAL{number}");
    config.identity.naa[15] = u8::try_from(number).unwrap();
    config
}

/// Returns bytes in which no two blocks are equal; cheap enough to generate megabytes.
pub(super) fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut base = vec![0; 512];
    rng.fill(&mut base);
    let mut bytes = base.repeat(len / 512);
    for block in bytes.chunks_mut(512) {
        block[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes
}

/// Returns the CSCD descriptor of a unit.
pub(super) fn cscd(number: usize, block: BlockSize) -> Cscd {
    Cscd {
        device_type: 0,
        code_set: 1,
        kind: 3,
        association: 0,
        designator: named(number, block).identity.naa,
        pad: false,
        block_len: block.bytes(),
        null: false,
    }
}

/// Returns a block segment.
pub(super) fn blocks(from: u16, to: u16, count: u16, source: u64, destination: u64) -> SegmentAction {
    SegmentAction::Blocks {
        counts_destination: false,
        keep_residual: false,
        source: CscdId(from),
        destination: CscdId(to),
        count,
        source_lba: Lba(source),
        destination_lba: Lba(destination),
    }
}

/// Returns a parameter list with these units and segments.
pub(super) fn list(format: Format, units: &[Cscd], segments: &[SegmentAction]) -> CopyList {
    let mut list = CopyList::new(format, ListId(1));
    list.usage = ListIdUsage::Hold;
    list.cscds = units.to_vec();
    segments.iter().for_each(|segment| list.push(*segment));
    list
}

pub(super) const LID4: Format = Format::Lid4 { immediate: false, sense_on_good: false };
pub(super) const LID4_IMMEDIATE: Format = Format::Lid4 { immediate: true, sense_on_good: false };

/// Returns a THIRD-PARTY COPY OUT CDB.
pub(super) fn out_cdb(action: u16, len: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x83, u8::try_from(action).unwrap());
    cdb[10..14].copy_from_slice(&u32::try_from(len).unwrap().to_be_bytes());
    cdb
}

/// Returns a THIRD-PARTY COPY IN CDB.
pub(super) fn in_cdb(action: u16, allocation: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x84, u8::try_from(action).unwrap());
    cdb[10..14].copy_from_slice(&allocation.to_be_bytes());
    cdb
}

fn copy_cdb(list: &CopyList, len: usize) -> [u8; 16] {
    out_cdb(u16::from(list.format != Format::Lid1), len)
}

pub(super) fn range(lba: u64, blocks: u64) -> BlockRange {
    BlockRange { lba: Lba(lba), blocks: Blocks(blocks) }
}
