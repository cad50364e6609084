//! Records in which portal groups the sessions of a local disk are, for the server that takes the disk over.
//!
//! A target ends the session of a dead server only if the next one logs in with the same initiator name and
//! ISID in the same portal group (RFC 7143 §4.4.3, §6.3.5). Name and ISID are the same for every server of
//! the disk. The portal group is the target's, so a server records it before it serves the disk, and removes
//! the record when it has logged out.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The most nexuses in a record. Disks that had the same place before leave theirs if they were not detached.
const NEXUSES_MAX: usize = 64;
/// The longest record: three names of 223 bytes at most fit into a line.
const RECORD_LEN_MAX: u64 = 64 << 10;

/// An initiator port and a target: an I_T nexus, without the portal group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Nexus {
    /// The iSCSI name of the initiator.
    pub(super) initiator: String,
    /// The initiator's half of the session identifier.
    pub(super) isid: [u8; 6],
    /// The iSCSI name of the target.
    pub(super) target: String,
}

/// The file that keeps the portal groups of the nexuses of a local disk: `INITIATOR ISID TARGET TAG` in each
/// line, the latest last.
#[derive(Clone, Debug)]
pub(super) struct NexusRecord {
    path: PathBuf,
}

impl NexusRecord {
    /// Returns the record in a file, which need not exist.
    pub(super) const fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the portal group of the session that the last server of a nexus had and did not log out.
    ///
    /// # Errors
    /// The file cannot be read, or is no record.
    pub(super) fn portal_group(&self, nexus: &Nexus) -> io::Result<Option<u16>> {
        let known = self.read()?;
        Ok(known.into_iter().find(|(of, _)| of == nexus).map(|(_, tag)| tag))
    }

    /// Records the portal groups of nexuses. When this returns, they are on stable storage.
    ///
    /// # Errors
    /// The file cannot be read or replaced, or is no record.
    pub(super) fn keep(&self, nexuses: &[(Nexus, u16)]) -> io::Result<()> {
        let mut known = self.read()?;
        known.retain(|(of, _)| nexuses.iter().all(|(nexus, _)| nexus != of));
        known.extend(nexuses.iter().cloned());
        known.drain(..known.len().saturating_sub(NEXUSES_MAX.max(nexuses.len())));
        self.replace(&known)
    }

    /// Removes nexuses whose sessions were logged out, and the file if it is empty then.
    ///
    /// # Errors
    /// The file cannot be read, replaced or removed, or is no record.
    pub(super) fn forget(&self, nexuses: &[Nexus]) -> io::Result<()> {
        let mut known = self.read()?;
        let before = known.len();
        known.retain(|(of, _)| !nexuses.contains(of));
        if known.len() == before { Ok(()) } else { self.replace(&known) }
    }

