//! A HyperSCSI target against an initiator that means harm, with a layer above that keeps to its contract.
//!
//! An initiator of a group without a password has shaken hands, so that every frame that an input makes
//! counts. Each operation is a frame of its session (any command, any payload, in any exchange), raw bytes
//! from anywhere (handshakes and discovery too), something that the layer above does, or time that passes.
#![no_main]

use std::collections::VecDeque;

use base::buffer::{Bytes, Pool};
use base::ether::{EtherPort, FrameBatch, Mac, PortState, ReceivedFrame};
use base::time::{Duration, Instant};
use ground::Operations;
use hyperscsi::aead::put_crc;
use security::Level;
use hyperscsi::frame::{Cmd, Flags, HEADER_LEN, Header, VERSION};
use hyperscsi::login::directory::{self, Export, GroupAccess, TargetAccess};
use hyperscsi::pdu::name::{GroupName, Name};
use hyperscsi::pdu::negotiate::{Cookie, Hello, Negotiate, Negotiated, Start};
use hyperscsi::pdu::parameters::Parameters;
use hyperscsi::target::contract::{Event, SessionDirectory};
use hyperscsi::target::engine::{Engine, EngineLimits};
use libfuzzer_sys::fuzz_target;
use transport::target::{Command, Finish, SessionId, TargetTransport as _, TmfIndication};
use transport::task_management::TmfResult;

const PORT: EtherPort = EtherPort(0);
const PEER: Mac = Mac([2, 0, 0, 0, 0, 1]);
const DATA: [u8; 4096] = [0x5a; 4096];

struct World {
    engine: Engine,
    pool: Pool,
    now: Instant,
    sid: u32,
    pn: u64,
    heard: Vec<Negotiated>,
    held: VecDeque<(Command, u32)>,
    manages: VecDeque<TmfIndication>,
    sessions: usize,
}

/// A server with one target for one group; even logical units may be used without protection.
struct Site;

impl directory::TargetDirectory for Site {
    fn instance(&self) -> [u8; 16] {
        [7; 16]
    }

    fn target_access(&self, _: EtherPort, group: &GroupName, target: &Name) -> Option<TargetAccess> {
        let parameters =
            Parameters { exchanges: 8, first_burst: 8192, burst_max: 4096, ..Parameters::DEFAULT };
        let known = **group == *"backup" && target.starts_with("iqn.");
        known.then_some(TargetAccess { access: GroupAccess::Open, parameters, steering: 3 })
    }

    fn export_behind(&self, _: EtherPort, _: &GroupName, _: Option<&Name>) -> Option<Export> {
        None
    }

    fn sid_taken(&self, _: u32) -> bool {
        false
    }
}

impl SessionDirectory for Site {
    fn least_level(&self, _: SessionId, lun: u64) -> Level {
        if lun & 1 == 0 { Level::None } else { Level::Integrity }
    }
}

fuzz_target!(|input: &[u8]| {
    let mut world = World::logged_in();
    for (which, bytes) in Operations::of(input) {
        match which >> 6 {
            0 => world.send(bytes),
            1 => world.feed(&mut bytes.to_vec()),
            2 => world.serve(which, bytes),
            _ => world.pass(Duration::from_millis(u64::from(which & 0x3f) * 50)),
        }
    }
    // Nobody says anything any more: every session ends, and every task with it.
    for _ in 0..2000 {
        let Some(at) = world.engine.poll_timeout().filter(|_| world.engine.sessions().count() > 0) else {
            break;
        };
        world.now = world.now.max(at);
        world.pass(Duration::ZERO);
    }
    if world.engine.sessions().count() == 0 {
        assert!(world.held.is_empty() && world.sessions == 0, "{} tasks are left", world.held.len());
    }
});

impl World {
    fn logged_in() -> Self {
        let pool = Pool::new(1 << 20);
        // Little of everything, so that every limit is met.
        let limits = EngineLimits {
            sessions_max: 4,
            data_out_bytes_max: 64 << 10,
            data_in_bytes_max: 64 << 10,
            unsent_bytes_max: 16 << 10,
            ..EngineLimits::default()
        };
        let mut world = Self {
            engine: Engine::new(limits, pool.clone()),
            pool,
            now: Instant(1_000_000_000),
            sid: 0,
            pn: 0,
            heard: Vec::new(),
            held: VecDeque::new(),
            manages: VecDeque::new(),
            sessions: 0,
        };
        let state = PortState { mac: Mac([2, 0, 0, 0, 0, 2]), mtu: 9000, receive_slots: 256 };
        world.engine.port_up(world.now, PORT, &state, [1; 32]);
        world.shake_hands();
        assert!(world.sid != 0 && world.sessions == 1, "the handshake succeeds");
        world
    }

    fn shake_hands(&mut self) {
        let group = GroupName::new("backup").unwrap();
        let target = Name::new("iqn.2026-01.org.example:disk").unwrap();
        let hello = Hello { handshake: [3; 16], group: group.clone(), target: target.clone() };
        self.negotiate(&Negotiate::Hello(hello));
        let cookie: Option<Cookie> = self.heard.drain(..).find_map(|step| match step {
            Negotiated::Cookie { cookie, .. } => Some(cookie),
            _ => None,
        });
        let start = Start {
            handshake: [3; 16],
            cookie: cookie.unwrap(),
            group,
            target,
            initiator: Name::new("iqn.2026-01.org.example:host").unwrap(),
            isid: [0x80, 0, 0, 0, 0, 1],
            sid: 77,
            offer: Parameters { frame_max: 9000, lost_after_ms: 2000, ..Parameters::DEFAULT },
            ke1: None,
        };
        self.negotiate(&Negotiate::Start(Box::new(start)));
        self.sid = self
            .heard
            .drain(..)
            .find_map(|step| match step {
                Negotiated::Accept(accept) => Some(accept.sid),
                _ => None,
            })
            .unwrap_or_default();
    }

