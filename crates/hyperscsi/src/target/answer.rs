//! Answers: data and responses, from the layer above to the transport, and what becomes of them there.
//!
//! Data waits here until the session is looked after, because the end of the task usually follows it at once: then the
//! status rides on the last frame of data.

use alloc::vec::Vec;

use base::arena::Key;
use base::buffer::DataList;
use base::fault_injection::{self, Bug};

use super::contract::{Down, Event, Finish, PathNews, SessionId, TaskRef, status};
use super::engine::Engine;
use super::exchange::{Ending, Exchange, Holder};
use super::session::Phase;
use crate::association::{Association, Delivery, Event as Transported, Message, PathAddress};
use crate::exchange::landing::to_usize;
use crate::frame::Cmd;
use crate::pdu::abort::{Abort, AbortResult};
use crate::pdu::reply::{Reply, Response};
use crate::seal::Level;

impl Engine {
    /// Takes data for the initiator, the next after what was given before. A name that means nothing any more is
    /// ignored.
    pub fn data_in(&mut self, task: TaskRef, offset: u32, data: DataList) {
        let key = task.0;
        let Some(exchange) = self.exchanges.get_mut(key).filter(|exchange| exchange.holder == Holder::Above)
        else {
            return self.recycle(data);
        };
        let room = exchange.inn.len.saturating_sub(exchange.inn.end());
        if offset != exchange.inn.end() || data.len() > to_usize(room) {
            // What the layer above says is for the initiator would land elsewhere.
            self.recycle(data);
            self.bug();
            return self.end_early(key, Ending::GivenUp(AbortResult::ABORTED));
        }
        for part in data.into_parts().filter(|part| !part.is_empty()) {
            exchange.inn.queued.push(part);
        }
        let excess = exchange.inn.excess();
        if let Some(session) = self.sessions.get_mut(exchange.session) {
            self.answers.charge(&mut session.answers, excess);
        }
        self.list(key);
    }

    fn recycle(&self, data: DataList) {
        for part in data.into_parts() {
            self.pool.recycle(part);
        }
    }

    /// Takes the end of a task. A name that means nothing any more is ignored.
    pub fn finish(&mut self, task: TaskRef, finish: Finish<'_>) {
        let key = task.0;
        let Some(exchange) = self.exchanges.get_mut(key).filter(|exchange| exchange.holder == Holder::Above)
        else {
            return;
        };
        exchange.ending = Some(Ending::of(finish));
        // What did not come will not.
        let spare = exchange.inn.close();
        let session = exchange.session;
        let freed = exchange.out.stop(&self.pool);
        self.give_data_out(session, freed);
        self.give_answers(session, spare);
        self.conclude(key);
    }

    /// Takes note that the layer above ended a task without a response (task management). Nothing of it that is not
    /// sent yet will be; the initiator is told that no status comes.
    pub fn abort(&mut self, task: TaskRef) {
        let key = task.0;
        let Some(exchange) = self.exchanges.get_mut(key).filter(|exchange| exchange.holder == Holder::Above)
        else {
            return;
        };
        exchange.ending = Some(Ending::GivenUp(AbortResult::ABORTED));
        let session = exchange.session;
        let freed = exchange.out.stop(&self.pool);
        self.give_data_out(session, freed);
        self.conclude(key);
    }

