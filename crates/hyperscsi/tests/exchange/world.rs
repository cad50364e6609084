//! A target and its initiators on one simulated Ethernet with a faulty wire, and a small device server that
//! knows a few commands.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::buffer::{Bytes, DataList, Pool};
use base::ether::{EtherPort, FrameBatch, FrameMachine, Mac, PortState, ReceivedFrame};
use base::rng::Rng;
use base::time::{Duration, Instant};
use hyperscsi::aead::put_crc;
use hyperscsi::frame::Header;
use hyperscsi::initiator::contract::{self as ours, SessionPlan};
use hyperscsi::initiator::session::Session;
use hyperscsi::login::directory::{Export, GroupAccess, TargetAccess, TargetDirectory as LoginDirectory};
use hyperscsi::pdu::name::{GroupName, Name};
use hyperscsi::pdu::parameters::Parameters;
use hyperscsi::target::contract::{Event, PathChange, PathNotice, SessionDirectory, SessionEnd};
use hyperscsi::target::engine::{Engine, EngineLimits};
use netem::frame::{FrameLink, FramePlan};
use security::Level;
use security::opaque::StretchCost;
use security::opaque::{Password, PasswordRecord};
use transport::command::{Cdb, TaskAttribute};
use transport::initiator::{InitiatorTransport as _, Outcome, Request, TaskId};
use transport::target::{Finish, SessionId, TargetTransport as _, TaskRef};
use transport::task_management::{TmfFunction, TmfResult};

pub(crate) const BLOCK: usize = 512;
pub(crate) const DISK: usize = 4 << 20;
pub(crate) const TARGET: &str = "iqn.2026-01.test:disks";
pub(crate) const GROUP: &str = "backup";
/// Another group, without a password, to which the same target is exported.
pub(crate) const GUESTS: &str = "guests";

/// Operation codes of the small device server.
pub(crate) const READ: u8 = 0x28;
pub(crate) const WRITE: u8 = 0x2a;
/// Counts how often it is executed, under a number, so that a second execution is detected.
pub(crate) const COUNT: u8 = 0xc1;
/// Ends only when the test ends or aborts it.
pub(crate) const LINGER: u8 = 0xc2;
/// Like WRITE, but its data is fetched only when the test fetches it.
pub(crate) const LATE_WRITE: u8 = 0xc3;

pub(crate) fn cdb(op: u8, lba: u32, blocks: u32) -> Cdb {
    let mut bytes = vec![op, 0];
    bytes.extend_from_slice(&lba.to_be_bytes());
    bytes.extend_from_slice(&blocks.to_be_bytes());
    Cdb::new(&bytes).unwrap()
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Returns bytes that depend on the block's address.
pub(crate) fn pattern(lun: u64, lba: u32, blocks: u32, salt: u64) -> Vec<u8> {
    (0..blocks)
        .flat_map(|block| {
            let seed = lun << 48 ^ u64::from(lba + block) << 8 ^ salt << 33;
            let mut rng = Rng::from_seed(seed);
            (0..BLOCK / 8).flat_map(move |_| rng.next_u64().to_be_bytes()).collect::<Vec<u8>>()
        })
        .collect()
}

/// The configuration of the target.
pub(crate) struct Config {
    pub(crate) password: Option<&'static str>,
    pub(crate) levels: BTreeMap<u64, Level>,
    pub(crate) parameters: Parameters,
    record: Option<Arc<PasswordRecord>>,
}

impl Config {
    /// Removes the password, so that every initiator can log in without one.
    pub(crate) fn unlock(&mut self) {
        (self.password, self.record) = (None, None);
    }
}

impl LoginDirectory for Config {
    fn instance(&self) -> [u8; 16] {
        [7; 16]
    }

    fn target_access(&self, _port: EtherPort, group: &GroupName, target: &Name) -> Option<TargetAccess> {
        let known = (&**group == GROUP || &**group == GUESTS) && &**target == TARGET;
        let record = self.record.clone().filter(|_| &**group == GROUP);
        let access = record.map_or(GroupAccess::Open, GroupAccess::Password);
        known.then(|| TargetAccess { access, parameters: self.parameters, steering: 3 })
    }

    fn export_behind(&self, _: EtherPort, group: &GroupName, after: Option<&Name>) -> Option<Export> {
        let first = after.is_none_or(|after| **after < *TARGET);
        let (authenticates, luns, macs) = (self.record.is_some(), Vec::new(), Vec::new());
        let export = Export { target: name(TARGET), authenticates, luns, macs };
        (&**group == GROUP && first).then_some(export)
    }

    fn sid_taken(&self, _: u32) -> bool {
        false
    }
}

impl SessionDirectory for Config {
    fn least_level(&self, _session: SessionId, lun: u64) -> Level {
        self.levels.get(&lun).copied().unwrap_or_default()
    }
}

/// The device server.
#[derive(Default)]
pub(crate) struct Server {
    pub(crate) disks: BTreeMap<u64, Vec<u8>>,
    pub(crate) tasks: BTreeMap<TaskRef, Running>,
    pub(crate) counts: BTreeMap<u32, u32>,
    /// The numbers that were counted, in order.
    pub(crate) order: Vec<u32>,
    /// The numbers that were counted, each with its LUN.
    pub(crate) ran: Vec<(u64, u32)>,
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) downs: Vec<SessionEnd>,
    /// The reported changes of paths, by the initiator's port.
    pub(crate) paths: Vec<(Mac, PathChange)>,
    pub(crate) executed: u64,
    /// The longest fetch.
    pub(crate) fetch_max: u32,
}

