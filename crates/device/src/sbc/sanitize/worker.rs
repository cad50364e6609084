//! The sanitize worker: a state machine that has exclusive use of the whole medium while it runs.

use alloc::vec::Vec;

use base::buffer::Bytes;
use base::time::{Duration, Instant};
use scsi::sense::{Asc, Sense, SenseKey, SenseKeySpecific};
use store::api::{Durability, Failure, OpAction, OpOutput};

use super::journal::SanitizeJournal;
use super::{FAILED, FORMAT_FAILED};
use crate::device_server::{DeviceServer, UnitInfo};
use crate::range_lock::ByteRange;
use crate::sbc::{PARTS_UNDER_WAY, limits, part_len};
use crate::task::TaskId;

/// How fast blocks are overwritten: about as fast as one disk writes, and slowly enough that the thread,
/// which also serves other units, does not become busy with it.
const BYTES_PER_SECOND: u64 = 128 << 20;

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
    pub(super) fn zeros(block_len: usize) -> Self {
        Self::Overwrite { block: alloc::vec![0; block_len], passes: 1, invert: false }
    }

    /// Returns whether a unit supports this method. A unit that is started again with another configuration
    /// may not.
    fn fits(&self, facts: &UnitInfo) -> bool {
        !facts.is_read_only()
            && match self {
                Self::Erase => limits::supports_block_erase(facts),
                Self::CryptoErase { deallocates } => {
                    limits::supports_crypto_erase(facts) && (!deallocates || facts.is_thin())
                }
                Self::Overwrite { .. } => true,
            }
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
    Flushing,
    /// The end is being recorded in the journal. No initiator may write before that, or the next start would
    /// erase its data.
    Concluding {
        well: bool,
    },
}

impl Sanitizer {
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
    pub(super) fn failed_to_format(&self) -> bool {
        self.failed.as_ref().is_some_and(|failed| failed.kind == Kind::Format)
    }

    /// Returns whether EXIT FAILURE MODE is allowed: there is no failure, or it may be left.
    pub(super) fn may_leave_failure(&self) -> bool {
        self.failed.as_ref().is_none_or(|failed| failed.may_leave)
    }

    /// Clears the failure.
    pub(super) fn leave_failure(&mut self) {
        self.failed = None;
    }

