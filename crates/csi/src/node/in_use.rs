//! What keeps a volume from being detached: its users, who would lose what is not written yet.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Staged, mounts};
use crate::error::{CsiError, CsiResult};

/// How long the kernel may take to release a device after the last unmount.
const RELEASE_MAX: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Refuses a volume that is published at a path of this host. Its staging mount stays, so that the volume can
/// be used as before.
pub(super) fn check_unpublished(staged: &Staged, device: Option<&Path>) -> CsiResult<()> {
    let mut paths = Vec::new();
    if staged.block {
        paths.extend(device.map(mounts::binds_of).transpose()?.unwrap_or_default());
    } else {
        let mut numbers = BTreeSet::new();
        numbers.extend(device.map(mounts::number_of).transpose()?);
        // A device that has gone has no name any more, but keeps its number as long as it is mounted.
        numbers.extend(mounts::at(&staged.staging_path)?.and_then(|mount| mount.device));
        for number in numbers {
            // A container can have the host's root as a folder, where each mount is seen again.
            paths.extend(mounts::of_elsewhere(number, &[&staged.staging_path])?);
        }
    }
    match paths.first() {
        Some(path) => Err(CsiError::precondition(format!(
            "volume {} is still published at {}; unpublish it there first",
            staged.id,
            path.display()
        ))),
        None => Ok(()),
    }
}

/// Refuses to publish at `path` a volume that may be at one path only, and is at another one.
pub(super) fn check_single(staged: &Staged, device: &Path, path: &Path) -> CsiResult<()> {
    let found = if staged.block {
        let mut paths = mounts::binds_of(device)?;
        paths.retain(|found| found != path);
        paths
    } else {
        mounts::of_elsewhere(mounts::number_of(device)?, &[&staged.staging_path, path])?
    };
    match found.first() {
        Some(other) => Err(CsiError::precondition(format!(
            "volume {} is published at {} already, and its access mode is SINGLE_NODE_SINGLE_WRITER; unpublish it \
             there first",
            staged.id,
            other.display()
        ))),
        None => Ok(()),
    }
}

/// Refuses a volume whose device still has an exclusive user, at no path that this process can see.
pub(super) fn check_unused(staged: &Staged, device: &Path) -> CsiResult<()> {
    let began = Instant::now();
    while mounts::is_in_use(device) {
        if began.elapsed() > RELEASE_MAX {
            return Err(CsiError::precondition(format!(
                "something still uses volume {}: a program that has a file open, a container that has a copy of the \
                 mount, or a device that is made of it; end that first",
                staged.id
            )));
        }
        sleep(LOOK_AGAIN);
    }
    Ok(())
}
