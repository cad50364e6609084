//! Tests of live upgrade: sessions move to another engine while commands are under way, on a wire that loses,
//! duplicates and reorders frames.

use std::collections::BTreeSet;

use base::ether::{EtherPort, Mac};
use base::rng::Rng;
use base::time::Duration;
use hyperscsi::aead::KeyLimits;
use hyperscsi::connection::PathView;
use hyperscsi::connection::handover::ConnectionStateError;
use hyperscsi::frame::{Cmd, Flags, Header};
use hyperscsi::initiator::contract::{Event, SessionLimits, SessionPlan};
use hyperscsi::target::engine::EngineLimits;
use hyperscsi::target::handover::{Busy, ResumeError, SessionState};
use netem::frame::{FramePlan, lossy};
use security::Level;
use transport::command::TaskAttribute;
use transport::initiator::{Request, TaskId};
use transport::target::{SessionId, TargetTransport as _};

use crate::world::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

impl World {
    /// Freezes the engine, and waits until it is idle.
    fn freeze(&mut self) {
        self.engine.freeze(self.now);
        assert!(self.run(60 * SECOND, |world| world.engine.busy().is_none()), "{:?}", self.engine.busy());
    }

    /// Exports every session, as the text that the other process gets.
    fn export(&mut self) -> Vec<String> {
        let sessions: Vec<SessionId> = self.engine.sessions().map(|view| view.session).collect();
        let export = |session| {
            let state = self.engine.export(self.now, session).unwrap();
            let text = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<SessionState>(&text).unwrap(), state);
            text
        };
        sessions.into_iter().map(export).collect()
    }

    /// Replaces the engine by that of another process, which resumes the sessions and is mute.
    fn replace(&mut self, states: &[String]) {
        self.restart_target();
        self.engine.freeze(self.now);
        for state in states {
            self.engine.resume(self.now, &serde_json::from_str(state).unwrap()).unwrap();
        }
        self.drain();
        assert_eq!(self.server.sessions.len(), states.len(), "each session is reported");
    }

    /// Moves all sessions to another engine, with a pause.
    fn hand_over(&mut self, pause: Duration) {
        self.freeze();
        let states = self.export();
        self.rest(pause);
        self.replace(&states);
        self.engine.thaw(self.now);
    }

    fn is_target(&self, mac: Mac) -> bool {
        self.sockets.iter().any(|socket| socket.who == Who::Target && socket.state.mac == mac)
    }

    /// Returns the first packet number that the target used twice in a session.
    fn number_used_twice(&self) -> Option<(u32, u64)> {
        let mut used = BTreeSet::new();
        let sent = self.capture.iter().filter(|(_, source, _)| self.is_target(*source));
        let headers = sent.filter_map(|(.., payload)| Some(Header::parse(payload).ok()?.0));
        headers
            .filter(|header| header.sid != 0)
            .find(|header| !used.insert((header.sid, header.protected, header.pn)))
            .map(|header| (header.sid, header.pn))
    }

    /// Returns how many frames the target sent.
    fn sent(&self) -> usize {
        self.capture.iter().filter(|(_, source, _)| self.is_target(*source)).count()
    }

    /// Sends everything once more that initiators sent in sessions so far. Returns how many frames.
    fn repeat_all(&mut self, from: usize) -> usize {
        let in_session = |payload: &[u8]| Header::parse(payload).is_ok_and(|(header, _)| header.sid != 0);
        let record: Vec<_> = self.capture[from..]
            .iter()
            .filter(|(to, _, payload)| self.is_target(*to) && in_session(payload))
            .cloned()
            .collect();
        for (to, source, payload) in &record {
            self.inject(*to, *source, payload);
        }
        record.len()
    }
}

fn state_of(text: &str) -> SessionState {
    serde_json::from_str(text).unwrap()
}

/// Random work of one round.
struct Round {
    tasks: Vec<(usize, TaskId)>,
    written: Vec<(usize, u64, u32, u32)>,
}

