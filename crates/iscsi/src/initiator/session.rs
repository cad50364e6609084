//! The session as its owner sees it, and what all parts of it share.

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use base::buffer::Pool;
use base::state_machine::{Action, ConnId, DisconnectReason, RxBuffer};
use base::time::Instant;

use super::contract::{
    ConnectionDown, ConnectionView, Down, Event, MAX_CONNECTIONS, MAX_TASKS, Purpose, SessionPlan, Since,
    Slot, Stats,
};
use super::manage::Manage;
use super::place::{Link, Place, Stage, TIMERS, Timer};
use super::task::Task;
use super::text::Talk;
use super::why::Why;
use crate::name::{Cid, PortalGroupTag, Tsih};
use crate::negotiate::SessionParameters;
use crate::pdu::Itt;
use crate::receive::{Landing, Receiver};
use crate::serial::CmdSn;
use crate::target::arena::{Arena, Key};

/// One session of the initiator role.
pub struct Session {
    pub(super) plan: SessionPlan,
    pub(super) pool: Pool,
    pub(super) phase: Phase,
    /// Whether no new requests are taken and the session ends once the old ones are done.
    pub(super) leaving: bool,
    /// Whether it was in full feature phase before.
    pub(super) was_up: bool,
    /// The target's half of the identifier, while the target knows the session.
    pub(super) tsih: Option<Tsih>,
    pub(super) since: Since,
    pub(super) portal_group: Option<PortalGroupTag>,
    pub(super) parameters: SessionParameters,
    pub(super) places: Vec<Place>,
    /// How many connections are wanted.
    pub(super) wanted: u16,
    pub(super) tasks: Arena<Task>,
    pub(super) manages: Arena<Manage>,
    pub(super) talk: Option<Box<Talk>>,
    /// Tasks that are not on a connection, in order.
    pub(super) waiting: VecDeque<Key>,
    pub(super) cmd_sn: CmdSn,
    pub(super) exp_cmd_sn: CmdSn,
    pub(super) max_cmd_sn: CmdSn,
    /// Tasks that are on a connection and have no number yet.
    pub(super) unnumbered: u32,
    /// Whether the last of them keeps its place: it is ORDERED or HEAD OF QUEUE.
    pub(super) ordering: bool,
    /// Requests sent so far, and tags of small requests given so far.
    pub(super) order: u64,
    pub(super) tags: u32,
    /// Tags of tasks that were ended without a response; what still comes for them is forgotten.
    pub(super) ghosts: VecDeque<Itt>,
    pub(super) events: VecDeque<Event>,
    pub(super) actions: VecDeque<Action>,
    /// Until when a path may be missing, and until when the target keeps the session without one.
    pub(super) patience: Option<Instant>,
    pub(super) retain: Option<Instant>,
    /// The logout of the whole session: its tag, and until when it may take.
    pub(super) farewell: Option<(Itt, Instant)>,
    /// Why the last connection, or attempt to have one, came to its end.
    pub(super) last: ConnectionDown,
    pub(super) stats: Stats,
    /// Units whose device is looked at again in every new session, and those that wait for that.
    pub(super) guarded: BTreeSet<u64>,
    pub(super) held: BTreeSet<u64>,
}

/// Where the session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No connection is up.
    Away,
    /// At least one is.
    Up,
    /// It is over.
    Down,
}

/// Tags of aborted tasks that are remembered: more than a full window of the usual kind.
pub(super) const MAX_GHOSTS: usize = 1024;

impl Session {
    /// Starts a session and asks for its first connection.
    pub fn new(now: Instant, mut plan: SessionPlan, pool: Pool) -> Self {
        plan.connections = plan.connections.clamp(1, MAX_CONNECTIONS);
        plan.limits.tasks_max = plan.limits.tasks_max.clamp(1, MAX_TASKS);
        if plan.purpose == Purpose::Discovery {
            plan.connections = 1;
        }
        // More could be asked for while the session is up.
        plan.keys.max_connections = plan.keys.max_connections.clamp(plan.connections, MAX_CONNECTIONS);
        let mut session = Self {
            wanted: plan.connections,
            pool,
            phase: Phase::Away,
            leaving: false,
            was_up: false,
            tsih: None,
            since: Since::First,
            portal_group: None,
            parameters: SessionParameters::default(),
            places: (0..MAX_CONNECTIONS).map(|_| Place::default()).collect(),
            tasks: Arena::new(),
            manages: Arena::new(),
            talk: None,
            waiting: VecDeque::new(),
            cmd_sn: FIRST_CMD_SN,
            exp_cmd_sn: FIRST_CMD_SN,
            max_cmd_sn: FIRST_CMD_SN.minus(1),
            unnumbered: 0,
            ordering: false,
            order: 0,
            tags: 0,
            ghosts: VecDeque::new(),
            events: VecDeque::new(),
            actions: VecDeque::new(),
            patience: (plan.retry.first).then(|| now.after(plan.retry.patience)),
            retain: None,
            farewell: None,
            last: ConnectionDown::Unreachable,
            stats: Stats::default(),
            guarded: BTreeSet::new(),
            held: BTreeSet::new(),
            plan,
        };
        if session.plan.portals.is_empty() {
            session.end(Down::NoPath(ConnectionDown::Unreachable));
        } else {
            session.attempt(now, Slot(0));
        }
        session
    }

