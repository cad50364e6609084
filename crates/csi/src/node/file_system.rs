//! File systems on block devices: found, made, enlarged.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::program::{run, run_well, text};
use crate::error::{CsiError, CsiResult};

/// The part of a device that has to be zeros before a file system is made: every file system and partition
/// table has something there.
const BLANK_LEN: usize = 1 << 20;
/// The exit codes of `blkid -p`: nothing was found, and things that exclude each other were found.
const NOTHING: i32 = 2;
const AMBIVALENT: i32 = 8;

/// Returns what is on a device; `None` if nothing is known of it.
pub(super) fn probe(device: &Path) -> CsiResult<Option<String>> {
    let path = text(device)?;
    let done = run(&["blkid", "-p", "-u", "filesystem,raid,crypto,other", "-o", "export", path])?;
    let value = |key: &str| {
        let found = done.said.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        found.map(str::to_owned)
    };
    match done.code {
        0 => match (value("TYPE"), value("PTTYPE")) {
            (Some(kind), _) => Ok(Some(kind)),
            (None, Some(table)) => Ok(Some(format!("partition table {table}"))),
            (None, None) => Ok(None),
        },
        NOTHING => Ok(None),
        AMBIVALENT => Err(CsiError::precondition(format!("{path} has the marks of several file systems"))),
        code => Err(CsiError::internal(format!("blkid failed ({code}): {}", done.said.trim()))),
    }
}

/// Returns whether a device begins with zeros.
pub(super) fn is_blank(device: &Path) -> CsiResult<bool> {
    let failed = |error: std::io::Error| CsiError::io("read", device, &error);
    let mut bytes = vec![0; BLANK_LEN];
    File::open(device).and_then(|mut file| file.read_exact(&mut bytes)).map_err(failed)?;
    Ok(bytes.iter().all(|byte| *byte == 0))
}

/// Makes a file system. The device is blank, so nothing has to be discarded first.
pub(super) fn make(device: &Path, kind: &str) -> CsiResult<()> {
    let path = text(device)?;
    let program = format!("mkfs.{kind}");
    match kind {
        "xfs" => run_well(&[&program, "-q", "-f", "-K", path])?,
        _ => run_well(&[&program, "-q", "-F", "-m", "0", "-E", "nodiscard", path])?,
    };
    Ok(())
}

/// Returns the options that a file system is mounted with, behind those of the caller.
pub(super) fn options(kind: &str, read_only: bool) -> impl Iterator<Item = &'static str> {
    // A journal cannot be replayed on a device that cannot be written.
    let (access, journal) = match (read_only, kind) {
        (false, _) => ("rw", None),
        (true, "xfs") => ("ro", Some("norecovery")),
        (true, "ext3" | "ext4") => ("ro", Some("noload")),
        (true, _) => ("ro", None),
    };
    // A clone has the UUID of its source.
    let clone = (kind == "xfs").then_some("nouuid");
    [Some(access), journal, clone].into_iter().flatten()
}

/// Enlarges a mounted file system to its device. One that fills it stays as it is.
pub(super) fn grow(device: &Path, mounted_at: &Path, kind: &str) -> CsiResult<()> {
    match kind {
        "xfs" => run_well(&["xfs_growfs", text(mounted_at)?])?,
        _ => run_well(&["resize2fs", text(device)?])?,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_not_replayed_on_a_read_only_device() {
        let chosen = |kind, read_only| options(kind, read_only).collect::<Vec<_>>();
        assert_eq!(chosen("ext4", false), ["rw"]);
        assert_eq!(chosen("ext4", true), ["ro", "noload"]);
        assert_eq!(chosen("ext3", true), ["ro", "noload"]);
        assert_eq!(chosen("xfs", false), ["rw", "nouuid"]);
        assert_eq!(chosen("xfs", true), ["ro", "norecovery", "nouuid"]);
    }
}
