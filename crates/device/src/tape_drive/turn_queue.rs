//! The tasks that wait for their turn at the drive.
//!
//! They get it in the order of arrival, but a WRITE only when its first data has arrived. Until then it
//! delays the later commands of its own nexus, whose order matters to the host, and not those of other hosts.

use alloc::collections::{BTreeSet, VecDeque};

use crate::contract::NexusId;
use crate::task::TaskId;

/// A queue of tasks. A task waits at most once, so there are never more of them than the task set holds.
#[derive(Debug, Default)]
pub(crate) struct TurnQueue {
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    task: TaskId,
    nexus: NexusId,
    lacks_data: bool,
}

impl TurnQueue {
    /// Adds a task. Returns whether no other task of its nexus waits.
    pub(crate) fn add(&mut self, task: TaskId, nexus: NexusId, lacks_data: bool) -> bool {
        let is_first = self.first_of(nexus).is_none();
        self.waiting.push_back(Waiting { task, nexus, lacks_data });
        is_first
    }

    /// Records that the first data of a task has arrived.
    pub(crate) fn data_arrived(&mut self, task: TaskId) {
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.task == task) {
            waiting.lacks_data = false;
        }
    }

    /// Removes and returns the next task that may have its turn. The second task is the first of the same
    /// nexus that waits now.
    pub(crate) fn take_next(&mut self) -> Option<(TaskId, Option<TaskId>)> {
        let mut blocked = BTreeSet::new();
        let may_run = |waiting: &Waiting| {
            if waiting.lacks_data {
                blocked.insert(waiting.nexus);
            }
            !blocked.contains(&waiting.nexus)
        };
        let at = self.waiting.iter().position(may_run)?;
        let Waiting { task, nexus, .. } = self.waiting.remove(at)?;
        Some((task, self.first_of(nexus)))
    }

    /// Removes a task that has ended. Returns the first task of its nexus that waits now, if it waited.
    pub(crate) fn remove(&mut self, task: TaskId) -> Option<TaskId> {
        let at = self.waiting.iter().position(|waiting| waiting.task == task)?;
        let removed = self.waiting.remove(at)?;
        self.first_of(removed.nexus)
    }

    fn first_of(&self, nexus: NexusId) -> Option<TaskId> {
        self.waiting.iter().find(|waiting| waiting.nexus == nexus).map(|waiting| waiting.task)
    }
}
