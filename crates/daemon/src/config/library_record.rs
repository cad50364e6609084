//! The record of the tape libraries that were served, in the state directory: which drives each one has. A
//! start needs it for a library whose folder is not there yet: the numbers of LUNs depend on its drives.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The longest record that is read. The configuration file is not longer.
const LEN_MAX: u64 = super::FILE_LEN_MAX;

/// A tape library that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedLibrary {
    /// Its serial number.
    pub serial: String,
    /// The serial number of each drive.
    pub drives: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    path: PathBuf,
    serial: String,
    drives: Vec<String>,
}

/// Returns the file with the record of a state directory.
pub(crate) fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("libraries.json")
}

/// Returns the libraries of the record, by the paths of their folders. Without a record that can be read
/// there are none: then the folder of each library must be there.
pub(crate) fn read(state_dir: &Path) -> BTreeMap<PathBuf, ServedLibrary> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(file(state_dir));
    if file.and_then(|file| file.take(LEN_MAX).read_to_end(&mut bytes)).is_err() {
        return BTreeMap::new();
    }
    let records: Vec<Record> = serde_json::from_slice(&bytes).unwrap_or_default();
    let library = |Record { path, serial, drives }| (path, ServedLibrary { serial, drives });
    records.into_iter().map(library).collect()
}

/// Returns the record of libraries.
pub(crate) fn encode(libraries: &BTreeMap<PathBuf, ServedLibrary>) -> Vec<u8> {
    let record = |(path, library): (&PathBuf, &ServedLibrary)| Record {
        path: path.clone(),
        serial: library.serial.clone(),
        drives: library.drives.clone(),
    };
    // A path that is no text is in no configuration.
    serde_json::to_vec_pretty(&libraries.iter().map(record).collect::<Vec<_>>()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn libraries_come_back_whatever_their_names_hold_and_damage_is_no_record() {
        let scratch = Scratch::new();
        assert_eq!(read(scratch.path()), BTreeMap::new());
        let library = |drives: &[&str]| ServedLibrary {
            serial: "LIB \"1\"\n".to_owned(),
            drives: drives.iter().map(|serial| (*serial).to_owned()).collect(),
        };
        let libraries = BTreeMap::from([
            (PathBuf::from("/srv/a library\n\"x\" 2"), library(&["LIB 01", "LIB 02"])),
            (PathBuf::from("/srv/\u{2028}"), library(&[])),
        ]);
        let bytes = encode(&libraries);
        std::fs::write(file(scratch.path()), &bytes).unwrap();
        assert_eq!(read(scratch.path()), libraries);
        for len in 0..bytes.len() {
            std::fs::write(file(scratch.path()), &bytes[..len]).unwrap();
            assert_eq!(read(scratch.path()), BTreeMap::new(), "{len}");
        }
    }
}
