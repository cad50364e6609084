//! Files in folders of another user.
//!
//! The controller can run as root, and the pool belongs to the daemon's user: an attacker who has taken over
//! the daemon can make links in it at any moment. No function here follows a link of another user, neither
//! in place of a file nor among the folders of its path. Links of root and of this process's user are
//! followed among the folders, because the system has some, such as /var/run.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, Stat, mkdirat, openat, renameat, renameat_with, statat,
    unlinkat,
};
use rustix::io::Errno;

const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);
/// The flags that open a folder as a place, and no link to one.
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a file that is there. `access` says whether to read or to write it.
///
/// # Errors
/// It is a link or no file, or it is a hard link to a file of a user other than the owner of its folder.
pub(crate) fn open(path: &Path, access: OFlags) -> io::Result<File> {
    let (folder, name) = place(path)?;
    // Opening a FIFO or a device must not wait.
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(&folder, name, flags, Mode::empty())?);
    let (found, owner) = (file.metadata()?, rustix::fs::fstat(&folder)?.st_uid);
    let is_foreign = found.nlink() > 1 && found.uid() != owner;
    if !found.is_file() || is_foreign {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file of the folder's owner"));
    }
    Ok(file)
}

/// Makes a file that only its owner can read, and opens it for reading and writing.
///
/// # Errors
/// Something has this name.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let (folder, name) = place(path)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(openat(&folder, name, flags, PRIVATE)?))
}

/// Makes a file like [`create`], in the place of one that a process before left.
///
/// # Errors
/// The system's error.
pub(crate) fn create_anew(path: &Path) -> io::Result<File> {
    match remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => create(path),
    }
}

/// Opens a file for writing, and makes it if there is none.
///
/// # Errors
/// As of [`open`].
pub(crate) fn open_or_create(path: &Path) -> io::Result<File> {
    match create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open(path, OFlags::RDWR),
        made => made,
    }
}

/// Makes a folder that only its owner can use, unless there is one, and opens it.
///
/// # Errors
/// Something else has this name.
pub(crate) fn make_folder(path: &Path) -> io::Result<File> {
    let (folder, name) = place(path)?;
    match mkdirat(&folder, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(openat(&folder, name, flags, Mode::empty())?))
}

/// Removes a file or a link.
///
/// # Errors
/// The system's error.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let (folder, name) = place(path)?;
    Ok(unlinkat(&folder, name, AtFlags::empty())?)
}

/// Renames a file.
///
/// # Errors
/// The system's error.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let ((old, from), (new, to)) = (place(from)?, place(to)?);
    Ok(renameat(&old, from, &new, to)?)
}

/// Renames a file, unless the new name is in use.
///
/// # Errors
/// The system's error.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    rename_with(from, to, RenameFlags::NOREPLACE)
}

/// Exchanges the names of two files.
///
/// # Errors
/// The system's error; both files keep their names.
pub(crate) fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    rename_with(one, other, RenameFlags::EXCHANGE)
}

fn rename_with(from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
    let ((old, from), (new, to)) = (place(from)?, place(to)?);
    Ok(renameat_with(old, from, new, to, flags)?)
}

/// Returns the attributes of a file, or of a link in its place.
///
/// # Errors
/// The system's error.
pub(crate) fn stat(path: &Path) -> io::Result<Stat> {
    let (folder, name) = place(path)?;
    Ok(statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Returns whether something has this name.
pub(crate) fn exists(path: &Path) -> bool {
    stat(path).is_ok()
}

/// Returns the names in a folder.
///
/// # Errors
/// The system's error.
pub(crate) fn names(folder: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(open_folder(folder)?)? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Makes the names in a folder durable.
///
/// # Errors
/// The system's error.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::from(open_folder(folder)?).sync_all()
}

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(folder(path)?, ".", flags, Mode::empty())?)
}

/// Returns the folder of a file, and its name there.
fn place(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok((folder(path.parent().unwrap_or(Path::new("")))?, name))
}

/// Finds a folder, one part of its path after the other.
fn folder(path: &Path) -> io::Result<OwnedFd> {
    let path = std::path::absolute(path)?;
    let mut at = openat(CWD, "/", PLACE, Mode::empty())?;
    for part in path.components() {
        let part = match part {
            Component::Normal(name) => name,
            Component::ParentDir => OsStr::new(".."),
            _ => continue,
        };
        at = match openat(&at, part, PLACE, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) if is_trusted_link(&at, part) => {
                openat(&at, part, PLACE.difference(OFlags::NOFOLLOW), Mode::empty())?
            }
            found => found?,
        };
    }
    Ok(at)
}

/// Returns whether a link is root's or of the user of this process.
fn is_trusted_link(folder: &OwnedFd, name: &OsStr) -> bool {
    let own = rustix::process::geteuid().as_raw();
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|link| [0, own].contains(&link.st_uid))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{lchown, symlink};
    use std::path::PathBuf;

    use super::*;

    const NOBODY: u32 = 65534;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("targe-csi-links-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("own")).unwrap();
        fs::write(folder.join("other"), "data").unwrap();
        folder
    }

    #[test]
    fn a_link_in_place_of_a_file_is_not_followed() {
        let folder = scratch("file");
        let (link, other) = (folder.join("own/link"), folder.join("other"));
        symlink(&other, &link).unwrap();
        assert!(open(&link, OFlags::RDONLY).is_err());
        assert!(open(&link, OFlags::RDWR).is_err());
        assert!(create(&link).is_err());
        assert!(open_or_create(&link).is_err());
        assert!(make_folder(&link).is_err());
        drop(create_anew(&link).unwrap());
        assert!(stat(&link).unwrap().st_size == 0 && fs::symlink_metadata(&link).unwrap().is_file());
        assert_eq!(fs::read_to_string(other).unwrap(), "data");
        rustix::fs::mkfifoat(CWD, folder.join("own/fifo"), PRIVATE).unwrap();
        assert!(open(&folder.join("own/fifo"), OFlags::RDONLY).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_link_among_the_folders_is_followed_only_for_root_and_this_user() {
        let folder = scratch("folders");
        let link = folder.join("link");
        symlink("own", &link).unwrap();
        drop(create(&link.join("file")).unwrap());
        assert_eq!(names(&folder.join("own")).unwrap(), ["file"]);
        if rustix::process::geteuid().is_root() {
            lchown(&link, Some(NOBODY), None).unwrap();
            assert!(open(&link.join("file"), OFlags::RDONLY).is_err());
            assert!(
                remove(&link.join("file")).is_err() && names(&link).is_err() && sync_folder(&link).is_err()
            );
            // A hard link to a file of another user is not the owner's file.
            fs::hard_link(folder.join("other"), folder.join("own/hard")).unwrap();
            std::os::unix::fs::chown(folder.join("own"), Some(NOBODY), None).unwrap();
            assert!(open(&folder.join("own/hard"), OFlags::RDWR).is_err());
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
