//! Writes that a disk has lost, and flushes of the daemon.
//!
//! A flush of the daemon goes through the store, as those of hosts do: the system reports a failed write-back
//! to one flush of the open file, and the store is what remembers it.

use store::Store as _;
use store::api::{Failure, Op, OpAction, OpId};

use super::{Disk, Inner};
use crate::os_error;
use crate::serve::media::known_loss::{Loss, SyncSender};

/// The identifier of a flush of the daemon.
pub(super) const SYNC_OP: OpId = OpId(u64::MAX - 3);

/// The flushes of the daemon.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    waiting: Vec<SyncSender>,
    in_flight: Vec<SyncSender>,
}

impl Disk {
    /// Makes everything that was acknowledged durable. The caller polls the disk then, since nothing else
    /// announces what has ended immediately.
    pub(in crate::serve) fn begin_sync(&self, done: SyncSender) {
        self.0.borrow_mut().begin_sync(done);
    }
}

impl Inner {
    /// Notices that the store has lost writes, and has that recorded.
    pub(super) fn notice_loss(&mut self) {
        if self.loss.is_some() || !self.store.has_lost_writes() {
            return;
        }
        let errno = self.store.last_error();
        let why = errno.map_or_else(
            || "a flush failed".to_owned(),
            |errno| format!("the system could not write what hosts had written: {}", os_error(&errno.into())),
        );
        crate::error!(
            "{}: {}: acknowledged writes are lost ({why}); every flush fails until targe lun accept-loss",
            self.label,
            self.facts.path.display()
        );
        let loss = Loss::new(why);
        loss.record(self.record_loss.as_ref());
        self.loss = Some(loss);
    }

    /// Returns whether a failure must not be reported yet, because a loss is not recorded. A disc can leave
    /// its drive meanwhile, so those are not delayed.
    pub(super) fn is_recording_loss(&self) -> bool {
        self.facts.image.is_none() && self.loss.as_ref().is_some_and(Loss::is_pending)
    }

    /// Returns why another process would not learn what this one has lost or is making durable, and whether
    /// that ends by itself soon.
    pub(super) fn loss_obstacle(&self) -> Option<(&'static str, bool)> {
        match &self.loss {
            Some(loss) => {
                if let Some(obstacle) = loss.obstacle() {
                    return Some(obstacle);
                }
            }
            // The next operation notices it.
            None if self.store.has_lost_writes() => {
                return Some(("writes to it were lost, and the record of that is not written yet", true));
            }
            None => {}
        }
        let is_syncing = !self.syncs.in_flight.is_empty();
        is_syncing.then_some(("what hosts wrote to it is being made durable", true))
    }

    pub(super) fn begin_sync(&mut self, done: SyncSender) {
        self.syncs.waiting.push(done);
        self.start_sync();
    }

    fn start_sync(&mut self) {
        if self.syncs.in_flight.is_empty() && !self.syncs.waiting.is_empty() {
            self.syncs.in_flight = std::mem::take(&mut self.syncs.waiting);
            self.store.submit(Op { id: SYNC_OP, action: OpAction::Flush });
        }
    }

    /// Handles the end of a flush of the daemon. One that was requested meanwhile begins now.
    pub(super) fn sync_ended(&mut self, result: Result<(), Failure>) {
        let why = result.map_err(|failure| {
            let errno = self.store.last_error();
            self.failed(failure);
            errno.map_or_else(|| failure.fault.to_string(), |errno| os_error(&errno.into()))
        });
        for done in std::mem::take(&mut self.syncs.in_flight) {
            // The thread may have given up.
            let _ = done.send(why.clone());
        }
        self.start_sync();
    }
}

#[cfg(test)]
mod tests {
    use crate::mailbox::channel;
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Arc;

    use backends::open::{Allocation, FileSpec};
    use base::state_machine::MediumId;
    use drivers::config::{Config, EngineChoice};
    use drivers::reactor::Reactor;

    use super::*;
    use crate::scratch::Scratch;
    use crate::serve::media::identity::MediumIdentity;
    use crate::serve::media::known_loss::{NotAccepted, RecordProgress};
    use crate::serve::media::served::ServedMedium as _;
    use crate::serve::reactor_shard::ReactorShard;

    type Records = Rc<RefCell<Vec<(String, Arc<RecordProgress>)>>>;

    /// Returns a disk that has lost writes before the unit knows it, and the records that it requests.
    fn lossy(scratch: &Scratch) -> (Disk, Records, Reactor<ReactorShard>) {
        let path = scratch.path().join("disk.img");
        let spec = FileSpec {
            path: path.clone(),
            size: Some(1 << 20),
            allocation: Allocation::Sparse,
            read_only: false,
            direct: false,
            write_cache: true,
        };
        let reactor = Reactor::new(&Config { engine: EngineChoice::Epoll, ..Config::default() }).unwrap();
        let mut opened = spec.open().unwrap();
        opened.set_lost_writes();
        let medium = MediumIdentity::of_opened(&opened);
        let disk = Disk::new((opened, medium), (path, None), reactor.files().queue(MediumId(1)), "disk");
        let records = Records::default();
        let list = Rc::clone(&records);
        let record = move |why: &str, progress| list.borrow_mut().push((why.to_owned(), progress));
        disk.0.borrow_mut().record_loss = Some(Box::new(record));
        (disk, records, reactor)
    }

