//! A file or device before it is on its reactor.

use std::path::{Path, PathBuf};

use backends::open::{FileIdentity, Opened};

use super::Disk;
use crate::config::Unit;
use crate::serve::media::identity::MediumIdentity;
use crate::serve::media::opened::{OpenedMedium, Place};
use crate::serve::media::served::ServedMedium;
use crate::serve::media::{MediaError, loss};
use crate::serve::state::StateDir;

/// A file or device that is open.
#[derive(Debug)]
pub(in crate::serve) struct OpenDisk {
    opened: Opened,
    identity: MediumIdentity,
    path: PathBuf,
}

impl OpenDisk {
    /// Looks at what distinguishes a file or device that was opened at a path from others.
    pub(in crate::serve) fn new(opened: Opened, path: PathBuf) -> Self {
        Self { identity: MediumIdentity::of_opened(&opened), opened, path }
    }
}

impl OpenedMedium for OpenDisk {
    fn identity(&self) -> Option<FileIdentity> {
        Some(self.opened.identity())
    }

    fn lasting_identity(&self) -> Option<MediumIdentity> {
        Some(self.identity.clone())
    }

    fn size(&self) -> Option<(u64, &Path)> {
        Some((self.opened.size(), &self.path))
    }

    fn check_loss(&mut self, unit: &Unit, state: &StateDir) -> Result<Option<String>, MediaError> {
        loss::check(unit, (&mut self.opened, &self.path), self.identity.clone(), state)
    }

    fn place(self: Box<Self>, place: Place<'_>) -> Box<dyn ServedMedium> {
        let Self { opened, identity, path } = *self;
        let queue = place.files.queue(place.id);
        Box::new(Disk::new((opened, identity), (path, None), queue, place.label))
    }
}