pub(crate) struct Running {
    pub(crate) session: SessionId,
    pub(crate) lun: u64,
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) come: usize,
}

impl Server {
    pub(crate) fn disk_of(&self, lun: u64) -> &[u8] {
        &self.disks[&lun]
    }

    fn disk(&mut self, lun: u64) -> &mut Vec<u8> {
        self.disks.entry(lun).or_insert_with(|| vec![0; DISK])
    }

    fn event(&mut self, now: Instant, engine: &mut Engine, event: Event) {
        match event {
            Event::SessionUp(up) => self.sessions.push(up.session),
            Event::SessionDown { session, why } => {
                assert!(
                    !self.tasks.values().any(|task| task.session == session),
                    "a task outlives its session"
                );
                self.sessions.retain(|other| *other != session);
                self.downs.push(why);
            }
            Event::TasksCleared { .. } => panic!("HyperSCSI answers every task"),
            Event::Notice(PathNotice { peer, change, .. }) => self.paths.push((peer, change)),
            Event::Command(command) => {
                self.executed += 1;
                let word = |at: usize| u32::from_be_bytes(command.cdb[at..at + 4].try_into().unwrap());
                let (lba, blocks) = (word(2), word(6));
                let (at, len) = (lba as usize * BLOCK, blocks as usize * BLOCK);
                let op = command.cdb[0];
                let task = Running { session: command.session, lun: command.lun, at, len, come: 0 };
                match op {
                    READ => {
                        let data = self.disk(command.lun)[at..at + len].to_vec();
                        // In pieces, as media return it.
                        let mut offset = 0;
                        for piece in data.chunks(40_000) {
                            engine.data_in(command.task, offset, Bytes::copied_from(piece).into());
                            offset += piece.len() as u32;
                        }
                        engine.finish(command.task, Finish::good(len as u64));
                    }
                    WRITE => {
                        self.tasks.insert(command.task, task);
                        let (task, data) =
                            (command.task, command.data_out.map(DataList::from).unwrap_or_default());
                        let came = data.len() as u32;
                        self.event(now, engine, Event::DataOut { task, offset: 0, data });
                        let (step, len) = (self.fetch_max.max(512), len as u32);
                        for from in (came..len).step_by(step as usize) {
                            engine.fetch(task, from, step.min(len - from));
                        }
                    }
                    COUNT => {
                        self.order.push(lba);
                        self.ran.push((command.lun, lba));
                        *self.counts.entry(lba).or_default() += 1;
                        engine.finish(command.task, Finish::good(0));
                    }
                    LINGER | LATE_WRITE => {
                        self.tasks.insert(command.task, task);
                    }
                    _ => engine.finish(
                        command.task,
                        Finish {
                            status: 2,
                            sense: &[0x70, 0, 5, 0, 0, 0, 0, 0],
                            transferable: 0,
                            is_unit_attention: false,
                        },
                    ),
                }
            }
            Event::DataOut { task, offset, data } => {
                let running = self.tasks.get_mut(&task).expect("data of a task that ended");
                let (lun, at, len) = (running.lun, running.at + offset as usize, data.len());
                running.come += len;
                let done = running.come == running.len;
                let total = running.len;
                let disk = self.disk(lun);
                data.copy_to(0, &mut disk[at..at + len]);
                if done {
                    self.tasks.remove(&task);
                    engine.finish(task, Finish::good(total as u64));
                }
            }
            Event::TaskGone { task } => {
                self.tasks.remove(&task).expect("a task that ended is gone");
            }
            Event::Tmf(manage) => {
                let hit = |task: &Running| match manage.function {
                    TmfFunction::ABORT_TASK_SET => task.session == manage.session && task.lun == manage.lun,
                    TmfFunction::CLEAR_TASK_SET | TmfFunction::LOGICAL_UNIT_RESET => task.lun == manage.lun,
                    TmfFunction::TARGET_WARM_RESET => true,
                    _ => false,
                };
                let mut ended: Vec<TaskRef> =
                    self.tasks.iter().filter(|(_, task)| hit(task)).map(|(task, _)| *task).collect();
                let mut result = TmfResult::COMPLETE;
                if manage.function == TmfFunction::ABORT_TASK {
                    match manage.task.filter(|task| self.tasks.contains_key(task)) {
                        Some(task) => ended.push(task),
                        None => result = TmfResult::NO_TASK,
                    }
                }
                for task in ended {
                    self.tasks.remove(&task);
                    engine.abort(task);
                }
                engine.finish_tmf(manage.tmf, result);
            }
        }
        let _ = now;
    }
}