    fn negotiate(&mut self, step: &Negotiate) {
        let mut payload = Vec::new();
        step.encode(&mut payload);
        let mut head = [0; HEADER_LEN + 16];
        (head[1], head[3], head[4]) = (4, VERSION, Cmd::Negotiate as u8);
        let (header, _) = Header::parse(&head).unwrap();
        self.frame(header, &payload);
    }

    /// Sends a frame of the session; the header is the input's but for what would have it dropped at once.
    fn send(&mut self, bytes: &[u8]) {
        let Some((head, payload)) = bytes.split_at_checked(HEADER_LEN) else { return };
        let mut head = head.to_vec();
        head[0] &= 0x0f;
        head[3] = VERSION;
        head[4] &= 0x7f;
        head[5] &= !(0x01 | Flags::PHASE.0 | Flags::ENCRYPTED.0);
        head[6..8].fill(0);
        head.resize(HEADER_LEN + 16, 0);
        let Ok((mut header, _)) = Header::parse(&head) else { return };
        self.pn += 1;
        // Few exchanges, so that inputs meet what others began.
        (header.sid, header.pn, header.tag, header.xid) =
            (self.sid, self.pn, header.tag & 7, header.xid & 15);
        self.frame(header, payload);
    }

    fn frame(&mut self, mut header: Header, payload: &[u8]) {
        header.len = u16::try_from(payload.len()).unwrap();
        let mut batch = FrameBatch::new();
        batch.begin_frame(PEER);
        batch.put(&header.to_bytes());
        batch.put(payload);
        put_crc(&mut batch);
        batch.end_frame();
        let mut frame: Vec<u8> =
            batch.frames().flat_map(|(_, _, pieces)| pieces.flatten().copied()).collect();
        self.feed(&mut frame);
    }

    fn feed(&mut self, payload: &mut [u8]) {
        let age = Duration::from_nanos(self.now.0 % 3_000_000);
        let frame = ReceivedFrame { port: PORT, source: PEER, group: false, age, payload };
        self.engine.frame_received(self.now, frame, &Site);
        self.drain();
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now.after(span);
        self.engine.handle_timeout(self.now);
        self.drain();
    }

    /// The layer above deals with its oldest request or task.
    fn serve(&mut self, which: u8, bytes: &[u8]) {
        if which & 1 != 0
            && let Some(manage) = self.manages.pop_front()
        {
            for (command, _) in self.held.drain(..) {
                self.engine.abort(command.task);
            }
            self.engine.finish_tmf(manage.tmf, TmfResult(bytes.first().copied().unwrap_or(0)));
        } else if let Some((command, sent)) = self.held.pop_front() {
            let room = command.data_in_len - sent;
            match which >> 1 & 3 {
                0 if command.data_out_len > 0 => {
                    self.engine.fetch(command.task, 0, command.data_out_len.min(16 << 10));
                    self.held.push_back((command, sent));
                }
                1 if room > 0 => {
                    let len = room.min(4096);
                    let data = Bytes::copied_from(&DATA[..len as usize]);
                    self.engine.data_in(command.task, sent, data.into());
                    self.held.push_back((command, sent + len));
                }
                2 => self.engine.abort(command.task),
                _ => {
                    let status = u8::from(!bytes.is_empty()) * 2;
                    self.engine.finish(
                        command.task,
                        Finish { status, sense: bytes, transferable: sent.into(), is_unit_attention: false },
                    );
                }
            }
        }
        self.drain();
    }

    fn drain(&mut self) {
        let mut batch = FrameBatch::new();
        for _ in 0..2000 {
            while let Some(event) = self.engine.poll_event() {
                self.hear(event);
            }
            let Some(port) = self.engine.poll_port() else {
                assert_eq!(self.engine.stats().bugs, 0);
                return;
            };
            self.engine.transmit_frames(self.now, port, &mut batch);
            for (_, len, pieces) in batch.frames() {
                assert!(len <= 9000, "a frame of {len} bytes");
                let frame: Vec<u8> = pieces.flatten().copied().collect();
                let (header, _) = Header::parse(&frame).unwrap();
                if header.cmd == Cmd::Negotiated && self.sid == 0 {
                    self.heard.extend(Negotiated::parse(&frame[HEADER_LEN..]));
                }
            }
            batch.clear(&self.pool);
        }
        panic!("it never stops sending");
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::SessionUp(_) => self.sessions += 1,
            Event::SessionDown { session, .. } => {
                self.sessions -= 1;
                self.manages.retain(|manage| manage.session != session);
                assert!(self.held.iter().all(|(command, _)| command.session != session), "tasks go first");
            }
            Event::Command(command) => {
                assert_eq!(command.lun & 1, 0, "a command came up below the level of its unit");
                self.held.push_back((command, 0));
            }
            Event::Tmf(manage) => self.manages.push_back(manage),
            Event::TaskGone { task } => {
                let before = self.held.len();
                self.held.retain(|(command, _)| command.task != task);
                assert_eq!(self.held.len() + 1, before, "a task goes once");
            }
            Event::DataOut { .. } | Event::Notice(_) | Event::TasksCleared { .. } => {}
        }
    }
}
