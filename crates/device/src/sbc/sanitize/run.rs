//! The work itself: a small machine that owns the whole medium while it runs.

use alloc::vec::Vec;

use base::buffer::Bytes;
use base::time::{Duration, Instant};
use scsi::sense::{Asc, Sense, SenseKey, SenseKeySpecific};
use store::contract::{Durability, Failure, OpAction, Outcome};

use super::{FAILED, FORMAT_FAILED};
use crate::range_lock::ByteRange;
use crate::sbc::{PARTS_UNDER_WAY, part_len};
use crate::server::Core;
use crate::task::TaskId;

/// How fast blocks are overwritten: about what one disk does, and little enough that the thread, which serves other units
/// too, is not kept busy by it.
const BYTES_PER_SECOND: u64 = 128 << 20;

/// Which command asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sanitize,
    Format,
}

/// What is done to the medium.
#[derive(Clone, Debug)]
pub(super) enum Plan {
    /// All storage is given back.
    Erase,
    /// The medium's key is replaced.
    ForgetKey {
        /// And then all storage is given back: what cannot be read need not be kept.
        deallocates: bool,
    },
    /// Every block is written so many times.
    Overwrite {
        /// With this.
        block: Vec<u8>,
        /// So many times.
        passes: u8,
        /// And with its complement every other time.
        invert: bool,
    },
}

impl Plan {
    /// One pass of zeros.
    pub(super) fn zeros(block_len: usize) -> Self {
        Self::Overwrite { block: alloc::vec![0; block_len], passes: 1, invert: false }
    }

    const fn passes(&self) -> u8 {
        match self {
            Self::Erase | Self::ForgetKey { deallocates: false } => 1,
            Self::ForgetKey { deallocates: true } => 2,
            Self::Overwrite { passes, .. } => *passes,
        }
    }
}

/// The state of sanitizing a unit.
#[derive(Debug, Default)]
pub(crate) struct Sanitizer {
    run: Option<Run>,
    /// Set when the last operation failed.
    failed: Option<Failed>,
}

#[derive(Debug)]
struct Failed {
    sense: Sense,
    may_leave: bool,
}

#[derive(Debug)]
struct Run {
    kind: Kind,
    plan: Plan,
    may_leave_failure: bool,
    waiter: Option<TaskId>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Operations that were under way when it began are still to end.
    Locking,
    Working {
        pass: u8,
        /// Bytes given to the medium in this pass.
        at: u64,
        under_way: usize,
        /// When the next part is due.
        due: Instant,
        /// A part of the pattern.
        part: Option<Bytes>,
    },
    Flushing,
}

impl Sanitizer {
    /// Returns whether nothing is being done and nothing has failed.
    pub(crate) const fn is_idle(&self) -> bool {
        self.run.is_none() && self.failed.is_none()
    }

    /// Returns whether it is being done.
    pub(crate) const fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// Returns that it is in progress, and how far it is.
    pub(crate) fn in_progress(&self) -> Option<Sense> {
        let run = self.run.as_ref()?;
        let asc = match run.kind {
            Kind::Sanitize => Asc::SANITIZE_IN_PROGRESS,
            Kind::Format => Asc::FORMAT_IN_PROGRESS,
        };
        let mut sense = Sense::new(SenseKey::NOT_READY, asc);
        sense.specific = Some(SenseKeySpecific::Progress(0));
        Some(sense)
    }

    /// The same, with the progress out of `total` bytes of medium.
    pub(crate) fn progress(&self, total: u64) -> Option<Sense> {
        let mut sense = self.in_progress()?;
        sense.specific = Some(SenseKeySpecific::Progress(self.run.as_ref()?.progress(total)));
        Some(sense)
    }

    /// Returns how the last operation failed.
    pub(crate) fn failure(&self) -> Option<Sense> {
        self.failed.as_ref().map(|failed| failed.sense)
    }

    /// Leaves the failure behind. Returns false when that is not allowed.
    pub(super) fn leave_failure(&mut self) -> bool {
        let may = self.failed.as_ref().is_none_or(|failed| failed.may_leave);
        if may {
            self.failed = None;
        }
        may
    }

    /// Returns when the work wants to go on.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match &self.run.as_ref()?.stage {
            Stage::Working { under_way, due, .. } if *under_way < PARTS_UNDER_WAY => Some(*due),
            _ => None,
        }
    }
}

