//! Both ends of HyperSCSI on a wire that somebody else writes on: handshake, session and transport of either
//! role.
//!
//! The first byte says whether the group has a password. Each operation lets the frames that wait travel,
//! gives either end raw bytes, or the last frame of the other end with bytes changed (and its checksum
//! mended, if it has one), or lets time pass. Neither end may be wrong about itself, or talk without end; and
//! nothing that the initiator did not write is taken for a command in a group with a password.
#![no_main]

use std::sync::{Arc, OnceLock};

use base::buffer::Pool;
use base::ether::{EtherPort, FrameBatch, FrameMachine, Mac, PortState, ReceivedFrame};
use base::time::{Duration, Instant};
use ground::Operations;
use hyperscsi::aead::put_crc;
use security::Level;
use hyperscsi::frame::{HEADER_LEN, Header};
use hyperscsi::initiator::contract::SessionPlan;
use hyperscsi::initiator::session::Session;
use hyperscsi::login::directory::{self, Export, GroupAccess, TargetAccess};
use security::opaque::{Password, PasswordRecord};
use hyperscsi::pdu::name::{GroupName, Name};
use security::opaque::StretchCost;
use hyperscsi::pdu::parameters::Parameters;
use hyperscsi::target::contract::{Event, SessionDirectory};
use hyperscsi::target::engine::{Engine, EngineLimits};
use libfuzzer_sys::fuzz_target;
use transport::command::Cdb;
use transport::initiator::{InitiatorTransport as _, Request};
use transport::target::{Finish, SessionId, TargetTransport as _};
use transport::task_management::TmfResult;

const PORT: EtherPort = EtherPort(0);
const TARGET: Mac = Mac([2, 0, 0, 0, 0, 1]);
const HOST: Mac = Mac([2, 0, 0, 0, 0, 2]);
const CDB: [u8; 6] = [0x12, 0xfa, 0x57, 0, 36, 0];

struct Site(GroupAccess);

fn record() -> Arc<PasswordRecord> {
    static RECORD: OnceLock<Arc<PasswordRecord>> = OnceLock::new();
    let make = || {
        let cost = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };
        Arc::new(PasswordRecord::make(&password(), "backup", cost, [9; 32]).unwrap())
    };
    Arc::clone(RECORD.get_or_init(make))
}

fn password() -> Password {
    Password::new(b"no input holds this password").unwrap()
}

impl directory::TargetDirectory for Site {
    fn instance(&self) -> [u8; 16] {
        [7; 16]
    }

    fn target_access(&self, _: EtherPort, group: &GroupName, target: &Name) -> Option<TargetAccess> {
        let parameters = Parameters { exchanges: 8, ..Parameters::DEFAULT };
        let known = **group == *"backup" && target.starts_with("iqn.");
        known.then(|| TargetAccess { access: self.0.clone(), parameters, steering: 3 })
    }

    fn export_behind(&self, _: EtherPort, _: &GroupName, after: Option<&Name>) -> Option<Export> {
        let target = Name::new("iqn.2026-01.org.example:disk").unwrap();
        let authenticates = matches!(self.0, GroupAccess::Password(_));
        let export = Export { target, authenticates, luns: vec![], macs: vec![TARGET] };
        after.is_none().then_some(export)
    }

    fn sid_taken(&self, _: u32) -> bool {
        false
    }
}

impl SessionDirectory for Site {
    fn least_level(&self, _: SessionId, _: u64) -> Level {
        if matches!(self.0, GroupAccess::Password(_)) { Level::Integrity } else { Level::None }
    }
}

struct World {
    now: Instant,
    pool: Pool,
    site: Site,
    engine: Engine,
    session: Session,
    /// What each end said that did not travel yet, and the last of what did: target, initiator.
    waiting: [Vec<Vec<u8>>; 2],
    last: [Vec<u8>; 2],
    keyed: bool,
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let mut world = World::new(first & 1 != 0);
    for (which, bytes) in Operations::of(rest) {
        let end = usize::from(which & 1);
        match which >> 5 {
            0..=2 => world.travel(),
            3 => world.give(end, bytes.to_vec()),
            4 | 5 => world.change(end, bytes),
            6 => world.waiting[end].clear(),
            _ => world.pass(Duration::from_millis(u64::from(which & 0x1f) * 40)),
        }
        world.drain();
    }
});

