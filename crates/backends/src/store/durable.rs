//! Flushes, and what must be durable when it is acknowledged.

use base::buffer::DataList;
use drivers::files::{FileError, FileOpKind};
use store::api::{Completion, Failure, Fault, OpId, OpOutput};

use super::job::{Job, Work};
use super::{FileStore, wide};
use crate::errno_map;
use crate::fault_injection::{self, Bug};
use crate::overlap::Ticket;

impl FileStore {
    pub(super) fn flush(&mut self, id: OpId) -> Result<(), Failure> {
        if let Some(fault) = self.sync_failed {
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

    /// Handles a failed write. The error of a stable write through the page cache may be the only report that
    /// *earlier* writes are lost; then flushes fail from now on. Lack of space is common, and harmless if the
    /// write itself lacked it, so this case is distinguished: the write is tried again without `RWF_DSYNC`.
    /// On NFS every attempt may take the report, so nothing distinguishes it.
    pub(super) fn write_failed(
        &mut self,
        id: OpId,
        at: u64,
        (ticket, again): (Option<Ticket>, Option<DataList>),
        error: FileError,
    ) {
        let fault = match again {
            Some(_) => errno_map::sync_fault_of(error.errno),
            None => errno_map::fault_of(error.errno),
        };
        match again {
            Some(data) if fault == Fault::NoSpace => {
                let first_errno = Some(error.errno);
                let work =
                    Work::Write { at, stable: false, ticket, original: None, again: None, first_errno };
                return self.submit(Job { id, work }, FileOpKind::Write { at, data, stable: false });
            }
            Some(_) if matches!(fault, Fault::Medium | Fault::Gone) => self.lose(ticket, fault),
            None if self.reports_in_writes => self.lose(ticket, fault),
            _ => self.leave(ticket),
        }
        let at = (fault == Fault::Medium).then(|| at.saturating_add(wide(error.done)));
        self.complete(id, Err(Failure { fault, at }));
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
        self.sync_failed = Some(fault);
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
        match self.sync_failed {
            _ if !stable && self.profile.volatile_cache => {
                self.complete(id, Ok(OpOutput::Done(DataList::new())));
            }
            Some(fault) => self.complete(id, Err(fault.into())),
            None => self.sync(id),
        }
    }
}
