//! Secrets from files that nobody else can read.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use iscsi::chap::{MAX_SECRET, MIN_SECRET, Secret};

/// Reads a secret. One newline at its end does not count.
///
/// # Errors
/// A fragment that says what is wrong.
pub(crate) fn from_file(path: &Path) -> Result<Secret, String> {
    let name = path.display();
    let cannot =
        |error: std::io::Error| format!("cannot read secret file {name}: {}", crate::os_error(&error));
    let mut file = File::open(path).map_err(cannot)?;
    // The open file is looked at, not the path, so that what is checked is what is read.
    let meta = file.metadata().map_err(cannot)?;
    if !meta.is_file() {
        return Err(format!("secret file {name} is not a regular file"));
    }
    if meta.mode() & 0o077 != 0 {
        let mode = meta.mode() & 0o777;
        return Err(format!(
            "secret file {name} can be read by others (mode {mode:03o}); run: chmod 600 {name}"
        ));
    }
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_SECRET).unwrap_or(0) + 3;
    file.by_ref().take(limit).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    check(&bytes).map_err(|why| format!("{why} (in {name})"))
}

/// Checks the length of a secret.
///
/// # Errors
/// A fragment that says what is wrong.
pub(crate) fn check(bytes: &[u8]) -> Result<Secret, String> {
    Secret::new(bytes)
        .map_err(|_| format!("a CHAP secret has {MIN_SECRET} to {MAX_SECRET} bytes, not {}", bytes.len()))
}
