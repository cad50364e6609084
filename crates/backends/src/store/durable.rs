//! Flushes, and what must be durable when it is acknowledged.

use base::buffer::DataList;
use drivers::files::{FileError, FileOp, FileOpKind, FileOutcome, NOT_BEGUN};
use store::api::{Completion, Failure, Fault, OpId, OpOutput};

use super::job::{Job, Work};
use super::{FileStore, wide};
use crate::errno_map;
use crate::fault_injection::{self, Bug};
use crate::overlap::Ticket;

impl FileStore {
    pub(super) fn flush(&mut self, id: OpId) -> Result<(), Failure> {
        if let Some(fault) = self.lost {
            return Err(fault.into());
        }
        if self.profile.read_only {
            self.complete(id, Ok(OpOutput::Done(DataList::new())));
        } else if self.unsynced {
            self.sync(id);
        } else {
            // The flushes under way cover all changes.
            let ticket = self.overlap.begin();
            self.succeed(Some(ticket), id, DataList::new());
        }
        Ok(())
    }

    fn sync(&mut self, id: OpId) {
        // Changes that are acknowledged from now on need the next sync.
        self.unsynced = false;
        let work = Work::Sync(self.overlap.begin());
        self.submit(Job { id, work }, FileOpKind::Sync { data_only: true });
    }

    /// Handles a failed sync.
    pub(super) fn sync_failed(&mut self, id: OpId, ticket: Ticket, fault: Fault) {
        match fault {
            // It has taken no report from the kernel, and has made nothing durable either.
            Fault::NotSubmitted => {
                self.unsynced = true;
                self.overlap.abandon(ticket, fault, &mut self.ready);
            }
            fault => self.lose(Some(ticket), fault),
        }
        self.complete(id, Err(fault.into()));
    }

    /// Handles a failed write. The error of a stable write may be the only report that *earlier* writes are
    /// lost; then flushes fail from now on. Lack of space is common, and harmless if the write itself lacked
    /// it, so this case is distinguished: the verifier would have a report too. Without a verifier, the write
    /// is tried again without `RWF_DSYNC`. On NFS every attempt may take the report, so nothing distinguishes
    /// it.
    pub(super) fn write_failed(
        &mut self,
        (id, at, stable): (OpId, u64, bool),
        (ticket, again): (Option<Ticket>, Option<DataList>),
        error: FileError,
    ) {
        let fault = match stable {
            true => errno_map::sync_fault_of(error.errno),
            false => errno_map::fault_of(error.errno),
        };
        let may_be_own = stable && matches!(fault, Fault::NoSpace | Fault::ReadOnly);
        match (again, fault) {
            (_, Fault::NotSubmitted) => self.leave(ticket),
            _ if self.reports_in_writes => self.lose(ticket, fault),
            (None, fault) if may_be_own => return self.verify(id, ticket, fault.into()),
            (Some(data), Fault::NoSpace) => {
                let first_errno = Some(error.errno);
                let work =
                    Work::Write { at, stable: false, ticket, original: None, again: None, first_errno };
                return self.submit(Job { id, work }, FileOpKind::Write { at, data, stable: false });
            }
            (_, Fault::Medium | Fault::Gone) if stable => self.lose(ticket, fault),
            _ => self.leave(ticket),
        }
        let at = (fault == Fault::Medium).then(|| at.saturating_add(wide(error.done)));
        self.complete(id, Err(Failure { fault, at }));
    }

    /// Finds out whether a stable write failed with the report of another one's failure.
    fn verify(&mut self, id: OpId, ticket: Option<Ticket>, failure: Failure) {
        let file = self.verifier.clone().unwrap_or_else(|| self.file.clone());
        let token = self.jobs.insert(Job { id, work: Work::Verify { ticket, failure } });
        self.queue.submit(FileOp { token, file, kind: FileOpKind::Sync { data_only: true } });
    }

    /// Handles what the verifier says, and ends the stable write that has failed.
    pub(super) fn verified(
        &mut self,
        id: OpId,
        ticket: Option<Ticket>,
        failure: Failure,
        result: Result<FileOutcome, FileError>,
    ) {
        match result {
            Ok(_) => self.leave(ticket),
            // Nobody knows whether the write took a report.
            Err(error) if error.errno == NOT_BEGUN => self.lose(ticket, failure.fault),
            Err(error) => self.lose(ticket, errno_map::sync_fault_of(error.errno)),
        }
        self.complete(id, Err(failure));
    }

    /// Completes an operation that succeeded, with a ticket as soon as the success counts.
    pub(super) fn succeed(&mut self, ticket: Option<Ticket>, id: OpId, data: DataList) {
        let completion = Completion { id, result: Ok(OpOutput::Done(data)) };
        match ticket {
            Some(ticket) => self.overlap.succeed(ticket, completion, &mut self.ready),
            None => self.ready.push_back(completion),
        }
    }

    /// Records that acknowledged writes may be lost, and so may those that were under way.
    pub(super) fn lose(&mut self, ticket: Option<Ticket>, fault: Fault) {
        self.lost = Some(fault);
        if let Some(ticket) = ticket {
            self.overlap.fail(ticket, fault, &mut self.ready);
        }
    }

    /// Ends an operation that failed without the report of another write's failure.
    pub(super) fn leave(&mut self, ticket: Option<Ticket>) {
        if let Some(ticket) = ticket {
            self.overlap.leave(ticket, &mut self.ready);
        }
    }

    /// Handles a changed range, which may still have to be made durable.
    pub(super) fn changed(&mut self, id: OpId, stable: bool) {
        self.unsynced |= !fault_injection::is_injected(Bug::FilesForgetUnsynced);
        match self.lost {
            _ if !stable && self.profile.volatile_cache => {
                self.complete(id, Ok(OpOutput::Done(DataList::new())));
            }
            Some(fault) => self.complete(id, Err(fault.into())),
            None => self.sync(id),
        }
    }
}
