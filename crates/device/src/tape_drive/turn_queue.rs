//! The tasks that wait for their turn at the drive.
//!
//! They get it in the order of arrival, but a WRITE that has requested its first data only when these have
//! arrived. Until then it delays the later commands of its own nexus, whose order matters to the host, and
//! not those of other hosts. A WRITE whose data do not fit into [`FIRST_DATA_MAX`] requests them in its turn.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::contract::{NexusId, TAPE_TRANSFER_MAX};
use crate::task::TaskId;

/// How many bytes the WRITEs that wait may have requested together: two of the longest blocks. No quota of a
/// session counts these bytes any more when they have arrived.
const FIRST_DATA_MAX: u32 = 2 * TAPE_TRANSFER_MAX;

/// A queue of tasks. A task waits at most once, so there are never more of them than the task set holds.
#[derive(Debug, Default)]
pub(crate) struct TurnQueue {
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    task: TaskId,
    nexus: NexusId,
    /// How many bytes the task requests before its turn, or 0.
    first_data_len: u32,
    first_data: FirstData,
    /// Whether a cartridge was loaded meanwhile, by another nexus or because it was put in.
    is_outdated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstData {
    NotRequested,
    Requested,
    /// They are there, or the task needs none.
    Arrived,
}

impl TurnQueue {
    /// Adds a task that has to request `first_data_len` bytes before its turn, or none.
    pub(crate) fn add(&mut self, task: TaskId, nexus: NexusId, first_data_len: u32) {
        let first_data = if first_data_len == 0 { FirstData::Arrived } else { FirstData::NotRequested };
        self.waiting.push_back(Waiting { task, nexus, first_data_len, first_data, is_outdated: false });
    }

    /// Returns the tasks that must request their first data now: of each nexus at most the first one that
    /// waits. Call it after each change of the queue.
    pub(crate) fn requesting(&mut self) -> Vec<TaskId> {
        let is_held = |waiting: &&Waiting| waiting.first_data != FirstData::NotRequested;
        let held = self.waiting.iter().filter(is_held).map(|waiting| waiting.first_data_len);
        let mut left = FIRST_DATA_MAX.saturating_sub(held.fold(0, u32::saturating_add));
        let mut nexuses = BTreeSet::new();
        let mut requesting = Vec::new();
        for waiting in &mut self.waiting {
            if !nexuses.insert(waiting.nexus) || waiting.first_data != FirstData::NotRequested {
                continue;
            }
            // Shorter ones behind this one must not keep it from requesting.
            let Some(rest) = left.checked_sub(waiting.first_data_len) else { break };
            left = rest;
            waiting.first_data = FirstData::Requested;
            requesting.push(waiting.task);
        }
        requesting
    }

    /// Records that the first data of a task have arrived.
    pub(crate) fn data_arrived(&mut self, task: TaskId) {
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.task == task) {
            waiting.first_data = FirstData::Arrived;
        }
    }

    /// Records that a cartridge was loaded, by this nexus or none: what the others wait to do was meant for
    /// what was in the drive before.
    pub(crate) fn cartridge_loaded(&mut self, by: Option<NexusId>) {
        let others = self.waiting.iter_mut().filter(|waiting| Some(waiting.nexus) != by);
        others.for_each(|waiting| waiting.is_outdated = true);
    }

    /// Removes and returns the next task that may have its turn, and whether a cartridge was loaded while it
    /// waited ([`Self::cartridge_loaded`]).
    pub(crate) fn take_next(&mut self) -> Option<(TaskId, bool)> {
        let mut blocked = BTreeSet::new();
        let may_run = |waiting: &Waiting| {
            if waiting.first_data == FirstData::Requested {
                blocked.insert(waiting.nexus);
            }
            !blocked.contains(&waiting.nexus)
        };
        let at = self.waiting.iter().position(may_run)?;
        self.waiting.remove(at).map(|waiting| (waiting.task, waiting.is_outdated))
    }

    /// Removes a task that has ended, if it waited.
    pub(crate) fn remove(&mut self, task: TaskId) {
        self.waiting.retain(|waiting| waiting.task != task);
    }
}
