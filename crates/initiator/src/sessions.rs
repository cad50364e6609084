//! Several sessions as one machine for one reactor: which connection is whose, what each session asks of its owner,
//! and which commands wait for what.

mod abort;
pub(crate) mod frames;
mod guard;
mod loss;
mod news;
mod overdue;
mod owed;
mod stream;
#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    clippy::panic,
    reason = "all of this is test code, where a panic is the verdict"
)]
mod world;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::ops::Bound;

use base::buffer::Pool;
use base::ether::EtherPort;
use base::state_machine::ConnId;
use base::time::Instant;
use hyperscsi::login::{Done, Job};
use iscsi::initiator::Session;
use iscsi::initiator::contract::{
    ConnectionView, Event as Asked, Notice, Outcome, Refusal, Since, Slot, Stats,
};
use iscsi::login::directory::TargetAddress;
use iscsi::pdu::tmf_request::TmfFunction;
use scsi::lun::Lun;
use scsi::sense::{Sense, SenseKey};

use crate::care::{Care, Pending};
use crate::carrier::{Carrier, Ether, Manage, Task, Told};
use crate::command::{Command, CommandError};
use crate::down::{self, SessionDown, Why};
use crate::login::Plan;
use crate::planted::{self, Flaw};

pub use news::{Event, News, Step, Up};

/// Names a session of a driver. Names are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u32);

/// The most commands of a session that wait: because it has as many under way as it may, or because their unit is busy.
/// A program that gives more has lost count of them.
pub const WAITING_MAX: usize = 1 << 16;

/// Sessions, by their numbers.
pub(crate) struct Sessions {
    pool: Pool,
    seats: BTreeMap<SessionId, Seat>,
    /// How the next session is called.
    next_id: u32,
    /// Which session a connection belongs to.
    routes: Vec<Option<SessionId>>,
    dials: BTreeMap<u32, Dial>,
    next_dial: u32,
    /// Connections that nobody wants any more.
    orphans: VecDeque<ConnId>,
    /// Names that other threads have resolved.
    resolved: VecDeque<(u32, io::Result<Vec<SocketAddr>>)>,
    ports: frames::Ports,
    /// Slow steps of handshakes that other threads have done.
    stretched: VecDeque<(SessionId, Done)>,
    pub(crate) events: VecDeque<Event>,
    /// How the names of sessions of HyperSCSI begin, so that the kernel knows their frames.
    pub(crate) sid_first: NonZeroU8,
}

struct Seat {
    session: Carrier,
    /// What the session works on, by the index of its task.
    tasks: Vec<Option<Pending>>,
    /// What it has ended, but not told of yet, and whose index it has given to another task meanwhile.
    ended: Vec<Pending>,
    /// Task management requests of callers. One that is told may have given its index to another.
    manages: BTreeMap<Manage, overdue::Asked>,
    /// What is done for commands that get no answer.
    overdue: overdue::Overdue,
    /// Units whose device is looked at again in every new session.
    wards: BTreeMap<Lun, guard::Ward>,
    /// What the session had no room for.
    waiting: VecDeque<Pending>,
    /// What is tried again later.
    delayed: BTreeMap<(Instant, u64), Pending>,
    delays: u64,
    /// What the system said of the last connection that could not be opened.
    system: Option<String>,
    parted: loss::Parted,
    down: Option<SessionDown>,
    /// Whether its owner has forgotten it.
    forgotten: bool,
}

/// A connection that is being opened.
struct Dial {
    session: SessionId,
    slot: Slot,
    /// Addresses to try, after the one that is being tried.
    next: VecDeque<SocketAddr>,
    current: Option<SocketAddr>,
    name: String,
}

/// What the reactor, or a resolver, has to do for a session.
#[derive(Debug)]
pub(crate) enum Errand {
    /// Connect, and call back with this number.
    Connect(u32, SocketAddr),
    /// Find the addresses of a host, and call [`Sessions::resolved`] with this number.
    Resolve(u32, String, u16),
    /// Open an interface under this number, or call [`Sessions::port_failed`] with it.
    OpenPort(EtherPort, String),
    /// Do the slow step of a handshake, and call [`Sessions::job_done`].
    Stretch(SessionId, Box<Job>),
}

