//! Changes of the medium from outside: its size, whether it is withheld, and another disc in a drive.

use alloc::boxed::Box;

use scsi::sense::{Asc, Sense, SenseKey};
use store::api::{Failure, OpAction, OpOutput};

use super::DeviceServer;
use crate::contract::{DeviceKind, NexusId};
use crate::disc_record::{DiscRecord, SECTOR_LEN};
use crate::drain::Drain;
use crate::medium_removal::MediaEvent;
use crate::recorder::Recorder;
use crate::task::TaskId;

/// The tag of the flush of a drain. Operations of SANITIZE and FORMAT UNIT, which have the same owner, have
/// the tag 0.
pub(crate) const DRAIN_FLUSH: u32 = 1;

/// The sense data of a command that needs a medium which is withheld. Not MEDIUM NOT PRESENT: hosts forget
/// the size and the partitions of a disk without a medium, while this medium returns unchanged once its
/// operator has intervened.
pub(super) const WITHHELD: Sense =
    Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_MANUAL_INTERVENTION_REQUIRED);

/// The sense data of a unit whose medium does not answer: that of reads and writes that have waited in vain.
pub(crate) const AWAY: Sense =
    Sense::new(SenseKey::NOT_READY, Asc::LOGICAL_UNIT_DOES_NOT_RESPOND_TO_SELECTION);

impl DeviceServer {
    /// Reads the capabilities of the medium again. Every nexus receives a unit attention for a changed
    /// capacity.
    pub(crate) fn refresh_capabilities(&mut self) {
        let before = self.info.capacity();
        self.info.capabilities = self.medium.adopt_capabilities();
        self.info.tells_space = self.medium.space().is_some();
        self.limit_to_disc();
        let now = self.info.capacity();
        if now != before {
            self.nexuses.establish_ua_all(Asc::CAPACITY_DATA_HAS_CHANGED, None);
        }
        if now < before {
            // If the medium grows again, its new end has other data than the one that the tokens represent.
            self.copy_manager.tokens.revoke_all();
        }
    }

    /// Returns why the unit is not ready, or `None` if it is. The operator's view of the unit reports the
    /// same ([`LogicalUnit::not_ready`](crate::unit::LogicalUnit::not_ready)).
    pub(crate) fn not_ready(&self) -> Option<Sense> {
        self.io_obstacle().or_else(|| self.medium.is_away().then_some(AWAY))
    }

    /// Returns what makes the medium unusable that no command of an initiator changes, or `None`.
    pub(crate) fn medium_trouble(&self) -> Option<Sense> {
        let is_away = || self.medium.is_away().then_some(AWAY);
        self.withheld.then_some(WITHHELD).or_else(is_away)
    }

    /// Returns why the unit refuses reads and writes now, or `None` if it executes them. Those for a medium
    /// that is away wait for it, as long as its store allows, so that a server can restart without a failed
    /// command.
    pub(crate) fn io_obstacle(&self) -> Option<Sense> {
        self.sanitizer
            .progress(self.info.capabilities.len)
            .or_else(|| self.withheld.then_some(WITHHELD))
            .or_else(|| self.sanitizer.failure())
            .or_else(|| self.tape_not_ready())
            .or_else(|| self.spc.not_ready())
    }

    /// Takes over another medium, or none, that the operator has put into the store. The tray is closed then.
    pub(crate) fn replace_medium(&mut self) {
        // What became of the former disc says nothing about this one.
        self.medium.forget_flushes();
        self.forget_lost_flushes();
        if self.drain == Drain::Flushing {
            self.drain = Drain::Ending;
        }
        self.info.capabilities = self.medium.adopt_capabilities();
        self.info.tells_space = self.medium.space().is_some();
        self.adopt_disc();
        self.withheld = false;
        let has_medium = self.info.has_medium();
        self.spc.removal.load(has_medium);
        if has_medium {
            self.nexuses.record_media_event(MediaEvent::NewMedia);
            self.nexuses.establish_ua_all(Asc::MEDIUM_MAY_HAVE_CHANGED, None);
        } else {
            self.nexuses.record_media_event(MediaEvent::MediaRemoval);
        }
    }

    /// Takes over the record of a writable disc, if one is in the drive.
    pub(crate) fn adopt_disc(&mut self) {
        let image_len = self.info.capabilities.len;
        let trailer = self.medium.trailer();
        let record = trailer.and_then(|bytes| DiscRecord::of_trailer(&bytes, image_len).ok().flatten());
        self.info.writable = record.as_ref().map(|record| record.kind);
        self.recorder = record.map(|record| Box::new(Recorder::new(record)));
        self.limit_to_disc();
    }

    /// The capacity of a writable disc is what can be read of it, not the length of its image.
    pub(crate) fn limit_to_disc(&mut self) {
        if let Some(recorder) = &self.recorder {
            self.info.capabilities.len = u64::from(recorder.record.readable()) * SECTOR_LEN;
        }
    }

