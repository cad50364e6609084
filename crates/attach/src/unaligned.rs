//! A medium that takes requests of any alignment and length, over a medium that has logical blocks and a
//! longest transfer.
//!
//! A request that suits the medium passes unchanged. Any other request is cut into pieces. The blocks at its
//! ends are read, patched and written back while the range is locked exclusively (`range_lock`).
//!
//! Several clients can share the medium. The requests that a client leaves end before later requests to the
//! same blocks begin.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::buffer::{Bytes, DataList};
use store::api::{Capabilities, Durability, Extent, Failure, Fault, OpAction, OpOutput};
use store::shared::{Losses, OnComplete, SharedStore};

use crate::join::{data, finish, join_all, joined};
use crate::range_lock::{ClientGone, LockClient, RangeGuard, RangeLock};
use base::int_cast::{to_u64, to_usize};

/// A medium that is addressed in single bytes. Clones share the medium, and are the same client.
#[derive(Clone)]
pub struct UnalignedStore {
    store: Arc<dyn SharedStore>,
    gate: Arc<RangeLock>,
    client: Arc<LockClient>,
    is_changed: Arc<AtomicBool>,
    /// How many losses the flushes of this client have reported.
    reported: Arc<AtomicU64>,
    /// How many losses a flush of any client has reported.
    reported_to_any: Arc<AtomicU64>,
}

/// A range, and the logical blocks that it touches.
#[derive(Clone, Copy)]
struct Span {
    block_len: u64,
    at: u64,
    end: u64,
}

impl Span {
    /// Returns the start of its first block.
    fn low(self) -> u64 {
        self.at - self.at % self.block_len
    }

    /// Returns the end of its last block.
    fn high(self) -> u64 {
        self.end.div_ceil(self.block_len).saturating_mul(self.block_len)
    }

    /// Returns the start of the first block that the range covers whole, and the end of the last one. If it
    /// covers none, the start can lie beyond the end.
    fn whole(self) -> (u64, u64) {
        (
            self.at.div_ceil(self.block_len).saturating_mul(self.block_len),
            self.end - self.end % self.block_len,
        )
    }

    fn is_whole(self) -> bool {
        self.whole() == (self.at, self.end)
    }

    const fn len(self) -> u64 {
        self.end - self.at
    }
}

/// The new content of a range that is changed by read-modify-write.
enum Filling {
    Data(DataList),
    Zeros { may_deallocate: bool },
}

impl UnalignedStore {
    /// Accepts requests of any range for `store`.
    pub fn new(store: Arc<dyn SharedStore>) -> Self {
        Self {
            store,
            gate: Arc::default(),
            client: Arc::default(),
            is_changed: Arc::default(),
            reported: Arc::default(),
            reported_to_any: Arc::default(),
        }
    }

    /// Returns the medium for one more client. Its first flush reports losses that no flush has reported: the
    /// client may be one that has reconnected. Linux does so for files (errseq_t).
    pub(crate) fn for_new_client(&self) -> Self {
        let reported = AtomicU64::new(self.reported_to_any.load(Ordering::Acquire));
        Self { client: Arc::default(), reported: Arc::new(reported), ..self.clone() }
    }

    /// Flushes the medium. Fails if it has lost acknowledged changes since the last flush of this client. The
    /// medium itself reports each loss once, to the client whose flush comes first.
    fn flush(&self, done: OnComplete) {
        let Self { store, reported, reported_to_any, .. } = self.clone();
        let flushed = move |result: Result<OpOutput, Failure>| {
            let Losses { count, last } = store.losses();
            let known = reported.fetch_max(count, Ordering::AcqRel);
            reported_to_any.fetch_max(count, Ordering::AcqRel);
            done(match (result, last) {
                (Ok(_), Some(failure)) if count > known => Err(failure),
                (result, _) => result,
            });
        };
        self.store.submit(OpAction::Flush, Box::new(flushed));
    }

    /// Records that the client has gone. Its changes that have not begun fail. Reads and changes of others
    /// that come from now on wait for those of its changes that they overlap.
    pub(crate) fn abandon(&self) {
        self.gate.abandon(&self.client);
    }