fn begin_round(world: &mut World, rng: &mut Rng, round: u64, counted: &mut u32) -> Round {
    let (mut tasks, mut written) = (Vec::new(), Vec::new());
    for index in 0..30_u32 {
        let at = rng.below(2) as usize;
        if rng.chance(1, 2) {
            *counted += 1;
            let attribute = TaskAttribute(1 + rng.below(3) as u8);
            tasks.push((at, world.count(at, rng.below(3), *counted, attribute)));
        } else {
            let (lun, lba, blocks) = (rng.below(3), 2 * index * 130, 1 + rng.below(260) as u32);
            tasks.push((at, world.write(at, lun, lba, blocks, round)));
            written.push((at, lun, lba, blocks));
        }
        if rng.chance(1, 6) {
            world.rest(Duration::from_micros(rng.below(500)));
        }
    }
    Round { tasks, written }
}

fn end_round(world: &mut World, round: u64, work: Round) {
    for (at, task) in work.tasks {
        world.good(at, task);
    }
    for (at, lun, lba, blocks) in work.written {
        let task = world.read(1 - at, lun, lba, blocks);
        assert!(world.good(1 - at, task) == pattern(lun, lba, blocks, round), "LUN {lun}, block {lba}");
    }
}

/// Returns a world of two initiators, whose faults, keys, levels and limits follow from the seed.
fn random_world(seed: u64) -> World {
    let password = (!seed.is_multiple_of(3)).then_some("sesame");
    let frames = if seed.is_multiple_of(2) { 1500 } else { u64::MAX };
    let key_limits = KeyLimits { frames, ..KeyLimits::default() };
    let mut limits = EngineLimits { key_limits, ..EngineLimits::default() };
    limits.parameters.exchanges = [4, 128][seed as usize / 2 % 2];
    let odds = [1000, 100, 30, 10][seed as usize % 4];
    let mut world = World::with(seed, lossy(odds, Duration::from_micros(200)), password, limits, 1500);
    world.config.levels = [(1, Level::Integrity), (2, Level::Encrypt)].into();
    if password.is_none() {
        world.config.levels.clear();
    }
    for isid in 1..=2 {
        let plan = world.plan_of(isid);
        let limits = SessionLimits { key_limits, ..plan.limits };
        world.join(SessionPlan { limits, level: Level::None, ..plan });
    }
    world.captures = true;
    world.up();
    world
}

#[test]
fn sessions_move_under_load_and_every_command_runs_once() {
    let (mut moved, mut thawed, mut updates) = (0, 0, 0);
    for seed in seeds(12) {
        println!("HYPER_SEED={seed}");
        let mut world = random_world(seed);
        let mut rng = Rng::from_seed(seed ^ 4711);
        let mut counted = 0;
        for round in 0..5 {
            let work = begin_round(&mut world, &mut rng, round, &mut counted);
            world.rest(Duration::from_micros(rng.below(3000)));
            let from = world.capture.len();
            world.freeze();
            updates += world.engine.stats().key_updates;
            let states = world.export();
            world.rest(MS * rng.below(450) as u32);
            if rng.chance(1, 4) {
                thawed += 1;
            } else {
                moved += 1;
                world.replace(&states);
                if rng.chance(1, 2) {
                    // The other process opened its socket before the export, and reads what came meanwhile.
                    world.engine.thaw(world.now);
                    world.repeat_all(from);
                }
            }
            world.engine.thaw(world.now);
            end_round(&mut world, round, work);
            // Time for updates of keys.
            world.rest(MS * 1100);
        }
        assert_eq!(world.server.counts.len(), counted as usize);
        assert!(world.server.counts.values().all(|count| *count == 1), "something ran twice");
        assert_eq!(world.number_used_twice(), None);
        for initiator in &world.initiators {
            assert_eq!((initiator.ups, initiator.down), (1, None), "one session all the time");
        }
        assert!(world.server.downs.is_empty(), "{:?}", world.server.downs);
        world.rest(2 * SECOND);
        world.is_clean();
    }
    println!("{moved} moved, {thawed} thawed, {updates} updates of keys");
    assert!(std::env::var("HYPER_SEED").is_ok() || (moved > 30 && thawed > 5 && updates > 10));
}

