//! An exchange as the target sees it: its received data, its data to send, and its result.

use alloc::vec::Vec;

use base::arena::Key;
use base::buffer::{Bytes, DataList, Pool};
use base::int_cast::to_usize;
use base::time::Instant;
use smallvec::SmallVec;
use transport::quota::DataInReservation;
use transport::status;
use transport::status::SENSE_MAX;
use transport::target::Finish;
use transport::task_management::TmfResult;

use crate::connection::MessageId;
use crate::exchange::reassembly::Reassembly;
use crate::exchange::xid::PnSpace;
use crate::pdu::abort::AbortResult;
use crate::pdu::command::{Command, Manage};
use crate::pdu::reply::TransferReady;
use security::Level;

/// An exchange, from its first received frame until the acknowledgement of its last message.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) session: Key,
    pub(super) class: PnSpace,
    /// `None`: an Abort frame created this exchange, which holds no slot.
    pub(super) tag: Option<u16>,
    pub(super) xid: u32,
    /// The protection level of the request: every frame of the exchange has at least that level.
    pub(super) level: Level,
    pub(super) since: Instant,
    pub(super) holder: Holder,
    pub(super) request: RequestState,
    /// The logical unit of the command; 0 if it is none.
    pub(super) lun: u64,
    pub(super) out: DataOut,
    pub(super) data_in: DataIn,
    /// The result. Once it is set, the engine fetches no more data and discards data that still arrives.
    pub(super) result: Option<TaskResult>,
    /// Whether the message that ends the exchange was passed to the transport.
    pub(super) answered: bool,
    /// Messages that were passed to the transport and are not acknowledged.
    pub(super) messages: SmallVec<[MessageId; 2]>,
    /// Whether the exchange is in its session's list of exchanges that have something to send.
    pub(super) listed: bool,
}

/// Which layer owns an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// None yet: orphan data was received before its request.
    OrphanData,
    /// The session: the request waits for its turn.
    Session,
    /// The layer above.
    DeviceServer,
    /// None any more: the exchange ended, and its result is on the way.
    Finished,
}

/// The request of an exchange.
#[derive(Debug)]
pub(super) enum RequestState {
    /// Unknown: the request was not received.
    Unknown,
    /// A command that was not yet submitted to the layer above.
    Command(Command),
    /// A command that was submitted to the layer above.
    Started,
    /// A task management function, with the exchange that it names.
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
        /// Whether the response must be sent in a protected frame only.
        sealed: bool,
    },
    /// A task management function has its result.
    Managed(TmfResult),
    /// The exchange was given up, without status or result.
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

    /// Returns the end of a task for which memory is short: BUSY. The initiator tries again.
    pub(super) fn busy() -> Self {
        Self::of(Finish { status: status::BUSY, sense: &[], transferable: 0, is_unit_attention: false })
    }

    /// Returns the end of a command with less protection than its logical unit demands: CHECK CONDITION,
    /// ILLEGAL REQUEST, LOGICAL UNIT ACCESS NOT AUTHORIZED. The response is protected if the session has
    /// keys.
    pub(super) fn unprotected() -> Self {
        Self::Status {
            status: status::CHECK_CONDITION,
            sense: SmallVec::from_slice(&UNPROTECTED),
            transferable: 0,
            sealed: true,
        }
    }
}

/// ILLEGAL REQUEST, LOGICAL UNIT ACCESS NOT AUTHORIZED.
pub(crate) const UNPROTECTED: [u8; 18] = status::sense(status::ILLEGAL_REQUEST, [0x74, 0x71]);

/// The Data-Out of a command.
#[derive(Debug)]
pub(super) struct DataOut {
    pub(super) len: u32,
    /// The unsolicited data, while it is received.
    pub(super) unsolicited: Option<Reassembly>,
    /// The unsolicited data, once it is complete.
    pub(super) unsolicited_data: Option<Bytes>,
    /// Bytes reserved in the memory quota for unsolicited data.
    pub(super) reserved: usize,
    /// Fetches of the layer above that are not complete.
    pub(super) fetches: SmallVec<[Fetch; 1]>,
    /// The Transfer Ready messages (requests for data) that are to be sent.
    pub(super) transfer_readies: Vec<TransferReady>,
    /// The number of the next Transfer Ready.
    pub(super) number: u32,
    /// Whether a fetch waits for memory.
    pub(super) waits: bool,
    /// Whether orphan data was dropped because there was no memory: its request will be answered with BUSY.
    pub(super) dropped: bool,
    /// Whether more data is to be requested once some of the requested data is received, or a request for
    /// data is acknowledged.
    pub(super) more: bool,
}

