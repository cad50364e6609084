//! Data-Out: what comes with a request, what the layer above fetches, and where it lands.
//!
//! A frame is judged by its exchange, offset and length before a byte of it is touched. Data of an exchange that ended finds
//! nothing to land in, so late data of an aborted task never reaches a medium.

use base::arena::Key;
use base::buffer::DataList;
use smallvec::SmallVec;

use super::contract::{Event, TaskRef};
use super::engine::Engine;
use super::exchange::{Ending, Fetch, Freed, Holder};
use super::request::Stray;
use crate::exchange::landing::{Landing, NotLanded, to_usize};
use crate::pdu::abort::AbortResult;
use crate::seal::Level;

impl Engine {
    /// Puts data where it belongs.
    pub(super) fn land(&mut self, key: Key, level: Level, offset: u32, data: &[u8]) -> Result<(), Stray> {
        let exchange = self.exchanges.get_mut(key).ok_or(Stray::Over)?;
        //= hyperscsi#section-7.1
        //# Each exchange has the level of its first Request frame; every other frame of it MUST have at
        //# least that level, else it is dropped and counted.
        if level < exchange.level {
            return Err(Stray::Unprotected);
        }
        if exchange.ending.is_some() || exchange.holder == Holder::Nobody {
            return Err(Stray::Over);
        }
        if exchange.out.waits && exchange.holder == Holder::Unborn {
            // It found no room, which the request will be told.
            return Ok(());
        }
        if data.is_empty() {
            return Ok(());
        }
        let session = exchange.session;
        let early = exchange.out.early_len();
        let put = if offset < early {
            match &mut exchange.out.early {
                Some(landing) => landing.put(&self.pool, offset, data),
                // All of it is here.
                None => Ok(0),
            }
        } else {
            let end = u32::try_from(data.len()).ok().and_then(|len| offset.checked_add(len));
            let fetch = exchange.out.fetches.iter_mut().filter(|fetch| fetch.reserved.is_some());
            let landings = fetch.filter_map(|fetch| Some((fetch.asked_end, fetch.asked.as_mut()?)));
            match landings.into_iter().find(|(_, landing)| landing.covers(offset)) {
                Some((asked, _)) if end.is_none_or(|end| end > asked) => Err(NotLanded::Outside),
                Some((_, landing)) => landing.put(&self.pool, offset, data),
                None if offset < exchange.out.len => return Err(Stray::Over),
                None => Err(NotLanded::Outside),
            }
        };
        match put {
            Ok(new) => {
                self.stats.data_out_bytes += u64::from(new);
                if let Some(session) = self.sessions.get_mut(session) {
                    session.traffic.data_out_bytes += u64::from(new);
                }
                if new > 0 {
                    self.close_early(key);
                    self.ask_more(key);
                    self.hand_up_data(key);
                }
                Ok(())
            }
            Err(NotLanded::Outside) => Err(Stray::Misplaced),
            Err(NotLanded::Scattered) => {
                self.end_early(key, Ending::GivenUp(AbortResult::BROKEN));
                Err(Stray::Misplaced)
            }
        }
    }

    /// Takes what comes unasked as complete, if it is.
    pub(super) fn close_early(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        if exchange.holder != Holder::Unborn
            && let Some(mut landing) = exchange.out.early.take_if(|landing| landing.is_whole())
        {
            exchange.out.came = landing.take();
        }
    }

    /// Asks for bytes of the initiator's data; they come up as [`Event::DataOut`], all at once. A name that means nothing
    /// any more is ignored.
    pub fn fetch(&mut self, task: TaskRef, offset: u32, len: u32) {
        let key = task.0;
        let Some(exchange) = self.exchanges.get_mut(key).filter(|exchange| exchange.holder == Holder::Above)
        else {
            return;
        };
        let end = offset.saturating_add(len).min(exchange.out.len);
        let fetch = Fetch::new(offset.min(end), end, exchange.out.early_len());
        exchange.out.fetches.push(fetch);
        self.pump(key);
    }

    /// Asks for data that waits to be asked for, in order, as far as there is room; then hands up what is complete.
    pub(super) fn pump(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let Some(session) = self.sessions.get_mut(exchange.session) else { return };
        exchange.out.waits = false;
        for fetch in exchange.out.fetches.iter_mut().filter(|fetch| fetch.reserved.is_none()) {
            let Some(landing) = &fetch.asked else {
                fetch.reserved = Some(0);
                continue;
            };
            let room = to_usize(landing.len());
            if !self.asked.try_reserve(self.now, &mut session.asked, room) {
                self.stats.withheld += 1;
                self.asked.enqueue_waiter(self.now, exchange.session, &mut session.asked);
                exchange.out.waits = true;
                break;
            }
            fetch.reserved = Some(room);
        }
        self.ask(key);
        self.hand_up_data(key);
    }

    /// Asks for data that was held back, as far as that may be asked for now.
    pub(super) fn ask_more(&mut self, key: Key) {
        if self.exchanges.get(key).is_some_and(|exchange| exchange.out.more) {
            self.ask(key);
        }
    }

    /// Asks for data that there is room for.
    fn ask(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let Some(session) = self.sessions.get(exchange.session) else { return };
        if exchange.out.ask(session.parameters.burst_max, exchange.messages.len()) {
            self.list(key);
        }
    }

    /// Asks for the data of every exchange of a session that waited for room.
    pub(super) fn pump_all(&mut self, key: Key) {
        let Some(session) = self.sessions.get(key) else { return };
        for exchange in session.exchanges() {
            if self.exchanges.get(exchange).is_some_and(|exchange| exchange.out.waits) {
                self.pump(exchange);
            }
        }
    }

    /// Hands up the fetches that are complete, in the order in which they were made.
    fn hand_up_data(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get_mut(key).filter(|exchange| exchange.holder == Holder::Above)
        else {
            return;
        };
        let early = exchange.out.early_len();
        let has_early = exchange.out.early.is_none();
        let mut done: SmallVec<[Fetch; 1]> = SmallVec::new();
        while let Some(fetch) = exchange.out.fetches.first() {
            let early_is_here = has_early || fetch.start >= early;
            let rest_is_here = fetch.asked.as_ref().is_none_or(Landing::is_whole);
            if !(early_is_here && rest_is_here && fetch.reserved.is_some()) {
                break;
            }
            done.push(exchange.out.fetches.remove(0));
        }
        let session = exchange.session;
        let mut freed = 0;
        for fetch in done {
            let mut data = DataList::new();
            if let Some(came) = exchange.out.came.as_ref().filter(|_| fetch.start < early) {
                data.push(came.slice(to_usize(fetch.start), to_usize(fetch.end.min(early))));
            }
            if let Some(part) = fetch.asked.and_then(|mut landing| landing.take()) {
                data.push(part);
            }
            freed += fetch.reserved.unwrap_or(0);
            if data.len() != to_usize(fetch.end - fetch.start) {
                // Going on would hand up bytes that did not come.
                self.stats.bugs += 1;
                debug_assert!(false, "{} of {}..{}", data.len(), fetch.start, fetch.end);
                continue;
            }
            self.events.push_back(Event::DataOut { task: TaskRef(key), offset: fetch.start, data });
        }
        self.give_data_out(session, Freed { asked: freed, unasked: 0 });
    }

    /// Gives back room for Data-Out.
    pub(super) fn give_data_out(&mut self, session: Key, freed: Freed) {
        let mut session = self.sessions.get_mut(session);
        self.asked.release(session.as_deref_mut().map(|session| &mut session.asked), freed.asked);
        self.unasked.release(session.map(|session| &mut session.unasked), freed.unasked);
    }
}
