//! The run itself: it chooses and sends operations, and judges their results.

mod awaited;
mod clear;
mod compare;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use base::buffer::{Buf, DataList};
use base::rng::Rng;
use base::units::{Blocks, Lba};
use oracle::block_header::{BlockHeader, DeviceId, Sequence, WriterId};
use oracle::history::{Change, ChangeResult, FlushId, History, OpId, Planned, ReadId};
use oracle::journal::{Entry, JournalEvent};
use oracle::pattern::Pattern;
use store::api::{Durability, Failure, Fault, OpAction, OpOutput};
use store::shared::SharedStore;

use self::awaited::{Awaited, Completion, OpResult};
use self::clear::ClearMethod;
use super::journal::{Journal, JournalHeader};
use super::plan::{RunError, UnitRange, Until, VerifyPlan, Work, wide};
use super::report::{Progress, Stage, VerifyReport};
use super::{Control, PROGRESS_INTERVAL, Stopwatch, low_half};

/// In a pass over the whole range, each 16th write is followed by operations on ranges that are done: a
/// second write, a read and a COMPARE AND WRITE.
const AGAIN_EVERY: u64 = 16;

/// One write in 8 asks for stable storage (FUA), and one flush follows 64 writes.
const STABLE_EVERY: u64 = 8;
const FLUSH_EVERY: u64 = 64;

/// In random work, one change in 8 writes zeros or deallocates. In a pass over the whole range, one such
/// change follows every 8th write, on a range that the pass has not written yet.
const CLEAR_EVERY: u64 = 8;

/// In random work, one change in 8 is a COMPARE AND WRITE.
const COMPARE_EVERY: u64 = 8;

/// An operation under way.
#[derive(Debug)]
enum InFlight {
    Write {
        op: OpId,
        span: UnitRange,
    },
    /// The read-back of a write, or any other read.
    Read {
        read: ReadId,
        span: UnitRange,
        stage: Stage,
    },
    /// WRITE SAME with zeros, or UNMAP.
    Clear {
        op: OpId,
        span: UnitRange,
        how: ClearMethod,
    },
    /// The read that precedes a COMPARE AND WRITE. With `differs`, the run then sends a condition that must
    /// not hold.
    ReadForCompare {
        read: ReadId,
        span: UnitRange,
        differs: bool,
    },
    /// A COMPARE AND WRITE. `op` is `None` if the condition is false, so that the device must not write.
    Compare {
        op: Option<OpId>,
        span: UnitRange,
    },
    Flush {
        flush: FlushId,
        number: u64,
    },
}

