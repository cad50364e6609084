//! The place of the key file of a disk that was encrypted in the former format.

use std::path::PathBuf;

use super::state::StateDir;
use crate::config::{Medium, Unit};
use crate::luks::former::beside;

/// Returns the path of a unit's key file, which exists if the disk has the former format; `None` for memory.
/// If the path of a file is a link, the key can be next to the link or next to the file.
pub(super) fn path(unit: &Unit, state: &StateDir) -> Option<PathBuf> {
    match &unit.medium {
        Medium::File { path, .. } => {
            let named = beside(path);
            let linked = || path.canonicalize().ok().map(|path| beside(&path)).filter(|key| key.exists());
            Some(if named.exists() { named } else { linked().unwrap_or(named) })
        }
        Medium::Block { .. } => Some(state.media_key(unit.identity.naa)),
        Medium::Ram { .. }
        | Medium::Null { .. }
        | Medium::Disc { .. }
        | Medium::Tape { .. }
        | Medium::Nbd { .. }
        | Medium::VhostUserBlk { .. }
        | Medium::VhostUserScsi { .. }
        | Medium::Sg { .. }
        | Medium::Changer { .. }
        | Medium::LibraryDrive { .. } => None,
    }
}