    fn flush(disk: &mut Disk, id: u64) {
        disk.submit(Op { id: OpId(id), action: OpAction::Flush });
    }

    fn failed(disk: &mut Disk) -> Option<OpId> {
        disk.poll().map(|done| {
            assert!(done.result.is_err());
            done.id
        })
    }

    #[test]
    fn a_flush_that_reports_a_loss_is_answered_when_the_loss_is_recorded() {
        for is_durable in [true, false] {
            let scratch = Scratch::new();
            let (mut disk, records, _reactor) = lossy(&scratch);
            flush(&mut disk, 1);
            flush(&mut disk, 2);
            assert_eq!(failed(&mut disk), None, "the record is not durable");
            assert_eq!(records.borrow().len(), 1);
            let obstacle = disk.obstacle().expect("another process would not know it");
            assert!(obstacle.can_end, "{obstacle:?}");
            records.borrow()[0].1.end(is_durable);
            assert_eq!((failed(&mut disk), failed(&mut disk)), (Some(OpId(1)), Some(OpId(2))));
            // Nobody knows when a record can be written that could not be.
            assert_eq!(disk.obstacle().map(|obstacle| obstacle.can_end), (!is_durable).then_some(false));
            flush(&mut disk, 3);
            assert_eq!(failed(&mut disk), Some(OpId(3)));
            assert_eq!(records.borrow().len(), 1);
        }
    }

    #[test]
    fn a_loss_is_accepted_when_the_medium_can_be_flushed() {
        let scratch = Scratch::new();
        let (mut disk, records, _reactor) = lossy(&scratch);
        let (sender, results) = channel();
        assert_eq!(
            disk.begin_acceptance(false, sender.clone()),
            Err(NotAccepted::NothingLost),
            "not noticed yet"
        );
        flush(&mut disk, 1);
        assert_eq!(failed(&mut disk), None);
        assert_eq!(disk.begin_acceptance(false, sender.clone()), Err(NotAccepted::NotRecorded));
        records.borrow()[0].1.end(true);
        failed(&mut disk);
        assert_eq!(disk.begin_acceptance(false, sender.clone()), Ok(()));
        assert_eq!(disk.obstacle().map(|obstacle| obstacle.can_end), Some(true), "the flush ends");
        disk.0.borrow_mut().sync_ended(Err(store::api::Fault::NoSpace.into()));
        assert!(results.try_recv().unwrap().is_err());
        assert!(!disk.end_acceptance(false));
        assert!(disk.health().lost_writes.is_some());
        flush(&mut disk, 2);
        assert_eq!(failed(&mut disk), Some(OpId(2)));
        assert_eq!(disk.begin_acceptance(false, sender), Ok(()));
        disk.0.borrow_mut().sync_ended(Ok(()));
        assert_eq!(results.try_recv(), Ok(Ok(())));
        assert!(disk.end_acceptance(true));
        assert_eq!(disk.health().lost_writes, None);
        assert_eq!(disk.obstacle(), None);
    }

    #[test]
    fn a_record_that_could_not_be_written_is_written_again_until_the_loss_is_accepted() {
        for is_accepted in [false, true] {
            let scratch = Scratch::new();
            let (mut disk, records, _reactor) = lossy(&scratch);
            flush(&mut disk, 1);
            assert_eq!(failed(&mut disk), None);
            let progress = Arc::clone(&records.borrow()[0].1);
            progress.end(false);
            assert_eq!(failed(&mut disk), Some(OpId(1)));
            assert!(progress.begin_again());
            let (sender, _results) = channel();
            assert_eq!(disk.begin_acceptance(false, sender.clone()), Err(NotAccepted::NotRecorded));
            progress.end(false);
            assert_eq!(disk.begin_acceptance(false, sender), Ok(()));
            assert!(!progress.begin_again(), "the record would stay when the loss is accepted");
            disk.0.borrow_mut().sync_ended(Ok(()));
            assert_eq!(disk.end_acceptance(is_accepted), is_accepted);
            assert_eq!((progress.is_accepted(), progress.begin_again()), (is_accepted, !is_accepted));
        }
    }

    #[test]
    fn a_loss_while_another_one_is_accepted_is_recorded_again() {
        let scratch = Scratch::new();
        let (mut disk, records, _reactor) = lossy(&scratch);
        flush(&mut disk, 1);
        failed(&mut disk);
        records.borrow()[0].1.end(true);
        let (sender, _results) = channel();
        assert_eq!(disk.begin_acceptance(false, sender), Ok(()));
        disk.0.borrow_mut().sync_ended(Ok(()));
        disk.0.borrow_mut().store.set_lost_writes();
        assert!(!disk.end_acceptance(true));
        assert!(disk.health().lost_writes.is_some());
        assert_eq!(records.borrow().len(), 2);
    }

    #[test]
    fn a_flush_that_is_requested_during_another_one_begins_after_it() {
        let scratch = Scratch::new();
        let (disk, ..) = lossy(&scratch);
        let (first, first_results) = channel();
        let (second, second_results) = channel();
        disk.begin_sync(first);
        disk.begin_sync(second);
        disk.0.borrow_mut().sync_ended(Ok(()));
        assert!(first_results.try_recv().is_ok() && second_results.try_recv().is_err());
        disk.0.borrow_mut().sync_ended(Ok(()));
        assert!(second_results.try_recv().is_ok());
    }
}
