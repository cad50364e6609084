//! Limits that change under sessions that go on.
//!
//! A deeper window is open at once. A shallower one takes effect as commands end: MaxCmdSN never moves backwards (RFC
//! 7143 §4.2.2.1), so what the initiator was promised still holds. A ping that waits for its answer keeps its own deadline.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use base::time::{Duration, Instant};

use super::arena::Key;
use super::connection::index;
use super::engine::{Engine, Limits, SessionLimits};
use super::timer::{Owner, Timer};
use super::window::MAX_DEPTH;
use crate::login::SessionKind;
use crate::login::directory::TargetId;

impl Limits {
    /// Returns what a session has whose target says nothing else.
    pub const fn of_session(&self) -> SessionLimits {
        let Self { queue_depth, ping_after, pong_within, idle_within, .. } = *self;
        SessionLimits { queue_depth, ping_after, pong_within, idle_within }
    }
}

impl Engine {
    /// Changes how many sessions there may be and how long a login may take, from the next on.
    pub fn set_logins(&mut self, sessions_max: u16, login_within: Duration) {
        self.limits.sessions_max = sessions_max;
        self.limits.login_within = login_within;
    }

    /// Changes which initiator names are taken, from the next connection on.
    pub const fn set_lenient_names(&mut self, lenient: bool) {
        self.limits.lenient_names = lenient;
    }

    /// Lets connections have numbers up to this. Numbers that were given stay good, so this never shrinks; how many
    /// connections there are is the driver's affair.
    pub fn allow_connections(&mut self, connections_max: u32) {
        self.limits.connections_max = self.limits.connections_max.max(connections_max);
    }

    /// Changes the limits of every session, those at hand included: `usual` for those with targets that are not named.
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
            SessionKind::Discovery => None,
        };
        own.unwrap_or(self.limits.of_session())
    }

    /// Returns how many statuses a connection keeps: more than an initiator can have open, so that only one which
    /// acknowledges nothing reaches it. Then its connection sends no more until it does.
    pub(super) fn unacked_max(&self) -> usize {
        let open = self.depth_max.clamp(1, MAX_DEPTH).saturating_mul(2);
        let open = open.saturating_add(self.limits.immediate_max);
        usize::try_from(open).unwrap_or(usize::MAX).saturating_add(super::status_log::SPARE)
    }

    /// Returns how many answered tasks a session keeps, those of lost connections included: a window of them, and what
    /// may be on the way beside it.
    pub(super) fn answered_max(&self) -> u32 {
        let open = self.depth_max.clamp(1, MAX_DEPTH).saturating_add(self.limits.immediate_max);
        open.saturating_add(u32::try_from(super::status_log::SPARE).unwrap_or(u32::MAX))
    }

    /// Waits for a session's connections as long as its limits say now.
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
