//! Functions of submitters that may wait for a disk, as file operations.

use std::fs::File;

use super::{Errno, IoFile};

/// A function of the submitter. A thread calls it with the file.
pub struct Call(pub(super) Box<Function>);

type Function = dyn FnOnce(&File) -> Result<CallOutput, Errno> + Send;

/// The result of such a function.
#[derive(Debug)]
pub enum CallOutput {
    /// Another file, which is open now.
    Opened {
        /// The file.
        file: IoFile,
        /// Whether it was made.
        is_new: bool,
    },
    /// There is no such file.
    Absent,
    /// How much storage a file takes, and how much is left for it.
    Space {
        /// The storage of the file in bytes.
        used: u64,
        /// What its file system has left, in bytes.
        free: u64,
    },
}

impl Call {
    /// Wraps a function.
    pub fn new(call: impl FnOnce(&File) -> Result<CallOutput, Errno> + Send + 'static) -> Self {
        Self(Box::new(call))
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Call")
    }
}
