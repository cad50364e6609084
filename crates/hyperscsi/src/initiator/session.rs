//! The session as its owner sees it, and the state that all parts of it share.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use base::arena::{Arena, Key};
use base::buffer::Pool;
use base::ether::{EtherPort, FrameBatch, FrameMachine, PortState, ReceivedFrame};
use base::time::Instant;
use transport::identity_check::IdentityChecks;

use super::closing::ClosingNexus;
use super::connect::{Connector, transport_path};
use super::contract::{
    Event, LossReason, MAX_TASKS, ProtocolError, SessionEnd, SessionPlan, SessionStats, SessionUp,
};
use super::nexus_loss::ShortSessions;
use super::task::Task;
use crate::connection::{
    Connection, ConnectionEvent as Transported, Delivery, Message, MessageId, PathAddress, PathView,
};
use crate::exchange::xid::{PnSpace, xid_ahead};
use crate::frame::{BadFrame, Cmd, Header};
use crate::login::HandshakeResult;
use crate::pdu::disconnect::DisconnectReason;
use crate::pdu::parameters::Parameters;
use security::Level;

/// One session of the initiator role.
pub struct Session {
    pub(super) plan: SessionPlan,
    pub(super) pool: Pool,
    pub(super) phase: Phase,
    /// Whether a logout was requested: the session accepts no new requests and ends once the old ones are
    /// done.
    pub(super) leaving: bool,
    pub(super) was_up: bool,
    /// The server of the last session.
    server: Option<[u8; 16]>,
    pub(super) ports: BTreeMap<EtherPort, PortState>,
    pub(super) nexus: Option<Box<Nexus>>,
    pub(super) closing: Option<ClosingNexus>,
    pub(super) connector: Connector,
    pub(super) tasks: Arena<Task>,
    pub(super) manages: usize,
    /// Tasks that were not sent, in order.
    pub(super) waiting: VecDeque<Key>,
    /// Task management requests and urgent tasks that were not sent, in order. They pass those in `waiting`.
    pub(super) urgent: VecDeque<Key>,
    /// Task management requests whose answer is held until the tasks that they ended are reported.
    pub(super) held: Vec<Key>,
    /// Bytes of Data-In that sent tasks may return.
    pub(super) expected: usize,
    /// The least protection levels that the target was found to demand, by LUN.
    pub(super) levels: BTreeMap<u64, Level>,
    pub(super) identity_checks: IdentityChecks,
    /// The place of the next request in the order in which requests are sent; the first one has place 1.
    pub(super) order: u64,
    pub(super) events: VecDeque<Event>,
    /// When session recovery ends without success.
    pub(super) retry_deadline: Option<Instant>,
    /// Attempts in a row that failed.
    pub(super) failures: u32,
    /// How many of them had a reason that cannot pass without a change.
    pub(super) refusals: u32,
    /// How a received frame ends the session, once the transport is back.
    pub(super) end_cause: Option<EndCause>,
    /// When the logout ends without an answer.
    pub(super) logout_deadline: Option<Instant>,
    pub(super) last: LossReason,
    /// Why the session was last lost, or why the last attempt to recover it failed.
    pub(super) loss: Option<LossReason>,
    pub(super) short_sessions: ShortSessions,
    pub(super) now: Instant,
    pub(super) stats: SessionStats,
}

/// The phase of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Connecting,
    Up,
    Down,
}

/// How a frame ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndCause {
    LoggedOut,
    Lost(LossReason),
}

/// A session that the target knows: the I_T nexus.
pub(super) struct Nexus {
    /// The transport that carries the session's frames; `None` while it delivers received frames.
    pub(super) transport: Option<Box<Connection>>,
    pub(super) sids: (u32, u32),
    pub(super) keyed: bool,
    pub(super) begun: Instant,
    /// The instance of the server.
    pub(super) instance: [u8; 16],
    pub(super) parameters: Parameters,
    pub(super) exchange_slots: [ExchangeSlots; 2],
    /// Messages to send, each with its task, and messages to withdraw, once the transport is back.
    pub(super) outgoing: Vec<(Key, Message)>,
    pub(super) withdrawn: Vec<MessageId>,
    pub(super) goodbye: Option<MessageId>,
    /// Whether the target sent a GOODBYE.
    pub(super) goodbye_heard: bool,
    paths_up: BTreeSet<u8>,
    /// How many paths carried data at a time, at most.
    paths_best: usize,
    /// Whether the owner received [`Event::OtherServer`] for this session.
    pub(super) twin_reported: bool,
}

