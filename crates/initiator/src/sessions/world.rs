//! Tests the retries and timeouts of commands in simulated runs from seeds: a whole session against a target
//! that resets, hangs, refuses and drops connections as the seed says. In every run the properties below
//! hold.

mod aborts;
mod identity;
mod target;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;

use base::buffer::{Buf, Pool};
use base::rng::Rng;
use base::state_machine::{AcceptInfo, Action, ConnId, DisconnectReason, PortalId, StreamMachine};
use base::time::{Duration, Instant};
use base::transmit::Transmit;
use iscsi::initiator::contract::{Portal, Purpose, SessionPlan};
use iscsi::login::directory::TargetAddress;
use iscsi::name::Isid;
use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::opcode;
use scsi::sense::Asc;
use transport::task_management::TmfFunction;

use super::{DriverEvent, DriverRequest, Event, Path, SessionId, Sessions};
use crate::command::{Command, CommandError, Reply};
use crate::fault_injection::{Bug, inject};
use crate::login::ProtocolPlan;
use target::{Habits, Target};

/// The command timeout.
const LIMIT: Duration = Duration::from_secs(2);
/// The data of a read arrives in two pieces of this many bytes.
const PIECE: u32 = 512;
/// How long the target causes faults, and how long after that all commands must have ended.
const TROUBLE: Duration = Duration::from_secs(10);
const CALM: Duration = Duration::from_secs(120);

/// How many seeds a test run tries; the environment variable `SEEDS` sets another number.
const SEEDS: u64 = 60;

/// A property that holds in every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Property {
    /// A path comes up, goes down, and comes up again, while the session is up.
    PathsAlternate,
    /// Every command ends, and its end is reported once.
    EndsOnce,
    /// A command that is not repeatable is never sent again once it may have been executed.
    NeverTwice,
    /// No command is sent again while the target still has it.
    OneAttemptAtATime,
    /// All data of a read comes from the attempt that succeeded.
    DataOfLastAttempt,
    /// A command without a response is aborted at its timeout.
    LimitIsKept,
    /// A command that a reset ended is retried, or fails, before its timeout.
    ResetIsNoticed,
}

type Wrong = (Property, String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// A command that is not repeatable.
    Once,
    /// An attention check, which the session sends to a silent unit.
    Look,
}

/// A command that was submitted.
struct Given {
    kind: Kind,
    ends: u32,
    at: Instant,
    error: Option<CommandError>,
}

