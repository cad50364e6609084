//! Carries out what the [`Sanitizer`](crate::sanitizer::Sanitizer) decides: it has exclusive use of the whole
//! medium while it works.

use store::api::{Failure, OpOutput};

use crate::device_server::{DeviceServer, UnitInfo};
use crate::range_lock::ByteRange;
use crate::sanitizer::{Kind, Method, Next, Recorded};
use crate::sbc::{limits, part_len};
use crate::task::TaskId;

/// Returns whether a unit supports a method. A unit that is started again with another configuration may not.
fn fits(method: &Method, facts: &UnitInfo) -> bool {
    !facts.is_read_only()
        && match method {
            Method::Erase => limits::supports_block_erase(facts),
            Method::CryptoErase { deallocates } => {
                limits::supports_crypto_erase(facts) && (!deallocates || facts.is_thin())
            }
            Method::Overwrite { .. } => true,
        }
}

impl DeviceServer {
    /// Starts an operation on the whole medium, after the journal is stored. The waiting command is woken
    /// then if it is immediate, else at the end.
    pub(super) fn start_sanitizing(
        &mut self,
        kind: Kind,
        method: Method,
        may_leave_failure: bool,
        waiter: (TaskId, bool),
    ) {
        self.sanitizer.start(kind, method, may_leave_failure, waiter);
        self.saves.wait(TaskId::BACKGROUND);
    }

    /// Stores the journal entry for the beginning or the end of the operation, when no other change is being
    /// saved.
    pub(crate) fn record_sanitizing(&mut self) {
        if let Some(journal) = self.sanitizer.journal() {
            self.spc.sanitize_journal = journal;
            self.save(TaskId::BACKGROUND, self.spc.to_save());
        }
    }

    /// Resumes the operation, or restores the failure, that the journal contained when the unit was started.
    pub(crate) fn resume_sanitizing(&mut self) {
        if let Some(journal) = self.spc.sanitize_journal.clone() {
            self.sanitizer.resume(journal);
        }
    }

    /// Handles the end of storing the journal: stored, or not.
    pub(crate) fn sanitizer_recorded(&mut self, ok: bool) {
        match self.sanitizer.recorded(ok) {
            Recorded::Begin(waiter) => {
                waiter.into_iter().for_each(|waiter| self.wake(waiter));
                self.begin_sanitizing();
            }
            Recorded::Over { waiter, journal, locked } => {
                if locked {
                    self.medium.unlock(TaskId::BACKGROUND);
                }
                if let Some(journal) = journal {
                    self.spc.sanitize_journal = journal;
                }
                waiter.into_iter().for_each(|waiter| self.wake(waiter));
            }
            Recorded::Nothing => {}
        }
    }

    fn begin_sanitizing(&mut self) {
        let Some(method) = self.sanitizer.method() else { return };
        if !fits(method, &self.info) {
            let next = self.sanitizer.finish(false);
            return self.sanitize(next);
        }
        let whole = ByteRange::new(0, self.info.capabilities.len);
        self.sanitizer.locking();
        self.copy_manager.tokens.revoke_overlapping_bytes(self.info.block_size(), whole);
        self.medium.lock(self.now, TaskId::BACKGROUND, whole);
    }

    /// Begins the work: the whole medium is locked for it.
    pub(crate) fn sanitizer_locked(&mut self) {
        self.sanitizer.locked(self.now, part_len(self));
        self.continue_sanitizing();
    }

    /// Handles the end of an operation of the worker on the medium.
    pub(crate) fn sanitizer_ended(&mut self, result: &Result<OpOutput, Failure>) {
        let next = self.sanitizer.ended(result.is_ok());
        self.sanitize(next);
        self.continue_sanitizing();
    }

    /// Submits as much work as is due.
    pub(crate) fn continue_sanitizing(&mut self) {
        let (now, part_len, total) = (self.now, part_len(self), self.info.capabilities.len);
        loop {
            match self.sanitizer.next(now, part_len, total) {
                Next::Wait => return,
                next => self.sanitize(next),
            }
        }
    }

    fn sanitize(&mut self, next: Next) {
        match next {
            Next::Begin => self.begin_sanitizing(),
            Next::Submit(action) => self.medium.submit(self.now, TaskId::BACKGROUND, 0, action),
            Next::Record => self.saves.wait(TaskId::BACKGROUND),
            Next::Wait => {}
        }
    }
}
