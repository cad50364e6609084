//! Limits of a unit and of the initiators that reach it.

use alloc::boxed::Box;

use base::time::Instant;
use scsi::status::Status;

use super::LogicalUnit;
use crate::contract::{Nexus, NexusId};
use crate::device_server::outcome::Outcome;
use crate::rate_limit::{Cost, RateLimit};
use crate::task::TaskId;
use crate::task_set::TaskState;
use crate::throttle::{EndOfDelay, Throttle, cost_of, keeps_order};

impl LogicalUnit {
    /// Applies the limiter of a nexus, which is new or has changed.
    pub(super) fn limit_nexus(&mut self, nexus: &Nexus) {
        let now = self.server.now;
        if let Some(limiter) = &nexus.limiter {
            let throttle = self.throttle.get_or_insert_with(|| Box::new(Throttle::new(now, RateLimit::NONE)));
            throttle.limit_nexus(now, nexus.id, limiter);
        }
    }

    /// Records that the limit of a nexus has changed. Commands that wait do so under the new limit.
    pub fn nexus_limited(&mut self, now: Instant, nexus: Nexus) {
        self.server.now = now;
        self.limit_nexus(&nexus);
        self.server.nexuses.establish(nexus);
        self.process_pending();
    }

    /// Changes the limit of the unit.
    pub(super) fn limit_unit(&mut self, limit: RateLimit) {
        let now = self.server.now;
        match &mut self.throttle {
            Some(throttle) => throttle.change(now, limit),
            None if limit.is_none() => {}
            None => self.throttle = Some(Box::new(Throttle::new(now, limit))),
        }
    }

    /// Lets a task wait for the limits, if it counts. It is returned by the next check if it need not wait.
    pub(super) fn delay(&mut self, id: TaskId) -> bool {
        let (Some(throttle), Some(task)) = (&mut self.throttle, self.tasks.find_mut(id)) else {
            return false;
        };
        let cost = cost_of(&self.server.info, &task.info).or_else(|| {
            // What the position or the cartridge depends on stays behind the delayed commands of its host.
            let follows = throttle.delays(task.info.nexus) && keeps_order(&self.server.info, &task.info);
            follows.then(Cost::default)
        });
        let Some(cost) = cost else { return false };
        throttle.add(self.server.now, &task.info, cost);
        task.state = TaskState::Delayed;
        true
    }

    /// Starts a delayed task, or refuses it.
    pub(super) fn end_delay(&mut self, end: EndOfDelay) {
        let (EndOfDelay::Start(id, _) | EndOfDelay::Refuse(id)) = end;
        let Some(task) = self.tasks.find_mut(id) else { return };
        task.state = TaskState::Dormant;
        let EndOfDelay::Start(_, waited) = end else {
            return self.apply(id, Outcome::Status(Status::TASK_SET_FULL));
        };
        if !waited.is_zero() {
            self.server.stats.delays.count(waited);
            let state = self.server.nexuses.find(task.info.nexus);
            if let Some(limiter) = state.and_then(|state| state.nexus.limiter.as_ref()) {
                limiter.borrow_mut().stats.count(waited);
            }
        }
        self.execute_task(id);
    }

    /// Removes a task that is aborted or answered from those that wait.
    pub(super) fn forget_delayed(&mut self, id: TaskId) {
        let (Some(throttle), Some(task)) = (&mut self.throttle, self.tasks.find_mut(id)) else { return };
        if matches!(task.state, TaskState::Delayed) {
            throttle.forget(self.server.now, task.info.nexus, id);
        }
    }

    /// Removes the queue of a nexus that the unit does not serve any more.
    pub(super) fn forget_queue(&mut self, nexus: NexusId) {
        if let Some(throttle) = &mut self.throttle {
            throttle.forget_queue(nexus);
        }
    }
}