    /// Returns whether the client has gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.client.is_gone()
    }

    /// Returns whether anything was written.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed.load(Ordering::Acquire)
    }

    /// Executes an operation that changes nothing.
    fn look(&self, span: Span, action: OpAction, io_len_max: u64, done: OnComplete) {
        match action {
            OpAction::MapStatus { count_max, .. } => self.extents(span, count_max, done),
            OpAction::Read { .. } if !span.is_whole() || span.len() > io_len_max => {
                self.read(span, io_len_max, done);
            }
            _ => self.store.submit(action, done),
        }
    }

    fn read(&self, span: Span, io_len_max: u64, done: OnComplete) {
        let reads = pieces(span.low(), span.high(), io_len_max)
            .map(|(at, len)| OpAction::Read { at, len: to_usize(len) })
            .collect();
        let skip = to_usize(span.at - span.low());
        let len = to_usize(span.len());
        let gathered = move |parts: Result<Vec<OpOutput>, Failure>| {
            let whole = parts.map(|parts| joined(parts.into_iter().map(data)));
            done(whole.map(|whole| OpOutput::Data(whole.slice(skip, skip.saturating_add(len)))));
        };
        join_all(on(&self.store, reads), Box::new(gathered));
    }

    /// Submits a change to the medium once its range is locked.
    fn change(&self, span: Span, action: OpAction, done: OnComplete) {
        let store = Arc::clone(&self.store);
        self.locked(span, false, done, move |done| store.submit(action, done));
    }

    fn write_long(
        &self,
        span: Span,
        data: DataList,
        durability: Durability,
        io_len_max: u64,
        done: OnComplete,
    ) {
        let writes = writes(span.at, &data, durability, io_len_max);
        let store = Arc::clone(&self.store);
        self.locked(span, false, done, move |done| join_all(on(&store, writes), finish(done)));
    }

    /// Changes a range whose ends lie inside blocks: locks the range exclusively, reads those blocks, and
    /// writes them back.
    fn patch(&self, span: Span, filling: Filling, durability: Durability, io_len_max: u64, done: OnComplete) {
        let store = Arc::clone(&self.store);
        self.locked(span, true, done, move |done| {
            let (low, high, granule) = (span.low(), span.high(), span.block_len);
            let one = |at| OpAction::Read { at, len: to_usize(granule) };
            let mut edges = Vec::new();
            if span.at > low {
                edges.push(one(low));
            }
            if span.end < high && (edges.is_empty() || high - granule > low) {
                edges.push(one(high - granule));
            }
            let again = Arc::clone(&store);
            let read = move |parts: Result<Vec<OpOutput>, Failure>| match parts {
                Err(failure) => done(Err(failure)),
                Ok(parts) => {
                    let parts: Vec<DataList> = parts.into_iter().map(data).collect();
                    let head = if span.at > low { parts.first() } else { None }
                        .map(|block| block.slice(0, to_usize(span.at - low)))
                        .unwrap_or_default();
                    let tail = if span.end < high { parts.last() } else { None }
                        .map(|block| block.slice(to_usize(span.end - (high - granule)), to_usize(granule)))
                        .unwrap_or_default();
                    let actions = patched(span, filling, head, tail, durability, io_len_max);
                    join_all(on(&again, actions), finish(done));
                }
            };
            join_all(on(&store, edges), Box::new(read));
        });
    }

    /// Runs `change` once the blocks of `span` are locked, with a callback that unlocks them and passes the
    /// result to `done`.
    fn locked(
        &self,
        span: Span,
        alone: bool,
        done: OnComplete,
        change: impl FnOnce(OnComplete) + Send + 'static,
    ) {
        let entrant = move |pass: Result<RangeGuard, ClientGone>| match pass {
            Ok(pass) => change(after(pass, done)),
            Err(ClientGone) => done(Err(Fault::NotSubmitted.into())),
        };
        self.gate.acquire(&self.client, span.low()..span.high(), alone, Box::new(entrant));
    }

    fn extents(&self, span: Span, count_max: usize, done: OnComplete) {
        let action = OpAction::MapStatus { at: span.low(), len: span.high() - span.low(), count_max };
        let clip = move |extent: &Extent| {
            let start = extent.at.max(span.at);
            let end = extent.at.saturating_add(extent.len).min(span.end);
            (start < end).then(|| Extent { at: start, len: end - start, state: extent.state })
        };
        let clipped = move |result: Result<OpOutput, Failure>| {
            done(result.map(|outcome| match outcome {
                OpOutput::MapStatus(list) => OpOutput::MapStatus(list.iter().filter_map(clip).collect()),
                other => other,
            }));
        };
        self.store.submit(action, Box::new(clipped));
    }
}

impl SharedStore for UnalignedStore {
    /// Returns the capabilities of the medium, without the partial block at its end. Here the logical block
    /// length is a preference, not a requirement.
    fn capabilities(&self) -> Capabilities {
        let mut profile = self.store.capabilities();
        profile.logical_block_len = profile.logical_block_len.max(1);
        profile.len -= profile.len % u64::from(profile.logical_block_len);
        profile
    }

    fn losses(&self) -> Losses {
        self.store.losses()
    }

