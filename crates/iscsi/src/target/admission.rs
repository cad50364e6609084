//! Admission of connections and sessions when slots are short, and which session is evicted for a new one.
//!
//! * Discovery sessions are counted separately, so they never take a slot from a session that uses a disk.
//!   The oldest is ended when a new one needs its slot, and each ends after [`DISCOVERY_IDLE`] without a Text
//!   Request, and after [`DISCOVERY_LIFE`] in any case.
//! * A session without a responsive connection can be evicted: all its connections are lost and its tasks are
//!   retained, or its idle connections left a ping unanswered. It is evicted for a new session when the limit
//!   of sessions is reached, of the target or in all. The session that has been silent for longest is evicted
//!   first. An initiator at its own limit of sessions with a target can replace only its own in this way. An
//!   initiator that lost its last connection can come back within the time that it was told to wait
//!   (DefaultTime2Wait) and [`COME_BACK`] more.
//! * Connections that have not logged in: one address may have as many as there are free slots left, so a
//!   flood from one address leaves as many slots to all others as it has itself.

use core::net::SocketAddr;

use base::fairness::{largest_holder, source};
use base::state_machine::ConnId;
use base::time::{Duration, Instant};

use super::arena::Key;
use super::connection::index;
use super::contract::{ConnectionLoss, SessionEnd};
use super::dispatch::PduContext;
use super::engine::Engine;
use super::session::Session;
use super::timer::{Owner, Timer};
use crate::login::directory::{TargetId, TargetLookup};
use crate::login::{LoginOutcome, SessionKind, Status};
use crate::name::{IscsiName, Isid};
use crate::serial::CmdSn;

/// Returns whether a login has a limit in common with a session of the same target: both are of one user, or
/// of one initiator if neither has a user. An initiator chooses its name.
fn is_of_one(session: &Session, outcome: &LoginOutcome) -> bool {
    match (&session.user, &outcome.user) {
        (None, None) => session.initiator == outcome.initiator,
        (one, other) => one == other,
    }
}

/// How many discovery sessions there may be. Each lasts only as long as it takes to ask for the targets.
const DISCOVERY_SESSIONS_MAX: usize = 128;

/// How long a discovery session may send no Text Request.
const DISCOVERY_IDLE: Duration = Duration::from_secs(60);

/// How long a discovery session may last.
const DISCOVERY_LIFE: Duration = Duration::from_secs(300);

/// How long a session whose connections are lost cannot be evicted, after its initiator may log in again:
/// several times what a login takes.
const COME_BACK: Duration = Duration::from_secs(5);

/// How many connections that have not logged in an address may always have, however few slots are free.
const LOGINS_LEAST: usize = 16;

impl Engine {
    /// Counts a connection that is to log in. Returns false if its address has too many of those.
    pub(super) fn reserve_login_slot(&mut self, peer: SocketAddr) -> bool {
        let free = usize::try_from(self.limits.connections_max).unwrap_or(usize::MAX);
        let free = free.saturating_sub(self.open_conns);
        let own = self.pending_logins.entry(source(peer)).or_default();
        if *own >= free.max(LOGINS_LEAST) {
            return false;
        }
        *own += 1;
        true
    }

