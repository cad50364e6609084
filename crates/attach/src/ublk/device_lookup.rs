//! Finds existing devices: which disk each one is, and whether a process serves it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::control::Control;
use super::device::UblkStartError;
use super::wire::{DeviceInfo, State};
use crate::device_key::DeviceKey;

/// How long a killed server may take to end.
pub(super) const DYING_MAX: Duration = Duration::from_secs(5);
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The most devices that are examined. The kernel supports a million; systems have a few.
const DEVICES_MAX: usize = 4096;

/// A device that waits for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingDevice {
    pub(super) device: u32,
    pub(super) key: DeviceKey,
}

/// Finds a device that was attached by this name. Returns `Some` if it waits for a server.
///
/// # Errors
/// Fails when the kernel has no ublk, when this process may not use it, or when another process serves the
/// device.
pub fn find(name: &[u8]) -> Result<Option<WaitingDevice>, UblkStartError> {
    let mut control = Control::open()?;
    // The lock holds until the control device is closed. A process that adds a device also holds it, until
    // other processes can see that the device is served.
    control.lock().map_err(UblkStartError::Control)?;
    find_waiting(&mut control, |key| key.has_name(name), Control::remove)
}

/// Deletes the device that a dead process left which had attached it by this name. The requests that wait in
/// it fail, as do later ones, and no server finds it any more. The kernel frees it once all users have closed
/// it. Returns its path; `None` if no device of this name waits for a server.
///
/// # Errors
/// Fails when this process may not use ublk, or when another process serves the device.
pub fn delete_left(name: &[u8]) -> Result<Option<PathBuf>, UblkStartError> {
    let mut control = match Control::open() {
        Err(UblkStartError::NoUblk | UblkStartError::NotLoaded) if !has_disks() => return Ok(None),
        opened => opened?,
    };
    control.lock().map_err(UblkStartError::Control)?;
    // Linux before 6.9 cannot delete a device without a wait for its users. It is no disk any more.
    let delete = |control: &mut Control, device| control.remove_in_time(device).or(Ok(()));
    let Some(found) = find_waiting(&mut control, |key| key.has_name(name), delete)? else {
        return Ok(None);
    };
    control
        .stop(found.device)
        .and_then(|()| delete(&mut control, found.device))
        .map_err(UblkStartError::Control)?;
    Ok(Some(disk_path(found.device)))
}

/// Finds a device whose key has the name. Removes one by `remove` that is no disk and that no process has
/// open.
pub(super) fn find_waiting(
    control: &mut Control,
    has_name: impl Fn(DeviceKey) -> bool,
    remove: impl Fn(&mut Control, u32) -> io::Result<()>,
) -> Result<Option<WaitingDevice>, UblkStartError> {
    let deadline = Instant::now() + DYING_MAX;
    for device in numbers().map_err(UblkStartError::Control)? {
        // A device that is gone, or has another name, is skipped.
        while let Ok(info) = control.info(device) {
            let theirs = DeviceKey::of_note(info.note);
            if !has_name(theirs) {
                break;
            }
            match standing(&info) {
                DeviceStatus::Waiting => return Ok(Some(WaitingDevice { device, key: theirs })),
                DeviceStatus::Stale => {
                    remove(control, device).map_err(UblkStartError::Control)?;
                    break;
                }
                DeviceStatus::Dying if Instant::now() < deadline => std::thread::sleep(LOOK_AGAIN),
                DeviceStatus::Dying | DeviceStatus::Served => {
                    return Err(UblkStartError::InUse { path: disk_path(device), server: info.server });
                }
            }
        }
    }
    Ok(None)
}

/// What to do with a device.
enum DeviceStatus {
    /// It waits for a server.
    Waiting,
    /// It is no disk, and no process is making it one.
    Stale,
    /// Its server is ending.
    Dying,
    /// It has a server.
    Served,
}

fn standing(info: &DeviceInfo) -> DeviceStatus {
    match info.state {
        State::QUIESCED => DeviceStatus::Waiting,
        State::DEAD if open(info.device).is_ok() => DeviceStatus::Stale,
        _ if lives(info.server) => DeviceStatus::Served,
        _ => DeviceStatus::Dying,
    }
}

/// Opens the character device. Only one process at a time can have it open.
pub(super) fn open(device: u32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(format!("/dev/ublkc{device}"))
}

/// Returns the path of the disk.
pub(super) fn disk_path(device: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{device}"))
}

/// Returns whether a process is alive, and no zombie.
fn lives(process: i32) -> bool {
    fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !is_dead(&stat))
}

/// Returns whether a process's `stat` shows it as dead. The state follows the name, which is in parentheses
/// and may itself contain parentheses.
fn is_dead(stat: &str) -> bool {
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_none_or(|state| state.starts_with(['Z', 'X']))
}

/// Returns whether the kernel has disks of ublk.
fn has_disks() -> bool {
    // A system without this folder shows no disks.
    let mut names = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    names.any(|entry| entry.file_name().as_encoded_bytes().starts_with(b"ublkb"))
}

/// Returns the numbers of the existing devices.
fn numbers() -> io::Result<Vec<u32>> {
    let names = fs::read_dir("/dev")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut numbers: Vec<u32> =
        names.filter_map(|name| name.strip_prefix("ublkc")?.parse().ok()).take(DEVICES_MAX).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Returns whether a program has the disk or one of its partitions open. Uses by the kernel itself (a mount,
/// a mapping, swap) are not visible here, but they open the disk exclusively.
pub(super) fn is_open(device: u32) -> io::Result<bool> {
    let disk = PathBuf::from(format!("/sys/block/ublkb{device}"));
    let mut parts = vec![number(&disk)?];
    for entry in fs::read_dir(&disk)? {
        // A folder without a device number is no partition.
        parts.extend(number(&entry?.path()).ok());
    }
    let processes = fs::read_dir("/proc")?.filter_map(Result::ok);
    let of_processes = processes.filter_map(|process| fs::read_dir(process.path().join("fd")).ok());
    // A file that was closed meanwhile does not count.
    let files = of_processes.flatten().filter_map(|file| fs::metadata(file.ok()?.path()).ok());
    let is_disk = |mode: u32| mode & libc::S_IFMT == libc::S_IFBLK;
    Ok(files.into_iter().any(|file| is_disk(file.st_mode()) && parts.contains(&file.st_rdev())))
}

/// Returns the number of a block device, from sysfs.
fn number(folder: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(folder.join("dev"))?;
    let parsed = text
        .trim()
        .split_once(':')
        .and_then(|(major, minor)| Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?)));
    parsed.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_without_ublk_has_no_device_to_delete() {
        if !Path::new("/dev/ublk-control").exists() && !has_disks() {
            assert_eq!(delete_left(b"iscsi://host/iqn.2026-11.org.targe:rig/0").unwrap(), None);
        }
    }

    #[test]
    fn remains_of_a_process_do_not_live() {
        assert!(!is_dead("7 (targe) S 1 7 7"));
        assert!(is_dead("7 (targe) Z 1 7 7"));
        assert!(!is_dead("7 (Z) Z (x) R 1 7 7"), "the name holds anything");
        assert!(is_dead(""));
        assert!(lives(i32::try_from(std::process::id()).unwrap()));
        assert!(!lives(-1));
    }
}
