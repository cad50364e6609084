//! Records how long each file was when it was served last, across restarts. So a file that is shorter or
//! missing at a later start is not silently filled with zeros, or created anew.
//!
//! `units/WORLD-WIDE-NAME.size` in the state directory holds a version, the length in bytes, the `size` of
//! the configuration (or `-`), the inode of the directory that the file was in, and the path of the file. A
//! mount point without its file system mounted has another inode than with it. A record for another path does
//! not apply to the file.
//!
//! [`place`] records what a file was like when it was served last, whether it may be extended or not, and
//! [`header`] which LUKS2 header an encrypted medium had. [`device`] records which block device was served.
//!
//! A record stays when its LUN is not in the configuration. When an operator removes the LUN of a running
//! daemon, the record says so: the file may be deleted and created anew then.

mod device;
pub(super) mod header;
mod place;

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ::device::persistent_state::unfinished_sanitize;
use backends::open::FileIdentity;

use self::header::HeaderRecord;
use self::place::Place;
use super::sanitize_record::{self, SanitizeRecord};
use super::state::{StateDir, StateError};
use crate::answers::{self, ANSWER_MAX};
use crate::config::{Config, Medium, Unit, UnitIndex, library_record, served_libraries};

/// The versions of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// `LENGTH SIZE INODE`, without a version.
    One,
    /// `2 LENGTH SIZE INODE PATH`, with the path in quotes and its control characters escaped.
    Two = 2,
    /// `3 LENGTH SIZE INODE PATH`: an operator has removed the LUN.
    Three = 3,
}

/// The most records of units that are not configured. The oldest ones are removed first.
const ABSENT_MAX: usize = 4096;

/// The record of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    len: u64,
    size: Option<u64>,
    directory: u64,
    /// The path in quotes; `None` in a record of the first version, which applies to any path.
    path: Option<String>,
    /// Whether an operator has removed the LUN.
    is_removed: bool,
}

impl Record {
    /// Returns the record of a unit's file in its present state; `None` if the unit has no file.
    fn of(unit: &Unit) -> Option<Self> {
        let Medium::File { path, size, .. } = &unit.medium else { return None };
        let len = path.metadata().ok()?.len();
        let size = size.map(|size| size.0);
        Some(Self { len, size, directory: directory(path)?, path: Some(quoted(path)), is_removed: false })
    }

    /// Reads the record of the file at `path`; `None` if there is no record, it cannot be read, or it is for
    /// another path.
    fn find(kept: &Path, path: &Path) -> Option<Self> {
        let record = Self::parse(&fs::read_to_string(kept).ok()?)?;
        let quoted = quoted(path);
        Some(record).filter(|record| record.path.as_ref().is_none_or(|path| *path == quoted))
    }

    fn parse(text: &str) -> Option<Self> {
        let with_path = |version: &str| text.strip_prefix(version).filter(|rest| rest.contains('"'));
        let (version, text) = match (with_path("2 "), with_path("3 ")) {
            (Some(rest), _) => (Version::Two, rest),
            (None, Some(rest)) => (Version::Three, rest),
            (None, None) => (Version::One, text),
        };
        let mut words = text.trim_end_matches('\n').splitn(4, ' ');
        let (len, size, directory) = (words.next()?, words.next()?, words.next()?);
        let path = words.next().map(str::to_owned);
        if path.is_some() == (version == Version::One) {
            return None;
        }
        let size = if size == "-" { None } else { Some(size.parse().ok()?) };
        let is_removed = version == Version::Three;
        Some(Self { len: len.parse().ok()?, size, directory: directory.parse().ok()?, path, is_removed })
    }

    fn encode(&self) -> String {
        let size = self.size.map_or_else(|| "-".to_owned(), |size| size.to_string());
        let (len, directory) = (self.len, self.directory);
        match &self.path {
            Some(path) => {
                let version = if self.is_removed { Version::Three } else { Version::Two };
                format!("{} {len} {size} {directory} {path}\n", version as u8)
            }
            None => format!("{len} {size} {directory}\n"),
        }
    }
}

/// Returns a path in quotes, on one line.
fn quoted(path: &Path) -> String {
    format!("{path:?}")
}

/// Returns whether a file that is too short would be extended with zeros. A file that is only read, or that
/// has no configured size, is not.
fn may_be_filled(unit: &Unit) -> bool {
    !unit.read_only && matches!(unit.medium, Medium::File { size: Some(_), .. })
}