#[test]
fn an_engine_that_exported_is_mute_until_it_is_thawed() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(2, FramePlan::CLEAN, password);
        world.captures = true;
        world.join(world.plan_of(1));
        world.up();
        let task = world.count(0, 0, 1, TaskAttribute::SIMPLE);
        world.good(0, task);
        world.freeze();
        world.export();
        let sent = world.sent();
        let (waits, other) = (world.count(0, 0, 2, TaskAttribute::SIMPLE), world.plan_of(2));
        world.join(other);
        world.rest(400 * MS);
        assert_eq!((world.sent(), world.engine.poll_timeout()), (sent, None));
        assert_eq!(world.server.counts.len(), 1);
        world.engine.thaw(world.now);
        world.rest(100 * MS);
        assert!(world.initiators[0].ended.contains_key(&waits), "64 ms after the thaw at the latest");
        world.good(0, waits);
        world.up();
        assert_eq!(world.number_used_twice(), None);
        world.rest(2 * SECOND);
        world.is_clean();
    }
}

#[test]
fn a_moved_session_goes_on_at_once() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(2, FramePlan::CLEAN, password);
        world.captures = true;
        world.join(world.plan_of(1));
        world.up();
        let mut counted = 0;
        for pause in [0, 1, 20, 100, 450] {
            world.freeze();
            let states = world.export();
            let before = state_of(&states[0]);
            counted += 1;
            let waits = world.count(0, 0, counted, TaskAttribute::SIMPLE);
            world.rest(MS * pause);
            world.replace(&states);
            world.rest(10 * MS);
            assert!(!world.initiators[0].ended.contains_key(&waits), "the new engine is mute as well");
            world.engine.thaw(world.now);
            world.rest(100 * MS);
            assert!(world.initiators[0].ended.contains_key(&waits), "after a pause of {pause} ms");
            world.good(0, waits);
            world.freeze();
            let after = state_of(&world.export()[0]);
            world.engine.thaw(world.now);
            let names = |state: &SessionState| (state.target_sid, state.initiator_sid, state.isid);
            assert_eq!(names(&after), names(&before));
            assert_eq!(after.connection.paths[0].mtu, before.connection.paths[0].mtu);
            let space = usize::from(password.is_some());
            let sent = |state: &SessionState| state.connection.paths[0].spaces[space].sent;
            assert!(sent(&after) > sent(&before) + 1024, "numbers are left out");
        }
        assert_eq!((world.number_used_twice(), world.initiators[0].ups), (None, 1));
        assert!(world.server.counts.values().all(|count| *count == 1));
        world.rest(2 * SECOND);
        world.is_clean();
    }
}

#[test]
fn a_moved_session_gets_credit_before_it_needs_it() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(2, FramePlan::CLEAN, password);
        world.join(world.plan_of(1));
        world.up();
        world.rest(SECOND);
        for _ in 0..3 {
            world.hand_over(50 * MS);
            world.rest(2 * MS);
            world.freeze();
            let state = state_of(&world.export()[0]);
            let space = &state.connection.paths[0].spaces[usize::from(password.is_some())];
            assert!(space.allowed > space.sent, "{space:?}");
            world.engine.thaw(world.now);
        }
    }
}

#[test]
fn a_session_that_moves_often_in_silence_is_heard_again() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(2, FramePlan::CLEAN, password);
        world.captures = true;
        world.join(world.plan_of(1));
        world.up();
        let task = world.count(0, 0, 1, TaskAttribute::SIMPLE);
        world.good(0, task);
        world.rest(SECOND);
        world.sockets[1].unplugged = true;
        for _ in 0..20 {
            world.hand_over(50 * MS);
            world.rest(500 * MS);
        }
        world.sockets[1].unplugged = false;
        let task = world.count(0, 0, 2, TaskAttribute::SIMPLE);
        world.good(0, task);
        assert_eq!((world.number_used_twice(), world.initiators[0].ups), (None, 1));
    }
}

