//! What an operator may want to know of initiators that got in: departures from the standard that were taken, each told once
//! of an initiator, and hosts that take one session from each other.

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

/// Something about an initiator for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitiatorNote {
    /// The initiator.
    pub initiator: IscsiName,
    /// The target; `None` in a discovery session.
    pub target: Option<IscsiName>,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// What.
    pub kind: NoteKind,
}

/// What there is to say about an initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// It departed from the standard, which harms nobody. Told once of an initiator.
    Deviation(Deviation),
    /// Two hosts use its name and the same ISID: each login of one ends the session of the other.
    SharedName {
        /// The initiator's half of the session identifier.
        isid: String,
        /// The host whose session ended last; `peer` is the one that took it.
        other: IpAddr,
        /// How often one took it from the other since this was told last.
        times: u64,
    },
}

/// A departure from the standard that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Deviation {
    /// In the login.
    #[error(transparent)]
    Login(deviation::Deviation),
    /// A PDU that the standard has a target ignore.
    #[error("{0}: passed over")]
    PassedOver(ProtocolError),
    /// No answer to a ping, while nothing waited for it.
    #[error(
        "no answer to a ping while no command is under way (RFC 7143 §11.19): waiting for nop_idle_timeout"
    )]
    Silent,
}

/// How many initiators are remembered by what was told of them. When there are more, all are forgotten.
const MAX_INITIATORS: usize = 1024;
/// How many notes wait for whoever writes them down; more are forgotten.
const MAX_NOTES: usize = 64;
/// Hosts that take a session from each other at longer intervals are one host that changes its address.
const TAKEOVERS_WITHIN: Duration = Duration::from_secs(60);
/// How long nothing is told of hosts that were told of.
const QUIET: Duration = Duration::from_secs(60);

/// Notes that wait, and what was told.
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

    /// Returns whether this is new of this initiator, and remembers it.
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

/// How hosts took the place of each other in one session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takeovers {
    /// When that happened last, and when it was told.
    at: Instant,
    told: Option<Instant>,
    /// How often it happened, and how often since it was told.
    times: u64,
    untold: u64,
}

impl Engine {
    /// Returns something to tell an operator of an initiator.
    pub fn poll_note(&mut self) -> Option<InitiatorNote> {
        self.notes.waiting.pop_front()
    }

    /// Remembers a departure of a connection's initiator, to be told if it is the first of its kind.
    pub(super) fn record_deviation(&mut self, conn: ConnId, departure: Deviation) {
        let Some(connection) = self.conn(conn) else { return };
        let peer = connection.via.peer;
        let Some(session) = connection.session.and_then(|key| self.sessions.get(key)) else { return };
        if self.notes.is_new(&session.initiator, departure) {
            let (initiator, target) = (session.initiator.clone(), named(&session.kind));
            self.notes.push(InitiatorNote { initiator, target, peer, kind: NoteKind::Deviation(departure) });
        }
    }

    /// Judges a login from `peer` that takes the place of a session: a second host under the same name shows when the session
    /// goes back and forth between addresses.
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
        SessionKind::Discovery => None,
    }
}
