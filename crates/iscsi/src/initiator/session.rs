//! The session as its owner uses it, and the state that all modules of the initiator share.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use base::buffer::Pool;
use base::state_machine::{Action, ConnId, DisconnectReason, RxBuffer};
use base::time::Instant;
use transport::identity_check::IdentityChecks;

use super::connection_slot::{Connection, ConnectionSlot, ConnectionState, Timer};
use super::contract::{
    ConnectionDown, ConnectionView, Event, MAX_CONNECTIONS, MAX_TASKS, Purpose, SessionEnd, SessionOrigin,
    SessionPlan, SessionStats, Slot,
};
use super::open_tmf::Tmf;
use super::protocol_error::ProtocolError;
use super::task::Task;
use super::text_exchange::TextExchange;
use crate::framing::{DataSink, Receiver};
use crate::name::{Cid, PortalGroupTag, Tsih};
use crate::negotiate::SessionParameters;
use crate::pdu::Itt;
use crate::recovery::{self, InitiatorAction, RecoveryLevel};
use crate::serial::CmdSn;
use crate::target::arena::{Arena, Key};

/// One session of the initiator role.
pub struct Session {
    pub(super) plan: SessionPlan,
    pub(super) pool: Pool,
    pub(super) phase: Phase,
    /// Whether the session accepts no new requests and ends once the open ones have ended.
    pub(super) logout_requested: bool,
    /// Whether the session was in full feature phase before.
    pub(super) was_up: bool,
    /// The target's half of the session identifier, while the target keeps the session.
    pub(super) tsih: Option<Tsih>,
    pub(super) origin: SessionOrigin,
    /// The portal group of the session, of the last one, or of the one that the first login reinstates: no
    /// login in another group can continue or reinstate it.
    pub(super) portal_group: Option<PortalGroupTag>,
    pub(super) parameters: SessionParameters,
    pub(super) slots: Vec<ConnectionSlot>,
    /// The number of connections that the session tries to have.
    pub(super) connections_wanted: u16,
    pub(super) tasks: Arena<Task>,
    pub(super) tmfs: Arena<Tmf>,
    pub(super) text: Option<Box<TextExchange>>,
    /// Tasks that are not assigned to a connection, in order.
    pub(super) waiting: VecDeque<Key>,
    pub(super) cmd_sn: CmdSn,
    pub(super) exp_cmd_sn: CmdSn,
    pub(super) max_cmd_sn: CmdSn,
    /// Tasks that are assigned to a connection and have no CmdSN yet.
    pub(super) unnumbered: u32,
    /// Whether the last of them must keep its order: its attribute is ORDERED or HEAD OF QUEUE.
    pub(super) ordering: bool,
    /// The number of requests sent so far, and of tags given to small requests so far.
    pub(super) order: u64,
    pub(super) tags: u32,
    /// Tags of tasks that ended without a response; late PDUs for them are discarded.
    pub(super) stale_tags: VecDeque<Itt>,
    pub(super) events: VecDeque<Event>,
    pub(super) actions: VecDeque<Action>,
    /// Until when the session may be without a connection, and until when the target keeps such a session.
    pub(super) retry_deadline: Option<Instant>,
    pub(super) retain_deadline: Option<Instant>,
    /// The logout of the whole session: its tag and its deadline.
    pub(super) session_logout: Option<(Itt, Instant)>,
    /// The reason for which the last connection, or attempt to establish one, ended.
    pub(super) last: ConnectionDown,
    pub(super) stats: SessionStats,
    pub(super) identity_checks: IdentityChecks,
}

/// The state of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No connection is up.
    NoConnection,
    /// At least one connection is up.
    Up,
    /// The session is over.
    Down,
}

/// How many tags of aborted tasks are remembered: more than a full command window of usual size.
pub(super) const MAX_STALE_TAGS: usize = 1024;