    /// Returns the sense data that the woken command ends with; `None` for GOOD.
    pub(super) const fn take_answer(&mut self) -> Option<Sense> {
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
}

impl Worker {
    fn progress(&self, total: u64) -> u16 {
        let passes = u128::from(self.method.passes());
        let total = u128::from(total.max(1)) * passes;
        let done = match &self.stage {
            Stage::Recording | Stage::Resuming | Stage::Locking => 0,
            Stage::Working { pass, at, .. } => total / passes * u128::from(*pass) + u128::from(*at),
            Stage::Flushing | Stage::Concluding { .. } => total,
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

impl DeviceServer {
    /// Starts an operation on the whole medium, after the journal is stored. `waiter` is woken then if it is
    /// `immediate`, else at the end.
    pub(super) fn start_sanitizing(
        &mut self,
        kind: Kind,
        plan: Method,
        may_leave_failure: bool,
        (waiter, immediate): (TaskId, bool),
    ) {
        // An answer that no command has taken belongs to an operation that is over.
        self.sanitizer.answer = None;
        let (waiter, stage) = (Some(waiter), Stage::Recording);
        self.sanitizer.worker =
            Some(Worker { kind, method: plan, may_leave_failure, waiter, immediate, broken: false, stage });
        self.saves.wait(TaskId::BACKGROUND);
    }

    /// Stores the journal entry for the beginning or the end of the operation, when no other change is being
    /// saved.
    pub(crate) fn record_sanitizing(&mut self) {
        let Some(Worker { kind, method: plan, may_leave_failure, stage, .. }) = &self.sanitizer.worker else {
            return;
        };
        let (kind, may_leave_failure) = (*kind, *may_leave_failure);
        self.spc.sanitize_journal = match stage {
            Stage::Recording => Some(SanitizeJournal { kind, may_leave_failure, method: Some(plan.clone()) }),
            Stage::Concluding { well: false } => {
                Some(SanitizeJournal { kind, may_leave_failure, method: None })
            }
            Stage::Concluding { well: true } => None,
            _ => return,
        };
        self.save(TaskId::BACKGROUND, self.spc.to_save());
    }

    /// Resumes the operation, or restores the failure, that the journal contained when the unit was started.
    pub(crate) fn resume_sanitizing(&mut self) {
        let Some(SanitizeJournal { kind, may_leave_failure, method: plan }) =
            self.spc.sanitize_journal.clone()
        else {
            return;
        };
        match plan {
            None => self.sanitizer.failed = Some(Failed { kind, may_leave: may_leave_failure }),
            Some(plan) => {
                let (waiter, stage) = (None, Stage::Resuming);
                let (immediate, broken) = (true, false);
                self.sanitizer.worker =
                    Some(Worker { kind, method: plan, may_leave_failure, waiter, immediate, broken, stage });
            }
        }
    }

    /// Handles the end of storing the journal: stored, or not.
    pub(crate) fn sanitizer_recorded(&mut self, ok: bool) {
        let Some(run) = &mut self.sanitizer.worker else { return };
        match run.stage {
            Stage::Recording if ok => {
                self.sanitizer.failed = None;
                if run.immediate
                    && let Some(waiter) = run.waiter.take()
                {
                    self.wake(waiter);
                }
                self.begin_sanitizing();
            }
            Stage::Recording => {
                // An operation that cannot be recorded is not begun.
                let waiter = run.waiter;
                self.sanitizer.worker = None;
                self.spc.sanitize_journal = self.sanitizer.failed.as_ref().map(|failed| SanitizeJournal {
                    kind: failed.kind,
                    may_leave_failure: failed.may_leave,
                    method: None,
                });
                self.sanitizer.answer =
                    Some(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE));
                if let Some(waiter) = waiter {
                    self.wake(waiter);
                }
            }
            Stage::Concluding { well } => self.conclude_sanitizing(well && ok),
            _ => {}
        }
    }

    fn begin_sanitizing(&mut self) {
        let whole = ByteRange::new(0, self.info.capabilities.len);
        let Some(run) = &mut self.sanitizer.worker else { return };
        if !run.method.fits(&self.info) {
            return self.finish_sanitizing(false);
        }
        run.stage = Stage::Locking;
        self.copy_manager.tokens.revoke_overlapping_bytes(self.info.block_size(), whole);
        self.medium.lock(self.now, TaskId::BACKGROUND, whole);
    }

    /// Begins the work: the whole medium is locked for the worker.
    pub(crate) fn sanitizer_locked(&mut self) {
        let (now, part_len) = (self.now, part_len(self));
        if let Some(run) = &mut self.sanitizer.worker {
            let part = run.part_of(part_len, 0);
            run.stage = Stage::Working { pass: 0, at: 0, under_way: 0, due: now, part };
        }
        self.continue_sanitizing();
    }

    /// Handles the end of an operation of the worker on the medium.
    pub(crate) fn sanitizer_ended(&mut self, result: Result<OpOutput, Failure>) {
        let Some(run) = &mut self.sanitizer.worker else { return };
        run.broken |= result.is_err();
        match &mut run.stage {
            Stage::Flushing => {
                let well = !run.broken;
                self.finish_sanitizing(well);
            }
            Stage::Working { under_way, .. } => {
                *under_way = under_way.saturating_sub(1);
                self.continue_sanitizing();
            }
            _ => {}
        }
    }

    /// Submits as much work as is due.
    pub(crate) fn continue_sanitizing(&mut self) {
        let (now, part_len, total) = (self.now, part_len(self), self.info.capabilities.len);
        let Some(run) = &mut self.sanitizer.worker else { return };
        if matches!(run.stage, Stage::Resuming) {
            return self.begin_sanitizing();
        }
        let Stage::Working { pass, at, under_way, due, part } = &mut run.stage else { return };
        if run.broken {
            // Operations in progress end first, so that none of them can overwrite a later write.
            if *under_way == 0 {
                self.finish_sanitizing(false);
            }
            return;
        }
        while *at < total && *under_way < PARTS_UNDER_WAY && *due <= now {
            let action = match part {
                None if *pass == 0 && matches!(run.method, Method::CryptoErase { .. }) => {
                    OpAction::CryptoErase
                }
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
            self.medium.submit(self.now, TaskId::BACKGROUND, 0, action);
        }
        if *at < total || *under_way > 0 {
            return;
        }
        if *pass + 1 < run.method.passes() {
            let (next, due) = (*pass + 1, *due);
            let part = run.part_of(part_len, next);
            run.stage = Stage::Working { pass: next, at: 0, under_way: 0, due, part };
            return self.continue_sanitizing();
        }
        run.stage = Stage::Flushing;
        self.medium.submit(self.now, TaskId::BACKGROUND, 0, OpAction::Flush);
    }

    /// Ends the work: the journal records the result before any other command is admitted.
    fn finish_sanitizing(&mut self, well: bool) {
        let Some(run) = &mut self.sanitizer.worker else { return };
        run.stage = Stage::Concluding { well };
        self.saves.wait(TaskId::BACKGROUND);
    }

    fn conclude_sanitizing(&mut self, well: bool) {
        let Some(run) = self.sanitizer.worker.take() else { return };
        self.medium.unlock(TaskId::BACKGROUND);
        if !well {
            // Also when the operation succeeded but the journal could not be stored: then the next start
            // executes it again. A command that clears the failure before that stores the journal.
            let (kind, may_leave_failure) = (run.kind, run.may_leave_failure);
            let failed = Failed { kind, may_leave: may_leave_failure };
            self.sanitizer.answer = Some(failed.sense());
            self.sanitizer.failed = Some(failed);
            self.spc.sanitize_journal = Some(SanitizeJournal { kind, may_leave_failure, method: None });
        }
        if let Some(waiter) = run.waiter {
            self.wake(waiter);
        } else {
            self.sanitizer.answer = None;
        }
    }
}