    fn read(&self) -> io::Result<Vec<(Nexus, u16)>> {
        let text = match fs::metadata(&self.path) {
            Ok(found) if !found.is_file() || found.len() > RECORD_LEN_MAX => Err(no_record()),
            Ok(_) => fs::read_to_string(&self.path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => Err(error),
        }?;
        text.lines().map(|line| parsed(line).ok_or_else(no_record)).collect()
    }

    /// Replaces the file as a whole, so that a crash leaves the old record or the new one.
    fn replace(&self, known: &[(Nexus, u16)]) -> io::Result<()> {
        if known.is_empty() {
            return fs::remove_file(&self.path);
        }
        let text = known.iter().fold(String::new(), |mut text, (nexus, tag)| {
            let Nexus { initiator, isid, target } = nexus;
            // Writing to a string does not fail.
            let _ = writeln!(text, "{initiator} {} {target} {tag}", isid_digits(*isid));
            text
        });
        let mut name = self.path.as_os_str().to_owned();
        name.push(".new");
        let new = PathBuf::from(name);
        // A process that was killed may have left the file. No link is followed.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// Returns an ISID as the URL has it.
pub(super) fn isid_digits(isid: [u8; 6]) -> String {
    isid.iter().fold(String::new(), |mut digits, byte| {
        // Writing to a string does not fail.
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

fn no_record() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the file is not a record of portal groups")
}

fn parsed(line: &str) -> Option<(Nexus, u16)> {
    let mut words = line.split(' ');
    let (initiator, digits, target, tag) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let is_hex = digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(digits, 16).ok().filter(|_| is_hex && words.next().is_none())?;
    let [_, _, isid @ ..] = number.to_be_bytes();
    Some((Nexus { initiator: initiator.to_owned(), isid, target: target.to_owned() }, tag.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nexus(number: u8) -> Nexus {
        Nexus {
            initiator: "iqn.2026-11.example.targe:host".to_owned(),
            isid: [0x80, 0, 0, 0, 0xab, number],
            target: "iqn.2026-11.example.targe:disk".to_owned(),
        }
    }

    fn record(name: &str) -> NexusRecord {
        let path = std::env::temp_dir().join(format!("targe-nexus-record-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        NexusRecord::at(path)
    }

    #[test]
    fn a_portal_group_is_kept_until_the_session_was_logged_out() {
        let record = record("kept");
        assert_eq!(record.portal_group(&nexus(1)).unwrap(), None);
        record.forget(&[nexus(1)]).unwrap();
        record.keep(&[(nexus(1), 7), (nexus(2), 65535)]).unwrap();
        record.keep(&[(nexus(1), 8)]).unwrap();
        let text = fs::read_to_string(record.path()).unwrap();
        let line = |isid: &str, tag: u16| {
            format!("iqn.2026-11.example.targe:host {isid} iqn.2026-11.example.targe:disk {tag}\n")
        };
        assert_eq!(text, line("80000000ab02", 65535) + &line("80000000ab01", 8));
        let group = |number| record.portal_group(&nexus(number)).unwrap();
        assert_eq!((group(1), group(2), group(3)), (Some(8), Some(65535), None));
        let others = [
            Nexus { initiator: "iqn.2026-11.example.targe:other".to_owned(), ..nexus(1) },
            Nexus { target: "iqn.2026-11.example.targe:other".to_owned(), ..nexus(1) },
        ];
        assert!(others.iter().all(|other| record.portal_group(other).unwrap().is_none()));
        record.forget(&[nexus(1), nexus(3)]).unwrap();
        assert_eq!((group(1), group(2)), (None, Some(65535)));
        record.forget(&[nexus(2)]).unwrap();
        assert!(!record.path().exists());
    }

    #[test]
    fn a_record_is_bounded_and_keeps_the_latest() {
        let record = record("bounded");
        for number in 0..=u8::try_from(NEXUSES_MAX).unwrap() {
            record.keep(&[(nexus(number), number.into())]).unwrap();
        }
        let last = u8::try_from(NEXUSES_MAX).unwrap();
        assert_eq!(record.portal_group(&nexus(0)).unwrap(), None);
        assert_eq!(record.portal_group(&nexus(last)).unwrap(), Some(last.into()));
        assert_eq!(record.read().unwrap().len(), NEXUSES_MAX);
        fs::remove_file(record.path()).unwrap();
    }

    #[test]
    fn a_file_that_is_no_record_is_not_ignored() {
        let record = record("broken");
        for text in
            ["\n", "a 800000000001 b\n", "a 800000000001 b 65536\n", "a 80000000000g b 1\n", "a 8 b 1 \n"]
        {
            fs::write(record.path(), text).unwrap();
            let error = record.portal_group(&nexus(1)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text:?}");
            assert!(record.keep(&[(nexus(1), 1)]).is_err());
        }
        assert_eq!(fs::read_to_string(record.path()).unwrap(), "a 8 b 1 \n", "nothing was overwritten");
        fs::remove_file(record.path()).unwrap();
    }
}