impl Session {
    /// Starts a session and requests its first connection.
    pub fn new(now: Instant, mut plan: SessionPlan, pool: Pool) -> Self {
        plan.connections = plan.connections.clamp(1, MAX_CONNECTIONS);
        plan.limits.tasks_max = plan.limits.tasks_max.clamp(1, MAX_TASKS);
        if plan.purpose == Purpose::Discovery {
            plan.connections = 1;
        }
        // The owner could request more connections while the session is up.
        plan.keys.max_connections = plan.keys.max_connections.clamp(plan.connections, MAX_CONNECTIONS);
        let mut session = Self {
            connections_wanted: plan.connections,
            pool,
            phase: Phase::NoConnection,
            logout_requested: false,
            was_up: false,
            tsih: None,
            origin: SessionOrigin::First,
            portal_group: plan.portal_group,
            parameters: SessionParameters::default(),
            slots: (0..MAX_CONNECTIONS).map(|_| ConnectionSlot::default()).collect(),
            tasks: Arena::new(),
            tmfs: Arena::new(),
            text: None,
            waiting: VecDeque::new(),
            cmd_sn: FIRST_CMD_SN,
            exp_cmd_sn: FIRST_CMD_SN,
            max_cmd_sn: FIRST_CMD_SN.minus(1),
            unnumbered: 0,
            ordering: false,
            order: 0,
            tags: 0,
            stale_tags: VecDeque::new(),
            events: VecDeque::new(),
            actions: VecDeque::new(),
            retry_deadline: (plan.retry.first).then(|| now.after(plan.retry.timeout)),
            retain_deadline: None,
            session_logout: None,
            last: ConnectionDown::Unreachable,
            stats: SessionStats::default(),
            identity_checks: IdentityChecks::default(),
            plan,
        };
        if session.plan.portals.is_empty() {
            session.end_session(SessionEnd::RetriesExhausted(ConnectionDown::Unreachable));
        } else {
            session.start_connecting(now, Slot(0));
        }
        session
    }