struct World {
    now: Instant,
    rng: Rng,
    sessions: Sessions,
    id: SessionId,
    target: Target,
    given: BTreeMap<u64, Given>,
    conns: u32,
    /// The paths that are up; `None` while the session is not up.
    paths: Option<BTreeSet<Path>>,
    /// A connection whose socket is full: nothing is sent on it.
    full: Option<ConnId>,
    /// How many commands are kept under way.
    depth: usize,
    /// The frequency of resets by another initiator, and of cuts, in parts per thousand of the turns.
    resets: u64,
    cuts: u64,
    wrongs: Vec<Wrong>,
    /// The longest time that a command took.
    longest: Duration,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        let mut some = |of: u64, most: u64| if rng.chance(1, of) { 1 + rng.below(most) } else { 0 };
        let habits = Habits {
            hangs: some(2, 60),
            busy: some(2, 200),
            conflicts: some(3, 50),
            fails: some(2, 300),
            late_attentions: some(3, 500),
            deaf_to_aborts: some(4, 1) > 0,
            deaf_to_resets: some(3, 1) > 0,
            tells_aborts: some(3, 1) > 0,
            rejects_aborts: some(4, 1) > 0,
            ..Habits::default()
        };
        let (resets, cuts) = (some(2, 20), some(3, 5));
        Self::with(seed, rng, habits, resets, cuts)
    }

    fn with(seed: u64, rng: Rng, habits: Habits, resets: u64, cuts: u64) -> Self {
        Self::with_connections(seed, rng, habits, (resets, cuts), 1)
    }

    fn with_connections(
        seed: u64,
        rng: Rng,
        habits: Habits,
        (resets, cuts): (u64, u64),
        connections: u16,
    ) -> Self {
        let mut sessions = Sessions::new(Pool::new(1 << 20));
        let now = Instant(1_000_000_000);
        let portal = Portal { address: TargetAddress::Socket(([192, 0, 2, 1], 3260).into()) };
        let target = Purpose::Target("iqn.2026-01.com.example:disk".parse().unwrap());
        let initiator = "iqn.2026-01.com.example:host".parse().unwrap();
        let mut plan = SessionPlan::new(initiator, Isid::random([1, 2, 3], 4), target, vec![portal]);
        plan.keys.error_recovery_level = 0;
        plan.keys.default_time2wait = 0;
        plan.connections = connections;
        let id = sessions.open(now, ProtocolPlan::from(plan));
        sessions.limit_commands(now, id, Some(LIMIT));
        Self {
            now,
            rng,
            sessions,
            id,
            target: Target::new(seed ^ 0x5eed, habits),
            given: BTreeMap::new(),
            conns: 0,
            paths: None,
            full: None,
            depth: 4,
            resets,
            cuts,
            wrongs: Vec::new(),
            longest: Duration::ZERO,
        }
    }

    /// Processes all events that are due now.
    fn settle(&mut self) {
        loop {
            let mut errands = Vec::new();
            let mut any = self.sessions.process_pending(self.now, &mut errands);
            for errand in errands {
                let DriverRequest::Connect(number, ..) = errand else { panic!("{errand:?}") };
                self.attempt(number);
                any = true;
            }
            while let Some(action) = self.sessions.poll_action() {
                any = true;
                match action {
                    Action::Transmit(conn) if self.full == Some(conn) => {}
                    Action::Transmit(conn) => self.transmit(conn),
                    Action::Close(conn) | Action::Abort(conn) => self.disconnect(conn),
                }
            }
            while let Some(event) = self.sessions.events.pop_front() {
                any = true;
                match event {
                    DriverEvent::Finished { token, result, .. } => self.finished(token, result),
                    DriverEvent::Session { event, .. } => self.reported(&event),
                    _ => {}
                }
            }
            self.target.work(self.now);
            for conn in self.target.ends.keys().copied().collect::<Vec<_>>() {
                self.target.read(self.now, conn);
                let Some(end) = self.target.ends.get_mut(&conn) else { continue };
                let (bytes, close) = (std::mem::take(&mut end.outbox), end.close);
                any |= !bytes.is_empty() || close;
                if !bytes.is_empty() {
                    self.sessions.received(self.now, conn, &bytes);
                }
                if close && self.target.ends.contains_key(&conn) {
                    self.disconnect(conn);
                }
            }
            if !any {
                return;
            }
        }
    }

    fn reported(&mut self, event: &Event) {
        let is_legal = match (event, &mut self.paths) {
            (Event::Up(_), None) => {
                self.paths = Some(BTreeSet::new());
                true
            }
            (Event::PathUp { path }, Some(paths)) => paths.insert(path.clone()),
            (Event::PathDown { path, .. }, Some(paths)) => paths.remove(path),
            (Event::PathFailed { path, .. }, Some(paths)) => !paths.contains(path),
            (Event::Recovering | Event::Down(_), up) => up.take().is_none_or(|up| up.is_empty()),
            (Event::Up(_), Some(_)) | (Event::PathUp { .. } | Event::PathDown { .. }, None) => false,
            _ => true,
        };
        let wrong = || (Property::PathsAlternate, format!("{event:?} with {:?} up", self.paths));
        self.wrongs.extend((!is_legal).then(wrong));
    }

    fn attempt(&mut self, number: u32) {
        if self.cuts > 0 && self.rng.chance(1, 4) {
            let why = io::Error::from(io::ErrorKind::ConnectionRefused);
            return self.sessions.dial_failed(self.now, number, &why);
        }
        let conn = ConnId(self.conns);
        self.conns += 1;
        self.target.connect(conn);
        let address = ([192, 0, 2, 1], 3260).into();
        let arrival =
            AcceptInfo { portal: PortalId(number), local: address, peer: address, entropy: [9; 32] };
        self.sessions.connected(self.now, conn, &arrival);
    }

    fn transmit(&mut self, conn: ConnId) {
        loop {
            let mut out = Transmit::new();
            self.sessions.transmit(self.now, conn, &mut out);
            if let Some(end) = self.target.ends.get_mut(&conn) {
                end.inbox.extend(out.pieces().flatten());
            }
            let full = out.is_full();
            out.clear(&Pool::new(0));
            if !full {
                return;
            }
        }
    }

    fn disconnect(&mut self, conn: ConnId) {
        self.target.disconnect(conn);
        self.sessions.disconnected(self.now, conn, DisconnectReason::Failed);
    }

    fn submit(&mut self) {
        let kind = [Kind::Read, Kind::Write, Kind::Once][self.rng.below(3) as usize];
        self.submit_a(kind, true);
    }

    fn submit_a(&mut self, kind: Kind, absorbs_attentions: bool) {
        let id = self.given.len() as u64;
        let code = match kind {
            Kind::Read => opcode::READ_16,
            Kind::Write => opcode::WRITE_16,
            Kind::Once | Kind::Look => opcode::COMPARE_AND_WRITE,
        };
        let mut cdb = [0; 16];
        cdb[0] = code;
        cdb[2..10].copy_from_slice(&id.to_be_bytes());
        let mut command = Command::new(Lun(0), Cdb::from_16(cdb));
        command.repeatable = kind != Kind::Once;
        command.absorbs_attentions = absorbs_attentions;
        if kind == Kind::Read {
            command.data_in_len = 2 * PIECE;
        } else {
            let mut data = Buf::with_capacity(512);
            data.append_zeros(512);
            command.data_out = data.freeze().into();
        }
        self.given.insert(id, Given { kind, ends: 0, at: self.now, error: None });
        self.sessions.submit(self.now, self.id, id, command);
    }

    fn finished(&mut self, token: u64, result: Result<Reply, CommandError>) {
        let Some(given) = self.given.get_mut(&token) else { panic!("nobody gave command {token}") };
        given.ends += 1;
        self.longest = self.longest.max(self.now.since(given.at));
        if given.ends > 1 {
            self.wrongs.push((Property::EndsOnce, format!("{token} ended again")));
        }
        given.error = result.as_ref().err().cloned();
        if let (Kind::Read, Ok(reply)) = (given.kind, result) {
            let good = self.target.records.get(&token).and_then(|record| record.good);
            let wanted = good.unwrap_or(u64::MAX).to_be_bytes();
            let whole = reply.bytes().len() == 2 * PIECE as usize;
            if !whole || reply.bytes().chunks(8).any(|word| word != wanted) {
                let what = format!("{token} has data of another attempt than {good:?}");
                self.wrongs.push((Property::DataOfLastAttempt, what));
            }
        }
    }

    fn open(&self) -> usize {
        self.given.values().filter(|given| given.ends == 0).count()
    }

    /// Returns whether the session executes any command, of a caller or its own.
    fn carries(&self) -> bool {
        let entry = &self.sessions.entries[&self.id];
        entry.tasks.iter().flatten().chain(&entry.ended).next().is_some()
    }

    fn pass_for(&mut self, span: Duration) {
        let end = self.now.after(span);
        while self.now < end {
            self.pass(end);
        }
    }

    /// Advances the time to the next event, at most to `end`.
    fn pass(&mut self, end: Instant) {
        let due = [self.sessions.poll_timeout(), self.target.next()];
        let at = due.into_iter().flatten().chain([end]).min().unwrap_or(end);
        self.now = at.max(self.now);
        if self.sessions.poll_timeout().is_some_and(|at| at <= self.now) {
            self.sessions.handle_timeout(self.now);
        }
        self.settle();
    }

    fn run(mut self) -> Result<Self, Wrong> {
        let end = self.now.after(TROUBLE);
        self.settle();
        while self.now < end && self.is_well() {
            while self.open() < self.depth {
                self.submit();
            }
            self.settle();
            if self.rng.below(1000) < self.resets {
                self.target.reset_by_another();
            }
            if self.rng.below(1000) < self.cuts
                && let Some(conn) = self.target.ends.keys().next().copied()
            {
                self.disconnect(conn);
            }
            self.pass(end);
        }
        self.target.habits = Habits::default();
        let end = end.after(CALM);
        while (self.open() > 0 || self.carries()) && self.now < end && self.is_well() {
            self.pass(end);
        }
        if let Some(wrong) = self.wrongs.drain(..).chain(self.target.wrongs.drain(..)).next() {
            return Err(wrong);
        }
        match self.given.iter().find(|(_, given)| given.ends == 0) {
            Some((id, given)) => Err((Property::EndsOnce, format!("{:?} {id} never ended", given.kind))),
            None if self.carries() => {
                Err((Property::LimitIsKept, "a question of the session itself is left alone".to_owned()))
            }
            None => Ok(self),
        }
    }

    fn is_well(&self) -> bool {
        self.wrongs.is_empty() && self.target.wrongs.is_empty()
    }
}

