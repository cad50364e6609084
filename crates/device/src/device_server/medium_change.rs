//! Changes of the medium from outside: its size, whether it is withheld, and another disc in a drive.

use scsi::sense::{Asc, Sense, SenseKey};

use super::DeviceServer;
use crate::medium_removal::MediaEvent;

/// The sense data of a command that needs a medium which is withheld. Not MEDIUM NOT PRESENT: hosts forget
/// the size and the partitions of a disk without a medium, while this medium returns unchanged once its
/// operator has intervened.
pub(super) const WITHHELD: Sense =
    Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_MANUAL_INTERVENTION_REQUIRED);

impl DeviceServer {
    /// Reads the capabilities of the medium again. Every nexus receives a unit attention for a changed
    /// capacity.
    pub(crate) fn refresh_capabilities(&mut self) {
        let before = self.info.capacity();
        self.info.capabilities = self.medium.capabilities();
        self.info.tells_space = self.medium.space().is_some();
        if self.info.capacity() != before {
            self.nexuses.establish_ua_all(Asc::CAPACITY_DATA_HAS_CHANGED, None);
        }
    }

    /// Returns why the medium cannot be used now, or `None` if it can.
    pub(crate) fn not_ready(&self) -> Option<Sense> {
        self.sanitizer
            .progress(self.info.capabilities.len)
            .or_else(|| self.withheld.then_some(WITHHELD))
            .or_else(|| self.sanitizer.failure())
            .or_else(|| self.tape_not_ready())
            .or_else(|| self.spc.not_ready())
    }

    /// Takes over another medium, or none, that the operator has put into the store. The tray is closed then.
    pub(crate) fn replace_medium(&mut self) {
        self.info.capabilities = self.medium.capabilities();
        self.info.tells_space = self.medium.space().is_some();
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

    /// Drains the unit, or lets tasks use its medium again. Every nexus receives a unit attention then: the
    /// operator may have changed the medium meanwhile.
    pub(crate) fn set_drained(&mut self, drained: bool) {
        if core::mem::replace(&mut self.drained, drained) && !drained {
            self.nexuses.establish_ua_all(Asc::MEDIUM_MAY_HAVE_CHANGED, None);
            self.refresh_capabilities();
        }
    }

    /// Returns whether the operator drains the unit.
    pub(crate) const fn is_drained(&self) -> bool {
        self.drained
    }

    /// Withholds the medium, or makes it available again. Every nexus receives a unit attention when it is
    /// available again.
    pub(crate) fn withhold(&mut self, withheld: bool) {
        if core::mem::replace(&mut self.withheld, withheld) && !withheld {
            self.nexuses.establish_ua_all(Asc::MEDIUM_MAY_HAVE_CHANGED, None);
        }
        if !withheld {
            self.refresh_capabilities();
        }
    }
}
