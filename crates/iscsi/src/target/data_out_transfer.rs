//! The data that the initiator sends for one task: the sequences that it owes, the memory reserved for them,
//! and the ranges that the layer above fetches.
//!
//! [`DataOutTransfer`] takes what happened, changes its own state, and returns what follows: memory that is
//! free again, data to deliver, an R2T to send. It knows neither its session nor its connection.

use core::mem;

use crate::fault_injection::{self, Bug};
use base::buffer::{Buf, Bytes, DataList, Pool};
use base::int_cast::{to_u32, to_usize};
use smallvec::SmallVec;

use super::data_out_sequence::{FetchPart, IssuedR2t, Sequence};
use crate::pdu::Ttt;
use crate::serial::R2tSn;

/// The data that the initiator sends for a task: what it still owes, what is received, and what the layer
/// above fetches of it.
#[derive(Debug, Default)]
pub(crate) struct DataOutTransfer {
    /// The unsolicited data, while it is being received.
    unsolicited: Option<Sequence>,
    /// The unsolicited data, once it is complete.
    unsolicited_data: Option<Bytes>,
    /// Bytes of the memory quota that the unsolicited data takes.
    reserved: usize,
    /// The R2Ts that are open or wait to be sent.
    solicited: SmallVec<[Sequence; 1]>,
    /// The ranges that the layer above fetches and that are not delivered yet.
    fetches: SmallVec<[Fetch; 1]>,
    fetch_count: u32,
    /// The R2TSN of the next R2T, and so the number of R2Ts sent.
    r2t_sn: R2tSn,
    /// R2Ts that recovery R2Ts replaced: Data-Out that answers them is ignored.
    superseded: SmallVec<[IssuedR2t; 0]>,
    /// The tags of the first and of the last R2T so far. Tags between them may belong to other tasks.
    issued_tags: Option<(Ttt, Ttt)>,
    /// Whether the initiator has sent, or announced, unsolicited data.
    has_unsolicited: bool,
    /// Whether it waits for the memory quota.
    waits_for_quota: bool,
}

/// How many superseded R2Ts a task remembers, in case the initiator asks for them in a SNACK. 512 take 12
/// KiB.
const MAX_SUPERSEDED: usize = 512;

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

/// The next step of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchStep {
    /// Its data is complete.
    Deliver,
    /// It needs so many bytes of the memory quota before R2Ts may ask for its data.
    Reserve(usize),
    /// R2Ts must ask for the rest of its data.
    Request,
    /// All of its data is asked for or was announced.
    AwaitData,
    /// It lost its memory, and data that was asked for is still to come.
    AwaitRevoked,
}

/// What limits the R2Ts of a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct R2tLimits {
    /// How many may be open.
    pub(crate) open_max: usize,
    /// For how many bytes one may ask.
    pub(crate) len_max: u32,
    /// Whether the unsolicited data must be complete before the first.
    pub(crate) one_at_a_time: bool,
}

/// The result of [`DataOutTransfer::add_r2t`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum R2tStep {
    /// All data of the fetch is asked for.
    AllRequested,
    /// Other sequences must end first.
    MustWait,
    /// An R2T was added, and must be sent.
    Added,
}

/// What becomes of a sequence that ended.
#[derive(Debug)]
pub(crate) enum Completion {
    /// Its data is stored for the fetches; so much memory is free again.
    Stored(Freed),
    /// The task ended before. This was the buffer.
    Discarded(Option<Buf>),
    /// There is no such sequence, or fewer bytes are here than were counted.
    Impossible,
}

/// A range of the data that the layer above fetches.
#[derive(Debug)]
struct Fetch {
    id: u32,
    start: u32,
    end: u32,
    /// The end of the part that is asked for by R2Ts, or that is sent unsolicited.
    requested_until: u32,
    /// Whether its first part is unsolicited data that is not completely received.
    awaits_unsolicited: bool,
    /// Bytes of the memory quota that it takes; `None` until they are reserved.
    reserved: Option<usize>,
    /// How many bytes were revoked because its data was not received in time.
    revoked: Option<usize>,
    /// How many of its bytes exceed the quota because its data was received after the memory was revoked.
    overdraft: usize,
    parts: SmallVec<[Option<Bytes>; 2]>,
}

impl Fetch {
    fn is_complete(&self) -> bool {
        self.requested_until == self.end && self.parts.iter().all(Option::is_some)
    }

