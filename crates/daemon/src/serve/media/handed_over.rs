//! The media that a process which serves gives to the one that takes over. A file or device is found by the
//! path of its unit, what is in a drive by the unit.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use ::nbd::handshake::ExportInfo;
use backends::open::handed_over::HandedOverFiles;
use backends::sg::MovedSg;
use base::buffer::Bytes;
use base::state_machine::ConnId;
use serde::{Deserialize, Serialize};

use super::image_state::ImageState;
use crate::config::Naa;

/// The medium behind a descriptor that one process passes to another.
#[derive(Clone, Debug)]
pub(in crate::serve) enum MovedMedium {
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

/// The disc in a drive, as another process finds it there. Its image follows as a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::serve) struct MovedDisc {
    pub(in crate::serve) path: PathBuf,
    pub(in crate::serve) read_only: bool,
    /// The state of the file when it was opened.
    pub(in crate::serve) state: Option<ImageState>,
}

/// The connection to an NBD server, or a block device of another process, as it moves to another process.
#[derive(Debug)]
pub(in crate::serve) struct MovingExport {
    /// The NAA identifier of the unit.
    pub(in crate::serve) unit: String,
    /// What was negotiated.
    pub(in crate::serve) info: ExportInfo,
    /// The connection, if it moves: that to a device does not.
    pub(in crate::serve) conn: Option<ConnId>,
}

/// The cartridge in a drive, as it moves to another process.
#[derive(Debug)]
pub(in crate::serve) struct MovedCartridge {
    /// The NAA identifier of the drive.
    pub(in crate::serve) drive: String,
    /// The folder.
    pub(in crate::serve) path: PathBuf,
    /// Whether it was opened for reading only.
    pub(in crate::serve) read_only: bool,
    /// The label, which is locked, and the folder.
    pub(in crate::serve) files: [File; 2],
}

/// The connection to an NBD server, or a block device of another process, as it moves to another process.
#[derive(Debug)]
pub(in crate::serve) struct MovedExport {
    /// What was negotiated.
    pub(in crate::serve) info: ExportInfo,
    /// The socket. The connection to a device does not move.
    pub(in crate::serve) socket: Option<OwnedFd>,
}

/// The memory of a LUN, as it moves to another process.
#[derive(Debug)]
pub(in crate::serve) struct MovedMemory {
    /// Its length in bytes.
    pub(in crate::serve) len: u64,
    /// Each run of chunks that are allocated: the number of the first one, and how many there are.
    pub(in crate::serve) chunks: Vec<(u64, u64)>,
    /// The file of the chunks, each at its place in the medium.
    pub(in crate::serve) file: File,
}

/// Chunks that are to be copied to the file, each with its place.
#[derive(Debug)]
pub(in crate::serve) struct TakenChunks {
    pub(in crate::serve) file: Arc<File>,
    pub(in crate::serve) chunks: Vec<(u64, Bytes)>,
}

impl TakenChunks {
    /// Copies the chunks.
    ///
    /// # Errors
    /// The error of the system, which can lack memory.
    pub(in crate::serve) fn copy(&self) -> io::Result<()> {
        self.chunks.iter().try_for_each(|(at, chunk)| self.file.write_all_at(chunk, *at))
    }
}

/// Memory as it moves to another process.
#[derive(Debug)]
pub(in crate::serve) struct MovingMemory {
    pub(in crate::serve) len: u64,
    /// Each run of allocated chunks: the number of the first one, and how many there are.
    pub(in crate::serve) chunks: Vec<(u64, u64)>,
    pub(in crate::serve) file: File,
    /// The chunks that the file does not have yet.
    pub(in crate::serve) rest: TakenChunks,
}

/// A medium as it moves to another process, with the sessions.
/// Each has the NAA identifier of its unit.
#[derive(Debug)]
pub(in crate::serve) enum MovingMedium {
    /// The cartridge in a drive.
    Cartridge(MovedCartridge),
    /// The connection to an NBD server, or a block device of another process.
    Export(MovingExport),
    /// The device that commands are passed to.
    Device(String, MovedSg),
    /// Memory.
    Memory(String, MovingMemory),
}

/// What comes with the sessions, because it could change until they were frozen.
#[derive(Debug, Default)]
pub(in crate::serve) struct SessionMedia {
    /// The cartridges in drives, by the identifier of the drive.
    pub(in crate::serve) cartridges: BTreeMap<String, MovedCartridge>,
    /// The connections to NBD servers, and the block devices of other processes, by the identifier of the
    /// unit.
    pub(in crate::serve) exports: BTreeMap<String, MovedExport>,
    /// The devices that commands are passed to, by the identifier of the unit.
    pub(in crate::serve) devices: BTreeMap<String, MovedSg>,
    /// The memory of LUNs, by the identifier of the unit.
    pub(in crate::serve) memories: BTreeMap<String, MovedMemory>,
}

impl SessionMedia {
    /// Returns whether everything was taken.
    pub(in crate::serve) fn is_empty(&self) -> bool {
        let Self { cartridges, exports, devices, memories } = self;
        cartridges.is_empty() && exports.is_empty() && devices.is_empty() && memories.is_empty()
    }
}

/// The media that are not in use yet.
#[derive(Debug, Default)]
pub(in crate::serve) struct HandedOverMedia {
    pub(in crate::serve) files: HandedOverFiles,
    /// The discs in drives, by the identifier of the drive. A drive that is missing is empty.
    discs: BTreeMap<String, (MovedDisc, File)>,
    /// The locks of tape libraries, by the identifier of the changer.
    libraries: BTreeMap<String, File>,
}

impl HandedOverMedia {
    /// Adds the disc in a drive.
    pub(in crate::serve) fn add_disc(&mut self, drive: String, disc: MovedDisc, file: File) {
        self.discs.insert(drive, (disc, file));
    }

    /// Returns the disc in a drive and its image; `None` if the drive is empty.
    pub(in crate::serve) fn take_disc(&mut self, drive: Naa) -> Option<(MovedDisc, File)> {
        self.discs.remove(&drive.to_string())
    }

    /// Adds the lock of a tape library.
    pub(in crate::serve) fn add_library(&mut self, changer: String, lock: File) {
        self.libraries.insert(changer, lock);
    }

    /// Returns the lock of a tape library.
    pub(in crate::serve) fn take_library(&mut self, changer: Naa) -> Option<File> {
        self.libraries.remove(&changer.to_string())
    }

    /// Returns whether every medium was taken.
    pub(in crate::serve) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.discs.is_empty() && self.libraries.is_empty()
    }
}

/// What keeps a medium or a reactor from being handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) struct Obstacle {
    pub(in crate::serve) sentence: String,
    /// Whether waiting can help.
    pub(in crate::serve) can_end: bool,
}

impl Obstacle {
    /// Makes an obstacle that no wait ends.
    pub(in crate::serve) const fn lasting(sentence: String) -> Self {
        Self { sentence, can_end: false }
    }
}

impl From<String> for Obstacle {
    fn from(sentence: String) -> Self {
        Self { sentence, can_end: true }
    }
}

impl From<&str> for Obstacle {
    fn from(sentence: &str) -> Self {
        sentence.to_owned().into()
    }
}
