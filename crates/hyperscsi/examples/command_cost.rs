//! What a command of 4 KiB costs the machines of both ends, without any I/O between them: a loop for a
//! profiler.
//!
//! `cargo run --release -p targe-hyperscsi --example command_cost [read|write [DEPTH [COUNT]]]`
//!
//! Time is made up, so two runs do the same to the instruction. Under `valgrind --tool=callgrind` the
//! functions `target_turn` and `initiator_turn` tell the ends apart, and what a run of more commands takes
//! more is what these cost.

#![allow(clippy::expect_used, reason = "a tool at a developer's desk may stop")]

use std::collections::VecDeque;

use base::buffer::{Buf, Bytes, DataList, Pool};
use base::ether::{EtherPort, FrameBatch, FrameMachine, Mac, PortState, ReceivedFrame};
use base::time::{Duration, Instant};
use hyperscsi::initiator::contract::{Event as Told, SessionPlan};
use hyperscsi::initiator::session::Session;
use hyperscsi::login::directory::{Export, GroupAccess, TargetAccess, TargetDirectory as LoginDirectory};
use hyperscsi::pdu::name::{GroupName, Name};
use hyperscsi::pdu::parameters::Parameters;
use hyperscsi::target::contract::{Event, SessionDirectory};
use hyperscsi::target::engine::{Engine, EngineLimits};
use security::Level;
use transport::command::Cdb;
use transport::initiator::{InitiatorTransport as _, Request};
use transport::target::{Finish, SessionId, TargetTransport as _};

const LEN: u32 = 4096;
const PORT: EtherPort = EtherPort(0);
const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0];
const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 8, 0];
/// From one end to the other, and what a turn takes.
const TURN: Duration = Duration::from_micros(20);

/// Lets everybody in.
struct Open;

impl LoginDirectory for Open {
    fn instance(&self) -> [u8; 16] {
        [7; 16]
    }

    fn target_access(&self, _: EtherPort, _: &GroupName, _: &Name) -> Option<TargetAccess> {
        let parameters = Parameters { frame_max: 9000, ..EngineLimits::default().parameters };
        Some(TargetAccess { access: GroupAccess::Open, parameters, steering: 3 })
    }

    fn export_behind(&self, _: EtherPort, _: &GroupName, _: Option<&Name>) -> Option<Export> {
        None
    }

    fn sid_taken(&self, _: u32) -> bool {
        false
    }
}

impl SessionDirectory for Open {
    fn least_level(&self, _: SessionId, _: u64) -> Level {
        Level::None
    }
}

/// Frames on their way to an end.
#[derive(Default)]
struct Cable {
    frames: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    carried: u64,
}

impl Cable {
    fn carry(&mut self, batch: &mut FrameBatch, pool: &Pool) {
        for (_, _, pieces) in batch.frames() {
            let mut frame = self.spare.pop().unwrap_or_default();
            frame.clear();
            pieces.for_each(|piece| frame.extend_from_slice(piece));
            self.frames.push_back(frame);
            self.carried += 1;
        }
        batch.clear(pool);
    }
}

struct Target {
    engine: Engine,
    block: Bytes,
    batch: FrameBatch,
    pool: Pool,
}

struct Initiator {
    session: Session,
    block: Bytes,
    batch: FrameBatch,
    pool: Pool,
    command: &'static [u8],
    left: usize,
    done: usize,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let writes = arguments.next().is_some_and(|kind| kind == "write");
    let depth: usize = arguments.next().map_or(32, |depth| depth.parse().expect("a number of commands"));
    let count: usize = arguments.next().map_or(100_000, |count| count.parse().expect("a number of commands"));
    let [here, there] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
    let port = |mac: Mac| PortState { mac, mtu: 9000, receive_slots: 512 };
    let mut now = Instant(1);
    let mut target = {
        let pool = Pool::new(64 << 20);
        let mut engine = Engine::new(EngineLimits::default(), pool.clone());
        engine.port_up(now, PORT, &port(there), [1; 32]);
        Target { engine, block: block(), batch: FrameBatch::new(), pool }
    };
    let mut initiator = {
        let name = |text: &str| Name::new(text).expect("a name");
        let group = GroupName::new("group").expect("a name");
        let names = (name("iqn.2026-01.test:host"), name("iqn.2026-01.test:disks"));
        let mut plan = SessionPlan::new(names.0, [1; 6], group, None, names.1);
        plan.parameters.frame_max = 9000;
        let pool = Pool::new(64 << 20);
        let mut session = Session::new(now, plan, pool.clone());
        session.port_up(now, PORT, &port(here), [2; 32]);
        let command = if writes { &WRITE[..] } else { &READ[..] };
        Initiator { session, block: block(), batch: FrameBatch::new(), pool, command, left: 0, done: 0 }
    };
    let (mut out, mut back) = (Cable::default(), Cable::default());
    while initiator.done < count {
        if initiator.session.is_up() && initiator.left == 0 && initiator.done == 0 {
            initiator.left = count;
            initiator.refill(now, depth);
        }
        initiator_turn(&mut initiator, now, there, &mut back, &mut out);
        now = now.after(TURN);
        target_turn(&mut target, now, here, &mut out, &mut back);
        now = now.after(TURN);
    }
    println!(
        "{} x {LEN} bytes at depth {depth}: {:.3} frames each out, {:.3} back",
        if writes { "write" } else { "read" },
        out.carried as f64 / count as f64,
        back.carried as f64 / count as f64
    );
}

