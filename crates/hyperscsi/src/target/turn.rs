//! Whose turn it is: requests go up in the order that their initiator prescribed, commands once there is room for
//! their answers.

use alloc::vec::Vec;

use base::arena::Key;
use base::memory_quota::WAITERS_PER_TURN;

use super::contract::{Command, Event, SessionId, TaskRef};
use super::engine::Engine;
use super::exchange::{Ending, Holder, What};
use super::session::Waiting;
use crate::exchange::landing::to_usize;
use crate::exchange::numbers::Class;

impl Engine {
    /// Gives a request its turn, now or once all that it waits for was delivered.
    pub(super) fn line_up(&mut self, key: Key, class: Class, waiting: Waiting) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let numbers = session.numbers_mut(class);
        if waiting.after == 0 && numbers.waiting.is_empty() {
            self.turn(key, waiting.key);
        } else {
            numbers.wait(waiting);
            self.turn_waiting(key, class);
        }
    }

    /// Gives their turn to those that have waited long enough.
    pub(super) fn turn_waiting(&mut self, key: Key, class: Class) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let numbers = session.numbers_mut(class);
        if numbers.waiting.is_empty() {
            return;
        }
        let mut due = Vec::new();
        numbers.due(&mut due);
        for exchange in due {
            self.turn(key, exchange);
        }
    }

    /// Gives a request its turn: it goes up, or behind what waits already.
    fn turn(&mut self, key: Key, exchange: Key) {
        let Some(state) = self.exchanges.get(exchange) else { return };
        if state.ending.is_some() {
            return self.conclude(exchange);
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.ready.push_back(exchange);
        if session.ready.len() == 1 {
            self.drain_ready(key);
        }
    }

    /// Hands up what waits, as far as it may go.
    pub(super) fn drain_ready(&mut self, key: Key) {
        while let Some(exchange) = self.sessions.get(key).and_then(|session| session.ready.front().copied()) {
            let live = self.exchanges.get(exchange).filter(|state| state.ending.is_none());
            let len = live.map_or(0, |state| state.inn.len);
            if live.is_some() && !self.may_answer(key, len) {
                return;
            }
            if let Some(session) = self.sessions.get_mut(key) {
                session.ready.pop_front();
            }
            self.hand_up(key, exchange);
        }
    }

    fn hand_up(&mut self, session: Key, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key).filter(|exchange| exchange.ending.is_none()) else {
            return self.conclude(key);
        };
        match core::mem::replace(&mut exchange.what, What::Started) {
            What::Command(command) => {
                exchange.holder = Holder::Above;
                let claim =
                    self.answers.reservation_len(to_usize(command.data_in_len), self.limits.unsent_bytes_max);
                (exchange.inn.reserved, exchange.inn.claimed) = (claim, claim);
                self.events.push_back(Event::Command(Command {
                    task: TaskRef(key),
                    session: SessionId(session),
                    lun: command.lun,
                    attribute: command.attribute,
                    priority: command.priority,
                    cdb: command.cdb,
                    data_in_len: command.data_in_len,
                    data_out_len: command.data_out_len,
                }));
            }
            What::Manage(manage, task) => {
                exchange.what = What::Manage(manage, task);
                self.hand_up_manage(session, key);
            }
            What::Unknown | What::Started => self.bug(),
        }
    }

    /// Takes room for the answer to a command, as much of it as is under way at a time, or lines its session up for it. What the
    /// initiator expects at most is only its word, and may be far more than the command brings.
    fn may_answer(&mut self, key: Key, len: u32) -> bool {
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let held = session.answers.held();
        let len = self.answers.reservation_len(to_usize(len), self.limits.unsent_bytes_max);
        if held > 0 && held.saturating_add(len) > self.limits.unsent_bytes_max {
            return false;
        }
        let fits = self.answers.try_reserve(self.now, &mut session.answers, len);
        if !fits {
            self.stats.held_back += 1;
            self.answers.enqueue_waiter(self.now, key, &mut session.answers);
        }
        fits
    }

    /// Looks at sessions that wait for room.
    pub(super) fn serve_lines(&mut self) {
        for _ in 0..WAITERS_PER_TURN {
            let Some(key) = self.answers.next_waiter(self.now) else { break };
            if let Some(session) = self.sessions.get_mut(key) {
                session.answers.mark_dequeued();
                self.drain_ready(key);
            }
        }
        for _ in 0..WAITERS_PER_TURN {
            let Some(key) = self.asked.next_waiter(self.now) else { break };
            if let Some(session) = self.sessions.get_mut(key) {
                session.asked.mark_dequeued();
                self.pump_all(key);
            }
        }
    }

    /// Ends an exchange from our side, once it is its turn: the order of what was asked is that of what is answered.
    pub(super) fn settle_early(&mut self, key: Key, ending: Ending) {
        let Some(exchange) = self.exchanges.get_mut(key).filter(|exchange| exchange.ending.is_none()) else {
            return;
        };
        exchange.ending = Some(ending);
        let session = exchange.session;
        let freed = exchange.out.stop(&self.pool);
        self.give_data_out(session, freed);
    }

    /// Ends an exchange from our side at once; the layer above is told.
    pub(super) fn end_early(&mut self, key: Key, ending: Ending) {
        let Some(exchange) = self.exchanges.get(key).filter(|exchange| exchange.ending.is_none()) else {
            return;
        };
        if exchange.holder == Holder::Above {
            self.events.push_back(Event::TaskGone { task: TaskRef(key) });
        }
        self.settle_early(key, ending);
        self.conclude(key);
    }
}
