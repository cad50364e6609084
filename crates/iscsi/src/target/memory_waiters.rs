//! Commands that wait for memory for their Data-In. A command is delivered to the layer above only once that
//! memory is reserved.
//!
//! A command that waits holds up the later commands of its logical unit, and nothing else: the commands of
//! other logical units and task management requests pass it. SAM-5 prescribes no order between logical units.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use base::time::Instant;
use transport::quota::{Admission, DataQuotas, DataShares};

use super::arena::Key;
use super::engine::Engine;
use super::session::PendingCommand;
use super::task::TaskResult;

impl Engine {
    /// Queues a command until there is memory for its Data-In.
    pub(super) fn await_memory(&mut self, session: Key, lun: u64, command: PendingCommand) {
        let Some(state) = self.sessions.get_mut(session) else { return };
        // Commands of one logical unit keep their order.
        let is_first = !state.memory_waiters.contains(lun);
        state.memory_waiters.push_back(lun, command);
        if is_first {
            self.serve_memory_waiters(session);
        }
    }

    /// Delivers the commands that wait for memory, as far as there is some.
    ///
    /// The logical units take turns with the session's memory. One that has no memory at all need not wait
    /// for its turn: another may hold all of the session's memory and answer nothing.
    pub(super) fn serve_memory_waiters(&mut self, session: Key) {
        // Built only if many logical units wait.
        let mut holders: Option<BTreeSet<u64>> = None;
        let mut turn = 0;
        while let Some(state) = self.sessions.get(session)
            && let Some((lun, command)) = state.memory_waiters.front(turn)
        {
            let len = self.tasks.get(command.task).map_or(0, |task| task.data_in_len);
            let is_admitted = len == 0
                || turn == 0 && self.reserve_data_in(session, len)
                || !self.holds_memory(session, lun, turn, &mut holders)
                    && self.reserve_first_data_in(session, len);
            if !is_admitted {
                turn += 1;
                continue;
            }
            if let Some(holders) = holders.as_mut().filter(|_| len > 0) {
                holders.insert(lun);
            }
            let Some(state) = self.sessions.get_mut(session) else { return };
            if let Some(command) = state.memory_waiters.pop_front(turn) {
                self.deliver_command(command);
            }
        }
    }

    /// Returns whether commands of a logical unit hold memory for Data-In.
    fn holds_memory(&self, session: Key, lun: u64, turn: usize, holders: &mut Option<BTreeSet<u64>>) -> bool {
        if turn >= LUNS_CHECKED_SINGLY {
            return holders.get_or_insert_with(|| self.luns_with_memory(session)).contains(&lun);
        }
        let Some(state) = self.sessions.get(session) else { return false };
        state.tasks(&self.tasks).any(|(_, task)| task.lun == lun && task.data_in.holds_memory())
    }

    /// Returns the logical units of which commands of a session hold memory for Data-In.
    fn luns_with_memory(&self, session: Key) -> BTreeSet<u64> {
        let Some(state) = self.sessions.get(session) else { return BTreeSet::new() };
        let holders = state.tasks(&self.tasks).filter(|(_, task)| task.data_in.holds_memory());
        holders.map(|(_, task)| task.lun).collect()
    }

    /// Reserves memory for the Data-In of a command, or enqueues its session for it.
    pub(super) fn reserve_data_in(&mut self, session: Key, data_in_len: u32) -> bool {
        self.reserve_data_in_by(session, data_in_len, DataQuotas::admit)
    }

    /// As [`Self::reserve_data_in`], for a command of a logical unit that has no such memory.
    fn reserve_first_data_in(&mut self, session: Key, data_in_len: u32) -> bool {
        self.reserve_data_in_by(session, data_in_len, DataQuotas::admit_first_of_lun)
    }

    fn reserve_data_in_by(
        &mut self,
        session: Key,
        data_in_len: u32,
        admit: impl FnOnce(&mut DataQuotas, Instant, Key, &mut DataShares, u32) -> Admission,
    ) -> bool {
        let Some(state) = self.sessions.get_mut(session) else { return false };
        let admission = admit(&mut self.quotas, self.now, session, &mut state.shares, data_in_len);
        if admission == Admission::OutOfMemory {
            self.stats.held_back += 1;
        }
        if admission != Admission::Admitted {
            // The session's earlier Data-In must be sent, and acknowledged if it is retained until then.
            self.ask_session_for_ack(session);
        }
        admission == Admission::Admitted
    }

    /// Removes the commands that wait for memory and that a task management request affects: they were all
    /// received before it.
    pub(super) fn take_affected(&mut self, session: Key, tmf: Key) -> Vec<PendingCommand> {
        let (Some(state), Some(tmf)) = (self.sessions.get_mut(session), self.tmfs.get(tmf)) else {
            return Vec::new();
        };
        state.memory_waiters.take(|lun| tmf.affects(lun))
    }

    /// Ends the commands that wait for memory and that a task management request affects. The layer above
    /// does not know them, so it cannot end them.
    pub(super) fn end_memory_waiters(&mut self, ended: Vec<PendingCommand>) {
        for PendingCommand { task: key, .. } in ended {
            let Some(task) = self.tasks.get(key) else { continue };
            if task.is_detached() || task.data_out.is_expecting() {
                // Its response could not be sent before that of the request.
                self.remove_task(key);
            } else {
                // The request may be refused, so the initiator gets a response that is true in any case.
                self.stats.busy += 1;
                self.terminate_task(key, TaskResult::busy());
            }
        }
    }
}

/// For how many logical units the tasks of the session are searched one by one. A logical unit that waits
/// usually has memory, and then the search soon finds it. For more of them, one pass over all tasks costs
/// less.
const LUNS_CHECKED_SINGLY: usize = 8;