pub(crate) struct Initiator {
    pub(crate) session: Session,
    pub(crate) ended: BTreeMap<TaskId, Outcome>,
    pub(crate) managed: BTreeMap<transport::initiator::TmfId, Option<TmfResult>>,
    pub(crate) events: Vec<ours::Event>,
    pub(crate) ups: u32,
    pub(crate) down: Option<ours::SessionEnd>,
}

/// The owner of a socket of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Target,
    Initiator(usize),
}

pub(crate) struct Socket {
    pub(crate) who: Who,
    pub(crate) port: EtherPort,
    pub(crate) state: PortState,
    /// Frames on their way to this socket: destination, source, payload.
    pub(crate) link: FrameLink,
    pub(crate) unplugged: bool,
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) pool: Pool,
    pub(crate) engine: Engine,
    pub(crate) config: Config,
    pub(crate) server: Server,
    pub(crate) initiators: Vec<Initiator>,
    pub(crate) sockets: Vec<Socket>,
    pub(crate) limits: EngineLimits,
    rng: Rng,
    plan: FramePlan,
    pub(crate) mtu: usize,
    /// Every frame that was sent: destination, source, payload.
    pub(crate) capture: Vec<(Mac, Mac, Vec<u8>)>,
    pub(crate) captures: bool,
    /// Frames with this SID are not sent on the wire, but stored in `withheld`.
    pub(crate) withholds: Option<u32>,
    pub(crate) withheld: Vec<(Mac, Mac, Vec<u8>)>,
    pub(crate) steps: u64,
}

pub(crate) const COST: StretchCost = StretchCost { memory_kib: 64, passes: 1, lanes: 1 };

impl World {
    pub(crate) fn new(seed: u64, plan: FramePlan, password: Option<&'static str>) -> Self {
        Self::with(seed, plan, password, EngineLimits::default(), 1500)
    }

    pub(crate) fn with(
        seed: u64,
        plan: FramePlan,
        password: Option<&'static str>,
        limits: EngineLimits,
        mtu: usize,
    ) -> Self {
        let pool = Pool::new(64 << 20);
        let record = password.map(|password| {
            let password = Password::new(password.as_bytes()).unwrap();
            Arc::new(PasswordRecord::make(&password, GROUP, COST, [9; 32]).unwrap())
        });
        let config = Config { password, levels: BTreeMap::new(), parameters: limits.parameters, record };
        let mut world = Self {
            now: Instant(1),
            engine: Engine::new(limits, pool.clone()),
            pool,
            config,
            server: Server { fetch_max: 128 << 10, ..Server::default() },
            initiators: Vec::new(),
            sockets: Vec::new(),
            limits,
            rng: Rng::from_seed(seed),
            plan,
            mtu,
            capture: Vec::new(),
            captures: false,
            withholds: None,
            withheld: Vec::new(),
            steps: 0,
        };
        world.plug(Who::Target, EtherPort(0));
        world
    }

