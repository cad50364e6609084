//! The media that a process which serves gives to the one that takes over. A file or device is found by the
//! path of its unit, what is in a drive by the unit.

use std::collections::BTreeMap;
use std::fs::File;

use backends::open::handed_over::HandedOverFiles;

use super::discs::MovedDisc;
use crate::config::Naa;

/// What a descriptor is that moves to another process.
#[derive(Clone, Debug)]
pub(super) enum MovedMedium {
    /// A file or device of a LUN.
    File,
    /// The image of the disc in a drive.
    Disc {
        /// The NAA identifier of the drive.
        drive: String,
        /// The disc.
        disc: MovedDisc,
    },
}

/// The media that are not in use yet.
#[derive(Debug, Default)]
pub(super) struct HandedOverMedia {
    pub(super) files: HandedOverFiles,
    /// The discs in drives, by the identifier of the drive. A drive that is missing is empty.
    discs: BTreeMap<String, (MovedDisc, File)>,
}

impl HandedOverMedia {
    /// Adds the disc in a drive.
    pub(super) fn add_disc(&mut self, drive: String, disc: MovedDisc, file: File) {
        self.discs.insert(drive, (disc, file));
    }

    /// Returns the disc in a drive and its image; `None` if the drive is empty.
    pub(super) fn take_disc(&mut self, drive: Naa) -> Option<(MovedDisc, File)> {
        self.discs.remove(&drive.to_string())
    }

    /// Returns whether every medium was taken.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.discs.is_empty()
    }
}
