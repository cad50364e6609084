//! A logical unit among initiators that send anything: what must hold whatever they send.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use base::buffer::{Buf, DataList, Pool};
use base::bytes::Reader;
use base::rng::Rng;
use base::time::{Duration, Instant};
use base::units::{BlockSize, Blocks, Lba};
use cartridge::blocking::Files as _;
use cartridge::io::FileId;
use cartridge::label::{Blank, Label};
use cartridge::profile::Profile;
use cartridge::testing::MemoryFiles;
use device::rate_limit::RateLimit;
use device::contract::{
    Access, Command, DataOutFault, DeviceKind, Identity, InquiryOverrides, Nexus, NexusId, RelativePort, TargetPort,
    TaskKey, ThirdPartyCaller, ThirdPartyRequest, Tmf, TmfKey, UnitConfig, UnitEvent,
};
use device::library::LibraryInput;
use device::unit::{LogicalUnit, Reset};
use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::status::TaskAttribute;
use scsi::transport_id::TransportId;
use store::Store;
use store::api::{Capabilities, Completion, Fault, Op, OpAction};
use store::fault_inject::{FaultInjector, OpKind, Rule};
use store::null::Null;
use store::powercut::Power;
use store::ram::Ram;

use crate::{discs, libraries};

/// The medium is small, so that ranges meet.
const MEDIUM_LEN: u64 = 4 << 20;

/// The capacity of a cartridge: it bounds what commands can write, and is soon full.
const CASSETTE_LEN: u64 = 24 << 20;

/// How much an initiator sends or receives at most in one command: more than one part, less than the fuzzer's
/// patience.
const TRANSFER_MAX: u32 = 3 << 20;

const HOST: &str = "iqn.2026-11.com.example:host";

/// How much waits for a copy manager at most: it may ask for as much as it likes, and gets it in turn.
const CALLS_MAX: usize = 10_000;

/// Runs one input: its first byte says which unit, the rest are operations.
pub fn torment(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let mut ordeal = Ordeal::new(*first);
    for (which, bytes) in crate::Operations::of(rest) {
        ordeal.suffer(which, bytes);
    }
    ordeal.end();
}

/// Runs one input of commands with parameter lists: an operation whose three highest bits are set is what
/// happens between commands.
pub fn torment_with_lists(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let mut ordeal = Ordeal::new(*first);
    for (which, bytes) in crate::Operations::of(rest) {
        if which >= 0xe0 {
            ordeal.suffer(4 | which & 3, bytes);
        } else if let Some(command) = crate::lists::command(which, bytes) {
            ordeal.suffer(0, &command);
        }
    }
    ordeal.end();
}

/// Makes an input of commands that are nearly right, so that a corpus starts beyond the first checks.
pub fn nearly_right(seed: u64) -> Vec<u8> {
    let mut rng = Rng::from_seed(seed);
    let mut input = vec![byte(&mut rng)];
    for _ in 0..rng.below(40) {
        let mut bytes = vec![0; 1 + 3 + 3 + 1];
        rng.fill(&mut bytes[..1]);
        let cdb = nearly_right_cdb(&mut rng);
        let list_len = [0, 4, 8, 16, 24, 24, 60, 200][usize::try_from(rng.below(8)).unwrap()];
        let lens = [0, 24, 255, 512, 1024, 4096, 65536, list_len];
        let mut len = || u32::try_from(lens[usize::try_from(rng.below(8)).unwrap()]).unwrap().to_be_bytes();
        let (receive, send) = (len(), len());
        if rng.chance(1, 2) {
            bytes[1..4].copy_from_slice(&receive[1..]);
        } else {
            bytes[4..7].copy_from_slice(&send[1..]);
        }
        bytes[7] = u8::try_from(cdb.len()).unwrap();
        bytes.extend(cdb);
        let mut list = vec![0; list_len];
        rng.fill(&mut list);
        list.iter_mut().for_each(|at| *at *= u8::from(rng.chance(1, 3)));
        bytes.extend(list);
        let which = if rng.chance(4, 5) { 0 } else { byte(&mut rng) };
        input.push(which);
        input.extend(u16::try_from(bytes.len()).unwrap().to_be_bytes());
        input.extend(bytes);
    }
    input
}

fn byte(rng: &mut Rng) -> u8 {
    rng.next_u64().to_le_bytes()[0]
}

