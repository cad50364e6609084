//! Whether the medium can be used: whether the unit is stopped, whether a removable medium is loaded, and
//! which nexuses prevent its removal (SBC-4 §4.4, §4.20).

use alloc::vec::Vec;

use scsi::sense::{Asc, Sense, SenseKey};
use serde::{Deserialize, Serialize};

use crate::contract::NexusId;
use crate::handover::{IndexOf, NexusOf, RestoreError, indices_are_unique};

/// Where the medium is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// In the unit.
    #[default]
    Loaded,
    /// Ejected: outside, or on the open tray.
    Ejected,
    /// There is none: the tray is closed and empty.
    Absent,
}

/// What happened to the medium, as GET EVENT STATUS NOTIFICATION reports it (MMC-6, media class events).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MediaEvent {
    #[default]
    NoChange,
    /// The operator wants to remove the medium, and a nexus prevents it.
    EjectRequest,
    /// A medium was loaded.
    NewMedia,
    /// The medium was removed.
    MediaRemoval,
}

impl MediaEvent {
    /// Returns the code of the event.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::NoChange => 0,
            Self::EjectRequest => 1,
            Self::NewMedia => 2,
            Self::MediaRemoval => 3,
        }
    }
}

/// The state of the unit and its medium, and the nexuses that prevent removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MediumRemoval {
    place: Place,
    stopped: bool,
    /// Whether the unit has a tray, so that its sense data says whether the tray is open.
    has_tray: bool,
    /// The nexuses that prevent removal. Each is listed at most once, so there are never more entries than
    /// nexuses.
    prevented_by: Vec<NexusId>,
}

impl MediumRemoval {
    /// Gives the unit a tray.
    pub(crate) const fn add_tray(&mut self) {
        self.has_tray = true;
    }

    /// Returns whether the medium is loaded.
    pub(crate) const fn is_present(&self) -> bool {
        matches!(self.place, Place::Loaded)
    }

    /// Returns whether the tray is open, or the medium outside.
    pub(crate) const fn is_ejected(&self) -> bool {
        matches!(self.place, Place::Ejected)
    }

    /// Returns why the medium cannot be used, or `None` if it can.
    pub(crate) const fn not_ready(&self) -> Option<Sense> {
        match (self.place, self.stopped) {
            (Place::Loaded, false) => None,
            (Place::Loaded, true) => Some(STOPPED),
            (Place::Ejected, _) if self.has_tray => Some(TRAY_OPEN),
            (Place::Ejected, _) => Some(NOT_PRESENT),
            (Place::Absent, _) => Some(TRAY_CLOSED),
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
        self.place = Place::Ejected;
    }

    /// Closes the tray, or takes the medium in. `has_medium` says whether there is one. Returns whether a
    /// medium was loaded.
    pub(crate) const fn load(&mut self, has_medium: bool) -> bool {
        let was_present = self.is_present();
        self.place = if has_medium { Place::Loaded } else { Place::Absent };
        has_medium && !was_present
    }
}

/// Where the medium is and who prevents its removal, in a document that one process hands over to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RemovalState {
    place: PlaceState,
    stopped: bool,
    prevented_by: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum PlaceState {
    Loaded,
    Ejected,
    Absent,
}

impl MediumRemoval {
    /// Returns the state in a document.
    pub(crate) fn export(&self, index_of: IndexOf<'_>) -> RemovalState {
        // The device type decides whether there is a tray.
        let Self { place, stopped, has_tray: _, prevented_by } = self;
        RemovalState {
            place: match place {
                Place::Loaded => PlaceState::Loaded,
                Place::Ejected => PlaceState::Ejected,
                Place::Absent => PlaceState::Absent,
            },
            stopped: *stopped,
            prevented_by: prevented_by.iter().filter_map(|id| index_of(*id)).collect(),
        }
    }

    /// Returns the state of a document for this unit. `has_medium` says whether there is a medium now; only
    /// a unit that takes it in and out can be without one.
    ///
    /// # Errors
    /// [`RestoreError::NexusTwice`].
    pub(crate) fn restored(
        &self,
        state: &RemovalState,
        has_medium: bool,
        nexus_of: NexusOf<'_>,
    ) -> Result<Self, RestoreError> {
        let RemovalState { place, stopped, prevented_by } = state;
        if !indices_are_unique(prevented_by.iter().copied()) {
            return Err(RestoreError::NexusTwice);
        }
        let place = match place {
            PlaceState::Ejected => Place::Ejected,
            _ if self.has_tray && !has_medium => Place::Absent,
            PlaceState::Loaded | PlaceState::Absent => Place::Loaded,
        };
        let prevented_by = prevented_by.iter().filter_map(|index| nexus_of(*index)).collect();
        Ok(Self { place, stopped: *stopped, has_tray: self.has_tray, prevented_by })
    }
}

impl RemovalState {
    /// Returns whether the medium was loaded.
    pub(crate) const fn is_loaded(&self) -> bool {
        matches!(self.place, PlaceState::Loaded)
    }
}

/// The sense data of a command that needs the medium while the unit is stopped.
const STOPPED: Sense = Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_INITIALIZING_COMMAND_REQUIRED);

/// The sense data of a command that needs the medium while it is ejected.
const NOT_PRESENT: Sense = Sense::new(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT);

/// The same of a unit with a tray, which is closed and empty.
const TRAY_CLOSED: Sense = Sense::new(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT_TRAY_CLOSED);

/// The same of a unit with a tray, which is open.
const TRAY_OPEN: Sense = Sense::new(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT_TRAY_OPEN);

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
        assert!(removal.load(true));
        assert!(!removal.load(true));
    }

    #[test]
    fn a_tray_is_open_or_closed_and_empty() {
        let mut removal = MediumRemoval::default();
        removal.add_tray();
        removal.eject();
        assert_eq!(removal.not_ready(), Some(TRAY_OPEN));
        assert!(removal.is_ejected() && !removal.load(false));
        assert_eq!(removal.not_ready(), Some(TRAY_CLOSED));
        assert!(!removal.is_ejected() && removal.load(true));
        assert_eq!(removal.not_ready(), None);
    }
}
