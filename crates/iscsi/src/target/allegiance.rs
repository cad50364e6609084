//! The connection allegiance of tasks (RFC 7143 §4.2.5.1) when their connection is lost: a session's record
//! of its lost connections, and the substitute numbers that their tasks have instead of a connection.

use alloc::vec::Vec;

use base::state_machine::ConnId;
use base::time::{Duration, Instant};

use crate::recovery::erl2::Allegiance;

/// A lost connection whose tasks wait for reassignment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostConnection {
    cid: u16,
    /// The substitute number that its tasks are allegiant to now.
    detached_id: ConnId,
    /// Whether it was logged out for recovery, explicitly or implicitly.
    logged_out: bool,
    /// When it was lost.
    since: Instant,
    /// When its tasks are ended.
    until: Instant,
}

impl LostConnection {
    /// Returns a connection that is lost now. Its tasks are allegiant to `detached_id`.
    pub(crate) const fn new(cid: u16, detached_id: ConnId, logged_out: bool, now: Instant) -> Self {
        Self { cid, detached_id, logged_out, since: now, until: now }
    }
}

/// The lost connections of a session, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct LostConnections(Vec<LostConnection>);

/// How many lost connections a session remembers: as many as it may have connections. When there are more,
/// the tasks of the oldest are ended.
const MAX_LOST: usize = super::MAX_CONNECTIONS as usize;

impl LostConnections {
    /// Adds a connection whose tasks wait for so long. Returns the substitute number of the connection that
    /// is forgotten for it, if there are too many, and when its own tasks are ended.
    pub(crate) fn insert(&mut self, lost: LostConnection, retention: Duration) -> (Option<ConnId>, Instant) {
        let oldest = (self.0.len() >= MAX_LOST).then(|| self.0.remove(0).detached_id);
        let until = lost.since.after(retention);
        self.0.push(LostConnection { until, ..lost });
        (oldest, until)
    }

    /// Marks the connections with a CID as logged out for recovery. Their tasks wait until then. Returns
    /// whether there is one.
    pub(crate) fn log_out(&mut self, cid: u16, until: Instant) -> bool {
        let mut any = false;
        for lost in self.0.iter_mut().filter(|lost| lost.cid == cid) {
            (lost.logged_out, lost.until) = (true, until);
            any = true;
        }
        any
    }

    /// Removes a connection whose tasks have waited for long enough. Returns its substitute number.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<ConnId> {
        let at = self.0.iter().position(|lost| lost.until <= now)?;
        Some(self.0.remove(at).detached_id)
    }

    /// Returns when the tasks of the next connection have waited for long enough.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.0.iter().map(|lost| lost.until).min()
    }

    /// Returns the allegiance of a task with this connection or substitute number.
    pub(crate) fn allegiance_to(&self, conn: ConnId) -> Allegiance {
        match self.0.iter().find(|lost| lost.detached_id == conn) {
            Some(lost) => Allegiance::Detached { released: lost.logged_out },
            None => Allegiance::Connected,
        }
    }

    /// Returns whether tasks with this substitute number have had no connection for so long.
    pub(crate) fn is_detached_for(&self, conn: ConnId, now: Instant, span: Duration) -> bool {
        self.0.iter().any(|lost| lost.detached_id == conn && now.since(lost.since) >= span)
    }

    /// Returns whether a connection with this CID is lost.
    pub(crate) fn has_cid(&self, cid: u16) -> bool {
        self.0.iter().any(|lost| lost.cid == cid)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }
}

/// The first of the numbers that no connection has.
const DETACHED_IDS: u32 = 1 << 31;

/// Returns a substitute number for tasks without a connection.
pub(crate) const fn detached_id(number: u32) -> ConnId {
    ConnId(DETACHED_IDS | number)
}

/// Returns whether tasks with this allegiance have no connection.
pub(crate) const fn is_detached_id(conn: ConnId) -> bool {
    conn.0 >= DETACHED_IDS
}

/// Returns how long tasks wait for reassignment.
pub(crate) fn retention(time2wait: u16, time2retain: u16) -> Duration {
    Duration::from_secs(u64::from(time2wait) + u64::from(time2retain))
}