fn nearly_right_cdb(rng: &mut Rng) -> Vec<u8> {
    const CODES: &[u8] = &[
        0x00, 0x03, 0x04, 0x08, 0x0a, 0x12, 0x15, 0x16, 0x17, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x25, 0x28, 0x2a,
        0x2e, 0x2f, 0x34, 0x35, 0x37, 0x3b, 0x3c, 0x41, 0x42, 0x48, 0x4c, 0x4d, 0x55, 0x56, 0x57, 0x5a, 0x5e,
        0x5f, 0x7f, 0x83, 0x84, 0x88, 0x89, 0x8a, 0x8b, 0x8e, 0x8f, 0x90, 0x91, 0x93, 0x9b, 0x9c, 0x9e, 0xa0,
        0xa3, 0xa4, 0xa8, 0xaa, 0xae, 0xaf, 0xb7, 0x43, 0x46, 0x4a, 0x51, 0x52, 0x5c, 0xac, 0xad, 0xb6, 0xb9,
        0xbb, 0xbd, 0xbe, 0x01, 0x05, 0x10, 0x11, 0x13, 0x19, 0x2b, 0x44, 0x80, 0x8c, 0x8d, 0x92, 0x07, 0x0b,
        0x82, 0xa2, 0xa5, 0xa6, 0xb5, 0xb8,
    ];
    let code = CODES[usize::try_from(rng.below(CODES.len() as u64)).unwrap()];
    let len = match code >> 5 {
        0 => 6,
        1 | 2 => 10,
        3 => 32,
        4 => 16,
        _ => 12,
    };
    let mut cdb = vec![0; len];
    cdb[0] = code;
    if len == 32 {
        (cdb[7], cdb[9]) = (0x18, 0x09 + u8::try_from(rng.below(10)).unwrap());
    } else {
        cdb[1] = byte(rng) & [0, 0x1f, 0x18, 0x0a][usize::try_from(rng.below(4)).unwrap()];
    }
    for _ in 0..rng.below(4) {
        let at = 2 + usize::try_from(rng.below(len as u64 - 3)).unwrap();
        if len != 32 || at > 9 {
            cdb[at] = byte(rng) & [0xff, 0x0f, 0x01][usize::try_from(rng.below(3)).unwrap()];
        }
    }
    cdb
}

struct Ordeal {
    unit: LogicalUnit,
    gate: Rc<Cell<bool>>,
    now: Instant,
    tasks: BTreeMap<TaskKey, Task>,
    key_next: u64,
    manage_open: BTreeMap<u64, ()>,
    calls: usize,
}

/// A command that has not ended.
struct Task {
    nexus: NexusId,
    receive: u32,
    received: u32,
    send: u32,
    data: Vec<u8>,
    /// Fetches that are answered later, as the operations say.
    open: VecDeque<(u32, u32)>,
    /// Whether its data comes at once.
    prompt: bool,
}