#[test]
fn a_frozen_engine_ends_what_was_begun_and_takes_what_is_in_the_window() {
    let mut limits = EngineLimits::default();
    limits.parameters.exchanges = 4;
    let mut world = World::with(3, FramePlan::CLEAN, Some("sesame"), limits, 1500);
    world.config.levels = [(0, Level::Encrypt)].into();
    world.join(world.plan_of(1));
    world.up();
    let task = world.count(0, 0, 0, TaskAttribute::SIMPLE);
    world.good(0, task);
    let lingers = world.submit(0, Request::new(0, cdb(LINGER, 0, 0)));
    world.rest(10 * MS);
    world.engine.freeze(world.now);
    let tasks: Vec<_> = (1..=20).map(|number| world.count(0, 0, number, TaskAttribute::SIMPLE)).collect();
    world.rest(300 * MS);
    let served = world.server.counts.len();
    assert!((2..=5).contains(&served), "{served}");
    assert!(
        matches!(world.engine.busy(), Some(Busy::Exchanges { count: 1, .. })),
        "{:?}",
        world.engine.busy()
    );
    let session = world.server.sessions[0];
    let busy = world.engine.export(world.now, session).unwrap_err();
    assert_eq!(
        busy.to_string(),
        "the HyperSCSI session of iqn.2026-01.test:host1 has open commands or functions (1)"
    );
    // A new initiator hears nothing, and is served later.
    world.join(world.plan_of(2));
    world.rest(300 * MS);
    assert_eq!(world.engine.sessions().count(), 1);
    world.engine.thaw(world.now);
    world.rest(100 * MS);
    assert_eq!(world.server.counts.len(), 21);
    for task in tasks {
        world.good(0, task);
    }
    world.up();
    world.initiators[0].session.abort(world.now, lingers).unwrap();
    world.end(0, lingers);
    world.rest(2 * SECOND);
    world.is_clean();
}

#[test]
fn what_is_not_idle_is_not_exported() {
    let mut world = World::new(4, FramePlan::CLEAN, None);
    let mut plan = world.plan_of(1);
    plan.parameters.lost_after_ms = 900;
    plan.retry = transport::initiator::Retry::NONE;
    world.join(plan);
    world.join(world.plan_of(2));
    world.up();
    world.rest(10 * MS);
    let [impatient, other] = world.server.sessions[..] else { panic!() };
    assert_eq!(world.engine.busy(), Some(Busy::NotFrozen));
    assert_eq!(world.engine.export(world.now, other), Err(Busy::NotFrozen));
    world.engine.freeze(world.now);
    assert!(matches!(world.engine.busy(), Some(Busy::Impatient { lost_after_ms: 900, .. })));
    assert!(matches!(world.engine.export(world.now, impatient), Err(Busy::Impatient { .. })));
    world.engine.close_session(world.now, impatient);
    assert_eq!(world.engine.busy(), Some(Busy::Events));
    world.rest(10 * MS);
    assert_eq!(world.engine.export(world.now, impatient), Err(Busy::Ended));
    // Data of a command that did not come.
    let sid = world.engine.sessions().next().unwrap().sids.1;
    let header = Header {
        tag: 7,
        last: true,
        fragment: 0,
        protected: false,
        cmd: Cmd::Request,
        flags: Flags::DATA.with(Flags::ELICITS),
        len: 512,
        sid,
        pn: 30,
        xid: 1,
        off: 512,
    };
    let (target, host) = (world.sockets[0].state.mac, world.sockets[2].state.mac);
    world.inject(target, host, &raw(&header, &[1; 512]));
    world.rest(10 * MS);
    assert!(matches!(world.engine.busy(), Some(Busy::OrphanData { .. })), "{:?}", world.engine.busy());
    assert!(matches!(world.engine.export(world.now, other), Err(Busy::OrphanData { .. })));
    world.engine.thaw(world.now);
    // The data is dropped when no command comes.
    world.rest(80 * SECOND);
    let lingers = world.submit(1, Request::new(0, cdb(LINGER, 0, 0)));
    world.rest(10 * MS);
    world.engine.freeze(world.now);
    assert!(matches!(world.engine.export(world.now, other), Err(Busy::Exchanges { .. })));
    // The result waits for its acknowledgement.
    world.sockets[2].unplugged = true;
    let task = *world.server.tasks.keys().next().unwrap();
    world.engine.finish(task, transport::target::Finish::good(0));
    world.server.tasks.clear();
    world.rest(10 * MS);
    assert!(matches!(world.engine.export(world.now, other), Err(Busy::Exchanges { count: 1, .. })));
    world.sockets[2].unplugged = false;
    world.rest(200 * MS);
    assert!(world.initiators[1].ended.contains_key(&lingers));
    assert_eq!(world.engine.busy(), None);
    assert!(world.engine.export(world.now, other).is_ok());
}