fn directory(path: &Path) -> Option<u64> {
    Some(folder(path)?.metadata().ok()?.ino())
}

/// Returns the directory that a file is in, or would be in. If the path of the file is a link, this is not
/// the directory of the link.
fn folder(path: &Path) -> Option<PathBuf> {
    if let Ok(file) = path.canonicalize() {
        return Some(file.parent()?.to_owned());
    }
    let missing = path.read_link().ok().and_then(|linked| Some(path.parent()?.join(linked)));
    missing.as_deref().unwrap_or(path).parent()?.canonicalize().ok()
}

/// Checks that a unit's file is there if it was served before, and not shorter than it was, unless its
/// configured size was reduced, and that it is not a stale copy below a mount point; that a block device is
/// the one that was served before.
///
/// # Errors
/// A sentence that says what is wrong, and what to do.
pub(super) fn check(unit: &Unit, state: &StateDir) -> Result<(), String> {
    check_readable(unit, state)?;
    place::check_mounted(unit, state)?;
    device::check(unit, state)?;
    if may_be_filled(unit) { check_file(unit, state) } else { Ok(()) }
}

/// Checks the file of a unit that was missing as [`check`] does. A file that has no configured size is not
/// shorter than it was either: somebody may still be restoring it.
///
/// # Errors
/// A sentence that says what is wrong, and what to do.
pub(super) fn check_restored(unit: &Unit, state: &StateDir) -> Result<(), String> {
    check_readable(unit, state)?;
    place::check_mounted(unit, state)?;
    device::check(unit, state)?;
    if may_be_filled(unit) { check_file(unit, state) } else { place::check_len(unit, state) }
}

/// Checks that the records of what was served can be read. Without one of them, another disk could be served
/// under the name of the unit.
fn check_readable(unit: &Unit, state: &StateDir) -> Result<(), String> {
    let naa = unit.identity.naa;
    check_record(unit, &state.size_file(naa), |text| Record::parse(text).is_some())?;
    check_record(unit, &state.place_file(naa), Place::is_record)?;
    check_record(unit, &state.device_file(naa), device::is_record)
}

