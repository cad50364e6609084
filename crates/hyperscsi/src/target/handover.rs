//! Live upgrade: sessions move from the engine of one process to that of another, and their initiators notice
//! a short pause.
//!
//! The owner calls these methods, in this order:
//!
//! 1. [`Engine::freeze`] in the old process. Exchanges under way end, and no session begins. Initiators get
//!    no further XIDs: they begin what XID LIMIT allows already, which is served, and then wait.
//! 2. [`Engine::busy`], as often as frames and deadlines were handled, until it returns `None`.
//! 3. [`Engine::export`] of each session. From the first one on the engine is mute.
//! 4. [`Engine::freeze`] in the new process, on an engine whose ports are up, then [`Engine::resume`] with
//!    each state. The new engine is mute.
//! 5. [`Engine::thaw`] in one of the two processes, and never in both: in the new one, or in the old one if
//!    anything failed before. The engine of the other process is dropped.
//!
//! An engine that was not frozen before [`Engine::resume`] speaks at once. Its owner must then make sure in
//! another way that the old process sends nothing more.
//!
//! # What moves
//!
//! HyperSCSI runs on frames that may be lost at any time, so no connection moves. A session keeps its names
//! and SIDs, its parameters, the received XIDs, its keys, and of each path the packet numbers, the credit of
//! both directions, the path MTU and path validations under way. Not moved, because the protocol restores
//! them by itself: round trips, congestion windows, loss detection, frames under way that carry no message,
//! the previous generation of receive keys, handshakes, cookies, allowances for guesses, and discovery. A
//! handshake under way begins anew after 4 s (section 6.1 of the specification), so the owner lets those
//! under way end first ([`Engine::pause_handshakes`]). A session that has ended does not move either: its
//! last message is repeated for 1 s at most, and an initiator that misses it learns the same from silence
//! (section 14).
//!
//! # Why no nonce is used twice
//!
//! The nonce of a protected frame is its packet number, under the key of its direction, level and generation.
//! Let n be the last packet number that the old engine used in the protected space of a path.
//!
//! * The old engine uses no number after the export: a mute engine builds no frame for a session, whatever
//!   its owner calls. So n is final when it is exported.
//! * The new engine begins 1024 numbers behind n, and its encryptor refuses every number up to there. So even
//!   if the old process did send something after the export, the first 1024 frames of each path would share
//!   no nonce with those of the new process. The gap is shorter only where the peer's credit demands it: the
//!   peer drops numbers that are more than 2048 beyond what it allows (section 9.2), and the next number is
//!   at most 1024 beyond that, unless the old engine was there already.
//! * A thawed engine goes on with n + 1, as its encryptor never went back. That is safe because the new
//!   engine sent nothing: it is mute, and is dropped. This is the one condition that the engines cannot
//!   check, so it is stated above: one of the two is thawed, and never both.
//! * Counters of frames and bytes move with their generation, so no generation protects more than it may. The
//!   generation does not go back either: old and new engine hold the same one when the session moves.
//!
//! The other direction needs the same care of nobody: the initiator does not move.
//!
//! # Why no frame is taken twice
//!
//! A mute engine takes no frame, so the largest packet number that was received, r, is final when it is
//! exported. The replay window of the new engine begins behind r: every number up to r counts as received,
//! also one that never came. So whatever the old engine took, the new one refuses, for example frames that
//! both received because the new process opened its sockets early. What the old engine did not take is not
//! acknowledged, and the initiator sends it again under a larger number. A request under a larger number is
//! then judged by its XID, and these move exactly: a request is delivered once.
//!
//! After a thaw the old engine goes on with its own windows, in which nothing changed meanwhile. Frames that
//! came while it was mute were lost, and are sent again.
//!
//! # How long initiators wait
//!
//! An initiator that hears nothing repeats its oldest frame at growing intervals of up to 64 ms
//! (`path::PROBE_INTERVAL_MAX`), so work goes on 64 ms after the new engine speaks, at the latest. It gives
//! up a path, and with the last path the session, after LOST AFTER without a sign of life
//! (`Connection::handle_timeout`): 30 s unless one end asked for less. It pings after a third of that. So of
//! LOST AFTER at least two thirds are left when a session moves whose path works. A session with less than
//! [`LOST_AFTER_MIN`] is [`Busy::Impatient`]: 666 ms would be left of it, for a pause of up to 500 ms. No
//! initiator is told that its session is unknown: mute and frozen engines send no such hint.

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::ether::EtherPort;
use base::time::{Duration, Instant};
use transport::target::SessionId;