/// A range of Data-Out that the layer above requested.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) start: u32,
    pub(super) end: u32,
    /// The part of the range that is not unsolicited.
    pub(super) solicited: Option<Reassembly>,
    /// The end of the part that was requested from the initiator so far.
    pub(super) asked_end: u32,
    /// Bytes reserved in the memory quota for solicited data; `None` until the reservation succeeds.
    pub(super) reserved: Option<usize>,
}

/// How many Transfer Readies of a fetch may be unanswered, and how many of an exchange unacknowledged. An
/// initiator that accepts one byte for each cannot make the target hold a million of them, and an honest
/// initiator always has more to send.
pub(super) const READIES_MAX: u32 = 64;

impl Fetch {
    /// Returns a fetch of `start..end`, where the first `early` bytes of the command's data are unsolicited.
    pub(super) fn new(start: u32, end: u32, early: u32) -> Self {
        let from = start.max(early);
        let asked = (from < end).then(|| Reassembly::new(from, end - from));
        Self { start, end, solicited: asked, asked_end: from, reserved: None }
    }
}

/// How many bytes of each Data-Out quota are free again.
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
            dropped: false,
            more: false,
        }
    }

    /// Returns the length of the unsolicited data.
    pub(super) fn unsolicited_len(&self) -> u32 {
        match (&self.unsolicited, &self.unsolicited_data) {
            (Some(reassembly), _) => reassembly.len(),
            (None, Some(came)) => u32::try_from(came.len()).unwrap_or(u32::MAX),
            (None, None) => 0,
        }
    }

    /// Makes the Transfer Readies that may be sent now, of at most `burst_max` bytes each, where `under_way`
    /// messages of the exchange are not acknowledged. Returns whether there are any.
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

    /// Discards all data and all fetches, and returns the freed bytes of both quotas.
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

/// The Data-In of a command.
#[derive(Debug, Default)]
pub(super) struct DataIn {
    pub(super) len: u32,
    /// Data that the layer above supplied and that was not yet passed to the transport.
    pub(super) queued: DataList,
    /// How many bytes were passed to the transport.
    pub(super) sent: u32,
    /// How many bytes of those are not acknowledged.
    pub(super) unacknowledged: usize,
    /// Bytes of the memory quota that it takes.
    pub(super) reservation: DataInReservation,
}

impl DataIn {
    /// Returns the offset behind all data that the layer above supplied.
    pub(super) fn end(&self) -> u32 {
        self.sent.saturating_add(u32::try_from(self.queued.len()).unwrap_or(u32::MAX))
    }

    /// Discards data that waits, and returns how many bytes of the quota that frees.
    pub(super) fn stop(&mut self, pool: &Pool) -> usize {
        for part in core::mem::take(&mut self.queued).into_parts() {
            pool.recycle(part);
        }
        self.close()
    }

    /// Records that no more data follows, and returns how many bytes of the quota that frees.
    pub(super) fn close(&mut self) -> usize {
        let (here, end) = (self.unacknowledged + self.queued.len(), u64::from(self.end()));
        self.reservation.close(here, end)
    }

    /// Returns how many reserved bytes are no longer needed, and removes them from the reservation.
    pub(super) fn spare(&mut self) -> usize {
        let (here, end) = (self.unacknowledged + self.queued.len(), u64::from(self.end()));
        self.reservation.shrink(here, end)
    }

    /// Returns how many bytes the data exceeds its reservation by, and adds them to the reservation.
    pub(super) fn excess(&mut self) -> usize {
        let (here, end) = (self.unacknowledged + self.queued.len(), u64::from(self.end()));
        self.reservation.grow(here, end)
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
            lun: 0,
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
        // First the requests are sent and none is acknowledged; then all are acknowledged and none is
        // answered; then half are answered.
        let mut ready = core::mem::take(&mut out.transfer_readies);
        assert!(!out.make_transfer_readies(1, 64) && !out.make_transfer_readies(1, 0) && out.more);
        out.fetches[0].solicited.as_mut().unwrap().put(&pool, 100, &[1; 32]).unwrap();
        assert!(out.make_transfer_readies(1, 0) && out.more);
        assert_eq!(asked(&out), (32, 196));
        ready.append(&mut out.transfer_readies);
        let numbers = ready.iter().map(|ready| (ready.number, ready.offset));
        assert!(numbers.eq((0..96).map(|number| (number, 100 + number))), "each byte once");
        // Large bursts are all requested at once.
        let mut out = DataOut::new();
        out.fetches.push(Fetch { reserved: Some(1 << 20), ..Fetch::new(0, 3 << 20, 0) });
        assert!(out.make_transfer_readies(1 << 20, 0) && !out.more && out.transfer_readies.len() == 3);
    }
}
