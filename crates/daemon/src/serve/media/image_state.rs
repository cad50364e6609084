//! The state of the image of a disc.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// By what a reload recognises that an image is still the one that is served. targe writes only to images of
/// writable discs, so each change of another file is another disc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::serve) struct ImageState {
    len: u64,
    /// When it was modified: seconds since 1970, and nanoseconds.
    modified: (i64, i64),
}

impl ImageState {
    /// Returns the state of the file at a path.
    pub(in crate::serve) fn of(path: &Path) -> Option<Self> {
        let facts = path.metadata().ok()?;
        Some(Self { len: facts.len(), modified: (facts.mtime(), facts.mtime_nsec()) })
    }
}
