//! A target with units in memory, two in-process transports, and initiators that the test plays.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::buffer::Pool;
use base::time::{Duration, Instant};
use base::units::BlockSize;
use device::contract::{
    Access, Identity, InquiryOverrides, NexusId, RelativePort, TargetPort, TaskRules, UnitConfig,
};
use device::rate_limit::RateLimit;
use device::unit::LogicalUnit;
use scsi::transport_id::TransportId as InitiatorPort;
use security::Level;
use store::Store;
use target::nexus::{MapEntry, NexusInfo, TargetNumber};
use target::route::SessionEvent;
use target::target::{SaveRequest, Target};
use target::transport_id::{TransportId, nexus_of};
use target::transports::Transports;
use target::units::{DiskId, UnitId};
use transport::command::TaskAttribute;
use transport::target::{SessionId, TargetTransport};
use transport::task_management::{TmfFunction, TmfResult};

use crate::medium::Held;
use crate::transport::{InProcess, InProcessTransport, Request, Response, SessionEnd, TaskEnd, Ticket};

/// The two transports of each world.
pub(crate) const FIRST: TransportId = TransportId::new(0);
pub(crate) const SECOND: TransportId = TransportId::new(5);

pub(crate) const BLOCK: usize = 512;
const MEDIUM_LEN: u64 = 8 << 20;

/// A target, its transports and their initiators.
pub(crate) struct World {
    pub(crate) target: Target,
    pub(crate) transports: Table,
    pub(crate) media: Vec<Held>,
    now: Instant,
    pool: Pool,
    rules: TaskRules,
    /// The LUN map of each initiator.
    maps: BTreeMap<String, Vec<MapEntry>>,
    /// The protection of the sessions of each initiator; absent for none.
    levels: BTreeMap<String, Level>,
    /// The users of initiators that authenticate.
    pub(crate) users: BTreeMap<String, String>,
    /// The sessions that ended, and the reasons.
    pub(crate) ended: Vec<(Initiator, SessionEnd)>,
    /// The state on stable storage, by unit.
    pub(crate) stored: BTreeMap<u32, Vec<u8>>,
    /// Whether states to save wait in `saves`.
    pub(crate) holds_saves: bool,
    pub(crate) saves: Vec<SaveRequest>,
}

/// An initiator that has logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Initiator {
    pub(crate) transport: TransportId,
    pub(crate) session: SessionId,
}

/// The transports, by number.
#[derive(Default)]
pub(crate) struct Table {
    first: InProcessTransport,
    second: InProcessTransport,
}

impl Table {
    pub(crate) fn of(&mut self, id: TransportId) -> &mut InProcessTransport {
        match id {
            FIRST => &mut self.first,
            SECOND => &mut self.second,
            other => panic!("{other:?}"),
        }
    }
}

impl Transports for Table {
    fn get(&mut self, id: TransportId) -> Option<&mut dyn TargetTransport> {
        [FIRST, SECOND].contains(&id).then(|| self.of(id) as &mut dyn TargetTransport)
    }
}

/// Returns a LUN map of LUNs and units with read-write access.
pub(crate) fn map(rows: &[(u16, u32)]) -> Vec<MapEntry> {
    let row = |(number, unit): &(u16, u32)| (*number, *unit, Access::ReadWrite);
    map_with(&rows.iter().map(row).collect::<Vec<_>>())
}

/// Returns a LUN map of LUNs, units and accesses.
pub(crate) fn map_with(rows: &[(u16, u32, Access)]) -> Vec<MapEntry> {
    let entry = |(number, unit, access): &_| MapEntry {
        number: *number,
        unit: UnitId(*unit),
        access: *access,
        min_level: Level::None,
    };
    rows.iter().map(entry).collect()
}

/// Returns a LUN map of LUNs, units and the protection that they require.
pub(crate) fn map_at(rows: &[(u16, u32, Level)]) -> Vec<MapEntry> {
    let entry = |(number, unit, min_level): &(u16, u32, Level)| MapEntry {
        min_level: *min_level,
        ..map(&[(*number, *unit)])[0]
    };
    rows.iter().map(entry).collect()
}

