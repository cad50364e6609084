//! Records how long each file was when it was served last, across restarts. So a file that is shorter or
//! missing at the next start is not silently filled with zeros.
//!
//! `units/WORLD-WIDE-NAME.size` in the state directory holds a version, the length in bytes, the `size` of
//! the configuration (or `-`), the inode of the directory that the file was in, and the path of the file. A
//! mount point without its file system mounted has another inode than with it. A record for another path does
//! not apply to the file.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::state::{StateDir, StateError};
use crate::config::{Config, Medium, Unit, UnitIndex};

/// The versions of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// `LENGTH SIZE INODE`, without a version.
    One,
    /// `2 LENGTH SIZE INODE PATH`, with the path in quotes and its control characters escaped.
    Two = 2,
}

/// The record of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    len: u64,
    size: Option<u64>,
    directory: u64,
    /// The path in quotes; `None` in a record of the first version, which applies to any path.
    path: Option<String>,
}

impl Record {
    /// Returns the record of a unit's file in its present state; `None` if the unit has no file.
    fn of(unit: &Unit) -> Option<Self> {
        let Medium::File { path, size, .. } = &unit.medium else { return None };
        let len = path.metadata().ok()?.len();
        let size = size.map(|size| size.0);
        Some(Self { len, size, directory: directory(path)?, path: Some(quoted(path)) })
    }

    /// Reads the record of the file at `path`; `None` if there is no record, it cannot be read, or it is for
    /// another path.
    fn find(kept: &Path, path: &Path) -> Option<Self> {
        let record = Self::parse(&fs::read_to_string(kept).ok()?)?;
        let quoted = quoted(path);
        Some(record).filter(|record| record.path.as_ref().is_none_or(|path| *path == quoted))
    }

    fn parse(text: &str) -> Option<Self> {
        let (version, text) = match text.strip_prefix("2 ") {
            Some(rest) if rest.contains('"') => (Version::Two, rest),
            _ => (Version::One, text),
        };
        let mut words = text.trim_end_matches('\n').splitn(4, ' ');
        let (len, size, directory) = (words.next()?, words.next()?, words.next()?);
        let path = words.next().map(str::to_owned);
        if path.is_some() != (version == Version::Two) {
            return None;
        }
        let size = if size == "-" { None } else { Some(size.parse().ok()?) };
        Some(Self { len: len.parse().ok()?, size, directory: directory.parse().ok()?, path })
    }

    fn encode(&self) -> String {
        let size = self.size.map_or_else(|| "-".to_owned(), |size| size.to_string());
        let (len, directory) = (self.len, self.directory);
        match &self.path {
            Some(path) => format!("{} {len} {size} {directory} {path}\n", Version::Two as u8),
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
    Some(path.parent()?.metadata().ok()?.ino())
}

/// Checks that a unit's file is not shorter than it was, unless its configured size was reduced.
///
/// # Errors
/// A sentence that says what is wrong, and what to do.
pub(super) fn check(unit: &Unit, state: &StateDir) -> Result<(), String> {
    let Medium::File { path, size, .. } = &unit.medium else { return Ok(()) };
    let kept = state.size_file(unit.identity.naa);
    let Some(record) = Record::find(&kept, path).filter(|_| may_be_filled(unit)) else {
        return Ok(());
    };
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
        // The file was removed from the same directory: the operator wants a new file.
        Err(_) if directory(path).is_none_or(|now| now == record.directory) => Ok(()),
        Err(_) => Err(format!(
            "{}: {name} is missing, and its directory is not the one that it was last served from: is its \
             file system mounted? Remove {forget} to start with an empty disk",
            unit.label
        )),
    }
}

/// Records the lengths of the files that targets show and that `is_right` accepts, and removes the records of
/// units that are no longer configured.
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
    for (at, unit) in config.units.iter().enumerate() {
        let (true, Some(path)) = (shown.contains(&UnitIndex(at)) && is_right(unit), unit.medium.path())
        else {
            continue;
        };
        let Some(record) = Record::of(unit) else { continue };
        let kept = state.size_file(unit.identity.naa);
        let before = Record::find(&kept, path);
        // The length of a file that was not checked does not show which length is right.
        let is_less = |before: &Record| !may_be_filled(unit) && record.len < before.len;
        if before.as_ref() != Some(&record) && !before.as_ref().is_some_and(is_less) {
            super::state::replace(&kept, record.encode().as_bytes())?;
        }
    }
    let known: BTreeSet<String> = config.units.iter().map(|unit| unit.identity.naa.to_string()).collect();
    state.forget_sizes(|naa| known.contains(naa));
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
            Record { len: 1 << 40, size: Some(1 << 40), directory: 2, path: path("/a") },
            Record { len: 5, size: None, directory: u64::MAX, path: path("/a b/\"c\"\nd") },
            Record { len: 2, size: None, directory: 7, path: None },
        ] {
            assert_eq!(Record::parse(&record.encode()), Some(record));
        }
        // A record of the first version.
        let old = Record { len: 2, size: Some(5), directory: 9, path: None };
        assert_eq!(Record::parse("2 5 9\n"), Some(old));
        for text in ["", "5", "5 5", "x - 2", "5 y 2", "5 - z", "5 5 5 5", "2 5 5 \"/a\"", "3 5 5 5 \"/a\""] {
            assert_eq!(Record::parse(text), None, "{text}");
        }
    }

    /// Makes a configuration that shows one shared file.
    fn config(scratch: &Scratch, lun: &str) -> Config {
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
        }
        length("long", 1 << 20);
        assert_eq!(check("path = \"long\", size = \"1M\""), Ok(()));
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
}