impl Sessions {
    pub(crate) fn new(pool: Pool) -> Self {
        Self {
            pool,
            seats: BTreeMap::new(),
            next_id: 0,
            routes: Vec::new(),
            dials: BTreeMap::new(),
            next_dial: 0,
            orphans: VecDeque::new(),
            resolved: VecDeque::new(),
            ports: frames::Ports::default(),
            stretched: VecDeque::new(),
            events: VecDeque::new(),
            sid_first: frames::random_byte(),
        }
    }

    /// Begins a session.
    pub(crate) fn open(&mut self, now: Instant, plan: Plan) -> SessionId {
        let id = SessionId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        let pool = self.pool.clone();
        let session = match plan {
            Plan::Iscsi(plan) => Carrier::Iscsi(Box::new(Session::new(now, *plan, pool))),
            Plan::HyperScsi(mut plan) => {
                plan.session.sid_first = Some(self.sid_first);
                Carrier::HyperScsi(Box::new(Ether {
                    session: hyperscsi::initiator::session::Session::new(now, plan.session, pool),
                    interfaces: plan.interfaces,
                }))
            }
        };
        let seat = Seat {
            session,
            tasks: Vec::new(),
            ended: Vec::new(),
            manages: BTreeMap::new(),
            overdue: overdue::Overdue::new(),
            wards: BTreeMap::new(),
            waiting: VecDeque::new(),
            delayed: BTreeMap::new(),
            delays: 0,
            system: None,
            parted: loss::Parted::default(),
            down: None,
            forgotten: false,
        };
        self.seats.insert(id, seat);
        self.plug_in(now, id);
        id
    }

    /// Returns whether a session that ended has still something to say.
    pub(crate) fn have_last_words(&self) -> bool {
        self.seats.values().any(|seat| seat.session.has_last_words())
    }

    /// Forgets a session that is down, once its last words are said.
    pub(crate) fn forget(&mut self, id: SessionId) {
        if let Some(seat) = self.seats.get_mut(&id).filter(|seat| seat.down.is_some()) {
            seat.forgotten = true;
        }
        self.seats.retain(|_, seat| !seat.forgotten || seat.session.is_parting());
    }

    pub(crate) fn session(&mut self, id: SessionId) -> Option<&mut Carrier> {
        self.seat(id).map(|seat| &mut seat.session)
    }

    /// Returns a session that is one of iSCSI.
    pub(crate) fn iscsi(&mut self, id: SessionId) -> Result<&mut Session, Refusal> {
        self.session(id).ok_or(Refusal::Down)?.iscsi().ok_or(Refusal::NotPossible)
    }

    pub(crate) fn stats(&self, id: SessionId) -> Option<Stats> {
        let seat = self.seats.get(&id)?;
        Some(seat.session.stats())
    }

    pub(crate) fn connections(&self, id: SessionId) -> Option<Vec<ConnectionView>> {
        let seat = self.seats.get(&id)?;
        match &seat.session {
            Carrier::Iscsi(session) => Some(session.connections().collect()),
            Carrier::HyperScsi(_) => Some(Vec::new()),
        }
    }

