//! One session as the target sees it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use base::arena::{Arena, Key};
use base::ether::EtherPort;
use base::time::Instant;
use transport::lun_queues::LunQueues;
use transport::quota::DataShares;

use super::contract::Traffic;
use super::exchange::Exchange;
use crate::connection::{Connection, Message, MessageId};
use crate::exchange::xid::{PnSpace, ReceivedXids, xid_ahead, xid_plus};
use crate::pdu::name::{GroupName, Name};
use crate::pdu::parameters::Parameters;

pub(super) struct Session {
    /// The transport that carries the session's frames; `None` while it delivers received frames.
    pub(super) transport: Option<Box<Connection>>,
    pub(super) phase: Phase,
    pub(super) sids: (u32, u32),
    pub(super) target_name: Name,
    pub(super) group: GroupName,
    pub(super) initiator: Name,
    pub(super) isid: [u8; 6],
    /// Whether the session has keys, so that frames can be protected. Then all frames that concern the
    /// session itself are protected.
    pub(super) keyed: bool,
    pub(super) parameters: Parameters,
    pub(super) tables: [ExchangeTable; 2],
    /// Exchanges that an Abort frame created; they hold no slot.
    pub(super) wishes: Vec<Key>,
    /// Commands whose turn has come and that wait for memory for their Data-In.
    pub(super) memory_waiters: LunQueues<Key>,
    pub(super) shares: DataShares,
    /// Exchanges that have something to send.
    pub(super) to_flush: VecDeque<Key>,
    /// Messages to withdraw from the transport.
    pub(super) withdrawn: Vec<MessageId>,
    /// The Abort messages for exchanges that were refused before they began. They wait here until the
    /// transport is back; `refused` then holds their message identifiers.
    pub(super) refusals: Vec<Message>,
    pub(super) refused: Vec<MessageId>,
    /// The closing message of the session. It waits here until the transport is back; `closing_message_id`
    /// then holds its message identifier.
    pub(super) closing_message: Option<Message>,
    pub(super) closing_message_id: Option<MessageId>,
    /// Whether the session is in the engine's list of sessions to process.
    pub(super) is_dirty: bool,
    /// The ports in whose list of senders the session is.
    pub(super) ports: Vec<EtherPort>,
    /// The session's entry in the engine's table of deadlines.
    pub(super) deadline: Option<Instant>,
    /// When the session was last searched for orphan data.
    pub(super) swept: Instant,
    pub(super) tasks: u32,
    pub(super) traffic: Traffic,
}

/// Who the two ends of a session are, and what they agreed on.
pub(super) struct Identity {
    pub(super) sids: (u32, u32),
    pub(super) target_name: Name,
    pub(super) group: GroupName,
    pub(super) initiator: Name,
    pub(super) isid: [u8; 6],
    pub(super) keyed: bool,
    pub(super) parameters: Parameters,
}

/// The phase of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Up,
    /// The session ended. Its closing message is under way, at most until this time.
    Closing(Instant),
    /// The initiator logged out. Until this time the target acknowledges each repeated logout.
    Lingering(Instant),
    /// The session ended and nothing of it is under way.
    Closed,
}

/// The exchanges of one packet number space.
pub(super) struct ExchangeTable {
    pub(super) arrived: ReceivedXids,
    /// The exchanges by tag; the table is as long as the largest tag in use demands.
    pub(super) slots: Vec<Option<Key>>,
    /// Requests that wait until the layer above received earlier ones, in the order of their XIDs.
    pub(super) waiting: Vec<Waiting>,
}

/// A request that waits for earlier requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) xid: u32,
    pub(super) after: u32,
    pub(super) key: Key,
}

/// What holds a slot, compared with the exchange that a frame names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Free,
    /// The exchange that the frame names.
    Same(Key),
    /// Another exchange.
    Other(Key),
}

impl ExchangeTable {
    pub(super) fn new(class: PnSpace) -> Self {
        Self { arrived: ReceivedXids::new(class), slots: Vec::new(), waiting: Vec::new() }
    }

    /// Returns the last XID that the initiator may begin, if it may begin `depth` XIDs beyond those received
    /// without a gap. Returns 0 if no exchange of this packet number space was ever begun.
    pub(super) fn limit(&self, depth: u32) -> u32 {
        let low = self.arrived.low();
        let unused = self.slots.is_empty() && PnSpace::ALL.iter().any(|class| class.start() == low);
        if unused { 0 } else { xid_plus(low, depth) }
    }

    pub(super) fn slot(&self, exchanges: &Arena<Exchange>, tag: u16, xid: u32) -> Slot {
        let key = self.slots.get(usize::from(tag)).copied().flatten();
        match key.and_then(|key| Some((key, exchanges.get(key)?))) {
            None => Slot::Free,
            Some((key, exchange)) if exchange.xid == xid => Slot::Same(key),
            Some((key, _)) => Slot::Other(key),
        }
    }