    /// Withdraws its R2Ts that were not sent, which are its last ones. Returns whether others of it were
    /// sent.
    fn withdraw(&mut self, runs: &mut SmallVec<[Sequence; 1]>) -> bool {
        let own = |sequence: &Sequence| sequence.fetch_part().fetch == self.id;
        let is_requested = runs.iter().any(|sequence| own(sequence) && sequence.was_requested());
        let unrequested = runs.iter().filter(|sequence| own(sequence) && !sequence.was_requested());
        if let Some((part, start)) =
            unrequested.map(|sequence| (sequence.fetch_part().index, sequence.start())).min()
        {
            runs.retain(|sequence| sequence.fetch_part().fetch != self.id || sequence.was_requested());
            self.parts.truncate(part);
            self.requested_until = start;
        }
        is_requested
    }

    fn into_data(self) -> DataList {
        let mut data = DataList::new();
        for part in self.parts.into_iter().flatten().filter(|part| !part.is_empty()) {
            data.push(part);
        }
        data
    }
}

impl DataOutTransfer {
    /// Stores immediate data that is all of the command's unsolicited data and takes `reserved` bytes of the
    /// memory quota.
    pub(crate) fn store_immediate_data(&mut self, data: Bytes, reserved: usize) {
        self.has_unsolicited = true;
        self.reserved = reserved;
        self.unsolicited_data = Some(data);
    }

    /// Expects unsolicited data for which `reserved` bytes of the memory quota are taken already.
    pub(crate) fn expect_unsolicited(&mut self, sequence: Sequence, reserved: usize) {
        self.has_unsolicited = true;
        self.reserved = reserved;
        self.unsolicited = Some(sequence);
    }

    /// Returns a share of the unsolicited data, or nothing before it is complete.
    pub(crate) fn unsolicited_data(&self) -> Option<Bytes> {
        self.unsolicited_data.clone()
    }

    /// Adds a fetch of the bytes `start..end`, behind the others.
    pub(crate) fn add_fetch(&mut self, start: u32, end: u32) {
        let id = self.fetch_count;
        self.fetch_count = id.wrapping_add(1);
        let mut fetch = Fetch {
            id,
            start,
            end,
            requested_until: start,
            awaits_unsolicited: false,
            reserved: None,
            revoked: None,
            overdraft: 0,
            parts: SmallVec::new(),
        };
        let here = self.unsolicited_end();
        if start < here {
            fetch.requested_until = end.min(here);
            // The unsolicited part is the first one, whether already received or not.
            let early = self.unsolicited_data.as_ref();
            fetch
                .parts
                .push(early.map(|early| early.slice(to_usize(start), to_usize(fetch.requested_until))));
            fetch.awaits_unsolicited = early.is_none();
        }
        self.fetches.push(fetch);
    }

    /// Returns the next step of the fetch at this index, or `None` behind the last fetch.
    pub(crate) fn next_step(&self, at: usize) -> Option<FetchStep> {
        let fetch = self.fetches.get(at)?;
        Some(if fetch.is_complete() {
            FetchStep::Deliver
        } else if fetch.reserved.is_none() {
            FetchStep::Reserve(to_usize(fetch.end - fetch.requested_until))
        } else if fetch.requested_until == fetch.end {
            FetchStep::AwaitData
        } else if fetch.revoked.is_some() {
            // No further R2T is sent while data that was asked for has no memory.
            FetchStep::AwaitRevoked
        } else {
            FetchStep::Request
        })
    }

    /// Records that `len` bytes are reserved for the fetch at this index.
    pub(crate) fn record_reservation(&mut self, at: usize, len: usize) {
        if let Some(fetch) = self.fetches.get_mut(at) {
            fetch.reserved = Some(len);
        }
    }

    /// Records that the task waits for the memory quota, and returns whether it did so before.
    pub(crate) const fn wait_for_quota(&mut self) -> bool {
        mem::replace(&mut self.waits_for_quota, true)
    }

    /// Records that the task does not wait for the memory quota any more.
    pub(crate) const fn end_quota_wait(&mut self) {
        self.waits_for_quota = false;
    }

