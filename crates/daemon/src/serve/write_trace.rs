//! What changes when somebody writes to a file, a folder or a block device.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{major, minor};

/// What the system knows of the writes to a file or block device. Two of them are equal if nobody has written
/// in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteTrace {
    File {
        inode: (u64, u64),
        len: u64,
        modified: (i64, i64),
        changed: (i64, i64),
    },
    /// How many sectors were written since the device was made.
    Device {
        number: u64,
        written: u64,
    },
}

/// How many folders deep the files of a tape library are.
const FOLDERS_DEPTH: usize = 2;

impl WriteTrace {
    /// Returns the present one; `None` if the system does not report it.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let facts = path.metadata().ok()?;
        if facts.file_type().is_block_device() {
            let number = facts.rdev();
            let statistics = format!("/sys/dev/block/{}:{}/stat", major(number), minor(number));
            // The seventh number (Documentation/block/stat.rst of Linux).
            let written =
                std::fs::read_to_string(statistics).ok()?.split_whitespace().nth(6)?.parse().ok()?;
            return Some(Self::Device { number, written });
        }
        Some(Self::File {
            inode: (facts.dev(), facts.ino()),
            len: facts.len(),
            modified: (facts.mtime(), facts.mtime_nsec()),
            changed: (facts.ctime(), facts.ctime_nsec()),
        })
    }

    /// Returns the present one of a folder, of what is in it, and of what is in its folders, as that of a
    /// file whose length is the sum and whose times are the latest; `None` if the system does not report it.
    pub(super) fn of_folder(path: &Path) -> Option<Self> {
        let mut whole = Self::of(path)?;
        let mut folders = vec![(path.to_path_buf(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            for entry in folder.read_dir().ok()? {
                // What is removed meanwhile changes its folder.
                let Ok(facts) = entry.as_ref().map_err(drop).and_then(|entry| entry.metadata().map_err(drop))
                else {
                    continue;
                };
                if let Self::File { len, modified, changed, .. } = &mut whole {
                    *len = len.wrapping_add(facts.len());
                    *modified = (*modified).max((facts.mtime(), facts.mtime_nsec()));
                    *changed = (*changed).max((facts.ctime(), facts.ctime_nsec()));
                }
                if let Ok(entry) = entry
                    && facts.is_dir()
                    && depth < FOLDERS_DEPTH
                {
                    folders.push((entry.path(), depth + 1));
                }
            }
        }
        Some(whole)
    }

    /// Returns whether the last change of a file is older than this. The system does not report when a device
    /// was written.
    pub(super) fn is_older_than(&self, age: Duration, now: SystemTime) -> bool {
        let Self::File { modified, changed, .. } = self else { return false };
        let last = u64::try_from(modified.0.max(changed.0)).unwrap_or_default();
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        now.checked_sub(Duration::from_secs(last)).is_some_and(|since| since > age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn whatever_changes_in_a_folder_changes_its_trace() {
        let scratch = Scratch::new();
        let cartridge = scratch.path().join("cartridge");
        let mut traces = vec![WriteTrace::of_folder(scratch.path()).unwrap()];
        let mut next = |what: &str| {
            let trace = WriteTrace::of_folder(scratch.path()).unwrap();
            assert!(!traces.contains(&trace), "{what}");
            assert_eq!(WriteTrace::of_folder(scratch.path()), Some(trace));
            traces.push(trace);
            assert!(!trace.is_older_than(Duration::from_secs(60), SystemTime::now()));
        };
        std::fs::create_dir(&cartridge).unwrap();
        next("a folder");
        std::fs::write(cartridge.join("label"), "1").unwrap();
        next("a file");
        std::fs::write(cartridge.join("label"), "12").unwrap();
        next("a longer file");
        std::fs::remove_file(cartridge.join("label")).unwrap();
        next("a removal");
        assert_eq!(WriteTrace::of_folder(&cartridge.join("none")), None);
    }

    #[test]
    fn a_write_changes_the_trace_and_a_file_becomes_old() {
        let scratch = Scratch::new();
        let path = scratch.path().join("a");
        assert_eq!(WriteTrace::of(&path), None);
        std::fs::write(&path, "a").unwrap();
        let trace = WriteTrace::of(&path).unwrap();
        assert_eq!(WriteTrace::of(&path), Some(trace));
        std::fs::write(&path, "ab").unwrap();
        assert_ne!(WriteTrace::of(&path), Some(trace));
        let (age, now) = (Duration::from_secs(60), SystemTime::now());
        assert!(!trace.is_older_than(age, now) && trace.is_older_than(age, now + 2 * age));
        assert!(!trace.is_older_than(age, now - age), "the clock was set back");
        assert!(!WriteTrace::Device { number: 7, written: 0 }.is_older_than(age, now));
    }
}
