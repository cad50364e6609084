//! Records which medium a SANITIZE or FORMAT UNIT is under way on, or has failed on. So the operation is
//! never continued on another medium that a unit with the same world-wide name was given.
//!
//! `units/WORLD-WIDE-NAME.sanitize` in the state directory has two lines: the version of the record with the
//! identity of the medium, and the medium as the configuration names it, in quotes. The record is durable
//! before a saved state that holds such an operation is. A state that an earlier release saved has no record:
//! its operation continues on the medium that the configuration names. An operator who removes the record
//! says the same.
//!
//! A block device is recognised by its [`DeviceIdentity`]. If the system knows nothing that lasts of it, or
//! an earlier release recorded only its path, its operation waits for the operator.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use backends::open::FileIdentity;
use device::persistent_state::unfinished_sanitize;

use super::device_identity::{Comparison, DeviceIdentity};
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
    /// The block device that the medium is.
    device: Option<DeviceIdentity>,
}

impl SanitizeRecord {
    /// Returns the record of a unit's medium, which was opened. `identity` is that of its file or device, if
    /// it has one.
    pub(super) fn of(unit: &Unit, identity: Option<FileIdentity>) -> Self {
        let medium = unit.medium.to_string();
        let (file, device) = match (&unit.medium, identity) {
            (Medium::File { path, .. }, Some(FileIdentity::File(_, inode))) => {
                (Some(file(path, inode)), None)
            }
            (Medium::Block { .. }, Some(identity)) => (None, DeviceIdentity::of(identity)),
            _ => (None, None),
        };
        let known = file.or_else(|| device.as_ref().map(DeviceIdentity::encode));
        Self { identity: known.unwrap_or_else(|| format!("{medium:?}")), medium, device }
    }

    /// Returns whether the medium is the one of a record. That of a process which hands it over is, although
    /// an earlier release recorded only its path.
    fn is_recorded(&self, recorded: &Self, is_handed_over: bool) -> bool {
        match &self.device {
            Some(_) if is_handed_over && recorded.identity == format!("{:?}", self.medium) => true,
            Some(device) => match device.compare(&recorded.identity) {
                Comparison::Same => device.has_recorded_len(&recorded.identity),
                Comparison::Other | Comparison::Unknown => false,
            },
            None => recorded.identity == self.identity,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (first, medium) = text.strip_suffix('\n')?.split_once('\n')?;
        let (version, identity) = first.split_once(' ')?;
        let (identity, medium) = (identity.to_owned(), medium.to_owned());
        let record = Self { identity, medium, device: None };
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
/// saved. `state` comes with the path of its file. Another process may hand the medium over.
///
/// # Errors
/// A sentence that says what is wrong, and what to do.
pub(super) fn check(
    unit: &Unit,
    (state, state_file): (&[u8], &str),
    (medium, is_handed_over): (&SanitizeRecord, bool),
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
        Some(recorded) if medium.is_recorded(&recorded, is_handed_over) => return Ok(()),
        Some(recorded) => {
            let is_unknown = medium.device.as_ref().map(|device| device.compare(&recorded.identity));
            let on = match is_unknown {
                Some(Comparison::Unknown) => "on what may have been another medium",
                _ => "on another medium",
            };
            format!("{on}, {} ({})", recorded.medium, recorded.identity)
        }
        None => format!("on a medium that {} does not tell", path.display()),
    };
    Err(format!(
        "{}: a SANITIZE or FORMAT UNIT was under way or has failed {other}, and would erase {} ({}); serve the \
         former medium, or remove {} if this is the former one, or remove {state_file} to serve this one as it is, \
         without the persistent reservations and mode parameters that were saved for the LUN",
        unit.label,
        medium.medium,
        medium.identity,
        path.display(),
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
            device: None,
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
    fn a_block_device_is_the_recorded_one_only_if_the_system_says_so() {
        let scratch = crate::scratch::Scratch::new();
        let device = |size: &str, serial: &str, boot| {
            fs::write(scratch.path().join("size"), size).unwrap();
            fs::write(scratch.path().join("serial"), serial).unwrap();
            fs::write(scratch.path().join("diskseq"), "7").unwrap();
            let device = DeviceIdentity::read(scratch.path(), boot);
            let medium = "block:/dev/sda".to_owned();
            SanitizeRecord { identity: device.encode(), medium, device: Some(device) }
        };
        let recorded = SanitizeRecord::parse(&device("8", "s", "b1").encode()).unwrap();
        for (size, serial, boot, is_same) in [
            ("8", "s", "b1", true),
            ("8", "s", "b2", true),
            ("9", "s", "b2", false),
            ("8", "t", "b2", false),
            ("8", "", "b2", false),
        ] {
            let now = device(size, serial, boot);
            assert_eq!(now.is_recorded(&recorded, false), is_same, "{size} {serial} {boot}");
        }
        // An earlier release recorded the path.
        let recorded = SanitizeRecord::parse("1 \"block:/dev/sda\"\n\"block:/dev/sda\"\n").unwrap();
        assert!(!device("8", "s", "b1").is_recorded(&recorded, false));
        assert!(device("8", "s", "b1").is_recorded(&recorded, true));
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

    #[test]
    fn hostile_names_are_read_as_they_were_written() {
        let mut rng = base::rng::Rng::from_seed(1);
        for _ in 0..2000 {
            let medium = crate::serve::hostile_names::text(&mut rng);
            let record = SanitizeRecord { identity: format!("{medium:?}"), medium, device: None };
            let read = SanitizeRecord::parse(&record.encode()).unwrap();
            assert_eq!((read.identity, read.medium), (record.identity, format!("{:?}", record.medium)));
        }
    }
}
