//! A file or device as the medium of a unit.

use store::Store;

use super::{Disk, Inner};
use crate::config::Unit;
use crate::serve::media::handed_over::Obstacle;
use crate::serve::media::known_loss::{Loss, NotAccepted, SyncSender};
use crate::serve::media::lost_writes::LossSubject;
use crate::serve::media::served::{LossRecorder, MediumHealth, ServedMedium};

impl ServedMedium for Disk {
    fn store(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }

    fn configure(&self, unit: &Unit) {
        let mut inner = self.0.borrow_mut();
        unit.label.clone_into(&mut inner.label);
        if !unit.write_cache {
            inner.store.set_write_cache(false);
        }
    }

    fn enable_write_cache(&self) {
        self.0.borrow_mut().store.set_write_cache(true);
    }

    fn health(&self) -> MediumHealth {
        let inner = self.0.borrow();
        MediumHealth {
            errors: inner.errors,
            withheld: inner.withheld.clone(),
            lost_writes: inner.loss.as_ref().map(|loss| loss.why().to_owned()),
            failure: inner.failures.describe(),
            space: inner.facts.space(),
            is_rom: false,
        }
    }

    fn record_losses(&self, unit: &Unit, recorder: LossRecorder<'_>, known: Option<&str>) {
        let subject = self.subject_of(unit);
        let mut inner = self.0.borrow_mut();
        inner.record_loss = Some(recorder(subject));
        if let Some(why) = known {
            inner.loss = Some(Loss::recorded(why.to_owned()));
        }
    }

    fn loss_subject(&self, unit: &Unit) -> Option<LossSubject> {
        Some(self.subject_of(unit))
    }

    /// Makes everything that is not lost durable. Hosts are refused until [`Self::end_acceptance`], since the
    /// unit remembers the loss too.
    fn begin_acceptance(&self, has_failed_flush: bool, done: SyncSender) -> Result<(), NotAccepted> {
        let mut inner = self.0.borrow_mut();
        match &inner.loss {
            Some(loss) => {
                loss.begin_acceptance()?;
                inner.store.accept_lost_writes();
            }
            None if has_failed_flush => {}
            None => return Err(NotAccepted::NothingLost),
        }
        inner.begin_sync(done);
        Ok(())
    }

    fn end_acceptance(&self, is_accepted: bool) -> bool {
        let mut inner = self.0.borrow_mut();
        if let Some(loss) = &inner.loss {
            loss.end_acceptance(is_accepted);
        }
        if !is_accepted {
            inner.store.set_lost_writes();
            return false;
        }
        inner.loss = None;
        inner.failures.clear();
        // It may have lost writes again meanwhile.
        inner.notice_loss();
        inner.loss.is_none()
    }

    fn accept_failure(&self) -> Option<String> {
        let mut inner = self.0.borrow_mut();
        let failure = inner.failures.describe()?;
        inner.failures.clear();
        Some(failure)
    }

    fn obstacle(&self) -> Option<Obstacle> {
        let inner = self.0.borrow();
        let (why, can_end) = match &*inner {
            Inner { withheld: Some(why), .. } => (why.as_str(), false),
            Inner { snapshot: Some(_), .. } => ("a snapshot of it is in progress", true),
            inner => inner.loss_obstacle()?,
        };
        Some(Obstacle { sentence: format!("{}: {why}", inner.label), can_end })
    }

    fn busy(&self) -> Option<Obstacle> {
        let inner = self.0.borrow();
        let is_working = inner.facts.has_operations();
        is_working.then(|| format!("{}: it has I/O under way", inner.label).into())
    }
}

impl Disk {
    fn subject_of(&self, unit: &Unit) -> LossSubject {
        let info = self.info();
        LossSubject::of(unit, &info.path, info.medium.clone())
    }
}