use super::contract::{Event, SessionUp};
use super::engine::{Engine, Service};
use super::exchange::Holder;
use super::session::Session;
use crate::connection::handover::ConnectionStateError;
use crate::connection::{Connection, ConnectionConfig};
use crate::exchange::xid::PnSpace;
use crate::pdu::name::Name;
use crate::pdu::parameters::Parameters;

mod state;

pub use self::state::{ParametersState, SessionState, TrafficState, XidsState};

/// The shortest LOST AFTER with which a session moves.
pub const LOST_AFTER_MIN: Duration = Duration::from_secs(1);

/// What keeps an engine or a session from being exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// [`Engine::freeze`] was not called.
    #[error("the HyperSCSI sessions are not frozen")]
    NotFrozen,
    /// Events were not polled.
    #[error("the HyperSCSI engine has events that were not handled")]
    Events,
    /// There is no such session, or it has ended.
    #[error("the HyperSCSI session has ended")]
    Ended,
    /// Exchanges are open: commands and functions that run or whose results were not acknowledged.
    #[error("the HyperSCSI session of {initiator} has open commands or functions ({count})")]
    Exchanges {
        /// The initiator.
        initiator: Name,
        /// How many exchanges are open.
        count: u32,
    },
    /// Data was received whose request is still on the way.
    #[error("the HyperSCSI session of {initiator} has received data of a command, but not the command")]
    OrphanData {
        /// The initiator.
        initiator: Name,
    },
    /// The initiator has not acknowledged messages that belong to no exchange.
    #[error("the HyperSCSI session of {initiator} has unacknowledged messages ({count})")]
    Unacknowledged {
        /// The initiator.
        initiator: Name,
        /// How many messages.
        count: usize,
    },
    /// An acknowledgement is to be sent first. That takes a fraction of a millisecond.
    #[error("the HyperSCSI session of {initiator} waits for an acknowledgement of the target")]
    OwesAck {
        /// The initiator.
        initiator: Name,
    },
    /// The session would not survive the pause.
    #[error(
        "the HyperSCSI session of {initiator} is lost after {lost_after_ms} ms of silence, too soon to move"
    )]
    Impatient {
        /// The initiator.
        initiator: Name,
        /// After how long without a sign of life the session is lost, in milliseconds.
        lost_after_ms: u32,
    },
}

/// Why a session cannot be made of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    /// [`SessionState::target`]
    #[error("the target of the HyperSCSI session has no valid name")]
    Target,
    /// [`SessionState::group`]
    #[error("the group of the HyperSCSI session has no valid name")]
    Group,
    /// [`SessionState::initiator`]
    #[error("the initiator of the HyperSCSI session has no valid name")]
    Initiator,
    /// [`SessionState::parameters`]
    #[error("the HyperSCSI session has parameters that no handshake agrees on")]
    Parameters,
    /// [`SessionState::xids`]
    #[error("the exchange numbers of the HyperSCSI session are out of place")]
    Xids,
    /// A SID is 0.
    #[error("the HyperSCSI session has no identifier")]
    NoSid,
    /// Another session has this SID.
    #[error("another HyperSCSI session has the identifier {sid:08x}h")]
    SidTaken {
        /// The SID that the target chose.
        sid: u32,
    },
    /// Another session of the same initiator port with the same target exists.
    #[error("another HyperSCSI session of the same initiator port exists")]
    Twice,
    /// No port was up yet, so there is no entropy.
    #[error("no Ethernet port is up")]
    NotReady,
    /// There is no room for another session.
    #[error("there is no room for another HyperSCSI session")]
    Full,
    /// [`SessionState::connection`]
    #[error("{0}")]
    Connection(#[from] ConnectionStateError),
}

impl Engine {
    /// Lets exchanges under way end and begins no new session, so that [`Self::export`] becomes possible.
    /// Initiators can begin the exchanges that they know to be allowed, and no more.
    pub fn freeze(&mut self, now: Instant) {
        self.now = now;
        if self.service == Service::Open {
            self.service = Service::Frozen;
        }
    }

