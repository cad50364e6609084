//! An exchange as the target sees it: what of it came, what of it is to go, and how it ended.

use alloc::vec::Vec;

use base::arena::Key;
use base::buffer::{Bytes, DataList, Pool};
use base::time::Instant;
use smallvec::SmallVec;

use super::contract::{Finish, status};
use crate::aead::Level;
use crate::connection::MessageId;
use crate::exchange::reassembly::{Reassembly, to_usize};
use crate::exchange::xid::PnSpace;
use crate::pdu::abort::AbortResult;
use crate::pdu::command::{Command, Manage};
use crate::pdu::reply::{ManageResult, SENSE_MAX, TransferReady};

/// An exchange, from the first frame of it that came until its end was acknowledged.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) session: Key,
    pub(super) class: PnSpace,
    /// `None`: it is an Abort frame's wish, and holds no slot.
    pub(super) tag: Option<u16>,
    pub(super) xid: u32,
    /// The protection of its request: every frame of it has at least that.
    pub(super) level: Level,
    pub(super) since: Instant,
    pub(super) holder: Holder,
    pub(super) request: RequestState,
    pub(super) out: DataOut,
    pub(super) data_in: DataIn,
    /// How it ended; then nothing more is fetched and what still comes is forgotten.
    pub(super) result: Option<TaskResult>,
    /// Whether the message that ends it was handed to the transport.
    pub(super) answered: bool,
    /// What was handed to the transport and is not acknowledged.
    pub(super) messages: SmallVec<[MessageId; 2]>,
    /// Whether it stands in its session's list of those that have something to send.
    pub(super) listed: bool,
}

/// Who has an exchange in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// Nobody yet: data came before the request that it belongs to.
    OrphanData,
    /// The session: its turn has not come.
    Session,
    /// The layer above.
    DeviceServer,
    /// Nobody any more: it ended, and its end is on the way.
    Finished,
}

/// What an exchange is about.
#[derive(Debug)]
pub(super) enum RequestState {
    /// Not known: the request did not come.
    Unknown,
    /// A command, until it is handed up.
    Command(Command),
    /// A command that was handed up.
    Started,
    /// A task management function, with the exchange that it means.
    Manage(Manage, Option<Key>),
}

/// How an exchange ended.
#[derive(Debug)]
pub(super) enum TaskResult {
    /// With a status.
    Status {
        status: u8,
        sense: SmallVec<[u8; 18]>,
        transferable: u64,
        /// Whether to say so only in a protected frame.
        sealed: bool,
    },
    /// A task management function has its result.
    Managed(ManageResult),
    /// Without either.
    GivenUp(AbortResult),
}

impl TaskResult {
    pub(super) fn of(finish: Finish<'_>) -> Self {
        let sense = finish.sense.get(..SENSE_MAX).unwrap_or(finish.sense);
        Self::Status {
            status: finish.status,
            sense: SmallVec::from_slice(sense),
            transferable: finish.transferable,
            sealed: false,
        }
    }

    /// The end of a task that finds no room; the initiator tries again.
    pub(super) fn busy() -> Self {
        Self::of(Finish { status: status::BUSY, sense: &[], transferable: 0 })
    }

    /// The end of a command that came with less protection than its unit demands: CHECK CONDITION, DATA PROTECT,
    /// LOGICAL UNIT ACCESS NOT AUTHORIZED.
    pub(super) fn unprotected() -> Self {
        Self::Status {
            status: status::CHECK_CONDITION,
            sense: SmallVec::from_slice(&UNPROTECTED),
            transferable: 0,
            sealed: true,
        }
    }
}

/// Fixed format sense data (SPC-5 §4.5.3): ILLEGAL REQUEST, 74h/71h.
pub(crate) const UNPROTECTED: [u8; 18] = [0x70, 0, 0x05, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x74, 0x71, 0, 0, 0, 0];

