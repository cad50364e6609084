//! Data-Out: unsolicited data, data that the layer above fetches, and where both are stored.
//!
//! A frame's exchange, offset and length are checked before a byte of the frame is copied. Data of an
//! exchange that ended has no buffer, so late data of an aborted task never reaches a medium.

use base::arena::Key;
use base::buffer::DataList;
use base::int_cast::to_usize;
use smallvec::SmallVec;
use transport::target::TaskRef;

use super::contract::Event;
use super::engine::Engine;
use super::exchange::{Fetch, Freed, Holder, TaskResult};
use super::request::FrameError;
use crate::exchange::reassembly::{Reassembly, ReassemblyError};
use crate::pdu::abort::AbortResult;
use security::Level;

impl Engine {
    /// Stores data at its place in the buffer of its exchange.
    pub(super) fn accept_data(
        &mut self,
        key: Key,
        level: Level,
        offset: u32,
        data: &[u8],
    ) -> Result<(), FrameError> {
        let exchange = self.exchanges.get_mut(key).ok_or(FrameError::UnknownExchange)?;
        //= hyperscsi#section-7.1
        //# Each exchange has the level of its first Request frame; every other frame of it MUST have at
        //# least that level, else it is dropped and counted.
        if level < exchange.level {
            return Err(FrameError::Unprotected);
        }
        if exchange.result.is_some() || exchange.holder == Holder::Finished {
            return Err(FrameError::UnknownExchange);
        }
        if exchange.out.dropped {
            return Ok(());
        }
        if data.is_empty() {
            return Ok(());
        }
        let session = exchange.session;
        let early = exchange.out.unsolicited_len();
        let put = if offset < early {
            match &mut exchange.out.unsolicited {
                Some(reassembly) => reassembly.put(&self.pool, offset, data),
                // All unsolicited data was received already.
                None => Ok(0),
            }
        } else {
            let end = u32::try_from(data.len()).ok().and_then(|len| offset.checked_add(len));
            let fetch = exchange.out.fetches.iter_mut().filter(|fetch| fetch.reserved.is_some());
            let landings = fetch.filter_map(|fetch| Some((fetch.asked_end, fetch.solicited.as_mut()?)));
            match landings.into_iter().find(|(_, reassembly)| reassembly.covers(offset)) {
                Some((asked, _)) if end.is_none_or(|end| end > asked) => Err(ReassemblyError::Outside),
                Some((_, reassembly)) => reassembly.put(&self.pool, offset, data),
                None if offset < exchange.out.len => return Err(FrameError::UnknownExchange),
                None => Err(ReassemblyError::Outside),
            }
        };
        match put {
            Ok(new) => {
                self.stats.data_out_bytes += u64::from(new);
                if let Some(session) = self.sessions.get_mut(session) {
                    session.traffic.data_out_bytes += u64::from(new);
                }
                if new > 0 {
                    self.complete_unsolicited(key);
                    self.ask_more(key);
                    self.deliver_fetches(key);
                }
                Ok(())
            }
            Err(ReassemblyError::Outside) => Err(FrameError::Misplaced),
            Err(ReassemblyError::Scattered) => {
                self.fail_at_once(key, TaskResult::GivenUp(AbortResult::BROKEN));
                Err(FrameError::Misplaced)
            }
        }
    }

    /// Completes the unsolicited data, if all of it was received.
    pub(super) fn complete_unsolicited(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        if exchange.holder != Holder::OrphanData
            && let Some(mut reassembly) = exchange.out.unsolicited.take_if(|reassembly| reassembly.is_whole())
        {
            exchange.out.unsolicited_data = reassembly.take();
        }
    }

