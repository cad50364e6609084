//! Resolves tape drives: which keys apply to them, and whether a folder is a cartridge.

use std::error::Error;
use std::path::Path;

use backends::cartridge_folder::CartridgeFolder;
use device::tape_identity;

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

/// Returns the revision of a unit for which the configuration has none: that of the LTO drive whose product
/// identification it has, or else [`USUAL_REVISION`].
pub(super) fn usual_revision(product: &str) -> String {
    tape_identity::usual_revision(product).unwrap_or(USUAL_REVISION).to_owned()
}

/// The revision of a unit that is named after no LTO drive. It is the same in every release: Windows, whose
/// hardware identifiers contain the revision, takes a unit with another one for another device.
const USUAL_REVISION: &str = "0.1";

/// Formats an error with the system's message.
pub(super) fn with_cause(error: &dyn Error) -> String {
    match error.source().and_then(|source| source.downcast_ref::<std::io::Error>()) {
        Some(source) => format!("{error}: {}", os_error(source)),
        None => error.to_string(),
    }
}
