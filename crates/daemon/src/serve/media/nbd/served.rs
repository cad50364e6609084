//! An export as the medium of a unit.

use store::Store;

use super::NbdExport;
use crate::config::Unit;
use crate::serve::media::handed_over::{MovingMedium, Obstacle};
use crate::serve::media::known_loss::{Loss, NotAccepted, SyncSender};
use crate::serve::media::lost_writes::LossSubject;
use crate::serve::media::served::{LossRecorder, MediumHealth, ServedMedium, accept_of_unit};

impl ServedMedium for NbdExport {
    fn store(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }

    fn configure(&self, unit: &Unit) {
        self.apply(unit);
    }

    fn enable_write_cache(&self) {
        self.0.borrow_mut().client.set_write_cache(true);
    }

    fn reopen(&self, _unit: &Unit) -> bool {
        self.accept()
    }

    fn health(&self) -> MediumHealth {
        let inner = self.0.borrow();
        let away = || inner.client.is_away().then(|| format!("{} does not answer", inner.address));
        MediumHealth {
            errors: inner.errors,
            withheld: inner.withheld.clone().or_else(away),
            lost_writes: inner.loss.why().map(str::to_owned),
            ..MediumHealth::default()
        }
    }

    fn record_losses(&self, unit: &Unit, recorder: LossRecorder<'_>, known: Option<&str>) {
        let subject = self.subject_of(unit);
        let record = recorder(subject.clone());
        self.0.borrow_mut().loss.set_record(subject, record, known);
    }

    fn loss_subject(&self, _unit: &Unit) -> Option<LossSubject> {
        self.0.borrow().loss.subject()
    }

    /// Makes nothing durable: the client keeps what is not lost.
    fn begin_acceptance(&self, has_failed_flush: bool, done: SyncSender) -> Result<(), NotAccepted> {
        let mut inner = self.0.borrow_mut();
        if let Some(loss) = inner.loss.get() {
            loss.begin_acceptance()?;
            // The client notices what it loses from now on.
            inner.client.accept_lost_changes();
            return accept_of_unit(true, &done);
        }
        accept_of_unit(has_failed_flush, &done)
    }

    fn end_acceptance(&self, is_accepted: bool) -> bool {
        let mut inner = self.0.borrow_mut();
        if let Some(loss) = inner.loss.get() {
            Loss::end_acceptance(loss, is_accepted);
        }
        if !is_accepted {
            return false;
        }
        inner.loss.forget();
        // Its server may have lost writes again meanwhile.
        let has_lost = inner.client.has_lost();
        drop(inner);
        if has_lost {
            self.record_loss();
        }
        !has_lost
    }

    fn obstacle(&self) -> Option<Obstacle> {
        self.why_unmovable()
    }

    fn away(&self) -> Option<String> {
        self.unanswering()
    }

    fn busy(&self) -> Option<Obstacle> {
        self.unfinished()
    }

    fn export(&self, unit: &str) -> Result<Option<MovingMedium>, String> {
        Ok(Some(MovingMedium::Export(self.moving(unit))))
    }
}