#[test]
fn what_was_received_before_the_move_is_refused_behind_it() {
    for password in [None, Some("sesame")] {
        for omits in [None, Some("replay window"), Some("exchange numbers")] {
            let mut world = World::new(5, FramePlan::CLEAN, password);
            world.captures = true;
            world.join(world.plan_of(1));
            world.up();
            for number in 0..20 {
                let task = world.count(0, 0, number, TaskAttribute::SIMPLE);
                world.good(0, task);
            }
            world.rest(SECOND);
            world.freeze();
            let mut states: Vec<_> = world.export().iter().map(|text| state_of(text)).collect();
            // The planted mistakes: a move that leaves out a part of the state.
            if omits.is_some() {
                for space in states[0].connection.paths.iter_mut().flat_map(|path| &mut path.spaces) {
                    (space.received, space.acknowledge) = (0, Vec::new());
                }
            }
            if omits == Some("exchange numbers") {
                for (xids, low) in states[0].xids.iter_mut().zip([0, 1 << 31]) {
                    (xids.low, xids.ahead) = (low, Vec::new());
                }
            }
            let states: Vec<_> = states.iter().map(|state| serde_json::to_string(state).unwrap()).collect();
            world.replace(&states);
            world.engine.thaw(world.now);
            let repeated = world.repeat_all(0) as u64;
            world.rest(10 * MS);
            let refused = world.engine.stats().drops.replayed;
            let twice = world.server.counts.values().filter(|count| **count > 1).count();
            match omits {
                None => assert_eq!((refused, twice), (repeated, 0)),
                Some("replay window") => assert!(refused < repeated / 2 && twice == 0, "the omission shows"),
                Some(_) => assert_eq!(twice, 20, "the omission shows"),
            }
        }
    }
}

#[test]
fn a_number_that_goes_back_is_noticed() {
    for password in [None, Some("sesame")] {
        for back in [0, 900, 2000] {
            let mut world = World::new(5, FramePlan::CLEAN, password);
            world.captures = true;
            world.join(world.plan_of(1));
            world.up();
            for number in 0..40 {
                let write = world.write(0, 0, number, 200, 1);
                let read = world.read(0, 0, number, 200);
                world.good(0, write);
                world.good(0, read);
            }
            world.freeze();
            let mut state = state_of(&world.export()[0]);
            for space in state.connection.paths.iter_mut().flat_map(|path| &mut path.spaces) {
                space.sent = space.sent.saturating_sub(back);
            }
            world.replace(&[serde_json::to_string(&state).unwrap()]);
            world.engine.thaw(world.now);
            world.rest(SECOND);
            let task = world.read(0, 0, 0, 200);
            world.rest(SECOND);
            // Up to 1024 numbers are left out. Further back is a planted mistake, which the check must find.
            assert_eq!(world.number_used_twice().is_some(), back > 1024, "{back} back");
            if back <= 1024 {
                world.good(0, task);
            }
        }
    }
}

