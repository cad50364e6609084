//! What the server of an export has lost. The client of the export finds it, and the state directory records
//! it, so that it outlives this process.

use std::path::Path;

use super::{NbdExport, NbdExports};
use crate::config::Unit;
use crate::serve::media::identity::MediumIdentity;
use crate::serve::media::known_loss::{Loss, RecordLoss};
use crate::serve::media::lost_writes::LossSubject;

/// What an export knows of the writes that its server has lost.
#[derive(Default)]
pub(super) struct ExportLoss {
    loss: Option<Loss>,
    /// By what a later process recognises the export.
    subject: Option<LossSubject>,
    record: Option<RecordLoss>,
}

impl std::fmt::Debug for ExportLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExportLoss").field("loss", &self.loss).finish_non_exhaustive()
    }
}

impl ExportLoss {
    /// Has losses of `subject` recorded by `record`. `known` is the reason of a loss that is recorded
    /// already.
    pub(super) fn set_record(&mut self, subject: LossSubject, record: RecordLoss, known: Option<&str>) {
        let loss = known.map(|why| Loss::recorded(why.to_owned()));
        *self = Self { loss, subject: Some(subject), record: Some(record) };
    }

    /// Returns the loss, if there is one.
    pub(super) const fn get(&self) -> Option<&Loss> {
        self.loss.as_ref()
    }

    /// Returns why acknowledged writes are lost, if some are.
    pub(super) fn why(&self) -> Option<&str> {
        self.loss.as_ref().map(Loss::why)
    }

    /// Returns by what a later process recognises the export.
    pub(super) fn subject(&self) -> Option<LossSubject> {
        self.subject.clone()
    }

    /// Forgets the loss, which the operator has accepted.
    pub(super) fn forget(&mut self) {
        self.loss = None;
    }

    /// Returns why another process would not learn of a loss, if it would not.
    pub(super) fn obstacle(&self) -> Option<&'static str> {
        self.loss.as_ref()?.obstacle().map(|(why, _)| why)
    }
}

impl NbdExports {
    /// Handles that the connection of an export has ended for good. What its server has not flushed may be
    /// missing on it.
    pub(super) fn leave_behind(&self, export: &NbdExport) {
        if export.0.borrow().client.has_lost_changes() {
            export.record_loss();
            let inner = export.0.borrow();
            let sentence =
                format!("{}: what hosts wrote last may be missing on {}", inner.label, inner.address);
            crate::error!("{sentence}");
            (self.links.lost)(sentence);
        }
    }
}

impl NbdExport {
    /// Describes the export as the medium of a unit, for the record of a loss.
    pub(super) fn subject_of(&self, unit: &Unit) -> LossSubject {
        let address = self.0.borrow().address.to_string();
        LossSubject::of(unit, Path::new(&address), MediumIdentity::Unknown)
    }

    /// Has it recorded that acknowledged writes are lost, unless that was done.
    pub(in crate::serve) fn record_loss(&self) {
        let mut inner = self.0.borrow_mut();
        if inner.loss.loss.is_none() {
            let loss = Loss::new(format!("{} may not have what hosts wrote", inner.address));
            loss.record(inner.loss.record.as_ref());
            inner.loss.loss = Some(loss);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::mailbox::channel;
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Arc;

    use base::buffer::Pool;
    use base::state_machine::ConnId;
    use base::time::Instant;
    use target::units::UnitId;

    use super::super::tests::{add_unflushed, exports};
    use super::*;
    use crate::scratch::Scratch;
    use crate::serve::media::known_loss::{NotAccepted, RecordProgress};
    use crate::serve::media::served::ServedMedium as _;
    use crate::serve::media::tests::unit;

    type Records = Rc<RefCell<Vec<Arc<RecordProgress>>>>;

    /// Returns the records that an export requests.
    fn records_of(export: &NbdExport) -> Records {
        let scratch = Scratch::new();
        let unit = unit(scratch.path(), "type = \"ram\", size = \"2M\"");
        let records = Records::default();
        let list = Rc::clone(&records);
        let recorder = |_| -> RecordLoss {
            let list = Rc::clone(&list);
            Box::new(move |_, progress| list.borrow_mut().push(progress))
        };
        export.record_losses(&unit, &recorder, None);
        records
    }

    #[test]
    fn what_a_server_has_not_flushed_when_it_is_left_is_recorded() {
        for is_up in [true, false] {
            let (mut exports, pool) = (exports(), Pool::new(1 << 20));
            let sentences = Rc::<RefCell<Vec<String>>>::default();
            let list = Rc::clone(&sentences);
            exports.links.lost = Box::new(move |sentence| list.borrow_mut().push(sentence));
            let export = add_unflushed(&mut exports, &pool);
            let records = records_of(&export);
            if is_up {
                // The reactor ends before the server has flushed.
                exports.close(UnitId(3));
                assert_eq!((records.borrow().len(), sentences.borrow().len()), (0, 0));
                drop(exports);
            } else {
                exports.disconnected(Instant::ORIGIN, ConnId(7));
                exports.close(UnitId(3));
            }
            assert_eq!((records.borrow().len(), sentences.borrow().len()), (1, 1), "{is_up}");
            assert!(export.health().lost_writes.is_some());
        }
    }

    #[test]
    fn a_loss_is_accepted_when_its_record_is_written_and_noticed_again_later() {
        let (mut exports, pool) = (exports(), Pool::new(1 << 20));
        let export = add_unflushed(&mut exports, &pool);
        let records = records_of(&export);
        let (done, answers) = channel();
        let begin = |has_failed_flush| export.begin_acceptance(has_failed_flush, done.clone());
        assert_eq!((begin(false), begin(true)), (Err(NotAccepted::NothingLost), Ok(())));
        export.record_loss();
        export.record_loss();
        assert_eq!((records.borrow().len(), begin(true)), (1, Err(NotAccepted::NotRecorded)));
        assert!(export.obstacle().is_some(), "another process would not learn of it");
        records.borrow()[0].end(true);
        assert!(export.obstacle().is_none());
        assert_eq!(begin(false), Ok(()));
        assert!(!export.end_acceptance(false) && export.health().lost_writes.is_some());
        assert_eq!(begin(false), Ok(()));
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [Ok(()), Ok(()), Ok(())]);
        assert!(export.end_acceptance(true) && export.health().lost_writes.is_none());
        export.record_loss();
        assert_eq!(records.borrow().len(), 2);
    }
}
