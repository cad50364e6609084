//! Sessions move from one engine to another while their initiator works: every command is executed once, and
//! all data is right.

extern crate std;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use std::sync::Mutex;

use base::rng::Rng;
use base::time::Duration;
use transport::initiator::TaskId;

use super::pair::*;
use super::passwords;
use super::together::random_keys;
use crate::aead::AeadDigest;
use crate::negotiate::{DigestPolicy, KeyPolicy};
use crate::pdu::Opcode;
use crate::serial::CmdSn;
use crate::target::engine::Limits;
use crate::target::handover::BusyReason;
use crate::trace::{PduTrace, TracedPdu};

/// The sessions of a run are handed over about so many times.
const HAND_OVERS: u32 = 12;

/// Watches the command window that the target shows: MaxCmdSN must never go back, and ExpCmdSN neither.
#[derive(Debug, Default)]
struct WindowWatch(Mutex<Shown>);

#[derive(Debug, Default)]
struct Shown {
    last: Option<(CmdSn, CmdSn)>,
    pdus: u64,
    /// Whether MaxCmdSN must not advance now.
    is_frozen: bool,
}

impl PduTrace for WindowWatch {
    fn selects(&self, _: &str, _: Option<&str>, _: [u8; 6]) -> bool {
        true
    }

    fn takes_protected(&self) -> bool {
        true
    }

    fn carries_secret(&self, _: &[u8]) -> bool {
        false
    }

    fn opened(&self, _: SocketAddr, _: SocketAddr) -> u64 {
        0
    }

    fn record(&self, _: u64, pdu: &TracedPdu<'_>) {
        if pdu.received || Opcode(pdu.header[0] & 0x3f) == Opcode::LOGIN_RESPONSE {
            return;
        }
        let number = |at: usize| CmdSn(u32::from_be_bytes(*pdu.header[at..].first_chunk::<4>().unwrap()));
        let (exp, max) = (number(28), number(32));
        let mut shown = self.0.lock().unwrap();
        shown.pdus += 1;
        assert!(!max.before(exp.minus(1)), "the window is {exp:?} to {max:?}");
        if let Some((last_exp, last_max)) = shown.last {
            assert!(!exp.before(last_exp), "ExpCmdSN goes back from {last_exp:?} to {exp:?}");
            assert!(!max.before(last_max), "MaxCmdSN goes back from {last_max:?} to {max:?}");
            assert!(!shown.is_frozen || max == last_max, "MaxCmdSN advances from {last_max:?} to {max:?}");
        }
        shown.last = Some((exp, max));
    }

    fn closed(&self, _: u64) {}

    fn has_ended(&self) -> bool {
        false
    }
}

/// A session under load.
struct Load {
    pair: Pair,
    rng: Rng,
    watch: Arc<WindowWatch>,
    /// What each slot of the medium holds once its request has ended.
    expected: Vec<u8>,
    /// The open requests, by their slots.
    open: BTreeMap<usize, OpenRequest>,
    depth: usize,
    next_id: u32,
    done: u32,
}

/// A request: its task, the number and the data of a write, and its length in bytes.
type OpenRequest = (TaskId, Option<(u32, Vec<u8>)>, usize);

const SLOTS: usize = 64;
const SLOT_LEN: usize = MEDIUM / SLOTS;

/// Prints the seed of a run that failed.
struct Blame(u64);

impl Drop for Blame {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::eprintln!("TARGE_SEED={}", self.0);
        }
    }
}