    /// Adds the next R2T of the fetch at this index, if one is missing and may be sent now.
    pub(crate) fn add_r2t(&mut self, at: usize, ttt: Ttt, limits: &R2tLimits) -> R2tStep {
        let Some(fetch) = self.fetches.get_mut(at).filter(|fetch| fetch.requested_until < fetch.end) else {
            return R2tStep::AllRequested;
        };
        let early_first = limits.one_at_a_time && self.unsolicited.is_some();
        if self.solicited.len() >= limits.open_max || early_first {
            return R2tStep::MustWait;
        }
        //= rfc7143#section-11.8
        //# If DataSequenceInOrder is Yes, then consecutive R2Ts MUST refer to continuous non-overlapping
        //# ranges, except for Recovery-R2Ts.
        //= rfc7143#section-11.8.4
        //# The Desired Data Transfer Length MUST NOT be 0 and MUST NOT exceed MaxBurstLength.
        let len = (fetch.end - fetch.requested_until).min(limits.len_max);
        let part = FetchPart { fetch: fetch.id, index: fetch.parts.len() };
        self.solicited.push(Sequence::solicited(ttt, fetch.requested_until, len, part));
        fetch.parts.push(None);
        fetch.requested_until += len;
        self.record_tag(ttt);
        R2tStep::Added
    }

    /// Removes the complete fetch at this index. Returns its offset, its data, and the memory that it frees.
    pub(crate) fn take_fetch(&mut self, at: usize) -> (u32, DataList, Freed) {
        let fetch = self.fetches.remove(at);
        let revoked = u32::from(fetch.revoked.is_some());
        let solicited = fetch.reserved.unwrap_or(0);
        let mut freed = Freed { solicited, unsolicited: 0, revoked, overdraft: fetch.overdraft };
        if self.unsolicited_data.is_some() && fetch.end >= self.unsolicited_end() {
            freed.unsolicited = mem::take(&mut self.reserved);
        }
        (fetch.start, fetch.into_data(), freed)
    }

    /// Records that the memory quota gave `len` bytes for the unsolicited data.
    pub(crate) const fn record_unsolicited_reservation(&mut self, len: usize) {
        self.reserved += len;
    }

    /// Ends the sequence of unsolicited data, and returns what becomes of it. Without `is_wanted`, the task
    /// has ended and its data is discarded.
    pub(crate) fn complete_unsolicited(&mut self, is_wanted: bool, pool: &Pool) -> Completion {
        let Some(mut sequence) = self.unsolicited.take() else { return Completion::Impossible };
        if !is_wanted {
            return Completion::Discarded(sequence.take_buffer());
        }
        // Otherwise bytes would be delivered that were never received.
        let Some(early) = sequence.into_received(pool) else { return Completion::Impossible };
        let len = to_u32(early.len());
        let mut freed = Freed::default();
        for fetch in self.fetches.iter_mut().filter(|fetch| fetch.awaits_unsolicited) {
            fetch.awaits_unsolicited = false;
            if len < fetch.requested_until && fetch.parts.len() == 1 {
                // The initiator sent less unsolicited data than it could have. R2Ts ask for the rest, which
                // needs memory of its own.
                fetch.requested_until = len.max(fetch.start);
                freed.solicited += fetch.reserved.take().unwrap_or(0);
                freed.revoked += u32::from(fetch.revoked.take().is_some());
                freed.overdraft += mem::take(&mut fetch.overdraft);
            }
            if let Some(first) = fetch.parts.first_mut() {
                *first = Some(early.slice(to_usize(fetch.start), to_usize(fetch.end.min(len))));
            }
        }
        self.unsolicited_data = Some(early);
        Completion::Stored(freed)
    }

    /// As [`Self::complete_unsolicited`], for the answer to an R2T.
    pub(crate) fn complete_solicited(&mut self, ttt: Ttt, is_wanted: bool) -> Completion {
        let Some(at) = self.solicited.iter().position(|sequence| sequence.ttt() == ttt) else {
            return Completion::Impossible;
        };
        let mut sequence = self.solicited.remove(at);
        if !is_wanted {
            return Completion::Discarded(sequence.take_buffer());
        }
        if sequence.is_buffer_short() && !fault_injection::is_injected(Bug::CountWithoutBuffer) {
            // Otherwise bytes would be delivered that were never received.
            return Completion::Impossible;
        }
        let FetchPart { fetch, index } = sequence.fetch_part();
        let fetch = self.fetches.iter_mut().find(|other| other.id == fetch);
        if let (Some(part), Some(buf)) =
            (fetch.and_then(|fetch| fetch.parts.get_mut(index)), sequence.take_buffer())
        {
            *part = Some(buf.freeze());
        }
        Completion::Stored(Freed::default())
    }

