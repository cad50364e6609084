//! Live upgrade: a shard hands its sessions and its units over to a shard of another process, and initiators
//! notice a short pause.
//!
//! The owner calls these methods, in this order:
//!
//! 1. [`Shard::freeze`] in the old process. Initiators get no further room for commands, and the commands
//!    under way end. The owner goes on driving the shard as usual.
//! 2. [`Shard::prepare_handover`] for tape drives, and [`Shard::busy`], as often as anything happened, until
//!    it returns `None`. The drivers then stop to receive, and pass in what they have received.
//! 3. [`Shard::export`]. The shard must not be driven any more.
//! 4. In the new process, on a shard with its units, whose Ethernet ports are up: `taken_over` for each
//!    connection, in the order of [`Exported::connections`], then [`Shard::resume`].
//! 5. [`Shard::thaw`] in one of both processes, and never in both: in the new one, or in the old one if
//!    anything failed before. The shard of the other process is dropped.
//!
//! A unit of the new process must do nothing on its medium before the sessions are resumed: the owner calls
//! neither `handle_timeout` nor `medium_ready` before.
//!
//! # What becomes of each part of the state
//!
//! | state | decision |
//! |---|---|
//! | normal sessions of both transports | move, see `handover` of `iscsi` and `hyperscsi` |
//! | I_T nexuses and logical units | move, see [`target::handover`] |
//! | portals and groups of sessions, target numbers | derived; targets and groups are named by their names |
//! | bindings of LUNs to disks | the owner's saved state, and those of the sessions that move |
//! | discovery sessions, logins, handshakes | do not move |
//! | events for the operator | the owner polls them before the export |
//! | a shutdown | the shard is busy |

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use base::ether::EtherPort;
use base::state_machine::ConnId;
use base::time::Instant;
use device::contract::NexusId;
use hyperscsi::target::handover as hyperscsi_handover;
use iscsi::target::handover as iscsi_handover;
use serde::{Deserialize, Serialize};
use target::handover::{RestoreError, TargetBusy, TargetState};
use target::transport_id::nexus_of;
use target::units::UnitId;
use transport::target::SessionId;

use crate::login_directory::LoginDirectory;
use crate::shard::{HYPERSCSI, ISCSI, Shard};

/// The sessions and units of a shard. It contains the keys of protected sessions, so it must not be stored or
/// logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardState {
    sessions: Vec<MovedSession>,
    /// The nexuses of the sessions, in the same order, and the units.
    target: TargetState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum MovedSession {
    Iscsi(Box<iscsi_handover::SessionState>),
    HyperScsi(Box<hyperscsi_handover::SessionState>),
}

/// What a shard hands over.
#[derive(Debug)]
pub struct Exported {
    /// The state.
    pub state: ShardState,
    /// The connections of each session of the state, in the same order; none of a HyperSCSI session.
    pub connections: Vec<Vec<ConnId>>,
}

/// What keeps a shard from being handed over, in one sentence that names the session or the unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardBusy {
    sentence: String,
    /// Whether waiting can help.
    can_end: bool,
}

impl ShardBusy {
    /// Returns whether the shard can become idle by itself. If not, waiting does not help.
    pub const fn can_end(&self) -> bool {
        self.can_end
    }
}

impl fmt::Display for ShardBusy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl core::error::Error for ShardBusy {}

/// Why a shard cannot resume what another one handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResumeError {
    /// The state has another number of sessions than the list of connections.
    Connections,
    /// The configuration has no target of this name.
    NoTarget(String),
    /// An iSCSI session cannot be resumed.
    Iscsi(iscsi_handover::ResumeError),
    /// A HyperSCSI session cannot be resumed.
    HyperScsi(hyperscsi_handover::ResumeError),
    /// The configuration does not admit the initiator of a session any more.
    Refused(String),
    /// The portal of a session of this initiator belongs to another portal group now: the session would have
    /// another target port, and other persistent reservations.
    PortalGroup(String),
    /// The state of the target cannot be restored.
    Target(RestoreError),
}

