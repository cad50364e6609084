//! The state machine of an operation on the whole medium: SANITIZE or FORMAT UNIT. It decides what is done
//! next; `sbc::sanitize` does it with the medium, the saved state and the waiting command.

mod journal;

use alloc::vec::Vec;

use base::buffer::Bytes;
use base::time::{Duration, Instant};
use scsi::sense::{Asc, Sense, SenseKey, SenseKeySpecific};
use serde::{Deserialize, Serialize};
use store::api::{Durability, OpAction};

use crate::task::TaskId;

pub(crate) use journal::SanitizeJournal;

/// How fast blocks are overwritten: about as fast as one disk writes, and slowly enough that the thread,
/// which also serves other units, does not become busy with it.
const BYTES_PER_SECOND: u64 = 128 << 20;

/// How many parts are in progress on the medium at a time.
const PARTS_UNDER_WAY: usize = 4;

/// The sense data after a failed sanitize operation.
const FAILED: Sense = Sense::new(SenseKey::MEDIUM_ERROR, Asc::SANITIZE_COMMAND_FAILED);
/// The sense data after a failed format operation.
const FORMAT_FAILED: Sense = Sense::new(SenseKey::MEDIUM_ERROR, Asc::FORMAT_COMMAND_FAILED);

/// The command that requested the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sanitize,
    Format,
}

/// What is done to the medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// All storage is deallocated.
    Erase,
    /// The medium's key is replaced.
    CryptoErase {
        /// Whether all storage is deallocated after that: data that cannot be read need not be kept.
        deallocates: bool,
    },
    /// Every block is overwritten.
    Overwrite {
        /// The pattern, one block long.
        block: Vec<u8>,
        /// How many times.
        passes: u8,
        /// Whether every other pass writes the complement of the pattern.
        invert: bool,
    },
}

impl Method {
    /// Returns one pass of zeros.
    pub(crate) fn zeros(block_len: usize) -> Self {
        Self::Overwrite { block: alloc::vec![0; block_len], passes: 1, invert: false }
    }

    const fn passes(&self) -> u8 {
        match self {
            Self::Erase | Self::CryptoErase { deallocates: false } => 1,
            Self::CryptoErase { deallocates: true } => 2,
            Self::Overwrite { passes, .. } => *passes,
        }
    }
}

/// The state of SANITIZE and FORMAT UNIT operations on a unit.
#[derive(Debug, Default)]
pub(crate) struct Sanitizer {
    worker: Option<Worker>,
    /// The failure of the last operation, if it failed.
    failed: Option<Failed>,
    /// The sense data that the waiting command, just woken, ends with; `None` for GOOD.
    answer: Option<Sense>,
}

#[derive(Debug)]
struct Failed {
    kind: Kind,
    may_leave: bool,
}

impl Failed {
    const fn sense(&self) -> Sense {
        match self.kind {
            Kind::Sanitize => FAILED,
            Kind::Format => FORMAT_FAILED,
        }
    }

    const fn journal(&self) -> SanitizeJournal {
        SanitizeJournal { kind: self.kind, may_leave_failure: self.may_leave, method: None }
    }
}

#[derive(Debug)]
struct Worker {
    kind: Kind,
    method: Method,
    may_leave_failure: bool,
    waiter: Option<TaskId>,
    /// Whether the waiting command waits for the beginning only (IMMED).
    immediate: bool,
    /// Whether an operation of the medium has failed.
    broken: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The journal is being stored, so that the operation is resumed after a loss of power. Nothing has been
    /// done to the medium yet.
    Recording,
    /// The journal contained the operation when the unit started.
    Resuming,
    /// Waits for operations that were in progress when it began.
    Locking,
    Working {
        pass: u8,
        /// Bytes submitted to the medium in this pass.
        at: u64,
        under_way: usize,
        /// When the next part is due.
        due: Instant,
        /// The pattern, one part long.
        part: Option<Bytes>,
    },
    /// A pass is being made durable: without that, the next one could replace it in a cache before it has
    /// reached the medium.
    Flushing {
        pass: u8,
        /// When the first part of the next pass is due.
        due: Instant,
        part_len: usize,
    },
    /// The end is being recorded in the journal. No initiator may write before that, or the next start would
    /// erase its data.
    Concluding { well: bool },
}