    fn submit(&self, action: OpAction, done: OnComplete) {
        let profile = self.capabilities();
        let (at, len) = action.range();
        let Some(end) = at.checked_add(len).filter(|end| *end <= profile.len) else {
            return done(Err(Failure { fault: Fault::OutOfRange, at: Some(at) }));
        };
        let span = Span { block_len: profile.logical_block_len.into(), at, end };
        if matches!(
            action,
            OpAction::Write { .. } | OpAction::WriteZeroes { .. } | OpAction::Deallocate { .. }
        ) {
            self.is_changed.store(true, Ordering::Release);
        }
        let granule = to_usize(span.block_len);
        let io_len_max = to_u64((profile.io_len_max - profile.io_len_max % granule).max(granule));
        match action {
            OpAction::Flush => self.flush(done),
            OpAction::CryptoErase | OpAction::Command(_) | OpAction::Reset => self.store.submit(action, done),
            _ if len == 0 => done(Ok(nothing(&action))),
            OpAction::Read { .. } | OpAction::MapStatus { .. } if self.gate.has_orphans() => {
                let disk = self.clone();
                let reader = Box::new(move || disk.look(span, action, io_len_max, done));
                self.gate.read_after_orphans(span.low()..span.high(), reader);
            }
            OpAction::Read { .. } | OpAction::MapStatus { .. } => self.look(span, action, io_len_max, done),
            OpAction::Write { data, durability, .. } if !span.is_whole() => {
                self.patch(span, Filling::Data(data), durability, io_len_max, done);
            }
            OpAction::Write { data, durability, .. } if len > io_len_max => {
                self.write_long(span, data, durability, io_len_max, done);
            }
            OpAction::WriteZeroes { may_deallocate, durability, .. } if !span.is_whole() => {
                self.patch(span, Filling::Zeros { may_deallocate }, durability, io_len_max, done);
            }
            OpAction::Write { .. } | OpAction::WriteZeroes { .. } => self.change(span, action, done),
            // Deallocating is a hint: blocks that it covers only in part stay.
            OpAction::Deallocate { .. } => match span.whole() {
                (at, end) if at < end => {
                    self.change(span, OpAction::Deallocate { at, len: end - at }, done);
                }
                _ => done(Ok(nothing(&action))),
            },
        }
    }
}

/// Returns the result of an operation on no bytes.
fn nothing(action: &OpAction) -> OpOutput {
    match action {
        OpAction::Read { .. } => OpOutput::Data(DataList::new()),
        OpAction::MapStatus { .. } => OpOutput::MapStatus(Vec::new()),
        _ => OpOutput::Done(DataList::new()),
    }
}

/// Returns the operations that write `filling` between `head` and `tail`.
fn patched(
    span: Span,
    filling: Filling,
    head: DataList,
    tail: DataList,
    durability: Durability,
    io_len_max: u64,
) -> Vec<OpAction> {
    let (middle_at, middle_end) = span.whole();
    match filling {
        Filling::Zeros { may_deallocate } if middle_at < middle_end => {
            let mut actions = Vec::new();
            if !head.is_empty() {
                let data = joined([head, zeros(middle_at - span.at)]);
                actions.push(OpAction::Write { at: span.low(), data, durability });
            }
            let len = middle_end - middle_at;
            actions.push(OpAction::WriteZeroes { at: middle_at, len, may_deallocate, durability });
            if !tail.is_empty() {
                let data = joined([zeros(span.end - middle_end), tail]);
                actions.push(OpAction::Write { at: middle_end, data, durability });
            }
            actions
        }
        Filling::Zeros { .. } => {
            writes(span.low(), &joined([head, zeros(span.len()), tail]), durability, io_len_max)
        }
        Filling::Data(data) => writes(span.low(), &joined([head, data, tail]), durability, io_len_max),
    }
}

/// Cuts a write into writes of a length that the medium takes.
fn writes(at: u64, data: &DataList, durability: Durability, io_len_max: u64) -> Vec<OpAction> {
    let end = at.saturating_add(to_u64(data.len()));
    pieces(at, end, io_len_max)
        .map(|(start, len)| {
            let from = to_usize(start - at);
            let data = data.slice(from, from.saturating_add(to_usize(len)));
            OpAction::Write { at: start, data, durability }
        })
        .collect()
}

/// Cuts `at..end` into pieces of at most `len_max` bytes. Returns the start and length of each.
fn pieces(at: u64, end: u64, len_max: u64) -> impl Iterator<Item = (u64, u64)> {
    let starts = std::iter::successors(Some(at), move |start| start.checked_add(len_max));
    starts.take_while(move |start| *start < end).map(move |start| (start, len_max.min(end - start)))
}

/// Returns zeros, less than two blocks of them.
fn zeros(len: u64) -> DataList {
    Bytes::copied_from(&vec![0; to_usize(len)]).into()
}

/// Returns operations that all run on one medium.
fn on(
    store: &Arc<dyn SharedStore>,
    actions: Vec<OpAction>,
) -> impl ExactSizeIterator<Item = (Arc<dyn SharedStore>, OpAction)> {
    actions.into_iter().map(|action| (Arc::clone(store), action))
}

/// Returns a callback that releases the range lock before it passes the result on.
fn after(pass: RangeGuard, done: OnComplete) -> OnComplete {
    Box::new(move |result| {
        drop(pass);
        done(result);
    })
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]
mod tests;
