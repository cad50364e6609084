//! Records that writes to a medium are lost, until the operator accepts that.
//!
//! The kernel reports once that it could not write what hosts had written, and forgets it. So the report is
//! kept in the state directory: the disk answers the flush that failed when the record is durable, and every
//! later process that serves the same medium reads the record before it serves a host. What the server of an
//! export lost is recorded in the same way, with its address in place of a path.
//!
//! `units/WORLD-WIDE-NAME-MEDIUM.lost-writes` in the state directory has three lines: the version with the
//! [identity](MediumIdentity) of a file (or `-`) and the time, the path in quotes, and the reason in quotes.
//! In the second version, a fourth line has the identity of a block device, which releases with the first
//! version did not record.
//!
//! A record belongs to the medium with its identity, wherever it is served from. If nothing tells whether a
//! medium is that one, the record belongs to it by its world-wide name or its path. If the medium is another
//! one, a path says nothing: only a unit that serves another path under the same world-wide name still has
//! the record, because an operator has moved its data. A record that cannot be parsed belongs to the
//! world-wide name in its own name.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::config::{Medium, Naa, Unit};
use crate::serve::device_identity::{Comparison, DeviceIdentity};
use crate::serve::media::identity::MediumIdentity;
use crate::serve::state::{StateDir, StateError};

/// The versions of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// Three lines.
    One = 1,
    /// Four lines.
    Two = 2,
}

/// What the names of records end with.
const SUFFIX: &str = ".lost-writes";

/// By what the file or device of a unit is recognised in a later process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) struct LossSubject {
    naa: Naa,
    /// Whether the world-wide name belongs to the medium. That of a drive for discs does not.
    is_named: bool,
    /// The path in quotes.
    path: String,
    medium: MediumIdentity,
}

impl LossSubject {
    /// Describes the medium of a unit, which is open at this path.
    pub(in crate::serve) fn of(unit: &Unit, path: &Path, medium: MediumIdentity) -> Self {
        Self {
            naa: unit.identity.naa,
            is_named: !matches!(unit.medium, Medium::Disc { .. }),
            path: format!("{path:?}"),
            medium,
        }
    }

    /// Returns whether a record belongs to the medium. `name` is the name of its file.
    fn matches(&self, name: &str, record: Option<&LossRecord>) -> bool {
        let is_named = self.is_named && name.starts_with(&format!("{}-", self.naa));
        let Some(record) = record else { return is_named };
        let is_at_path = self.is_at_path_of(record);
        match self.medium.compare(&record.medium) {
            Comparison::Same => true,
            Comparison::Unknown => is_named || is_at_path,
            Comparison::Other => is_named && !is_at_path,
        }
    }

    fn is_at_path_of(&self, record: &LossRecord) -> bool {
        record.path == self.path
    }
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) struct LossRecord {
    path: String,
    /// The identity of the medium; empty if it is not known.
    medium: String,
    /// When the loss was noticed, in seconds since 1970.
    since_s: u64,
    /// What the system reported.
    pub(in crate::serve) why: String,
}

impl LossRecord {
    /// Records a loss that is noticed now.
    pub(in crate::serve) fn new(subject: &LossSubject, why: &str) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (path, medium) = (subject.path.clone(), subject.medium.encode());
        Self { path, medium, since_s: since.as_secs(), why: why.to_owned() }
    }

    fn encode(&self) -> String {
        let Self { path, medium, since_s, why } = self;
        if DeviceIdentity::is_encoded(medium) {
            return format!("{} - {since_s}\n{path}\n{why:?}\n{medium}\n", Version::Two as u8);
        }
        let file = if medium.is_empty() { "-" } else { medium };
        format!("{} {file} {since_s}\n{path}\n{why:?}\n", Version::One as u8)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let (first, path, why) = (lines.next()?, lines.next()?, lines.next()?);
        let mut words = first.split(' ');
        let (version, file, since_s) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
        let medium = match version.parse::<u8>().ok()? {
            version if version == Version::One as u8 => {
                if file == "-" {
                    ""
                } else {
                    file
                }
            }
            version if version == Version::Two as u8 => {
                lines.next().filter(|line| file == "-" && DeviceIdentity::is_encoded(line))?
            }
            _ => return None,
        };
        let why = why.strip_prefix('"')?.strip_suffix('"')?.to_owned();
        let is_whole = words.next().is_none() && lines.next().is_none();
        is_whole.then_some(Self { path: path.to_owned(), medium: medium.to_owned(), since_s, why })
    }
}