/// The exchanges of one packet number space.
pub(super) struct ExchangeSlots {
    /// The last XID in use, and the last that may be used.
    pub(super) last: u32,
    pub(super) limit: u32,
    /// The exchanges by tag.
    pub(super) slots: Vec<Option<Key>>,
    pub(super) free: Vec<u16>,
    /// How many slots tasks leave free for urgent requests.
    pub(super) reserve: usize,
    /// The last exchange that later ones wait for (a barrier); 0 once it has ended.
    pub(super) barrier: u32,
    /// All requests up to this XID are acknowledged.
    pub(super) low: u32,
}

/// How many slots tasks leave free for urgent requests, at most: for as many ABORT TASKs as hang, for checks
/// of other units, and for a reset.
pub(crate) const RESERVE_MAX: usize = 8;

/// Which part of the slots that is: one of so many.
pub(crate) const RESERVE_SHARE: u16 = 4;

/// How many logical units can demand more protection than the plan has.
const MAX_LEVELS: usize = 4096;

impl ExchangeSlots {
    fn new(class: PnSpace, exchanges: u16) -> Self {
        let start = class.start();
        Self {
            last: start,
            limit: start.saturating_add(u32::from(exchanges)),
            slots: alloc::vec![None; usize::from(exchanges)],
            free: (0..exchanges).rev().collect(),
            reserve: if exchanges > 1 {
                usize::from(exchanges / RESERVE_SHARE).clamp(1, RESERVE_MAX)
            } else {
                0
            },
            barrier: 0,
            low: start,
        }
    }
}

impl Nexus {
    /// Returns whether a GOODBYE was sent to the target.
    pub(super) const fn goodbye_said(&self) -> bool {
        self.goodbye.is_some()
    }

    /// Returns whether a path carries nothing, or the session had more paths than it has now.
    pub(super) fn lacks_path(&self) -> bool {
        let paths = self.transport.as_ref().map_or(0, |transport| transport.paths().count());
        self.usable_paths() < paths.max(self.paths_best)
    }

    fn usable_paths(&self) -> usize {
        let paths = self.transport.iter().flat_map(|transport| transport.paths());
        paths.filter(|path| path.is_up).count()
    }

    pub(super) fn slots_of(&mut self, class: PnSpace) -> &mut ExchangeSlots {
        let [open, protected] = &mut self.exchange_slots;
        if class == PnSpace::Open { open } else { protected }
    }
}

impl Session {
    /// Starts a session, which begins discovery of its target as soon as a port is up.
    pub fn new(now: Instant, mut plan: SessionPlan, pool: Pool) -> Self {
        plan.limits.tasks_max = plan.limits.tasks_max.clamp(1, MAX_TASKS);
        let mut session = Self {
            connector: Connector::new(),
            pool,
            phase: Phase::Connecting,
            leaving: false,
            was_up: false,
            server: None,
            ports: BTreeMap::new(),
            nexus: None,
            closing: None,
            tasks: Arena::new(),
            manages: 0,
            waiting: VecDeque::new(),
            urgent: VecDeque::new(),
            held: Vec::new(),
            expected: 0,
            levels: BTreeMap::new(),
            identity_checks: IdentityChecks::default(),
            order: 1,
            events: VecDeque::new(),
            retry_deadline: plan.retry.first.then(|| now.after(plan.retry.timeout)),
            failures: 0,
            refusals: 0,
            end_cause: None,
            logout_deadline: None,
            last: LossReason::NotFound,
            loss: None,
            short_sessions: ShortSessions::default(),
            now,
            stats: SessionStats::default(),
            plan,
        };
        session.start_login(now);
        session
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns whether the session has ended for good.
    pub fn is_down(&self) -> bool {
        self.phase == Phase::Down
    }

    /// Returns why there is no session, or why the one before was lost: the reason for tasks that end as
    /// [`transport::initiator::TaskResult::Lost`]. `None` if no session was lost, or the owner ended it.
    pub const fn loss(&self) -> Option<LossReason> {
        self.loss
    }

    /// Returns the parameters that both ends agreed on, while the session is up.
    pub fn parameters(&self) -> Option<&Parameters> {
        self.nexus.as_ref().map(|nexus| &nexus.parameters)
    }

    /// Returns the paths of the session.
    pub fn paths(&self) -> impl Iterator<Item = PathView> + '_ {
        self.nexus.iter().filter_map(|nexus| nexus.transport.as_ref()).flat_map(|transport| transport.paths())
    }