fn block() -> Bytes {
    let mut block = Buf::with_capacity(LEN as usize);
    block.append_zeros(LEN as usize);
    block.freeze()
}

/// What a wake-up of the target's reactor asks of its machine.
#[inline(never)]
fn target_turn(target: &mut Target, now: Instant, source: Mac, inbox: &mut Cable, send_queue: &mut Cable) {
    while let Some(mut payload) = inbox.frames.pop_front() {
        let frame =
            ReceivedFrame { port: PORT, source, group: false, age: Duration::ZERO, payload: &mut payload };
        target.engine.frame_received(now, frame, &Open);
        target.route();
        inbox.spare.push(payload);
    }
    if target.engine.poll_timeout().is_some_and(|at| at <= now) {
        target.engine.handle_timeout(now);
        target.route();
    }
    while let Some(port) = target.engine.poll_port() {
        loop {
            let before = target.batch.len();
            target.engine.transmit_frames(now, port, &mut target.batch);
            target.route();
            if target.batch.len() == before || target.batch.is_full() {
                break;
            }
        }
        send_queue.carry(&mut target.batch, &target.pool);
    }
    let _ = target.engine.poll_timeout();
}

impl Target {
    fn route(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::Command(command) if command.data_out_len > 0 => {
                    self.engine.fetch(command.task, 0, command.data_out_len);
                }
                Event::Command(command) => {
                    self.engine.data_in(command.task, 0, self.block.clone().into());
                    self.engine.finish(command.task, Finish::good(u64::from(command.data_in_len)));
                }
                Event::DataOut { task, data, .. } => {
                    let len = data.len() as u64;
                    data.into_parts().for_each(|part| self.pool.recycle(part));
                    self.engine.finish(task, Finish::good(len));
                }
                _ => {}
            }
        }
    }
}

/// What a wake-up of the initiator's reactor asks of its machine.
#[inline(never)]
fn initiator_turn(
    initiator: &mut Initiator,
    now: Instant,
    source: Mac,
    inbox: &mut Cable,
    send_queue: &mut Cable,
) {
    while let Some(mut payload) = inbox.frames.pop_front() {
        let frame =
            ReceivedFrame { port: PORT, source, group: false, age: Duration::ZERO, payload: &mut payload };
        initiator.session.frame_received(now, frame);
        inbox.spare.push(payload);
    }
    if initiator.session.poll_timeout().is_some_and(|at| at <= now) {
        initiator.session.handle_timeout(now);
    }
    let mut over = 0;
    while let Some(event) = initiator.session.poll_event() {
        if let Told::Done { outcome, .. } = event {
            assert!(outcome.end.is_good(), "{:?}", outcome.end);
            outcome.data_in.into_iter().for_each(|data| initiator.pool.recycle(data));
            over += 1;
        }
    }
    initiator.done += over;
    initiator.refill(now, over);
    while let Some(port) = initiator.session.poll_port() {
        loop {
            let before = initiator.batch.len();
            initiator.session.transmit_frames(now, port, &mut initiator.batch);
            if initiator.batch.len() == before || initiator.batch.is_full() {
                break;
            }
        }
        send_queue.carry(&mut initiator.batch, &initiator.pool);
    }
    let _ = initiator.session.poll_timeout();
}

impl Initiator {
    fn refill(&mut self, now: Instant, wanted: usize) {
        for _ in 0..wanted.min(self.left) {
            self.left -= 1;
            let mut request = Request::new(0, Cdb::new(self.command).expect("a CDB"));
            match self.command == WRITE {
                true => request.data_out = DataList::from(self.block.clone()),
                false => request.data_in_len = LEN,
            }
            self.session.submit(now, request).expect("there is room");
        }
    }
}
