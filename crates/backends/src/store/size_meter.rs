//! Measures an open medium on threads that may wait for it.

use drivers::files::{Errno, WeakIoFile};

use crate::geometry::{self, FileSpace};

/// Measures a file or device that is served, on a thread that may wait for it.
#[derive(Clone, Debug)]
pub struct SizeMeter(pub(super) WeakIoFile);

impl SizeMeter {
    /// Returns how many bytes the file or device has now, whatever part of it is served. It can wait.
    ///
    /// # Errors
    /// The error of the system, or [`Errno::BADF`] if it is closed.
    pub fn measure(&self) -> Result<u64, Errno> {
        geometry::size(self.0.upgrade().ok_or(Errno::BADF)?.file())
    }

    /// Returns what a file takes from its file system. It can wait.
    ///
    /// # Errors
    /// The error of the system, or [`Errno::BADF`] if it is closed.
    pub fn measure_space(&self) -> Result<FileSpace, Errno> {
        geometry::file_space(self.0.upgrade().ok_or(Errno::BADF)?.file())
    }
}
