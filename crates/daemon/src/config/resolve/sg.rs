//! Resolves SCSI devices of this host: which keys apply to them, and whether a path leads to one.

use std::error::Error as _;
use std::path::{Path, PathBuf};

use backends::sg::SgSpec;

use super::super::raw;
use super::super::resolved::Medium;
use crate::os_error;

/// The keys of a LUN that apply to such a device, beside those of every LUN of a target. Everything else is
/// told by the device itself. `serial` and `naa` name a device that has no name of its own.
pub(super) const KEYS: &[&str] =
    &["name", "type", "path", "ro", "tst", "tas", "serial", "naa", "dangerous_commands", "shared_with_host"];

/// The keys of a LUN that apply to such a device of another process.
pub(super) const PROCESS_KEYS: &[&str] =
    &["name", "type", "path", "ro", "tst", "tas", "serial", "naa", "dangerous_commands", "reconnect_timeout"];

/// Returns the medium.
pub(super) const fn medium(lun: &raw::Lun, path: PathBuf) -> Medium {
    Medium::Sg { path, dangerous_commands: lun.dangerous_commands, shared_with_host: lun.shared_with_host }
}

/// Checks that a path leads to a device that this process can use and this host does not.
pub(super) fn check(path: &Path, shared_with_host: bool) -> Result<(), String> {
    SgSpec { path: path.to_owned(), shared_with_host }.check().map_err(|error| {
        match error.source().and_then(|source| source.downcast_ref::<std::io::Error>()) {
            Some(source) => format!("{error}: {}", os_error(source)),
            None => error.to_string(),
        }
    })
}