    /// Returns how many bytes were revoked from the fetch that an R2T belongs to.
    pub(crate) fn revoked_from(&mut self, ttt: Ttt) -> Option<usize> {
        self.fetch_of(ttt)?.revoked
    }

    /// Records that the memory revoked from the fetch of an R2T is reserved again, `overdraft` bytes of it
    /// beyond the quota.
    pub(crate) fn restore_revoked(&mut self, ttt: Ttt, overdraft: usize) {
        if let Some(fetch) = self.fetch_of(ttt) {
            (fetch.reserved, fetch.revoked) = (fetch.revoked, None);
            fetch.overdraft = overdraft;
        }
    }

    fn fetch_of(&mut self, ttt: Ttt) -> Option<&mut Fetch> {
        let id = self.select(ttt).filter(|sequence| !sequence.is_unsolicited())?.fetch_part().fetch;
        self.fetches.iter_mut().find(|fetch| fetch.id == id)
    }

    /// Returns the number of the next R2T and advances it.
    pub(crate) const fn use_r2t_sn(&mut self) -> R2tSn {
        let sn = self.r2t_sn;
        self.r2t_sn = sn.next();
        sn
    }

    /// Sets the number of the next R2T.
    #[cfg(test)]
    pub(crate) const fn set_next_r2t_sn(&mut self, sn: R2tSn) {
        self.r2t_sn = sn;
    }

    /// Returns how many R2Ts were sent.
    pub(crate) const fn r2ts_sent(&self) -> u32 {
        self.r2t_sn.0
    }

    /// Returns whether the layer above waits for data.
    pub(crate) fn has_fetches(&self) -> bool {
        !self.fetches.is_empty()
    }

    /// Returns whether a fetch holds memory.
    pub(crate) fn has_reserved_fetch(&self) -> bool {
        self.fetches.iter().any(|fetch| fetch.reserved.is_some_and(|need| need > 0))
    }

    /// Returns whether R2Ts are open or wait to be sent.
    pub(crate) fn has_r2ts(&self) -> bool {
        !self.solicited.is_empty()
    }

    /// Returns whether unsolicited data is still being received.
    pub(crate) const fn awaits_unsolicited(&self) -> bool {
        self.unsolicited.is_some()
    }

    /// Returns the sequences that the initiator is to send.
    pub(crate) fn expected(&self) -> impl Iterator<Item = &Sequence> {
        self.unsolicited.iter().chain(&self.solicited).filter(|sequence| sequence.is_announced())
    }

    /// Returns the first R2T in this run of numbers that is open, or that a recovery R2T replaced.
    pub(crate) fn first_r2t(&self, from: u32, count: u32) -> Option<IssuedR2t> {
        let early = self.unsolicited.iter().filter(|sequence| sequence.ttt() != Ttt::NONE);
        let open = self.solicited.iter().chain(early).filter(|sequence| sequence.is_announced());
        let former = self.superseded.iter().filter(|former| former.ttt != Ttt::NONE).copied();
        let from = R2tSn(from);
        open.map(Sequence::as_issued)
            .chain(former)
            .filter(|r2t| from.distance_to(r2t.r2t_sn) < count)
            .min_by_key(|r2t| from.distance_to(r2t.r2t_sn))
    }

    /// Returns the end of the unsolicited data.
    fn unsolicited_end(&self) -> u32 {
        match (&self.unsolicited, &self.unsolicited_data) {
            (Some(sequence), _) => sequence.end(),
            (None, Some(early)) => u32::try_from(early.len()).unwrap_or(u32::MAX),
            (None, None) => 0,
        }
    }

    /// Finds the sequence that a Data-Out with this tag belongs to.
    pub(crate) fn select(&mut self, ttt: Ttt) -> Option<&mut Sequence> {
        let early =
            self.unsolicited.as_mut().filter(|sequence| sequence.is_announced() && sequence.ttt() == ttt);
        early.or_else(|| {
            self.solicited.iter_mut().find(|sequence| sequence.is_announced() && sequence.ttt() == ttt)
        })
    }

