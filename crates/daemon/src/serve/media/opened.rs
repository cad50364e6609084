//! Open media, as the thread that reads configurations deals with them, before a reactor serves them: each
//! kind implements what it needs of [`OpenedMedium`].

use std::fmt::Debug;
use std::path::Path;

use backends::open::FileIdentity;
use base::buffer::Pool;
use base::state_machine::MediumId;
use base::units::ByteLen;
use drivers::files::Files;

use super::error::MediaError;
use super::served::{NoStorage, ServedMedium};
use crate::config::Unit;
use crate::serve::media::export_queue::ExportQueue;
use crate::serve::media::handed_over::SessionMedia;
use crate::serve::media::identity::MediumIdentity;
use crate::serve::state::StateDir;

/// An open medium without encryption on top, which can be moved to the reactor that will serve it.
pub(in crate::serve) trait OpenedMedium: Debug + Send {
    /// Returns the identity of the file or device, if the medium is one.
    fn identity(&self) -> Option<FileIdentity> {
        None
    }

    /// Returns what distinguishes the file or device from others for good, if that was looked at.
    fn lasting_identity(&self) -> Option<MediumIdentity> {
        None
    }

    /// Returns how many bytes the file or device has, and its path, if the medium is one.
    fn size(&self) -> Option<(u64, &Path)> {
        None
    }

    /// Finds out whether writes to it are lost; returns why.
    fn check_loss(&mut self, _unit: &Unit, _state: &StateDir) -> Result<Option<String>, MediaError> {
        Ok(None)
    }

    /// Takes what could change until the other process had given up its sessions.
    fn receive(&mut self, _unit: &Unit, _media: &mut SessionMedia) -> Result<(), MediaError> {
        Ok(())
    }

    /// Returns the serial numbers of the drives of a library, if the medium is one.
    fn drive_serials(&self) -> Option<Vec<String>> {
        None
    }

    /// Moves it to a reactor.
    fn place(self: Box<Self>, place: Place<'_>) -> Box<dyn ServedMedium>;
}

/// The reactor that is to serve a medium.
pub(in crate::serve) struct Place<'a> {
    pub(in crate::serve) files: &'a Files,
    pub(in crate::serve) pool: &'a Pool,
    pub(in crate::serve) exports: &'a ExportQueue,
    pub(in crate::serve) id: MediumId,
    pub(in crate::serve) label: &'a str,
}

impl OpenedMedium for NoStorage {
    fn place(self: Box<Self>, _place: Place<'_>) -> Box<dyn ServedMedium> {
        self
    }
}

/// Returns what is served of a medium that another process was to give and did not. It fails before.
pub(in crate::serve) fn nothing() -> Box<dyn ServedMedium> {
    Box::new(NoStorage(ByteLen(0)))
}