    /// Applies the length of a disc that was erased and formatted. Every nexus but the one that formatted it
    /// receives a unit attention if the length has changed. All of them receive a media event: Linux reads
    /// the capacity anew, and forgets what it has cached of the disc, only after one, also on the host that
    /// formatted the disc.
    pub(crate) fn disc_formatted(&mut self, by: NexusId) {
        self.nexuses.record_media_event(MediaEvent::NewMedia);
        let before = self.info.capacity();
        self.limit_to_disc();
        if self.info.capacity() != before {
            self.nexuses.establish_ua_all(Asc::CAPACITY_DATA_HAS_CHANGED, Some(by));
        }
    }

    /// Drains the unit, or lets tasks use its medium again. A drain that has ended flushes once more.
    pub(crate) fn set_drained(&mut self, drained: bool) {
        match (self.drain, drained) {
            (Drain::No | Drain::Ended { .. }, true) => self.drain = Drain::Ending,
            (Drain::Ending | Drain::Saving | Drain::Flushing, true) | (Drain::No, false) => {}
            (_, false) => {
                self.drain = Drain::No;
                if !self.keeps_medium() {
                    self.nexuses.establish_ua_all(Asc::MEDIUM_MAY_HAVE_CHANGED, None);
                }
                self.copy_manager.tokens.revoke_all();
                self.refresh_capabilities();
                if self.tape.is_some() {
                    self.cartridge_inserted();
                }
            }
        }
    }

    /// Returns whether the operator cannot have changed the medium during a drain. The unit attention would
    /// fail the command of a host that does not repeat it, such as a WRITE of Linux to a tape drive.
    ///
    /// A device that is passed through reports changes itself. A tape drive and a drive with a writable disc
    /// work with what they know of their medium, so its files must not change. A cartridge that was put in
    /// during the drain is reported when it is loaded. A host prevents the removal of a medium while it uses
    /// it: Linux that of a mounted disc or removable disk, and takes every unit attention of one for another
    /// medium.
    fn keeps_medium(&self) -> bool {
        let has_record = self.tape.is_some() || self.recorder.is_some() || self.changer.is_some();
        has_record || self.pass_through.is_some() || self.spc.removal.check().is_err()
    }

    /// Returns how far the operator's drain of the unit is.
    pub(crate) const fn drain(&self) -> Drain {
        self.drain
    }

    /// Returns whether the operator drains the unit.
    pub(crate) const fn is_drained(&self) -> bool {
        !matches!(self.drain, Drain::No)
    }

    /// Flushes the medium of a drained unit once nothing else is under way: no task, no operation whose task
    /// has ended, no SANITIZE or FORMAT UNIT, no motion, no unload for one. The record of a writable disc is
    /// saved before. Returns whether one of these has begun.
    pub(crate) fn flush_drained(&mut self, tasks: usize) -> bool {
        let is_moving = self.changer.as_ref().is_some_and(|changer| changer.is_moving());
        let is_ejecting = self.tape.as_ref().is_some_and(|drive| drive.is_ejecting);
        let is_busy =
            tasks > 0 || !self.medium.is_idle() || self.sanitizer.is_running() || is_moving || is_ejecting;
        if !matches!(self.drain, Drain::Ending | Drain::Saving) || is_busy {
            return false;
        }
        if self.drain == Drain::Ending && self.save_disc() {
            self.drain = Drain::Saving;
            return true;
        }
        // Other stores take no flush: a tape drive and a device of the host keep what hosts wrote until hosts
        // have it written out.
        if matches!(self.info.config.device, DeviceKind::Disk | DeviceKind::Disc { .. }) {
            self.drain = Drain::Flushing;
            self.medium.submit(self.now, TaskId::BACKGROUND, DRAIN_FLUSH, OpAction::Flush);
        } else {
            self.drain = Drain::Ended { flush_failed: false };
        }
        true
    }

    /// Handles the end of the flush of a drain, which the operator may have ended meanwhile.
    pub(crate) fn drain_flushed(&mut self, result: Result<OpOutput, Failure>) {
        let is_saved = !self.recorder.as_ref().is_some_and(|disc| disc.has_unsaved());
        let flush_failed = self.flushed(result).is_err() || !is_saved;
        if self.drain == Drain::Flushing {
            self.drain = Drain::Ended { flush_failed };
        }
    }

    /// Withholds the medium, or makes it available again. Every nexus receives a unit attention when it is
    /// available again.
    pub(crate) fn withhold(&mut self, withheld: bool) {
        if core::mem::replace(&mut self.withheld, withheld) && !withheld {
            self.nexuses.establish_ua_all(Asc::MEDIUM_MAY_HAVE_CHANGED, None);
            self.copy_manager.tokens.revoke_all();
        }
        if !withheld {
            self.refresh_capabilities();
        }
    }
}