fn check_record(unit: &Unit, file: &Path, is_record: impl FnOnce(&str) -> bool) -> Result<(), String> {
    let is_good = match fs::read(file) {
        Ok(bytes) => std::str::from_utf8(&bytes).is_ok_and(is_record),
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    if is_good {
        return Ok(());
    }
    Err(format!(
        "{}: the record {} cannot be read, so nothing shows whether {} is the disk that was served under this name \
         before; make sure that it is, and remove the record to serve it",
        unit.label,
        file.display(),
        unit.medium
    ))
}

/// Checks that a SANITIZE or FORMAT UNIT that has not ended belongs to the medium at the path of a unit.
///
/// # Errors
/// A sentence that says what is wrong, and what to do.
pub(super) fn check_unfinished(unit: &Unit, state: &StateDir) -> Result<(), String> {
    // A state that cannot be read, and a medium that is not there, have errors of their own.
    let naa = unit.identity.naa;
    let Ok(Some(saved)) = state.load(naa) else { return Ok(()) };
    if unfinished_sanitize(&saved).is_none() {
        return Ok(());
    }
    let found = unit.medium.path().map(|path| FileIdentity::of_path(path)).transpose();
    let Ok(found) = found else { return Ok(()) };
    let record = SanitizeRecord::of(unit, found.map(|(identity, _)| identity));
    let saved = (&*saved, &*state.file(naa).display().to_string());
    sanitize_record::check(unit, saved, (&record, false), &state.sanitize_file(naa))
}

/// Checks that a unit's file is not a stale copy below a mount point whose file system can still be mounted.
///
/// # Errors
/// A sentence that says what to do.
pub(super) fn check_mounted(unit: &Unit, state: &StateDir) -> Result<(), String> {
    place::check_mounted(unit, state)
}

fn check_file(unit: &Unit, state: &StateDir) -> Result<(), String> {
    let Medium::File { path, size, .. } = &unit.medium else { return Ok(()) };
    let kept = state.size_file(unit.identity.naa);
    let Some(record) = Record::find(&kept, path) else { return Ok(()) };
    let (name, size, forget) = (path.display(), size.map(|size| size.0), kept.display());
    match path.metadata() {
        Ok(facts) => {
            let said = size != record.size && size.unwrap_or(0) <= facts.len();
            if facts.len() >= record.len || said {
                return Ok(());
            }
            Err(format!(
                "{}: {name} has {} bytes, and {} were served when targe ran last; restore the missing data, or change \
                 \"size\" to the present size, or remove {forget} to have the file extended with zeros",
                unit.label,
                facts.len(),
                record.len
            ))
        }
        // Opening it reports a directory that is missing, and a file system that fails.
        Err(error) if error.kind() != ErrorKind::NotFound || directory(path).is_none() => Ok(()),
        Err(_) if directory(path) == Some(record.directory) => {
            if record.is_removed {
                return Ok(());
            }
            Err(format!(
                "{}: {name} is missing, and {} bytes of it were served before; restore it, or remove {forget} to start \
                 with an empty disk",
                unit.label, record.len
            ))
        }
        Err(_) => Err(format!(
            "{}: {name} is missing, and its directory is not the one that it was last served from: is its \
             file system mounted? Remove {forget} to start with an empty disk",
            unit.label
        )),
    }
}

/// Records the lengths of the files that targets show and that `is_right` accepts. Of the units that are not
/// configured, the newest records stay.
///
/// # Errors
/// [`StateError`]
pub(super) fn save(
    config: &Config,
    is_right: impl Fn(&Unit) -> bool,
    state: &StateDir,
) -> Result<(), StateError> {
    let luns = config.targets.iter().flat_map(|target| &target.luns);
    let shown: BTreeSet<UnitIndex> = luns.map(|lun| lun.unit).collect();
    let units = config.units.iter().enumerate();
    let right = units.filter(|(at, unit)| shown.contains(&UnitIndex(*at)) && is_right(unit));
    let looked = look(right.map(|(_, unit)| unit), |unit| (Place::of(unit), Record::of(unit)));
    for (unit, path, (place, record)) in looked {
        place.map_or(Ok(()), |place| place.save(unit, state))?;
        let Some(record) = record else { continue };
        let kept = state.size_file(unit.identity.naa);
        let before = Record::find(&kept, path);
        // The length of a file that was not checked does not show which length is right.
        let is_less = |before: &Record| !may_be_filled(unit) && record.len < before.len;
        if before.as_ref() != Some(&record) && !before.as_ref().is_some_and(is_less) {
            super::state::replace(&kept, record.encode().as_bytes())?;
        }
    }
    let known: BTreeSet<String> = config.units.iter().map(|unit| unit.identity.naa.to_string()).collect();
    state.trim_sizes(|naa| known.contains(naa), ABSENT_MAX);
    save_libraries(config)
}

/// Records what the media of units are that were just opened. This reads them.
///
/// # Errors
/// [`StateError`]
pub(super) fn save_opened<'u>(
    units: impl Iterator<Item = &'u Unit>,
    state: &StateDir,
) -> Result<(), StateError> {
    let looked = look(units, |unit| (HeaderRecord::of(unit), device::present(unit)));
    looked.into_iter().try_for_each(|(unit, _, (header, device))| {
        header.map_or(Ok(()), |header| header.save(unit, state))?;
        device.map_or(Ok(()), |device| device::save(unit, &device, state))
    })
}

/// Looks at the media of units that have paths, on threads that may be abandoned. What does not answer is
/// left out, and its former record stays.
fn look<'u, T: Send + 'static>(
    units: impl Iterator<Item = &'u Unit>,
    look: impl Fn(&Unit) -> T + Clone + Send + 'static,
) -> Vec<(&'u Unit, &'u PathBuf, T)> {
    let units: Vec<_> = units.filter_map(|unit| Some((unit, unit.medium.path()?))).collect();
    let looks = units.iter().map(|(unit, path)| {
        let (unit, look) = ((*unit).clone(), look.clone());
        ((*path).clone(), move || look(&unit))
    });
    let found = answers::of(looks, ANSWER_MAX);
    let found = units.into_iter().zip(found).filter_map(|((unit, path), found)| {
        if found.is_none() {
            let (label, name) = (&unit.label, path.display());
            crate::warning!(
                "{label}: {name} does not answer, so its length and identity are not recorded anew"
            );
        }
        Some((unit, path, found?))
    });
    found.collect()
}

