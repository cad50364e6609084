//! What the files that are served take from their file systems, as the media watch has measured it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use backends::store::FileSpace;
use device::space_threshold::{SpaceLevel, SpaceThreshold};
use rustix::fs::{major, minor};

use crate::admin::lun_api::FileSystem;
use crate::config::show_size;

/// A file system with less than this part of it free is nearly full, in percent.
const NEARLY_FULL: u64 = 10;

/// How much more must be free before it counts as nearly full again for initiators, in percent.
const HYSTERESIS: u64 = 2;

/// A file system, and what the files that are served take from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileSystemUse {
    /// The device number of the file system. No two have the same, while files on two of them can be in one
    /// directory: a file can be a mount point, and another file system can be mounted over an open file.
    pub(super) device: u64,
    /// The directory of one of the files.
    pub(super) directory: PathBuf,
    pub(super) whole: u64,
    pub(super) free: u64,
    pub(super) allocated: u64,
    pub(super) promised: u64,
    pub(super) disks: u32,
}

impl FileSystemUse {
    /// Returns the file systems of the files that are served, in the order of their device numbers.
    pub(super) fn of<'v>(files: impl Iterator<Item = &'v (PathBuf, FileSpace)>) -> Vec<Self> {
        let mut systems = BTreeMap::new();
        for (path, space) in files {
            add(&mut systems, path, space);
        }
        systems.into_values().collect()
    }

    /// Returns the device number as the system writes it: major and minor.
    pub(super) fn device_text(&self) -> String {
        format!("{}:{}", major(self.device), minor(self.device))
    }

    /// Returns whether the file system is nearly full and promises more than it has: less than this part of
    /// it is free, in percent.
    fn is_short(&self, percent: u64) -> bool {
        self.free < self.whole / 100 * percent && self.promised > self.free
    }

    /// Returns the threshold that units on the file system report to their initiators.
    pub(super) fn threshold(&self) -> SpaceThreshold {
        let level = if self.is_short(NEARLY_FULL) {
            SpaceLevel::Short
        } else if self.is_short(NEARLY_FULL + HYSTERESIS) {
            SpaceLevel::Near
        } else {
            SpaceLevel::Ample
        };
        SpaceThreshold { bytes: self.whole / 100 * NEARLY_FULL, level }
    }

    /// Returns a warning if the file system is nearly full and promises more than it has.
    pub(super) fn warning(&self) -> Option<String> {
        self.is_short(NEARLY_FULL).then(|| {
            format!(
                "the file system of {} has {} of {} free, and the disks on it can still take {}: writes fail when it is \
                 full",
                self.directory.display(),
                show_size(self.free),
                show_size(self.whole),
                show_size(self.promised)
            )
        })
    }
}

impl From<FileSystemUse> for FileSystem {
    fn from(system: FileSystemUse) -> Self {
        Self {
            directory: system.directory.display().to_string(),
            bytes: system.whole,
            free_bytes: system.free,
            allocated_bytes: system.allocated,
            promised_bytes: system.promised,
            disks: system.disks,
        }
    }
}

fn add(systems: &mut BTreeMap<u64, FileSystemUse>, path: &Path, space: &FileSpace) {
    let system = systems.entry(space.system).or_insert_with(|| FileSystemUse {
        device: space.system,
        directory: path.parent().unwrap_or(path).to_path_buf(),
        whole: space.whole,
        free: space.free,
        allocated: 0,
        promised: 0,
        disks: 0,
    });
    system.free = system.free.min(space.free);
    system.allocated = system.allocated.saturating_add(space.allocated);
    system.promised = system.promised.saturating_add(space.promised);
    system.disks = system.disks.saturating_add(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disks_of_one_file_system_are_added_and_warned_of_when_it_is_nearly_full() {
        let space =
            |system, free, promised| FileSpace { system, whole: 1000, free, allocated: 100, promised };
        let mut systems = BTreeMap::new();
        add(&mut systems, Path::new("/srv/a/1.img"), &space(7, 95, 60));
        add(&mut systems, Path::new("/srv/b/2.img"), &space(7, 90, 40));
        add(&mut systems, Path::new("/srv/c/3.img"), &space(8, 500, 900));
        let systems: Vec<FileSystemUse> = systems.into_values().collect();
        let first = FileSystemUse {
            device: 7,
            directory: PathBuf::from("/srv/a"),
            whole: 1000,
            free: 90,
            allocated: 200,
            promised: 100,
            disks: 2,
        };
        assert_eq!(systems[0], first);
        let warning = systems[0].warning().unwrap();
        assert!(warning.starts_with("the file system of /srv/a has 90 of 1000 free"), "{warning}");
        let threshold = |level| SpaceThreshold { bytes: 100, level };
        assert_eq!(systems[0].threshold(), threshold(SpaceLevel::Short));
        let freed = |free| FileSystemUse { free, promised: 200, ..systems[0].clone() };
        assert_eq!(freed(110).threshold(), threshold(SpaceLevel::Near));
        assert_eq!(freed(120).threshold(), threshold(SpaceLevel::Ample));
        assert_eq!(systems[1].warning(), None, "there is room");
        assert_eq!(
            FileSystemUse { promised: 90, ..first }.warning(),
            None,
            "it promises no more than it has"
        );
    }
}