    pub(super) fn put(&mut self, tag: u16, key: Option<Key>) {
        let at = usize::from(tag);
        if self.slots.len() <= at {
            self.slots.resize(at + 1, None);
        }
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = key;
        }
    }

    /// Returns the exchange with an XID, whatever its tag.
    pub(super) fn find(&self, exchanges: &Arena<Exchange>, xid: u32) -> Option<Key> {
        let held = self.slots.iter().copied().flatten();
        held.into_iter().find(|key| exchanges.get(*key).is_some_and(|exchange| exchange.xid == xid))
    }

    /// Inserts a request behind the waiting requests with smaller XIDs.
    pub(super) fn wait(&mut self, waiting: Waiting) {
        let at = self.waiting.partition_point(|other| xid_ahead(waiting.xid, other.xid).is_some());
        self.waiting.insert(at, waiting);
    }

    /// Removes the requests that need not wait any more and appends them to `out`, in the order of their
    /// XIDs.
    pub(super) fn due(&mut self, out: &mut Vec<Key>) {
        loop {
            let Some(first) = self.waiting.first().map(|waiting| waiting.xid) else { return };
            let before = out.len();
            let arrived = &self.arrived;
            self.waiting.retain(|waiting| {
                // AFTER = 0 names no exchange, and has no place in the order of the XIDs.
                let free = waiting.after == 0;
                let others = free || waiting.xid == first || xid_ahead(first, waiting.after).is_some();
                let due = others && (free || arrived.reached(waiting.after));
                if due {
                    out.push(waiting.key);
                }
                !due
            });
            if out.len() == before {
                return;
            }
        }
    }
}

impl Session {
    /// Returns a session without exchanges.
    pub(super) fn new(now: Instant, identity: Identity, transport: Connection) -> Self {
        Self {
            transport: Some(Box::new(transport)),
            phase: Phase::Up,
            sids: identity.sids,
            target_name: identity.target_name,
            group: identity.group,
            initiator: identity.initiator,
            isid: identity.isid,
            keyed: identity.keyed,
            parameters: identity.parameters,
            tables: PnSpace::ALL.map(ExchangeTable::new),
            wishes: Vec::new(),
            memory_waiters: LunQueues::default(),
            shares: DataShares::default(),
            to_flush: VecDeque::new(),
            withdrawn: Vec::new(),
            refusals: Vec::new(),
            refused: Vec::new(),
            closing_message: None,
            closing_message_id: None,
            is_dirty: false,
            ports: Vec::new(),
            deadline: None,
            swept: now,
            tasks: 0,
            traffic: Traffic::default(),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Returns whether the session is kept only to acknowledge a repeated logout of its initiator.
    pub(super) fn lingers(&self) -> bool {
        matches!(self.phase, Phase::Lingering(_))
            && self.closing_message.is_none()
            && self.closing_message_id.is_none()
    }

    /// Returns whether the session is up and belongs to this initiator port and this target port.
    pub(super) fn is_of(&self, group: &GroupName, target: &Name, initiator: &Name, isid: &[u8; 6]) -> bool {
        self.is_up()
            && self.group == *group
            && self.isid == *isid
            && self.initiator == *initiator
            && self.target_name == *target
    }

    /// Returns whether the session has a path over a port.
    pub(super) fn is_at(&self, port: EtherPort) -> bool {
        self.transport.as_ref().is_some_and(|transport| transport.windows_at(port) > 0)
    }

    pub(super) fn table(&self, class: PnSpace) -> &ExchangeTable {
        let [open, protected] = &self.tables;
        if class == PnSpace::Open { open } else { protected }
    }

    pub(super) fn table_mut(&mut self, class: PnSpace) -> &mut ExchangeTable {
        let [open, protected] = &mut self.tables;
        if class == PnSpace::Open { open } else { protected }
    }

    /// Returns every exchange: those in slots in the order of packet number space and tag, then the others.
    pub(super) fn exchanges(&self) -> Vec<Key> {
        let slots = self.tables.iter().flat_map(|numbers| numbers.slots.iter().copied().flatten());
        slots.chain(self.wishes.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: u32) -> Key {
        Key { index, generation: 0 }
    }

    #[test]
    fn a_request_waits_for_all_that_it_names_and_for_nothing_else() {
        let mut numbers = ExchangeTable::new(PnSpace::Open);
        let mut due = Vec::new();
        // 1 is missing; 3 is ordered, 4 and 5 are simple behind it, 6 is simple and waits for no request.
        for (xid, after) in [(5, 3), (3, 2), (4, 3), (2, 1)] {
            numbers.arrived.take(xid);
            numbers.wait(Waiting { xid, after, key: key(xid) });
            numbers.due(&mut due);
        }
        assert!(due.is_empty());
        numbers.arrived.take(1);
        numbers.due(&mut due);
        assert_eq!(due, [2, 3, 4, 5].map(key));
        assert!(numbers.waiting.is_empty());
    }

    #[test]
    fn what_waits_for_nobody_does_so_however_many_there_were_before_it() {
        for class in PnSpace::ALL {
            for count in [0, 1 << 29, 1 << 30, (1 << 30) + 7, u32::MAX >> 2, (u32::MAX >> 1) - 9] {
                let at = |step: u32| xid_plus(class.start() | count, step);
                let mut numbers = ExchangeTable::new(class);
                numbers.arrived.begin_behind(at(0));
                let mut due = Vec::new();
                // 1 is late; 2 is ordered, 3 is behind it, and 4 and 5 wait for no request.
                for (step, after) in [(2, at(1)), (3, at(2)), (5, 0), (4, 0), (1, 0)] {
                    numbers.arrived.take(at(step));
                    numbers.wait(Waiting { xid: at(step), after, key: key(step) });
                    numbers.due(&mut due);
                }
                assert_eq!(due, [5, 4, 1, 2, 3].map(key), "{class:?} behind {count}");
            }
        }
    }
}