/// Records which drives the tape libraries have, unless that is recorded.
fn save_libraries(config: &Config) -> Result<(), StateError> {
    let libraries = served_libraries(&config.units);
    if library_record::read(&config.state_dir) == libraries {
        return Ok(());
    }
    let file = library_record::file(&config.state_dir);
    super::state::replace(&file, &library_record::encode(&libraries))
}

/// Records that an operator has removed the units which are in the former configuration only. The medium of a
/// shared LUN that no target exports any more is not removed.
///
/// # Errors
/// [`StateError`]
pub(super) fn note_removed(old: &Config, new: &Config, state: &StateDir) -> Result<(), StateError> {
    let known: BTreeSet<String> = new.units.iter().map(|unit| unit.identity.naa.to_string()).collect();
    for unit in &old.units {
        let (false, Some(path)) = (known.contains(&unit.identity.naa.to_string()), unit.medium.path()) else {
            continue;
        };
        if new.unexported.iter().any(|medium| medium.path() == Some(path)) {
            continue;
        }
        header::forget(unit, state);
        state.forget_device(unit.identity.naa);
        let kept = state.size_file(unit.identity.naa);
        if let Some(record) = Record::find(&kept, path).filter(|record| record.path.is_some()) {
            super::state::replace(&kept, Record { is_removed: true, ..record }.encode().as_bytes())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Flags};
    use crate::scratch::Scratch;

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is_one() {
        let path = |path: &str| Some(quoted(Path::new(path)));
        for record in [
            Record { len: 1 << 40, size: Some(1 << 40), directory: 2, path: path("/a"), is_removed: false },
            Record { len: 5, size: None, directory: u64::MAX, path: path("/a b/\"c\"\nd"), is_removed: true },
            Record { len: 2, size: None, directory: 7, path: None, is_removed: false },
        ] {
            assert_eq!(Record::parse(&record.encode()), Some(record));
        }
        // A record of the first version.
        let old = Record { len: 2, size: Some(5), directory: 9, path: None, is_removed: false };
        assert_eq!(Record::parse("2 5 9\n"), Some(old));
        for text in ["", "5", "5 5", "x - 2", "5 y 2", "5 - z", "5 5 5 5", "2 5 5 \"/a\"", "4 5 5 5 \"/a\""] {
            assert_eq!(Record::parse(text), None, "{text}");
        }
    }

    /// Makes a configuration that shows one shared file.
    pub(super) fn config(scratch: &Scratch, lun: &str) -> Config {
        let text = format!(
            "portal = [{{ listen = \"127.0.0.1\" }}]\nlun = [{{ name = \"a\", type = \"file\", {lun} }}]\n\
             [[target]]\nname = \"iqn.2001-04.com.example:a\"\nlun = [{{ share = \"a\" }}]\n"
        );
        fs::write(scratch.path().join("targe.toml"), text).unwrap();
        let flags = Flags { config: Some(scratch.path().join("targe.toml")), ..Flags::default() };
        let environment = Environment {
            state_dir: scratch.path().join("state"),
            host: "host".to_owned(),
            ..Environment::for_tests(scratch.path())
        };
        Config::load(&flags, &environment).map_err(|report| report.to_string()).unwrap().config
    }

    #[test]
    fn a_length_is_that_of_one_path_and_matters_where_zeros_would_be_added() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        let length = |name: &str, len: u64| {
            fs::File::create(scratch.path().join(name)).unwrap().set_len(len).unwrap();
        };
        let check = |lun: &str| check(&config(&scratch, lun).units[0], &state);
        let keep = |lun: &str| save(&config(&scratch, lun), |_| true, &state).unwrap();
        length("long", 1 << 20);
        keep("path = \"long\", size = \"1M\"");
        // The shared disk moves to another file, which is shorter.
        length("short", 4096);
        assert_eq!(check("path = \"short\", size = \"1M\""), Ok(()));
        length("long", 4096);
        assert!(check("path = \"long\", size = \"1M\"").unwrap_err().contains("has 4096 bytes"));
        // These units are never extended, and serving them does not make the shorter length the right one.
        for lun in ["path = \"long\"", "path = \"long\", size = \"1M\", ro = true"] {
            assert_eq!(check(lun), Ok(()), "{lun}");
            keep(lun);
            assert!(check("path = \"long\", size = \"1M\"").is_err(), "{lun}");
            // This length was served last.
            assert_eq!(check_restored(&config(&scratch, lun).units[0], &state), Ok(()), "{lun}");
            length("long", 512);
            let why = check_restored(&config(&scratch, lun).units[0], &state).unwrap_err();
            assert!(
                why.contains("has 512 bytes, and 4096 were") && why.ends_with(" to serve it as it is"),
                "{why}"
            );
            length("long", 4096);
        }
        length("long", 1 << 20);
        assert_eq!(check("path = \"long\", size = \"1M\""), Ok(()));
    }

    #[test]
    fn a_file_that_was_served_is_not_created_again_before_the_operator_says_so() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        let path = scratch.path().join("a");
        let length = |len: u64| fs::File::create(&path).unwrap().set_len(len).unwrap();
        let config = config(&scratch, "path = \"a\", size = \"1M\"");
        let none = Config { targets: Vec::new(), units: Vec::new(), ..config.clone() };
        let unit = &config.units[0];
        assert_eq!(check(unit, &state), Ok(()), "it was never served");
        length(1 << 20);
        save(&config, |_| true, &state).unwrap();
        // A start without the LUN forgets nothing.
        save(&none, |_| true, &state).unwrap();
        length(4096);
        assert!(check(unit, &state).unwrap_err().contains("has 4096 bytes"));
        fs::remove_file(&path).unwrap();
        let why = check(unit, &state).unwrap_err();
        assert!(why.contains("is missing, and 1048576 bytes of it were served before"), "{why}");
        note_removed(&config, &config, &state).unwrap();
        assert!(check(unit, &state).is_err());
        // A shared LUN that no target exports for a while is not removed.
        let unexported = Config { unexported: vec![unit.medium.clone()], ..none.clone() };
        note_removed(&config, &unexported, &state).unwrap();
        assert!(check(unit, &state).is_err());
        // An operator removes the LUN, and then the file. A file that is only shorter is still not filled.
        note_removed(&config, &none, &state).unwrap();
        assert_eq!(check(unit, &state), Ok(()));
        length(4096);
        assert!(check(unit, &state).is_err());
        length(1 << 20);
        save(&config, |_| true, &state).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(check(unit, &state).is_err(), "it is served again");
        fs::remove_file(state.size_file(unit.identity.naa)).unwrap();
        assert_eq!(check(unit, &state), Ok(()));
    }

    #[test]
    fn a_file_that_no_target_shows_has_no_length() {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        fs::write(scratch.path().join("a"), [0; 4096]).unwrap();
        let mut config = config(&scratch, "path = \"a\"");
        let kept = state.size_file(config.units[0].identity.naa);
        config.targets[0].luns.clear();
        save(&config, |_| true, &state).unwrap();
        assert!(!kept.exists());
    }

    #[test]
    fn a_damaged_record_keeps_its_own_disk_from_being_served() {
        let scratch = Scratch::new();
        let config = config(&scratch, "path = \"a.img\", size = \"1M\"");
        let state = StateDir::open(&config.state_dir).unwrap();
        let unit = &config.units[0];
        assert_eq!(check(unit, &state), Ok(()));
        let naa = unit.identity.naa;
        for file in [state.size_file(naa), state.place_file(naa), state.device_file(naa)] {
            for damaged in [&b""[..], b"nonsense", b"\xff", b"1 x\n\"/a\"\n"] {
                fs::write(&file, damaged).unwrap();
                let why = check(unit, &state).unwrap_err();
                assert!(why.contains(&format!("the record {} cannot be read", file.display())), "{why}");
                assert!(check_restored(unit, &state).is_err());
            }
            fs::remove_file(&file).unwrap();
            assert_eq!(check(unit, &state), Ok(()));
        }
    }

    #[test]
    fn hostile_paths_are_read_as_they_were_written() {
        let mut rng = base::rng::Rng::from_seed(1);
        for _ in 0..2000 {
            let path = Some(quoted(Path::new(&crate::serve::hostile_names::text(&mut rng))));
            let (size, is_removed) = ((rng.below(2) == 0).then_some(7), rng.below(2) == 0);
            let record = Record { len: 5, size, directory: 9, path, is_removed };
            assert_eq!(Record::parse(&record.encode()), Some(record));
        }
    }
}
