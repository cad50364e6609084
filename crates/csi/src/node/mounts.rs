//! Mounts of this host, and numbers and sizes of its block devices.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, major, minor};

use crate::error::{CsiError, CsiResult};
use crate::program::{run_well, text};

/// The major and minor number of a block device.
pub(super) type Number = (u32, u32);

/// The flag that asks for a block device for this process alone.
const EXCLUSIVE: i32 = OFlags::EXCL.bits().cast_signed();
/// The options of a file system that takes no writes: read-only, and how newer kernels show ext4 after an
/// error.
const STOPPED: &[&[u8]] = &[b"ro", b"emergency_ro", b"shutdown"];
/// The number of bytes in a sector of sysfs.
const SECTOR: u64 = 512;

/// A mount.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The device of its file system.
    pub(super) device: Option<Number>,
    /// Whether it may only be read.
    pub(super) read_only: bool,
    /// Whether its file system may only be read, or has stopped, wherever it is mounted. The kernel does that
    /// after errors.
    pub(super) stopped: bool,
}

/// Returns the mount on top of a path; `None` if nothing is mounted there.
pub(super) fn at(path: &Path) -> CsiResult<Option<Mount>> {
    let list = Path::new("/proc/self/mountinfo");
    let text = fs::read(list).map_err(|error| CsiError::io("read", list, &error))?;
    Ok(find(&text, &resolved(path)))
}

/// Returns a path as the kernel names it, without symbolic links.
fn resolved(path: &Path) -> PathBuf {
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

/// Returns the paths that the file system of a device is mounted at, the last mount first.
pub(super) fn of(device: Number) -> CsiResult<Vec<PathBuf>> {
    let list = Path::new("/proc/self/mountinfo");
    let text = fs::read(list).map_err(|error| CsiError::io("read", list, &error))?;
    Ok(points(&text, device))
}

/// Returns the paths that the file system of a device is mounted at, the last mount first, but for those that
/// lead to the same folder as one of `paths`.
pub(super) fn of_elsewhere(device: Number, paths: &[&Path]) -> CsiResult<Vec<PathBuf>> {
    let list = Path::new("/proc/self/mountinfo");
    let text = fs::read(list).map_err(|error| CsiError::io("read", list, &error))?;
    let paths: Vec<PathBuf> = paths.iter().map(|path| resolved(path)).collect();
    Ok(points_elsewhere(&text, device, &paths))
}

/// Returns the paths that the node of a block device is bound to, the last mount first.
pub(super) fn binds_of(device: &Path) -> CsiResult<Vec<PathBuf>> {
    let node = metadata(device)?;
    let mut paths = of(pair(node.dev()))?;
    let is_node = |found: &Metadata| found.file_type().is_block_device() && found.rdev() == node.rdev();
    paths.retain(|path| path != device && fs::symlink_metadata(path).is_ok_and(|found| is_node(&found)));
    Ok(paths)
}

/// Returns whether a block device has an exclusive user: a file system that is mounted anywhere, also in
/// another mount namespace or at no path any more, or another device that is made of it.
pub(super) fn is_in_use(device: &Path) -> bool {
    let opened = File::options().read(true).custom_flags(EXCLUSIVE).open(device);
    opened.is_err_and(|error| error.kind() == ErrorKind::ResourceBusy)
}

/// Finds the last mount of a path in the text of `mountinfo`.
fn find(text: &[u8], path: &Path) -> Option<Mount> {
    let mut mounts = lines(text).filter(|line| line.point == path);
    mounts.next_back().map(|line| line.mount)
}

/// Finds the mounts of a device in the text of `mountinfo`, the last first.
fn points(text: &[u8], device: Number) -> Vec<PathBuf> {
    let mounts = lines(text).filter(|line| line.mount.device == Some(device));
    mounts.map(|line| line.point).rev().collect()
}

/// Finds the mounts of a device in the text of `mountinfo` at other folders than those of `paths`, the last
/// first. A folder has several paths if its file system is mounted or bound at several places, such as the
/// root of a host in a container: each mount in it is seen at all of them.
fn points_elsewhere(text: &[u8], device: Number, paths: &[PathBuf]) -> Vec<PathBuf> {
    let lines: Vec<Line> = lines(text).collect();
    let known: BTreeMap<u64, &Line> = lines.iter().map(|line| (line.id, line)).collect();
    let folders: Vec<_> =
        lines.iter().filter(|line| paths.contains(&line.point)).map(|line| line.folder(&known)).collect();
    let is_elsewhere = |line: &&Line| {
        let folder = line.folder(&known);
        line.mount.device == Some(device)
            && !paths.contains(&line.point)
            && (folder.is_none() || !folders.contains(&folder))
    };
    lines.iter().filter(is_elsewhere).map(|line| line.point.clone()).rev().collect()
}

/// A line of `mountinfo`.
struct Line {
    id: u64,
    parent: u64,
    /// The folder of its file system that is mounted.
    root: PathBuf,
    point: PathBuf,
    mount: Mount,
}

impl Line {
    /// Returns the folder that it is mounted at: the device of its file system, and the path there.
    fn folder(&self, known: &BTreeMap<u64, &Self>) -> Option<(Number, PathBuf)> {
        let mut under = known.get(&self.parent)?;
        // Mounts lie on top of each other. Every step leads to another line.
        for _ in 0..known.len() {
            if under.point != self.point {
                break;
            }
            under = known.get(&under.parent)?;
        }
        Some((under.mount.device?, under.root.join(self.point.strip_prefix(&under.point).ok()?)))
    }
}

/// Parses the text of `mountinfo`.
fn lines(text: &[u8]) -> impl DoubleEndedIterator<Item = Line> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let integer = |field: Option<&[u8]>| String::from_utf8_lossy(field?).parse().ok();
        let path = |field: Option<&[u8]>| Some(PathBuf::from(OsString::from_vec(unescaped(field?))));
        let (id, parent) = (integer(fields.next())?, integer(fields.next())?);
        let device = number(&String::from_utf8_lossy(fields.next()?));
        let (root, point) = (path(fields.next())?, path(fields.next())?);
        let has = |options: &[u8], words: &[&[u8]]| {
            options.split(|byte| *byte == b',').any(|option| words.contains(&option))
        };
        let read_only = has(fields.next()?, &[b"ro"]);
        // A number of optional fields ends with a hyphen. The type and the source of the file system follow.
        let of_file_system = fields.skip_while(|field| *field != b"-").nth(3);
        let stopped = of_file_system.is_some_and(|options| has(options, STOPPED));
        Some(Line { id, parent, root, point, mount: Mount { device, read_only, stopped } })
    })
}