    fn entropy(&mut self) -> [u8; 32] {
        let mut out = [0; 32];
        self.rng.fill(&mut out);
        out
    }

    /// Adds a port to the target or an initiator.
    pub(crate) fn plug(&mut self, who: Who, port: EtherPort) {
        let number = self.sockets.len() as u8;
        let mac = Mac([2, 0, 0, 0, 0, number + 1]);
        let state = PortState { mac, mtu: self.mtu, receive_slots: 512 };
        let link = FrameLink::new(self.plan.clone(), self.rng.next_u64());
        self.sockets.push(Socket { who, port, state, link, unplugged: false });
        self.port_up(self.sockets.len() - 1);
    }

    pub(crate) fn port_up(&mut self, socket: usize) {
        let entropy = self.entropy();
        let (who, port, state) =
            (self.sockets[socket].who, self.sockets[socket].port, self.sockets[socket].state);
        match who {
            Who::Target => self.engine.port_up(self.now, port, &state, entropy),
            Who::Initiator(at) => self.initiators[at].session.port_up(self.now, port, &state, entropy),
        }
    }

    pub(crate) fn plan_of(&self, isid: u8) -> SessionPlan {
        let password = self.config.password.map(|text| Password::new(text.as_bytes()).unwrap());
        let who = name(&format!("iqn.2026-01.test:host{isid}"));
        SessionPlan::new(who, [isid; 6], GroupName::new(GROUP).unwrap(), password, name(TARGET))
    }

    /// Adds an initiator with one port.
    pub(crate) fn join(&mut self, plan: SessionPlan) -> usize {
        let at = self.initiators.len();
        self.initiators.push(Initiator {
            session: Session::new(self.now, plan, self.pool.clone()),
            ended: BTreeMap::new(),
            managed: BTreeMap::new(),
            events: Vec::new(),
            ups: 0,
            down: None,
        });
        self.plug(Who::Initiator(at), EtherPort(0));
        at
    }

    /// Replaces the engine by a new one, as after a crash; media stay.
    pub(crate) fn restart_target(&mut self) {
        self.engine = Engine::new(self.limits, self.pool.clone());
        self.server.tasks.clear();
        self.server.sessions.clear();
        for socket in 0..self.sockets.len() {
            // A port whose cable is unplugged has no link.
            if self.sockets[socket].who == Who::Target && !self.sockets[socket].unplugged {
                self.port_up(socket);
            }
        }
    }

    /// Replaces a session by a new one, as after a crash.
    pub(crate) fn restart_initiator(&mut self, at: usize, plan: SessionPlan) {
        self.initiators[at].session = Session::new(self.now, plan, self.pool.clone());
        for socket in 0..self.sockets.len() {
            if self.sockets[socket].who == Who::Initiator(at) {
                self.port_up(socket);
            }
        }
    }

    pub(crate) fn replan(&mut self, plan: &FramePlan) {
        for socket in &mut self.sockets {
            socket.link.replan(plan.clone());
        }
    }

    fn send(&mut self, from: usize, batch: &FrameBatch) {
        let source = self.sockets[from].state.mac;
        for (to, len, pieces) in batch.frames() {
            let payload: Vec<u8> = pieces.flatten().copied().collect();
            assert_eq!(len, payload.len());
            assert!(len <= self.sockets[from].state.mtu, "a frame of {len} bytes");
            if self.captures {
                self.capture.push((to, source, payload.clone()));
            }
            let sid = Header::parse(&payload).map(|(header, _)| header.sid);
            if self.withholds.is_some() && self.withholds == sid.ok() {
                self.withheld.push((to, source, payload));
                continue;
            }
            if self.sockets[from].unplugged {
                continue;
            }
            self.inject(to, source, &payload);
        }
    }

