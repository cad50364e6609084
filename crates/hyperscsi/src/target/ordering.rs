//! Command ordering: requests are submitted to the layer above in the order that their initiator prescribed,
//! and commands only once memory for their Data-In is reserved.

use alloc::vec::Vec;

use base::arena::Key;
use base::memory_quota::WAITERS_PER_TURN;
use transport::quota::{Admission, DataInReservation};
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

    /// Submits a request, or queues it behind those that wait for memory.
    fn release_request(&mut self, key: Key, exchange: Key) {
        let Some(state) = self.exchanges.get(exchange) else { return };
        if state.result.is_some() {
            return self.queue_result(exchange);
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.ready.push_back(exchange);
        if session.ready.len() == 1 {
            self.submit_ready(key);
        }
    }

    /// Submits the queued requests, as far as memory for their Data-In allows.
    pub(super) fn submit_ready(&mut self, key: Key) {
        while let Some(exchange) = self.sessions.get(key).and_then(|session| session.ready.front().copied()) {
            let live = self.exchanges.get(exchange).filter(|state| state.result.is_none());
            let len = live.map_or(0, |state| state.data_in.len);
            if live.is_some() && !self.reserve_data_in(key, len) {
                return;
            }
            if let Some(session) = self.sessions.get_mut(key) {
                session.ready.pop_front();
            }
            self.submit_request(key, exchange);
        }
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
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let admission = self.quotas.admit(self.now, key, &mut session.shares, len);
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
                self.submit_ready(key);
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
        if exchange.holder == Holder::DeviceServer {
            self.events.push_back(Event::TaskGone { task: TaskRef(key) });
        }
        self.fail_in_order(key, ending);
        self.queue_result(key);
    }
}