impl Ordeal {
    fn new(choice: u8) -> Self {
        let gate = Rc::new(Cell::new(true));
        let is_changer = choice & 0xf0 == 0xb0;
        let is_disc = choice & 0xc0 == 0x80 && !is_changer;
        let is_tape = choice & 0xc0 == 0xc0;
        let config = UnitConfig {
            device: match choice & 0xc0 {
                _ if is_changer => DeviceKind::Changer,
                0x80 => DeviceKind::Disc { profile: None },
                0xc0 => DeviceKind::Tape,
                _ => DeviceKind::Disk,
            },
            identity: Identity {
                vendor: *b"VENDOR  ",
                product: *b"PRODUCT         ",
                revision: *b"0001",
                serial: "SERIAL".into(),
                naa: vec![0x60, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
            },
            block_size: match choice & 1 {
                _ if is_disc => BlockSize::B2048,
                0 => BlockSize::B512,
                _ => BlockSize::B4096,
            },
            physical_exponent: 3,
            read_only: choice & 0x0c == 0x0c,
            removable: is_disc || is_tape || is_changer || choice & 2 != 0,
            long_cdbs: choice & 0x40 == 0,
            atomic_blocks: 1 << (choice & 3),
            thin: choice & 4 == 0,
            limit: RateLimit::NONE,
            write_cache: choice & 8 == 0,
            overrides: InquiryOverrides::default(),
            tasks: device::contract::TaskRules::default(),
            task_set_max: 32,
            io_timeout: None,
            transfer_blocks_max: 8192,
            ports: [TargetPort {
                relative: RelativePort(1),
                group: 1,
                port_name: "iqn.2026-11.com.example:disk,t,0x0001".into(),
                device_name: "iqn.2026-11.com.example:disk".into(),
                protocol: 5,
            }]
            .into(),
        };
        let medium: Box<dyn Store> = match choice >> 4 & 3 {
            kind if is_tape => Box::new(Cassette::new(kind)),
            _ if is_changer => Box::new(Null::new(0)),
            0 => Box::new(Ram::new(MEDIUM_LEN)),
            1 => Box::new(Power::new(MEDIUM_LEN).store()),
            2 => Box::new(flaky()),
            _ => Box::new(Ram::new(MEDIUM_LEN + 512)),
        };
        // The other discs are read-only ones.
        let medium: Box<dyn Store> = match is_disc && choice & 1 == 1 {
            true => Box::new(discs::Image::new(medium, choice >> 1, MEDIUM_LEN)),
            false => medium,
        };
        let medium = Box::new(Gated { inner: medium, open: Rc::clone(&gate), held: RefCell::default() });
        let mut unit = LogicalUnit::new(config, medium, None, Pool::new(1 << 20)).unwrap();
        unit.seed(&[9; 32]);
        if is_changer {
            unit.library_input(Instant::ORIGIN, libraries::install());
        }
        let mut ordeal = Self {
            unit,
            gate,
            now: Instant::ORIGIN,
            tasks: BTreeMap::new(),
            key_next: 1,
            manage_open: BTreeMap::new(),
            calls: 0,
        };
        for id in 1..=3 {
            ordeal.establish(NexusId(id));
        }
        ordeal
    }

    fn establish(&mut self, id: NexusId) {
        let [.., last] = id.0.to_be_bytes();
        let port = TransportId::iscsi_port(HOST, [0x80, 0, 0, 0, 0, last]).expect("a name");
        let nexus = Nexus {
            id,
            initiator_port: Rc::from(port.encode()),
            initiator_name: Rc::from(HOST),
            target_port: RelativePort(1),
            access: if id == NexusId(3) { Access::ReadOnly } else { Access::ReadWrite },
            rfc_7144_functions: true,
            luns: Rc::from([Lun(0)].as_slice()),
            limiter: None,
        };
        self.unit.nexus_established(self.now, nexus);
    }

    /// One operation.
    fn suffer(&mut self, which: u8, bytes: &[u8]) {
        let first = bytes.first().copied().unwrap_or(0);
        let nexus = NexusId(1 + u32::from(first % 3));
        match which & 7 {
            0..=3 => {
                // A malformed description is no command: a transport between the two would have refused it.
                let _ = self.command(which & 3 != 3, bytes);
            }
            4 => self.manage(nexus, first),
            5 => self.lose(nexus, first),
            6 => self.pass(first),
            _ => self.ask_as_peer(nexus, bytes),
        }
        self.drain();
    }

    fn command(&mut self, prompt: bool, bytes: &[u8]) -> Option<()> {
        let mut reader = Reader::new(bytes);
        let first = reader.u8().ok()?;
        let (receive, send) = (reader.u24().ok()?.min(TRANSFER_MAX), reader.u24().ok()?.min(TRANSFER_MAX));
        let cdb_len = usize::from(reader.u8().ok()?).min(reader.remaining());
        let cdb = Cdb::from_bytes(reader.take(cdb_len).ok()?)?;
        let attribute = match first >> 4 & 3 {
            0 | 1 => TaskAttribute::Simple,
            2 => TaskAttribute::Ordered,
            _ if first & 0x40 == 0 => TaskAttribute::HeadOfQueue,
            _ => TaskAttribute::Aca,
        };
        let key = TaskKey(self.key_next);
        self.key_next += 1;
        let nexus = NexusId(1 + u32::from(first % 3));
        let data = reader.rest().to_vec();
        let task = Task { nexus, receive, received: 0, send, data, open: VecDeque::new(), prompt };
        self.tasks.insert(key, task);
        let command =
            Command { nexus, key, level: security::Level::None, attribute, priority: 0, cdb, data_in_len: receive, data_out_len: send };
        self.unit.execute(self.now, command);
        Some(())
    }

    fn manage(&mut self, nexus: NexusId, first: u8) {
        let some_task = self.tasks.keys().nth(usize::from(first) % (self.tasks.len() + 1)).copied();
        let key = some_task.unwrap_or(TaskKey(999_999));
        let function = match first >> 3 & 15 {
            0 => Tmf::AbortTask(key),
            1 => Tmf::AbortTaskSet,
            2 => Tmf::ClearTaskSet,
            3 => Tmf::LogicalUnitReset,
            4 => Tmf::NexusReset,
            5 => Tmf::QueryTask(key),
            6 => Tmf::QueryTaskSet,
            7 => Tmf::QueryAsynchronousEvent,
            8 => Tmf::ClearAca,
            9 => {
                self.unit.reset(self.now, Reset::Target);
                return;
            }
            _ => {
                self.unit.task_gone(self.now, key);
                self.tasks.remove(&key);
                return;
            }
        };
        let number = self.key_next;
        self.key_next += 1;
        self.manage_open.insert(number, ());
        self.unit.execute_tmf(self.now, nexus, TmfKey(number), function);
    }

    fn lose(&mut self, nexus: NexusId, first: u8) {
        if first & 0xc0 == 0xc0 && matches!(self.unit.config().device, DeviceKind::Disc { .. }) {
            return self.unit.medium_replaced(self.now);
        }
        if first & 0xc0 == 0xc0 && self.unit.config().device == DeviceKind::Tape {
            return self.unit.library_input(self.now, LibraryInput::Eject);
        }
        if first & 0xc0 == 0xc0 && self.unit.config().device == DeviceKind::Changer {
            return self.unit.library_input(self.now, libraries::operator(first));
        }
        if first & 0x80 != 0 {
            return self.unit.capacity_changed(self.now);
        }
        self.unit.nexus_lost(self.now, nexus);
        self.tasks.retain(|_, task| task.nexus != nexus);
        self.establish(nexus);
    }

    /// Time passes, the medium answers or stops to, data comes or does not.
    fn pass(&mut self, first: u8) {
        self.now = self.now.after(Duration::from_millis(u64::from(first)));
        self.gate.set(first & 1 == 0);
        self.unit.store_ready(self.now);
        if self.unit.poll_timeout().is_some_and(|due| due <= self.now) {
            self.unit.handle_timeout(self.now);
        }
        let fault = (first & 0x70 == 0x70).then_some(DataOutFault::Digest);
        if first & 2 != 0 {
            self.send_open(fault);
        }
    }

    fn send_open(&mut self, fault: Option<DataOutFault>) {
        let open: Vec<_> =
            self.tasks.iter_mut().filter_map(|(key, task)| Some((*key, task.open.pop_front()?))).collect();
        for (key, (offset, len)) in open {
            self.send(key, offset, len, fault);
        }
    }

    fn send(&mut self, key: TaskKey, offset: u32, len: u32, fault: Option<DataOutFault>) {
        let Some(task) = self.tasks.get(&key) else { return };
        let data = match fault {
            Some(fault) => Err(fault),
            None => Ok(part(&task.data, offset, len)),
        };
        self.unit.data_out(self.now, key, offset, data);
    }

    fn ask_as_peer(&mut self, nexus: NexusId, bytes: &[u8]) {
        let mut reader = Reader::new(bytes.get(1..).unwrap_or_default());
        let lba = Lba(reader.u16().map_or(0, u64::from));
        let blocks = Blocks(reader.u16().map_or(1, u64::from));
        let request = match bytes.first().copied().unwrap_or(0) >> 4 & 3 {
            0 => ThirdPartyRequest::Read { lba, blocks },
            1 => ThirdPartyRequest::Zero { lba, blocks },
            2 => ThirdPartyRequest::Describe,
            _ => {
                let block = self.unit.block_size().bytes();
                ThirdPartyRequest::Write { lba, data: part(bytes, 0, block * (blocks.0 as u32 % 8)) }
            }
        };
        let caller = ThirdPartyCaller { unit: 1, call: u32::MAX };
        self.unit.execute_third_party(self.now, caller, nexus, request);
    }

    /// Takes what the unit says, and checks that it may.
    fn drain(&mut self) {
        while let Some(event) = self.unit.poll() {
            match event {
                UnitEvent::FetchDataOut { key, offset, len } => self.fetch(key, offset, len),
                UnitEvent::DataIn { key, offset, data } => self.deliver(key, offset, &data),
                UnitEvent::CommandComplete { key, sense, .. } => {
                    assert!(self.tasks.remove(&key).is_some(), "{key:?} ended twice");
                    assert!(sense.is_none_or(|sense| sense.bytes().len() >= 8));
                }
                UnitEvent::Aborted { key } => {
                    assert!(self.tasks.remove(&key).is_some(), "{key:?} ended twice");
                }
                UnitEvent::TmfComplete { key, .. } => {
                    assert!(self.manage_open.remove(&key.0).is_some(), "{key:?} answered twice");
                }
                UnitEvent::SaveState { ticket, state } => self.save(ticket, &state),
                UnitEvent::Library(event) => {
                    let answer = libraries::answer(&event, self.key_next % 5 == 0);
                    answer.into_iter().for_each(|answer| self.unit.library_input(self.now, answer));
                }
                UnitEvent::ThirdPartyCall(call) => {
                    // Every unit it may name is this one.
                    self.calls += 1;
                    assert!(self.calls < CALLS_MAX, "a copy that never ends");
                    let caller = ThirdPartyCaller { unit: 0, call: call.call };
                    self.unit.execute_third_party(self.now, caller, call.nexus, call.request);
                }
                UnitEvent::ThirdPartyReply { caller, result } if caller.unit == 0 => {
                    self.unit.third_party_reply(self.now, caller.call, result);
                }
                UnitEvent::ThirdPartyReply { .. } => {}
            }
        }
    }

    fn fetch(&mut self, key: TaskKey, offset: u32, len: u32) {
        let task = self.tasks.get_mut(&key).expect("fetches for a task that is");
        assert!(
            len > 0 && offset.checked_add(len).is_some_and(|end| end <= task.send),
            "beyond what is sent"
        );
        if task.prompt {
            self.send(key, offset, len, None);
        } else {
            task.open.push_back((offset, len));
        }
    }

    fn deliver(&mut self, key: TaskKey, offset: u32, data: &DataList) {
        let task = self.tasks.get_mut(&key).expect("delivers for a task that is");
        assert_eq!(offset, task.received, "in order, without gaps");
        task.received += u32::try_from(data.len()).expect("no more than there is room for");
        assert!(task.received <= task.receive && !data.is_empty(), "beyond what is received");
    }

    fn save(&mut self, ticket: u64, state: &[u8]) {
        // What is saved can be read again.
        let config = self.unit.config().clone();
        let again = LogicalUnit::new(config, Box::new(Ram::new(1 << 16)), Some(state), Pool::new(0));
        assert!(again.is_ok(), "{:?}", again.err());
        self.unit.state_saved(self.now, ticket, !ticket.is_multiple_of(5));
    }

    /// Everything comes to an end when data comes, the medium answers and time passes.
    fn end(&mut self) {
        self.gate.set(true);
        for _ in 0..100_000 {
            self.unit.store_ready(self.now);
            self.drain();
            self.send_open(None);
            self.drain();
            if let Some(due) = self.unit.poll_timeout() {
                self.now = self.now.max(due);
                self.unit.handle_timeout(self.now);
            } else if self.tasks.is_empty() {
                break;
            }
        }
        assert!(self.tasks.is_empty(), "{:?} never ended", self.tasks.keys());
        assert!(self.manage_open.is_empty(), "{:?} never answered", self.manage_open.keys());
        let left = self.unit.stats().tasks;
        assert_eq!(left, 0, "tasks that nobody knows");
    }
}

/// Bytes `offset..offset + len` of `data` repeated for ever.
fn part(data: &[u8], offset: u32, len: u32) -> DataList {
    let len = len as usize;
    let mut buf = Buf::with_capacity(len);
    if data.is_empty() {
        buf.append_zeros(len);
    } else {
        let start = offset as usize % data.len();
        while buf.len() < len {
            let from = (start + buf.len()) % data.len();
            let want = len - buf.len();
            let piece = &data[from..];
            buf.append(&piece[..piece.len().min(want)]);
        }
    }
    buf.freeze().into()
}

/// The files of a cartridge as the store of a tape drive.
struct Cassette {
    files: MemoryFiles,
    done: VecDeque<Completion>,
    /// Whether every eighth write fails.
    is_flaky: bool,
    writes: u32,
}

impl Cassette {
    /// Makes a blank cartridge: a usual one, one with two partitions, a WORM one, or one whose files fail.
    fn new(kind: u8) -> Self {
        let label = Label::blank(&Blank {
            profile: Profile::Lto8,
            is_worm: kind == 2,
            barcode: "F00001L8".into(),
            capacity: CASSETTE_LEN,
            partitions: if kind == 1 { vec![CASSETTE_LEN / 2; 2] } else { Vec::new() },
            segment_len: 2 << 20,
            date: *b"20261125",
            entropy: [5; 48],
        });
        let files = MemoryFiles::new(&label.expect("a possible cartridge"));
        Self { files, done: VecDeque::new(), is_flaky: kind == 3, writes: 0 }
    }
}

impl Store for Cassette {
    fn capabilities(&self) -> Capabilities {
        Capabilities { volatile_cache: true, ..Null::new(u64::MAX).capabilities() }
    }

