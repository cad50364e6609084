//! A SCSI task as the transport sees it: the data received and sent, the data still expected, and the result.

use alloc::boxed::Box;
use core::mem;

use base::buffer::{Bytes, DataList, Pool};
use base::int_cast::to_usize;
use base::state_machine::ConnId;
use smallvec::SmallVec;
use transport::status;

use super::arena::Key;
use super::data_in::DataIn;
use super::data_out_sequence::{Sequence, SupersededR2t};
use crate::pdu::{Itt, Ttt};
use crate::recovery::TransportSense;
use crate::serial::{R2tSn, StatSn};

/// A task.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) session: Key,
    /// The connection that it is allegiant to (RFC 7143 §4.2.5.1).
    pub(crate) conn: ConnId,
    pub(crate) itt: Itt,
    pub(crate) lun: u64,
    pub(crate) immediate: bool,
    /// Whether the command window counts it.
    pub(crate) in_window: bool,
    pub(crate) holder: Holder,
    pub(crate) data_in_len: u32,
    pub(crate) data_out_len: u32,
    pub(crate) data_out: DataOut,
    pub(crate) data_in: DataIn,
    /// The result, once the task has ended. Then nothing more is fetched, and data that is still received is
    /// discarded.
    pub(crate) result: Option<TaskResult>,
    /// Whether its response needs a response fence, whatever its result.
    pub(crate) needs_fence: bool,
    /// Whether its sent Data-In and status are retained until they are acknowledged.
    pub(crate) retains_sent: bool,
    /// The status number under which its response was sent. The response is retained until it is
    /// acknowledged.
    pub(crate) sent_status: Option<SentStatus>,
    /// The tag of the last SNACK that asked for resegmented data, or 0 (RFC 7143 §11.4.4).
    pub(crate) snack_tag: u32,
    /// Runs of its Data-In and R2T PDUs (first number, count) that are to be sent again.
    pub(crate) resend_runs: SmallVec<[(u32, u32); 1]>,
    /// Whether it is in its connection's send queue.
    pub(crate) in_send_queue: bool,
    /// The next task in the same bucket of its session's tag table.
    pub(crate) next: Option<Key>,
}

/// The owner of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The session: the turn of the command has not come.
    Session,
    /// The layer above.
    DeviceServer,
    /// None: the task ended, and its response is on its way.
    Nobody,
}

/// The status of a task that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentStatus {
    pub(crate) stat_sn: StatSn,
    /// Whether it was sent in the last Data-In (phase collapse).
    pub(crate) phase_collapsed: bool,
}

/// How many runs of a task wait to be sent again. Beyond that, one run of all unacknowledged PDUs replaces
/// them.
pub(crate) const MAX_RESEND_RUNS: usize = 8;

impl Task {
    /// Returns whether its Data-In and R2T PDUs are numbered in one sequence (§4.2.2.4).
    pub(crate) const fn is_bidirectional(&self) -> bool {
        self.data_in_len > 0 && self.data_out_len > 0
    }

    /// Returns the number of its next R2T and advances it.
    pub(crate) fn use_r2t_sn(&mut self) -> R2tSn {
        let sn = self.data_out.r2t_sn;
        self.data_out.r2t_sn = sn.next();
        if self.is_bidirectional() {
            let sn = self.data_in.data_sn;
            self.data_in.data_sn = sn.next();
            return R2tSn(sn.0);
        }
        sn
    }

    /// Returns how many Data-In PDUs were sent for it.
    pub(crate) const fn data_ins_sent(&self) -> u32 {
        let r2ts = if self.is_bidirectional() { self.data_out.r2t_sn.0 } else { 0 };
        self.data_in.data_sn.0.wrapping_sub(r2ts)
    }

    /// Returns the numbers of its Data-In and R2T PDUs: the first that is not acknowledged, and the next to
    /// send.
    pub(crate) fn unacked_sn_range(&self) -> (u32, u32) {
        if self.data_in_len > 0 {
            (self.data_in.acked_sn.0, self.data_in.data_sn.0)
        } else {
            (0, self.data_out.r2t_sn.0)
        }
    }