/// Undoes the escapes of `mountinfo`: a backslash and three octal digits.
fn unescaped(mut text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    while let Some((first, rest)) = text.split_first() {
        let code = match (first, rest) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                text = after;
                Some((a & 3) << 6 | (b & 7) << 3 | (c & 7))
            }
            _ => None,
        };
        if code.is_none() {
            text = rest;
        }
        plain.push(code.unwrap_or(*first));
    }
    plain
}

fn number(text: &str) -> Option<Number> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Mounts a file system.
pub(super) fn mount(device: &Path, at: &Path, kind: &str, options: &[String]) -> CsiResult<()> {
    run_well(&["mount", "-t", kind, "-o", &options.join(","), text(device)?, text(at)?]).map(drop)
}

/// Makes a path appear at another one, too.
pub(super) fn bind(from: &Path, at: &Path) -> CsiResult<()> {
    run_well(&["mount", "--bind", text(from)?, text(at)?]).map(drop)
}

/// Makes a bind mount read-only. The kernel takes the flag in a step of its own only.
pub(super) fn make_read_only(at: &Path) -> CsiResult<()> {
    run_well(&["mount", "-o", "remount,bind,ro", text(at)?]).map(drop)
}

/// Unmounts what is on top of a path. `lazily` only takes it away from the path.
pub(super) fn unmount(at: &Path, lazily: bool) -> CsiResult<()> {
    let path = text(at)?;
    match lazily {
        true => run_well(&["umount", "--lazy", path]).map(drop),
        false => run_well(&["umount", path]).map(drop),
    }
}

/// Returns the number of a block device.
pub(super) fn number_of(device: &Path) -> CsiResult<Number> {
    Ok(pair(metadata(device)?.rdev()))
}

fn metadata(path: &Path) -> CsiResult<Metadata> {
    fs::metadata(path).map_err(|error| CsiError::io("open", path, &error))
}

fn pair(number: u64) -> Number {
    (major(number), minor(number))
}