    /// Sends a frame on the wire.
    pub(crate) fn inject(&mut self, to: Mac, source: Mac, payload: &[u8]) {
        let bytes = [&to.0[..], &source.0, payload].concat();
        for socket in &mut self.sockets {
            let wants = socket.state.mac == to || to.is_group() && socket.state.mac != source;
            if wants && !socket.unplugged && payload.len() <= socket.state.mtu {
                socket.link.push(self.now, &bytes);
            }
        }
    }

    /// Processes all events and transmits all frames that are due now.
    pub(crate) fn drain(&mut self) {
        loop {
            self.route();
            let mut idle = true;
            while let Some(port) = self.engine.poll_port() {
                idle = false;
                self.transmit(Who::Target, port);
                self.route();
            }
            for at in 0..self.initiators.len() {
                while let Some(port) = self.initiators[at].session.poll_port() {
                    idle = false;
                    self.transmit(Who::Initiator(at), port);
                }
            }
            if idle {
                return;
            }
        }
    }

    fn transmit(&mut self, who: Who, port: EtherPort) {
        let at = self.sockets.iter().position(|socket| socket.who == who && socket.port == port).unwrap();
        loop {
            let mut batch = FrameBatch::new();
            match who {
                Who::Target => self.engine.transmit_frames(self.now, port, &mut batch),
                Who::Initiator(who) => {
                    self.initiators[who].session.transmit_frames(self.now, port, &mut batch)
                }
            }
            if batch.is_empty() {
                return;
            }
            self.send(at, &batch);
            batch.clear(&self.pool);
        }
    }