    /// Returns whether every session has ended.
    pub(crate) fn all_down(&self) -> bool {
        self.seats.values().all(|seat| seat.down.is_some())
    }

    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.seats.iter().filter(|(_, seat)| !seat.forgotten).map(|(id, _)| *id).collect()
    }

    /// Takes a command. What comes of it is an event, always.
    pub(crate) fn submit(&mut self, now: Instant, id: SessionId, token: u64, command: Command) {
        match self.seats.get_mut(&id) {
            Some(seat) => seat.start(now, id, Pending::new(token, command), &mut self.events),
            None => {
                let result = Err(CommandError::Refused(Refusal::Down));
                self.events.push_back(Event::Finished { session: id, token, result });
            }
        }
    }

    /// Takes a task management request for a unit. What comes of it is an event, always.
    pub(crate) fn manage(
        &mut self,
        now: Instant,
        id: SessionId,
        token: u64,
        what: (TmfFunction, Lun, Option<Task>),
    ) {
        let (function, lun, task) = what;
        let taken = self.seat(id).and_then(|seat| {
            let manage = seat.session.manage(now, function, lun.0, task).ok()?;
            seat.asked(now, manage, overdue::Asked::new(now, token, function, lun));
            Some(())
        });
        if taken.is_none() {
            self.events.push_back(Event::Managed { session: id, token, result: None });
        }
    }

    /// Finds the task that carries a command.
    pub(crate) fn task_of(&self, id: SessionId, token: u64) -> Option<Task> {
        let seat = self.seats.get(&id)?;
        seat.tasks.iter().flatten().find(|pending| pending.token == token).and_then(|pending| pending.task)
    }

    /// Takes note that a connection could not be opened.
    pub(crate) fn dial_failed(&mut self, now: Instant, number: u32, why: &io::Error) -> Option<Errand> {
        let dial = self.dials.get_mut(&number)?;
        let told = match dial.current {
            Some(address) => down::unreachable(address, why),
            None => down::unresolved(&dial.name, why),
        };
        if let Some(address) = dial.next.pop_front() {
            dial.current = Some(address);
            return Some(Errand::Connect(number, address));
        }
        let Dial { session, slot, .. } = self.dials.remove(&number)?;
        if let Some(seat) = self.seat(session) {
            seat.system = Some(told);
            if let Some(session) = seat.session.iscsi() {
                session.connect_failed(now, slot);
            }
        }
        None
    }

    /// Takes the addresses of a host that was looked up.
    pub(crate) fn host_resolved(&mut self, number: u32, found: io::Result<Vec<SocketAddr>>) {
        self.resolved.push_back((number, found));
    }

    /// Gathers what sessions ask for and what they tell. Returns whether there was anything; what is to be done for
    /// them is added to `errands`.
    pub(crate) fn collect(&mut self, now: Instant, errands: &mut Vec<Errand>) -> bool {
        self.seats.retain(|_, seat| !seat.forgotten || seat.session.is_parting());
        let mut any = false;
        while let Some((number, found)) = self.resolved.pop_front() {
            errands.extend(self.host_found(now, number, found));
            any = true;
        }
        let mut last = Bound::Unbounded;
        while let Some((&id, _)) = self.seats.range((last, Bound::Unbounded)).next() {
            last = Bound::Excluded(id);
            loop {
                while let Some(told) = self.session(id).and_then(Carrier::poll_event) {
                    match told {
                        Told::Iscsi(asked) => self.heed(now, id, asked, errands),
                        Told::HyperScsi(asked) => self.heed_ether(now, id, asked),
                    }
                    any = true;
                }
                let Some(seat) = self.seats.get_mut(&id) else { break };
                seat.advance(now, id, &mut self.events);
                // What is to end may end at once, which the session tells.
                if !seat.end_attempts(now) {
                    break;
                }
            }
        }
        any | self.ether_errands(now, errands)
    }

    fn host_found(
        &mut self,
        now: Instant,
        number: u32,
        found: io::Result<Vec<SocketAddr>>,
    ) -> Option<Errand> {
        let found = found.and_then(|found| {
            if found.is_empty() { Err(io::Error::other("it has no address")) } else { Ok(found) }
        });
        match found {
            Ok(found) => {
                let dial = self.dials.get_mut(&number)?;
                dial.next = found.into();
                let first = dial.next.pop_front()?;
                dial.current = Some(first);
                Some(Errand::Connect(number, first))
            }
            Err(why) => self.dial_failed(now, number, &why),
        }
    }

    fn heed(&mut self, now: Instant, id: SessionId, asked: Asked, errands: &mut Vec<Errand>) {
        let news = match asked {
            Asked::Connect { slot, to } => return errands.push(self.dial(id, slot, to)),
            Asked::Forget { slot } => {
                self.note_slow(id, slot);
                return self.dials.retain(|_, dial| (dial.session, dial.slot) != (id, slot));
            }
            Asked::Done { task, outcome } => {
                let Some(seat) = self.seats.get_mut(&id) else { return };
                return seat.done(now, id, Task::Iscsi(task), outcome, &mut self.events);
            }
            Asked::Managed { id: manage, result } => {
                let Some(seat) = self.seats.get_mut(&id) else { return };
                return seat.managed(now, id, Manage::Iscsi(manage), result, &mut self.events);
            }
            Asked::Up(up) => {
                if let Some(seat) = self.seats.get_mut(&id) {
                    seat.system = None;
                    if up.since == Since::Rebuilt {
                        seat.ask_who_is_there(now, id, &mut self.events);
                    }
                }
                News::Up(Box::new(Up::Iscsi(*up)))
            }
            Asked::ConnectionUp { slot, parameters } => News::PathUp { slot, parameters },
            Asked::ConnectionDown { slot, why } => {
                self.note_parted(id, why);
                News::PathLost { slot, why }
            }
            Asked::Recovering => {
                self.note_away(id);
                News::Recovering
            }
            Asked::Down(why) => {
                let Some(seat) = self.seats.get_mut(&id) else { return };
                let down = SessionDown { why: Why::Iscsi(why), system: seat.system.take() };
                seat.down = Some(down.clone());
                // What waited here is told before the end is.
                seat.advance(now, id, &mut self.events);
                News::Down(down)
            }
            Asked::Targets { targets, ignored } => News::Targets(targets, ignored),
            Asked::TextFailed => News::TextFailed,
            Asked::TextDone { answer } => News::Agreed(pairs(&answer)),
            Asked::Notice(notice) => News::Notice(notice),
            Asked::Redirected { to, .. } => News::Redirected(to),
        };
        if let News::Notice(Notice { message, sense: Some(sense), .. }) = &news
            && let Ok(sense) = Sense::parse(sense)
            && sense.key == SenseKey::UNIT_ATTENTION
        {
            let news = News::Attention { lun: Lun(message.lun), asc: sense.asc };
            self.events.push_back(Event::Session { session: id, news });
        }
        self.events.push_back(Event::Session { session: id, news });
    }

    fn dial(&mut self, session: SessionId, slot: Slot, to: TargetAddress) -> Errand {
        let number = self.next_dial;
        self.next_dial = self.next_dial.wrapping_add(1);
        let mut dial = Dial { session, slot, next: VecDeque::new(), current: None, name: String::new() };
        let errand = match to {
            TargetAddress::Socket(address) => {
                dial.current = Some(address);
                Errand::Connect(number, address)
            }
            TargetAddress::Host { name, port } => {
                dial.name.clone_from(&name);
                Errand::Resolve(number, name, port)
            }
        };
        self.dials.insert(number, dial);
        errand
    }

    /// Keeps what is known of a connection that took too long.
    fn note_slow(&mut self, id: SessionId, slot: Slot) {
        let late = io::Error::from(io::ErrorKind::TimedOut);
        let told = self.dials.values().find(|dial| (dial.session, dial.slot) == (id, slot)).map(|dial| {
            dial.current
                .map_or_else(|| down::unresolved(&dial.name, &late), |at| down::unreachable(at, &late))
        });
        if let (Some(told), Some(seat)) = (told, self.seat(id)) {
            seat.system = Some(told);
        }
    }

    fn seat(&mut self, id: SessionId) -> Option<&mut Seat> {
        self.seats.get_mut(&id)
    }

    fn owner(&mut self, conn: ConnId) -> Option<&mut Session> {
        let id = (*self.routes.get(index(conn.0))?)?;
        self.session(id)?.iscsi()
    }
}