    /// Drops a sequence whose end is not awaited any more.
    pub(crate) fn drop_sequence(&mut self, ttt: Ttt, pool: &Pool) {
        let early = self.unsolicited.take_if(|sequence| sequence.ttt() == ttt);
        let at = self.solicited.iter().position(|sequence| sequence.ttt() == ttt);
        let sequence = early.or_else(|| at.map(|at| self.solicited.remove(at)));
        if let Some(buf) = sequence.and_then(|mut sequence| sequence.take_buffer()) {
            pool.recycle_buf(buf);
        }
    }

    /// Returns every sequence.
    pub(crate) fn sequences_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.unsolicited.iter_mut().chain(&mut self.solicited)
    }

    /// Remembers an R2T that was replaced, so that its Data-Out is ignored.
    pub(crate) fn record_superseded(&mut self, superseded: IssuedR2t) {
        if self.superseded.len() >= MAX_SUPERSEDED {
            self.superseded.remove(0);
        }
        self.superseded.push(superseded);
    }

    /// Records the tag of a new R2T.
    pub(crate) fn record_tag(&mut self, ttt: Ttt) {
        let first = self.issued_tags.map_or(ttt, |(first, _)| first);
        self.issued_tags = Some((first, ttt));
    }

    /// Returns whether a Data-Out with this tag belongs to a sequence that is over: the sequence was lost and
    /// asked for again, or it is completely received.
    ///
    /// A tag of another task that lies between those of this task counts as one of a sequence that is over.
    pub(crate) fn is_over(&self, ttt: Ttt) -> bool {
        if self.unsolicited.iter().chain(&self.solicited).any(|sequence| sequence.ttt() == ttt) {
            return false;
        }
        let is_between =
            |(first, last): (Ttt, Ttt)| ttt.0.wrapping_sub(first.0) <= last.0.wrapping_sub(first.0);
        if ttt == Ttt::NONE { self.has_unsolicited } else { self.issued_tags.is_some_and(is_between) }
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
                || self
                    .solicited
                    .iter()
                    .any(|sequence| sequence.fetch_part().fetch == fetch.id && sequence.has_memory());
            let may = !has_some && fetch.revoked.is_none();
            let Some(need) = fetch.reserved.filter(|need| *need > 0 && may) else { continue };
            let is_requested = fetch.withdraw(&mut self.solicited);
            (fetch.reserved, fetch.revoked) = if is_requested { (Some(0), Some(need)) } else { (None, None) };
            freed.solicited += need;
            freed.revoked += u32::from(is_requested);
            freed.overdraft += mem::take(&mut fetch.overdraft);
        }
        freed
    }

    /// Withdraws the R2Ts of a task without a connection, except those of fetches of which data was received:
    /// data can be received only for R2Ts that are issued after the reassignment of the task. Returns the
    /// memory that becomes free.
    pub(crate) fn withdraw(&mut self) -> Freed {
        let early_end = self.unsolicited_end();
        let (mut freed, mut superseded) = (Freed::default(), SmallVec::<[IssuedR2t; 4]>::new());
        for fetch in self.fetches.iter_mut().filter(|fetch| fetch.reserved.is_some()) {
            let early = usize::from(fetch.start < early_end);
            let own = |sequence: &&mut Sequence| {
                sequence.fetch_part().fetch == fetch.id && !sequence.is_unsolicited()
            };
            let has_some = fetch.parts.iter().skip(early).any(Option::is_some)
                || self.solicited.iter_mut().filter(own).any(|sequence| sequence.has_memory());
            if has_some {
                continue;
            }
            superseded
                .extend(self.solicited.iter_mut().filter(own).filter_map(|sequence| sequence.withdraw_r2t()));
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
        self.unsolicited.is_some() || self.solicited.iter().any(|sequence| sequence.is_announced())
    }

    /// Returns whether nothing was fetched and nothing received, as for every command without Data-Out.
    const fn is_unused(&self) -> bool {
        self.fetch_count == 0 && !self.has_unsolicited
    }

    /// Discards all data and all fetches, but keeps the sequences that the initiator still has to end.
    /// Returns nothing if there was no Data-Out.
    pub(crate) fn stop(&mut self, pool: &Pool) -> Option<Freed> {
        if self.is_unused() { None } else { Some(self.discard(pool)) }
    }

    fn discard(&mut self, pool: &Pool) -> Freed {
        self.solicited.retain(|sequence| sequence.is_announced());
        self.unsolicited.take_if(|sequence| !sequence.is_announced());
        for sequence in self.solicited.iter_mut().chain(&mut self.unsolicited) {
            if let Some(buf) = sequence.take_buffer() {
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
