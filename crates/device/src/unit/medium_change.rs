//! Changes of the medium by its operator: its size, another disc, whether it is withheld, and the drain.

use alloc::vec::Vec;

use base::time::Instant;
use scsi::sense::{Asc, Sense, SenseKey};

use super::LogicalUnit;
use crate::contract::NexusId;
use crate::device_server::outcome::Outcome;
use crate::device_server::table::MediumNeed;
use crate::drain::Drain;
use crate::medium_removal::MediaEvent;
use crate::removal_obstacle::RemovalObstacle;
use crate::space_threshold::SpaceThreshold;
use crate::task::TaskId;
use crate::task_set::{Task, TaskState};

impl LogicalUnit {
    /// Reads the size of the medium again, and establishes a unit attention for every nexus if it changed.
    pub fn capacity_changed(&mut self, now: Instant) {
        self.server.now = now;
        self.server.refresh_capabilities();
        self.process_pending();
    }

    /// Records that the operator has put another disc into the store of a drive, or has emptied it. Commands
    /// that have begun and use the former disc end with MEDIUM MAY HAVE CHANGED, and every nexus receives
    /// that unit attention and a media event. What they have not submitted to the medium yet is dropped: it
    /// was meant for the former disc. Nexuses that prevent removal do not prevent this:
    /// [`Self::is_removal_prevented`] says whether there is one.
    pub fn medium_replaced(&mut self, now: Instant) {
        const CHANGED: Sense = Sense::new(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        self.server.now = now;
        for id in self.tasks_of_medium(MediumNeed::Ready) {
            let dropped = self.server.medium.forget_waiting(id);
            if let Some(task) = self.tasks.find_mut(id) {
                task.info.ops.set(task.info.ops.get().saturating_sub(dropped));
            }
            self.apply(id, Outcome::CheckCondition(CHANGED));
        }
        self.server.replace_medium();
        self.process_pending();
    }

    /// Returns whether a nexus prevents the removal of the medium, a command is writing or padding a writable
    /// disc, or such a disc has sectors that no host has synchronized yet.
    pub fn is_removal_prevented(&self) -> bool {
        self.removal_obstacle().is_some()
    }

    /// Returns why the operator must not take the medium out now.
    pub fn removal_obstacle(&self) -> Option<RemovalObstacle> {
        let disc = self.server.recorder.as_deref();
        let is_saving = || self.tasks.live().any(|task| task.info.nexus == NexusId::OWN);
        if self.server.spc.removal.check().is_err()
            || disc.is_some_and(|disc| disc.appends.are_refused())
            || disc.is_some() && !self.tasks_of_medium(MediumNeed::Writable).is_empty()
        {
            return Some(RemovalObstacle::InUse);
        }
        disc.filter(|disc| disc.has_unsaved()).map(|_| match is_saving() {
            true => RemovalObstacle::Saving,
            false => RemovalObstacle::Unsaved,
        })
    }

    /// Begins to make durable what hosts have appended to a disc, so that the operator can take it out:
    /// [`Self::removal_obstacle`] returns [`RemovalObstacle::Saving`] until that has ended, and
    /// [`RemovalObstacle::Unsaved`] if it failed.
    pub fn save_medium(&mut self, now: Instant) {
        self.server.now = now;
        self.server.save_disc();
        self.process_pending();
    }

    /// Returns the tasks that have begun and use the medium, or only those that write it. One of a command
    /// that needs no medium, as of an eject, is a job.
    fn tasks_of_medium(&self, need: MediumNeed) -> Vec<TaskId> {
        let is_chosen = |task: &&Task| {
            let row = self.server.table.find(&self.server.info, &task.info.cdb);
            let own = row.map_or(MediumNeed::NotNeeded, |row| row.medium);
            match (&task.state, own) {
                (TaskState::Dormant | TaskState::Delayed, _) => false,
                (_, MediumNeed::Writable) => true,
                (TaskState::Job(_), _) | (_, MediumNeed::Ready) => need == MediumNeed::Ready,
                _ => need == MediumNeed::Ready && task.info.ops.get() > 0,
            }
        };
        self.tasks.live().filter(is_chosen).map(|task| task.info.id).collect()
    }

    /// Tells every nexus that polls media events that the operator wants to remove the medium.
    pub fn removal_requested(&mut self, now: Instant) {
        self.server.now = now;
        self.server.nexuses.record_media_event(MediaEvent::EjectRequest);
    }

    /// Returns whether a medium is loaded.
    pub const fn is_medium_present(&self) -> bool {
        self.server.spc.removal.is_present()
    }

    /// Returns why the unit is not ready, or `None` if it is: the sense data of TEST UNIT READY, except that
    /// a drained unit answers that with BUSY.
    pub fn not_ready(&self) -> Option<Sense> {
        self.server.not_ready()
    }

    /// Withholds the medium because it is not the same as before: commands that need it end with NOT READY,
    /// MANUAL INTERVENTION REQUIRED. Or makes it available again, and every nexus receives the unit attention
    /// MEDIUM MAY HAVE CHANGED.
    pub fn withhold_medium(&mut self, now: Instant, withheld: bool) {
        self.server.now = now;
        self.server.withhold(withheld);
        self.process_pending();
    }

    /// Records when the storage of a thin unit counts as short, and whether it is short. Every nexus receives
    /// a unit attention when it has become short.
    pub fn set_space_threshold(&mut self, now: Instant, threshold: SpaceThreshold) {
        self.server.now = now;
        self.server.set_space_threshold(threshold);
    }

    /// Records that writes to the medium are lost: commands that flush fail until the operator accepts that.
    pub fn record_lost_writes(&mut self, now: Instant) {
        self.server.now = now;
        self.server.record_lost_flush();
    }

    /// Lets flushes succeed again: the operator accepts what is lost. The owner of the medium has made sure
    /// that its next flush covers everything that is not lost.
    pub fn accept_lost_writes(&mut self, now: Instant) {
        self.server.now = now;
        self.server.accept_lost_writes();
    }

    /// Returns whether a flush has failed, so that acknowledged writes may be lost.
    pub const fn has_failed_flush(&self) -> bool {
        self.server.has_failed_flush()
    }

    /// Drains the unit for its operator: tasks that it has go on, and new commands that need the medium end
    /// with BUSY. Or ends that, and every nexus receives the unit attention MEDIUM MAY HAVE CHANGED if the
    /// operator may have changed the medium.
    pub fn set_drained(&mut self, now: Instant, drained: bool) {
        self.server.now = now;
        self.server.set_drained(drained);
        self.process_pending();
    }

    /// Returns how far the operator's drain of the unit is.
    pub const fn drain(&self) -> Drain {
        self.server.drain()
    }
}
