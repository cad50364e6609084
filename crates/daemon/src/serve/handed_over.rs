//! The media that a process which serves gives to the one that takes over. A file or device is found by the
//! path of its unit, what is in a drive by the unit.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use ::nbd::handshake::ExportInfo;
use backends::open::handed_over::HandedOverFiles;
use backends::sg::MovedSg;

use super::discs::MovedDisc;
use crate::config::Naa;

/// The medium behind a descriptor that one process passes to another.
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
    /// The lock of a tape library.
    Library {
        /// The NAA identifier of the changer.
        changer: String,
    },
}

/// The cartridge in a drive, as it moves to another process.
#[derive(Debug)]
pub(super) struct MovedCartridge {
    /// The NAA identifier of the drive.
    pub(super) drive: String,
    /// The folder.
    pub(super) path: PathBuf,
    /// Whether it was opened for reading only.
    pub(super) read_only: bool,
    /// The label, which is locked, and the folder.
    pub(super) files: [File; 2],
}

/// The connection to an NBD server, or a block device of another process, as it moves to another process.
#[derive(Debug)]
pub(super) struct MovedExport {
    /// What was negotiated.
    pub(super) info: ExportInfo,
    /// The socket. The connection to a device does not move.
    pub(super) socket: Option<OwnedFd>,
}

/// The memory of a LUN, as it moves to another process.
#[derive(Debug)]
pub(super) struct MovedMemory {
    /// Its length in bytes.
    pub(super) len: u64,
    /// Each run of chunks that are allocated: the number of the first one, and how many there are.
    pub(super) chunks: Vec<(u64, u64)>,
    /// The file of the chunks, each at its place in the medium.
    pub(super) file: File,
}

/// What comes with the sessions, because it could change until they were frozen.
#[derive(Debug, Default)]
pub(super) struct SessionMedia {
    /// The cartridges in drives, by the identifier of the drive.
    pub(super) cartridges: BTreeMap<String, MovedCartridge>,
    /// The connections to NBD servers, and the block devices of other processes, by the identifier of the
    /// unit.
    pub(super) exports: BTreeMap<String, MovedExport>,
    /// The devices that commands are passed to, by the identifier of the unit.
    pub(super) devices: BTreeMap<String, MovedSg>,
    /// The memory of LUNs, by the identifier of the unit.
    pub(super) memories: BTreeMap<String, MovedMemory>,
}

impl SessionMedia {
    /// Returns whether everything was taken.
    pub(super) fn is_empty(&self) -> bool {
        let Self { cartridges, exports, devices, memories } = self;
        cartridges.is_empty() && exports.is_empty() && devices.is_empty() && memories.is_empty()
    }
}

/// The media that are not in use yet.
#[derive(Debug, Default)]
pub(super) struct HandedOverMedia {
    pub(super) files: HandedOverFiles,
    /// The discs in drives, by the identifier of the drive. A drive that is missing is empty.
    discs: BTreeMap<String, (MovedDisc, File)>,
    /// The locks of tape libraries, by the identifier of the changer.
    libraries: BTreeMap<String, File>,
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

    /// Adds the lock of a tape library.
    pub(super) fn add_library(&mut self, changer: String, lock: File) {
        self.libraries.insert(changer, lock);
    }

    /// Returns the lock of a tape library.
    pub(super) fn take_library(&mut self, changer: Naa) -> Option<File> {
        self.libraries.remove(&changer.to_string())
    }

    /// Returns whether every medium was taken.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.discs.is_empty() && self.libraries.is_empty()
    }
}