/// Makes a record durable. A record that cannot be written counts until this process ends.
///
/// # Errors
/// [`StateError`]
pub(in crate::serve) fn save(
    state: &StateDir,
    subject: &LossSubject,
    record: &LossRecord,
) -> Result<(), StateError> {
    state.save_loss(&file_name(subject), record.encode().as_bytes())
}

/// Reserves storage for the record of a medium, so that it can be written when the file system is full.
pub(in crate::serve) fn reserve(state: &StateDir, subject: &LossSubject) {
    state.reserve_loss(&file_name(subject));
}

fn file_name(subject: &LossSubject) -> String {
    format!("{}-{}{SUFFIX}", subject.naa, subject.medium.tag())
}

/// Returns the record of a medium, if writes to it are lost.
///
/// # Errors
/// [`StateError`]. Serving the medium without its record would let flushes succeed.
pub(in crate::serve) fn find(
    state: &StateDir,
    subject: &LossSubject,
) -> Result<Option<LossRecord>, StateError> {
    let found = matching(state, subject)?.into_iter().map(|(_, record)| record);
    let damaged = || LossRecord::new(subject, "the record of the reason is damaged");
    Ok(found.max_by_key(Option::is_some).map(|record| record.unwrap_or_else(damaged)))
}

/// Returns why another medium lost writes that was at the path of this one, if one did.
pub(in crate::serve) fn of_former(state: &StateDir, subject: &LossSubject) -> Option<String> {
    let records = all(state).ok()?.into_iter().filter_map(|(_, record)| record);
    let is_other = |record: &LossRecord| subject.medium.compare(&record.medium) == Comparison::Other;
    let mut found = records.filter(|record| subject.is_at_path_of(record) && is_other(record));
    found.next().map(|record| record.why)
}

/// Removes every record of a medium, because the operator accepts what is lost. Returns when that is durable.
///
/// # Errors
/// [`StateError`]
pub(in crate::serve) fn remove(state: &StateDir, subject: &LossSubject) -> Result<(), StateError> {
    for (path, _) in matching(state, subject)? {
        state.remove_loss(&path)?;
    }
    reserve(state, subject);
    Ok(())
}

/// Returns the records of a medium, with `None` for one that is damaged.
fn matching(
    state: &StateDir,
    subject: &LossSubject,
) -> Result<Vec<(PathBuf, Option<LossRecord>)>, StateError> {
    let mut found = all(state)?;
    found.retain(|(path, record)| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        subject.matches(name, record.as_ref())
    });
    Ok(found)
}