    /// Records that a run of those PDUs is to be sent again.
    pub(crate) fn request_resend(&mut self, from: u32, count: u32) {
        if self.resend_runs.len() >= MAX_RESEND_RUNS {
            let (first, next) = self.unacked_sn_range();
            self.resend_runs.clear();
            self.resend_runs.push((first, next.wrapping_sub(first)));
        } else if count > 0 {
            self.resend_runs.push((from, count));
        }
    }
}

/// The result of a task.
#[derive(Debug)]
pub(crate) struct TaskResult {
    pub(crate) status: u8,
    pub(crate) sense: Option<Box<[u8]>>,
    pub(crate) transferable: u64,
    /// Whether it reports a unit attention condition.
    pub(crate) is_unit_attention: bool,
}

impl TaskResult {
    /// Returns the result of a task that fails with a condition of the transport.
    pub(crate) fn condition(condition: TransportSense) -> Self {
        Self {
            status: status::CHECK_CONDITION,
            sense: Some(Box::new(condition.sense())),
            transferable: 0,
            is_unit_attention: false,
        }
    }

    /// Returns BUSY, the result of a task for which there is no memory. The initiator tries again.
    pub(crate) const fn busy() -> Self {
        Self { status: status::BUSY, sense: None, transferable: 0, is_unit_attention: false }
    }

    /// Returns whether the status can be sent in the last Data-In (phase collapse).
    pub(crate) const fn is_good(&self) -> bool {
        self.status == status::GOOD && self.sense.is_none()
    }
}

/// The data that the initiator sends for a task.
#[derive(Debug, Default)]
pub(crate) struct DataOut {
    /// The unsolicited data, while it is being received.
    pub(crate) unsolicited: Option<Sequence>,
    /// The unsolicited data, once it is complete.
    pub(crate) unsolicited_data: Option<Bytes>,
    /// Bytes of the memory quota that the unsolicited data takes.
    pub(crate) reserved: usize,
    /// The R2Ts that are open or wait to be sent.
    pub(crate) solicited: SmallVec<[Sequence; 1]>,
    /// The ranges that the layer above fetches and that are not delivered yet.
    pub(crate) fetches: SmallVec<[Fetch; 1]>,
    pub(crate) fetch_count: u32,
    /// The R2TSN of the next R2T, and so the number of R2Ts sent.
    pub(crate) r2t_sn: R2tSn,
    /// R2Ts that recovery R2Ts replaced: Data-Out that answers them is ignored.
    pub(crate) superseded: SmallVec<[SupersededR2t; 0]>,
    /// The tags of the R2Ts that were answered last, latest first.
    pub(crate) answered_r2ts: [Option<Ttt>; MAX_ANSWERED],
    /// Whether it waits for the memory quota.
    pub(crate) waits_for_quota: bool,
}

/// How many superseded R2Ts a task remembers.
const MAX_SUPERSEDED: usize = 64;

/// How many answered R2Ts a task remembers, in case a Data-Out is received twice: in most sessions, as many
/// as are open at a time.
const MAX_ANSWERED: usize = 4;

/// How many bytes of each Data-Out quota become free again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) unsolicited: usize,
    pub(crate) solicited: usize,
    /// How many fetches ended that had lost their reserved memory.
    pub(crate) revoked: u32,
    /// How many of the bytes exceeded the quota when they were reserved.
    pub(crate) overdraft: usize,
}

/// A range of the data that the layer above fetches.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) id: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// The end of the part that is asked for by R2Ts, or that is sent unsolicited.
    pub(crate) requested_until: u32,
    /// Whether its first part is unsolicited data that is not completely received.
    pub(crate) awaits_unsolicited: bool,
    /// Bytes of the memory quota that it takes; `None` until they are reserved.
    pub(crate) reserved: Option<usize>,
    /// How many bytes were revoked because its data was not received in time.
    pub(crate) revoked: Option<usize>,
    /// How many of its bytes exceed the quota because its data was received after the memory was revoked.
    pub(crate) overdraft: usize,
    pub(crate) parts: SmallVec<[Option<Bytes>; 2]>,
}

impl Fetch {
    pub(crate) fn is_complete(&self) -> bool {
        self.requested_until == self.end && self.parts.iter().all(Option::is_some)
    }