#[test]
fn keys_move_in_every_phase_of_their_update() {
    let key_limits = KeyLimits { frames: 250, ..KeyLimits::default() };
    let limits = EngineLimits { key_limits, ..EngineLimits::default() };
    let mut world = World::with(6, lossy(50, Duration::from_micros(200)), Some("sesame"), limits, 1500);
    let plan = world.plan_of(1);
    let limits = SessionLimits { key_limits, ..plan.limits };
    world.join(SessionPlan { limits, level: Level::Encrypt, ..plan });
    world.captures = true;
    world.up();
    let (mut phases, mut unconfirmed) = (BTreeSet::new(), 0);
    for round in 0..120_u32 {
        let write = world.write(0, 0, round * 20, 20, 1);
        world.good(0, write);
        world.freeze();
        let states = world.export();
        let connection = state_of(&states[0]).connection;
        let keys = connection.keys.unwrap();
        phases.insert((keys.send.phase, keys.receive.phase));
        unconfirmed += u32::from(connection.key_unconfirmed);
        world.rest(MS);
        world.replace(&states);
        world.engine.thaw(world.now);
        let read = world.read(0, 0, round * 20, 20);
        assert!(world.good(0, read) == pattern(0, round * 20, 20, 1), "round {round}");
        world.rest(150 * MS);
    }
    assert_eq!(phases.len(), 4, "{phases:?}");
    assert!(world.initiators[0].session.stats().key_updates > 3);
    assert_eq!((world.number_used_twice(), world.initiators[0].ups), (None, 1));
    println!("{unconfirmed} moves with keys that were not confirmed");
}

#[test]
fn paths_move_and_those_without_a_port_are_left() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(7, FramePlan::CLEAN, password);
        world.captures = true;
        world.plug(Who::Target, EtherPort(1));
        world.join(world.plan_of(1));
        world.plug(Who::Initiator(0), EtherPort(1));
        world.up();
        let four = |world: &World| world.initiators[0].session.paths().filter(|path| path.is_up).count() == 4;
        assert!(world.run(20 * SECOND, four));
        world.hand_over(100 * MS);
        world.rest(100 * MS);
        assert!(four(&world), "all paths moved");
        assert_eq!(world.engine.sessions().next().unwrap().paths.len(), 4);
        // The next process does not have the second port. The initiator searches for paths no more.
        world.rest(10 * SECOND);
        world.freeze();
        let mut state = state_of(&world.export()[0]);
        state.map_ports(|port| Some(port).filter(|port| *port == EtherPort(0)));
        world.replace(&[serde_json::to_string(&state).unwrap()]);
        assert_eq!(world.engine.sessions().next().unwrap().paths.len(), 2);
        world.engine.thaw(world.now);
        let task = world.write(0, 0, 0, 500, 3);
        world.good(0, task);
        let task = world.read(0, 0, 0, 500);
        assert!(world.good(0, task) == pattern(0, 0, 500, 3));
        world.rest(SECOND);
        assert_eq!((world.number_used_twice(), world.initiators[0].ups), (None, 1));
        // The process serves the second port after all, and the initiator has not given up on it.
        assert!(
            world.run(10 * SECOND, four),
            "{:?}",
            world.initiators[0].session.paths().collect::<Vec<_>>()
        );
        let is_down = |event: &&Event| matches!(event, Event::PathDown { .. });
        assert_eq!(world.initiators[0].events.iter().filter(is_down).count(), 2, "it says that they went");
        world.freeze();
        assert_eq!(state_of(&world.export()[0]).connection.left_paths.len(), 2);
    }
}

#[test]
fn paths_move_although_their_port_has_no_link() {
    for password in [None, Some("sesame")] {
        for down in [0, 1] {
            let mut world = World::new(8, FramePlan::CLEAN, password);
            world.captures = true;
            world.plug(Who::Target, EtherPort(1));
            for at in 0..2 {
                world.join(world.plan_of(at as u8 + 1));
                world.plug(Who::Initiator(at), EtherPort(1));
            }
            world.up();
            let paths = |world: &World, at: usize| {
                world.initiators[at].session.paths().filter(|path| path.is_up).count()
            };
            let all = |world: &World| (0..2).all(|at| paths(world, at) == 4);
            assert!(world.run(20 * SECOND, all));
            // The target has proven the paths as well.
            world.rest(SECOND);
            world.sockets[down].unplugged = true;
            world.engine.port_down(world.now, EtherPort(down as u32));
            for pause in [SECOND, 40 * SECOND] {
                world.rest(pause);
                world.hand_over(100 * MS);
                for view in world.engine.sessions() {
                    assert_eq!(view.paths.len(), 4, "no path is left");
                    let is_right = |path: &PathView| path.is_up == (path.address.port.0 != down as u32);
                    assert!(view.paths.iter().all(is_right), "{:?}", view.paths);
                }
            }
            for at in 0..2 {
                let task = world.write(at, 0, 1000 * at as u32, 500, 3);
                world.good(at, task);
            }
            world.sockets[down].unplugged = false;
            world.port_up(down);
            assert!(world.run(10 * SECOND, all), "{:?}", world.engine.sessions().collect::<Vec<_>>());
            for at in 0..2 {
                let task = world.read(at, 0, 1000 * at as u32, 500);
                assert!(world.good(at, task) == pattern(0, 1000 * at as u32, 500, 3));
                assert_eq!(world.initiators[at].ups, 1);
            }
            assert_eq!(world.number_used_twice(), None);
        }
    }
}

