//! The condition of a volume's file system, as the kernel reports it.

use std::fs;
use std::path::Path;

use super::{Staged, mounts};
use crate::error::CsiResult;
use crate::ext::ExtSuperblock;

/// The condition of a mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Nothing is known against it.
    Good,
    /// The kernel has found errors in it, and goes on.
    Suspect(String),
    /// It takes no writes any more.
    Stopped(String),
}

impl Condition {
    /// Looks at the file system of a volume that is mounted at `path`.
    pub(super) fn of(staged: &Staged, device: &Path, path: &Path) -> CsiResult<Self> {
        let found = mounts::at(path)?;
        if found.is_some_and(|mount| mount.stopped) && !staged.read_only {
            let what = "the kernel made its file system read-only after an error";
            return Ok(Self::Stopped(what.to_owned()));
        }
        if let Err(error) = fs::metadata(path)
            && error.raw_os_error() == Some(IO_ERROR)
        {
            return Ok(Self::Stopped(format!("its file system has stopped: {error}")));
        }
        Ok(recorded_errors(device).map_or(Self::Good, Self::Suspect))
    }

    /// Returns why the file system of a volume that nobody uses is to be mounted again. A file system that
    /// may only be read is not checked, so errors that the kernel has recorded in it stay.
    pub(super) fn needs_mount(&self, read_only: bool) -> Option<&str> {
        match self {
            Self::Stopped(what) => Some(what),
            Self::Suspect(what) if !read_only => Some(what),
            Self::Good | Self::Suspect(_) => None,
        }
    }

    /// Returns what is wrong.
    pub(crate) fn fault(&self) -> Option<&str> {
        match self {
            Self::Good => None,
            Self::Suspect(what) | Self::Stopped(what) => Some(what),
        }
    }
}

/// EIO: how XFS answers everything once it has stopped.
const IO_ERROR: i32 = rustix::io::Errno::IO.raw_os_error();

/// Returns what an ext file system has recorded of errors since its last check.
pub(super) fn recorded_errors(device: &Path) -> Option<String> {
    let name = device.file_name()?;
    // The superblock on the device can be older than what the kernel knows of a mounted file system.
    let counted = fs::read_to_string(Path::new("/sys/fs/ext4").join(name).join("errors_count"));
    let count: u64 = counted.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    if count > 0 {
        return Some(format!("the kernel has found {count} errors in its file system since the last check"));
    }
    let superblock = ExtSuperblock::read(device).ok().flatten()?;
    superblock.has_errors.then(|| "its file system is marked as one with errors".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_has_stopped_is_mounted_again_even_if_it_may_only_be_read() {
        let stopped = Condition::Stopped("stopped".to_owned());
        let suspect = Condition::Suspect("suspect".to_owned());
        for (condition, read_only, needs) in [
            (&stopped, true, true),
            (&stopped, false, true),
            (&suspect, false, true),
            (&suspect, true, false),
            (&Condition::Good, false, false),
        ] {
            assert_eq!(condition.needs_mount(read_only).is_some(), needs, "{condition:?} {read_only}");
        }
    }
}
