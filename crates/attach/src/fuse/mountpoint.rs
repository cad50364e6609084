//! The directory that the file appears in: mounting it, clearing the mount of a process that died, unmounting
//! it.

use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::FuseStartError;
use super::file_system::TRANSFER_LEN_MAX;

/// The type that `mount` and `/proc/self/mountinfo` show.
const TYPE: &str = "fuse.targe";

/// A directory that the file is mounted on.
#[derive(Debug)]
pub(super) struct Mountpoint {
    pub(super) dir: PathBuf,
}

/// Opens the kernel's FUSE device.
pub(super) fn open_device() -> Result<OwnedFd, FuseStartError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open("/dev/fuse", flags, Mode::empty()).map_err(|errno| FuseStartError::NoFuse(errno.into()))
}

/// Mounts on `dir`. The kernel's requests are read from the returned descriptor.
pub(super) fn mount(dir: &Path, label: &str) -> Result<(OwnedFd, Mountpoint), FuseStartError> {
    let failed = |source: io::Error| FuseStartError::Mount { dir: dir.to_owned(), source };
    let dir_absolute = absolute(dir).map_err(|why| unusable(dir, why))?;
    take_back(dir, &dir_absolute)?;
    if !fs::metadata(dir).map_err(|why| unusable(dir, why))?.is_dir() {
        return Err(FuseStartError::NotADirectory(dir.to_owned()));
    }
    let device = open_device()?;
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,max_read={TRANSFER_LEN_MAX}",
        device.as_fd().as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let options = CString::new(options).map_err(|error| failed(error.into()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    match rustix::mount::mount(label, dir, TYPE, flags, Some(options.as_c_str())) {
        Ok(()) => Ok((device, Mountpoint { dir: dir_absolute })),
        Err(Errno::PERM) => Err(FuseStartError::NotAllowed),
        Err(errno) => Err(failed(errno.into())),
    }
}

impl Mountpoint {
    /// Unmounts the directory, unless a process has the file open.
    pub(super) fn unmount(&self) -> io::Result<()> {
        Ok(rustix::mount::unmount(&self.dir, UnmountFlags::NOFOLLOW)?)
    }

    /// Unmounts the directory at once (lazy unmount). Processes that have the file open keep it.
    pub(super) fn unmount_lazily(&self) -> io::Result<()> {
        Ok(rustix::mount::unmount(&self.dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?)
    }
}

/// Refuses a directory whose mount a process serves. A server calls this before it logs in as the successor
/// of a dead one: the login ends the session of the server before.
///
/// # Errors
/// [`FuseStartError::InUse`], or the directory cannot be examined.
pub fn refuse_served(dir: &Path) -> Result<(), FuseStartError> {
    is_left_over(dir, &absolute(dir).map_err(|why| unusable(dir, why))?).map(drop)
}

/// Returns the error for a directory that cannot be examined.
fn unusable(dir: &Path, why: io::Error) -> FuseStartError {
    match why.kind() {
        io::ErrorKind::NotFound => FuseStartError::NoDirectory(dir.to_owned()),
        _ => FuseStartError::Mount { dir: dir.to_owned(), source: why },
    }
}

/// Clears the mount of a targe process that died without unmounting.
fn take_back(dir: &Path, dir_absolute: &Path) -> Result<(), FuseStartError> {
    let failed = |source: io::Error| FuseStartError::Mount { dir: dir.to_owned(), source };
    if is_left_over(dir, dir_absolute)? {
        rustix::mount::unmount(dir_absolute, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
            .map_err(|errno| failed(errno.into()))?;
    }
    Ok(())
}

/// Returns whether a targe process died that had mounted on a directory.
///
/// # Errors
/// [`FuseStartError::InUse`] if the process lives, or the mounts cannot be read.
fn is_left_over(dir: &Path, dir_absolute: &Path) -> Result<bool, FuseStartError> {
    let failed = |source: io::Error| FuseStartError::Mount { dir: dir.to_owned(), source };
    let mounts = fs::read("/proc/self/mountinfo").map_err(failed)?;
    if !is_ours(&mounts, dir_absolute) {
        return Ok(false);
    }
    match fs::metadata(dir_absolute) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(true),
        _ => Err(FuseStartError::InUse(dir.to_owned())),
    }
}

/// Returns whether the topmost mount on `dir` has the type of targe's mounts.
fn is_ours(mountinfo: &[u8], dir: &Path) -> bool {
    let mut ours = false;
    for line in mountinfo.split(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b' ');
        if fields.nth(4).map(unescaped).as_deref() == Some(dir) {
            // The type follows a field that is a lone hyphen.
            ours = fields.skip_while(|field| *field != b"-").nth(1) == Some(TYPE.as_bytes());
        }
    }
    ours
}

/// Decodes the octal escapes of white space and backslashes.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut out = Vec::new();
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = (*first == b'\\').then(|| tail.get(..3)).flatten();
        let code = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(code);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// Returns the path from the root, without links. The last part is not examined: it may be a dead mount.
fn absolute(dir: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(dir) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {}
        other => return other,
    }
    let plain = std::path::absolute(dir)?;
    match (plain.parent(), plain.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        _ => Ok(plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_topmost_mount_of_a_directory() {
        let table = b"36 35 98:0 / /mnt/a\\040b rw,noatime master:1 - fuse.targe disk rw\n\
            37 35 98:0 / /mnt/c rw - fuse.targe disk rw\n\
            38 35 98:0 / /mnt/c rw shared:2 - ext4 /dev/x rw\n\
            broken\n";
        assert!(is_ours(table, Path::new("/mnt/a b")));
        assert!(!is_ours(table, Path::new("/mnt/c")), "something else lies on top");
        assert!(!is_ours(table, Path::new("/mnt")));
    }

    #[test]
    fn undoes_escapes_and_nothing_else() {
        for (field, path) in [("/a\\134b", "/a\\b"), ("/a\\9", "/a\\9"), ("/a\\", "/a\\"), ("/\\011", "/\t")]
        {
            assert_eq!(unescaped(field.as_bytes()), Path::new(path));
        }
    }
}
