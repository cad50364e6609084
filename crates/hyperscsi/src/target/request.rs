//! Frames received in a session. A new request becomes an exchange, once; another frame is passed to its
//! exchange, or is counted and dropped.

use alloc::vec::Vec;

use base::arena::Key;
use base::int_cast::to_usize;
use base::time::Instant;
use transport::target::SessionId;

use super::contract::{SessionDirectory, SessionEnd, Traffic};
use super::engine::Engine;
use super::exchange::{Exchange, Holder, RequestState, TaskResult};
use super::session::{Phase, Slot, Waiting};
use crate::connection::Message;
use crate::exchange::reassembly::Reassembly;
use crate::exchange::xid::{PnSpace, XidStatus, xid_ahead};
use crate::fault_injection::{Bug, is_injected};
use crate::frame::{Cmd, Flags, Header};
use crate::pdu::Malformed;
use crate::pdu::abort::{Abort, AbortResult};
use crate::pdu::command::{Command, Manage, Request};
use crate::pdu::disconnect::{Disconnect, DisconnectReason};
use crate::pdu::parts::PARTS_MAX;
use security::Level;

/// Why a frame changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameError {
    /// Its request was received before.
    Duplicate,
    /// Its exchange has ended, or was never begun.
    UnknownExchange,
    /// It has less protection than it must have.
    Unprotected,
    /// Its content is malformed.
    Malformed,
    /// Its XID is beyond the window, or its tag is in use.
    Misnumbered,
    /// Its data lies outside every requested range.
    Misplaced,
}

impl From<Malformed> for FrameError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl Engine {
    /// Processes a frame that the transport of a session delivers: undamaged, of this session and not
    /// received before.
    pub(super) fn deliver(
        &mut self,
        now: Instant,
        key: Key,
        header: &Header,
        payload: &[u8],
        directory: &dyn SessionDirectory,
    ) {
        match self.sessions.get(key).map(|session| session.phase) {
            Some(Phase::Up) => {}
            Some(Phase::Lingering(_)) if header.cmd == Cmd::Disconnect => {
                return self.goodbye_again(key, header, payload);
            }
            _ => return,
        }
        let is_data = header.flags.has(Flags::DATA);
        let taken = match header.cmd {
            Cmd::Request if is_data => self.data(now, key, header, payload),
            Cmd::Request => self.request(now, key, header, payload, directory),
            Cmd::Abort => self.give_up(now, key, header, payload),
            Cmd::Disconnect => self.disconnect(key, header, payload),
            _ => Err(FrameError::Malformed),
        };
        let Err(why) = taken else { return };
        // The frame may have ended the session.
        let mut nowhere = Traffic::default();
        let traffic = self.sessions.get_mut(key).map_or(&mut nowhere, |session| &mut session.traffic);
        match why {
            FrameError::Duplicate => {
                self.stats.duplicates += 1;
                traffic.duplicates += 1;
            }
            FrameError::UnknownExchange => {
                self.stats.strays += 1;
                traffic.strays += 1;
            }
            FrameError::Unprotected => self.stats.unprotected += 1,
            FrameError::Malformed => self.stats.malformed += 1,
            FrameError::Misnumbered => self.stats.misnumbered += 1,
            FrameError::Misplaced => self.stats.misplaced += 1,
        }
    }

