//! What distinguishes a medium from all others, whatever path or number leads to it.
//!
//! A path leads to another file when one is renamed over it, and the number of a device to another disk after
//! a restart of the host, or when a disk has been unplugged. So records of a medium that outlive its opening
//! compare this.

#[cfg(test)]
use std::fs::{self, File};
#[cfg(test)]
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use backends::open::{FileIdentity, Opened};

use crate::serve::device_identity::{Comparison, DeviceIdentity};

/// What distinguishes a medium from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum MediumIdentity {
    /// A file, by its inode and the time of its creation. The number of its file system changes with a
    /// restart of the host.
    File { inode: u64, created: SystemTime },
    /// A block device.
    Device(DeviceIdentity),
    /// Nothing is known: a file whose file system keeps no time of creation, an export, memory.
    Unknown,
}

impl MediumIdentity {
    /// Returns the identity of a file or device that was opened. For a device, this reads sysfs, and some
    /// drivers ask the device: it can wait. For a file, it makes no system call.
    pub(in crate::serve) fn of_opened(opened: &Opened) -> Self {
        Self::created(opened.identity(), opened.created())
    }

    /// Returns the same of a file that is open. This can wait for the file system.
    #[cfg(test)]
    pub(in crate::serve) fn of_file(file: &File) -> Self {
        let created =
            file.metadata().ok().filter(fs::Metadata::is_file).and_then(|facts| facts.created().ok());
        FileIdentity::of_file(file).map_or(Self::Unknown, |identity| Self::created(identity, created))
    }

    /// Returns the same of what is at a path and has this identity. This can wait.
    #[cfg(test)]
    pub(in crate::serve) fn of_path(path: &Path, identity: FileIdentity) -> Self {
        Self::created(identity, path.metadata().and_then(|facts| facts.created()).ok())
    }

    /// Returns the same of a file or device with this identity, and for a file, when it was created. For a
    /// device, this can wait.
    pub(in crate::serve) fn created(identity: FileIdentity, created: Option<SystemTime>) -> Self {
        match (identity, created) {
            (FileIdentity::Block(_), _) => DeviceIdentity::of(identity).map_or(Self::Unknown, Self::Device),
            (FileIdentity::File(_, inode), Some(created)) => Self::File { inode, created },
            (FileIdentity::File(..), None) => Self::Unknown,
        }
    }

    /// Returns the identity on one line; empty if nothing is known.
    pub(in crate::serve) fn encode(&self) -> String {
        match self {
            Self::File { inode, created } => match created.duration_since(UNIX_EPOCH) {
                Ok(since) => format!("{inode:x}.{:x}", since.as_nanos()),
                Err(_) => String::new(),
            },
            Self::Device(device) => device.encode(),
            Self::Unknown => String::new(),
        }
    }

    /// Compares the medium with a line that was recorded.
    pub(in crate::serve) fn compare(&self, recorded: &str) -> Comparison {
        match (self, parse_file(recorded)) {
            (Self::File { inode, created }, Some(was)) => match was {
                // Some file systems give a file another inode number each time they are mounted.
                (was_inode, was_created) if was_created == *created => {
                    if was_inode == *inode {
                        Comparison::Same
                    } else {
                        Comparison::Unknown
                    }
                }
                _ => Comparison::Other,
            },
            (Self::Device(_), Some(_)) => Comparison::Other,
            (Self::Device(device), None) => device.compare(recorded),
            (Self::File { .. }, None) if DeviceIdentity::is_encoded(recorded) => Comparison::Other,
            (Self::File { .. } | Self::Unknown, _) => Comparison::Unknown,
        }
    }

    /// Returns a part of the names of files about the medium, which is the same in every later process; empty
    /// if there is none.
    pub(in crate::serve) fn tag(&self) -> String {
        match self {
            Self::File { inode, .. } => format!("{inode:x}"),
            Self::Device(device) => device.tag().unwrap_or_default(),
            Self::Unknown => String::new(),
        }
    }
}

/// Returns the inode and the time of creation that a line names; `None` if it is none of a file.
fn parse_file(line: &str) -> Option<(u64, SystemTime)> {
    let (inode, since) = line.split_once('.')?;
    let since = u128::from_str_radix(since, 16).ok()?;
    let whole = u64::try_from(since / 1_000_000_000).ok()?;
    let rest = u32::try_from(since % 1_000_000_000).ok()?;
    let created = UNIX_EPOCH.checked_add(Duration::new(whole, rest))?;
    Some((u64::from_str_radix(inode, 16).ok()?, created))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use backends::open::{Allocation, FileSpec};

    fn of(path: &Path) -> MediumIdentity {
        let (identity, _) = FileIdentity::of_path(path).unwrap();
        let found = MediumIdentity::of_path(path, identity);
        assert_eq!(found, MediumIdentity::of_file(&File::open(path).unwrap()));
        found
    }

    #[test]
    fn a_file_is_the_same_by_every_path_and_another_one_at_its_path_is_not() {
        let scratch = Scratch::new();
        let [path, moved, link] = ["a", "b", "c"].map(|name| scratch.path().join(name));
        fs::write(&path, "one").unwrap();
        let recorded = of(&path).encode();
        if recorded.is_empty() {
            eprintln!("skipped: the file system keeps no time of creation");
            return;
        }
        fs::rename(&path, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &link).unwrap();
        for path in [&moved, &link] {
            assert_eq!(of(path).compare(&recorded), Comparison::Same);
        }
        fs::write(&path, "two").unwrap();
        assert_eq!(of(&path).compare(&recorded), Comparison::Other);
        assert_eq!(of(&path).compare(""), Comparison::Unknown);
        assert_eq!(of(&path).compare("device wwid=\"naa.5\""), Comparison::Other);
        assert_eq!(MediumIdentity::Unknown.compare(&recorded), Comparison::Unknown);
    }

    #[test]
    fn a_file_has_the_same_identity_when_it_is_opened_and_later() {
        let scratch = Scratch::new();
        let path = scratch.path().join("a.img");
        fs::write(&path, [0; 4096]).unwrap();
        let spec = FileSpec {
            path: path.clone(),
            size: None,
            allocation: Allocation::Sparse,
            read_only: false,
            direct: false,
            write_cache: true,
        };
        assert_eq!(MediumIdentity::of_opened(&spec.open().unwrap()), of(&path));
    }

    #[test]
    fn another_inode_number_of_the_same_file_says_nothing() {
        let created = UNIX_EPOCH + Duration::new(5, 7);
        let file = |inode| MediumIdentity::File { inode, created };
        assert_eq!(file(3).encode(), "3.12a05f207");
        assert_eq!(file(3).compare(&file(3).encode()), Comparison::Same);
        assert_eq!(file(3).compare(&file(4).encode()), Comparison::Unknown);
        for damaged in ["3", "3.", ".3", "x.y", "3.12a05f207 "] {
            assert_eq!(file(3).compare(damaged), Comparison::Unknown, "{damaged}");
        }
    }
}