/// A SANITIZE or FORMAT UNIT that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SanitizeFailureState {
    pub(crate) is_format: bool,
    /// Whether EXIT FAILURE MODE can end it.
    pub(crate) may_leave: bool,
    /// Whether the saved state has it.
    pub(crate) is_journaled: bool,
}

/// What follows from the end of storing the journal.
pub(crate) enum Recorded {
    /// The operation is to begin, and a command that waits only for that is to be woken.
    Begin(Option<TaskId>),
    /// The operation is over. A command that waits for it is to be woken.
    Over {
        waiter: Option<TaskId>,
        /// The journal as it is now, if it differs from what was to be stored.
        journal: Option<Option<SanitizeJournal>>,
        /// Whether the medium was locked for the operation.
        locked: bool,
    },
    /// Nothing: no operation waited for that.
    Nothing,
}

/// What an operation needs next.
pub(crate) enum Next {
    /// It is to begin: the journal that was read at the start contains it.
    Begin,
    /// This operation of the medium.
    Submit(OpAction),
    /// Its result is to be stored in the journal.
    Record,
    /// Nothing until something that is in progress has ended, or a part is due.
    Wait,
}

impl Sanitizer {
    /// Returns the failure for the next process, while no operation is in progress. `is_journaled` says
    /// whether the saved state has it.
    pub(crate) fn export(&self, is_journaled: bool) -> Option<SanitizeFailureState> {
        let Self { worker: _, failed, answer: _ } = self;
        failed.as_ref().map(|Failed { kind, may_leave }| SanitizeFailureState {
            is_format: *kind == Kind::Format,
            may_leave: *may_leave,
            is_journaled,
        })
    }

    /// Returns the state with the failure of a document, and the journal of it.
    pub(crate) fn restore(failure: Option<&SanitizeFailureState>) -> (Self, Option<SanitizeJournal>) {
        let failed = failure.map(|state| Failed {
            kind: if state.is_format { Kind::Format } else { Kind::Sanitize },
            may_leave: state.may_leave,
        });
        let is_journaled = failure.is_some_and(|state| state.is_journaled);
        let journal = failed.as_ref().filter(|_| is_journaled).map(Failed::journal);
        (Self { worker: None, failed, answer: None }, journal)
    }

    /// Returns whether no operation is in progress and none has failed.
    pub(crate) const fn is_idle(&self) -> bool {
        self.worker.is_none() && self.failed.is_none()
    }

    /// Returns whether an operation is in progress.
    pub(crate) const fn is_running(&self) -> bool {
        self.worker.is_some()
    }

    /// Stops the operation because the unit is removed. A unit that is created from the journal begins it
    /// again.
    pub(crate) fn stop(&mut self) {
        self.worker = None;
    }

    /// Returns the sense data for an operation in progress, with a progress of zero.
    pub(crate) fn in_progress(&self) -> Option<Sense> {
        let run = self.worker.as_ref()?;
        let asc = match run.kind {
            Kind::Sanitize => Asc::SANITIZE_IN_PROGRESS,
            Kind::Format => Asc::FORMAT_IN_PROGRESS,
        };
        let mut sense = Sense::new(SenseKey::NOT_READY, asc);
        sense.specific = Some(SenseKeySpecific::Progress(0));
        Some(sense)
    }

    /// Returns the sense data for an operation in progress, with its progress out of `total` bytes of medium.
    pub(crate) fn progress(&self, total: u64) -> Option<Sense> {
        let mut sense = self.in_progress()?;
        sense.specific = Some(SenseKeySpecific::Progress(self.worker.as_ref()?.progress(total)));
        Some(sense)
    }

    /// Returns the sense data for a failure of the last operation.
    pub(crate) fn failure(&self) -> Option<Sense> {
        self.failed.as_ref().map(Failed::sense)
    }

    /// Returns whether formatting failed, which another FORMAT UNIT can repair.
    pub(crate) fn failed_to_format(&self) -> bool {
        self.failed.as_ref().is_some_and(|failed| failed.kind == Kind::Format)
    }

    /// Returns whether EXIT FAILURE MODE is allowed: there is no failure, or it may be left.
    pub(crate) fn may_leave_failure(&self) -> bool {
        self.failed.as_ref().is_none_or(|failed| failed.may_leave)
    }

    /// Clears the failure.
    pub(crate) fn leave_failure(&mut self) {
        self.failed = None;
    }