    /// Processes a request with the first of its data.
    fn request(
        &mut self,
        now: Instant,
        key: Key,
        header: &Header,
        payload: &[u8],
        directory: &dyn SessionDirectory,
    ) -> Result<(), FrameError> {
        let session = self.sessions.get(key).ok_or(FrameError::UnknownExchange)?;
        let (class, level) = (PnSpace::of(header.xid), header.level());
        if class != PnSpace::of_frame(header.protected) {
            return Err(FrameError::Unprotected);
        }
        let sense = make_sense(header, payload);
        let numbers = session.table(class);
        let slot = numbers.slot(&self.exchanges, header.tag, header.xid);
        match numbers.arrived.status_of(header.xid) {
            XidStatus::New => {}
            XidStatus::Beyond => return Err(FrameError::Misnumbered),
            XidStatus::Duplicate if is_injected(Bug::FramesRunTwice) && slot == Slot::Free => {}
            XidStatus::Duplicate => {
                // A duplicate may carry more of the data than the first one did, if the path takes longer
                // frames by now.
                if let (Slot::Same(exchange), Ok((_, _, data))) = (slot, sense) {
                    let _ = self.accept_data(exchange, level, 0, data);
                }
                return Err(FrameError::Duplicate);
            }
        }
        let claimed = sense.and_then(|sense| Ok((sense, self.claim(now, key, header, slot)?)));
        let ((request, after, data), exchange) = match claimed {
            Ok(claimed) => claimed,
            Err(why) => {
                self.refuse(key, header, slot, AbortResult::BROKEN);
                return Err(why);
            }
        };
        let Some(session) = self.sessions.get_mut(key) else { return Ok(()) };
        session.table_mut(class).arrived.take(header.xid);
        let lun = match &request {
            Request::Command(command) => command.lun,
            Request::Manage(manage) => manage.lun,
        };
        //= hyperscsi#section-7.1
        //# A Request below the least level of its logical unit MUST NOT be executed
        let least = directory.least_level(SessionId(key), lun);
        let short = level < least || !session.parameters.levels.has(level);
        match request {
            Request::Command(command) => self.start_command(exchange, level, short, command, data),
            Request::Manage(manage) => self.start_tmf(exchange, level, short, manage),
        }
        let waiting = Waiting { xid: header.xid, after, key: exchange };
        self.order_request(key, class, waiting);
        Ok(())
    }

    /// Ends an exchange with a new XID before it begins, and sends an Abort message that says so. The
    /// exchange takes no slot, as another exchange may hold the one that the frame names. From now on its XID
    /// counts as delivered: requests behind it must not wait for a request that will never exist.
    fn refuse(&mut self, key: Key, header: &Header, slot: Slot, result: AbortResult) {
        if let Slot::Same(unborn) = slot {
            self.remove_exchange(unborn);
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        let class = PnSpace::of(header.xid);
        session.table_mut(class).arrived.take(header.xid);
        if session.refusals.len() + session.refused.len() < REFUSALS_MAX {
            let safe = if session.keyed { Level::Integrity } else { Level::None };
            let level = header.level().max(safe);
            let mut head = Vec::new();
            Abort::GivenUp(result).encode(&mut head);
            let message = Message::block(Cmd::Abort, header.xid, header.tag, level, head);
            session.refusals.push(Message { urgent: true, ..message });
        }
        self.release_waiting(key, class);
    }

    /// Returns the exchange of a new request, and gives it the slot of its tag.
    fn claim(&mut self, now: Instant, key: Key, header: &Header, slot: Slot) -> Result<Key, FrameError> {
        match slot {
            Slot::Same(exchange) => return Ok(exchange),
            Slot::Free => {}
            Slot::Other(old) => {
                let state = self.exchanges.get(old);
                let yields = state.is_some_and(|state| match state.holder {
                    // An initiator that uses the tag again has received the answer. Orphan data does not keep
                    // a slot from a request.
                    Holder::Finished => state.answered && xid_ahead(header.xid, state.xid).is_some(),
                    Holder::OrphanData => true,
                    Holder::Session | Holder::DeviceServer => false,
                });
                if !yields {
                    return Err(FrameError::Misnumbered);
                }
                self.remove_exchange(old);
            }
        }
        let level = header.level();
        let session = self.sessions.get_mut(key).ok_or(FrameError::UnknownExchange)?;
        if header.tag >= session.parameters.exchanges {
            return Err(FrameError::Misnumbered);
        }
        let class = PnSpace::of(header.xid);
        let name = (class, Some(header.tag), header.xid);
        let exchange = self.exchanges.insert_with(|_| Exchange::new(key, name, level, now));
        session.table_mut(class).put(header.tag, Some(exchange));
        session.tasks += 1;
        Ok(exchange)
    }

    /// Makes an exchange a command.
    fn start_command(&mut self, key: Key, level: Level, short: bool, command: Command, data: &[u8]) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let Some(session) = self.sessions.get_mut(exchange.session) else { return };
        let unborn_level = core::mem::replace(&mut exchange.level, level);
        exchange.holder = Holder::Session;
        exchange.lun = command.lun;
        exchange.out.len = command.data_out_len;
        exchange.data_in.len = command.data_in_len;
        session.traffic.commands += 1;
        self.stats.commands += 1;
        let len = command.unsolicited_len;
        let legal = len <= session.parameters.first_burst;
        let ending = if short {
            self.stats.refused_level += 1;
            Some(TaskResult::unprotected())
        } else if !legal || (unborn_level != level && exchange.out.unsolicited.is_some()) {
            Some(TaskResult::GivenUp(AbortResult::BROKEN))
        } else {
            match &mut exchange.out.unsolicited {
                Some(reassembly) => match reassembly.shorten(len) {
                    Ok(()) => {
                        let spare = exchange.out.reserved.saturating_sub(to_usize(len));
                        exchange.out.reserved -= spare;
                        self.quotas.unsolicited.release(Some(&mut session.shares.unsolicited), spare);
                        None
                    }
                    Err(_) => Some(TaskResult::GivenUp(AbortResult::BROKEN)),
                },
                None if exchange.out.dropped => Some(TaskResult::busy()),
                None if len == 0 => None,
                None if self.quotas.unsolicited.try_reserve(
                    self.now,
                    &mut session.shares.unsolicited,
                    to_usize(len),
                ) =>
                {
                    exchange.out.reserved = to_usize(len);
                    exchange.out.unsolicited = Some(Reassembly::new(0, len));
                    None
                }
                None => Some(TaskResult::busy()),
            }
        };
        exchange.request = RequestState::Command(command);
        match ending {
            Some(ending) => {
                self.stats.busy += u64::from(is_busy(&ending));
                self.fail_in_order(key, ending);
            }
            // Offset 0 and the length are valid: `Request::parse` checked them.
            None => {
                let _ = self.accept_data(key, level, 0, data);
            }
        }
        self.complete_unsolicited(key);
    }