impl fmt::Display for ResumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connections => f.write_str("the connections are not those of the sessions"),
            Self::NoTarget(name) => write!(f, "there is no target {name} in the configuration now"),
            Self::Iscsi(why) => why.fmt(f),
            Self::HyperScsi(why) => why.fmt(f),
            Self::Refused(initiator) => {
                write!(f, "the configuration does not admit a session of {initiator} now")
            }
            Self::PortalGroup(initiator) => write!(
                f,
                "the portal of a session of {initiator} has another tag than when the session began; \
                 let the initiator log out and in again"
            ),
            Self::Target(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for ResumeError {}

impl ShardState {
    /// Returns how many sessions there are.
    pub const fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the names of the targets of the sessions, in the order of the sessions; `None` for a text that
    /// is no name.
    pub fn targets(&self) -> impl Iterator<Item = Option<String>> {
        self.sessions.iter().map(|session| match session {
            MovedSession::Iscsi(state) => state.target().map(|name| name.as_str().into()),
            MovedSession::HyperScsi(state) => Some(state.target.clone()),
        })
    }

    /// Renumbers the Ethernet ports, as the process that resumes the sessions numbers them. A path whose port
    /// `port` does not know is left when its session is resumed.
    pub fn map_ports(&mut self, port: impl Fn(EtherPort) -> Option<EtherPort>) {
        for session in &mut self.sessions {
            if let MovedSession::HyperScsi(state) = session {
                state.map_ports(&port);
            }
        }
    }
}

impl Shard {
    /// Gives initiators no further room for commands, so that [`Self::export`] becomes possible. No session
    /// ends, and everything under way is served.
    pub fn freeze(&mut self, now: Instant) {
        self.transports.iscsi.freeze(now);
        self.transports.hyperscsi.freeze(now);
        self.process_pending(now);
    }

    /// Undoes [`Self::freeze`], or lets the sessions that [`Self::resume`] made go on. The caller makes sure
    /// that no other process serves them.
    pub fn thaw(&mut self, now: Instant) {
        self.transports.iscsi.thaw(now);
        self.transports.hyperscsi.thaw(now);
        self.process_pending(now);
    }

    /// Begins no HyperSCSI handshake from now on, or does again. Handshakes under way go on.
    pub const fn pause_handshakes(&mut self, is_paused: bool) {
        self.transports.hyperscsi.pause_handshakes(is_paused);
    }

    /// Returns how many initiators have begun what would be lost with the shard: iSCSI connections that have
    /// not logged in, those of discovery sessions, and HyperSCSI handshakes.
    pub fn unmovable(&self) -> usize {
        self.transports.iscsi.unmovable_connections() + self.transports.hyperscsi.half_open_handshakes()
    }

    /// Closes the iSCSI connections that have not logged in, and those of discovery sessions.
    pub fn end_unmovable(&mut self, now: Instant) {
        self.transports.iscsi.end_unmovable_connections(now);
        self.process_pending(now);
    }

    /// Makes durable what a tape drive holds, if only that keeps it from being handed over. Call this for
    /// each tape drive as often as [`Self::busy`] after [`Self::freeze`].
    pub fn prepare_handover(&mut self, now: Instant, drive: UnitId) {
        self.target.prepare_handover(now, drive);
        self.process_pending(now);
    }

    /// Returns what keeps the shard from being handed over; `None` if it is idle. A shutdown and a unit that
    /// can never be handed over come first, so that an owner learns of them before it freezes anything.
    pub fn busy(&self) -> Option<ShardBusy> {
        if self.draining {
            return Some(ShardBusy { sentence: "the target shuts down".into(), can_end: false });
        }
        let of_target = self.target.busy();
        if let Some(busy) = of_target.as_ref().filter(|busy| !busy.can_end()) {
            return Some(self.target_busy(busy));
        }
        if let Some(busy) = self.transports.iscsi.busy() {
            return Some(self.iscsi_busy(busy));
        }
        if let Some(busy) = self.transports.hyperscsi.busy() {
            return Some(hyperscsi_busy(&busy));
        }
        of_target.map(|busy| self.target_busy(&busy))
    }

    /// Returns the state of the shard, and the connections that belong to it. The shard must not be driven
    /// any more until [`Self::thaw`]: what it receives is lost.
    ///
    /// # Errors
    /// What keeps the shard from being handed over. [`Self::thaw`] lets it go on.
    pub fn export(&mut self, now: Instant) -> Result<Exported, ShardBusy> {
        if let Some(why) = self.busy() {
            return Err(why);
        }
        let nexuses: Vec<NexusId> = self.target.nexuses().map(|(id, _)| id).collect();
        let (mut sessions, mut connections) = (Vec::new(), Vec::new());
        for id in &nexuses {
            let Some((transport, session)) = self.target.nexus(*id).map(|entry| entry.session()) else {
                continue;
            };
            let (state, conns) = match transport {
                ISCSI => {
                    let exported = self.transports.iscsi.export(session);
                    let (state, conns) = exported.map_err(|busy| self.iscsi_busy(busy))?;
                    (MovedSession::Iscsi(Box::new(state)), conns)
                }
                _ => {
                    let exported = self.transports.hyperscsi.export(now, session);
                    let state = exported.map_err(|busy| hyperscsi_busy(&busy))?;
                    (MovedSession::HyperScsi(Box::new(state)), Vec::new())
                }
            };
            sessions.push(state);
            connections.push(conns);
        }
        let target = self.target.export(now, &nexuses).map_err(|busy| self.target_busy(&busy))?;
        Ok(Exported { state: ShardState { sessions, target }, connections })
    }

    /// Resumes the sessions of another shard, and restores its units. `connections` are those of each
    /// session, in the order of [`Exported::connections`]; `taken_over` was called for each, and nothing was
    /// received. Call [`Self::thaw`] when the other shard is out of use.
    ///
    /// # Errors
    /// Why the state is not resumed. The shard is of no more use then.
    pub fn resume(
        &mut self,
        now: Instant,
        state: &ShardState,
        connections: &[Vec<ConnId>],
    ) -> Result<(), ResumeError> {
        let ShardState { sessions, target } = state;
        if sessions.len() != connections.len() {
            return Err(ResumeError::Connections);
        }
        self.transports.iscsi.freeze(now);
        self.transports.hyperscsi.freeze(now);
        let told = self.notices.len();
        let mut nexuses = Vec::new();
        for (session, conns) in sessions.iter().zip(connections) {
            nexuses.push(self.resume_session(now, session, conns)?);
        }
        self.target.set_resuming(true);
        self.process_pending(now);
        self.target.set_resuming(false);
        // To the operator these sessions are not new.
        self.notices.truncate(told);
        for (id, session) in nexuses.iter().zip(sessions) {
            let entry = self.target.nexus(*id);
            if entry.and_then(|entry| self.map_at_login(&self.config, entry)).is_none() {
                return Err(ResumeError::Refused(session.initiator()));
            }
            if entry.is_some_and(|entry| self.has_other_group(entry.session().1, session)) {
                return Err(ResumeError::PortalGroup(session.initiator()));
            }
        }
        self.target.restore(now, target, &nexuses).map_err(ResumeError::Target)?;
        self.process_pending(now);
        Ok(())
    }

    fn resume_session(
        &mut self,
        now: Instant,
        session: &MovedSession,
        conns: &[ConnId],
    ) -> Result<NexusId, ResumeError> {
        match session {
            MovedSession::Iscsi(state) => {
                let name = state.target().map_or_else(String::new, |name| name.as_str().into());
                let target = self.config.target_called(&name).map(|target| target.id);
                let target = target.ok_or(ResumeError::NoTarget(name))?;
                let state = (**state).clone();
                let directory =
                    LoginDirectory { config: &self.config, target: &self.target, draining: self.draining };
                let session = self.transports.iscsi.resume(now, state, target, conns, &directory);
                session.map(|session| nexus_of(ISCSI, session)).map_err(ResumeError::Iscsi)
            }
            MovedSession::HyperScsi(_) if !conns.is_empty() => Err(ResumeError::Connections),
            MovedSession::HyperScsi(state) => {
                let session = self.transports.hyperscsi.resume(now, state);
                session.map(|session| nexus_of(HYPERSCSI, session)).map_err(ResumeError::HyperScsi)
            }
        }
    }

    /// Returns whether the portal of an iSCSI session belongs to another portal group than the session does.
    fn has_other_group(&self, session: SessionId, moved: &MovedSession) -> bool {
        let MovedSession::Iscsi(state) = moved else { return false };
        let portal = self.iscsi_ingresses.get(session).map(|ingress| ingress.portal);
        let known = self.config.portals.iter().find(|known| Some(known.id) == portal);
        known.is_some_and(|known| known.group != state.portal_group())
    }

    fn iscsi_busy(&self, busy: iscsi_handover::Busy) -> ShardBusy {
        let reason = busy.reason;
        let entry = self.target.nexus(nexus_of(ISCSI, busy.session));
        let initiator = entry.map_or("an initiator", |entry| entry.initiator());
        ShardBusy { sentence: alloc::format!("session of {initiator}: {reason}"), can_end: reason.can_end() }
    }

    fn target_busy(&self, busy: &TargetBusy) -> ShardBusy {
        let name = match busy {
            TargetBusy::Unit { unit, .. } => self.target.naa(*unit),
            _ => None,
        };
        let sentence = match name {
            Some(naa) => alloc::format!("unit naa.{naa}: {busy}"),
            None => busy.to_string(),
        };
        ShardBusy { sentence, can_end: busy.can_end() }
    }
}

impl MovedSession {
    fn initiator(&self) -> String {
        match self {
            Self::Iscsi(state) => state.initiator().map_or_else(String::new, |name| name.as_str().into()),
            Self::HyperScsi(state) => state.initiator.clone(),
        }
    }
}

fn hyperscsi_busy(busy: &hyperscsi_handover::Busy) -> ShardBusy {
    let can_end = !matches!(busy, hyperscsi_handover::Busy::Impatient { .. });
    ShardBusy { sentence: busy.to_string(), can_end }
}