/// Returns the initiator port of an initiator: an SRP TransportID (SPC-5 §7.6.4), because the target must
/// not expect a name of iSCSI.
pub(crate) fn port_of(initiator: &str) -> InitiatorPort {
    let mut id = [0; 24];
    id[0] = 0x04;
    id[8..8 + initiator.len()].copy_from_slice(initiator.as_bytes());
    InitiatorPort::Other(id)
}

pub(crate) fn unit_config(number: u32, tasks: TaskRules) -> UnitConfig {
    UnitConfig {
        device: device::contract::DeviceKind::Disk,
        identity: Identity {
            vendor: *b"TARGE   ",
            product: *b"VIRTUAL DISK    ",
            revision: *b"0001",
            serial: format!("serial{number}"),
            naa: [&[0x60, 0x12, 0x34, 0x56][..], &[0; 11], &[u8::try_from(number).unwrap()]].concat(),
        },
        block_size: BlockSize::B512,
        physical_exponent: 3,
        read_only: false,
        removable: false,
        long_cdbs: false,
        atomic_blocks: 1,
        thin: true,
        write_cache: true,
        overrides: InquiryOverrides::default(),
        tasks,
        task_set_max: 128,
        io_timeout: None,
        limit: RateLimit::NONE,
        transfer_blocks_max: 32768,
        ports: Rc::new([TargetPort {
            relative: RelativePort(1),
            group: 1,
            port_name: "eui.02004567A425678D,t,0x0001".into(),
            device_name: "eui.02004567A425678D".into(),
            protocol: 4,
        }]),
    }
}

impl World {
    /// Makes a target with this many units.
    pub(crate) fn new(units: u32) -> Self {
        Self::with(units, TaskRules::default(), BTreeMap::new())
    }

    /// Makes a target with these rules for tasks, and with states that were stored before.
    pub(crate) fn with(units: u32, rules: TaskRules, stored: BTreeMap<u32, Vec<u8>>) -> Self {
        let mut world = Self {
            target: Target::default(),
            transports: Table::default(),
            media: vec![],
            now: Instant(1_000_000_000),
            pool: Pool::new(16 << 20),
            rules,
            maps: BTreeMap::new(),
            levels: BTreeMap::new(),
            users: BTreeMap::new(),
            ended: vec![],
            stored,
            holds_saves: false,
            saves: vec![],
        };
        for number in 0..units {
            let medium = Held::new(MEDIUM_LEN);
            world.media.push(medium.clone());
            world.add_unit(number, Box::new(medium), DiskId::of_unit(UnitId(number)));
        }
        world
    }

    pub(crate) fn add_unit(&mut self, number: u32, medium: Box<dyn Store>, disk: DiskId) {
        let stored = self.stored.get(&number).map(Vec::as_slice);
        let config = unit_config(number, self.rules);
        let mut unit = LogicalUnit::new(config, medium, stored, self.pool.clone()).unwrap();
        unit.seed(&[9; 32]);
        assert!(self.target.add_unit(self.now, UnitId(number), unit, disk));
        self.process_pending();
    }

    pub(crate) fn remove_unit(&mut self, number: u32) {
        assert!(self.target.remove_unit(self.now, UnitId(number)));
        self.process_pending();
    }

    /// Completes the waiting operations of a medium.
    pub(crate) fn release(&mut self, medium: usize) {
        self.media[medium].release();
        self.target.medium_ready(self.now, UnitId(u32::try_from(medium).unwrap()));
        self.process_pending();
    }

    /// Moves events between the transports and the units until none has any, and stores states.
    pub(crate) fn process_pending(&mut self) {
        loop {
            for id in [FIRST, SECOND] {
                while let Some(event) = self.transports.of(id).events.pop_front() {
                    if let Some(event) = self.target.handle_event(self.now, id, event, &mut self.transports) {
                        self.handle_session(id, event);
                    }
                }
            }
            if self.target.drain_unit(self.now, &mut self.transports) {
                continue;
            }
            match self.target.poll_save() {
                Some(save) if self.holds_saves => self.saves.push(save),
                Some(save) => self.store(save),
                None => break,
            }
        }
    }