    fn submit(&mut self, op: Op) {
        let Op { id, mut action } = op;
        let mut file = FileId::Label;
        if let OpAction::Read { at, .. } | OpAction::Write { at, .. } | OpAction::Deallocate { at, .. } = &mut action {
            (file, *at) = FileId::of_address(*at);
        }
        self.writes += u32::from(matches!(action, OpAction::Write { .. }));
        let fails = self.is_flaky && matches!(action, OpAction::Write { .. }) && self.writes.is_multiple_of(8);
        let result = if fails { Err(Fault::NoSpace.into()) } else { self.files.perform(file, action) };
        self.done.push_back(Completion { id, result });
    }

    fn poll(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
}

/// A medium with bad places.
fn flaky() -> FaultInjector<Ram> {
    let (medium, faults) = FaultInjector::new(Ram::new(MEDIUM_LEN), 1);
    for (kind, at, fault) in [
        (OpKind::Read, 64 << 10, Fault::Medium),
        (OpKind::Write, 128 << 10, Fault::NoSpace),
        (OpKind::WriteZeroes, 192 << 10, Fault::Unsupported),
        (OpKind::Deallocate, 256 << 10, Fault::Gone),
        (OpKind::MapStatus, 320 << 10, Fault::Bug),
        (OpKind::Flush, 0, Fault::Medium),
    ] {
        faults.add(Rule { chance: (1, 2), ..Rule::always(kind, at, 4096, fault) });
    }
    medium
}

/// A medium that answers while its gate is open.
struct Gated {
    inner: Box<dyn Store>,
    open: Rc<Cell<bool>>,
    held: RefCell<VecDeque<Op>>,
}

impl Store for Gated {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn trailer(&self) -> Option<Vec<u8>> {
        self.inner.trailer()
    }