/// A run in progress.
pub(super) struct Runner<'a> {
    disk: &'a dyn SharedStore,
    plan: &'a VerifyPlan,
    span: UnitRange,
    history: History,
    device: DeviceId,
    writer: WriterId,
    rng: Rng,
    journal: Option<Journal>,
    watch: &'a mut dyn FnMut(&Progress) -> Control,
    clock: Stopwatch,
    told: Duration,
    stopped: bool,
    sequence: u64,
    flushes: u64,
    next_key: u64,
    /// Whether WRITE SAME and UNMAP are still tried, and `compares` for COMPARE AND WRITE; false once the
    /// device reports them as unsupported.
    clears: [bool; 2],
    compares: bool,
    in_flight: BTreeMap<u64, InFlight>,
    /// Units with an operation under way, as ranges.
    busy: BTreeSet<UnitRange>,
    completions: Receiver<Completion>,
    end: Sender<Completion>,
    report: VerifyReport,
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        disk: &'a dyn SharedStore,
        plan: &'a VerifyPlan,
        span: UnitRange,
        history: History,
        (device, writer): (DeviceId, WriterId),
        rng: Rng,
        watch: &'a mut dyn FnMut(&Progress) -> Control,
    ) -> Self {
        let (end, ended) = channel();
        let report = VerifyReport { seed: plan.seed, unit: plan.unit, ..VerifyReport::default() };
        Self {
            disk,
            plan,
            span,
            history,
            device,
            writer,
            rng,
            journal: None,
            watch,
            clock: Stopwatch::start(),
            told: Duration::ZERO,
            stopped: false,
            sequence: 0,
            flushes: 0,
            next_key: 0,
            clears: [plan.zeroes, plan.zeroes && disk.capabilities().thin],
            compares: plan.compare,
            in_flight: BTreeMap::new(),
            busy: BTreeSet::new(),
            completions: ended,
            end,
            report,
        }
    }

    /// Writes a journal from now on.
    pub(super) fn keep(&mut self, mut journal: Journal) -> Result<(), RunError> {
        let unit = self.plan.unit;
        let head = JournalHeader {
            device: self.device,
            unit,
            from: self.span.first.saturating_mul(wide(unit)),
            len: self.span.count.saturating_mul(wide(unit)),
        };
        journal.begin(&head).map_err(RunError::Journal)?;
        self.journal = Some(journal);
        Ok(())
    }

    /// Writes as the plan says, reads each write back, and flushes at the end.
    pub(super) fn write(&mut self) -> Result<(), RunError> {
        if self.disk.capabilities().read_only {
            return Err(RunError::ReadOnly);
        }
        match self.plan.work {
            Work::Whole => self.write_whole()?,
            Work::Random(until) => self.write_random(until)?,
        }
        self.drain(Stage::Writing, None)?;
        if !self.stopped {
            self.flush()?;
            self.drain(Stage::Writing, None)?;
        }
        Ok(())
    }

    fn write_whole(&mut self) -> Result<(), RunError> {
        let chunk = self.chunk_max();
        let chunks = self.span.count.div_ceil(chunk);
        // A pseudorandom order of all chunks: steps of a size that is coprime to their number.
        let (start, step) = (self.rng.below(chunks), coprime(chunks, self.rng.below(chunks)));
        let total = self.span.count.saturating_mul(wide(self.plan.unit));
        for number in 0..chunks {
            let at = step_of(start, step, number, chunks);
            let span = self.part(at.saturating_mul(chunk), chunk);
            self.wait_for_slot(Stage::Writing, Some((self.report.written_bytes, total)))?;
            if self.stopped {
                return Ok(());
            }
            self.start_write(span)?;
            if number % CLEAR_EVERY == 0 && number + 1 < chunks {
                // Clear a range that was not written yet: the pass writes it later, so that every block ends
                // up signed.
                let ahead = number + 1 + self.rng.below(chunks - number - 1);
                let ahead = step_of(start, step, ahead, chunks);
                self.try_clear(self.part(ahead.saturating_mul(chunk), chunk))?;
            }
            if number % AGAIN_EVERY == AGAIN_EVERY - 1 {
                let done = step_of(start, step, self.rng.below(number), chunks);
                let again = self.part(done.saturating_mul(chunk), chunk);
                let reread = step_of(start, step, self.rng.below(number), chunks);
                let reread = self.part(reread.saturating_mul(chunk), chunk);
                let depends = step_of(start, step, self.rng.below(number), chunks);
                let depends = self.part(depends.saturating_mul(chunk), chunk);
                self.try_write(again)?;
                self.try_read(reread, Stage::Writing);
                self.try_compare(depends);
            }
        }
        Ok(())
    }

    fn write_random(&mut self, until: Until) -> Result<(), RunError> {
        let chunk = self.chunk_max();
        for drawn in 0.. {
            let (done, all) = until.progress(self.clock.elapsed(), drawn);
            self.wait_for_slot(Stage::Writing, Some((done, all)))?;
            if self.stopped || done >= all {
                break;
            }
            // A random power of two bounds the length, so that short operations are as frequent as long ones.
            let most = 1_u64 << self.rng.below(u64::from(chunk.ilog2()) + 1);
            let count = 1 + self.rng.below(most);
            let at = self.rng.below(self.span.count);
            let span = self.part(at, count);
            if self.rng.chance(1, 4) {
                self.try_read(span, Stage::Writing);
            } else if self.rng.chance(1, CLEAR_EVERY) {
                self.try_clear(span)?;
            } else if self.rng.chance(1, COMPARE_EVERY) {
                self.try_compare(span);
            } else {
                self.try_write(span)?;
            }
        }
        Ok(())
    }

    /// Reads and judges the whole range, or the ranges of `only`.
    pub(super) fn verify(&mut self, only: Option<&[UnitRange]>) -> Result<(), RunError> {
        let everything = [self.span];
        let spans = only.unwrap_or(&everything);
        let total = spans.iter().map(|span| span.count).sum::<u64>().saturating_mul(wide(self.plan.unit));
        self.report.range_bytes = total;
        let chunk = self.chunk_max();
        for span in spans {
            let mut first = span.first;
            while first < span.end() {
                let part = UnitRange { first, count: chunk.min(span.end() - first) };
                self.wait_for_slot(Stage::Verifying, Some((self.report.verified_bytes, total)))?;
                if self.stopped {
                    break;
                }
                self.start_read(part, Stage::Verifying);
                first = part.end();
            }
        }
        self.drain(Stage::Verifying, Some(total))?;
        self.report.complete = !self.stopped && self.report.verified_bytes == total;
        Ok(())
    }

    pub(super) fn into_report(mut self) -> VerifyReport {
        self.report.seconds = self.clock.elapsed().as_secs_f64();
        self.report
    }

    /// Returns the most units that one operation may have.
    fn chunk_max(&self) -> u64 {
        wide(self.plan.io_max.min(self.disk.capabilities().io_len_max) / self.plan.unit).max(1)
    }

    /// Returns at most `count` units, beginning with unit `at` of the range.
    fn part(&self, at: u64, count: u64) -> UnitRange {
        let at = at.min(self.span.count - 1);
        UnitRange { first: self.span.first + at, count: count.min(self.span.count - at) }
    }

    fn is_free(&self, span: UnitRange) -> bool {
        // Busy ranges do not overlap, so only the last one that begins before the end of `span` can overlap
        // it.
        let before = self.busy.range(..UnitRange { first: span.end(), count: 0 }).next_back();
        before.is_none_or(|other| other.end() <= span.first)
    }

    /// Writes a range, unless an operation is under way on it.
    fn try_write(&mut self, span: UnitRange) -> Result<(), RunError> {
        if self.is_free(span) { self.start_write(span) } else { Ok(()) }
    }

    fn try_read(&mut self, span: UnitRange, stage: Stage) {
        if self.is_free(span) {
            self.start_read(span, stage);
        }
    }

    fn start_write(&mut self, span: UnitRange) -> Result<(), RunError> {
        if !self.is_free(span) {
            self.wait_idle()?;
        }
        self.sequence += 1;
        let sequence = Sequence(self.sequence);
        let stable = self.sequence.is_multiple_of(STABLE_EVERY);
        let data = self.signed(span, sequence);
        let change = Change {
            device: self.device,
            lba: Lba(span.first),
            blocks: span.count,
            content: Planned::Signed(self.writer, sequence),
            stable,
            optional: false,
        };
        let op = self.history.submit(change);
        self.note(JournalEvent::Submit(op, change))?;
        let durability = if stable { Durability::Stable } else { Durability::Cached };
        self.submit(
            InFlight::Write { op, span },
            Some(span),
            OpAction::Write { at: self.at(span), data, durability },
        );
        if self.sequence.is_multiple_of(FLUSH_EVERY) {
            self.flush()?;
        }
        Ok(())
    }

    fn start_read(&mut self, span: UnitRange, stage: Stage) {
        let read = self.history.read_begin(self.device, Lba(span.first), span.count);
        let action = OpAction::Read { at: self.at(span), len: self.len_of(span) };
        self.submit(InFlight::Read { read, span, stage }, (stage == Stage::Writing).then_some(span), action);
    }

    fn flush(&mut self) -> Result<(), RunError> {
        self.flushes += 1;
        let number = self.flushes;
        let flush = self.history.flush_begin(self.device);
        self.note(JournalEvent::FlushBegin(number, self.device))?;
        self.submit(InFlight::Flush { flush, number }, None, OpAction::Flush);
        Ok(())
    }

    fn submit(&mut self, doing: InFlight, busy: Option<UnitRange>, action: OpAction) {
        let key = self.register(doing, busy);
        let awaited = self.awaited(key, false);
        self.disk.submit(action, Box::new(move |result| awaited.end(OpResult::Of(result))));
    }

    fn awaited(&self, key: u64, is_comparison: bool) -> Awaited {
        Awaited::new(key, self.end.clone(), is_comparison)
    }

    /// Registers an operation, and returns its key.
    fn register(&mut self, doing: InFlight, busy: Option<UnitRange>) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        self.in_flight.insert(key, doing);
        self.busy.extend(busy);
        key
    }

    fn at(&self, span: UnitRange) -> u64 {
        span.first.saturating_mul(wide(self.plan.unit))
    }

    fn len_of(&self, span: UnitRange) -> usize {
        usize::try_from(span.count).unwrap_or(usize::MAX).saturating_mul(self.plan.unit)
    }

    /// Builds the signed blocks of one write.
    fn signed(&mut self, span: UnitRange, sequence: Sequence) -> DataList {
        let len = self.len_of(span);
        let mut buf = Buf::with_capacity(len);
        buf.append_zeros(len);
        let (time_ns, seed) = (self.clock.nanos(), low_half(self.rng.next_u64()));
        let turn = usize::try_from(sequence.0).unwrap_or(0) % Pattern::ALL.len();
        let pattern = self.plan.pattern.or_else(|| Pattern::ALL.get(turn).copied()).unwrap_or_default();
        for (number, block) in (0..).zip(buf.filled_mut().chunks_mut(self.plan.unit)) {
            let lba = Lba(span.first).after(Blocks(number)).unwrap_or(Lba(u64::MAX));
            let generation = self.history.next_generation(self.device, lba);
            let block_header = BlockHeader {
                device: self.device,
                lba,
                generation,
                writer: self.writer,
                sequence,
                time_ns,
                seed,
                pattern,
            };
            // The plan was checked: the length of a unit is valid for a signed block.
            let _ = block_header.sign(block);
        }
        buf.freeze().into()
    }

    fn note(&mut self, what: JournalEvent) -> Result<(), RunError> {
        let time_ns = self.clock.nanos();
        let Some(journal) = &mut self.journal else { return Ok(()) };
        journal.note(&Entry { time_ns, what });
        match what {
            // The entry of a change must be written before the change is sent; the others may be written
            // later.
            JournalEvent::Submit(..) => journal.flush().map_err(RunError::Journal),
            _ => Ok(()),
        }
    }

    /// Waits until fewer than `depth` operations are under way.
    fn wait_for_slot(&mut self, stage: Stage, progress: Option<(u64, u64)>) -> Result<(), RunError> {
        self.handle_completions()?;
        self.tell(stage, progress);
        while self.in_flight.len() >= self.plan.depth.max(1) {
            self.wait(stage, progress)?;
        }
        Ok(())
    }

    /// Waits until no operation is under way, read-backs included, and flushes the journal.
    fn drain(&mut self, stage: Stage, total: Option<u64>) -> Result<(), RunError> {
        while !self.in_flight.is_empty() {
            let progress = total.map(|total| (self.report.verified_bytes, total));
            self.wait(stage, progress)?;
        }
        if let Some(journal) = &mut self.journal {
            journal.flush().map_err(RunError::Journal)?;
        }
        Ok(())
    }

    /// Waits until no operation is under way, in the middle of a run.
    fn wait_idle(&mut self) -> Result<(), RunError> {
        self.drain(Stage::Writing, None)
    }

    fn wait(&mut self, stage: Stage, progress: Option<(u64, u64)>) -> Result<(), RunError> {
        if let Ok(ended) = self.completions.recv_timeout(PROGRESS_INTERVAL) {
            self.handle_completion(ended)?;
        }
        self.handle_completions()?;
        self.tell(stage, progress);
        Ok(())
    }

    fn handle_completions(&mut self) -> Result<(), RunError> {
        while let Ok(ended) = self.completions.try_recv() {
            self.handle_completion(ended)?;
        }
        Ok(())
    }

    fn handle_completion(&mut self, (key, came): Completion) -> Result<(), RunError> {
        let Some(doing) = self.in_flight.remove(&key) else { return Ok(()) };
        match (doing, came) {
            (InFlight::Write { op, span }, OpResult::Of(result)) => self.written(op, span, result),
            (InFlight::Clear { op, span, how }, OpResult::Of(result)) => self.cleared(op, span, how, result),
            (InFlight::Read { read, span, stage }, OpResult::Of(result)) => {
                self.was_read(read, span, stage, result);
                Ok(())
            }
            (InFlight::ReadForCompare { read, span, differs }, OpResult::Of(result)) => {
                self.looked(read, span, differs, result)
            }
            (InFlight::Compare { op, span }, OpResult::OfComparison(result)) => {
                self.compared(op, span, result)
            }
            (InFlight::Flush { flush, number }, OpResult::Of(result)) => self.flushed(flush, number, result),
            // Every operation has a result of its own kind.
            (_, OpResult::Of(_) | OpResult::OfComparison(_)) => Ok(()),
        }
    }

    fn written(&mut self, op: OpId, span: UnitRange, out: Result<OpOutput, Failure>) -> Result<(), RunError> {
        self.busy.remove(&span);
        let end = match out {
            Ok(_) => {
                self.report.writes += 1;
                self.report.written_bytes += wide(self.len_of(span));
                ChangeResult::Done
            }
            Err(failure) => {
                self.fail("write", span, failure);
                end_of(failure)
            }
        };
        self.history.end_change(op, end);
        self.note(JournalEvent::End(op, end))?;
        if !self.stopped {
            self.start_read(span, Stage::Writing);
        }
        Ok(())
    }

    fn was_read(&mut self, read: ReadId, span: UnitRange, stage: Stage, result: Result<OpOutput, Failure>) {
        if stage == Stage::Writing {
            self.busy.remove(&span);
        }
        self.judge(read, span, stage, result);
    }

    /// Judges the data of a read, and returns it if no block was wrong.
    fn judge(
        &mut self,
        read: ReadId,
        span: UnitRange,
        stage: Stage,
        result: Result<OpOutput, Failure>,
    ) -> Option<Vec<u8>> {
        let len = self.len_of(span);
        let failure = match result {
            Ok(OpOutput::Data(data)) if data.len() == len => {
                self.report.reads += 1;
                match stage {
                    Stage::Writing => self.report.read_bytes += wide(len),
                    Stage::Verifying => self.report.verified_bytes += wide(len),
                }
                let mut whole = vec![0; len];
                data.copy_to(0, &mut whole);
                let findings = self.history.read_end(read, self.plan.unit, &whole);
                for finding in &findings {
                    self.report.found(finding);
                    self.stopped |= self.plan.stop_on_corruption;
                }
                return findings.is_empty().then_some(whole);
            }
            Ok(_) => Failure::from(Fault::Bug),
            Err(failure) => failure,
        };
        self.history.read_failed(read);
        self.fail("read", span, failure);
        None
    }

    fn flushed(
        &mut self,
        flush: FlushId,
        number: u64,
        result: Result<OpOutput, Failure>,
    ) -> Result<(), RunError> {
        match result {
            Ok(_) => {
                self.report.flushes += 1;
                self.history.flush_end(flush);
                self.note(JournalEvent::FlushEnd(number))
            }
            Err(failure) => {
                self.report.failed(format!("flush: {}", failure.fault));
                self.stopped |= self.report.errors > self.plan.errors_max;
                Ok(())
            }
        }
    }

    fn fail(&mut self, what: &str, span: UnitRange, failure: Failure) {
        let (at, len) = (self.at(span), self.len_of(span));
        let place = failure.at.map(|at| format!(" at byte {at}")).unwrap_or_default();
        self.report.failed(format!("{what} of {len} bytes at byte {at}: {}{place}", failure.fault));
        self.stopped |= self.report.errors > self.plan.errors_max;
    }

    fn tell(&mut self, stage: Stage, progress: Option<(u64, u64)>) {
        let elapsed = self.clock.elapsed();
        if elapsed < self.told + PROGRESS_INTERVAL {
            return;
        }
        self.told = elapsed;
        let (done, total) = progress.unwrap_or_default();
        let (wrong, errors) = (self.report.wrong.total(), self.report.errors);
        let progress = Progress { stage, done, total, elapsed, wrong, errors };
        self.stopped |= (self.watch)(&progress) == Control::Stop;
    }
}

/// Returns what a failure tells about the write. Only a response of the device proves that the write is over.
const fn end_of(failure: Failure) -> ChangeResult {
    match failure.fault {
        Fault::ReadOnly | Fault::OutOfRange | Fault::Unsupported | Fault::Bug | Fault::NotSubmitted => {
            ChangeResult::Refused
        }
        // A large write may have been several commands, of which the first ones were executed.
        Fault::NoSpace | Fault::Reserved | Fault::Forbidden | Fault::Busy | Fault::Aborted => {
            ChangeResult::Failed
        }
        Fault::Medium | Fault::Hardware | Fault::Gone => ChangeResult::Unknown,
    }
}

/// Returns the `number`-th of `count` positions in the pseudorandom order.
fn step_of(start: u64, step: u64, number: u64, count: u64) -> u64 {
    let at = u128::from(start) + u128::from(step) * u128::from(number);
    u64::try_from(at % u128::from(count.max(1))).unwrap_or(0)
}

/// Returns the first number from `near` on that is coprime to `count`.
fn coprime(count: u64, near: u64) -> u64 {
    (near.max(1)..).find(|step| gcd(*step, count) == 1).unwrap_or(1)
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