/// The data that the initiator sends for a command.
#[derive(Debug)]
pub(super) struct DataOut {
    pub(super) len: u32,
    /// What comes unasked, while it comes.
    pub(super) unsolicited: Option<Reassembly>,
    /// What came unasked, once it is whole.
    pub(super) unsolicited_data: Option<Bytes>,
    /// Bytes of the budget that it takes.
    pub(super) reserved: usize,
    /// What the layer above asked for and has not got.
    pub(super) fetches: SmallVec<[Fetch; 1]>,
    /// The requests for data that are to go.
    pub(super) transfer_readies: Vec<TransferReady>,
    /// The number of the next one.
    pub(super) number: u32,
    /// Whether it waits for the budget.
    pub(super) waits: bool,
    /// Whether more is to be asked for once some of what was is here, or is known to have been asked for.
    pub(super) more: bool,
}

/// A range of the data that the layer above asked for.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) start: u32,
    pub(super) end: u32,
    /// The part that does not come unasked.
    pub(super) solicited: Option<Reassembly>,
    /// What of that part was asked for ends here.
    pub(super) asked_end: u32,
    /// Bytes of the budget that it takes; `None` until it got them.
    pub(super) reserved: Option<usize>,
}

/// How many requests for data of a fetch may be without an answer, and how many of an exchange unacknowledged: an initiator that takes a
/// byte with each does not make us keep a million of them, and one that is honest always has more to send.
pub(super) const READIES_MAX: u32 = 64;

impl Fetch {
    /// Makes a fetch, of which so much comes unasked.
    pub(super) fn new(start: u32, end: u32, early: u32) -> Self {
        let from = start.max(early);
        let asked = (from < end).then(|| Reassembly::new(from, end - from));
        Self { start, end, solicited: asked, asked_end: from, reserved: None }
    }
}

/// How many bytes of each budget for Data-Out are free again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Freed {
    pub(super) unasked: usize,
    pub(super) asked: usize,
}

impl DataOut {
    pub(super) fn new() -> Self {
        Self {
            len: 0,
            unsolicited: None,
            unsolicited_data: None,
            reserved: 0,
            fetches: SmallVec::new(),
            transfer_readies: Vec::new(),
            number: 0,
            waits: false,
            more: false,
        }
    }

    /// Returns how much comes unasked.
    pub(super) fn unsolicited_len(&self) -> u32 {
        match (&self.unsolicited, &self.unsolicited_data) {
            (Some(reassembly), _) => reassembly.len(),
            (None, Some(came)) => u32::try_from(came.len()).unwrap_or(u32::MAX),
            (None, None) => 0,
        }
    }

    /// Makes the requests for data that may go now, of at most `burst_max` bytes each, where `under_way` messages of the exchange are not
    /// acknowledged. Returns whether there are any.
    pub(super) fn make_transfer_readies(&mut self, burst_max: u32, under_way: usize) -> bool {
        let burst_max = burst_max.max(1);
        self.more = false;
        for fetch in self.fetches.iter_mut().filter(|fetch| fetch.reserved.is_some()) {
            let Some(reassembly) = &fetch.solicited else { continue };
            while fetch.asked_end < reassembly.end() {
                let open = fetch.asked_end.saturating_sub(reassembly.front()).div_ceil(burst_max);
                if open >= READIES_MAX || self.transfer_readies.len() + under_way >= to_usize(READIES_MAX) {
                    self.more = true;
                    break;
                }
                let (offset, number) = (fetch.asked_end, self.number);
                let len = (reassembly.end() - offset).min(burst_max);
                self.transfer_readies.push(TransferReady { number, offset, len });
                self.number = number.wrapping_add(1);
                fetch.asked_end += len;
            }
        }
        !self.transfer_readies.is_empty()
    }

    /// Forgets all data, and all that was asked for.
    pub(super) fn stop(&mut self, pool: &Pool) -> Freed {
        if let Some(mut reassembly) = self.unsolicited.take() {
            reassembly.clear(pool);
        }
        if let Some(came) = self.unsolicited_data.take() {
            pool.recycle(came);
        }
        (self.transfer_readies, self.more) = (Vec::new(), false);
        let mut freed = Freed { unasked: core::mem::take(&mut self.reserved), asked: 0 };
        for fetch in self.fetches.drain(..) {
            freed.asked += fetch.reserved.unwrap_or(0);
            if let Some(mut reassembly) = fetch.solicited {
                reassembly.clear(pool);
            }
        }
        freed
    }
}

