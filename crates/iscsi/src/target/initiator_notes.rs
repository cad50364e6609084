//! Notes for the operator about initiators that logged in: tolerated deviations from the standard, each
//! reported once per initiator, and hosts that take over one session from each other.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use base::time::{Duration, Instant};

use super::handover::TakeoversState;
use super::protocol_error::ProtocolError;
use crate::login::SessionKind;
use crate::login::deviation;
use crate::name::{IscsiName, Isid};

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
    #[error("{0}: ignored")]
    PassedOver(ProtocolError),
    /// A ping was not answered while the session had no command under way.
    #[error(
        "the initiator answers no ping while no command is under way (RFC 7143 §11.19): \
         waiting for nop_idle_timeout"
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
    reported: BTreeMap<IscsiName, Vec<Deviation>>,
}

impl Notes {
    /// Takes the next note.
    pub(super) fn pop(&mut self) -> Option<InitiatorNote> {
        self.waiting.pop_front()
    }

    /// Records a deviation of the initiator of a session. The first of its kind is reported.
    pub(super) fn record_deviation(
        &mut self,
        (initiator, kind): (&IscsiName, &SessionKind),
        peer: SocketAddr,
        departure: Deviation,
    ) {
        if self.is_new(initiator, departure) {
            let (initiator, target) = (initiator.clone(), named(kind));
            self.push(InitiatorNote { initiator, target, peer, kind: NoteKind::Deviation(departure) });
        }
    }

    /// Reports a login from `peer` that took over the session of another host, unless one was reported not
    /// long ago.
    pub(super) fn report_takeover(
        &mut self,
        (initiator, kind, isid): (&IscsiName, &SessionKind, Isid),
        (peer, other): (SocketAddr, IpAddr),
        takeovers: &mut Takeovers,
    ) {
        let now = takeovers.at;
        if takeovers.last_report.is_none_or(|last| now >= last.after(QUIET)) {
            let matter = NoteKind::SharedName { isid: isid.to_string(), other, times: takeovers.unreported };
            let (initiator, target) = (initiator.clone(), named(kind));
            self.push(InitiatorNote { initiator, target, peer, kind: matter });
            (takeovers.last_report, takeovers.unreported) = (Some(now), 0);
        }
    }

    fn push(&mut self, note: InitiatorNote) {
        if self.waiting.len() < MAX_NOTES {
            self.waiting.push_back(note);
        }
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.reported.len()
    }

    /// Returns whether this deviation is new for this initiator, and remembers it.
    fn is_new(&mut self, initiator: &IscsiName, departure: Deviation) -> bool {
        if let Some(reported) = self.reported.get_mut(initiator) {
            let is_new = !reported.contains(&departure);
            if is_new {
                reported.push(departure);
            }
            return is_new;
        }
        if self.reported.len() >= MAX_INITIATORS {
            self.reported.clear();
        }
        self.reported.insert(initiator.clone(), alloc::vec![departure]);
        true
    }
}

/// The history of hosts that took over one session from each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takeovers {
    /// The time of the last takeover, and of the last report.
    at: Instant,
    last_report: Option<Instant>,
    /// How many takeovers there were in all, and since the last report.
    times: u64,
    unreported: u64,
}

impl Takeovers {
    /// Returns the history as far as it is recent.
    pub(super) fn recent(known: Option<Self>, now: Instant) -> Option<Self> {
        known.filter(|known| now <= known.at.after(TAKEOVERS_WITHIN))
    }

    /// Returns the history with one more takeover.
    pub(super) fn with_another(known: Option<Self>, now: Instant) -> Self {
        let (last_report, times, unreported) =
            known.map_or((None, 0, 0), |known| (known.last_report, known.times, known.unreported));
        Self { at: now, last_report, times: times + 1, unreported: unreported + 1 }
    }

    /// Returns the history as it moves to another engine now.
    pub(super) fn state(&self, now: Instant) -> TakeoversState {
        TakeoversState {
            last: now.since(self.at),
            last_report: self.last_report.map(|report| now.since(report)),
            times: self.times,
            unreported: self.unreported,
        }
    }

    /// Returns the history with this state. Returns `None` if it counts more than `most` takeovers.
    pub(super) fn of_state(state: &TakeoversState, now: Instant, most: u64) -> Option<Self> {
        let TakeoversState { last, last_report, times, unreported } = *state;
        let is_legal = times <= most && unreported <= times;
        let last_report = last_report.map(|report| now.before(report));
        is_legal.then_some(Self { at: now.before(last), last_report, times, unreported })
    }

    /// Returns whether the session went back and forth between hosts.
    pub(super) const fn is_rivalry(&self) -> bool {
        self.times >= 2
    }
}

fn named(kind: &SessionKind) -> Option<IscsiName> {
    match kind {
        SessionKind::Normal { name, .. } => Some(name.clone()),
        SessionKind::Discovery { .. } => None,
    }
}
