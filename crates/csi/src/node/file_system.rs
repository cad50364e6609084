//! File systems on block devices: found, made, enlarged.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use super::{condition, mounts, unfinished};
use crate::error::{CsiError, CsiResult};
use crate::ext::{self, ExtSuperblock};
use crate::program::{end_of, run, run_well, run_within, text};

/// The part of a device that has to be zeros before a file system is made: every file system and partition
/// table has something there.
const BLANK_LEN: usize = 1 << 20;
/// The exit codes of `blkid -p`: nothing was found, and things that exclude each other were found.
const NOTHING: i32 = 2;
const AMBIVALENT: i32 = 8;
/// How much longer a device must be than its file system for that to be enlarged. A new one
/// leaves [`unfinished::TAIL_LEN`] free, and may not use the last blocks of that length either.
const GROWTH_MIN: u64 = 2 * unfinished::TAIL_LEN;
/// How long a check may take. It reads all metadata of a large file system if there are errors. A killed
/// check would begin again. The caller does not wait that long: its next calls are refused until the check
/// has ended, and the one after that finds its result.
const PREEN_MAX: Duration = Duration::from_secs(6 * 3600);

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

/// Makes a file system, durably, whatever is on the device. One of e2fsprogs gets `len` bytes, or the whole
/// device. Nothing has to be discarded first: the device is blank, or almost.
pub(super) fn make(device: &Path, kind: &str, len: Option<u64>) -> CsiResult<()> {
    let path = text(device)?;
    let program = format!("mkfs.{kind}");
    if kind == "xfs" {
        return run_well(&[&program, "-q", "-f", "-K", path]).map(drop);
    }
    let size = len.map(|len| format!("{}k", len / 1024));
    let words = [&program, "-q", "-F", "-m", "0", "-E", "nodiscard", path];
    let words: Vec<&str> = words.into_iter().chain(size.as_deref()).collect();
    run_well(&words)?;
    File::open(device)
        .and_then(|file| file.sync_all())
        .map_err(|error| CsiError::io("write to", device, &error))
}

/// Returns the options that a file system is mounted with. Those of the caller win, but for a volume that may
/// only be read.
///
/// Nothing skips the journal (`noload`, `norecovery`): the kernel refuses to mount a file system whose
/// journal it would have to replay on a device that cannot be written, and what it would show without that
/// lacks files that were synced.
pub(super) fn options(kind: &str, read_only: bool, caller: &[String]) -> Vec<String> {
    // A clone has the UUID of its source.
    let clone = (kind == "xfs").then_some("nouuid");
    let (first, last) = if read_only { (None, Some("ro")) } else { (Some("rw"), None) };
    let own = |word: Option<&str>| word.map(str::to_owned);
    own(first).into_iter().chain(caller.iter().cloned()).chain(own(clone)).chain(own(last)).collect()
}

/// Checks a file system that is not mounted, and repairs what can be repaired without losing anything
/// (`preen`), before it is mounted for writing. XFS checks itself when it is mounted.
pub(super) fn preen(device: &Path, kind: &str) -> CsiResult<()> {
    if !ext::is_ext(kind) {
        return Ok(());
    }
    let path = text(device)?;
    let done = run_within(&["e2fsck", "-p", path], PREEN_MAX)?;
    let said = end_of(&done.said.trim().replace('\n', "; "));
    match done.code {
        0 => Ok(()),
        code if code & !ext::E2FSCK_REPAIRED == 0 => {
            eprintln!("targe: e2fsck repaired the file system on {path}: {said}");
            Ok(())
        }
        code => Err(CsiError::precondition(format!(
            "the file system on {path} has errors that e2fsck -p does not repair ({code}); it is not mounted, so \
             that they do not spread; repair it with e2fsck, or restore a snapshot: {said}"
        ))),
    }
}