    /// Returns how many tasks are open.
    pub fn open_tasks(&self) -> usize {
        self.tasks.len() - self.manages
    }

    /// Returns how many more tasks the session accepts now.
    pub fn task_capacity(&self) -> usize {
        self.plan.limits.tasks_max.saturating_sub(self.open_tasks())
    }

    /// Returns the counters of the session.
    pub const fn stats(&self) -> SessionStats {
        self.stats
    }

    /// Raises the least protection level of everything that concerns a logical unit to `level`.
    pub fn set_level(&mut self, lun: u64, level: Level) {
        if self.levels.len() < MAX_LEVELS || self.levels.contains_key(&lun) {
            let known = self.levels.entry(lun).or_insert(level);
            *known = level.max(*known);
        }
    }

    /// Records that this session's part of a port's receive ring is `slots` frames, because other sessions
    /// share the port.
    pub fn set_receive_slots(&mut self, port: EtherPort, slots: usize) {
        if let Some(state) = self.ports.get_mut(&port) {
            state.receive_slots = slots;
            let share = super::connect::share_of(state);
            if let Some(transport) = self.transport() {
                transport.set_ring_quota(port, share);
            }
        }
    }

    /// Updates the keys of sent frames, if the target has used the present ones for long enough. Returns
    /// whether it did. The session updates its keys by itself before they are used up; this method is for
    /// owners that want updates more often.
    pub fn update_keys(&mut self, now: Instant) -> bool {
        self.transport().is_some_and(|transport| transport.update_keys(now))
    }

    //= hyperscsi#section-7.1
    //# The level of an exchange is one of LEVELS: who wants less takes the lowest.
    /// Returns the protection level of requests to a logical unit.
    pub fn level(&self, lun: u64) -> Level {
        let wanted = self.levels.get(&lun).copied().unwrap_or_default().max(self.plan.level);
        self.parameters().and_then(|agreed| agreed.levels.lowest_from(wanted)).unwrap_or(wanted)
    }

    pub(super) fn transport(&mut self) -> Option<&mut Connection> {
        self.nexus.as_mut()?.transport.as_deref_mut()
    }

    /// Opens a new session with the result of a handshake.
    pub(super) fn open_nexus(&mut self, now: Instant, agreed: &HandshakeResult, transport: Connection) {
        self.stats.logins += 1;
        if self.nexus.is_some() {
            self.handle_nexus_loss(now, LossReason::UnknownToTarget);
        }
        self.identity_checks.restart();
        let keyed = agreed.keys.is_some();
        let exchanges = agreed.parameters.exchanges;
        self.nexus = Some(Box::new(Nexus {
            transport: Some(Box::new(transport)),
            sids: (agreed.sid_out, agreed.sid_in),
            keyed,
            begun: now,
            instance: agreed.instance,
            parameters: agreed.parameters,
            exchange_slots: PnSpace::ALL.map(|class| ExchangeSlots::new(class, exchanges)),
            outgoing: Vec::new(),
            withdrawn: Vec::new(),
            goodbye: None,
            goodbye_heard: false,
            paths_up: BTreeSet::new(),
            paths_best: 1,
            twin_reported: false,
        }));
        let before = self.server.replace(agreed.instance);
        if self.phase == Phase::Down {
            self.now = now;
            // The loss of the old session ended this `Session`, so the new one is not wanted, and the
            // initiator sends the target a GOODBYE. If the owner did not end the old session, the reason is
            // REPLACED, so that the target keeps what this session had opened for the owner's next session.
            let is_lost = self.loss.is_some();
            self.send_goodbye(if is_lost { DisconnectReason::REPLACED } else { DisconnectReason::CLOSED });
            if let Some(nexus) = self.nexus.take() {
                self.part(*nexus);
            }
            return;
        }
        self.phase = Phase::Up;
        (self.retry_deadline, self.failures, self.refusals) = (None, 0, 0);
        let rebuilt = core::mem::replace(&mut self.was_up, true);
        self.events.push_back(Event::Up(Box::new(SessionUp {
            parameters: agreed.parameters,
            authenticated: keyed,
            rebuilt,
            port: agreed.port,
            peer: agreed.peer,
            sids: (agreed.sid_out, agreed.sid_in),
            moved: before.is_some_and(|before| before != agreed.instance),
        })));
    }

