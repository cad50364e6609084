//! Files and devices that another process opened and locked, and gave to this one.
//!
//! The lock and the claim of a medium belong to the open file description, which both processes share. A
//! process that goes on with these descriptors holds the lock without a moment in which a third process can
//! take it. It also gets the report of a failed write-back that the other process has not got yet.

use std::fs::File;
use std::io;
use std::path::Path;

use super::FileIdentity;

/// The files and devices that are not in use yet.
#[derive(Debug, Default)]
pub struct HandedOverFiles(Vec<(FileIdentity, File)>);

impl HandedOverFiles {
    /// Adds a file or device.
    ///
    /// # Errors
    /// The error of the system.
    pub fn add(&mut self, file: File) -> io::Result<()> {
        let identity = FileIdentity::of(&file.metadata()?);
        self.0.push((identity, file));
        Ok(())
    }

    /// Returns the file or device that `path` leads to, if it is one of these.
    pub(super) fn take(&mut self, path: &Path) -> Option<File> {
        let (identity, _) = FileIdentity::of_path(path).ok()?;
        let at = self.0.iter().position(|(known, _)| *known == identity)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Returns whether every one was taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FlockOperation, flock};

    use super::super::{Allocation, FileSpec, OpenError};
    use super::*;

    #[test]
    fn a_file_that_was_handed_over_is_opened_without_a_new_lock() {
        let path = std::env::temp_dir().join(format!("targe-handed-over-{}", std::process::id()));
        let spec = FileSpec {
            path: path.clone(),
            size: Some(4096),
            allocation: Allocation::Sparse,
            read_only: false,
            direct: false,
            write_cache: true,
        };
        let held = spec.open().unwrap();
        assert!(matches!(spec.open(), Err(OpenError::InUse { .. })), "it is locked");
        let mut handed_over = HandedOverFiles::default();
        handed_over.add(held.file.file().try_clone().unwrap()).unwrap();
        let taken = spec.open_or_take(&mut handed_over).unwrap();
        assert!(handed_over.is_empty());
        drop(held);
        let third = File::open(&path).unwrap();
        let lock = || flock(&third, FlockOperation::NonBlockingLockShared);
        assert!(lock().is_err(), "the lock stays when the first process ends");
        drop(taken);
        assert!(lock().is_ok(), "the lock ends with the last descriptor");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_was_handed_over_is_neither_synced_nor_sized() {
        let path = std::env::temp_dir().join(format!("targe-handed-over-size-{}", std::process::id()));
        std::fs::write(&path, [0; 4096]).unwrap();
        let spec = |size, allocation| FileSpec {
            path: path.clone(),
            size,
            allocation,
            read_only: false,
            direct: false,
            write_cache: true,
        };
        // `fallocate` and `ftruncate` fail with a descriptor that is open for reading only.
        let unwritable = File::open(&path).unwrap();
        let mut handed_over = HandedOverFiles::default();
        handed_over.add(unwritable).unwrap();
        spec(Some(4096), Allocation::Full).open_or_take(&mut handed_over).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let open = |spec: FileSpec| {
            let mut handed_over = HandedOverFiles::default();
            handed_over.add(file.try_clone().unwrap()).unwrap();
            spec.open_or_take(&mut handed_over)
        };
        for want in [512, 8192] {
            let error = open(spec(Some(want), Allocation::Sparse)).unwrap_err();
            assert!(matches!(error, OpenError::OtherSize { have: 4096, .. }), "{error}");
            assert_eq!(file.metadata().unwrap().len(), 4096);
        }
        for (size, allocation) in [(None, Allocation::Sparse), (Some(4096), Allocation::Full)] {
            let mut opened = open(spec(size, allocation)).unwrap();
            assert!(opened.take_undo().is_none(), "nothing was changed");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn another_file_at_the_path_is_not_taken_for_the_one_that_was_handed_over() {
        let path = std::env::temp_dir().join(format!("targe-handed-over-other-{}", std::process::id()));
        let mut handed_over = HandedOverFiles::default();
        std::fs::write(&path, [0; 4096]).unwrap();
        handed_over.add(File::open(&path).unwrap()).unwrap();
        let other = path.with_extension("new");
        std::fs::write(&other, [1; 4096]).unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(handed_over.take(&path).is_none());
        assert!(!handed_over.is_empty());
        std::fs::remove_file(&path).unwrap();
    }
}
