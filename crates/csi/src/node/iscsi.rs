//! Volumes attached by the kernel's initiator, with open-iscsi's `iscsiadm`.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{NodeSettings, Staged};
use crate::error::{CsiError, CsiResult};
use crate::program::{Done, run};

/// How long a disk may take to appear after the login.
const APPEAR_MAX: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The exit codes of iscsiadm: the session exists, and nothing was found.
const SESSION_EXISTS: i32 = 15;
const NO_OBJECTS: i32 = 21;

/// Returns whether iscsiadm can be run.
pub(super) fn has_tools(iscsiadm: &[String]) -> bool {
    let words: Vec<&str> = iscsiadm.iter().map(String::as_str).chain(["--version"]).collect();
    run(&words).is_ok_and(|done| done.code == 0)
}

/// Logs in, and waits for the disk.
pub(super) fn attach(settings: &NodeSettings, staged: &Staged, secret: &str) -> CsiResult<PathBuf> {
    if let Some(disk) = disk(&staged.target) {
        return check(&disk, staged);
    }
    let node = |words: &[&str], allowed: &[i32]| iscsiadm(settings, staged, words, allowed);
    node(&["-o", "new"], &[])?;
    for (name, value) in [
        // A reboot must not bring the session back: the volume may be somewhere else then.
        ("node.startup", "manual"),
        ("node.session.auth.authmethod", "CHAP"),
        ("node.session.auth.username", staged.user.as_str()),
        ("node.session.auth.password", secret),
    ] {
        node(&["-o", "update", "-n", name, "-v", value], &[])?;
    }
    node(&["--login"], &[SESSION_EXISTS])?;
    let began = Instant::now();
    loop {
        if let Some(disk) = disk(&staged.target) {
            return check(&disk, staged);
        }
        if began.elapsed() > APPEAR_MAX {
            return Err(CsiError::unavailable(format!("{} has no disk after the login", staged.target)));
        }
        sleep(LOOK_AGAIN);
    }
}

/// Returns the disk of a volume.
pub(super) fn device(staged: &Staged) -> CsiResult<PathBuf> {
    let disk = disk(&staged.target)
        .ok_or_else(|| CsiError::precondition(format!("volume {} is not attached", staged.id)))?;
    check(&disk, staged)
}

/// Logs out, and makes open-iscsi forget the target.
pub(super) fn detach(settings: &NodeSettings, staged: &Staged) -> CsiResult<()> {
    log_out(settings, staged)?;
    iscsiadm(settings, staged, &["-o", "delete"], &[NO_OBJECTS])
}

/// Logs out: the disk disappears, and what waits for it fails.
pub(super) fn log_out(settings: &NodeSettings, staged: &Staged) -> CsiResult<()> {
    iscsiadm(settings, staged, &["--logout"], &[NO_OBJECTS])
}

/// Has the kernel ask for the size of a disk.
pub(super) fn rescan(device: &Path) -> CsiResult<()> {
    let name = device.file_name().unwrap_or_default();
    let path = Path::new("/sys/block").join(name).join("device/rescan");
    fs::write(&path, "1").map_err(|error| CsiError::io("write", &path, &error))
}

fn iscsiadm(settings: &NodeSettings, staged: &Staged, words: &[&str], allowed: &[i32]) -> CsiResult<()> {
    let head = settings.iscsiadm.iter().map(String::as_str);
    let node = ["-m", "node", "-T", &staged.target, "-p", &staged.portal];
    let all: Vec<&str> = head.chain(node).chain(words.iter().copied()).collect();
    let Done { code, said } = run(&all)?;
    if code == 0 || allowed.contains(&code) {
        return Ok(());
    }
    // The words may hold the secret; what iscsiadm says does not.
    let said = said.trim().replace('\n', "; ");
    Err(CsiError::unavailable(format!("iscsiadm failed for {} ({code}): {said}", staged.target)))
}

/// Finds the disk of the session with a target: the name of its block device, once it can be used.
fn disk(target: &str) -> Option<String> {
    let sessions = fs::read_dir("/sys/class/iscsi_session").ok()?;
    let session = sessions.flatten().map(|entry| entry.path()).find(|session| {
        fs::read_to_string(session.join("targetname")).is_ok_and(|name| name.trim() == target)
    })?;
    // …/device/targetH:C:T/H:C:T:LUN/block/sdX; the target of a volume has LUN 0 only.
    let below = |folder: PathBuf, wanted: fn(&str) -> bool| {
        let entries = fs::read_dir(folder).ok()?;
        let mut paths = entries.flatten().map(|entry| entry.path());
        paths.find(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(wanted))
    };
    let scsi_target = below(session.join("device"), |name| name.starts_with("target"))?;
    let unit = below(scsi_target, |name| name.ends_with(":0"))?;
    let block = below(unit.join("block"), |_| true)?;
    let disk = block.file_name()?.to_str()?.to_owned();
    // The kernel makes these one after the other.
    (wwid_path(&disk).exists() && Path::new("/dev").join(&disk).exists()).then_some(disk)
}

/// Where the kernel tells the name of a disk.
fn wwid_path(disk: &str) -> PathBuf {
    Path::new("/sys/block").join(disk).join("device/wwid")
}

/// Checks that a disk is the volume.
fn check(disk: &str, staged: &Staged) -> CsiResult<PathBuf> {
    let path = wwid_path(disk);
    let wwid = fs::read_to_string(&path).map_err(|error| CsiError::io("read", &path, &error))?;
    if !is_volume(wwid.trim(), staged) {
        return Err(CsiError::internal(format!(
            "/dev/{disk} is {}, and not volume {}; it is left alone",
            wwid.trim(),
            staged.id
        )));
    }
    Ok(Path::new("/dev").join(disk))
}

/// Returns whether the kernel's name of a disk is that of the volume. Of its designators, Linux prefers the
/// one with the serial number to a locally assigned world-wide name.
fn is_volume(wwid: &str, staged: &Staged) -> bool {
    let serial = staged.id.get(2..).unwrap_or_default();
    match wwid.strip_prefix("t10.") {
        Some(name) => name.split_whitespace().next_back() == Some(serial),
        None => wwid.strip_prefix("naa.") == Some(&staged.naa),
    }
}

#[cfg(test)]
mod tests {
    use super::super::AttachMethod;
    use super::*;
    use crate::protection::Protection;

    #[test]
    fn a_disk_is_known_by_its_serial_number_or_its_name() {
        let staged = Staged {
            id: "v-15f136e330e8165b416a4888c47275ef".to_owned(),
            method: AttachMethod::Iscsi,
            portal: String::new(),
            target: String::new(),
            naa: "315f136e330e8165".to_owned(),
            user: String::new(),
            staging_path: PathBuf::new(),
            block: false,
            read_only: false,
            formatting: false,
            publication: String::new(),
            protection: Protection::None,
        };
        let is_it = |wwid: &str| is_volume(wwid, &staged);
        assert!(is_it("t10.TARGE   Virtual Disk    15f136e330e8165b416a4888c47275ef"));
        assert!(is_it("naa.315f136e330e8165"));
        assert!(!is_it("t10.TARGE   Virtual Disk    25f136e330e8165b416a4888c47275ef"));
        assert!(!is_it("naa.325f136e330e8165"));
        assert!(!is_it(""));
    }
}
