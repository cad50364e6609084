//! Resolves exports of NBD servers and devices of other processes: which keys do not apply to them, and
//! whether there can be a server.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use ::nbd::uri::NbdUri;

use super::super::raw;
use super::super::resolved::Medium;
use super::super::source_span::ConfigReport;
use crate::os_error;

/// The keys of a LUN that do not apply to an export.
pub(super) const UNFIT_KEYS: &[&str] =
    &["path", "size", "direct", "atomic_bs", "encrypt", "dangerous_commands", "shared_with_host"];

/// Returns the medium of an export. No server is asked, since some serve a single connection and end.
pub(super) fn medium(lun: &raw::Lun, report: &mut ConfigReport) -> Option<Medium> {
    let at = lun.uri.as_ref()?;
    let uri = NbdUri::parse(&at.value).map_err(|why| report.error(&at.span, why)).ok()?;
    Some(Medium::Nbd { uri, patience: patience(lun) })
}

/// Returns how long commands wait; `None` for no limit.
pub(super) fn patience(lun: &raw::Lun) -> Option<Duration> {
    lun.reconnect_timeout.as_ref().map(|at| at.value).filter(|span| !span.is_zero())
}

/// Checks that there is a socket, which `server` listens on.
pub(super) fn check_socket(path: &Path, server: &str) -> Result<(), String> {
    let name = path.display();
    match path.metadata() {
        Ok(meta) if meta.file_type().is_socket() => Ok(()),
        Ok(_) => Err(format!("{name} is not a socket")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(format!("{name} does not exist: is {server} running?"))
        }
        Err(error) => Err(format!("cannot use {name}: {}", os_error(&error))),
    }
}