    fn start_tmf(&mut self, key: Key, level: Level, short: bool, manage: Manage) {
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let session = exchange.session;
        (exchange.holder, exchange.level) = (Holder::Session, level);
        let freed = exchange.out.stop(&self.pool);
        exchange.request = RequestState::Manage(manage, None);
        self.release_data_out_quota(session, freed);
        self.stats.management += 1;
        self.judge_manage(key, short);
    }

    /// Processes a frame of Data-Out.
    fn data(&mut self, now: Instant, key: Key, header: &Header, payload: &[u8]) -> Result<(), FrameError> {
        let session = self.sessions.get(key).ok_or(FrameError::UnknownExchange)?;
        let (class, level) = (PnSpace::of(header.xid), header.level());
        if class == PnSpace::Sealed && !header.protected {
            return Err(FrameError::Unprotected);
        }
        let numbers = session.table(class);
        let slot = numbers.slot(&self.exchanges, header.tag, header.xid);
        if let Slot::Same(exchange) = slot {
            return self.accept_data(exchange, level, header.off, payload);
        }
        if let (Slot::Other(other), true) = (slot, is_injected(Bug::FramesTakeLate)) {
            return self.accept_data(other, level, header.off, payload);
        }
        // The data may have overtaken its request.
        let first_burst = session.parameters.first_burst;
        let end = u32::try_from(payload.len()).ok().and_then(|len| header.off.checked_add(len));
        match numbers.arrived.status_of(header.xid) {
            XidStatus::Duplicate => return Err(FrameError::UnknownExchange),
            XidStatus::Beyond => return Err(FrameError::Misnumbered),
            XidStatus::New if end.is_none_or(|end| end > first_burst) => return Err(FrameError::Misplaced),
            XidStatus::New => {}
        }
        if let Slot::Other(old) = slot
            && self.exchanges.get(old).is_some_and(|old| old.holder == Holder::OrphanData)
        {
            // The slot holds orphan data already: the exchange that was first keeps it.
            return Err(FrameError::Misnumbered);
        }
        let exchange = self.claim(now, key, header, slot)?;
        let Some(session) = self.sessions.get_mut(key) else { return Ok(()) };
        let Some(state) = self.exchanges.get_mut(exchange) else { return Ok(()) };
        if self.quotas.unsolicited.try_reserve(
            self.now,
            &mut session.shares.unsolicited,
            to_usize(first_burst),
        ) {
            state.out.reserved = to_usize(first_burst);
            state.out.unsolicited = Some(Reassembly::new(0, first_burst));
        } else {
            state.out.dropped = true;
        }
        self.accept_data(exchange, level, header.off, payload)
    }