impl Run {
    fn progress(&self, total: u64) -> u16 {
        let passes = u128::from(self.plan.passes());
        let total = u128::from(total.max(1)) * passes;
        let done = match &self.stage {
            Stage::Locking => 0,
            Stage::Working { pass, at, .. } => total / passes * u128::from(*pass) + u128::from(*at),
            Stage::Flushing => total,
        };
        u16::try_from(done * 65536 / total).unwrap_or(u16::MAX)
    }

    /// The pattern of a pass, one part long.
    fn part_of(&self, core_part: usize, pass: u8) -> Option<Bytes> {
        let Plan::Overwrite { block, invert, .. } = &self.plan else { return None };
        let mask = if *invert && pass % 2 == 1 { 0xff } else { 0 };
        let bytes: Vec<u8> = block.iter().map(|byte| byte ^ mask).cycle().take(core_part).collect();
        Some(Bytes::copied_from(&bytes))
    }
}

impl Core {
    /// Starts work on the whole medium. `waiter` is woken at its end.
    pub(super) fn start_sanitizing(
        &mut self,
        kind: Kind,
        plan: Plan,
        may_leave_failure: bool,
        waiter: Option<TaskId>,
    ) {
        self.sanitizer.failed = None;
        self.sanitizer.run = Some(Run { kind, plan, may_leave_failure, waiter, stage: Stage::Locking });
        let whole = ByteRange::new(0, self.facts.profile.len);
        self.copies.tokens.touched_bytes(self.facts.block_size(), whole);
        self.medium.lock(TaskId::BACKGROUND, whole);
    }

    /// The medium is ours alone.
    pub(crate) fn sanitizer_locked(&mut self) {
        let (now, part_len) = (self.now, part_len(self));
        if let Some(run) = &mut self.sanitizer.run {
            let part = run.part_of(part_len, 0);
            run.stage = Stage::Working { pass: 0, at: 0, under_way: 0, due: now, part };
        }
        self.sanitize_on();
    }

    /// An operation of ours ended.
    pub(crate) fn sanitizer_ended(&mut self, result: Result<Outcome, Failure>) {
        let Some(run) = &mut self.sanitizer.run else { return };
        match (&mut run.stage, result) {
            (_, Err(_)) => self.finish_sanitizing(false),
            (Stage::Flushing, Ok(_)) => self.finish_sanitizing(true),
            (Stage::Working { under_way, .. }, Ok(_)) => {
                *under_way = under_way.saturating_sub(1);
                self.sanitize_on();
            }
            (Stage::Locking, Ok(_)) => {}
        }
    }

    /// Does as much as is due.
    pub(crate) fn sanitize_on(&mut self) {
        let (now, part_len, total) = (self.now, part_len(self), self.facts.profile.len);
        let Some(run) = &mut self.sanitizer.run else { return };
        let Stage::Working { pass, at, under_way, due, part } = &mut run.stage else { return };
        while *at < total && *under_way < PARTS_UNDER_WAY && *due <= now {
            let action = match part {
                None if *pass == 0 && matches!(run.plan, Plan::ForgetKey { .. }) => OpAction::ForgetKey,
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
            self.medium.submit(TaskId::BACKGROUND, 0, action);
        }
        if *at < total || *under_way > 0 {
            return;
        }
        if *pass + 1 < run.plan.passes() {
            let (next, due) = (*pass + 1, *due);
            let part = run.part_of(part_len, next);
            run.stage = Stage::Working { pass: next, at: 0, under_way: 0, due, part };
            return self.sanitize_on();
        }
        run.stage = Stage::Flushing;
        self.medium.submit(TaskId::BACKGROUND, 0, OpAction::Flush);
    }

    fn finish_sanitizing(&mut self, well: bool) {
        let Some(run) = self.sanitizer.run.take() else { return };
        self.medium.unlock(TaskId::BACKGROUND);
        if !well {
            let sense = match run.kind {
                Kind::Sanitize => FAILED,
                Kind::Format => FORMAT_FAILED,
            };
            self.sanitizer.failed = Some(Failed { sense, may_leave: run.may_leave_failure });
        }
        if let Some(waiter) = run.waiter {
            self.wake(waiter);
        }
    }
}