    /// Returns the sense data that the woken command ends with; `None` for GOOD.
    pub(crate) const fn take_answer(&mut self) -> Option<Sense> {
        self.answer.take()
    }

    /// Returns when the next part is due, on a medium of `total` bytes. A worker that waits for operations to
    /// end has no deadline.
    pub(crate) fn poll_timeout(&self, total: u64) -> Option<Instant> {
        let run = self.worker.as_ref().filter(|run| !run.broken)?;
        match &run.stage {
            Stage::Working { at, under_way, due, .. } if *at < total && *under_way < PARTS_UNDER_WAY => {
                Some(*due)
            }
            Stage::Resuming => Some(Instant::ORIGIN),
            _ => None,
        }
    }

    /// Accepts an operation, which begins when the journal is stored. `waiter` is woken then if it is
    /// `immediate`, else at the end.
    pub(crate) fn start(
        &mut self,
        kind: Kind,
        method: Method,
        may_leave_failure: bool,
        (waiter, immediate): (TaskId, bool),
    ) {
        // An answer that no command has taken belongs to an operation that is over.
        self.answer = None;
        let (waiter, stage) = (Some(waiter), Stage::Recording);
        self.worker =
            Some(Worker { kind, method, may_leave_failure, waiter, immediate, broken: false, stage });
    }

    /// Resumes the operation, or restores the failure, that the journal contained when the unit was started.
    pub(crate) fn resume(&mut self, journal: SanitizeJournal) {
        let SanitizeJournal { kind, may_leave_failure, method } = journal;
        match method {
            None => self.failed = Some(Failed { kind, may_leave: may_leave_failure }),
            Some(method) => {
                let (waiter, stage) = (None, Stage::Resuming);
                let (immediate, broken) = (true, false);
                self.worker =
                    Some(Worker { kind, method, may_leave_failure, waiter, immediate, broken, stage });
            }
        }
    }

    /// Returns the journal to be stored for the beginning or the end of the operation, if it is at one.
    pub(crate) fn journal(&self) -> Option<Option<SanitizeJournal>> {
        let Worker { kind, method, may_leave_failure, stage, .. } = self.worker.as_ref()?;
        let (kind, may_leave_failure) = (*kind, *may_leave_failure);
        let method = match stage {
            Stage::Recording => Some(method.clone()),
            Stage::Concluding { well: false } => None,
            Stage::Concluding { well: true } => return Some(None),
            _ => return None,
        };
        Some(Some(SanitizeJournal { kind, may_leave_failure, method }))
    }

