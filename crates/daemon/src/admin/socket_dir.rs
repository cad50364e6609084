//! The directory and the lock of the admin socket: the directory is closed to other users, and the lock shows
//! whether the daemon that created the socket still runs.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::server::AdminSocketError;
use crate::os_error;

/// The longest path of a Unix socket on Linux: 108 bytes with the terminating zero.
const PATH_LEN_MAX: usize = 107;

/// A socket that this daemon holds until this is dropped; then the socket is removed.
#[derive(Debug)]
pub(super) struct SocketLock {
    path: PathBuf,
    /// Locked for as long as the daemon lives. The kernel releases the lock however the daemon ends.
    lock: File,
    /// Whether the socket is removed at the end. Another daemon uses it otherwise.
    is_removed: AtomicBool,
}

impl SocketLock {
    /// Locks the path and listens there. A socket that a dead daemon left is replaced. Members of the group
    /// `readers` can connect.
    pub(super) fn bind(path: &Path, readers: Option<u32>) -> Result<(Self, UnixListener), AdminSocketError> {
        let failed = |what: &str, error: &std::io::Error| AdminSocketError::Socket {
            path: path.to_path_buf(),
            why: format!("{what}: {}", os_error(error)),
        };
        let length = path.as_os_str().len();
        if length > PATH_LEN_MAX {
            let why = format!("the path has {length} bytes; a Unix socket has at most {PATH_LEN_MAX}");
            return Err(AdminSocketError::Socket { path: path.to_path_buf(), why });
        }
        check_directory(path, readers)?;
        let lock_path = path.with_extension("lock");
        let mut options = fs::OpenOptions::new();
        let lock = options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(|error| failed("cannot open its lock file", &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(AdminSocketError::AlreadyRunning { path: path.to_path_buf() });
            }
            Err(TryLockError::Error(error)) => return Err(failed("cannot lock its lock file", &error)),
        }
        match path.symlink_metadata() {
            Ok(meta) if meta.file_type().is_socket() => {
                fs::remove_file(path)
                    .map_err(|error| failed("cannot remove the socket of a daemon that has ended", &error))?;
            }
            Ok(_) => {
                let why = "the file is not a socket".to_owned();
                return Err(AdminSocketError::Socket { path: path.to_path_buf(), why });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed("cannot query the file", &error)),
        }
        // Between these two calls only the directory's mode keeps other users out; `check_directory` made
        // sure that it does.
        let listener = UnixListener::bind(path).map_err(|error| failed("cannot listen", &error))?;
        fs::set_permissions(path, Permissions::from_mode(0o600))
            .map_err(|error| failed("cannot set its mode", &error))?;
        if let Some(group) = readers {
            open_to(group, path, 0o660).map_err(|error| failed(&no_group(group, path), &error))?;
            if let Some(directory) = path.parent() {
                let opened = open_to(group, directory, READABLE);
                opened.map_err(|error| failed(&no_group(group, directory), &error))?;
            }
        }
        Ok((Self { path: path.to_path_buf(), lock, is_removed: AtomicBool::new(true) }, listener))
    }

    /// Takes the lock that another daemon holds on the path. The socket stays until [`Self::own`] is called.
    pub(super) fn take_over(path: &Path, lock: File) -> Self {
        Self { path: path.to_path_buf(), lock, is_removed: AtomicBool::new(false) }
    }

    /// Removes the socket at the end.
    pub(super) fn own(&self) {
        self.is_removed.store(true, Ordering::Relaxed);
    }

    /// Returns another descriptor of the lock.
    pub(super) fn try_clone_lock(&self) -> std::io::Result<File> {
        self.lock.try_clone()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        if !self.is_removed.load(Ordering::Relaxed) {
            return;
        }
        // This daemon still holds the lock, so no other daemon's socket can be at this path. If the removal
        // fails, the next start removes the socket.
        let _ = fs::remove_file(&self.path);
    }
}

/// The mode of a directory through which members of its group reach the socket, whose name they know.
const READABLE: u32 = 0o710;

/// Gives a file or directory to a group, and then this mode.
fn open_to(group: u32, path: &Path, mode: u32) -> std::io::Result<()> {
    chown(path, None, Some(group))?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn no_group(group: u32, path: &Path) -> String {
    format!(
        "cannot give {} to the group {group} (\"admin_readers\"), of which this user must be a member",
        path.display()
    )
}

/// Makes sure that the directory exists, belongs to our user, and is closed to all other users. If there are
/// `readers`, it holds nothing but the socket, and is opened for them later.
fn check_directory(path: &Path, readers: Option<u32>) -> Result<(), AdminSocketError> {
    let refuse = |why: String| AdminSocketError::Socket { path: path.to_path_buf(), why };
    let Some(directory) = path.parent() else { return Err(refuse("the path has no directory".to_owned())) };
    let name = directory.display();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| refuse(format!("cannot create {name}: {}", os_error(&error))))?;
    let meta =
        directory.metadata().map_err(|error| refuse(format!("cannot use {name}: {}", os_error(&error))))?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(refuse(format!("{name} belongs to another user")));
    }
    let mode = meta.mode() & 0o7777;
    if readers.is_some() && !holds_only(directory, path) {
        return Err(refuse(format!(
            "{name} is to be opened for \"admin_readers\", so it must hold nothing else"
        )));
    }
    if mode & 0o077 == 0 {
        return Ok(());
    }
    // An earlier start has opened it for readers. Only those of now are to have access.
    if mode & 0o777 == READABLE && holds_only(directory, path) {
        let closed = fs::set_permissions(directory, Permissions::from_mode(0o700));
        return closed
            .map_err(|error| refuse(format!("cannot close {name} to its group: {}", os_error(&error))));
    }
    if mode & FS_GROUP_MASK == FS_GROUP && holds_only(directory, path) {
        let closed = fs::set_permissions(directory, Permissions::from_mode(0o700));
        closed.map_err(|error| refuse(format!("cannot close {name} to its group: {}", os_error(&error))))?;
        crate::info!("closed {name} to its group again, for which a volume was opened (fsGroup)");
        return Ok(());
    }
    let mode = mode & 0o777;
    Err(refuse(format!("other users have access to {name} (mode {mode:03o}); it must have mode 700")))
}

/// The bits of a directory that Kubernetes has opened for the group `fsGroup` of a pod, as it does with each
/// directory of a volume when a pod starts: everything for the group, nothing for others, and setgid.
const FS_GROUP: u32 = 0o2070;
const FS_GROUP_MASK: u32 = 0o2077;

/// Returns whether a directory holds nothing but the socket and its lock, so that nothing else uses it.
fn holds_only(directory: &Path, socket: &Path) -> bool {
    let known = [socket.to_path_buf(), socket.with_extension("lock")];
    fs::read_dir(directory).is_ok_and(|mut entries| {
        entries.all(|entry| entry.is_ok_and(|entry| known.iter().any(|path| *path == entry.path())))
    })
}