/// Runs a session with one event: a reset by another initiator, which ends eight commands without a response.
fn silent_reset() -> Result<(), Wrong> {
    let habits = Habits { hangs: 1000, ..Habits::default() };
    let mut world = World::with(1, Rng::from_seed(1), habits, 0, 0);
    world.settle();
    for _ in 0..8 {
        world.submit();
        world.settle();
    }
    world.target.habits = Habits::default();
    world.target.reset_by_another();
    assert_eq!(world.target.seen.get("commands ended without a word"), Some(&8));
    // None of the commands makes progress, so the session sends the unit an attention check.
    let end = world.now.after(LIMIT / 2);
    while world.now < end {
        world.pass(end);
    }
    let left = world.open();
    if left == 0 { Ok(()) } else { Err((Property::ResetIsNoticed, format!("{left} commands wait for ever"))) }
}

/// Runs a session whose attention check hangs at the target and is ended without a response by a reset of
/// another initiator.
fn lost_question() -> Result<(), Wrong> {
    let mut world = hanging(Kind::Once);
    world.target.habits = Habits::default();
    world.target.reset_by_another();
    world.pass_for(LIMIT * 10);
    assert_eq!(world.open(), 0);
    let wrong = (Property::LimitIsKept, "the session's own question is left alone".to_owned());
    if world.carries() { Err(wrong) } else { Ok(()) }
}