    /// Handles the end of storing the journal: stored, or not.
    pub(crate) fn recorded(&mut self, ok: bool) -> Recorded {
        let Some(run) = &mut self.worker else { return Recorded::Nothing };
        match run.stage {
            Stage::Recording if ok => {
                self.failed = None;
                Recorded::Begin(run.waiter.take_if(|_| run.immediate))
            }
            Stage::Recording => {
                // An operation that cannot be recorded is not begun.
                let waiter = self.worker.take().and_then(|run| run.waiter);
                self.answer = Some(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE));
                let journal = Some(self.failed.as_ref().map(Failed::journal));
                Recorded::Over { waiter, journal, locked: false }
            }
            Stage::Concluding { well } => self.conclude(well && ok),
            _ => Recorded::Nothing,
        }
    }

    fn conclude(&mut self, well: bool) -> Recorded {
        let Some(run) = self.worker.take() else { return Recorded::Nothing };
        let mut journal = None;
        if !well {
            // Also when the operation succeeded but the journal could not be stored: then the next start
            // executes it again. A command that clears the failure before that stores the journal.
            let failed = Failed { kind: run.kind, may_leave: run.may_leave_failure };
            self.answer = Some(failed.sense());
            journal = Some(Some(failed.journal()));
            self.failed = Some(failed);
        }
        if run.waiter.is_none() {
            self.answer = None;
        }
        Recorded::Over { waiter: run.waiter, journal, locked: true }
    }

    /// Returns what is to be done to the medium, if an operation is in progress.
    pub(crate) fn method(&self) -> Option<&Method> {
        self.worker.as_ref().map(|run| &run.method)
    }

    /// Records that the lock of the whole medium was requested.
    pub(crate) fn locking(&mut self) {
        if let Some(run) = &mut self.worker {
            run.stage = Stage::Locking;
        }
    }

    /// Records that the whole medium is locked for the operation: the work begins, in parts of `part_len`.
    pub(crate) fn locked(&mut self, now: Instant, part_len: usize) {
        if let Some(run) = &mut self.worker {
            let part = run.part_of(part_len, 0);
            run.stage = Stage::Working { pass: 0, at: 0, under_way: 0, due: now, part };
        }
    }

    /// Records that an operation of the medium has ended, and returns what follows if that was the flush of
    /// the last pass, or of one that has failed.
    pub(crate) fn ended(&mut self, ok: bool) -> Next {
        let Some(run) = &mut self.worker else { return Next::Wait };
        run.broken |= !ok;
        match &mut run.stage {
            Stage::Flushing { pass, due, part_len } if !run.broken && *pass + 1 < run.method.passes() => {
                let (pass, due, part_len) = (*pass + 1, *due, *part_len);
                let part = run.part_of(part_len, pass);
                run.stage = Stage::Working { pass, at: 0, under_way: 0, due, part };
                Next::Wait
            }
            Stage::Flushing { .. } => {
                let well = !run.broken;
                self.finish(well)
            }
            Stage::Working { under_way, .. } => {
                *under_way = under_way.saturating_sub(1);
                Next::Wait
            }
            _ => Next::Wait,
        }
    }

    /// Returns what the operation needs next, on a medium of `total` bytes.
    pub(crate) fn next(&mut self, now: Instant, part_len: usize, total: u64) -> Next {
        let Some(run) = &mut self.worker else { return Next::Wait };
        let Stage::Working { pass, at, under_way, due, part } = &mut run.stage else {
            return if matches!(run.stage, Stage::Resuming) { Next::Begin } else { Next::Wait };
        };
        if run.broken {
            // Operations in progress end first, so that none of them can overwrite a later write.
            return if *under_way == 0 { self.finish(false) } else { Next::Wait };
        }
        if *at >= total && *under_way == 0 {
            run.stage = Stage::Flushing { pass: *pass, due: *due, part_len };
            return Next::Submit(OpAction::Flush);
        }
        if *at >= total || *under_way >= PARTS_UNDER_WAY || *due > now {
            return Next::Wait;
        }
        let action = match part {
            None if *pass == 0 && matches!(run.method, Method::CryptoErase { .. }) => OpAction::CryptoErase,
            None => OpAction::Deallocate { at: 0, len: total },
            Some(part) => {
                let len = usize::try_from(total - *at).unwrap_or(usize::MAX).min(part.len());
                let data = part.slice(0, len).into();
                OpAction::Write { at: *at, data, durability: Durability::Cached }
            }
        };
        let len = match &action {
            OpAction::Write { data, .. } => u64::try_from(data.len()).unwrap_or(u64::MAX),
            _ => total,
        };
        if part.is_some() {
            *due = due.after(Duration::from_nanos(len.saturating_mul(1_000_000_000) / BYTES_PER_SECOND));
        }
        *at = at.saturating_add(len);
        *under_way += 1;
        Next::Submit(action)
    }

    /// Ends the work: the journal records the result before any other command is admitted.
    pub(crate) fn finish(&mut self, well: bool) -> Next {
        let Some(run) = &mut self.worker else { return Next::Wait };
        run.stage = Stage::Concluding { well };
        Next::Record
    }
}

impl Worker {
    fn progress(&self, total: u64) -> u16 {
        let passes = u128::from(self.method.passes());
        let total = u128::from(total.max(1)) * passes;
        let done = match &self.stage {
            Stage::Recording | Stage::Resuming | Stage::Locking => 0,
            Stage::Working { pass, at, .. } => total / passes * u128::from(*pass) + u128::from(*at),
            Stage::Flushing { pass, .. } => total / passes * u128::from(*pass + 1),
            Stage::Concluding { .. } => total,
        };
        u16::try_from(done * 65536 / total).unwrap_or(u16::MAX)
    }

    /// Returns the pattern of a pass, one part long.
    fn part_of(&self, core_part: usize, pass: u8) -> Option<Bytes> {
        let Method::Overwrite { block, invert, .. } = &self.method else { return None };
        let mask = if *invert && pass % 2 == 1 { 0xff } else { 0 };
        let bytes: Vec<u8> = block.iter().map(|byte| byte ^ mask).cycle().take(core_part).collect();
        Some(Bytes::copied_from(&bytes))
    }
}
