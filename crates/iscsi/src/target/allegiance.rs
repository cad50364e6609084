//! The connection allegiance of tasks (RFC 7143 §4.2.5.1, §7.2.2), and a session's record of its lost
//! connections, whose tasks are allegiant to none until they are reassigned.

use alloc::vec::Vec;

use base::state_machine::ConnId;
use base::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

use crate::recovery::erl2::ReferencedTask;

/// The connection allegiance of a task. A task begins on the connection that its command was received on.
/// When that connection is lost, the task is detached until it is reassigned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allegiance(State);

#[derive(Clone, Copy, Debug)]
enum State {
    Connected(ConnId),
    Detached(LossId),
}

/// The loss of a connection. Only [`LostConnections`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LossId(u32);

impl Allegiance {
    /// Returns the allegiance of a task whose command was received on this connection.
    pub(crate) const fn to(conn: ConnId) -> Self {
        Self(State::Connected(conn))
    }

    /// Returns the connection that the task is allegiant to, if it has one.
    pub(crate) const fn connection(self) -> Option<ConnId> {
        match self.0 {
            State::Connected(conn) => Some(conn),
            State::Detached(_) => None,
        }
    }

    /// Returns the loss that detached the task, if it is detached.
    pub(crate) const fn loss(self) -> Option<LossId> {
        match self.0 {
            State::Connected(_) => None,
            State::Detached(loss) => Some(loss),
        }
    }

    /// Records that the connection is lost. A detached task stays as it is.
    pub(crate) const fn detach(&mut self, loss: LossId) {
        if let State::Connected(_) = self.0 {
            self.0 = State::Detached(loss);
        }
    }

    /// Moves a detached task to a connection. Returns false, and changes nothing, if it is not detached.
    #[must_use]
    pub(crate) const fn reassign(&mut self, conn: ConnId) -> bool {
        let is_detached = self.loss().is_some();
        if is_detached {
            self.0 = State::Connected(conn);
        }
        is_detached
    }
}

/// The lost connections of a session, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct LostConnections {
    list: Vec<LostConnection>,
    /// How many connections were lost so far.
    losses: u32,
}

/// A lost connection whose tasks wait for reassignment.
#[derive(Clone, Copy, Debug)]
struct LostConnection {
    cid: u16,
    loss: LossId,
    /// Whether it was logged out for recovery, explicitly or implicitly.
    logged_out: bool,
    /// When it was lost.
    since: Instant,
    /// When its tasks are ended.
    until: Instant,
}

/// A lost connection as it moves to another engine. The fields are an interface between releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LostConnectionState {
    pub(crate) cid: u16,
    /// Whether it was logged out for recovery.
    pub(crate) logged_out: bool,
}

/// The result of [`LostConnections::insert`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedLoss {
    /// The loss, which detaches the tasks of the connection.
    pub(crate) loss: LossId,
    /// When these tasks are ended.
    pub(crate) until: Instant,
    /// A loss that the session forgot, because there were too many. Its tasks must end.
    pub(crate) forgotten: Option<LossId>,
}

/// How many lost connections a session remembers: as many as it may have connections.
pub(super) const MAX_LOST: usize = super::MAX_CONNECTIONS as usize;

impl LostConnections {
    /// Records that a connection is lost now, and whether it was logged out for recovery. Its tasks wait for
    /// `retention`. Of too many losses, the session forgets the oldest that is not in `awaited`, the losses
    /// whose tasks wait. If all are, it forgets the oldest.
    pub(crate) fn insert(
        &mut self,
        (cid, logged_out): (u16, bool),
        now: Instant,
        retention: Duration,
        awaited: &[LossId],
    ) -> RecordedLoss {
        let forgotten = self.is_full().then(|| {
            let without_tasks = self.list.iter().position(|lost| !awaited.contains(&lost.loss));
            self.list.remove(without_tasks.unwrap_or(0)).loss
        });
        let (loss, until) = (LossId(self.losses), now.after(retention));
        self.losses = self.losses.wrapping_add(1);
        self.list.push(LostConnection { cid, loss, logged_out, since: now, until });
        RecordedLoss { loss, until, forgotten }
    }

    /// Returns whether the next loss makes the session forget another.
    pub(crate) const fn is_full(&self) -> bool {
        self.list.len() >= MAX_LOST
    }

