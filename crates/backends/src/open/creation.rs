//! When the file of an opened medium was created.

use std::time::SystemTime;

use super::Opened;

impl Opened {
    /// Returns when the file was created, if it is a file whose file system records that.
    pub const fn created(&self) -> Option<SystemTime> {
        self.layout.created
    }
}
