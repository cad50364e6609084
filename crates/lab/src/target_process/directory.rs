//! Directories that are removed at the end.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A directory with an unpredictable name that only this user can enter. Dropping it removes it with all that
/// is in it.
#[derive(Debug)]
pub struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    /// Creates a directory in the directory for temporary files.
    ///
    /// # Errors
    /// Those of creating a directory.
    pub fn create() -> io::Result<Self> {
        Self::create_in(&std::env::temp_dir())
    }

    /// Creates a directory in another one.
    ///
    /// # Errors
    /// Those of creating a directory.
    pub fn create_in(parent: &Path) -> io::Result<Self> {
        let mut random = [0; 8];
        fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
        let directory = parent.join(format!("targe-lab-{:016x}", u64::from_ne_bytes(random)));
        // A daemon refuses a directory for its admin socket that others can enter.
        fs::DirBuilder::new().mode(0o700).create(&directory)?;
        Ok(Self(directory))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // The target may have removed it.
        let _ = fs::remove_dir_all(&self.0);
    }
}