/// Returns whether the kernel refuses writes to a block device.
pub(super) fn is_read_only_device(device: &Path) -> CsiResult<bool> {
    let (major, minor) = number_of(device)?;
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/ro"));
    let text = fs::read_to_string(&path).map_err(|error| CsiError::io("read", &path, &error))?;
    Ok(text.trim() != "0")
}

/// Returns the size of a block device.
pub(super) fn device_bytes(device: &Path) -> CsiResult<u64> {
    let (major, minor) = number_of(device)?;
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/size"));
    let sectors = fs::read_to_string(&path).map_err(|error| CsiError::io("read", &path, &error))?;
    let sectors: u64 = sectors.trim().parse().map_err(|_| CsiError::internal("sysfs tells no size"))?;
    Ok(sectors.saturating_mul(SECTOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_seen_at_several_paths_is_one() {
        // The root of the host is at /host, and its folder /data/kubelet also at /var/lib/kubelet.
        let text = b"1 0 8:1 / / rw - overlay none rw\n\
                     2 1 8:2 / /host rw - ext4 a rw\n\
                     3 1 8:2 /data/kubelet /var/lib/kubelet rw - ext4 a rw\n\
                     4 3 7:0 / /var/lib/kubelet/plugins/v/globalmount rw - xfs b rw\n\
                     5 2 7:0 / /host/data/kubelet/plugins/v/globalmount rw - xfs b rw\n\
                     6 5 7:0 / /host/data/kubelet/plugins/v/globalmount rw - xfs b rw\n";
        let staging = &[PathBuf::from("/var/lib/kubelet/plugins/v/globalmount")];
        let none: [&Path; 0] = [];
        assert_eq!(points_elsewhere(text, (7, 0), staging), none);
        assert_eq!(points_elsewhere(text, (7, 1), staging), none);
        let published = b"7 3 7:0 / /var/lib/kubelet/pods/p/mount rw - xfs b rw\n";
        let text = [&text[..], published].concat();
        let elsewhere = Path::new("/var/lib/kubelet/pods/p/mount");
        assert_eq!(points_elsewhere(&text, (7, 0), staging), [elsewhere]);
        let both = [&staging[..], &[elsewhere.to_owned()]].concat();
        assert_eq!(points_elsewhere(&text, (7, 0), &both), none);
        // What is mounted where its parent cannot be seen is elsewhere.
        assert_eq!(points_elsewhere(b"9 8 7:0 / /a rw - xfs b rw\n", (7, 0), staging), [Path::new("/a")]);
    }

    #[test]
    fn a_file_system_that_takes_no_writes_is_known() {
        let line =
            |options: &str| format!("36 35 7:1 / /m rw,noatime shared:1 - ext4 /dev/loop1 {options}\n");
        let stopped = |options: &str| find(line(options).as_bytes(), Path::new("/m")).unwrap().stopped;
        assert!(!stopped("rw,errors=remount-ro"));
        assert!(stopped("ro,errors=remount-ro"));
        assert!(stopped("rw,emergency_ro") && stopped("rw,shutdown"));
        // The mount may only be read, and the file system can be written.
        let found = find(b"1 0 7:1 / /m ro - ext4 a rw\n", Path::new("/m")).unwrap();
        assert!(found.read_only && !found.stopped);
    }

    #[test]
    fn the_last_mount_of_a_path_counts() {
        let text = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n\
                     37 36 0:5 /loop0 /a\\040b\\134c rw - devtmpfs dev rw\n\
                     38 37 7:1 / /mnt2 ro,relatime - ext4 /dev/loop1 rw\n";
        let mount = |device, read_only| Some(Mount { device: Some(device), read_only, stopped: false });
        assert_eq!(find(text, Path::new("/mnt2")), mount((7, 1), true));
        assert_eq!(find(text, Path::new("/a b\\c")), mount((0, 5), false));
        assert_eq!(find(text, Path::new("/mnt1")), None);
        assert_eq!(find(b"", Path::new("/")), None);
        assert_eq!(points(text, (0, 5)), [Path::new("/a b\\c")]);
        assert_eq!(points(b"1 0 8:1 / /a rw\n2 0 8:1 / /b ro\n", (8, 1)), ["/b", "/a"].map(Path::new));
        assert_eq!(
            find(b"1 2\n\n3 4 x y /z rw\n", Path::new("/z")),
            Some(Mount { device: None, read_only: false, stopped: false })
        );
    }
}