    /// Takes received bytes. The session consumes them all.
    pub fn received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        let Some(slot) = self.slot_of(conn) else { return };
        let Some(mut receiver) = self.link_mut(slot).and_then(|link| link.receiver.take()) else { return };
        let done = self.read(now, slot, &mut receiver, bytes);
        self.put_back(now, slot, conn, receiver, done);
    }

    /// Lends the buffer that the next bytes of a connection belong into, if that is worth it.
    pub fn take_rx_buffer(&mut self, conn: ConnId) -> Option<RxBuffer> {
        let slot = self.slot_of(conn)?;
        self.link_mut(slot)?.receiver.as_mut()?.take_rx_buffer()
    }

    /// Takes a loan back with what was received.
    pub fn return_rx_buffer(&mut self, now: Instant, conn: ConnId, loan: RxBuffer) {
        let receiver =
            self.slot_of(conn).and_then(|slot| Some((slot, self.link_mut(slot)?.receiver.take()?)));
        let Some((slot, mut receiver)) = receiver else {
            return self.pool.recycle_buf(loan.buf);
        };
        if receiver.repay(loan) > 0
            && let Some(link) = self.link_mut(slot)
        {
            link.heard = now;
        }
        let done = self.read(now, slot, &mut receiver, &[]);
        self.put_back(now, slot, conn, receiver, done);
    }

    /// Gives a connection its reader back, or ends it.
    fn put_back(
        &mut self,
        now: Instant,
        slot: Slot,
        conn: ConnId,
        receiver: Box<Receiver>,
        done: Result<(), Why>,
    ) {
        let live = self.slot_of(conn) == Some(slot);
        match self.link_mut(slot).filter(|_| live) {
            Some(link) => link.receiver = Some(receiver),
            None => self.abandon(slot, receiver),
        }
        if let Err(why) = done
            && live
        {
            self.misbehaved(now, slot, why);
        }
        self.dispatch(now);
    }

    /// Gives back what an ended connection was receiving.
    pub(super) fn abandon(&mut self, _slot: Slot, mut receiver: Box<Receiver>) {
        if let Landing::Append(buf) | Landing::Place { buf, .. } = receiver.abandon() {
            self.pool.recycle_buf(buf);
        }
    }

    /// Takes note that a connection is gone. Called once for each that was announced by `connected`.
    pub fn disconnected(&mut self, now: Instant, conn: ConnId, _why: DisconnectReason) {
        let Some(slot) = self.slot_of(conn) else { return };
        let leaving = self.place(slot).is_some_and(|place| place.logout.is_some());
        if let Some(link) = self.link_mut(slot) {
            link.gone = true;
        }
        let why =
            if self.farewell.is_some() || leaving { ConnectionDown::LoggedOut } else { ConnectionDown::Lost };
        self.lose(now, slot, why);
        self.dispatch(now);
    }

    /// Returns the next event. Poll before [`Self::poll_action`], until there is none.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the next thing that the driver of the connections is to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns when `handle_timeout` wants to be called, if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let farewell = self.farewell.map(|(_, at)| at);
        let places = self.places.iter().filter_map(|place| place.deadlines.next());
        places.chain([self.patience, self.retain, farewell].into_iter().flatten()).min()
    }

    /// Takes note that the deadline passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        for slot in (0..MAX_CONNECTIONS).map(Slot) {
            for timer in TIMERS {
                let place = self.places.get_mut(usize::from(slot.0));
                if place.is_some_and(|place| place.deadlines.expired(timer, now)) {
                    self.timer(now, slot, timer);
                }
            }
        }
        if self.farewell.is_some_and(|(_, at)| at <= now) {
            self.end(Down::LoggedOut);
        }
        if self.retain.take_if(|at| *at <= now).is_some() {
            self.lose_session(now, ConnectionDown::Lost);
        }
        if self.patience.take_if(|at| *at <= now).is_some() && self.phase == Phase::Away {
            self.end(Down::NoPath(self.last));
        }
        self.dispatch(now);
    }

    fn timer(&mut self, now: Instant, slot: Slot, timer: Timer) {
        match timer {
            Timer::Retry => self.attempt(now, slot),
            Timer::Login => self.login_too_slow(now, slot),
            Timer::Silence => self.silence(now, slot),
            Timer::Logout => self.logout_too_slow(now, slot),
            Timer::Drain => self.log_out_connection(now, slot),
            Timer::Adopt => self.adopt_anywhere(now, slot),
            Timer::Repair => self.repair(now, slot),
            Timer::Acknowledge => self.acknowledge_statuses(now, slot),
        }
    }

    /// Ends the session at once. Tasks that were on the way end as [`super::contract::End::Lost`].
    pub fn close(&mut self, _now: Instant) {
        self.end(Down::Closed);
    }

    /// Returns whether requests can be sent now.
    pub fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Returns whether the session is over.
    pub fn is_down(&self) -> bool {
        self.phase == Phase::Down
    }

    /// Returns what was agreed on, once the session was up.
    pub fn parameters(&self) -> Option<&SessionParameters> {
        self.was_up.then_some(&self.parameters)
    }

    /// Returns the connections that there are.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionView> {
        (0..).map(Slot).zip(&self.places).filter_map(|(slot, place)| {
            let link = place.link.as_ref()?;
            Some(ConnectionView {
                slot,
                cid: Cid(slot.0),
                up: link.login.is_none(),
                parameters: link.parameters,
                tasks: link.tasks,
                bytes: link.weight,
            })
        })
    }

    /// Returns how many tasks are open.
    pub fn open(&self) -> usize {
        self.tasks.len()
    }

    /// Returns how many more tasks are taken now.
    pub fn room(&self) -> usize {
        self.plan.limits.tasks_max.saturating_sub(self.tasks.len())
    }

    /// Returns what the session did so far.
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    pub(super) fn slot_of(&self, conn: ConnId) -> Option<Slot> {
        let at =
            self.places.iter().position(|place| place.link.as_ref().is_some_and(|link| link.conn == conn))?;
        u16::try_from(at).ok().map(Slot)
    }

    pub(super) fn place(&self, slot: Slot) -> Option<&Place> {
        self.places.get(usize::from(slot.0))
    }

    pub(super) fn place_mut(&mut self, slot: Slot) -> Option<&mut Place> {
        self.places.get_mut(usize::from(slot.0))
    }

    pub(super) fn link(&self, slot: Slot) -> Option<&Link> {
        self.place(slot)?.link.as_deref()
    }

    pub(super) fn link_mut(&mut self, slot: Slot) -> Option<&mut Link> {
        self.place_mut(slot)?.link.as_deref_mut()
    }

    pub(super) fn stage(&self, slot: Slot) -> Stage {
        self.place(slot).map_or(Stage::Idle, |place| place.stage)
    }

    /// Returns whether lost PDUs can be asked for again.
    pub(super) const fn repairs(&self) -> bool {
        self.parameters.error_recovery_level >= 1
    }

    /// Returns whether tasks outlive their connection.
    pub(super) const fn recovers(&self) -> bool {
        self.parameters.error_recovery_level >= 2
    }

    /// Returns a connection that can carry requests, other than that at `but`: the one with the least to do.
    pub(super) fn best(&self, but: Option<Slot>) -> Option<Slot> {
        let up = |slot: &Slot| self.stage(*slot) == Stage::Up && Some(*slot) != but;
        (0..MAX_CONNECTIONS)
            .map(Slot)
            .filter(up)
            .min_by_key(|slot| self.link(*slot).map_or(u64::MAX, |link| link.weight))
    }

    /// Returns any connection that is in full feature phase, other than that at `but`.
    pub(super) fn any_up(&self, but: Option<Slot>) -> Option<Slot> {
        self.best(but).or_else(|| {
            let up = |slot: &Slot| self.place(*slot).is_some_and(Place::is_up) && Some(*slot) != but;
            (0..MAX_CONNECTIONS).map(Slot).find(up)
        })
    }

    /// Returns a tag for a small request. The two high bits keep it apart from those of tasks and management.
    pub(super) const fn next_tag(&mut self) -> Itt {
        self.tags = self.tags.wrapping_add(1);
        Itt(TAG_SMALL << 30 | (self.tags & 0x3fff_ffff))
    }

    pub(super) fn bug(&mut self) {
        self.stats.bugs += 1;
        debug_assert!(false, "a state of the session that cannot be");
    }
}

/// The first number of a session.
pub(super) const FIRST_CMD_SN: CmdSn = CmdSn(1);

pub(super) const TAG_TASK: u32 = 0;
pub(super) const TAG_MANAGE: u32 = 1;
pub(super) const TAG_SMALL: u32 = 2;

/// Returns the tag of a request of this kind: kind, 14 bits of generation, index. An old tag finds nothing.
pub(super) const fn tag(kind: u32, key: Key) -> Itt {
    Itt(kind << 30 | (key.generation & 0x3fff) << 16 | (key.index & 0xffff))
}

/// Finds what a tag names.
pub(super) fn find<T>(arena: &Arena<T>, kind: u32, itt: Itt) -> Option<Key> {
    let key = arena.key_at(itt.0 & 0xffff)?;
    (tag(kind, key) == itt).then_some(key)
}

/// Tasks have indices below 2^16.
const _: () = assert!(MAX_TASKS + super::contract::MAX_PROBES < 1 << 16);
