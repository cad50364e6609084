//! Whether the medium can be used: whether the unit is stopped, whether a removable medium is loaded, and
//! which nexuses prevent its removal (SBC-4 §4.4, §4.20).

use alloc::vec::Vec;

use scsi::sense::{Asc, Sense, SenseKey};

use crate::contract::NexusId;

/// The state of the unit and its medium, and the nexuses that prevent removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MediumRemoval {
    ejected: bool,
    stopped: bool,
    /// The nexuses that prevent removal. Each is listed at most once, so there are never more entries than
    /// nexuses.
    prevented_by: Vec<NexusId>,
}

impl MediumRemoval {
    /// Returns whether the medium is loaded.
    pub(crate) const fn is_present(&self) -> bool {
        !self.ejected
    }

    /// Returns why the medium cannot be used, or `None` if it can.
    pub(crate) const fn not_ready(&self) -> Option<Sense> {
        if self.ejected {
            Some(NOT_PRESENT)
        } else if self.stopped {
            Some(STOPPED)
        } else {
            None
        }
    }

    /// Returns whether the unit was stopped.
    pub(crate) const fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Stops the unit, or starts it.
    pub(crate) const fn stop(&mut self, stopped: bool) {
        self.stopped = stopped;
    }

    /// Records a PREVENT ALLOW MEDIUM REMOVAL.
    pub(crate) fn prevent(&mut self, nexus: NexusId, prevent: bool) {
        self.allow(nexus);
        if prevent {
            self.prevented_by.push(nexus);
        }
    }

    /// Ends the prevention of one nexus that is lost or was preempted.
    pub(crate) fn allow(&mut self, nexus: NexusId) {
        self.prevented_by.retain(|other| *other != nexus);
    }

    /// Ends every prevention, after a reset. The medium stays loaded or ejected.
    pub(crate) fn reset(&mut self) {
        self.prevented_by.clear();
    }

    /// Checks whether the medium may be moved: no nexus prevents it, not even the requesting one.
    ///
    /// # Errors
    /// MEDIUM REMOVAL PREVENTED.
    pub(crate) const fn check(&self) -> Result<(), Sense> {
        if self.prevented_by.is_empty() { Ok(()) } else { Err(Sense::illegal(Asc::MEDIUM_REMOVAL_PREVENTED)) }
    }

    /// Ejects the medium.
    pub(crate) const fn eject(&mut self) {
        self.ejected = true;
    }

    /// Loads the medium, and returns whether it was ejected.
    pub(crate) const fn load(&mut self) -> bool {
        core::mem::replace(&mut self.ejected, false)
    }
}

/// The sense data of a command that needs the medium while the unit is stopped.
const STOPPED: Sense = Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_INITIALIZING_COMMAND_REQUIRED);

/// The sense data of a command that needs the medium while it is ejected.
const NOT_PRESENT: Sense = Sense::new(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nexus_prevents_for_itself() {
        let (a, b) = (NexusId(1), NexusId(2));
        let mut removal = MediumRemoval::default();
        removal.prevent(a, true);
        removal.prevent(a, true);
        removal.prevent(b, true);
        removal.prevent(a, false);
        assert!(removal.check().is_err());
        removal.allow(b);
        assert!(removal.check().is_ok());
        removal.prevent(a, true);
        removal.reset();
        assert!(removal.check().is_ok());
    }

    #[test]
    fn a_medium_that_was_out_is_new_once() {
        let mut removal = MediumRemoval::default();
        assert!(removal.is_present());
        removal.eject();
        assert!(!removal.is_present());
        assert!(removal.load());
        assert!(!removal.load());
    }
}