    fn handle_session(&mut self, transport: TransportId, event: SessionEvent<InProcess>) {
        match event {
            SessionEvent::Up(up) => {
                let info = NexusInfo {
                    target: TargetNumber(up.target),
                    initiator: up.initiator.as_str().into(),
                    initiator_port: port_of(&up.initiator).encode().into(),
                    realm: None,
                    user: self.users.get(&up.initiator).map(|user| user.as_str().into()),
                    target_port: RelativePort(1),
                    rfc_7144_functions: true,
                    level: self.levels.get(&up.initiator).copied().unwrap_or_default(),
                };
                let map = self.maps.get(&up.initiator).cloned().unwrap_or_default();
                let id = self.target.session_up(self.now, transport, up.session, info, map);
                assert_eq!(id, nexus_of(transport, up.session));
            }
            SessionEvent::Down { session, why } => {
                let deliberate = why == SessionEnd::LoggedOut;
                assert!(self.target.session_down(self.now, transport, session, deliberate).is_some());
                self.ended.push((Initiator { transport, session }, why));
            }
            SessionEvent::Notice(never) => match never {},
        }
    }

    /// Stores a state on stable storage.
    pub(crate) fn store(&mut self, save: SaveRequest) {
        self.stored.insert(save.unit.0, save.state);
        self.saved(save.unit, save.ticket, true);
    }

    /// Reports to the target whether a state is on stable storage.
    pub(crate) fn saved(&mut self, unit: UnitId, ticket: u64, ok: bool) {
        self.target.state_saved(self.now, unit, ticket, ok);
        self.process_pending();
    }

    /// Logs an initiator in like [`Self::login`], in a session of this protection.
    pub(crate) fn login_at(&mut self, level: Level, name: &str, map: Vec<MapEntry>) -> Initiator {
        self.levels.insert(name.into(), level);
        self.login(name, map)
    }

    /// Logs an initiator in to target 0 over the first transport.
    pub(crate) fn login(&mut self, name: &str, map: Vec<MapEntry>) -> Initiator {
        self.login_over(FIRST, name, 0, map)
    }

    pub(crate) fn login_over(
        &mut self,
        transport: TransportId,
        name: &str,
        target: u32,
        map: Vec<MapEntry>,
    ) -> Initiator {
        self.maps.insert(name.into(), map);
        let session = self.transports.of(transport).login(name, target);
        self.process_pending();
        Initiator { transport, session }
    }

    /// Ends the session of an initiator.
    pub(crate) fn end(&mut self, who: Initiator, why: SessionEnd) {
        self.transport_of(who).end_session(who.session, why);
        self.process_pending();
    }

    pub(crate) fn nexus(&self, who: Initiator) -> NexusId {
        nexus_of(who.transport, who.session)
    }

    /// Replaces the LUN map of an initiator. Returns whether the map changed.
    pub(crate) fn remap(&mut self, who: Initiator, map: Vec<MapEntry>) -> bool {
        let name = self.target.nexus(self.nexus(who)).unwrap().initiator().to_owned();
        self.maps.insert(name, map.clone());
        let changed = self.target.remap(self.now, self.nexus(who), map);
        self.process_pending();
        changed
    }

    /// Sets the limit of an initiator.
    pub(crate) fn limit(&mut self, who: Initiator, limit: RateLimit) {
        self.target.limit_initiator(self.now, self.nexus(who), limit);
        self.process_pending();
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, span: Duration) {
        self.now = self.now.after(span);
    }

    pub(crate) fn transport_of(&mut self, who: Initiator) -> &mut InProcessTransport {
        self.transports.of(who.transport)
    }

    /// Starts a command with the attribute SIMPLE.
    pub(crate) fn start(&mut self, who: Initiator, lun: u16, cdb: &[u8], out: &[u8], room: usize) -> Ticket {
        let request = request(lun, cdb, out, room);
        let ticket = self.transport_of(who).send_command(who.session, request);
        self.process_pending();
        ticket
    }

    /// Runs a command that must end with a response.
    #[track_caller]
    pub(crate) fn run(&mut self, who: Initiator, lun: u16, cdb: &[u8], out: &[u8], room: usize) -> Response {
        let ticket = self.start(who, lun, cdb, out, room);
        self.response(who, ticket)
    }

    /// Returns how a command ended; `None` while it is under way.
    pub(crate) fn end_of(&mut self, who: Initiator, ticket: Ticket) -> Option<TaskEnd> {
        let ends = &mut self.transport_of(who).task_ends;
        let at = ends.iter().position(|(ended, _)| *ended == ticket)?;
        Some(ends.remove(at).1)
    }