    /// Returns what keeps the engine from being exported: the first session that is not idle, with the
    /// reason.
    pub fn busy(&self) -> Option<Busy> {
        if self.service == Service::Open {
            return Some(Busy::NotFrozen);
        }
        if !self.events.is_empty() || !self.dirty.is_empty() {
            return Some(Busy::Events);
        }
        let up = self.sessions.iter().map(|(_, session)| session).filter(|session| session.is_up());
        up.filter_map(|session| self.session_busy(session)).next()
    }

    fn session_busy(&self, session: &Session) -> Option<Busy> {
        let initiator = || session.initiator.clone();
        let Some(transport) = session.transport.as_deref().filter(|transport| !transport.is_lost()) else {
            return Some(Busy::Ended);
        };
        let exchanges = session.exchanges();
        if !exchanges.is_empty() {
            let holders = exchanges.iter().filter_map(|key| self.exchanges.get(*key));
            let orphans = holders.filter(|exchange| exchange.holder == Holder::OrphanData).count();
            return Some(if orphans == exchanges.len() {
                Busy::OrphanData { initiator: initiator() }
            } else {
                let count = u32::try_from(exchanges.len()).unwrap_or(u32::MAX);
                Busy::Exchanges { initiator: initiator(), count }
            });
        }
        match transport.messages_under_way() + session.refusals.len() {
            0 => {}
            count => return Some(Busy::Unacknowledged { initiator: initiator(), count }),
        }
        if transport.owes_ack() {
            return Some(Busy::OwesAck { initiator: initiator() });
        }
        let lost_after_ms = session.parameters.lost_after_ms;
        let impatient = Duration::from_millis(u64::from(lost_after_ms)) < LOST_AFTER_MIN;
        impatient.then(|| Busy::Impatient { initiator: initiator(), lost_after_ms })
    }

    /// Returns the state of a session that is idle. The first call that succeeds makes the engine mute until
    /// [`Self::thaw`]: it sends nothing for sessions, and drops what it receives.
    ///
    /// # Errors
    /// [`Busy`]: the engine is not frozen, or this session is not idle.
    pub fn export(&mut self, now: Instant, session: SessionId) -> Result<SessionState, Busy> {
        if self.service == Service::Open {
            return Err(Busy::NotFrozen);
        }
        let state = self.sessions.get(session.0).filter(|session| session.is_up()).ok_or(Busy::Ended)?;
        if let Some(busy) = self.session_busy(state) {
            return Err(busy);
        }
        // A field that is added does not compile here before it moves, or stands among those that do not.
        let Session {
            transport,
            sids: (initiator_sid, target_sid),
            target_name,
            group,
            initiator,
            isid,
            parameters,
            tables: [open, sealed],
            traffic,
            // It follows from the keys of the connection.
            keyed: _,
            // They are those of any idle session.
            phase: _,
            wishes: _,
            memory_waiters: _,
            shares: _,
            to_flush: _,
            withdrawn: _,
            refusals: _,
            refused: _,
            closing_message: _,
            closing_message_id: _,
            is_dirty: _,
            tasks: _,
            // They begin anew.
            ports: _,
            deadline: _,
            swept: _,
        } = state;
        let transport = transport.as_deref().ok_or(Busy::Ended)?;
        let exported = SessionState {
            target: state::text(target_name),
            group: state::text(group),
            initiator: state::text(initiator),
            isid: *isid,
            initiator_sid: *initiator_sid,
            target_sid: *target_sid,
            parameters: ParametersState::of(parameters),
            xids: [XidsState::of(&open.arrived), XidsState::of(&sealed.arrived)],
            traffic: TrafficState::of(traffic),
            connection: transport.export(now),
        };
        (self.now, self.service) = (now, Service::Mute);
        Ok(exported)
    }

