//! Finds existing devices: which disk each one is, and whether a process serves it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::control::Control;
use super::device::UblkStartError;
use super::wire::{DeviceInfo, State};
use base::int_cast::to_u64;

/// How long a killed server may take to end.
pub(super) const DYING_MAX: Duration = Duration::from_secs(5);
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The most devices that are examined. The kernel supports a million; systems have a few.
const DEVICES_MAX: usize = 4096;

/// Identifies the disk of a device: the name by which it was attached, and the identity that the disk
/// reports. A device keeps its key, so that after its server's death only the same disk can serve it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceKey {
    name: u32,
    disk: u32,
}

/// A device that waits for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingDevice {
    pub(super) device: u32,
    pub(super) key: DeviceKey,
}

impl DeviceKey {
    /// Makes the key of a disk that is attached by `name`, and reports the identity `disk`.
    pub fn new(name: &[u8], disk: &[u8]) -> Self {
        Self { name: folded(name), disk: folded(disk) }
    }

    /// Returns the note that the kernel keeps with the device.
    pub(super) fn note(self) -> u64 {
        u64::from(self.name) << 32 | u64::from(self.disk)
    }

    pub(super) fn of_note(note: u64) -> Self {
        let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or_default();
        Self { name: low(note >> 32), disk: low(note) }
    }

    fn has_name_of(self, other: Self) -> bool {
        self.name == other.name
    }
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
    find_waiting(&mut control, DeviceKey::new(name, &[]))
}

/// Returns five bytes by which a target identifies the server of a device of this name, and its disk number
/// `member`. The next server of the device gets the same bytes; no other server gets them, on this machine or
/// on others.
///
/// A target ends the last server's session when the next server logs in with the same bytes. Without that, a
/// delayed write of the dead server could be executed after a newer write to the same blocks.
pub fn initiator_id(name: &[u8], member: usize) -> [u8; 5] {
    // A device does not outlive the boot. Without the boot's identifier, hosts with the same name would
    // replace each other's sessions.
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hash = fnv(&[&boot, name, &to_u64(member).to_be_bytes()].concat());
    let [a, b, c, d, e, ..] = (hash ^ hash >> 24).to_le_bytes();
    [a, b, c, d, e]
}

/// Finds a device with this name. Removes one that never became a disk and that no process has open.
pub(super) fn find_waiting(
    control: &mut Control,
    key: DeviceKey,
) -> Result<Option<WaitingDevice>, UblkStartError> {
    let deadline = Instant::now() + DYING_MAX;
    for device in numbers().map_err(UblkStartError::Control)? {
        // A device that is gone, or has another name, is skipped.
        while let Ok(info) = control.info(device) {
            let theirs = DeviceKey::of_note(info.note);
            if !theirs.has_name_of(key) {
                break;
            }
            match standing(&info) {
                DeviceStatus::Waiting => return Ok(Some(WaitingDevice { device, key: theirs })),
                DeviceStatus::Stale => {
                    control.remove(device).map_err(UblkStartError::Control)?;
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

/// Hashes a name to 32 bits: FNV-1a of 64 bits, both halves combined. Devices outlive processes, so this hash
/// never changes.
fn folded(name: &[u8]) -> u32 {
    let hash = fnv(name);
    u32::try_from((hash >> 32) ^ (hash & u64::from(u32::MAX))).unwrap_or_default()
}

fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_the_kernel() {
        let key = DeviceKey::new(b"iscsi://host/iqn.2026-11.org.targe:rig/0", b"naa.6001");
        assert_eq!(DeviceKey::of_note(key.note()), key);
        let other_disk = DeviceKey::new(b"iscsi://host/iqn.2026-11.org.targe:rig/0", b"naa.6002");
        assert!(key != other_disk && key.has_name_of(other_disk));
        assert!(!key.has_name_of(DeviceKey::new(b"iscsi://host/iqn.2026-11.org.targe:rig/1", b"naa.6001")));
    }

    #[test]
    fn names_are_folded_as_ever() {
        // FNV-1a's own vectors: "" and "a" are cbf29ce484222325 and af63dc4c8601ec8c.
        assert_eq!(folded(b""), 0xcbf2_9ce4 ^ 0x8422_2325);
        assert_eq!(folded(b"a"), 0xaf63_dc4c ^ 0x8601_ec8c);
    }

    #[test]
    fn the_next_server_has_the_same_card_and_nobody_else() {
        let card = initiator_id(b"disk", 0);
        assert_eq!(card, initiator_id(b"disk", 0));
        assert!(card != initiator_id(b"disk", 1) && card != initiator_id(b"disc", 0));
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