impl Seat {
    /// Hands a command to the session, or keeps it until there is room.
    fn start(&mut self, now: Instant, id: SessionId, pending: Pending, events: &mut VecDeque<Event>) {
        if pending.is_probe && self.down.is_some() {
            return;
        }
        if let Some(down) = &self.down {
            let result = Err(CommandError::Down(down.clone()));
            return events.push_back(Event::Finished { session: id, token: pending.token, result });
        }
        if let Some(why) = self.refuses(&pending) {
            let result = Err(why);
            return events.push_back(Event::Finished { session: id, token: pending.token, result });
        }
        // What was taken once keeps its place.
        let is_new = !pending.is_again() && !pending.is_probe;
        if is_new && self.waiting.len() + self.delayed.len() >= WAITING_MAX {
            let result = Err(CommandError::Refused(Refusal::Full));
            return events.push_back(Event::Finished { session: id, token: pending.token, result });
        }
        if self.waiting.is_empty() || !is_new {
            match self.session.submit(now, &pending) {
                Ok(task) => return self.carried_by(now, task, pending),
                Err(Refusal::Full) if !pending.is_probe => {}
                Err(why) if pending.is_probe => {
                    return self.probed(now, id, pending, Err(CommandError::Refused(why)), events);
                }
                Err(why) => {
                    let result = Err(CommandError::Refused(why));
                    return events.push_back(Event::Finished { session: id, token: pending.token, result });
                }
            }
        }
        self.waiting.push_back(pending);
    }

    /// Notes which task carries a command.
    fn carried_by(&mut self, now: Instant, task: Task, mut pending: Pending) {
        pending.task = Some(task);
        pending.attempt = self.overdue.attempt(now);
        let before = self.tasks.get_mut(index(task.index())).and_then(Option::take);
        self.ended.extend(before);
        put_at(&mut self.tasks, task.index(), pending);
    }