    /// Processes everything that can be done now: passes messages to the transport, handles the transport's
    /// events, sends requests.
    pub(super) fn process_pending(&mut self, now: Instant) {
        self.now = now;
        loop {
            self.flush_to_connection();
            let Some(event) = self.transport().and_then(Connection::poll_event) else { break };
            self.handle_connection_event(now, event);
        }
        self.issue_waiting();
        self.flush_to_connection();
        if self.leaving && self.phase == Phase::Up && self.tasks.is_empty() && self.logout_deadline.is_none()
        {
            self.logout_deadline = Some(now.after(self.plan.limits.logout_within));
            self.send_goodbye(DisconnectReason::CLOSED);
        }
    }

    fn flush_to_connection(&mut self) {
        let Some(nexus) = self.nexus.as_deref_mut() else { return };
        let Some(transport) = nexus.transport.as_deref_mut() else { return };
        if nexus.withdrawn.is_empty() && nexus.outgoing.is_empty() && !transport.has_delivered_bodies() {
            return;
        }
        for message in nexus.withdrawn.drain(..) {
            transport.withdraw(message);
        }
        for (key, message) in nexus.outgoing.drain(..) {
            let is_request = message.cmd == Cmd::Request && !message.head.is_empty();
            if let Some(task) = self.tasks.get_mut(key) {
                let id = transport.send(Message { owner: Some(key), ..message });
                task.messages.push(id);
                task.request = if is_request { Some(id) } else { task.request };
            }
        }
        for part in transport.take_delivered_bodies() {
            self.pool.recycle(part);
        }
    }

    fn handle_connection_event(&mut self, now: Instant, event: Transported) {
        let Some(nexus) = self.nexus.as_deref_mut() else { return };
        match event {
            Transported::Delivered(Delivery { message, owner: Some(key), .. }) => {
                if let Some(task) = self.tasks.get_mut(key) {
                    task.messages.retain(|other| *other != message);
                    task.arrived |= task.request.take_if(|request| *request == message).is_some();
                }
            }
            Transported::Delivered(Delivery { message, owner: None, .. }) => {
                if nexus.goodbye == Some(message) {
                    self.end_session(SessionEnd::LoggedOut);
                }
            }
            Transported::XidLimit { sealed, limit } => {
                let class = PnSpace::of_frame(sealed);
                let issue = nexus.slots_of(class);
                if PnSpace::of(limit) == class && xid_ahead(limit, issue.limit).is_some() {
                    issue.limit = limit;
                }
            }
            Transported::PathUp(id) => {
                let address = transport_path(nexus, id);
                if let Some(address) = address.filter(|_| nexus.paths_up.insert(id)) {
                    self.events.push_back(Event::PathUp { port: address.port, peer: address.mac });
                }
                nexus.paths_best = nexus.paths_best.max(nexus.usable_paths());
            }
            Transported::PathDown(id) => {
                let address = transport_path(nexus, id);
                if let Some(address) = address.filter(|_| nexus.paths_up.remove(&id)) {
                    self.events.push_back(Event::PathDown { port: address.port, peer: address.mac });
                }
                self.connector.way_lost(now);
            }
            Transported::PathGone { path, address, .. } => {
                // A path of the same ends may have replaced it.
                let mut paths = nexus.transport.iter().flat_map(|transport| transport.paths());
                let is_replaced = paths.any(|path| path.address == address && path.is_up);
                if nexus.paths_up.remove(&path) && !is_replaced {
                    self.events.push_back(Event::PathDown { port: address.port, peer: address.mac });
                }
                self.connector.path_gone(now);
            }
            Transported::PathMtu { .. } => {}
            Transported::KeysChanged => self.stats.key_updates += 1,
            Transported::PathMtuStatus { path, status: width } => {
                let to_event =
                    |at: PathAddress| Event::PathMtuStatus { port: at.port, peer: at.mac, status: width };
                self.events.extend(transport_path(nexus, path).map(to_event));
            }
            Transported::Lost => self.handle_nexus_loss(now, LossReason::PathLost),
            Transported::Misbehaved => {
                self.handle_nexus_loss(now, LossReason::Misbehaved(ProtocolError::FalseAck))
            }
            Transported::KeysExhausted => self.handle_nexus_loss(now, LossReason::KeysExhausted),
        }
    }

    /// Clears the deadlines.
    pub(super) const fn end_deadlines(&mut self) {
        (self.retry_deadline, self.logout_deadline) = (None, None);
    }