/// Runs `test` with many seeds, or with the one in `TARGE_SEED`.
fn with_seeds(count: u64, test: impl Fn(u64)) {
    let seed = std::env::var("TARGE_SEED").ok().and_then(|seed| seed.parse().ok());
    let count = std::env::var("TARGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(count);
    for seed in seed.map_or(0..count, |seed: u64| seed..seed + 1) {
        let _blame = Blame(seed);
        test(seed);
    }
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[usize::try_from(rng.below(u64::try_from(from.len()).unwrap())).unwrap()]
}

impl Load {
    /// Begins a session of a random kind. `faults` are those of its connections, if they have digests and the
    /// session recovers from them.
    fn new(seed: u64, faults: Faults) -> Self {
        let mut rng = Rng::from_seed(seed);
        let is_faulty = faults.budget > 0;
        let level =
            if is_faulty { 1 + u8::try_from(seed % 2).unwrap() } else { u8::try_from(seed % 3).unwrap() };
        let digest = (!is_faulty && rng.chance(1, 3)).then(|| pick(&mut rng, &AeadDigest::ALL));
        let policy = match (is_faulty, rng.chance(1, 2)) {
            (false, false) => DigestPolicy::RequireNone,
            _ => DigestPolicy::RequireCrc32c,
        };
        let mut keys = || KeyPolicy {
            error_recovery_level: level,
            header_digest: policy,
            data_digest: policy,
            ..random_keys(&mut rng)
        };
        let mut setup = Setup { seed, digest, target_keys: keys(), ..Setup::default() };
        setup.plan.keys = keys();
        setup.plan.connections = 1 + u16::try_from(rng.below(4)).unwrap();
        setup.target_limits = Limits { queue_depth: pick(&mut rng, &[1, 2, 8, 128]), ..setup.target_limits };
        let mut pair = Pair::up(setup);
        pair.faults = faults;
        let watch = Arc::new(WindowWatch::default());
        assert_eq!(pair.engine.start_trace(watch.clone()), 1);
        let expected = pair.medium.clone();
        let depth = pick(&mut rng, &[1, 4, 32]);
        Self { pair, rng, watch, expected, open: BTreeMap::new(), depth, next_id: 1, done: 0 }
    }

    /// Begins reads and writes up to the queue depth, each in a slot of its own.
    fn begin(&mut self) {
        while self.open.len() < self.depth {
            let slot = usize::try_from(self.rng.below(u64::try_from(SLOTS).unwrap())).unwrap();
            if self.open.contains_key(&slot) {
                continue;
            }
            let most = pick(&mut self.rng, &[512, 4096, SLOT_LEN]);
            let len = 1 + usize::try_from(self.rng.below(u64::try_from(most).unwrap())).unwrap();
            let lba = u32::try_from(slot * SLOT_LEN / 512).unwrap();
            let (task, written) = if self.rng.chance(1, 2) {
                let (id, data) = (self.next_id, pattern(self.rng.next_u64(), len));
                self.next_id += 1;
                (self.pair.submit(write(lba, id, &data)), Some((id, data)))
            } else {
                (self.pair.submit(read(lba, u32::try_from(len).unwrap())), None)
            };
            self.open.insert(slot, (task, written, len));
        }
    }

    /// Checks the requests that have ended.
    fn check_done(&mut self) {
        use crate::initiator::contract::Event;
        let ended: Vec<TaskId> = (self.pair.events.iter())
            .filter_map(|event| if let Event::Done { task, .. } = event { Some(*task) } else { None })
            .collect();
        for task in ended {
            let slot = *self.open.iter().find(|(_, (open, ..))| *open == task).unwrap().0;
            let (_, written, len) = self.open.remove(&slot).unwrap();
            let outcome = self.pair.outcome(task);
            assert!(outcome.end.is_good(), "{outcome:?}");
            let place = &mut self.expected[slot * SLOT_LEN..][..len];
            match written {
                Some((id, data)) => {
                    assert_eq!(self.pair.executed.get(&id), Some(&1), "write {id} is executed once");
                    place.copy_from_slice(&data);
                }
                None => {
                    assert!(outcome.data_in.as_deref() == Some(&*place), "a read of {len} in slot {slot}")
                }
            }
            self.done += 1;
        }
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.begin();
            self.pair.one_step();
            self.check_done();
        }
    }

    fn freeze(&mut self) {
        self.pair.engine.freeze(self.pair.now);
        self.watch.0.lock().unwrap().is_frozen = true;
    }

    fn thaw(&mut self) {
        self.watch.0.lock().unwrap().is_frozen = false;
        self.pair.engine.thaw(self.pair.now);
    }

    /// Moves the frozen session to a new engine.
    fn move_session(&mut self) {
        let trace: Arc<dyn PduTrace> = self.watch.clone();
        self.watch.0.lock().unwrap().is_frozen = false;
        self.pair.move_sessions(&trace);
        self.check_done();
    }

    /// Ends all requests, and checks the medium and that nothing is left over.
    fn end(mut self) -> u32 {
        let mut steps = 0;
        while !self.open.is_empty() {
            self.pair.one_step();
            self.check_done();
            steps += 1;
            assert!(steps < 1_000_000, "requests hang: {:?}", self.pair.engine.busy());
        }
        assert!(self.pair.medium == self.expected, "the medium holds what was written");
        assert!(self.pair.executed.values().all(|times| *times == 1));
        assert_eq!((self.pair.engine.stats().bugs, self.pair.session.stats().bugs), (0, 0));
        assert_eq!(self.pair.session.stats().sessions_rebuilt, 0);
        self.done
    }
}

