//! The files and devices that hosts can write, to make them durable.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use target::units::UnitId;

use super::ReactorShard;
use crate::serve::disk::{Disk, DiskInfo};

/// A file or device that hosts can write.
pub(in crate::serve) struct WrittenFile {
    pub(in crate::serve) id: UnitId,
    /// The path by which it was opened. It can lead to another file since.
    pub(in crate::serve) path: PathBuf,
    /// Another descriptor of it.
    pub(in crate::serve) file: io::Result<File>,
    /// A descriptor of it to which the system reports failed writes as well, if there is one.
    pub(in crate::serve) verifier: Option<io::Result<File>>,
}

impl ReactorShard {
    /// Returns the files and devices that hosts can write. Units of cartridges and of NBD servers make them
    /// durable themselves.
    pub(in crate::serve) fn written_files(&self) -> Vec<WrittenFile> {
        let written = self.disks.iter().map(|(id, disk)| (*id, disk.info(), disk));
        let written = written.filter(|(_, facts, _)| !facts.read_only);
        let file = |(id, facts, disk): (UnitId, Arc<DiskInfo>, &Disk)| WrittenFile {
            id,
            path: facts.path.clone(),
            file: disk.try_clone_file(),
            verifier: disk.try_clone_verifier(),
        };
        written.map(file).collect()
    }
}
