//! Changes of limits while sessions are open.
//!
//! A deeper command window is granted at once. A shallower one takes effect as commands end: MaxCmdSN never
//! moves backwards (RFC 7143 §4.2.2.1), so the initiator can use the window it was already granted. A ping
//! that waits for its answer keeps its own deadline.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use base::time::{Duration, Instant};

use super::arena::Key;
use super::connection::index;
use super::contract::SessionLimits;
use super::engine::{Engine, Limits};
use super::timer::{Owner, Timer};
use super::window::MAX_DEPTH;
use crate::login::SessionKind;
use crate::login::directory::TargetId;

/// The depth of the command window while memory is short, for a session that holds much of it: enough to make
/// progress.
const DEPTH_UNDER_PRESSURE: u32 = 4;

impl Limits {
    /// Returns the limits of a session whose target has no limits of its own.
    pub const fn of_session(&self) -> SessionLimits {
        let Self { queue_depth, ping_after, pong_within, idle_within, .. } = *self;
        SessionLimits { queue_depth, ping_after, pong_within, idle_within }
    }
}

impl Engine {
    /// Changes how many sessions there may be and how long a login may take, from the next login on.
    pub fn set_logins(&mut self, sessions_max: u16, login_within: Duration) {
        self.limits.sessions_max = sessions_max;
        self.limits.login_within = login_within;
    }

    /// Changes which initiator names are accepted, from the next connection on.
    pub const fn set_lenient_names(&mut self, lenient: bool) {
        self.limits.lenient_names = lenient;
    }

    /// Allows this many connections at a time. The bound never shrinks; the driver limits how many there are.
    pub fn allow_connections(&mut self, connections_max: u32) {
        self.limits.connections_max = self.limits.connections_max.max(connections_max);
    }

    /// Changes the limits of every session, the present ones included: `usual` applies to targets that
    /// `of_targets` does not name.
    pub fn set_session_limits(
        &mut self,
        now: Instant,
        usual: SessionLimits,
        of_targets: BTreeMap<TargetId, SessionLimits>,
    ) {
        self.now = now;
        let SessionLimits { queue_depth, ping_after, pong_within, idle_within } = usual;
        self.limits = Limits { queue_depth, ping_after, pong_within, idle_within, ..self.limits };
        let depths = of_targets.values().map(|limits| limits.queue_depth);
        self.depth_max = depths.chain([queue_depth, self.depth_max]).max().unwrap_or(queue_depth);
        self.target_limits = of_targets;
        let sessions: Vec<Key> = self.sessions.iter().map(|(key, _)| key).collect();
        for key in sessions {
            let Some(limits) = self.sessions.get(key).map(|session| self.limits_for(&session.kind)) else {
                continue;
            };
            let Some(session) = self.sessions.get_mut(key) else { continue };
            if session.limits != limits {
                session.limits = limits;
                session.window.resize(limits.queue_depth);
                self.restart_ping_timers(now, key);
            }
        }
    }

    /// Returns the limits of a session of this kind.
    pub(super) fn limits_for(&self, kind: &SessionKind) -> SessionLimits {
        let own = match kind {
            SessionKind::Normal { target, .. } => self.target_limits.get(target).copied(),
            SessionKind::Discovery { .. } => None,
        };
        own.unwrap_or(self.limits.of_session())
    }

    /// Returns how many statuses a connection retains: more than an initiator can have open, so that only an
    /// initiator that acknowledges nothing reaches it. Then its connection sends no further status until it
    /// acknowledges some.
    pub(super) fn unacked_max(&self) -> usize {
        let open = self.depth_max.clamp(1, MAX_DEPTH).saturating_mul(2);
        let open = open.saturating_add(self.limits.immediate_max);
        usize::try_from(open).unwrap_or(usize::MAX).saturating_add(super::status_log::SPARE)
    }

    /// Returns how many answered tasks a session retains, those of lost connections included: one full
    /// window, plus the immediate commands and control PDUs that may be under way beside it.
    pub(super) fn answered_max(&self) -> u32 {
        let open = self.depth_max.clamp(1, MAX_DEPTH).saturating_add(self.limits.immediate_max);
        open.saturating_add(u32::try_from(super::status_log::SPARE).unwrap_or(u32::MAX))
    }

    /// Returns how many commands of a session may be open while memory is as short as it is now, and the
    /// engine frozen or not. A discovery session does not move, so nothing holds it up.
    pub(super) fn depth_now(&self, session: Key) -> u32 {
        let session = self.sessions.get(session);
        if self.is_frozen && session.is_some_and(|session| !session.is_discovery()) {
            return 0;
        }
        let is_throttled = session.is_some_and(|session| self.quotas.should_throttle(&session.shares));
        if is_throttled { DEPTH_UNDER_PRESSURE } else { u32::MAX }
    }

    /// Restarts the ping timers of a session's connections with its present limits.
    fn restart_ping_timers(&mut self, now: Instant, key: Key) {
        let Some(session) = self.sessions.get(key) else { return };
        let after = session.limits.ping_after;
        for conn in session.conns.iter().copied() {
            let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else {
                continue;
            };
            if connection.ping.is_none() && connection.deadlines.is_set(Timer::Silence) {
                let at = connection.last_heard.after(after).max(now);
                self.timers.set(Owner::Connection(conn), &mut connection.deadlines, Timer::Silence, at);
            }
        }
    }
}
