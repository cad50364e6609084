//! Changes of the persistent state, one at a time.
//!
//! Each change is computed from the state in force, stored, and applied only when it is stored. A second
//! change that was computed meanwhile would undo the first. So a command that may change this state queues
//! for its turn ([`crate::device_server::outcome::Outcome::QueueStateChange`]). While another change is being
//! stored it waits, in order of arrival, and every other command still uses the old state.

use alloc::collections::VecDeque;

use crate::fault_injection::{self, Bug};
use crate::task::TaskId;

/// The change that is being stored, and the tasks that wait to make one.
#[derive(Debug, Default)]
pub(crate) struct SaveQueue {
    under_way: Option<(u64, TaskId)>,
    /// The waiting tasks, in order of arrival; [`TaskId::BACKGROUND`] stands for SANITIZE and FORMAT UNIT.
    /// There are never more entries than tasks.
    waiting: VecDeque<TaskId>,
    ticket_next: u64,
}

impl SaveQueue {
    /// Returns whether a change may be made at once.
    pub(crate) fn is_idle(&self) -> bool {
        fault_injection::is_injected(Bug::SaveTogether)
            || (self.under_way.is_none() && self.waiting.is_empty())
    }

    /// Puts a task at the end of the queue.
    pub(crate) fn wait(&mut self, task: TaskId) {
        self.waiting.push_back(task);
    }

    /// Removes the next task from the queue if no change is being stored. The task may have ended meanwhile.
    pub(crate) fn next_turn(&mut self) -> Option<TaskId> {
        if self.under_way.is_some() { None } else { self.waiting.pop_front() }
    }

    /// Records that state of a task is being stored, and returns the ticket of the request.
    pub(crate) fn begin(&mut self, task: TaskId) -> u64 {
        let ticket = self.ticket_next;
        self.ticket_next += 1;
        self.under_way = Some((ticket, task));
        ticket
    }

    /// Returns the task whose state was stored under `ticket`, or could not be. The next change may begin.
    pub(crate) fn end(&mut self, ticket: u64) -> Option<TaskId> {
        let (_, task) = self.under_way.take_if(|(under_way, _)| *under_way == ticket)?;
        Some(task)
    }
}
