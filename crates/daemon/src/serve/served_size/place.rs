//! Records the place and the length of each file when it was served last. So a stale copy below a mount point
//! is not served before the file system is mounted, and a file that comes late not before it is restored.
//!
//! `units/WORLD-WIDE-NAME.place` in the state directory holds `1 MOUNTS LENGTH INODE PATH`: how often the
//! path of the directory leads to another file system, the length in bytes, the inode of the directory, and
//! the path in quotes with its control characters escaped.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{directory, folder, quoted};
use crate::config::{Medium, Unit};
use crate::serve::state::{self, StateDir, StateError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    mounts: u32,
    len: u64,
    directory: u64,
    path: String,
}

impl Place {
    /// Returns the place of a unit's file in its present state; `None` if the unit has no file.
    pub(super) fn of(unit: &Unit) -> Option<Self> {
        let Medium::File { path, .. } = &unit.medium else { return None };
        let len = path.metadata().ok()?.len();
        Some(Self { mounts: mounts(path)?, len, directory: directory(path)?, path: quoted(path) })
    }

    /// Reads the record of a unit; `None` if there is none, it cannot be read, or it is for another path.
    fn find(unit: &Unit, state: &StateDir) -> Option<Self> {
        let path = unit.medium.path()?;
        let place = Self::parse(&fs::read_to_string(state.place_file(unit.identity.naa)).ok()?)?;
        Some(place).filter(|place| place.path == quoted(path))
    }

    /// Records the place and the length of a unit's file, if they have changed.
    pub(super) fn save(&self, unit: &Unit, state: &StateDir) -> Result<(), StateError> {
        if Self::find(unit, state).as_ref() == Some(self) {
            return Ok(());
        }
        state::replace(&state.place_file(unit.identity.naa), self.encode().as_bytes())
    }

    /// Returns whether a text is a record.
    pub(super) fn is_record(text: &str) -> bool {
        Self::parse(text).is_some()
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix("1 ")?.trim_end_matches('\n').splitn(4, ' ');
        Some(Self {
            mounts: words.next()?.parse().ok()?,
            len: words.next()?.parse().ok()?,
            directory: words.next()?.parse().ok()?,
            path: words.next()?.to_owned(),
        })
    }

    fn encode(&self) -> String {
        let Self { mounts, len, directory, path } = self;
        format!("1 {mounts} {len} {directory} {path}\n")
    }
}

/// Returns how often the path of the directory that a file is in leads to another file system. Another mount
/// of the same file system, as a sandbox makes one, does not count.
fn mounts(path: &Path) -> Option<u32> {
    let directory = folder(path)?;
    let devices = directory.ancestors().map(|ancestor| Some(ancestor.metadata().ok()?.dev()));
    let devices = devices.collect::<Option<Vec<u64>>>()?;
    let changes = devices.iter().zip(devices.iter().skip(1)).filter(|(device, parent)| device != parent);
    u32::try_from(changes.count()).ok()
}

/// Checks that the directory of a unit's file is the one that the file was served from, or that at least as
/// many file systems are mounted on the way to it.
///
/// # Errors
/// A sentence that says what to do.
pub(super) fn check_mounted(unit: &Unit, state: &StateDir) -> Result<(), String> {
    let Medium::File { path, .. } = &unit.medium else { return Ok(()) };
    let Some(place) = Place::find(unit, state) else { return Ok(()) };
    let is_missing = mounts(path).is_some_and(|mounts| mounts < place.mounts);
    if !is_missing || directory(path) == Some(place.directory) || !path.exists() {
        return Ok(());
    }
    Err(format!(
        "{}: {} is not in the directory that it was last served from, and a file system on the way to it is missing: is \
         it mounted? Remove {} to serve this file",
        unit.label,
        path.display(),
        state.place_file(unit.identity.naa).display()
    ))
}

/// Checks that a unit's file is not shorter than it was when it was served last.
///
/// # Errors
/// A sentence that says what to do.
pub(super) fn check_len(unit: &Unit, state: &StateDir) -> Result<(), String> {
    let Medium::File { path, .. } = &unit.medium else { return Ok(()) };
    // Opening it says what is wrong with a file that cannot be looked at.
    let Some((place, facts)) = Place::find(unit, state).zip(path.metadata().ok()) else { return Ok(()) };
    if facts.len() >= place.len {
        return Ok(());
    }
    Err(format!(
        "{}: {} has {} bytes, and {} were served when targe ran last; restore the missing data, or remove {} to serve it \
         as it is",
        unit.label,
        path.display(),
        facts.len(),
        place.len,
        state.place_file(unit.identity.naa).display()
    ))
}

#[cfg(test)]
mod tests {
    use super::super::tests::config;
    use super::super::{check, check_restored, save};
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_stale_copy_below_a_mount_point_is_not_served() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        let path = scratch.path().join("mnt/a");
        fs::create_dir(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("mnt/a", scratch.path().join("link")).unwrap();
        for lun in ["path = \"mnt/a\"", "path = \"mnt/a\", size = \"1M\"", "path = \"link\""] {
            let name = if lun.contains("link") { "/link" } else { "/mnt/a" };
            fs::write(&path, vec![7; 1 << 20]).unwrap();
            let config = config(&scratch, lun);
            let unit = &config.units[0];
            save(&config, |_| true, &state).unwrap();
            assert_eq!(check(unit, &state), Ok(()), "{lun}");
            // As if the directory had been the root of a file system that is not mounted now.
            let kept = state.place_file(unit.identity.naa);
            let place = Place::find(unit, &state).unwrap();
            assert_eq!(place.directory, path.parent().unwrap().metadata().unwrap().ino(), "{lun}");
            let (mounts, directory) = (place.mounts + 1, place.directory + 1);
            let write = |place: Place| fs::write(&kept, place.encode()).unwrap();
            write(Place { mounts, directory, ..place.clone() });
            let why = check(unit, &state).unwrap_err();
            let told = format!("{name} is not in the directory that it was last served from");
            assert!(why.contains(&told), "{why}");
            assert!(check_restored(unit, &state) == Err(why) && check_mounted(unit, &state).is_err());
            // The same directory, and another one with its file system, are right.
            for right in [Place { mounts, ..place.clone() }, Place { directory, ..place }] {
                write(right);
                assert_eq!(check(unit, &state), Ok(()), "{lun}");
            }
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is_one() {
        let mut rng = base::rng::Rng::from_seed(1);
        for _ in 0..2000 {
            let path = quoted(Path::new(&crate::serve::hostile_names::text(&mut rng)));
            let place = Place { mounts: 3, len: 5, directory: 9, path };
            assert_eq!(Place::parse(&place.encode()), Some(place));
        }
        for text in ["", "1", "1 2 3 4", "2 2 3 4 \"/a\"", "1 x 3 4 \"/a\"", "1 2 3 -1 \"/a\""] {
            assert_eq!(Place::parse(text), None, "{text}");
        }
    }
}