    /// Serves all sessions again: those that [`Self::freeze`] stopped, or those that [`Self::resume`] made.
    /// Every initiator is told at once what it may begin.
    ///
    /// The caller makes sure that no other process has served the sessions since they were exported, and that
    /// none will.
    pub fn thaw(&mut self, now: Instant) {
        self.now = now;
        if core::mem::replace(&mut self.service, Service::Open) == Service::Open {
            return;
        }
        for port in self.ports.values_mut() {
            port.announced = false;
        }
        for key in self.sessions.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            if let Some(transport) = self.transport(key) {
                transport.speak_up(now);
            }
            self.mark_dirty(key);
        }
    }

    /// Makes a session of the state that another process exported, and reports [`Event::SessionUp`] as after
    /// a handshake. [`Self::port_up`] for the ports that are up comes first. A path over another port waits
    /// until its port is up; a path over a port that [`SessionState::map_ports`] does not know is left. If
    /// the engine is frozen, it is mute from now on, until [`Self::thaw`].
    ///
    /// # Errors
    /// [`ResumeError`]: the state is of no possible session, or contradicts what is here. Nothing changed.
    pub fn resume(&mut self, now: Instant, state: &SessionState) -> Result<SessionId, ResumeError> {
        self.now = now;
        let identity = state.identity()?;
        let [open, sealed] = &state.xids;
        let arrived = [open.xids(PnSpace::Open)?, sealed.xids(PnSpace::Sealed)?];
        if state.initiator_sid == 0 || state.target_sid == 0 {
            return Err(ResumeError::NoSid);
        }
        if self.sids.contains_key(&state.target_sid) {
            return Err(ResumeError::SidTaken { sid: state.target_sid });
        }
        let same = |session: &Session| {
            session.is_of(&identity.group, &identity.target_name, &identity.initiator, &identity.isid)
        };
        if self.sessions.iter().any(|(_, session)| same(session)) {
            return Err(ResumeError::Twice);
        }
        if !self.gateway.is_ready() {
            return Err(ResumeError::NotReady);
        }
        // Frames come only over ports that are up, and a port that was never up has no receive ring yet.
        let is_full = self.known_ports(state).any(|port| self.is_full(port, true));
        if is_full || self.sessions.len() >= usize::from(self.limits.sessions_max) {
            return Err(ResumeError::Full);
        }
        let transport = self.resume_transport(now, state, &identity.parameters)?;
        let Some(first) = transport.paths().next().map(|path| path.address) else {
            return Err(ConnectionStateError::PathCount.into());
        };
        let mut session = Session::new(now, identity, transport);
        for (table, arrived) in session.tables.iter_mut().zip(arrived) {
            table.arrived = arrived;
        }
        session.traffic = state.traffic.traffic();
        let mut event = None;
        let key = self.sessions.insert_with(|key| {
            event = Some(Event::SessionUp(Box::new(SessionUp {
                session: SessionId(key),
                target: session.target_name.clone(),
                group: session.group.clone(),
                initiator: session.initiator.clone(),
                isid: session.isid,
                authenticated: session.keyed,
                port: first.port,
                peer: first.mac,
                parameters: session.parameters,
                replaces_session: false,
            })));
            session
        });
        self.events.extend(event);
        self.sids.insert(state.target_sid, key);
        self.divide_rings();
        if self.service == Service::Open {
            if let Some(transport) = self.transport(key) {
                transport.speak_up(now);
            }
        } else {
            self.service = Service::Mute;
        }
        self.mark_dirty(key);
        Ok(SessionId(key))
    }

    /// Returns the ports of the paths of a session that are up here, or were.
    fn known_ports(&self, state: &SessionState) -> impl Iterator<Item = EtherPort> {
        let ports = state.connection.paths.iter().map(|path| EtherPort(path.port));
        ports.filter(|port| self.ports.contains_key(port))
    }

    /// Makes the transport of a session that came from another process.
    fn resume_transport(
        &mut self,
        now: Instant,
        state: &SessionState,
        agreed: &Parameters,
    ) -> Result<Connection, ResumeError> {
        let connection = &state.connection;
        let ours = Parameters {
            frames_initial: connection.frames_initial,
            ack_delay_max_us: connection.ack_delay_max_us,
            ..Parameters::DEFAULT
        };
        let port = self.known_ports(state).next();
        let share = port.map_or(0, |port| self.share_at(port, self.sessions_at(port) + 1));
        let entropy = self.gateway.draw();
        let plan = ConnectionConfig {
            key_limits: self.limits.key_limits,
            ..ConnectionConfig::new(&ours, agreed, share, connection.token, entropy)
        };
        let known = |port: EtherPort| self.ports.get(&port).map(|entry| entry.state);
        let sids = (state.initiator_sid, state.target_sid);
        let mut transport = Connection::resume(now, &plan, sids, connection, &known)?;
        for (port, entry) in &self.ports {
            transport.port_up(now, *port, &entry.state);
            if !entry.is_up {
                transport.port_down(now, *port);
            }
        }
        Ok(transport)
    }
}