    /// Solicits the data of fetches that wait, in order, as far as memory allows, and then delivers the
    /// fetches that are complete.
    pub(super) fn advance_fetches(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let Some(session) = self.sessions.get_mut(exchange.session) else { return };
        exchange.out.waits = false;
        for fetch in exchange.out.fetches.iter_mut().filter(|fetch| fetch.reserved.is_none()) {
            let Some(reassembly) = &fetch.solicited else {
                fetch.reserved = Some(0);
                continue;
            };
            let room = to_usize(reassembly.len());
            if !self.quotas.solicited.try_reserve(self.now, &mut session.shares.solicited, room) {
                self.stats.withheld += 1;
                self.quotas.solicited.enqueue_waiter(
                    self.now,
                    exchange.session,
                    &mut session.shares.solicited,
                );
                exchange.out.waits = true;
                break;
            }
            fetch.reserved = Some(room);
        }
        self.solicit(key);
        self.deliver_fetches(key);
    }

    /// Solicits data that was held back, as far as the bound on unanswered requests allows now.
    pub(super) fn ask_more(&mut self, key: Key) {
        if self.exchanges.get(key).is_some_and(|exchange| exchange.out.more) {
            self.solicit(key);
        }
    }

    /// Solicits the data for which memory is reserved.
    fn solicit(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let Some(session) = self.sessions.get(exchange.session) else { return };
        if exchange.out.make_transfer_readies(session.parameters.burst_max, exchange.messages.len()) {
            self.list(key);
        }
    }

    /// Solicits the data of every exchange of a session that waited for memory.
    pub(super) fn pump_all(&mut self, key: Key) {
        let Some(session) = self.sessions.get(key) else { return };
        for exchange in session.exchanges() {
            if self.exchanges.get(exchange).is_some_and(|exchange| exchange.out.waits) {
                self.advance_fetches(exchange);
            }
        }
    }

    /// Passes complete fetches to the layer above, in the order in which they were made.
    fn deliver_fetches(&mut self, key: Key) {
        let Some(exchange) =
            self.exchanges.get_mut(key).filter(|exchange| exchange.holder == Holder::DeviceServer)
        else {
            return;
        };
        let early = exchange.out.unsolicited_len();
        let has_early = exchange.out.unsolicited.is_none();
        let mut done: SmallVec<[Fetch; 1]> = SmallVec::new();
        while let Some(fetch) = exchange.out.fetches.first() {
            let early_is_here = has_early || fetch.start >= early;
            let rest_is_here = fetch.solicited.as_ref().is_none_or(Reassembly::is_whole);
            if !(early_is_here && rest_is_here && fetch.reserved.is_some()) {
                break;
            }
            done.push(exchange.out.fetches.remove(0));
        }
        let session = exchange.session;
        let (mut freed, mut is_short) = (0, false);
        for fetch in done {
            let mut data = DataList::new();
            if let Some(came) = exchange.out.unsolicited_data.as_ref().filter(|_| fetch.start < early) {
                data.push(came.slice(to_usize(fetch.start), to_usize(fetch.end.min(early))));
            }
            if let Some(part) = fetch.solicited.and_then(|mut reassembly| reassembly.take()) {
                data.push(part);
            }
            freed += fetch.reserved.unwrap_or(0);
            if data.len() != to_usize(fetch.end - fetch.start) {
                // To continue would pass bytes to the layer above that were not received.
                is_short = true;
                continue;
            }
            self.events.push_back(Event::DataOut { task: TaskRef(key), offset: fetch.start, data });
        }
        if is_short {
            self.bug();
        }
        self.release_data_out_quota(session, Freed { asked: freed, unasked: 0 });
    }

    /// Releases memory for Data-Out.
    pub(super) fn release_data_out_quota(&mut self, session: Key, freed: Freed) {
        let mut session = self.sessions.get_mut(session);
        self.quotas
            .solicited
            .release(session.as_deref_mut().map(|session| &mut session.shares.solicited), freed.asked);
        self.quotas
            .unsolicited
            .release(session.map(|session| &mut session.shares.unsolicited), freed.unasked);
    }
}
