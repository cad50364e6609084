//! The copy operations of a unit, by list identifier: those that run, and the results of ended ones that are
//! still held (SPC-4 §5.17.4).

pub(crate) mod handover;

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use scsi::copy::ListId;
use scsi::copy::list::ListIdUsage;
use scsi::copy::results::OperationStatus;
use scsi::copy::rod::RodToken;
use scsi::sense::Sense;
use scsi::status::Status;

use crate::contract::NexusId;
use crate::task::TaskId;

/// TOTAL CONCURRENT COPIES: with four pieces of half a mebibyte each, they hold 64 MiB at most.
pub(crate) const MAX_RUNNING: u8 = 32;

/// How many ended operations are recorded, of all nexuses together; the oldest is discarded first. One takes
/// about 700 bytes: 175 KiB in all.
pub(crate) const MAX_HELD: usize = 256;

/// Every operation of a unit, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    list: Vec<Rc<Operation>>,
}

/// One copy operation. Its task and the list of operations share it.
#[derive(Debug)]
pub(crate) struct Operation {
    /// The nexus that requested it.
    pub(crate) nexus: NexusId,
    /// Its list identifier, if it has one.
    pub(crate) list_id: Option<ListId>,
    /// The service action of the command.
    pub(crate) service_action: u8,
    /// Whether its command is answered before it ends.
    pub(crate) background: bool,
    /// Whether its results are held (SPC-4 §5.17.4).
    held: bool,
    task: Cell<Option<TaskId>>,
    progress: Cell<Progress>,
    end: RefCell<Option<OperationResult>>,
}

/// The progress of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Segments done.
    pub(crate) segments: u16,
    /// Bytes written, or represented by the token.
    pub(crate) bytes: u64,
    /// Incremented with every change.
    pub(crate) counter: u16,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OperationResult {
    /// The status of the command.
    pub(crate) status: Status,
    /// Its sense data.
    pub(crate) sense: Option<Sense>,
    /// The status as reported by RECEIVE COPY STATUS(LID4).
    pub(crate) operation: OperationStatus,
    /// The token that the operation created.
    pub(crate) token: Option<RodToken>,
}

/// The handle by which a task owns its operation. Dropping it before the end records the operation as
/// aborted.
#[derive(Debug)]
pub(crate) struct OperationHandle(Rc<Operation>);

/// Why an operation cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeginError {
    /// An operation with this list identifier is running.
    InUse,
    /// Too many operations are running.
    TooMany,
}

impl Operations {
    /// Begins an operation. An ended operation with the same list identifier is discarded.
    pub(crate) fn begin(
        &mut self,
        nexus: NexusId,
        list_id: ListId,
        usage: ListIdUsage,
        service_action: u8,
        background: bool,
    ) -> Result<OperationHandle, BeginError> {
        self.sweep();
        let list_id = (usage != ListIdUsage::Unnamed).then_some(list_id);
        let is_named = |operation: &Operation| {
            operation.nexus == nexus && operation.list_id.is_some() && operation.list_id == list_id
        };
        if self.list.iter().any(|operation| is_named(operation) && operation.is_running()) {
            return Err(BeginError::InUse);
        }
        if self.running() >= usize::from(MAX_RUNNING) {
            return Err(BeginError::TooMany);
        }
        self.list.retain(|operation| !is_named(operation));
        let operation = Rc::new(Operation {
            nexus,
            list_id,
            service_action,
            background,
            held: usage == ListIdUsage::Hold,
            task: Cell::new(None),
            progress: Cell::default(),
            end: RefCell::default(),
        });
        self.list.push(Rc::clone(&operation));
        Ok(OperationHandle(operation))
    }

    /// Finds an operation by its list identifier.
    pub(crate) fn find(&self, nexus: NexusId, list_id: ListId) -> Option<&Operation> {
        let named = |operation: &&Rc<Operation>| {
            operation.nexus == nexus && operation.list_id == Some(list_id) && operation.is_known()
        };
        self.list.iter().find(named).map(AsRef::as_ref)
    }

    /// Discards an operation that ended.
    pub(crate) fn forget(&mut self, nexus: NexusId, list_id: ListId) {
        self.list.retain(|operation| {
            operation.is_running() || operation.nexus != nexus || operation.list_id != Some(list_id)
        });
    }

    /// Discards the ended operations of a lost nexus.
    pub(crate) fn nexus_lost(&mut self, nexus: NexusId) {
        self.list.retain(|operation| operation.is_running() || operation.nexus != nexus);
    }

    /// Discards every ended operation.
    pub(crate) fn reset(&mut self) {
        self.list.retain(|operation| operation.is_running());
    }

    /// Returns how many operations are running.
    pub(crate) fn running(&self) -> usize {
        self.list.iter().filter(|operation| operation.is_running()).count()
    }