    /// Withdraws its R2Ts that were not sent, which are its last ones. Returns whether others of it were
    /// sent.
    fn withdraw(&mut self, runs: &mut SmallVec<[Sequence; 1]>) -> bool {
        let own = |sequence: &Sequence| sequence.fetch == self.id;
        let is_told = runs.iter().any(|sequence| own(sequence) && sequence.was_requested());
        let untold = runs.iter().filter(|sequence| own(sequence) && !sequence.was_requested());
        if let Some((part, start)) = untold.map(|sequence| (sequence.part, sequence.start)).min() {
            runs.retain(|sequence| sequence.fetch != self.id || sequence.was_requested());
            self.parts.truncate(part);
            self.requested_until = start;
        }
        is_told
    }

    pub(crate) fn into_data(self) -> DataList {
        let mut data = DataList::new();
        for part in self.parts.into_iter().flatten().filter(|part| !part.is_empty()) {
            data.push(part);
        }
        data
    }
}

impl DataOut {
    /// Returns the Data-Out of a command whose immediate data, if any, is all of its unsolicited data and
    /// takes `reserved` bytes of the memory quota.
    pub(crate) fn of_immediate_data(data: Option<Bytes>, reserved: usize) -> Self {
        let mut new = Self { reserved, ..Self::default() };
        if data.is_some() {
            new.record_answered(Ttt::NONE);
            new.unsolicited_data = data;
        }
        new
    }

    /// Returns the bytes `start..end`, if they are received and every fetch before them is delivered, and the
    /// bytes of the memory quota that this frees.
    pub(crate) fn take_received(&mut self, start: u32, end: u32) -> Option<(DataList, Freed)> {
        let early = self.unsolicited_data.as_ref()?;
        if !self.fetches.is_empty() || self.unsolicited.is_some() || to_usize(end) > early.len() {
            return None;
        }
        let is_rest = to_usize(end) == early.len();
        let data = DataList::from(early.slice(to_usize(start), to_usize(end)));
        let unsolicited = if is_rest { mem::take(&mut self.reserved) } else { 0 };
        Some((data, Freed { unsolicited, ..Freed::default() }))
    }

    /// Returns the end of the unsolicited data.
    pub(crate) fn unsolicited_end(&self) -> u32 {
        match (&self.unsolicited, &self.unsolicited_data) {
            (Some(sequence), _) => sequence.start.saturating_add(sequence.len),
            (None, Some(early)) => u32::try_from(early.len()).unwrap_or(u32::MAX),
            (None, None) => 0,
        }
    }

    /// Finds the sequence that a Data-Out with this tag belongs to.
    pub(crate) fn select(&mut self, ttt: Ttt) -> Option<&mut Sequence> {
        let early = self.unsolicited.as_mut().filter(|sequence| sequence.sent && sequence.ttt == ttt);
        early.or_else(|| self.solicited.iter_mut().find(|sequence| sequence.sent && sequence.ttt == ttt))
    }

    /// Drops a sequence whose end is not awaited any more.
    pub(crate) fn drop_sequence(&mut self, ttt: Ttt, pool: &Pool) {
        let early = self.unsolicited.take_if(|sequence| sequence.ttt == ttt);
        let at = self.solicited.iter().position(|sequence| sequence.ttt == ttt);
        let sequence = early.or_else(|| at.map(|at| self.solicited.remove(at)));
        if let Some(buf) = sequence.and_then(|sequence| sequence.buf) {
            pool.recycle_buf(buf);
        }
    }