/// Returns a world whose engine knows its port and has no session, and a state of a busy life for it.
fn state_and_world(password: Option<&'static str>) -> (World, SessionState) {
    let mut world = World::new(8, lossy(20, Duration::from_micros(200)), password);
    world.plug(Who::Target, EtherPort(1));
    world.join(world.plan_of(1));
    world.plug(Who::Initiator(0), EtherPort(1));
    world.up();
    for number in 0..10 {
        let task = world.write(0, 0, number * 10, 10, 1);
        world.good(0, task);
    }
    world.rest(SECOND);
    world.freeze();
    let mut state = state_of(&world.export()[0]);
    let left = state.connection.paths.len() as u8;
    state.connection.left_paths.push(hyperscsi::connection::handover::LeftPathState {
        path: left + 1,
        left_us: 5,
        sent: [4, 5],
        received: [6, 7],
        granted: [80, 90],
    });
    state.xids[0].ahead = vec![(2, 4), (7, 7)];
    world.restart_target();
    (world, state)
}

#[test]
fn a_state_that_cannot_be_is_refused_with_one_sentence() {
    type Change = fn(&mut SessionState);
    let changes: &[(Change, ResumeError)] = &[
        (|state| state.target = "disk".into(), ResumeError::Target),
        (|state| state.group.clear(), ResumeError::Group),
        (|state| state.initiator.push('A'), ResumeError::Initiator),
        (|state| state.parameters.exchanges = 0, ResumeError::Parameters),
        (|state| state.parameters.levels = 8, ResumeError::Parameters),
        (|state| state.parameters.repair = 2, ResumeError::Parameters),
        (|state| state.connection.keys = None, ResumeError::Parameters),
        (|state| state.xids[0].low = 1 << 31, ResumeError::Xids),
        (|state| state.xids[1].ahead = vec![(1, 1)], ResumeError::Xids),
        (|state| state.xids[0].ahead = vec![(5, 6), (6, 7)], ResumeError::Xids),
        (|state| state.xids[0].ahead = vec![(5, u32::MAX)], ResumeError::Xids),
        (|state| state.target_sid = 0, ResumeError::NoSid),
        (|state| state.connection.paths.clear(), ResumeError::Connection(ConnectionStateError::PathCount)),
        (
            |state| state.connection.paths[1].path = state.connection.paths[0].path,
            ResumeError::Connection(ConnectionStateError::PathTwice { path: 0 }),
        ),
        (
            |state| state.connection.paths[0].spaces[1].sent = u64::MAX,
            ResumeError::Connection(ConnectionStateError::Path { path: 0 }),
        ),
        (
            |state| state.connection.paths[0].spaces[0].acknowledge = vec![(5, 4)],
            ResumeError::Connection(ConnectionStateError::Path { path: 0 }),
        ),
        (
            |state| state.connection.paths[0].peer = [255; 6],
            ResumeError::Connection(ConnectionStateError::Path { path: 0 }),
        ),
        (|state| state.map_ports(|_| None), ResumeError::Connection(ConnectionStateError::NoPort)),
        (
            |state| state.connection.xid_limits = [1 << 31; 2],
            ResumeError::Connection(ConnectionStateError::XidLimit),
        ),
    ];
    let (mut world, good) = state_and_world(Some("sesame"));
    for (change, error) in changes {
        let mut state = good.clone();
        change(&mut state);
        assert_eq!(world.engine.resume(world.now, &state), Err(*error));
        assert_eq!(world.engine.sessions().count(), 0);
    }
    let mut stranger = good.clone();
    stranger.isid = [9; 6];
    assert!(world.engine.resume(world.now, &good).is_ok());
    let sid = good.target_sid;
    assert_eq!(world.engine.resume(world.now, &stranger), Err(ResumeError::SidTaken { sid }));
    stranger.isid = good.isid;
    stranger.target_sid += 1;
    assert_eq!(world.engine.resume(world.now, &stranger), Err(ResumeError::Twice));
    let mut empty = hyperscsi::target::engine::Engine::new(EngineLimits::default(), world.pool.clone());
    assert_eq!(empty.resume(world.now, &good), Err(ResumeError::NotReady));
    let field = serde_json::to_string(&good).unwrap().replacen("\"isid\"", "\"color\":1,\"isid\"", 1);
    assert!(serde_json::from_str::<SessionState>(&field).is_err(), "an unknown field");
    let secret = format!("{good:?}");
    assert!(secret.contains("SecretState(…)"), "secrets are not displayed");
}