    fn submit(&mut self, op: Op) {
        self.held.borrow_mut().push_back(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        if self.open.get() {
            self.held.get_mut().drain(..).for_each(|op| self.inner.submit(op));
        }
        self.inner.poll()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The committed seeds are the first inputs of the generators; this test writes them when they are
    /// missing.
    #[test]
    fn the_committed_seeds_are_what_the_generators_make() {
        fn check(target: &str, name: &str, make: fn(u64) -> Vec<u8>) {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
            std::fs::create_dir_all(&folder).unwrap();
            for seed in 0..32 {
                let path = folder.join(format!("{name}_{seed}"));
                if !path.exists() {
                    std::fs::write(&path, make(seed)).unwrap();
                }
                assert_eq!(std::fs::read(&path).unwrap(), make(seed), "{target}, seed {seed}");
            }
        }
        check("cdb", "burns", discs::burns);
        check("cdb", "motions", libraries::motions);
        check("cdb", "nearly_right", nearly_right);
        check("lists", "meaningful", crate::lists::meaningful);
        check("sequences", "sensible", crate::whole::sensible);
    }

    #[test]
    fn nothing_that_means_something_breaks_a_unit() {
        for seed in 0..20_000 {
            let input = crate::lists::meaningful(seed);
            if std::panic::catch_unwind(|| torment_with_lists(&input)).is_err() {
                panic!("seed {seed}");
            }
        }
    }

    #[test]
    fn no_motion_breaks_a_changer() {
        for seed in 0..10_000 {
            let input = libraries::motions(seed);
            if std::panic::catch_unwind(|| torment(&input)).is_err() {
                panic!("seed {seed}");
            }
        }
    }

    #[test]
    fn no_burn_breaks_a_drive() {
        for seed in 0..10_000 {
            let input = discs::burns(seed);
            if std::panic::catch_unwind(|| torment(&input)).is_err() {
                panic!("seed {seed}");
            }
        }
    }

    #[test]
    fn nothing_that_is_nearly_right_breaks_a_unit() {
        for seed in 0..20_000 {
            let input = nearly_right(seed);
            if std::panic::catch_unwind(|| torment(&input)).is_err() {
                panic!("seed {seed}");
            }
        }
    }
}