/// Creates a run in which a command of a caller hangs, and the attention check of the silent unit too.
fn hanging(kind: Kind) -> World {
    let mut world = silent(kind);
    world.pass_for(LIMIT / 4);
    assert_eq!(world.target.seen.get("commands that hang"), Some(&2), "the unit is not asked");
    world
}

/// Creates a run in which a command of a caller hangs.
fn silent(kind: Kind) -> World {
    let habits = Habits { hangs: 1000, ..Habits::default() };
    let mut world = World::with(1, Rng::from_seed(1), habits, 0, 0);
    world.settle();
    world.submit_a(kind, true);
    world.settle();
    world
}

fn outcome(seed: u64) -> Result<BTreeMap<&'static str, u32>, Wrong> {
    World::new(seed).run().map(|world| world.target.seen)
}

#[test]
fn whatever_a_target_does_the_properties_hold() {
    //= rfc7143#section-7.11
    //= type=test
    //# On a ULP timeout for a command (that carried a CmdSN of n), if the iSCSI initiator intends to continue
    //# the session it MUST abort the command by using either an appropriate Task Management Function Request
    //# for the specific command or a "close the connection" logout.
    let mut seen = BTreeMap::<&str, u32>::new();
    for seed in 0..std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS) {
        match outcome(seed) {
            Ok(more) => more.iter().for_each(|(what, count)| *seen.entry(what).or_default() += count),
            Err((property, what)) => panic!("seed {seed}: {property:?}: {what}"),
        }
    }
    for what in [
        "resets by another initiator",
        "commands ended without a word",
        "commands that hang",
        "reads that failed with half their data",
        "ABORT TASK",
        "LOGICAL UNIT RESET",
    ] {
        assert!(seen.get(what).is_some_and(|count| *count > 5), "{what}: {seen:?}");
    }
}

#[test]
fn what_another_initiators_reset_ended_without_a_word_ends_before_the_limit() {
    silent_reset().unwrap_or_else(|(property, what)| panic!("{property:?}: {what}"));
}

#[test]
fn planted_bugs_are_found_by_the_property_that_they_break() {
    for (flaw, property) in [
        (Bug::RetryUnended, Property::OneAttemptAtATime),
        (Bug::RepeatAll, Property::NeverTwice),
        (Bug::ForgetLimit, Property::LimitIsKept),
        (Bug::EndTwice, Property::EndsOnce),
        (Bug::ForgetEnd, Property::EndsOnce),
        (Bug::KeepData, Property::DataOfLastAttempt),
        (Bug::IgnoreAttention, Property::ResetIsNoticed),
        (Bug::KeepLook, Property::LimitIsKept),
    ] {
        inject(Some(flaw));
        let found = match property {
            Property::ResetIsNoticed => silent_reset().err(),
            _ if flaw == Bug::KeepLook => lost_question().err(),
            _ => (0..SEEDS).find_map(|seed| outcome(seed).err()),
        };
        inject(None);
        assert_eq!(found.as_ref().map(|(broken, _)| *broken), Some(property), "{flaw:?}: {found:?}");
    }
}