impl World {
    fn new(keyed: bool) -> Self {
        let pool = Pool::new(1 << 20);
        let now = Instant(1_000_000_000);
        let limits = EngineLimits { sessions_max: 4, ..EngineLimits::default() };
        let mut plan = SessionPlan::new(
            Name::new("iqn.2026-01.org.example:host").unwrap(),
            [0x80, 0, 0, 0, 0, 1],
            GroupName::new("backup").unwrap(),
            keyed.then(password),
            Name::new("iqn.2026-01.org.example:disk").unwrap(),
        );
        if !keyed {
            plan.level = Level::None;
        }
        let mut world = Self {
            now,
            site: Site(if keyed { GroupAccess::Password(record()) } else { GroupAccess::Open }),
            engine: Engine::new(limits, pool.clone()),
            session: Session::new(now, plan, pool.clone()),
            pool,
            waiting: [vec![], vec![]],
            last: [vec![], vec![]],
            keyed,
        };
        let state = |mac| PortState { mac, mtu: 1500, receive_slots: 256 };
        world.engine.port_up(now, PORT, &state(TARGET), [1; 32]);
        world.session.port_up(now, PORT, &state(HOST), [2; 32]);
        world.drain();
        world
    }

    fn travel(&mut self) {
        for end in 0..2 {
            for frame in std::mem::take(&mut self.waiting[1 - end]) {
                self.last[1 - end].clone_from(&frame);
                self.give(end, frame);
            }
        }
        // Several at once, so that they share frames.
        for _ in self.session.open_tasks()..4 {
            if self.session.is_up() {
                let request = Request { data_in_len: 36, ..Request::new(0, Cdb::new(&CDB).unwrap()) };
                _ = self.session.submit(self.now, request);
            }
        }
    }

    /// Gives an end a frame, as it stands.
    fn give(&mut self, end: usize, mut payload: Vec<u8>) {
        payload.resize(payload.len().clamp(46, 1500), 0);
        let source = if end == 0 { HOST } else { TARGET };
        let age = Duration::from_nanos(self.now.0 % 3_000_000);
        let frame = ReceivedFrame { port: PORT, source, group: false, age, payload: &mut payload };
        if end == 0 {
            self.engine.frame_received(self.now, frame, &self.site);
        } else {
            self.session.frame_received(self.now, frame);
        }
    }

    /// Gives an end the last frame for it, changed: pairs of a place and what is put there.
    fn change(&mut self, end: usize, bytes: &[u8]) {
        let mut frame = self.last[1 - end].clone();
        for pair in bytes.chunks_exact(3) {
            let place = usize::from(pair[0]) | usize::from(pair[1] & 7) << 8;
            if let Some(byte) = frame.get_mut(place) {
                *byte ^= pair[2];
            }
        }
        if let Ok((header, _)) = Header::parse(&frame)
            && !header.protected
        {
            let mut batch = FrameBatch::new();
            batch.begin_frame(TARGET);
            batch.put(&frame[..HEADER_LEN + usize::from(header.len)]);
            put_crc(&mut batch);
            batch.end_frame();
            frame = batch.frames().flat_map(|(_, _, pieces)| pieces.flatten().copied()).collect();
        }
        self.give(end, frame);
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now.after(span);
        self.engine.handle_timeout(self.now);
        self.session.handle_timeout(self.now);
        for _ in 0..self.engine.entropy_wanted() {
            self.engine.add_entropy([3; 32]);
        }
        for _ in 0..self.session.entropy_wanted() {
            self.session.add_entropy([4; 32]);
        }
    }

    fn drain(&mut self) {
        let mut batch = FrameBatch::new();
        for _ in 0..4000 {
            while let Some(event) = self.engine.poll_event() {
                self.hear(event);
            }
            while let Some(job) = self.session.poll_job() {
                self.session.job_done(self.now, job.run());
            }
            while self.session.poll_event().is_some() {}
            let end = if let Some(port) = self.engine.poll_port() {
                self.engine.transmit_frames(self.now, port, &mut batch);
                0
            } else if let Some(port) = self.session.poll_port() {
                self.session.transmit_frames(self.now, port, &mut batch);
                1
            } else {
                assert_eq!((self.engine.stats().bugs, self.session.stats().bugs), (0, 0));
                return;
            };
            for (_, len, pieces) in batch.frames() {
                assert!(len <= 1500, "a frame of {len} bytes");
                if self.waiting[end].len() < 256 {
                    self.waiting[end].push(pieces.flatten().copied().collect());
                }
            }
            batch.clear(&self.pool);
        }
        panic!("they never stop sending");
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Command(command) => {
                assert!(!self.keyed || command.cdb[..] == CDB, "a command that nobody gave");
                self.engine.finish(command.task, Finish::good(0));
            }
            Event::Tmf(manage) => self.engine.finish_tmf(manage.tmf, TmfResult::COMPLETE),
            _ => {}
        }
    }
}
