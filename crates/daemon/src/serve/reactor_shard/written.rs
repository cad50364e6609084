//! The files and devices that hosts can write, to make them durable.

use std::sync::Arc;

use target::units::UnitId;

use super::ReactorShard;
use super::kinds::disk_of;
use crate::serve::media::disk::{Disk, DiskInfo};
use crate::serve::media::loss::WrittenFile;

impl ReactorShard {
    /// Returns the files and devices that hosts can write. Units of cartridges and of NBD servers make them
    /// durable themselves.
    pub(in crate::serve) fn written_files(&self) -> Vec<WrittenFile> {
        let disks = self.media.iter().filter_map(|(id, medium)| Some((*id, disk_of(medium.as_ref())?)));
        let written =
            disks.map(|(id, disk)| (id, disk.info(), disk)).filter(|(_, facts, _)| !facts.read_only);
        let file = |(id, facts, disk): (UnitId, Arc<DiskInfo>, Disk)| WrittenFile {
            id,
            path: facts.path.clone(),
            medium: facts.medium.clone(),
            file: disk.try_clone_file(),
            verifier: disk.try_clone_verifier(),
        };
        written.map(file).collect()
    }
}
