//! Notes for the operator about initiators that logged in: tolerated deviations from the standard, each
//! reported once per initiator, and hosts that take over one session from each other.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use base::state_machine::ConnId;
use base::time::{Duration, Instant};

use super::arena::Key;
use super::engine::Engine;
use super::protocol_error::ProtocolError;
use crate::login::SessionKind;
use crate::login::deviation;
use crate::name::IscsiName;

/// A note about an initiator, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitiatorNote {
    /// The initiator's name.
    pub initiator: IscsiName,
    /// The target's name; `None` in a discovery session.
    pub target: Option<IscsiName>,
    /// The address that the initiator connects from.
    pub peer: SocketAddr,
    /// The subject of the note.
    pub kind: NoteKind,
}

/// The subject of a note about an initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// It deviated from the standard, which harms no other initiator. Reported once per initiator.
    Deviation(Deviation),
    /// Two hosts use its name and the same ISID: each login of one ends the session of the other.
    SharedName {
        /// The ISID: the initiator's part of the session identifier.
        isid: String,
        /// The host whose session was ended last; `peer` is the host that took it over.
        other: IpAddr,
        /// How many takeovers there were since the last report.
        times: u64,
    },
}

/// A deviation from the standard that the target tolerates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Deviation {
    /// A deviation in the login.
    #[error(transparent)]
    Login(deviation::Deviation),
    /// A PDU that the standard requires a target to ignore.
    #[error("{0}: passed over")]
    PassedOver(ProtocolError),
    /// A ping was not answered while the session had no command under way.
    #[error(
        "no answer to a ping while no command is under way (RFC 7143 §11.19): waiting for nop_idle_timeout"
    )]
    Silent,
}

/// For how many initiators the reported deviations are remembered. Beyond it, all are forgotten.
const MAX_INITIATORS: usize = 1024;
/// How many notes wait to be polled. Further ones are dropped.
const MAX_NOTES: usize = 64;
/// Two addresses that take over a session from each other at longer intervals are one host that changes its
/// address.
const TAKEOVERS_WITHIN: Duration = Duration::from_secs(60);
/// How long no further takeover of a session is reported after a report.
const QUIET: Duration = Duration::from_secs(60);

/// The notes that wait to be polled, and the deviations that were reported.
#[derive(Debug, Default)]
pub(super) struct Notes {
    waiting: VecDeque<InitiatorNote>,
    told: BTreeMap<IscsiName, Vec<Deviation>>,
}

impl Notes {
    fn push(&mut self, note: InitiatorNote) {
        if self.waiting.len() < MAX_NOTES {
            self.waiting.push_back(note);
        }
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.told.len()
    }

    /// Returns whether this deviation is new for this initiator, and remembers it.
    fn is_new(&mut self, initiator: &IscsiName, departure: Deviation) -> bool {
        if let Some(told) = self.told.get_mut(initiator) {
            let is_new = !told.contains(&departure);
            if is_new {
                told.push(departure);
            }
            return is_new;
        }
        if self.told.len() >= MAX_INITIATORS {
            self.told.clear();
        }
        self.told.insert(initiator.clone(), alloc::vec![departure]);
        true
    }
}

/// The history of hosts that took over one session from each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takeovers {
    /// The time of the last takeover, and of the last report.
    at: Instant,
    told: Option<Instant>,
    /// How many takeovers there were in all, and since the last report.
    times: u64,
    untold: u64,
}

impl Engine {
    /// Returns the next note about an initiator.
    pub fn poll_note(&mut self) -> Option<InitiatorNote> {
        self.notes.waiting.pop_front()
    }

    /// Records a deviation of a connection's initiator. The first of its kind is reported.
    pub(super) fn record_deviation(&mut self, conn: ConnId, departure: Deviation) {
        let Some(connection) = self.conn(conn) else { return };
        let peer = connection.via.peer;
        let Some(session) = connection.session.and_then(|key| self.sessions.get(key)) else { return };
        if self.notes.is_new(&session.initiator, departure) {
            let (initiator, target) = (session.initiator.clone(), named(&session.kind));
            self.notes.push(InitiatorNote { initiator, target, peer, kind: NoteKind::Deviation(departure) });
        }
    }

    /// Records a login from `peer` that takes over a session. Two hosts use one name if the session goes back
    /// and forth between addresses.
    pub(super) fn record_takeover(&mut self, now: Instant, old: Key, peer: SocketAddr) -> Option<Takeovers> {
        let session = self.sessions.get(old)?;
        let known = session.takeovers.filter(|known| now <= known.at.after(TAKEOVERS_WITHIN));
        let other = session.first_peer.ip();
        if other == peer.ip() {
            return known;
        }
        let (told, times, untold) =
            known.map_or((None, 0, 0), |known| (known.told, known.times, known.untold));
        let mut rivalry = Takeovers { at: now, told, times: times + 1, untold: untold + 1 };
        if rivalry.times < 2 {
            return Some(rivalry);
        }
        self.stats.rival_logins += 1;
        if told.is_none_or(|told| now >= told.after(QUIET)) {
            let matter =
                NoteKind::SharedName { isid: session.isid.to_string(), other, times: rivalry.untold };
            let (initiator, target) = (session.initiator.clone(), named(&session.kind));
            self.notes.push(InitiatorNote { initiator, target, peer, kind: matter });
            (rivalry.told, rivalry.untold) = (Some(now), 0);
        }
        Some(rivalry)
    }
}

fn named(kind: &SessionKind) -> Option<IscsiName> {
    match kind {
        SessionKind::Normal { name, .. } => Some(name.clone()),
        SessionKind::Discovery { .. } => None,
    }
}