/// Mounts a file system that may only be read. If its journal has to be replayed, it is refused: names, sizes
/// and blocks would be of different ages.
pub(super) fn mount_read_only(device: &Path, at: &Path, kind: &str, caller: &[String]) -> CsiResult<()> {
    let is_unclean =
        || Ok::<bool, CsiError>(ExtSuperblock::read(device)?.is_some_and(|ext| ext.needs_recovery));
    if ext::is_ext(kind) && mounts::is_read_only_device(device)? && is_unclean()? {
        return Err(unreplayed(device, "its superblock says so"));
    }
    match mounts::mount(device, at, kind, &options(kind, true, caller)) {
        // mount reports EROFS in these words.
        Err(error) if error.message.contains("read-only") => Err(unreplayed(device, &error.message)),
        other => other,
    }
}

fn unreplayed(device: &Path, why: &str) -> CsiError {
    CsiError::precondition(format!(
        "the journal of the file system on {} has to be replayed, as in a snapshot or clone of a volume in use, and \
         the volume may only be read; without that, files would be missing that were synced; publish the volume for \
         writing once, on one node, and then read-only: {why}",
        device.display()
    ))
}

/// Enlarges a mounted file system to its device. One that fills it, but for what a new one leaves free, stays
/// as it is.
pub(super) fn grow(device: &Path, mounted_at: &Path, kind: &str) -> CsiResult<()> {
    if kind == "xfs" {
        return run_well(&["xfs_growfs", text(mounted_at)?]).map(drop);
    }
    let free = match ExtSuperblock::read(device)? {
        Some(found) => mounts::device_bytes(device)?.saturating_sub(found.len),
        None => u64::MAX,
    };
    if free < GROWTH_MIN {
        return Ok(());
    }
    run_well(&["resize2fs", text(device)?]).map(drop).map_err(|error| {
        match condition::recorded_errors(device) {
            None => error,
            // The kernel refuses that with EPERM, which resize2fs reports as a lack of permission.
            Some(what) => CsiError::precondition(format!(
                "the file system on {} is not enlarged: {what}; end the pods that use it on this node, so that it is \
                 checked and mounted again: {error}",
                device.display()
            )),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn the_options_of_the_caller_win_and_no_journal_is_skipped() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let chosen = |kind, read_only, caller: &[&str]| options(kind, read_only, &words(caller)).join(",");
        assert_eq!(chosen("ext4", false, &[]), "rw");
        assert_eq!(chosen("ext4", false, &["noatime", "ro"]), "rw,noatime,ro");
        assert_eq!(chosen("ext4", true, &["noatime"]), "noatime,ro");
        assert_eq!(chosen("ext3", true, &["rw"]), "rw,ro");
        assert_eq!(chosen("xfs", false, &[]), "rw,nouuid");
        assert_eq!(chosen("xfs", true, &[]), "nouuid,ro");
    }

    /// Makes an ext4 file system in a file.
    fn made(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("targe-csi-{name}-{}", std::process::id()));
        File::create(&path).unwrap().set_len(16 << 20).unwrap();
        make(&path, "ext4", None).unwrap();
        path
    }

    fn set(path: &Path, field: &str, value: &str) {
        run_well(&["debugfs", "-w", "-R", &format!("ssv {field} {value}"), text(path).unwrap()]).unwrap();
    }

    #[test]
    fn what_preen_repairs_is_repaired_and_what_it_does_not_is_refused() {
        let path = made("preen");
        preen(&path, "ext4").unwrap();
        // The kernel has found an inconsistency.
        set(&path, "state", "2");
        set(&path, "free_inodes_count", "3");
        assert!(ExtSuperblock::read(&path).unwrap().unwrap().has_errors);
        preen(&path, "ext4").unwrap();
        assert!(!ExtSuperblock::read(&path).unwrap().unwrap().has_errors);
        // Without its root folder, a file system has lost names.
        run_well(&["debugfs", "-w", "-R", "clri <2>", text(&path).unwrap()]).unwrap();
        set(&path, "state", "2");
        let error = preen(&path, "ext4").unwrap_err();
        assert_eq!(error.code, tonic::Code::FailedPrecondition, "{error}");
        std::fs::remove_file(path).unwrap();
    }
}
