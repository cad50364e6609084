//! Undoes what was done to a file so that it can be served.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use drivers::files::ReleasedFile;

use super::FileIdentity;

/// A change that was made to a file so that it can be served, and the means to undo it while nothing has been
/// written to the file.
#[derive(Debug)]
pub struct Undo {
    path: PathBuf,
    /// The file, which also holds the lock. It is there until this is dropped.
    file: ReleasedFile,
    /// The former length; `None` if there was no file.
    len: Option<u64>,
}

impl Undo {
    /// Records that the file at `path` was just created.
    ///
    /// # Errors
    /// The error of the system.
    pub fn creation(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: File::open(path)?.into(), len: None })
    }

    /// Records the length of a file that is about to be extended.
    ///
    /// # Errors
    /// The error of the system.
    pub fn growth(path: &Path, file: &File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file: file.try_clone()?.into(), len: Some(len) })
    }

    /// Undoes the change.
    ///
    /// # Errors
    /// The error of the system.
    pub fn undo(self) -> io::Result<()> {
        match self.len {
            Some(len) => self.file.set_len(len),
            // Another file may be at the path now.
            None if FileIdentity::of_path(&self.path)?.0 == FileIdentity::of(&self.file.metadata()?) => {
                std::fs::remove_file(&self.path)
            }
            None => Ok(()),
        }
    }

    /// Returns whether the file was there before, with this length.
    pub(super) fn has_len(&self, len: u64) -> bool {
        self.len == Some(len)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
