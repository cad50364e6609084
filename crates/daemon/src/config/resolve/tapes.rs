//! Resolves tape drives: which keys apply to them, and whether a folder is a cartridge.

use std::error::Error;
use std::path::Path;

use backends::cartridge_folder::CartridgeFolder;

use crate::os_error;

/// The keys of a LUN that apply to a tape drive, beside those of every LUN of a target.
pub(super) const KEYS: &[&str] = &[
    "name",
    "type",
    "path",
    "ro",
    "limit_iops",
    "limit_bandwidth",
    "limit_burst",
    "tst",
    "tas",
    "spc",
    "serial",
    "naa",
    "vendor",
    "product",
    "revision",
];

/// Checks that a folder holds a cartridge, and that it can be written unless it is only read.
pub(super) fn check(path: &Path, is_read_only: bool) -> Result<(), String> {
    CartridgeFolder::check(path, is_read_only).map_err(|error| with_cause(&error))
}

/// Formats an error with the system's message.
pub(super) fn with_cause(error: &dyn Error) -> String {
    match error.source().and_then(|source| source.downcast_ref::<std::io::Error>()) {
        Some(source) => format!("{error}: {}", os_error(source)),
        None => error.to_string(),
    }
}