fn all(state: &StateDir) -> Result<Vec<(PathBuf, Option<LossRecord>)>, StateError> {
    let parse = |bytes: Vec<u8>| LossRecord::parse(&String::from_utf8(bytes).ok()?);
    let written = state.unit_files(SUFFIX)?.into_iter().map(|path| {
        let record = fs::read(&path).ok().and_then(parse);
        (path, record)
    });
    let unwritten = state.unwritten_losses().into_iter().map(|(path, bytes)| (path, parse(bytes)));
    Ok(written.chain(unwritten).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    use super::*;
    use crate::scratch::Scratch;
    use crate::serve::hostile_names;

    /// Describes a unit. `medium` is `INODE.CREATED` of a file, `device NAME` of a device with that
    /// world-wide name, or empty.
    fn subject(number: u8, path: &str, medium: &str) -> LossSubject {
        let naa = Naa::Short([0x3a, 0, 0, 0, 0, 0, 0, number]);
        let medium = match (medium.split_once('.'), medium.strip_prefix("device ")) {
            (_, Some(name)) => {
                let scratch = Scratch::new();
                fs::write(scratch.path().join("wwid"), name).unwrap();
                MediumIdentity::Device(DeviceIdentity::read(scratch.path(), "b1"))
            }
            (Some((inode, created)), None) => {
                let created = UNIX_EPOCH + Duration::from_nanos(created.parse().unwrap());
                MediumIdentity::File { inode: inode.parse().unwrap(), created }
            }
            (None, None) => MediumIdentity::Unknown,
        };
        LossSubject { naa, is_named: true, path: format!("{:?}", Path::new(path)), medium }
    }

    #[test]
    fn hostile_names_are_read_as_they_were_written() {
        let mut rng = base::rng::Rng::from_seed(1);
        for round in 0..300 {
            let device = format!("device {}", hostile_names::text(&mut rng));
            let medium = ["5.6", "", &device][round % 3];
            let subject = subject(1, &hostile_names::text(&mut rng), medium);
            let record = LossRecord::new(&subject, &hostile_names::text(&mut rng));
            let text = record.encode();
            let read = LossRecord::parse(&text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(format!("\"{}\"", read.why), format!("{:?}", record.why));
            assert_eq!(LossRecord { why: record.why.clone(), ..read }, record, "{text}");
        }
    }

    #[test]
    fn a_loss_is_that_of_a_medium_until_it_is_removed() {
        let scratch = Scratch::new();
        let state = StateDir::open(scratch.path()).unwrap();
        for (medium, other) in [("5.6", "7.8"), ("device naa.5", "device naa.6"), ("5.6", "device naa.6")] {
            let lost = subject(1, "/a \"b\"\n", medium);
            save(&state, &lost, &LossRecord::new(&lost, "input/output \"error\"\n")).unwrap();
            let same = [
                // The medium was moved, and the operator has moved its data.
                subject(2, "/other", medium),
                subject(1, "/other", other),
                // Nothing tells the medium from the one that was served.
                subject(2, "/a \"b\"\n", ""),
                subject(1, "/other", ""),
            ];
            for subject in &same {
                assert!(find(&state, subject).unwrap().is_some(), "{medium}: {subject:?}");
            }
            // Another medium has got the path, and with that the world-wide name that follows from it.
            let others = [
                subject(1, "/a \"b\"\n", other),
                subject(2, "/a \"b\"\n", other),
                subject(2, "/other", other),
                subject(2, "/other", ""),
                // Another disc in the same drive.
                LossSubject { is_named: false, ..subject(1, "/other", other) },
            ];
            for subject in &others {
                assert_eq!(find(&state, subject).unwrap(), None, "{medium}: {subject:?}");
                let is_at_path = subject.path != "\"/other\"";
                assert_eq!(of_former(&state, subject).is_some(), is_at_path, "{medium}: {subject:?}");
                remove(&state, subject).unwrap();
            }
            // Its loss does not take the place of the record.
            save(&state, &others[0], &LossRecord::new(&others[0], "why")).unwrap();
            remove(&state, &others[0]).unwrap();
            assert!(find(&state, &lost).unwrap().is_some());
            remove(&state, &same[0]).unwrap();
            assert_eq!(find(&state, &lost).unwrap(), None);
            remove(&state, &lost).unwrap();
        }
    }

    #[test]
    fn records_of_earlier_releases_are_read() {
        let scratch = Scratch::new();
        let state = StateDir::open(scratch.path()).unwrap();
        let kept = |name: &str, text: &str| fs::write(scratch.path().join("units").join(name), text).unwrap();
        let naa = subject(1, "/a", "").naa;
        kept(&format!("{naa}-5.lost-writes"), "1 5.6 7\n\"/a\"\n\"why\"\n");
        assert_eq!(find(&state, &subject(2, "/b", "5.6")).unwrap().unwrap().why, "why");
        assert_eq!(find(&state, &subject(1, "/a", "5.7")).unwrap(), None);
        remove(&state, &subject(2, "/b", "5.6")).unwrap();
        // Of a device, only its path was recorded.
        kept(&format!("{naa}-.lost-writes"), "1 - 7\n\"/dev/sda\"\n\"why\"\n");
        for device in [subject(1, "/dev/sdb", "device naa.5"), subject(2, "/dev/sda", "device naa.5")] {
            assert!(find(&state, &device).unwrap().is_some(), "{device:?}");
        }
        assert_eq!(find(&state, &subject(2, "/dev/sdb", "device naa.5")).unwrap(), None);
    }

    #[test]
    fn the_first_record_needs_no_new_storage() {
        let scratch = Scratch::new();
        let state = StateDir::open(scratch.path()).unwrap();
        let lost = subject(1, "/a", "5.6");
        let files = || fs::read_dir(scratch.path().join("units")).unwrap();
        let inodes = || files().map(|file| file.unwrap().metadata().unwrap().ino()).collect::<Vec<_>>();
        reserve(&state, &lost);
        let reserved = inodes();
        assert_eq!((reserved.len(), find(&state, &lost).unwrap()), (1, None));
        assert!(files().all(|file| file.unwrap().metadata().unwrap().blocks() > 0));
        save(&state, &lost, &LossRecord::new(&lost, "why")).unwrap();
        assert!(inodes().contains(&reserved[0]) && find(&state, &lost).unwrap().is_some());
        remove(&state, &lost).unwrap();
        assert_eq!((inodes().len(), find(&state, &lost).unwrap()), (1, None), "reserved for the next one");
    }

    #[test]
    fn a_record_that_cannot_be_written_counts_in_this_process() {
        for is_accepted in [true, false] {
            let scratch = Scratch::new();
            let state = StateDir::open(scratch.path()).unwrap();
            let (lost, other) = (subject(1, "/a", "5.6"), subject(2, "/b", "7.8"));
            // A folder whose name the record needs.
            let obstacle = scratch.path().join("units").join(format!("{}.new", file_name(&lost)));
            fs::create_dir(&obstacle).unwrap();
            assert!(save(&state, &lost, &LossRecord::new(&lost, "why")).is_err());
            assert_eq!(find(&state.clone(), &lost).unwrap().unwrap().why, "why");
            assert_eq!(find(&state, &other).unwrap(), None);
            fs::remove_dir(&obstacle).unwrap();
            if !is_accepted {
                save(&state, &lost, &LossRecord::new(&lost, "why")).unwrap();
                assert_eq!(state.unwritten_losses(), []);
            }
            remove(&state, &lost).unwrap();
            assert_eq!(find(&state, &lost).unwrap(), None);
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for path in ["/a", "/a b/\"c\"\nd", "/é"] {
            for medium in ["", "5.6", "device naa.5 \"a\" b"] {
                let subject = subject(1, path, medium);
                let record = LossRecord::new(&subject, "no space left on device");
                assert_eq!(LossRecord::parse(&record.encode()), Some(record));
            }
        }
        let damaged = [
            "",
            "1 - 5\n\"/a\"\n",
            "2 - 5\n\"/a\"\n\"why\"\n",
            "2 - 5\n\"/a\"\n\"why\"\nx\n",
            "3 - 5\n\"/a\"\n\"why\"\n",
            "1 - x\n\"/a\"\n\"why\"\n",
        ];
        for text in damaged {
            assert_eq!(LossRecord::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_damaged_record_still_counts_for_its_world_wide_name() {
        let scratch = Scratch::new();
        let state = StateDir::open(scratch.path()).unwrap();
        let lost = subject(1, "/a", "5.6");
        save(&state, &lost, &LossRecord::new(&lost, "why")).unwrap();
        for path in state.unit_files(SUFFIX).unwrap() {
            fs::write(path, [0xff, 0]).unwrap();
        }
        assert!(find(&state, &lost).unwrap().unwrap().why.contains("damaged"));
        assert_eq!(find(&state, &subject(2, "/a", "5.6")).unwrap(), None);
        remove(&state, &lost).unwrap();
        assert_eq!(find(&state, &lost).unwrap(), None);
    }
}