    /// Processes an initiator's Abort frame, which gives up an exchange.
    fn give_up(&mut self, now: Instant, key: Key, header: &Header, payload: &[u8]) -> Result<(), FrameError> {
        let Abort::GiveUp(_) = Abort::parse(payload)? else { return Err(FrameError::Malformed) };
        let session = self.sessions.get(key).ok_or(FrameError::UnknownExchange)?;
        if session.keyed && !header.protected {
            return Err(FrameError::Unprotected);
        }
        let class = PnSpace::of(header.xid);
        let numbers = session.table(class);
        let slot = numbers.slot(&self.exchanges, header.tag, header.xid);
        let standing = numbers.arrived.status_of(header.xid);
        if standing == XidStatus::Beyond {
            return Err(FrameError::Misnumbered);
        }
        self.stats.given_up += 1;
        if standing == XidStatus::New {
            // The request was never received, and from now on its XID counts as received.
            let Ok(exchange) = self.claim(now, key, header, slot) else {
                self.refuse(key, header, slot, AbortResult::NEVER_BEGUN);
                return Err(FrameError::Misnumbered);
            };
            if let Some(session) = self.sessions.get_mut(key) {
                session.table_mut(class).arrived.take(header.xid);
            }
            self.fail_at_once(exchange, TaskResult::GivenUp(AbortResult::NEVER_BEGUN));
            self.release_waiting(key, class);
            return Ok(());
        }
        let Slot::Same(exchange) = slot else { return Err(FrameError::UnknownExchange) };
        self.give_up_known(now, key, exchange);
        Ok(())
    }

    /// Processes a Disconnect frame, by which the initiator ends the session.
    fn disconnect(&mut self, key: Key, header: &Header, payload: &[u8]) -> Result<(), FrameError> {
        let said = Disconnect::parse(payload)?;
        let session = self.sessions.get(key).ok_or(FrameError::UnknownExchange)?;
        if session.keyed && !header.protected {
            return Err(FrameError::Unprotected);
        }
        match said {
            Disconnect::Goodbye(reason) => {
                // Only an initiator whose owner closed the session gives up what it opened, such as its
                // reservations.
                let is_done = matches!(reason, DisconnectReason::CLOSED | DisconnectReason::SHUTDOWN);
                self.end_session(key, if is_done { SessionEnd::LoggedOut } else { SessionEnd::GivenUp });
                Ok(())
            }
            Disconnect::Done | Disconnect::Unknown { .. } => Err(FrameError::Malformed),
        }
    }
}

/// How many refused exchanges of a session may be unacknowledged: as many as a frame can carry. Further
/// refusals are not reported: an initiator that sends malformed requests and acknowledges nothing takes no
/// more memory.
pub(crate) const REFUSALS_MAX: usize = PARTS_MAX;

/// Parses a request. Returns it with its AFTER and the data behind it.
fn make_sense<'a>(header: &Header, payload: &'a [u8]) -> Result<(Request, u32, &'a [u8]), FrameError> {
    let (request, data) = Request::parse(payload)?;
    let after = match &request {
        Request::Command(command) => command.after,
        Request::Manage(manage) => manage.after,
    };
    let earlier = PnSpace::of(after) == PnSpace::of(header.xid) && xid_ahead(header.xid, after).is_some();
    if header.off != 0 || after != 0 && !earlier {
        return Err(FrameError::Malformed);
    }
    Ok((request, after, data))
}

fn is_busy(ending: &TaskResult) -> bool {
    matches!(ending, TaskResult::Status { status: transport::status::BUSY, .. })
}