    /// Returns the response to a command that must have ended with one.
    #[track_caller]
    pub(crate) fn response(&mut self, who: Initiator, ticket: Ticket) -> Response {
        match self.end_of(who, ticket) {
            Some(TaskEnd::Response(response)) => response,
            other => panic!("{other:?} instead of a response"),
        }
    }

    /// Requests a task management function, for the task of `of` if the function names one.
    pub(crate) fn start_tmf(
        &mut self,
        who: Initiator,
        function: TmfFunction,
        lun: u16,
        of: Option<Ticket>,
    ) -> Ticket {
        let ticket = self.transport_of(who).send_tmf(who.session, function, u64::from(lun) << 48, of);
        self.process_pending();
        ticket
    }

    /// Requests a task management function that concerns no single task, and returns its result.
    pub(crate) fn manage(&mut self, who: Initiator, function: TmfFunction, lun: u16) -> Option<TmfResult> {
        let ticket = self.start_tmf(who, function, lun, None);
        self.transport_of(who).tmf_results.remove(&ticket)
    }

    /// Runs TEST UNIT READY until no unit attention is left. Returns the codes of those that there were.
    #[track_caller]
    pub(crate) fn take_attentions(&mut self, who: Initiator, lun: u16) -> Vec<u16> {
        let mut found = vec![];
        loop {
            let response = self.run(who, lun, &[0; 6], &[], 0);
            if response.status == GOOD {
                return found;
            }
            let (key, code) = response.code();
            assert_eq!(key, 6, "a unit attention: {response:?}");
            found.push(code);
        }
    }

    #[track_caller]
    pub(crate) fn write(&mut self, who: Initiator, lun: u16, lba: u32, data: &[u8]) -> Response {
        self.run(who, lun, &write_10(lba, data.len()), data, 0)
    }

    #[track_caller]
    pub(crate) fn read(&mut self, who: Initiator, lun: u16, lba: u32, blocks: usize) -> Response {
        self.run(who, lun, &read_10(lba, blocks * BLOCK), &[], blocks * BLOCK)
    }

    /// Asserts that no command is under way, and that the target made no call for one that was over.
    #[track_caller]
    pub(crate) fn is_settled(&mut self) {
        assert_eq!((self.transports.first.ignored, self.transports.second.ignored), (0, 0));
        assert!(self.target.units().iter().all(|unit| unit.stats.tasks == 0), "{:?}", self.target.units());
    }
}

impl Response {
    /// Returns the sense key and the additional sense code, from either format.
    pub(crate) fn code(&self) -> (u8, u16) {
        match self.sense.first().map(|first| first & 0x7f) {
            Some(0x70 | 0x71) => (self.sense[2] & 15, u16::from_be_bytes([self.sense[12], self.sense[13]])),
            Some(0x72 | 0x73) => (self.sense[1], u16::from_be_bytes([self.sense[2], self.sense[3]])),
            _ => (0, 0),
        }
    }
}

pub(crate) fn request<'a>(lun: u16, cdb: &'a [u8], out: &'a [u8], room: usize) -> Request<'a> {
    Request {
        lun: u64::from(lun) << 48,
        attribute: TaskAttribute::SIMPLE,
        cdb,
        out_len: out.len(),
        out,
        room,
    }
}

/// Returns a READ(10) of `len` bytes.
pub(crate) fn read_10(lba: u32, len: usize) -> [u8; 10] {
    cdb_10(0x28, lba, len)
}

/// Returns a WRITE(10) of `len` bytes.
pub(crate) fn write_10(lba: u32, len: usize) -> [u8; 10] {
    cdb_10(0x2a, lba, len)
}

fn cdb_10(opcode: u8, lba: u32, len: usize) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&u16::try_from(len / BLOCK).unwrap().to_be_bytes());
    cdb
}

/// Returns bytes that differ between offsets and between seeds.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    base::rng::Rng::from_seed(seed).fill(&mut bytes);
    bytes
}

pub(crate) const GOOD: u8 = 0;
/// The status BUSY.
pub(crate) const BUSY: u8 = 8;
pub(crate) const CHECK: u8 = 2;
pub(crate) const CONFLICT: u8 = 0x18;
pub(crate) const TASK_ABORTED: u8 = 0x40;

/// ILLEGAL REQUEST, LOGICAL UNIT NOT SUPPORTED.
pub(crate) const NO_LUN: (u8, u16) = (5, 0x2500);
