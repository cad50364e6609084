//! Changes of the state that survives a loss of power, one at a time.
//!
//! Each change is computed on the state in force, stored, and applied only when it is stored. A second change that was
//! computed meanwhile would put back what the first one replaced. So a command that may change this state asks for its turn
//! ([`crate::outcome::Outcome::QueueStateChange`]); while another change is being stored it waits, in the order of arrival, and
//! every other command still meets the old state.

use alloc::collections::VecDeque;

use base::fault_injection::{self, Bug};

use crate::task::TaskId;

/// The change that is being stored, and the tasks that wait to make one.
#[derive(Debug, Default)]
pub(crate) struct SaveQueue {
    under_way: Option<(u64, TaskId)>,
    /// In the order of arrival; [`TaskId::BACKGROUND`] stands for work on the whole medium. Never more than there are tasks.
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

    /// Takes the next task whose turn it is, which may be gone meanwhile.
    pub(crate) fn next_turn(&mut self) -> Option<TaskId> {
        if self.under_way.is_some() { None } else { self.waiting.pop_front() }
    }

    /// Records that state of a task is being stored, and returns the name of the request.
    pub(crate) fn begin(&mut self, task: TaskId) -> u64 {
        let ticket = self.ticket_next;
        self.ticket_next += 1;
        self.under_way = Some((ticket, task));
        ticket
    }

    /// Returns the task whose state was stored, or could not be, under `ticket`. The next turn begins.
    pub(crate) fn end(&mut self, ticket: u64) -> Option<TaskId> {
        let (_, task) = self.under_way.take_if(|(under_way, _)| *under_way == ticket)?;
        Some(task)
    }
}