    /// Sees to it that the end of an exchange goes out.
    pub(super) fn conclude(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key).filter(|exchange| exchange.ending.is_some()) else {
            return;
        };
        exchange.holder = Holder::Nobody;
        if matches!(exchange.ending, Some(Ending::GivenUp(_))) {
            let (session, spare) = (exchange.session, exchange.inn.stop(&self.pool));
            self.give_answers(session, spare);
        }
        self.list(key);
    }

    /// Puts an exchange into the list of those that have something to send.
    pub(super) fn list(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let session = exchange.session;
        if !core::mem::replace(&mut exchange.listed, true)
            && let Some(session) = self.sessions.get_mut(session)
        {
            session.listed.push_back(key);
        }
        self.stir_session(session);
    }

    /// Gives back room for answers, and hands up what waited for it.
    pub(super) fn give_answers(&mut self, session: Key, len: usize) {
        self.answers.release(self.sessions.get_mut(session).map(|session| &mut session.answers), len);
        self.drain_ready(session);
    }

    /// Hands everything that a session has to send to its transport.
    pub(super) fn flush(&mut self, key: Key) {
        if self.transport(key).is_none() {
            return;
        }
        while let Some(exchange) = self.sessions.get_mut(key).and_then(|session| session.listed.pop_front()) {
            self.flush_exchange(key, exchange);
        }
        let pressed = self.sessions.get(key).is_some_and(|session| {
            self.unasked.should_throttle(&session.unasked) || self.asked.should_throttle(&session.asked)
        });
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Some(transport) = session.transport.as_deref_mut() else { return };
        while let Some(message) = session.withdrawn.pop() {
            transport.withdraw(message);
        }
        for message in session.refusals.drain(..) {
            session.refused.push(transport.send(message));
        }
        if let Some(message) = session.farewell.take() {
            session.last_words = Some(transport.send(message));
        }
        if transport.has_spent() {
            transport.spent().for_each(|part| self.pool.recycle(part));
        }
        let depth = if pressed { DEPTH_UNDER_PRESSURE } else { u32::from(session.parameters.exchanges) };
        // A class that nobody uses is not told of: both ends know how it begins.
        let limits = session.numbers.each_ref().map(|numbers| numbers.limit(depth));
        transport.set_xid_limits(limits);
    }

    fn flush_exchange(&mut self, session: Key, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        exchange.listed = false;
        let Some(state) = self.sessions.get_mut(session) else { return };
        let Some(transport) = state.transport.as_deref_mut() else { return };
        let send = |transport: &mut Association, message: Message, exchange: &mut Exchange| {
            exchange.messages.push(transport.send(Message { owner: Some(key), ..message }));
        };
        for ready in core::mem::take(&mut exchange.out.ready) {
            let message = words(transport.blank(), exchange, Cmd::Reply, exchange.level, |out| {
                Reply::TransferReady(ready).encode(out)
            });
            send(transport, message, exchange);
        }
        let rides = match &exchange.ending {
            Some(Ending::Status { status: status::GOOD, sense, transferable, .. }) => {
                sense.is_empty()
                    && !exchange.inn.queued.is_empty()
                    && *transferable == u64::from(exchange.inn.end())
            }
            _ => false,
        };
        let given_up = matches!(exchange.ending, Some(Ending::GivenUp(_)));
        if !exchange.inn.queued.is_empty() && !given_up {
            let body = core::mem::take(&mut exchange.inn.queued);
            let len = body.len();
            let (tag, off) = (exchange.tag.unwrap_or_default(), exchange.inn.sent);
            let mut message = Message::data(Cmd::Reply, exchange.xid, tag, exchange.level, off, body);
            (message.good, message.last) = (rides, rides);
            exchange.inn.sent = exchange.inn.end().saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
            exchange.inn.unacknowledged += len;
            state.traffic.data_in_bytes += len as u64;
            self.stats.data_in_bytes += len as u64;
            send(transport, message, exchange);
        }
        let Some(ending) = exchange.ending.as_ref().filter(|_| !exchange.answered) else { return };
        if rides {
            exchange.answered = true;
            return;
        }
        let mut freed = 0;
        let safe = if state.keyed { Level::Integrity } else { Level::None };
        let message = match ending {
            Ending::Status { status, sense, transferable, sealed } => {
                let level = if *sealed { exchange.level.max(safe) } else { exchange.level };
                let response = Response {
                    status: *status,
                    data_in_len: exchange.inn.sent,
                    transferable: *transferable,
                    sense,
                };
                words(transport.blank(), exchange, Cmd::Reply, level, |out| {
                    Reply::Response(response).encode(out)
                })
            }
            Ending::Managed(result) => {
                words(transport.blank(), exchange, Cmd::Reply, exchange.level, |out| {
                    Reply::Managed(*result).encode(out)
                })
            }
            Ending::GivenUp(result) => {
                // What is under way means nothing any more.
                state.withdrawn.extend(exchange.messages.drain(..));
                freed = core::mem::take(&mut exchange.inn.unacknowledged);
                exchange.inn.reserved = exchange.inn.reserved.saturating_sub(freed);
                let level = exchange.level.max(safe);
                words(transport.blank(), exchange, Cmd::Abort, level, |out| {
                    Abort::GivenUp(*result).encode(out)
                })
            }
        };
        exchange.answered = true;
        send(transport, message, exchange);
        self.give_answers(session, freed);
    }

    /// Takes what a session's transport says.
    pub(super) fn transported(&mut self, key: Key, event: Transported) {
        match event {
            Transported::Delivered(delivery) => self.acknowledged(key, &delivery),
            Transported::Lost => self.end_session(key, Down::PathLost),
            Transported::Misbehaved => self.end_session(key, Down::Misbehaved),
            Transported::KeysChanged => self.stats.key_updates += 1,
            Transported::KeysExhausted => self.end_session(key, Down::KeysExhausted),
            Transported::PathWidth { path, width } => {
                self.tell_of_path(key, self.path_of(key, path), PathNews::Width(width));
            }
            Transported::PathUp(path) => self.tell_of_path(key, self.path_of(key, path), PathNews::Up),
            Transported::PathDown(path) => self.tell_of_path(key, self.path_of(key, path), PathNews::Silent),
            Transported::PathGone { address, carried, .. } => {
                self.tell_of_path(key, carried.then_some(address), PathNews::Gone);
            }
            Transported::PathMtu { .. } | Transported::XidLimit { .. } => {}
        }
    }

    fn path_of(&self, session: Key, path: u8) -> Option<PathAddress> {
        let mut paths = self.sessions.get(session)?.transport.iter().flat_map(|transport| transport.paths());
        paths.find(|view| view.id == path).map(|view| view.address)
    }

    fn tell_of_path(&mut self, key: Key, address: Option<PathAddress>, news: PathNews) {
        let up = self.sessions.get(key).is_some_and(|session| session.is_up());
        if let Some(PathAddress { port, mac: peer }) = address.filter(|_| up) {
            self.events.push_back(Event::Path { session: SessionId(key), port, peer, news });
        }
    }

    fn acknowledged(&mut self, session: Key, delivery: &Delivery) {
        let Some(state) = self.sessions.get_mut(session) else { return };
        if state.last_words == Some(delivery.message) {
            state.last_words = None;
            if matches!(state.phase, Phase::Leaving(_)) {
                state.phase = Phase::Over;
            }
        }
        match delivery.owner {
            Some(key) => self.release(session, key, delivery),
            None => state.refused.retain(|message| *message != delivery.message),
        }
    }

    /// Takes note that a message is under way no more, unless it was taken back.
    fn release(&mut self, session: Key, key: Key, delivery: &Delivery) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let at = exchange.messages.iter().position(|message| *message == delivery.message);
        let Some(at) = at else { return };
        exchange.messages.remove(at);
        exchange.inn.unacknowledged = exchange.inn.unacknowledged.saturating_sub(delivery.body_len);
        let spare = exchange.inn.spare();
        let over = exchange.answered && exchange.messages.is_empty();
        self.give_answers(session, spare);
        self.ask_more(key);
        if over {
            self.retire(key);
        }
    }

    /// Forgets an exchange: its slot is free again, and what is still under way for it is taken back.
    pub(super) fn retire(&mut self, key: Key) {
        let Some(mut exchange) = self.exchanges.remove(key) else { return };
        let session = exchange.session;
        let (freed, answers) = (exchange.out.stop(&self.pool), exchange.inn.reserved);
        exchange.inn.stop(&self.pool);
        if let Some(state) = self.sessions.get_mut(session) {
            if let Some(tag) = exchange.tag {
                state.numbers_mut(exchange.class).put(tag, None);
            }
            state.wishes.retain(|other| *other != key);
            state.tasks = state.tasks.saturating_sub(1);
            state.withdrawn.extend(exchange.messages);
        }
        if exchange.ending.is_some() || !fault_injection::is_injected(Bug::FramesKeepMemory) {
            self.give_data_out(session, freed);
            self.give_answers(session, answers);
        }
        self.stir_session(session);
    }
}

/// How many requests a session that has much of it may number ahead while memory is short: enough to go on.
const DEPTH_UNDER_PRESSURE: u32 = 4;

/// Makes a message of words alone, which fit into one frame.
fn words(
    mut head: Vec<u8>,
    exchange: &Exchange,
    cmd: Cmd,
    level: Level,
    encode: impl FnOnce(&mut Vec<u8>),
) -> Message {
    encode(&mut head);
    let mut message = Message::block(cmd, exchange.xid, exchange.tag.unwrap_or_default(), level, head);
    message.urgent = cmd == Cmd::Abort;
    message
}
