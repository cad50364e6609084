//! Devices that are there already: which disk each one is, and whether somebody serves it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::control::Control;
use super::device::UblkStartError;
use super::wire::{DeviceInfo, State};
use crate::int_cast::to_u64;

/// How long a server that was killed may take to be gone.
pub(super) const DYING_MAX: Duration = Duration::from_secs(5);
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Devices that are looked at; the kernel has room for a million, and systems have a handful.
const DEVICES_MAX: usize = 4096;

/// Which disk a device is: by what name it was attached, and what the disk says of itself. A device keeps it, so that
/// after its server's death it is served by the same disk or none.
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
    /// Makes the key of what is attached by `name`, and says of itself `disk`.
    pub fn new(name: &[u8], disk: &[u8]) -> Self {
        Self { name: folded(name), disk: folded(disk) }
    }

    /// What the kernel keeps of it.
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

/// Looks for a device of what is attached by this name: `Some` if it waits for a server.
///
/// # Errors
/// The kernel has no ublk, it is not for us, or somebody serves the device.
pub fn find(name: &[u8]) -> Result<Option<WaitingDevice>, UblkStartError> {
    let mut control = Control::open()?;
    // Until we close it: who makes a device holds this too until the device is seen to be his.
    control.lock().map_err(UblkStartError::Control)?;
    find_waiting(&mut control, DeviceKey::new(name, &[]))
}

/// Returns five bytes for whoever serves a device of this name, and its disk number `member`, to be known by at its target:
/// the next server is known by the same, and nobody else is, on this machine or on others.
///
/// A target then ends what the last server left there when the next one comes: without that, a write of the dead one that
/// is still on its way could arrive after a newer one to the same place.
pub fn initiator_id(name: &[u8], member: usize) -> [u8; 5] {
    // Devices do not outlive it either. Without it, hosts with the same name would take each other's place.
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hash = fnv(&[&boot, name, &to_u64(member).to_be_bytes()].concat());
    let [a, b, c, d, e, ..] = (hash ^ hash >> 24).to_le_bytes();
    [a, b, c, d, e]
}

/// Looks for a device with this name. One that never became a disk, and that nobody has, is removed.
pub(super) fn find_waiting(
    control: &mut Control,
    key: DeviceKey,
) -> Result<Option<WaitingDevice>, UblkStartError> {
    let deadline = Instant::now() + DYING_MAX;
    for device in numbers().map_err(UblkStartError::Control)? {
        // One that is gone, or another's, is no matter.
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

/// What is to be done about a device.
enum DeviceStatus {
    /// It waits for a server.
    Waiting,
    /// It is no disk, and nobody makes one of it.
    Stale,
    /// Its server is about to be gone.
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

/// Opens the character device, which one process at a time can.
pub(super) fn open(device: u32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(format!("/dev/ublkc{device}"))
}

/// Where the disk is.
pub(super) fn disk_path(device: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{device}"))
}

/// Returns whether a process lives, and not only its remains.
fn lives(process: i32) -> bool {
    fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !is_dead(&stat))
}

/// Reads the state out of a process's `stat`: it follows the name, which is in parentheses and may hold any.
fn is_dead(stat: &str) -> bool {
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_none_or(|state| state.starts_with(['Z', 'X']))
}

/// The numbers of the devices that are there.
fn numbers() -> io::Result<Vec<u32>> {
    let names = fs::read_dir("/dev")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut numbers: Vec<u32> =
        names.filter_map(|name| name.strip_prefix("ublkc")?.parse().ok()).take(DEVICES_MAX).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Returns whether a program has the disk or one of its partitions open. What the kernel itself does with it (a mount, a
/// mapping, swap) does not show here, but claims it.
pub(super) fn is_open(device: u32) -> io::Result<bool> {
    let disk = PathBuf::from(format!("/sys/block/ublkb{device}"));
    let mut parts = vec![number(&disk)?];
    for entry in fs::read_dir(&disk)? {
        // A folder without a number is none of a partition.
        parts.extend(number(&entry?.path()).ok());
    }
    let processes = fs::read_dir("/proc")?.filter_map(Result::ok);
    let of_processes = processes.filter_map(|process| fs::read_dir(process.path().join("fd")).ok());
    // What is closed meanwhile is not open.
    let files = of_processes.flatten().filter_map(|file| fs::metadata(file.ok()?.path()).ok());
    let is_disk = |mode: u32| mode & libc::S_IFMT == libc::S_IFBLK;
    Ok(files.into_iter().any(|file| is_disk(file.st_mode()) && parts.contains(&file.st_rdev())))
}

/// The number of a block device, as the kernel tells it in sysfs.
fn number(folder: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(folder.join("dev"))?;
    let parsed = text
        .trim()
        .split_once(':')
        .and_then(|(major, minor)| Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?)));
    parsed.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Folds a name into 32 bits: FNV-1a of 64 bits, both halves. Devices outlive processes, so it never changes.
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