    /// Handles received bytes. The session consumes all of them.
    pub fn received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        let Some(slot) = self.slot_of(conn) else { return };
        let Some(mut receiver) = self.connection_mut(slot).and_then(|connection| connection.receiver.take())
        else {
            return;
        };
        let done = self.read(now, slot, &mut receiver, bytes);
        self.put_back(now, slot, conn, receiver, done);
    }

    /// Returns the buffer that the next bytes of a connection belong to, if receiving in place (zero copy) is
    /// worth it.
    pub fn take_rx_buffer(&mut self, conn: ConnId) -> Option<RxBuffer> {
        let slot = self.slot_of(conn)?;
        self.connection_mut(slot)?.receiver.as_mut()?.take_rx_buffer()
    }

    /// Takes a receive buffer back with the received bytes.
    pub fn return_rx_buffer(&mut self, now: Instant, conn: ConnId, rx_buffer: RxBuffer) {
        let receiver =
            self.slot_of(conn).and_then(|slot| Some((slot, self.connection_mut(slot)?.receiver.take()?)));
        let Some((slot, mut receiver)) = receiver else {
            return self.pool.recycle_buf(rx_buffer.buf);
        };
        if receiver.return_rx_buffer(rx_buffer) > 0
            && let Some(connection) = self.connection_mut(slot)
        {
            connection.heard = now;
        }
        let done = self.read(now, slot, &mut receiver, &[]);
        self.put_back(now, slot, conn, receiver, done);
    }

    /// Returns the receiver to a connection, or ends the connection.
    fn put_back(
        &mut self,
        now: Instant,
        slot: Slot,
        conn: ConnId,
        receiver: Box<Receiver>,
        done: Result<(), ProtocolError>,
    ) {
        let live = self.slot_of(conn) == Some(slot);
        match self.connection_mut(slot).filter(|_| live) {
            Some(connection) => connection.receiver = Some(receiver),
            None => self.abandon(slot, receiver),
        }
        if let Err(why) = done
            && live
        {
            self.handle_protocol_error(now, slot, why);
        }
        self.process_pending(now);
    }

    /// Recycles the buffer into which an ended connection was receiving.
    pub(super) fn abandon(&mut self, _slot: Slot, mut receiver: Box<Receiver>) {
        if let DataSink::Append(buf) | DataSink::Overwrite { buf, .. } = receiver.discard_pdu() {
            self.pool.recycle_buf(buf);
        }
    }

    /// Handles the loss of a connection. Called once for each connection that `connected` announced.
    pub fn disconnected(&mut self, now: Instant, conn: ConnId, why: DisconnectReason) {
        let Some(slot) = self.slot_of(conn) else { return };
        let leaving =
            self.connection_slot(slot).is_some_and(|connection_slot| connection_slot.logout.is_some());
        if let Some(connection) = self.connection_mut(slot) {
            connection.gone = true;
        }
        let why = if self.session_logout.is_some() || leaving {
            ConnectionDown::LoggedOut
        } else {
            ConnectionDown::Lost(why.into())
        };
        self.connection_lost(now, slot, why);
        self.process_pending(now);
    }

    /// Returns the next event. Poll before [`Self::poll_action`], until there is none.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the next action for the driver of the connections.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(super) fn timer(&mut self, now: Instant, slot: Slot, timer: Timer) {
        match timer {
            Timer::Retry => self.start_connecting(now, slot),
            Timer::Login => self.login_too_slow(now, slot),
            Timer::Silence => self.check_silence(now, slot),
            Timer::Logout => self.logout_too_slow(now, slot),
            Timer::Drain => self.log_out_connection(now, slot),
            Timer::Reassign => self.reassign_anywhere(now, slot),
            Timer::Retransmit => self.retransmit_missing(now, slot),
            Timer::Acknowledge => self.acknowledge_statuses(now, slot),
        }
    }

    /// Returns whether the session is over.
    pub fn is_down(&self) -> bool {
        self.phase == Phase::Down
    }

    /// Returns the negotiated parameters, once the session was up.
    pub fn parameters(&self) -> Option<&SessionParameters> {
        self.was_up.then_some(&self.parameters)
    }

    /// Returns the existing connections.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionView> {
        (0..).map(Slot).zip(&self.slots).filter_map(|(slot, connection_slot)| {
            let connection = connection_slot.connection.as_ref()?;
            Some(ConnectionView {
                slot,
                cid: Cid(slot.0),
                up: connection.login.is_none(),
                parameters: connection.parameters,
                tasks: connection.tasks,
                bytes: connection.weight,
            })
        })
    }

    /// Returns how many tasks are open.
    pub fn open_tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Returns how many more tasks the session accepts now.
    pub fn task_capacity(&self) -> usize {
        self.plan.limits.tasks_max.saturating_sub(self.tasks.len())
    }

    /// Returns the statistics of the session.
    pub const fn stats(&self) -> SessionStats {
        self.stats
    }

    pub(super) fn slot_of(&self, conn: ConnId) -> Option<Slot> {
        let at = self.slots.iter().position(|connection_slot| {
            connection_slot.connection.as_ref().is_some_and(|connection| connection.conn == conn)
        })?;
        u16::try_from(at).ok().map(Slot)
    }

    pub(super) fn connection_slot(&self, slot: Slot) -> Option<&ConnectionSlot> {
        self.slots.get(usize::from(slot.0))
    }

    pub(super) fn connection_slot_mut(&mut self, slot: Slot) -> Option<&mut ConnectionSlot> {
        self.slots.get_mut(usize::from(slot.0))
    }

    pub(super) fn connection(&self, slot: Slot) -> Option<&Connection> {
        self.connection_slot(slot)?.connection.as_deref()
    }

    pub(super) fn connection_mut(&mut self, slot: Slot) -> Option<&mut Connection> {
        self.connection_slot_mut(slot)?.connection.as_deref_mut()
    }

    pub(super) fn connection_state(&self, slot: Slot) -> ConnectionState {
        self.connection_slot(slot).map_or(ConnectionState::Idle, |connection_slot| connection_slot.state)
    }

    /// Returns the ErrorRecoveryLevel of the session.
    pub(super) const fn level(&self) -> RecoveryLevel {
        self.parameters.error_recovery_level
    }

    /// Returns the broken rule as an error, unless the response to it is to request what is missing.
    pub(super) fn unless_requested_again(&self, why: ProtocolError) -> Result<(), ProtocolError> {
        match recovery::initiator_response(self.level(), why) {
            InitiatorAction::RequestMissing => Ok(()),
            _ => Err(why),
        }
    }

    /// Returns the broken rule as an error, unless the response to it is to send the command again.
    pub(super) fn unless_retried(&self, why: ProtocolError) -> Result<(), ProtocolError> {
        match recovery::initiator_response(self.level(), why) {
            InitiatorAction::RetryCommand => Ok(()),
            _ => Err(why),
        }
    }

    /// Returns the connection in full feature phase with the least load, other than that in slot `but`. The
    /// load of a connection is the sum of [`Task::weight`] over its tasks.
    pub(super) fn least_loaded(&self, but: Option<Slot>) -> Option<Slot> {
        let up = |slot: &Slot| self.connection_state(*slot) == ConnectionState::Up && Some(*slot) != but;
        (0..MAX_CONNECTIONS)
            .map(Slot)
            .filter(up)
            .min_by_key(|slot| self.connection(*slot).map_or(u64::MAX, |connection| connection.weight))
    }

    /// Returns any connection in full feature phase, other than that in slot `but`.
    pub(super) fn any_up(&self, but: Option<Slot>) -> Option<Slot> {
        self.least_loaded(but).or_else(|| {
            let up = |slot: &Slot| {
                self.connection_slot(*slot).is_some_and(ConnectionSlot::is_up) && Some(*slot) != but
            };
            (0..MAX_CONNECTIONS).map(Slot).find(up)
        })
    }

    /// Returns a tag for a small request. The two high bits distinguish it from tags of tasks and task
    /// management requests.
    pub(super) const fn next_tag(&mut self) -> Itt {
        self.tags = self.tags.wrapping_add(1);
        Itt(TAG_SMALL << 30 | (self.tags & 0x3fff_ffff))
    }

    pub(super) fn bug(&mut self) {
        self.stats.bugs += 1;
        debug_assert!(false, "a state of the session that cannot be");
    }
}

/// The first CmdSN of a session.
pub(super) const FIRST_CMD_SN: CmdSn = CmdSn(1);

pub(super) const TAG_TASK: u32 = 0;
pub(super) const TAG_TMF: u32 = 1;
pub(super) const TAG_SMALL: u32 = 2;

/// Returns the tag of a request of this kind: kind, 14 bits of generation, index. A stale tag matches no
/// request.
pub(super) const fn tag(kind: u32, key: Key) -> Itt {
    //= rfc7143#section-11.2.1.8
    //# While a task exists, this tag MUST uniquely identify the task session-wide.
    //= rfc7143#section-11.2.1.8
    //# An ITT value of 0xffffffff is reserved and MUST NOT be assigned for a task by the initiator.
    Itt(kind << 30 | (key.generation & 0x3fff) << 16 | (key.index & 0xffff))
}

/// Finds the item that a tag names.
pub(super) fn find<T>(arena: &Arena<T>, kind: u32, itt: Itt) -> Option<Key> {
    let key = arena.key_at(itt.0 & 0xffff)?;
    (tag(kind, key) == itt).then_some(key)
}

/// Tasks have indices below 2^16.
const _: () = assert!(MAX_TASKS + super::contract::MAX_PROBES < 1 << 16);