/// The data that the initiator is to receive.
#[derive(Debug, Default)]
pub(super) struct DataIn {
    pub(super) len: u32,
    /// What the layer above gave and the transport has not got.
    pub(super) queued: DataList,
    /// How much of it the transport got.
    pub(super) sent: u32,
    /// Of that, what is not acknowledged.
    pub(super) unacknowledged: usize,
    /// Bytes of the budget that it takes: what waits and what is not acknowledged, and of what may still come as much as
    /// was claimed.
    pub(super) reserved: usize,
    /// How many bytes the command was taken to have under way at a time.
    pub(super) claimed: usize,
}

impl DataIn {
    /// Returns the offset behind all that the layer above gave.
    pub(super) fn end(&self) -> u32 {
        self.sent.saturating_add(u32::try_from(self.queued.len()).unwrap_or(u32::MAX))
    }

    /// Forgets what waits, and returns how many bytes of the budget that frees.
    pub(super) fn stop(&mut self, pool: &Pool) -> usize {
        for part in core::mem::take(&mut self.queued).into_parts() {
            pool.recycle(part);
        }
        self.close()
    }

    /// Takes note that no more comes, and returns how many bytes of the budget that frees.
    pub(super) fn close(&mut self) -> usize {
        self.claimed = 0;
        self.spare()
    }

    /// Returns how many bytes of the budget it needs no more.
    pub(super) fn spare(&mut self) -> usize {
        let spare = self.reserved.saturating_sub(self.needs());
        self.reserved -= spare;
        spare
    }

    /// Returns how many bytes of the budget it takes beyond what it took so far, as they are there.
    pub(super) fn excess(&mut self) -> usize {
        let excess = self.needs().saturating_sub(self.reserved);
        self.reserved += excess;
        excess
    }

    fn needs(&self) -> usize {
        let here = self.unacknowledged + self.queued.len();
        let left = (to_usize(self.len) + self.unacknowledged).saturating_sub(to_usize(self.sent));
        here.max(left.min(self.claimed))
    }
}

impl Exchange {
    pub(super) fn new(
        session: Key,
        (class, tag, xid): (PnSpace, Option<u16>, u32),
        level: Level,
        now: Instant,
    ) -> Self {
        Self {
            session,
            class,
            tag,
            xid,
            level,
            since: now,
            holder: Holder::OrphanData,
            request: RequestState::Unknown,
            out: DataOut::new(),
            data_in: DataIn::default(),
            result: None,
            answered: false,
            messages: SmallVec::new(),
            listed: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_asked_for_as_far_as_answers_and_acknowledgements_keep_pace() {
        let pool = Pool::new(1 << 20);
        let mut out = DataOut::new();
        out.fetches.push(Fetch::new(0, 1 << 20, 100));
        assert!(!out.make_transfer_readies(1, 0) && !out.more, "there is no room for it yet");
        out.fetches[0].reserved = Some(1 << 20);
        assert!(out.make_transfer_readies(1, 0) && out.more);
        let asked = |out: &DataOut| (out.transfer_readies.len(), out.fetches[0].asked_end);
        assert_eq!(asked(&out), (64, 164));
        // They are out, and none was acknowledged; then all were, and none was answered; then half were.
        let mut ready = core::mem::take(&mut out.transfer_readies);
        assert!(!out.make_transfer_readies(1, 64) && !out.make_transfer_readies(1, 0) && out.more);
        out.fetches[0].solicited.as_mut().unwrap().put(&pool, 100, &[1; 32]).unwrap();
        assert!(out.make_transfer_readies(1, 0) && out.more);
        assert_eq!(asked(&out), (32, 196));
        ready.append(&mut out.transfer_readies);
        let numbers = ready.iter().map(|ready| (ready.number, ready.offset));
        assert!(numbers.eq((0..96).map(|number| (number, 100 + number))), "each byte once");
        // Large ones are asked for at once.
        let mut out = DataOut::new();
        out.fetches.push(Fetch { reserved: Some(1 << 20), ..Fetch::new(0, 3 << 20, 0) });
        assert!(out.make_transfer_readies(1 << 20, 0) && !out.more && out.transfer_readies.len() == 3);
    }
}