    /// Marks the connections with a CID as logged out for recovery. Their tasks wait until then. Returns
    /// whether there is one.
    pub(crate) fn log_out(&mut self, cid: u16, until: Instant) -> bool {
        let mut any = false;
        for lost in self.list.iter_mut().filter(|lost| lost.cid == cid) {
            (lost.logged_out, lost.until) = (true, until);
            any = true;
        }
        any
    }

    /// Removes a connection whose tasks have waited for long enough. Returns its loss.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<LossId> {
        let at = self.list.iter().position(|lost| lost.until <= now)?;
        Some(self.list.remove(at).loss)
    }

    /// Returns when the tasks of the next connection have waited for long enough.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.list.iter().map(|lost| lost.until).min()
    }

    /// Returns the state of a task with this allegiance, or `None` if the loss of its connection is not
    /// recorded: such a task must not exist.
    pub(crate) fn state_of(&self, allegiance: Allegiance) -> Option<ReferencedTask> {
        let Some(loss) = allegiance.loss() else { return Some(ReferencedTask::Connected) };
        let lost = self.list.iter().find(|lost| lost.loss == loss)?;
        Some(ReferencedTask::Detached { released: lost.logged_out })
    }

    /// Returns whether a task with this allegiance has been detached for so long.
    pub(crate) fn is_detached_for(&self, allegiance: Allegiance, now: Instant, span: Duration) -> bool {
        let is_due = |lost: &LostConnection| now.since(lost.since) >= span;
        allegiance.loss().is_some_and(|loss| self.list.iter().any(|lost| lost.loss == loss && is_due(lost)))
    }

    /// Returns whether a connection with this CID is lost.
    pub(crate) fn has_cid(&self, cid: u16) -> bool {
        self.list.iter().any(|lost| lost.cid == cid)
    }

    /// Returns the connections as they move to another engine.
    pub(crate) fn states(&self) -> impl Iterator<Item = LostConnectionState> {
        self.list.iter().map(|lost| LostConnectionState { cid: lost.cid, logged_out: lost.logged_out })
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) const fn len(&self) -> usize {
        self.list.len()
    }
}

/// Returns how long tasks wait for reassignment.
pub(crate) fn retention(time2wait: u16, time2retain: u16) -> Duration {
    Duration::from_secs(u64::from(time2wait) + u64::from(time2retain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_detached_by_the_first_loss_until_it_is_reassigned() {
        let mut lost = LostConnections::default();
        let mut losses = || lost.insert((0, false), Instant::ORIGIN, Duration::ZERO, &[]).loss;
        let (first, second) = (losses(), losses());
        let mut allegiance = Allegiance::to(ConnId(1));
        assert!(!allegiance.reassign(ConnId(2)));
        assert_eq!((allegiance.connection(), allegiance.loss()), (Some(ConnId(1)), None));
        allegiance.detach(first);
        allegiance.detach(second);
        assert_eq!((allegiance.connection(), allegiance.loss()), (None, Some(first)));
        assert!(allegiance.reassign(ConnId(2)));
        assert_eq!((allegiance.connection(), allegiance.loss()), (Some(ConnId(2)), None));
    }

    #[test]
    fn of_too_many_losses_the_oldest_without_tasks_is_forgotten_first() {
        let mut lost = LostConnections::default();
        let mut insert =
            |cid, awaited: &[LossId]| lost.insert((cid, false), Instant::ORIGIN, Duration::ZERO, awaited);
        let recorded: Vec<RecordedLoss> =
            (0..super::super::MAX_CONNECTIONS).map(|cid| insert(cid, &[])).collect();
        assert!(recorded.iter().all(|recorded| recorded.forgotten.is_none()));
        let losses: Vec<LossId> = recorded.iter().map(|recorded| recorded.loss).collect();
        let next = insert(100, &losses[..2]);
        assert_eq!(next.forgotten, Some(losses[2]));
        let all: Vec<LossId> = losses.iter().copied().chain([next.loss]).collect();
        assert_eq!(insert(101, &all).forgotten, Some(losses[0]));
        assert_eq!(lost.len(), MAX_LOST);
        let mut allegiance = Allegiance::to(ConnId(1));
        assert_eq!(lost.state_of(allegiance), Some(ReferencedTask::Connected));
        allegiance.detach(losses[2]);
        assert_eq!(lost.state_of(allegiance), None);
    }
}
