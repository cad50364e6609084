//! Records which medium a SANITIZE or FORMAT UNIT is under way on, or has failed on. So the operation is
//! never continued on another medium that a unit with the same world-wide name was given.
//!
//! `units/WORLD-WIDE-NAME.sanitize` in the state directory has two lines: the version of the record with the
//! identity of the medium, and the medium as the configuration names it, in quotes. The record is durable
//! before a saved state that holds such an operation is. A state that an earlier release saved has no record:
//! its operation continues on the medium that the configuration names.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use backends::open::FileIdentity;
use device::persistent_state::unfinished_sanitize;

use crate::config::{Medium, Unit};

/// The version of the record.
const VERSION: &str = "1";

/// The identity of a medium, as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SanitizeRecord {
    /// What distinguishes the medium from others, also after a restart of the host.
    identity: String,
    /// The medium as the configuration names it, for the operator.
    pub(super) medium: String,
}

impl SanitizeRecord {
    /// Returns the record of a unit's medium, which was opened. `identity` is that of its file or device, if
    /// it has one.
    pub(super) fn of(unit: &Unit, identity: Option<FileIdentity>) -> Self {
        let medium = unit.medium.to_string();
        let file = match (&unit.medium, identity) {
            (Medium::File { path, .. }, Some(FileIdentity::File(_, inode))) => Some(file(path, inode)),
            // The number of a device can be that of another one after a restart of the host; its path, which
            // the operator chose, is to be the same.
            _ => None,
        };
        Self { identity: file.unwrap_or_else(|| format!("{medium:?}")), medium }
    }

    fn parse(text: &str) -> Option<Self> {
        let (first, medium) = text.strip_suffix('\n')?.split_once('\n')?;
        let (version, identity) = first.split_once(' ')?;
        let record = Self { identity: identity.to_owned(), medium: medium.to_owned() };
        (version == VERSION).then_some(record)
    }

    /// Returns the contents of the file that [`check`] reads.
    pub(super) fn encode(&self) -> String {
        format!("{VERSION} {}\n{:?}\n", self.identity, self.medium)
    }
}

/// Returns the identity of the file at `path`, whose inode is that of the file that was opened. The number of
/// the file system is not part of it, since it can change with a restart of the host.
fn file(path: &Path, inode: u64) -> String {
    let facts = path.metadata().ok().filter(|facts| facts.ino() == inode);
    let created = facts.and_then(|facts| facts.created().ok()?.duration_since(UNIX_EPOCH).ok());
    match created {
        Some(created) => {
            format!("inode {inode} created {}.{:09}", created.as_secs(), created.subsec_nanos())
        }
        None => format!("inode {inode}"),
    }
}

/// Checks that the SANITIZE or FORMAT UNIT which `state`, the saved state of a unit, holds was under way on
/// the unit's medium. `medium` is the record of that medium, and `path` the file of the record that was
/// saved. `state` comes with the path of its file.
///
/// # Errors
/// A sentence that says what is wrong, and what to do.
pub(super) fn check(
    unit: &Unit,
    (state, state_file): (&[u8], &str),
    medium: &SanitizeRecord,
    path: &Path,
) -> Result<(), String> {
    if unfinished_sanitize(state).is_none() {
        return Ok(());
    }
    let recorded = match fs::read_to_string(path) {
        Ok(text) => SanitizeRecord::parse(&text),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(_) => None,
    };
    let other = match recorded {
        Some(recorded) if recorded.identity == medium.identity => return Ok(()),
        Some(recorded) => format!("on another medium, {} ({})", recorded.medium, recorded.identity),
        None => format!("on a medium that {} does not tell", path.display()),
    };
    Err(format!(
        "{}: a SANITIZE or FORMAT UNIT was under way or has failed {other}, and would erase {} ({}); serve the \
         former medium, or remove {state_file} to serve this one as it is, without the persistent reservations \
         and mode parameters that were saved for the LUN",
        unit.label, medium.medium, medium.identity,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is_one() {
        let record = SanitizeRecord {
            identity: "inode 7 created 5.000000001".to_owned(),
            medium: "file:/a \"b\"\nc".to_owned(),
        };
        let text = record.encode();
        let read = SanitizeRecord::parse(&text).unwrap();
        assert_eq!((&read.identity, read.medium), (&record.identity, format!("{:?}", record.medium)));
        for text in ["", "1", "1 inode 7", "1 inode 7\n", "2 inode 7\n\"file:/a\"\n", &text[..text.len() - 1]]
        {
            assert_eq!(SanitizeRecord::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_file_is_known_by_its_inode_and_time_of_creation() {
        let scratch = crate::scratch::Scratch::new();
        let (path, other) = (scratch.path().join("a"), scratch.path().join("b"));
        let identity = || file(&path, path.metadata().unwrap().ino());
        fs::write(&path, "one").unwrap();
        let first = identity();
        fs::write(&path, "changed").unwrap();
        assert_eq!(identity(), first);
        fs::write(&other, "two").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_ne!(identity(), first);
    }
}