    fn route(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            self.server.event(self.now, &mut self.engine, event);
        }
        for initiator in &mut self.initiators {
            while let Some(job) = initiator.session.poll_job() {
                initiator.session.job_done(self.now, job.run());
            }
            while let Some(event) = initiator.session.poll_event() {
                match event {
                    ours::Event::Done { task, outcome } => {
                        let again = initiator.ended.insert(task, outcome);
                        assert!(again.is_none(), "a task ended twice");
                    }
                    ours::Event::TmfDone { id, result } => {
                        assert!(initiator.managed.insert(id, result).is_none(), "answered twice");
                    }
                    ours::Event::Down(why) => initiator.down = Some(why),
                    event => {
                        initiator.ups += u32::from(matches!(event, ours::Event::Up(_)));
                        initiator.events.push(event);
                    }
                }
            }
        }
    }

    fn next(&self) -> Option<Instant> {
        let links = self.sockets.iter().filter_map(|socket| socket.link.poll_timeout());
        let sessions = self.initiators.iter().filter_map(|initiator| initiator.session.poll_timeout());
        links.chain(sessions).chain(self.engine.poll_timeout()).min()
    }

    /// Advances the time to the next event, but not beyond `until`.
    pub(crate) fn step(&mut self, until: Instant) {
        self.steps += 1;
        self.drain();
        let next = self.next().unwrap_or(until).min(until);
        self.now = next.max(self.now);
        for at in 0..self.sockets.len() {
            while let Some(bytes) = self.sockets[at].link.poll(self.now) {
                self.arrive(at, bytes);
            }
        }
        let late = |at: Option<Instant>| at.is_some_and(|at| at <= self.now);
        if late(self.engine.poll_timeout()) {
            self.engine.handle_timeout(self.now);
        }
        for initiator in &mut self.initiators {
            if initiator.session.poll_timeout().is_some_and(|at| at <= self.now) {
                initiator.session.handle_timeout(self.now);
            }
        }
        self.drain();
    }

    fn arrive(&mut self, at: usize, mut bytes: Vec<u8>) {
        let socket = &self.sockets[at];
        let to = Mac(bytes[..6].try_into().unwrap());
        let source = Mac(bytes[6..12].try_into().unwrap());
        if socket.unplugged || !(to == socket.state.mac || to.is_group()) {
            return;
        }
        let (who, port) = (socket.who, socket.port);
        let payload = &mut bytes[12..];
        let frame = ReceivedFrame { port, source, group: to.is_group(), age: Duration::ZERO, payload };
        match who {
            Who::Target => {
                self.engine.frame_received(self.now, frame, &self.config);
                self.route();
            }
            Who::Initiator(at) => self.initiators[at].session.frame_received(self.now, frame),
        }
    }

    /// Runs until `done`, or for at most `within`; returns whether `done` holds.
    pub(crate) fn run(&mut self, within: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now.after(within);
        self.drain();
        while !done(self) && self.now < end {
            self.step(end);
        }
        done(self)
    }

    pub(crate) fn rest(&mut self, span: Duration) {
        self.run(span, |_| false);
    }

    pub(crate) fn up(&mut self) {
        let up = self.run(Duration::from_secs(60), |world| {
            world.initiators.iter().all(|initiator| initiator.session.is_up())
        });
        let downs: Vec<_> = self.initiators.iter().map(|initiator| initiator.down).collect();
        assert!(up, "{downs:?} {:?}", self.engine.stats());
    }

    pub(crate) fn submit(&mut self, at: usize, request: Request) -> TaskId {
        self.initiators[at].session.submit(self.now, request).unwrap()
    }

    pub(crate) fn write(&mut self, at: usize, lun: u64, lba: u32, blocks: u32, salt: u64) -> TaskId {
        let data = pattern(lun, lba, blocks, salt);
        let mut list = DataList::new();
        for piece in data.chunks(30_000) {
            list.push(Bytes::copied_from(piece));
        }
        let request = Request { data_out: list, ..Request::new(lun, cdb(WRITE, lba, blocks)) };
        self.submit(at, request)
    }

    pub(crate) fn read(&mut self, at: usize, lun: u64, lba: u32, blocks: u32) -> TaskId {
        let data_in_len = blocks * BLOCK as u32;
        self.submit(at, Request { data_in_len, ..Request::new(lun, cdb(READ, lba, blocks)) })
    }

    pub(crate) fn count(&mut self, at: usize, lun: u64, number: u32, attribute: TaskAttribute) -> TaskId {
        self.submit(at, Request { attribute, ..Request::new(lun, cdb(COUNT, number, 0)) })
    }

    /// Waits for the end of a task.
    pub(crate) fn end(&mut self, at: usize, task: TaskId) -> Outcome {
        let done = self.run(Duration::from_secs(120), |world| world.initiators[at].ended.contains_key(&task));
        assert!(
            done,
            "no end of {task:?}: {:?} {:?} {:?}",
            self.engine.stats(),
            self.initiators[at].session.stats(),
            self.initiators[at].down
        );
        self.initiators[at].ended.remove(&task).unwrap()
    }

    pub(crate) fn good(&mut self, at: usize, task: TaskId) -> Vec<u8> {
        let outcome = self.end(at, task);
        assert!(outcome.end.is_good(), "{:?}", outcome.end);
        outcome.data_in.map(|data| data.to_vec()).unwrap_or_default()
    }

    /// Checks that no memory, task or exchange is left over, and that no end counted a bug.
    pub(crate) fn is_clean(&self) {
        assert_eq!(self.engine.stats().bugs, 0);
        assert_eq!(self.engine.data_bytes(), 0, "memory is held for nothing");
        assert!(self.server.tasks.is_empty(), "a task hangs");
        for session in self.engine.sessions() {
            assert_eq!(session.tasks, 0, "an exchange hangs");
        }
        for initiator in &self.initiators {
            assert_eq!(initiator.session.stats().bugs, 0);
            assert_eq!(initiator.session.open_tasks(), 0);
        }
    }
}

/// Returns the status of an outcome.
pub(crate) fn status(outcome: &Outcome) -> Option<u8> {
    if let transport::initiator::TaskResult::Status(ending) = &outcome.end {
        Some(ending.status)
    } else {
        None
    }
}

/// Returns the seeds of random tests: the one in the environment variable `HYPER_SEED`, or the first `count`.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("HYPER_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (0..count).collect(),
    }
}

/// Returns a frame without protection.
pub(crate) fn raw(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut batch = FrameBatch::new();
    batch.begin_frame(Mac::BROADCAST);
    batch.put(&header.to_bytes());
    batch.put(payload);
    put_crc(&mut batch);
    batch.end_frame();
    batch.frames().next().map(|(.., pieces)| pieces.flatten().copied().collect()).unwrap_or_default()
}
