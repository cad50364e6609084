//! Passes data and responses from the layer above to the transport, and processes their acknowledgements.
//!
//! Data waits here until its session is processed, because the end of the task usually follows at once: then
//! the last frame of data carries the status.

use alloc::vec::Vec;

use base::arena::Key;
use base::buffer::DataList;
use transport::status;
use transport::target::SessionId;

use super::contract::{Event, PathChange, PathNotice, SessionEnd};
use super::engine::{Engine, Service};
use super::exchange::{Exchange, Holder, TaskResult};
use super::session::Phase;
use crate::connection::{Connection, ConnectionEvent as Transported, Delivery, Message, PathAddress};
use crate::fault_injection::{self, Bug};
use crate::frame::Cmd;
use crate::pdu::abort::Abort;
use crate::pdu::reply::{Reply, Response};
use security::Level;

impl Engine {
    pub(super) fn recycle(&self, data: DataList) {
        for part in data.into_parts() {
            self.pool.recycle(part);
        }
    }

    /// Queues the result of an exchange for sending.
    pub(super) fn queue_result(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key).filter(|exchange| exchange.result.is_some()) else {
            return;
        };
        exchange.holder = Holder::Finished;
        if matches!(exchange.result, Some(TaskResult::GivenUp(_))) {
            let (session, spare) = (exchange.session, exchange.data_in.stop(&self.pool));
            self.release_data_in_quota(session, spare);
        }
        self.list(key);
    }

    /// Puts an exchange into its session's list of exchanges that have something to send.
    pub(super) fn list(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let session = exchange.session;
        if !core::mem::replace(&mut exchange.listed, true)
            && let Some(session) = self.sessions.get_mut(session)
        {
            session.to_flush.push_back(key);
        }
        self.mark_dirty(session);
    }

    /// Releases memory for Data-In, and submits the commands that waited for it.
    pub(super) fn release_data_in_quota(&mut self, session: Key, len: usize) {
        self.quotas
            .data_in
            .release(self.sessions.get_mut(session).map(|session| &mut session.shares.data_in), len);
        self.serve_memory_waiters(session);
    }

    /// Passes everything that a session has to send to its transport.
    pub(super) fn flush(&mut self, key: Key) {
        if self.transport(key).is_none() {
            return;
        }
        while let Some(exchange) = self.sessions.get_mut(key).and_then(|session| session.to_flush.pop_front())
        {
            self.flush_exchange(key, exchange);
        }
        let session = self.sessions.get(key);
        let pressed = session.is_some_and(|session| self.quotas.should_throttle(&session.shares));
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Some(transport) = session.transport.as_deref_mut() else { return };
        while let Some(message) = session.withdrawn.pop() {
            transport.withdraw(message);
        }
        for message in session.refusals.drain(..) {
            session.refused.push(transport.send(message));
        }
        if let Some(message) = session.closing_message.take() {
            session.closing_message_id = Some(transport.send(message));
        }
        if transport.has_delivered_bodies() {
            transport.take_delivered_bodies().for_each(|part| self.pool.recycle(part));
        }
        let depth = if pressed { DEPTH_UNDER_PRESSURE } else { u32::from(session.parameters.exchanges) };
        // The limit of a packet number space without exchanges is 0 and is not sent: both ends know where the
        // space begins.
        let limits = session.tables.each_ref().map(|numbers| numbers.limit(depth));
        if self.service == Service::Open {
            transport.set_xid_limits(limits);
        }
    }

    fn flush_exchange(&mut self, session: Key, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        exchange.listed = false;
        let Some(state) = self.sessions.get_mut(session) else { return };
        let Some(transport) = state.transport.as_deref_mut() else { return };
        let send = |transport: &mut Connection, message: Message, exchange: &mut Exchange| {
            exchange.messages.push(transport.send(Message { owner: Some(key), ..message }));
        };
        for ready in core::mem::take(&mut exchange.out.transfer_readies) {
            let message = words(transport.take_head_buffer(), exchange, Cmd::Reply, exchange.level, |out| {
                Reply::TransferReady(ready).encode(out)
            });
            send(transport, message, exchange);
        }
        let rides = match &exchange.result {
            Some(TaskResult::Status { status: status::GOOD, sense, transferable, .. }) => {
                sense.is_empty()
                    && !exchange.data_in.queued.is_empty()
                    && *transferable == u64::from(exchange.data_in.end())
            }
            _ => false,
        };
        let given_up = matches!(exchange.result, Some(TaskResult::GivenUp(_)));
        if !exchange.data_in.queued.is_empty() && !given_up {
            let body = core::mem::take(&mut exchange.data_in.queued);
            let len = body.len();
            let (tag, off) = (exchange.tag.unwrap_or_default(), exchange.data_in.sent);
            let mut message = Message::data(Cmd::Reply, exchange.xid, tag, exchange.level, off, body);
            (message.good, message.last) = (rides, rides);
            exchange.data_in.sent =
                exchange.data_in.end().saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
            exchange.data_in.unacknowledged += len;
            state.traffic.data_in_bytes += len as u64;
            self.stats.data_in_bytes += len as u64;
            send(transport, message, exchange);
        }
        let Some(ending) = exchange.result.as_ref().filter(|_| !exchange.answered) else { return };
        if rides {
            exchange.answered = true;
            return;
        }
        let mut freed = 0;
        let safe = if state.keyed { Level::Integrity } else { Level::None };
        let message = match ending {
            TaskResult::Status { status, sense, transferable, sealed } => {
                let level = if *sealed { exchange.level.max(safe) } else { exchange.level };
                let response = Response {
                    status: *status,
                    data_in_len: exchange.data_in.sent,
                    transferable: *transferable,
                    sense,
                };
                words(transport.take_head_buffer(), exchange, Cmd::Reply, level, |out| {
                    Reply::Response(response).encode(out)
                })
            }
            TaskResult::Managed(result) => {
                words(transport.take_head_buffer(), exchange, Cmd::Reply, exchange.level, |out| {
                    Reply::Managed(*result).encode(out)
                })
            }
            TaskResult::GivenUp(result) => {
                // The messages of the exchange that are under way are withdrawn.
                state.withdrawn.extend(exchange.messages.drain(..));
                exchange.data_in.unacknowledged = 0;
                freed = exchange.data_in.spare();
                let level = exchange.level.max(safe);
                words(transport.take_head_buffer(), exchange, Cmd::Abort, level, |out| {
                    Abort::GivenUp(*result).encode(out)
                })
            }
        };
        exchange.answered = true;
        send(transport, message, exchange);
        self.release_data_in_quota(session, freed);
    }

    /// Handles an event of a session's transport.
    pub(super) fn handle_connection_event(&mut self, key: Key, event: Transported) {
        match event {
            Transported::Delivered(delivery) => self.acknowledged(key, &delivery),
            Transported::Lost => self.end_session(key, SessionEnd::PathLost),
            Transported::Misbehaved => self.end_session(key, SessionEnd::Misbehaved),
            Transported::KeysChanged => self.stats.key_updates += 1,
            Transported::KeysExhausted => self.end_session(key, SessionEnd::KeysExhausted),
            Transported::PathMtuStatus { path, status: width } => {
                self.tell_of_path(key, self.path_of(key, path), PathChange::Mtu(width));
            }
            Transported::PathUp(path) => self.tell_of_path(key, self.path_of(key, path), PathChange::Up),
            Transported::PathDown(path) => {
                self.tell_of_path(key, self.path_of(key, path), PathChange::Silent)
            }
            Transported::PathGone { address, carried, .. } => {
                self.tell_of_path(key, carried.then_some(address), PathChange::Gone);
            }
            Transported::PathMtu { .. } | Transported::XidLimit { .. } => {}
        }
    }

    fn path_of(&self, session: Key, path: u8) -> Option<PathAddress> {
        let mut paths = self.sessions.get(session)?.transport.iter().flat_map(|transport| transport.paths());
        paths.find(|view| view.id == path).map(|view| view.address)
    }

    fn tell_of_path(&mut self, key: Key, address: Option<PathAddress>, change: PathChange) {
        let up = self.sessions.get(key).is_some_and(|session| session.is_up());
        if let Some(PathAddress { port, mac: peer }) = address.filter(|_| up) {
            let notice = PathNotice { session: SessionId(key), port, peer, change };
            self.events.push_back(Event::Notice(notice));
        }
    }

    fn acknowledged(&mut self, session: Key, delivery: &Delivery) {
        let Some(state) = self.sessions.get_mut(session) else { return };
        if state.closing_message_id == Some(delivery.message) {
            state.closing_message_id = None;
            if matches!(state.phase, Phase::Closing(_)) {
                state.phase = Phase::Closed;
            }
        }
        match delivery.owner {
            Some(key) => self.message_delivered(session, key, delivery),
            None => state.refused.retain(|message| *message != delivery.message),
        }
    }

    /// Records that a message is acknowledged. A withdrawn message is ignored.
    fn message_delivered(&mut self, session: Key, key: Key, delivery: &Delivery) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let at = exchange.messages.iter().position(|message| *message == delivery.message);
        let Some(at) = at else { return };
        exchange.messages.remove(at);
        exchange.data_in.unacknowledged = exchange.data_in.unacknowledged.saturating_sub(delivery.body_len);
        let spare = exchange.data_in.spare();
        let over = exchange.answered && exchange.messages.is_empty();
        self.release_data_in_quota(session, spare);
        self.ask_more(key);
        if over {
            self.remove_exchange(key);
        }
    }

    /// Removes an exchange: its slot is free again, and its messages that are still under way are withdrawn.
    pub(super) fn remove_exchange(&mut self, key: Key) {
        let Some(mut exchange) = self.exchanges.remove(key) else { return };
        let session = exchange.session;
        let (freed, answers) = (exchange.out.stop(&self.pool), exchange.data_in.reservation.take());
        exchange.data_in.stop(&self.pool);
        if let Some(state) = self.sessions.get_mut(session) {
            if let Some(tag) = exchange.tag {
                state.table_mut(exchange.class).put(tag, None);
            }
            state.wishes.retain(|other| *other != key);
            state.tasks = state.tasks.saturating_sub(1);
            state.withdrawn.extend(exchange.messages);
        }
        if exchange.result.is_some() || !fault_injection::is_injected(Bug::FramesKeepMemory) {
            self.release_data_out_quota(session, freed);
            self.release_data_in_quota(session, answers);
        }
        self.mark_dirty(session);
    }
}

/// How many requests a session that holds much of the memory may number ahead while memory is short: enough
/// to make progress.
const DEPTH_UNDER_PRESSURE: u32 = 4;

/// Returns a message that has a head and no body, and fits into one frame.
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