#[test]
fn a_question_of_our_own_that_gets_no_answer_ends() {
    lost_question().unwrap_or_else(|(property, what)| panic!("{property:?}: {what}"));
}

#[test]
fn a_question_that_was_sent_before_a_reset_ends_with_it() {
    let mut world = hanging(Kind::Once);
    world.target.habits = Habits::default();
    world.target.reset_by_another();
    // A command of a caller receives the unit attention of the reset first.
    world.submit_a(Kind::Write, true);
    world.settle();
    world.pass_for(Duration::from_millis(100));
    assert_eq!((world.open(), world.carries()), (0, false));
}

#[test]
fn who_wants_attentions_for_himself_gets_those_that_our_question_took() {
    let mut world = silent(Kind::Once);
    world.target.habits = Habits::default();
    world.target.change_modes();
    world.pass_for(LIMIT / 4);
    assert_eq!(world.target.attentions_left(), 0, "the unit is not asked");
    for told in [true, false] {
        let token = world.given.len() as u64;
        world.submit_a(Kind::Write, false);
        world.settle();
        world.pass_for(LIMIT / 8);
        let sense = world.given[&token].error.as_ref().and_then(CommandError::sense).map(|sense| sense.asc);
        assert_eq!((world.given[&token].ends, sense.is_some()), (1, told));
        assert!(!told || sense == Some(Asc::MODE_PARAMETERS_CHANGED));
    }
}

#[test]
fn a_unit_that_carries_out_others_is_not_reset_for_one_command() {
    for works in [true, false] {
        let mut world = silent(Kind::Once);
        world.target.habits =
            Habits { hangs: if works { 0 } else { 1000 }, deaf_to_aborts: true, ..Habits::default() };
        let end = world.now.after(LIMIT * 4);
        while world.now < end {
            if world.open() < 2 {
                world.submit_a(Kind::Write, true);
                world.settle();
            }
            world.pass(end);
        }
        assert_ne!(world.given[&0].ends, 0, "it hangs for ever");
        assert_eq!(world.target.seen.contains_key("LOGICAL UNIT RESET"), !works);
    }
}

#[test]
fn a_command_whose_abort_was_lost_is_ended_by_the_next_attention() {
    let mut world = silent(Kind::Write);
    let (id, now) = (world.id, world.now);
    let entry = world.sessions.entries.get_mut(&id).unwrap();
    let mut events = VecDeque::new();
    for order in [100, 101] {
        entry.note_attention(now, id, (Lun(0), Some(order)), Asc::BUS_DEVICE_RESET_OCCURRED, &mut events);
        assert!(entry.send_aborts(now), "attention {order} ends nothing");
        let manage = entry.overdue.last_abort().unwrap();
        entry.tmf_done(now, id, manage, None, &mut events);
    }
}

/// HyperSCSI reports every aborted task alike, without saying which initiator aborted it. A task is retried
/// only if no caller here, and not the session itself, aborted it.
#[test]
fn what_is_wanted_ended_here_is_told_from_what_others_end() {
    let habits = Habits { hangs: 1000, ..Habits::default() };
    let mut world = World::with(1, Rng::from_seed(1), habits, 0, 0);
    world.settle();
    for _ in 0..3 {
        world.submit();
        world.settle();
    }
    let (id, now) = (world.id, world.now);
    let tasks = [0, 1, 2].map(|token| world.sessions.task_of(id, token).unwrap());
    let wanted = |world: &World| tasks.map(|task| world.sessions.entries[&id].wants_ended(task));
    assert_eq!(wanted(&world), [false; 3]);
    world.sessions.abort(now, id, 100, 1);
    assert_eq!(wanted(&world), [false, true, false]);
    world.sessions.submit_tmf(now, id, 101, (TmfFunction::LOGICAL_UNIT_RESET, Lun(1 << 48), None));
    assert_eq!(wanted(&world), [false, true, false], "another unit is reset");
    world.sessions.submit_tmf(now, id, 102, (TmfFunction::LOGICAL_UNIT_RESET, Lun(0), None));
    assert_eq!(wanted(&world), [true; 3]);
}
