//! Command ordering: requests are submitted to the layer above in the order that their initiator prescribed,
//! and commands only once memory for their Data-In is reserved. A command that waits for memory holds up the
//! later commands of its logical unit, and nothing else.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use base::arena::Key;
use base::memory_quota::WAITERS_PER_TURN;
use base::time::Instant;
use transport::quota::{Admission, DataInReservation, DataQuotas, DataShares};
use transport::target::{Command, SessionId, TaskRef};

use super::contract::Event;
use super::engine::Engine;
use super::exchange::{Holder, RequestState, TaskResult};
use super::session::Waiting;
use crate::exchange::xid::PnSpace;

impl Engine {
    /// Submits a request, now or once all requests that it waits for were submitted.
    pub(super) fn order_request(&mut self, key: Key, class: PnSpace, waiting: Waiting) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let numbers = session.table_mut(class);
        if waiting.after == 0 && numbers.waiting.is_empty() {
            self.release_request(key, waiting.key);
        } else {
            numbers.wait(waiting);
            self.release_waiting(key, class);
        }
    }

    /// Submits the requests that need not wait for earlier ones any more.
    pub(super) fn release_waiting(&mut self, key: Key, class: PnSpace) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let numbers = session.table_mut(class);
        if numbers.waiting.is_empty() {
            return;
        }
        let mut due = Vec::new();
        numbers.due(&mut due);
        for exchange in due {
            self.release_request(key, exchange);
        }
    }

    /// Submits a request, or queues it until there is memory for its Data-In.
    fn release_request(&mut self, key: Key, exchange: Key) {
        let Some(state) = self.exchanges.get(exchange) else { return };
        if state.result.is_some() {
            return self.queue_result(exchange);
        }
        if !matches!(state.request, RequestState::Command(_)) {
            return self.submit_request(key, exchange);
        }
        let (lun, len) = (state.lun, state.data_in.len);
        let Some(session) = self.sessions.get(key) else { return };
        if session.memory_waiters.is_empty() && self.reserve_data_in(key, len) {
            return self.submit_request(key, exchange);
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        // Commands of one logical unit keep their order.
        let is_first = !session.memory_waiters.contains(lun);
        session.memory_waiters.push_back(lun, exchange);
        if is_first {
            self.serve_memory_waiters(key);
        }
    }

    /// Submits the commands that wait for memory, as far as there is some.
    ///
    /// The logical units take turns with the session's memory. One that has no memory at all need not wait
    /// for its turn: another may hold all of the session's memory and answer nothing.
    pub(super) fn serve_memory_waiters(&mut self, key: Key) {
        // Built only if many logical units wait.
        let mut holders: Option<BTreeSet<u64>> = None;
        let mut turn = 0;
        while let Some(session) = self.sessions.get(key)
            && let Some((lun, exchange)) = session.memory_waiters.front(turn)
        {
            let live = self.exchanges.get(*exchange).filter(|state| state.result.is_none());
            let len = live.map_or(0, |state| state.data_in.len);
            let is_admitted = len == 0
                || turn == 0 && self.reserve_data_in(key, len)
                || !self.holds_memory(key, lun, turn, &mut holders) && self.reserve_first_data_in(key, len);
            if !is_admitted {
                turn += 1;
                continue;
            }
            if let Some(holders) = holders.as_mut().filter(|_| len > 0) {
                holders.insert(lun);
            }
            let Some(session) = self.sessions.get_mut(key) else { return };
            if let Some(exchange) = session.memory_waiters.pop_front(turn) {
                self.submit_request(key, exchange);
            }
        }
    }

    /// Returns whether commands of a logical unit hold memory for Data-In.
    fn holds_memory(&self, key: Key, lun: u64, turn: usize, holders: &mut Option<BTreeSet<u64>>) -> bool {
        if turn >= LUNS_CHECKED_SINGLY {
            return holders.get_or_insert_with(|| self.memory_holders(key).collect()).contains(&lun);
        }
        self.memory_holders(key).any(|holder| holder == lun)
    }

    /// Returns the logical unit of each command that holds memory for Data-In.
    fn memory_holders(&self, key: Key) -> impl Iterator<Item = u64> {
        let tables = self.sessions.get(key).into_iter().flat_map(|session| &session.tables);
        let exchanges = tables.flat_map(|table| table.slots.iter().flatten());
        let held = exchanges.filter_map(|exchange| self.exchanges.get(*exchange));
        held.filter(|exchange| exchange.data_in.reservation.reserved() > 0).map(|exchange| exchange.lun)
    }

    fn submit_request(&mut self, session: Key, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key).filter(|exchange| exchange.result.is_none()) else {
            return self.queue_result(key);
        };
        match core::mem::replace(&mut exchange.request, RequestState::Started) {
            RequestState::Command(command) => {
                exchange.holder = Holder::DeviceServer;
                let claim = self.quotas.data_in_claim(command.data_in_len);
                exchange.data_in.reservation = DataInReservation::new(claim, command.data_in_len);
                self.events.push_back(Event::Command(Command {
                    task: TaskRef(key),
                    session: SessionId(session),
                    lun: command.lun,
                    level: exchange.level,
                    attribute: command.attribute,
                    priority: command.priority,
                    cdb: command.cdb,
                    data_in_len: command.data_in_len,
                    data_out_len: command.data_out_len,
                    data_out: exchange.out.unsolicited_data.clone(),
                }));
            }
            RequestState::Manage(manage, task) => {
                exchange.request = RequestState::Manage(manage, task);
                self.submit_tmf(session, key);
            }
            RequestState::Unknown | RequestState::Started => self.bug(),
        }
    }

    /// Reserves memory for the Data-In of a command, or queues its session for it.
    fn reserve_data_in(&mut self, key: Key, len: u32) -> bool {
        self.reserve_data_in_by(key, len, DataQuotas::admit)
    }

    /// As [`Self::reserve_data_in`], for a command of a logical unit that has no such memory.
    fn reserve_first_data_in(&mut self, key: Key, len: u32) -> bool {
        self.reserve_data_in_by(key, len, DataQuotas::admit_first_of_lun)
    }

    fn reserve_data_in_by(
        &mut self,
        key: Key,
        len: u32,
        admit: impl FnOnce(&mut DataQuotas, Instant, Key, &mut DataShares, u32) -> Admission,
    ) -> bool {
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let admission = admit(&mut self.quotas, self.now, key, &mut session.shares, len);
        if admission == Admission::OutOfMemory {
            self.stats.held_back += 1;
        }
        admission == Admission::Admitted
    }

    /// Submits requests of the sessions that wait for memory.
    pub(super) fn serve_quota_waiters(&mut self) {
        for _ in 0..WAITERS_PER_TURN {
            let Some(key) = self.quotas.data_in.next_waiter(self.now) else { break };
            if let Some(session) = self.sessions.get_mut(key) {
                session.shares.data_in.mark_dequeued();
                self.serve_memory_waiters(key);
            }
        }
        for _ in 0..WAITERS_PER_TURN {
            let Some(key) = self.quotas.solicited.next_waiter(self.now) else { break };
            if let Some(session) = self.sessions.get_mut(key) {
                session.shares.solicited.mark_dequeued();
                self.pump_all(key);
            }
        }
    }

    /// Ends an exchange from this side once its turn is reached, so that answers keep the order of the
    /// requests.
    pub(super) fn fail_in_order(&mut self, key: Key, ending: TaskResult) {
        let Some(exchange) = self.exchanges.get_mut(key).filter(|exchange| exchange.result.is_none()) else {
            return;
        };
        exchange.result = Some(ending);
        let session = exchange.session;
        let freed = exchange.out.stop(&self.pool);
        self.release_data_out_quota(session, freed);
    }

    /// Ends an exchange from this side at once, and reports [`Event::TaskGone`] to the layer above.
    pub(super) fn fail_at_once(&mut self, key: Key, ending: TaskResult) {
        let Some(exchange) = self.exchanges.get(key).filter(|exchange| exchange.result.is_none()) else {
            return;
        };
        match exchange.holder {
            Holder::DeviceServer => self.events.push_back(Event::TaskGone { task: TaskRef(key) }),
            Holder::Session => {
                if let Some(session) = self.sessions.get_mut(exchange.session) {
                    session.memory_waiters.remove(exchange.lun, |waiter| *waiter == key);
                }
            }
            Holder::OrphanData | Holder::Finished => {}
        }
        self.fail_in_order(key, ending);
        self.queue_result(key);
    }
}

/// For how many logical units the exchanges of the session are searched one by one. A logical unit that waits
/// usually has memory, and then the search soon finds it. For more of them, one pass over all exchanges costs
/// less.
const LUNS_CHECKED_SINGLY: usize = 8;