    fn sweep(&mut self) {
        self.list.retain(|operation| operation.is_known() || operation.is_running());
        let ended = self.list.len() - self.running();
        let mut surplus = (ended + 1).saturating_sub(MAX_HELD);
        self.list.retain(|operation| {
            let goes = surplus > 0 && !operation.is_running();
            surplus -= usize::from(goes);
            !goes
        });
    }
}

impl Operation {
    /// Returns whether the operation has not ended.
    pub(crate) fn is_running(&self) -> bool {
        self.end.borrow().is_none()
    }

    /// Returns the task that executes the operation, once it has one.
    pub(crate) const fn task(&self) -> Option<TaskId> {
        self.task.get()
    }

    /// Returns the progress of the operation.
    pub(crate) const fn progress(&self) -> Progress {
        self.progress.get()
    }

    /// Returns the result of the operation, if it has ended.
    pub(crate) fn end(&self) -> Option<OperationResult> {
        self.end.borrow().clone()
    }

    fn is_known(&self) -> bool {
        self.is_running() || self.held
    }
}

impl OperationHandle {
    /// Records the task that executes the operation.
    pub(crate) fn is_done_by(&self, task: TaskId) {
        self.0.task.set(Some(task));
    }

    /// Records progress.
    pub(crate) fn advance(&self, segments: u16, bytes: u64) {
        let counter = self.0.progress.get().counter.wrapping_add(1);
        self.0.progress.set(Progress { segments, bytes, counter });
    }

    /// Ends the operation.
    pub(crate) fn finish(&self, end: OperationResult) {
        self.0.end.borrow_mut().get_or_insert(end);
    }
}

impl Drop for OperationHandle {
    fn drop(&mut self) {
        self.finish(OperationResult {
            status: Status::TASK_ABORTED,
            sense: None,
            operation: OperationStatus::TERMINATED,
            token: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NexusId = NexusId(1);
    const B: NexusId = NexusId(2);

    fn begin(
        list: &mut Operations,
        nexus: NexusId,
        id: u32,
        usage: ListIdUsage,
    ) -> Result<OperationHandle, BeginError> {
        list.begin(nexus, ListId(id), usage, 0, false)
    }

    fn done() -> OperationResult {
        OperationResult {
            status: Status::GOOD,
            sense: None,
            operation: OperationStatus::COMPLETED,
            token: None,
        }
    }

    #[test]
    fn a_name_in_use_is_refused_to_its_nexus_only() {
        let mut list = Operations::default();
        let running = begin(&mut list, A, 7, ListIdUsage::Hold).unwrap();
        assert_eq!(begin(&mut list, A, 7, ListIdUsage::Discard).unwrap_err(), BeginError::InUse);
        assert!(begin(&mut list, B, 7, ListIdUsage::Hold).is_ok());
        running.finish(done());
        assert!(begin(&mut list, A, 7, ListIdUsage::Hold).is_ok());
    }

    #[test]
    fn results_are_found_while_it_goes_on_and_later_if_they_are_held() {
        for (usage, before, after) in [
            (ListIdUsage::Hold, true, true),
            (ListIdUsage::Discard, true, false),
            (ListIdUsage::Unnamed, false, false),
        ] {
            let mut list = Operations::default();
            let running = begin(&mut list, A, 0, usage).unwrap();
            running.advance(1, 512);
            assert_eq!(list.find(A, ListId(0)).is_some(), before, "{usage:?}");
            running.finish(done());
            assert_eq!(list.find(A, ListId(0)).is_some(), after, "{usage:?}");
            assert!(list.find(B, ListId(0)).is_none());
            assert_eq!(list.running(), 0);
        }
    }

    #[test]
    fn what_is_dropped_was_aborted() {
        let mut list = Operations::default();
        drop(begin(&mut list, A, 1, ListIdUsage::Hold).unwrap());
        let end = list.find(A, ListId(1)).unwrap().end().unwrap();
        assert_eq!(end.operation, OperationStatus::TERMINATED);
        let running = begin(&mut list, A, 2, ListIdUsage::Hold).unwrap();
        running.finish(done());
        drop(running);
        assert_eq!(list.find(A, ListId(2)).unwrap().end(), Some(done()));
    }

    #[test]
    fn neither_running_nor_ended_operations_pile_up() {
        let mut list = Operations::default();
        let mut running = Vec::new();
        for id in 0..u32::from(MAX_RUNNING) {
            running.push(begin(&mut list, A, id, ListIdUsage::Unnamed).unwrap());
        }
        assert_eq!(begin(&mut list, B, 0, ListIdUsage::Hold).unwrap_err(), BeginError::TooMany);
        running.clear();
        for id in 0..1000 {
            begin(&mut list, A, id, ListIdUsage::Hold).unwrap().finish(done());
            assert!(list.list.len() <= MAX_HELD + 1);
        }
        assert!(list.find(A, ListId(999)).is_some() && list.find(A, ListId(0)).is_none());
        list.nexus_lost(A);
        assert!(list.list.is_empty());
    }
}