    /// Finds the command that a task carried.
    fn take(&mut self, task: Task) -> Option<Pending> {
        let place = self.tasks.get_mut(index(task.index()))?;
        let mut pending = match place.take_if(|pending| pending.task == Some(task)) {
            Some(pending) => pending,
            None => {
                let at = self.ended.iter().position(|pending| pending.task == Some(task))?;
                self.ended.swap_remove(at)
            }
        };
        pending.task = None;
        Some(pending)
    }

    /// Returns how many bytes the command that a task carries expected to move: those that come, or else those that go.
    fn expected(&self, task: Task) -> u32 {
        let here = self.tasks.get(index(task.index())).and_then(Option::as_ref);
        let mut known = here.into_iter().chain(&self.ended);
        known.find(|pending| pending.task == Some(task)).map_or(0, |pending| {
            let Command { data_in_len, data_out, .. } = &pending.command;
            match data_in_len {
                0 => u32::try_from(data_out.len()).unwrap_or(u32::MAX),
                len => *len,
            }
        })
    }

    fn done(
        &mut self,
        now: Instant,
        id: SessionId,
        task: Task,
        outcome: Outcome,
        events: &mut VecDeque<Event>,
    ) {
        let Some(mut pending) = self.take(task) else { return };
        let (lun, serial) = (pending.command.lun, pending.attempt.serial);
        self.overdue.note_end(&pending, &outcome);
        if pending.is_look {
            return self.looked(now, id, pending, outcome, events);
        }
        let (care, attention) = pending.judge(now, outcome);
        let care = match (care, self.forbids(&pending)) {
            (Care::Over(Ok(reply)), _) => Care::Over(Ok(reply)),
            (_, Some(why)) => Care::Over(Err(why)),
            (Care::Over(Err(CommandError::Lost(_))), None) => {
                Care::Over(Err(CommandError::Lost(self.loss())))
            }
            (care, None) => care,
        };
        if let Some(asc) = attention {
            self.note_attention(now, id, (lun, serial), asc, events);
        }
        match care {
            Care::Over(result) if pending.is_probe => self.probed(now, id, pending, result, events),
            Care::Over(Err(CommandError::Silence | CommandError::Cleared(_)))
                if planted::is(Flaw::ForgetEnd) => {}
            Care::Over(result) => {
                if planted::is(Flaw::EndTwice) && pending.is_again() {
                    let result = result.clone();
                    events.push_back(Event::Finished { session: id, token: pending.token, result });
                }
                events.push_back(Event::Finished { session: id, token: pending.token, result })
            }
            Care::Again => self.start(now, id, pending, events),
            Care::At(at) => {
                self.delays += 1;
                self.delayed.insert((at, self.delays), pending);
            }
        }
    }

    /// Hands over what waited, as far as there is room and its time has come. Once the session is down, nothing waits.
    fn advance(&mut self, now: Instant, id: SessionId, events: &mut VecDeque<Event>) {
        while let Some(entry) = self.delayed.first_entry()
            && (entry.key().0 <= now || self.down.is_some())
        {
            let pending = entry.remove();
            self.start(now, id, pending, events);
        }
        while let Some(pending) = self.waiting.pop_front() {
            if self.down.is_some() {
                self.start(now, id, pending, events);
                continue;
            }
            let refused = self.refuses(&pending).map_or(Ok(()), Err);
            match refused.and_then(|()| Ok(self.session.submit(now, &pending)?)) {
                Ok(task) => self.carried_by(now, task, pending),
                Err(CommandError::Refused(Refusal::Full)) => return self.waiting.push_front(pending),
                Err(why) => {
                    let result = Err(why);
                    events.push_back(Event::Finished { session: id, token: pending.token, result });
                }
            }
        }
    }
}

/// Splits the text of an answer into names and values. The session has read it, so it is a text.
fn pairs(answer: &[u8]) -> Vec<(String, String)> {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let pairs = iscsi::text::parse(answer).unwrap_or_default();
    pairs.iter().map(|pair| (pair.name.to_owned(), text(pair.value))).collect()
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn put_at<T>(table: &mut Vec<Option<T>>, number: u32, value: T) {
    let at = index(number);
    if table.len() <= at {
        table.resize_with(at + 1, || None);
    }
    if let Some(place) = table.get_mut(at) {
        *place = Some(value);
    }
}
