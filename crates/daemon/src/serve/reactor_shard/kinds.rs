//! Finds media by their kind, for what only one kind can do.

use std::any::Any;

use target::units::UnitId;

use super::ReactorShard;
use crate::serve::media::disc::DiscDrive;
use crate::serve::media::disk::Disk;
use crate::serve::media::served::ServedMedium;

/// Returns a medium if it is of this kind.
pub(super) fn downcast<M: ServedMedium>(medium: &dyn ServedMedium) -> Option<&M> {
    let medium: &dyn Any = medium;
    medium.downcast_ref()
}

/// Returns whether a medium is of this kind.
pub(super) fn is<M: ServedMedium>(medium: &dyn ServedMedium) -> bool {
    downcast::<M>(medium).is_some()
}

/// Returns the file or device of a medium, or the image of the disc in its drive.
pub(super) fn disk_of(medium: &dyn ServedMedium) -> Option<Disk> {
    downcast::<Disk>(medium).cloned().or_else(|| downcast::<DiscDrive>(medium)?.disc())
}

impl ReactorShard {
    /// Returns the medium of a unit if it is of this kind.
    pub(super) fn medium<M: ServedMedium>(&self, id: UnitId) -> Option<&M> {
        downcast(self.media.get(&id)?.as_ref())
    }

    /// Returns the file or device of a unit, or the image of the disc in its drive.
    pub(super) fn disk(&self, id: UnitId) -> Option<Disk> {
        disk_of(self.media.get(&id)?.as_ref())
    }
}