    /// Returns every sequence.
    pub(crate) fn sequences_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.unsolicited.iter_mut().chain(&mut self.solicited)
    }

    /// Remembers an R2T that was replaced, so that its Data-Out is ignored.
    pub(crate) fn record_superseded(&mut self, superseded: SupersededR2t) {
        if self.superseded.len() >= MAX_SUPERSEDED {
            self.superseded.remove(0);
        }
        self.superseded.push(superseded);
    }

    /// Remembers an R2T that was answered completely.
    pub(crate) fn record_answered(&mut self, ttt: Ttt) {
        self.answered_r2ts.rotate_right(1);
        if let Some(latest) = self.answered_r2ts.first_mut() {
            *latest = Some(ttt);
        }
    }

    /// Returns whether a Data-Out with this tag belongs to a sequence that is over: the sequence was lost and
    /// asked for again, or it is completely received.
    pub(crate) fn is_over(&self, ttt: Ttt) -> bool {
        self.superseded.iter().any(|superseded| superseded.ttt == ttt)
            || self.answered_r2ts.contains(&Some(ttt))
            || ttt == Ttt::NONE && self.unsolicited_data.is_some() && self.unsolicited.is_none()
    }

    /// Revokes the memory of every fetch of which no solicited data was received. Returns how much, and for
    /// how many of these fetches an R2T was already sent. The other fetches wait for memory again: no R2T of
    /// theirs is sent without memory.
    pub(crate) fn revoke(&mut self) -> Freed {
        let early_end = self.unsolicited_end();
        let mut freed = Freed::default();
        for fetch in &mut self.fetches {
            let early = usize::from(fetch.start < early_end);
            let has_some = fetch.parts.iter().skip(early).any(Option::is_some)
                || self.solicited.iter().any(|sequence| sequence.fetch == fetch.id && sequence.has_memory());
            let may = !has_some && fetch.revoked.is_none();
            let Some(need) = fetch.reserved.filter(|need| *need > 0 && may) else { continue };
            let is_told = fetch.withdraw(&mut self.solicited);
            (fetch.reserved, fetch.revoked) = if is_told { (Some(0), Some(need)) } else { (None, None) };
            freed.solicited += need;
            freed.revoked += u32::from(is_told);
            freed.overdraft += mem::take(&mut fetch.overdraft);
        }
        freed
    }

    /// Withdraws the R2Ts of a task without a connection, except those of fetches of which data was received:
    /// data can be received only for R2Ts that are issued after the reassignment of the task. Returns the
    /// memory that becomes free.
    pub(crate) fn withdraw(&mut self) -> Freed {
        let early_end = self.unsolicited_end();
        let (mut freed, mut superseded) = (Freed::default(), SmallVec::<[SupersededR2t; 4]>::new());
        for fetch in self.fetches.iter_mut().filter(|fetch| fetch.reserved.is_some()) {
            let early = usize::from(fetch.start < early_end);
            let own = |sequence: &&mut Sequence| sequence.fetch == fetch.id && !sequence.unsolicited;
            let has_some = fetch.parts.iter().skip(early).any(Option::is_some)
                || self.solicited.iter_mut().filter(own).any(|sequence| sequence.has_memory());
            if has_some {
                continue;
            }
            for sequence in self.solicited.iter_mut().filter(own) {
                if sequence.was_requested() {
                    superseded.push(sequence.as_superseded());
                }
                (sequence.sent, sequence.tries) = (false, 0);
            }
            fetch.withdraw(&mut self.solicited);
            freed.solicited += fetch.reserved.take().unwrap_or(0);
            freed.revoked += u32::from(fetch.revoked.take().is_some());
            freed.overdraft += mem::take(&mut fetch.overdraft);
        }
        superseded.into_iter().for_each(|superseded| self.record_superseded(superseded));
        freed
    }

    /// Returns whether the initiator still has to end a sequence.
    pub(crate) fn is_expecting(&self) -> bool {
        self.unsolicited.is_some() || self.solicited.iter().any(|sequence| sequence.sent)
    }

    /// Returns whether nothing was fetched and nothing received, as for every command without Data-Out.
    fn is_unused(&self) -> bool {
        self.fetches.is_empty()
            && self.solicited.is_empty()
            && self.unsolicited.is_none()
            && self.unsolicited_data.is_none()
            && self.reserved == 0
    }

    /// Discards all data and all fetches, but keeps the sequences that the initiator still has to end.
    pub(crate) fn stop(&mut self, pool: &Pool) -> Freed {
        if self.is_unused() {
            return Freed::default();
        }
        self.solicited.retain(|sequence| sequence.sent);
        self.unsolicited.take_if(|sequence| !sequence.sent);
        for sequence in self.solicited.iter_mut().chain(&mut self.unsolicited) {
            if let Some(buf) = sequence.buf.take() {
                pool.recycle_buf(buf);
            }
        }
        if let Some(early) = self.unsolicited_data.take() {
            pool.recycle(early);
        }
        let mut freed = Freed { unsolicited: mem::take(&mut self.reserved), ..Freed::default() };
        for fetch in self.fetches.drain(..) {
            freed.solicited += fetch.reserved.unwrap_or(0);
            freed.revoked += u32::from(fetch.revoked.is_some());
            freed.overdraft += fetch.overdraft;
            for part in fetch.parts.into_iter().flatten() {
                pool.recycle(part);
            }
        }
        freed
    }
}