    /// Removes a connection from the count of those that have not logged in.
    pub(super) fn release_login_slot(&mut self, conn: ConnId) {
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else { return };
        let Some(source) = connection.logs_in_from.take() else { return };
        if let Some(count) = self.pending_logins.get_mut(&source) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.pending_logins.remove(&source);
            }
        }
    }

    /// Finds the session that a login is to join, by the identity that the login has claimed so far.
    pub(super) fn joined_by(&self, tsih: u16, isid: [u8; 6], named: Option<&IscsiName>) -> Option<Key> {
        let fits = |session: &Session| {
            session.tsih.0 == tsih && named.is_some_and(|named| session.is_of_port(named, Isid(isid)))
        };
        self.sessions.iter().find(|(_, session)| tsih != 0 && fits(session)).map(|(key, _)| key)
    }

    /// Finds a slot for a new session, if necessary by evicting an unresponsive one.
    pub(super) fn make_room_for_session(
        &mut self,
        context: PduContext<'_>,
        outcome: &LoginOutcome,
    ) -> Result<(), Status> {
        let is_discovery = |session: &Session| session.is_discovery();
        let SessionKind::Normal { target, name, .. } = &outcome.kind else {
            let all = || self.sessions.iter().filter(|(_, session)| is_discovery(session));
            // The oldest one of the address that has most.
            let from = largest_holder(all().map(|(_, session)| (source(session.first_peer), 1)));
            let oldest = all()
                .filter(|(_, session)| Some(source(session.first_peer)) == from)
                .min_by_key(|(_, session)| session.began)
                .map(|(key, _)| key);
            if let Some(oldest) = oldest.filter(|_| all().count() >= DISCOVERY_SESSIONS_MAX) {
                self.end_session(oldest, SessionEnd::TimedOut);
            }
            return Ok(());
        };
        let via = self.conn(context.conn).map(|connection| connection.via).ok_or(Status::TARGET_ERROR)?;
        let found = context.directory.find_target(&via, &outcome.initiator, name);
        if let TargetLookup::Found(access) | TargetLookup::AtSessionLimit(access) = &found
            && let Some(most) = access.sessions_max
            && self.sessions_of(*target, |session| is_of_one(session, outcome)) >= most
            && !self.evict(context.now, Some(*target), |session| is_of_one(session, outcome))
        {
            return Err(Status::OUT_OF_RESOURCES);
        }
        let normal = self.sessions.iter().filter(|(_, session)| !is_discovery(session)).count();
        if normal >= usize::from(self.limits.sessions_max) && !self.evict(context.now, None, |_| true) {
            return Err(Status::OUT_OF_RESOURCES);
        }
        let is_full = matches!(found, TargetLookup::AtSessionLimit(_));
        if is_full && !self.evict(context.now, Some(*target), |_| true) {
            return Err(Status::OUT_OF_RESOURCES);
        }
        Ok(())
    }

    /// Returns how many wanted sessions a target has.
    pub(super) fn sessions_of(&self, of: TargetId, is_wanted: impl Fn(&Session) -> bool) -> u32 {
        let fits = |session: &Session| {
            is_wanted(session) && matches!(session.kind, SessionKind::Normal { target, .. } if target == of)
        };
        let count = self.sessions.iter().filter(|(_, session)| fits(session)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Ends the wanted session that has been silent for longest, of a target or of all. Returns whether there
    /// was one.
    fn evict(&mut self, now: Instant, of: Option<TargetId>, is_wanted: impl Fn(&Session) -> bool) -> bool {
        let silent = self.sessions.iter().filter_map(|(key, session)| {
            let SessionKind::Normal { target, .. } = session.kind else { return None };
            let since = self.silent_since(session)?;
            let fits = of.is_none_or(|of| of == target) && is_wanted(session);
            fits.then_some((since, key))
        });
        let Some((_, key)) = silent.min_by_key(|(since, _)| *since) else { return false };
        self.stats.evicted += 1;
        self.now = now;
        let lost = self.sessions.get(key).filter(|session| session.conns.is_empty());
        let why = lost.map_or(ConnectionLoss::Dropped, |session| session.last_loss);
        self.end_session(key, SessionEnd::ConnectionLost(why));
        true
    }

    /// Returns since when a session has no responsive connection, if that is long enough for it to be
    /// evicted.
    fn silent_since(&self, session: &Session) -> Option<Instant> {
        let mut since = session.lost_since;
        let wait = Duration::from_secs(session.parameters.default_time2wait.into());
        if since.is_some_and(|lost| self.now.since(lost) < wait.saturating_add(COME_BACK)) {
            return None;
        }
        for conn in &session.conns {
            let is_silent = |heard| self.now.since(heard) >= session.limits.ping_after;
            let connection = self
                .conn(*conn)
                .filter(|connection| connection.ping_overdue && is_silent(connection.last_heard))?;
            since = since.max(Some(connection.last_heard));
        }
        since
    }

    /// Returns whether a session of a target can be evicted for a new one.
    pub(super) fn may_evict(&self, of: TargetId) -> bool {
        self.sessions.iter().any(|(_, session)| {
            matches!(session.kind, SessionKind::Normal { target, .. } if target == of)
                && self.silent_since(session).is_some()
        })
    }

    /// Sets the timer that bounds the life of a discovery session.
    pub(super) fn watch_discovery(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key).filter(|session| session.is_discovery()) else {
            return;
        };
        let until = session.last_text_request.after(DISCOVERY_IDLE).min(session.began.after(DISCOVERY_LIFE));
        self.timers.set(Owner::Session(key), &mut session.deadlines, Timer::Discovery, until);
    }

    /// Ends a discovery session whose time is over.
    pub(super) fn on_discovery_timer(&mut self, now: Instant, key: Key) {
        let Some(session) = self.sessions.get(key) else { return };
        if now < session.last_text_request.after(DISCOVERY_IDLE) && now < session.began.after(DISCOVERY_LIFE)
        {
            return self.watch_discovery(key);
        }
        self.end_session(key, SessionEnd::TimedOut);
    }

    /// Returns ExpCmdSN and MaxCmdSN for a connection that is about to join a session.
    pub(super) fn counters_to_join(&mut self, session: Key) -> Option<(CmdSn, CmdSn)> {
        let session = self.sessions.get_mut(session)?;
        Some((session.window.exp_cmd_sn(), session.window.max_cmd_sn(0)))
    }
}