/// Changes a random place of a document.
fn mutate(value: &mut serde_json::Value, rng: &mut Rng) {
    use serde_json::Value;
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let at = rng.below(fields.len() as u64) as usize;
            if let Some(field) = fields.values_mut().nth(at) {
                mutate(field, rng);
            }
        }
        Value::Array(items) if !items.is_empty() && rng.chance(7, 8) => {
            let at = rng.below(items.len() as u64) as usize;
            match rng.below(10) {
                0 => _ = items.remove(at),
                1 => items.push(items[at].clone()),
                2 => items.resize(300, items[at].clone()),
                _ => mutate(&mut items[at], rng),
            }
        }
        Value::Number(_) => {
            let numbers = [0, 1, 2, 3, 255, 256, 4096, 65_535, 1 << 31, 1 << 32, 1 << 55, 1 << 56, u64::MAX];
            let base = numbers[rng.below(numbers.len() as u64) as usize];
            let number = if rng.chance(1, 2) { base } else { value.as_u64().unwrap_or(0) };
            let step = rng.below(4);
            let number = if rng.chance(1, 2) { number.wrapping_add(step) } else { number.wrapping_sub(step) };
            *value = number.into();
        }
        Value::Bool(flag) => *flag = !*flag,
        Value::String(text) => {
            if rng.chance(1, 2) {
                text.pop();
            } else {
                text.push_str("é0");
            }
        }
        _ => *value = rng.next_u64().into(),
    }
}

#[test]
fn a_changed_document_never_panics() {
    for (password, base) in [(None, 0), (Some("sesame"), 10_000)] {
        let (mut world, good) = state_and_world(password);
        let document = serde_json::to_value(&good).unwrap();
        let (mut taken, mut refused, mut unread) = (0, 0, 0);
        for seed in seeds(1500) {
            let mut rng = Rng::from_seed(base + seed);
            let mut mutant = document.clone();
            for _ in 0..=rng.below(3) {
                mutate(&mut mutant, &mut rng);
            }
            let Ok(state) = serde_json::from_value::<SessionState>(mutant) else {
                unread += 1;
                continue;
            };
            world.restart_target();
            match world.engine.resume(world.now, &state) {
                Err(why) => {
                    assert!(!why.to_string().is_empty());
                    refused += 1;
                }
                Ok(_) => {
                    taken += 1;
                    // The session lives, is pinged and lost in the end.
                    world.rest(Duration::from_millis(20));
                    world.engine.freeze(world.now);
                    world.rest(Duration::from_millis(20));
                    let sessions: Vec<_> = world.engine.sessions().map(|view| view.session).collect();
                    for session in sessions {
                        let _ = world.engine.export(world.now, session);
                    }
                    world.engine.thaw(world.now);
                    world.rest(Duration::from_millis(20));
                }
            }
        }
        println!("{taken} taken, {refused} refused, {unread} unread");
        assert!(std::env::var("HYPER_SEED").is_ok() || taken > 50 && refused > 50 && unread > 50);
    }
}