#[test]
fn a_session_under_load_moves_again_and_again_and_its_initiator_notices_nothing() {
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# The target MUST NOT transmit a MaxCmdSN that is less than ExpCmdSN - 1.
    let moves = Mutex::new(0);
    with_seeds(24, |seed| {
        let mut load = Load::new(seed, Faults::default());
        let logins = load.pair.engine.stats().logins;
        assert!(logins > 0);
        for _ in 0..HAND_OVERS {
            let steps = load.rng.below(300);
            load.run(steps);
            load.freeze();
            // While the engine becomes idle, the initiator still issues requests.
            for _ in 0..load.rng.below(40) {
                load.run(1);
            }
            let idle = load.pair.become_idle(Duration::from_secs(1));
            assert_eq!(idle, Ok(()));
            load.move_session();
            *moves.lock().unwrap() += 1;
        }
        load.run(200);
        assert_eq!(load.pair.engine.stats().logins, 0, "nobody had to log in again");
        assert_eq!(load.pair.session.stats().connections_lost, 0);
        let done = load.end();
        assert!(done > 20, "{done} requests ended");
    });
    let moves = *moves.lock().unwrap();
    assert!(moves >= HAND_OVERS, "{moves} moves");
}

#[test]
fn a_frozen_engine_that_thaws_at_any_moment_goes_on_as_before() {
    with_seeds(16, |seed| {
        let mut load = Load::new(seed, Faults::default());
        for _ in 0..HAND_OVERS {
            let steps = load.rng.below(100);
            load.run(steps);
            load.freeze();
            match load.rng.below(3) {
                0 => {
                    let steps = load.rng.below(100);
                    load.run(steps);
                }
                1 => assert_eq!(load.pair.become_idle(Duration::from_secs(1)), Ok(())),
                _ => {
                    assert_eq!(load.pair.become_idle(Duration::from_secs(1)), Ok(()));
                    load.begin();
                    // A hand-over that fails after the export.
                    assert_eq!(load.pair.export().len(), 1);
                }
            }
            load.thaw();
        }
        load.run(200);
        assert_eq!(load.pair.session.stats().connections_lost, 0);
        assert!(load.end() > 20);
    });
}

#[test]
fn sessions_that_recover_from_faults_move_when_they_are_idle_and_thaw_when_they_are_not() {
    let counts = Mutex::new([0u32; 3]);
    with_seeds(24, |seed| {
        let cuts = if seed % 2 == 1 { 3_000 } else { 0 };
        let faults = Faults { flips_up: 10, flips_down: 10, cuts, budget: 16, ..Faults::default() };
        let mut load = Load::new(seed, faults);
        for _ in 0..HAND_OVERS {
            let steps = load.rng.below(100);
            load.run(steps);
            load.freeze();
            // A lost connection whose tasks wait for reassignment keeps the engine busy for long.
            match load.pair.become_idle(Duration::from_secs(1)) {
                Ok(()) => {
                    load.check_done();
                    load.move_session();
                    counts.lock().unwrap()[0] += 1;
                }
                Err(busy) => {
                    load.check_done();
                    assert!(busy.reason.can_end(), "{busy}");
                    counts.lock().unwrap()[1] += u32::from(busy.reason == BusyReason::LostConnection);
                    load.thaw();
                }
            }
        }
        counts.lock().unwrap()[2] += load.pair.injected;
        load.end();
    });
    let [moved, lost, injected] = *counts.lock().unwrap();
    assert!(moved > 0 && injected > 0, "{moved} moved, {lost} lost connections, {injected} faults");
}

#[test]
fn a_session_with_a_password_login_moves_and_its_lost_connection_logs_in_again() {
    for at in 0..passwords::EACH.len() {
        let mut pair = passwords::pair("correct horse", 3, &passwords::EACH[at..=at]);
        pair.pass(Duration::from_secs(1));
        assert_eq!(pair.session.stats().logins, 3);
        let trace: Arc<dyn PduTrace> = Arc::new(WindowWatch::default());
        for round in 0..10 {
            pair.engine.freeze(pair.now);
            assert_eq!(pair.become_idle(Duration::from_secs(1)), Ok(()));
            pair.move_sessions(&trace);
            let data = pattern(round, 40_000);
            let written = pair.submit(write(64, u32::try_from(round).unwrap(), &data));
            pair.settle(round, Duration::from_secs(5));
            assert!(pair.outcome(written).end.is_good());
            let task = pair.submit(read(64, 40_000));
            pair.settle(round, Duration::from_secs(5));
            assert_eq!(pair.outcome(task).data_in.as_deref(), Some(&data[..]));
        }
        assert_eq!(pair.session.stats().logins, 3);
        assert_eq!(pair.target_sessions.last().unwrap().user.as_deref(), Some("alice"));
        pair.cut_slot(1);
        pair.pass(Duration::from_secs(5));
        assert_eq!((pair.session.stats().logins, pair.engine.stats().logins), (4, 1), "{:?}", pair.events);
        assert_eq!(pair.session.stats().sessions_rebuilt, 0);
        assert_eq!(pair.session.stats().bugs + pair.engine.stats().bugs, 0);
    }
}