    pub(super) fn bug(&mut self) {
        self.stats.bugs += 1;
        debug_assert!(false, "a state of the session that cannot be");
    }
}

impl FrameMachine for Session {
    fn port_up(&mut self, now: Instant, port: EtherPort, state: &PortState, entropy: [u8; 32]) {
        self.ports.insert(port, *state);
        if let Some(transport) = self.transport() {
            transport.port_up(now, port, state);
        }
        self.finder_port_up(now, port, state, entropy);
        self.process_pending(now);
    }

    fn port_down(&mut self, now: Instant, port: EtherPort) {
        self.ports.remove(&port);
        if let Some(transport) = self.transport() {
            transport.port_down(now, port);
        }
        self.finder_port_down(now, port);
        self.process_pending(now);
    }

    fn frame_received(&mut self, now: Instant, frame: ReceivedFrame<'_>) {
        self.now = now;
        let (header, len) = match Header::parse(frame.payload) {
            Ok(parsed) => parsed,
            Err(why) => {
                self.stats.bad_frames += 1;
                if why == BadFrame::Version {
                    self.connector.other_version();
                }
                return;
            }
        };
        if header.sid == 0 && !frame.group {
            self.handle_sessionless_frame(now, &header, frame);
            return self.process_pending(now);
        }
        let (address, came) = (PathAddress { port: frame.port, mac: frame.source }, now.before(frame.age));
        let Some(bytes) = frame.payload.get_mut(..len).filter(|_| !frame.group) else { return };
        let nexus = self.nexus.as_deref_mut().filter(|nexus| nexus.sids.1 == header.sid);
        let forgeable = nexus.as_ref().is_some_and(|nexus| nexus.keyed && !header.protected);
        let Some(mut transport) = nexus.and_then(|nexus| nexus.transport.take()) else {
            match self.closing.as_mut().filter(|old| old.sid == header.sid) {
                Some(old) => {
                    if let Err(why) = old.frame_received((now, came), address, header, bytes) {
                        self.stats.refused_frames += 1;
                        self.stats.drops.count(why);
                    }
                }
                None => self.stats.strays += 1,
            }
            return;
        };
        let taken = transport.frame_received(now, came, address, header, bytes, &mut |header, payload| {
            self.deliver(header, payload);
        });
        match taken {
            // A frame that ends the session is no sign of life, nor is a frame that an attacker can forge.
            Ok(()) if self.end_cause.is_some() || forgeable => {}
            Ok(()) => self.connector.sign_of_life(),
            Err(why) => {
                self.stats.refused_frames += 1;
                self.stats.drops.count(why);
            }
        }
        match self.nexus.as_deref_mut() {
            Some(nexus) => nexus.transport = Some(transport),
            None => return self.bug(),
        }
        match self.end_cause.take() {
            None => {}
            Some(EndCause::LoggedOut) => self.end_session(SessionEnd::LoggedOut),
            Some(EndCause::Lost(lost)) => self.handle_nexus_loss(now, lost),
        }
        self.process_pending(now);
    }

    fn poll_port(&mut self) -> Option<EtherPort> {
        let discovery = self.connector.poll_port();
        discovery
            .or_else(|| self.transport()?.poll_port())
            .or_else(|| self.closing.as_mut()?.transport.poll_port())
    }

    fn transmit_frames(&mut self, now: Instant, port: EtherPort, out: &mut FrameBatch) {
        self.connector.transmit(port, out);
        if let Some(transport) = self.transport() {
            transport.transmit(now, port, out);
        }
        if let Some(old) = &mut self.closing {
            old.transport.transmit(now, port, out);
        }
        self.process_pending(now);
    }

    fn frames_too_long(&mut self, now: Instant, port: EtherPort, count: usize) {
        if let Some(transport) = self.transport() {
            transport.frames_too_long(now, port, count);
        }
        self.process_pending(now);
    }

    fn frames_overrun(&mut self, now: Instant, port: EtherPort, count: u32) {
        if let Some(transport) = self.transport() {
            transport.frames_overrun(port, count);
        }
        self.process_pending(now);
    }

    fn entropy_wanted(&self) -> usize {
        self.connector.entropy_wanted()
    }

    fn add_entropy(&mut self, entropy: [u8; 32]) {
        self.connector.add_entropy(entropy);
        // The entropy may start a handshake, whose timeout ends the session even if no port is ever up.
        self.seek_if_wanted(self.now);
        self.process_pending(self.now);
    }
}
