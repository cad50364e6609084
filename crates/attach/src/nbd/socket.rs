//! The socket file: created with access for its owner only, replaced only when no process listens on it,
//! removed at the end.
//!
//! A file next to it, `SOCKET.disk`, contains the key of what is served there. Clients that lost their server
//! connect to the next one by themselves, and write to it what they have cached. So the key outlives a
//! server that was killed, or that disconnected clients at its end, and only a server of the same follows it.
//! Such clients can wait for any length of time: a server that finds a key leaves it, and only the user
//! removes it.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::NbdStartError;
use crate::device_key::DeviceKey;

/// The most clients that may wait to be accepted.
const BACKLOG: i32 = 64;

/// A listening socket and its file.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// The device and inode numbers of the file that this process created.
    identity: (u64, u64),
    /// Whether clients of an earlier server may still wait.
    is_continued: bool,
}

/// Refuses a path where a process listens or where no socket can be made. A server calls this before it logs
/// in as the successor of a dead one: the login ends the session of the server before.
///
/// # Errors
/// [`NbdStartError::InUse`], or the path cannot be used or examined.
pub fn refuse_served(path: &Path) -> Result<(), NbdStartError> {
    let address = SocketAddrUnix::new(path).map_err(|_| NbdStartError::PathTooLong(path.to_owned()))?;
    expect_directory(path)?;
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && is_served(path, &address)? {
        return Err(NbdStartError::InUse(path.to_owned()));
    }
    Ok(())
}

/// Refuses a socket whose directory is missing, or closed to this user. The system reports both as an error
/// of the socket.
fn expect_directory(path: &Path) -> Result<(), NbdStartError> {
    let dir = directory(path);
    match rustix::fs::accessat(CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        Err(Errno::NOENT) => Err(NbdStartError::NoDirectory(dir.to_owned())),
        Err(Errno::ACCESS) => Err(NbdStartError::NotWritable(dir.to_owned())),
        // Other faults of the path are found when the socket is made.
        _ => Ok(()),
    }
}

/// Listens at `path`. `key` identifies what is served there.
pub(super) fn listen(path: &Path, key: Option<DeviceKey>) -> Result<(OwnedFd, SocketFile), NbdStartError> {
    let failed = |source: io::Error| NbdStartError::Listen { path: path.to_owned(), source };
    let address = SocketAddrUnix::new(path).map_err(|_| NbdStartError::PathTooLong(path.to_owned()))?;
    expect_directory(path)?;
    // A process replaces a stale socket under a lock. Otherwise two could each remove the socket that the
    // other just created.
    let _alone = lock_directory(path, FlockOperation::LockExclusive).map_err(failed)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|errno| failed(errno.into()))?;
    // The file takes its mode from the socket at the time of the bind, so other users can connect at no
    // moment.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(|errno| failed(errno.into()))?;
    let is_stale = fs::symlink_metadata(path).is_ok();
    if is_stale {
        refuse_used(path, &address)?;
    }
    let former = former_server(path, key).map_err(failed)?;
    if former == FormerServer::Other {
        return Err(NbdStartError::OtherDisk(path.to_owned()));
    }
    if is_stale {
        fs::remove_file(path).map_err(failed)?;
    }
    // The key comes first, so that there is no socket of a process that died without it.
    write_key(path, key).map_err(failed)?;
    rustix::net::bind(&socket, &address).map_err(|errno| failed(errno.into()))?;
    rustix::net::listen(&socket, BACKLOG).map_err(|errno| failed(errno.into()))?;
    let made = fs::symlink_metadata(path).map_err(failed)?;
    let identity = (made.dev(), made.ino());
    let is_continued = former == FormerServer::Same;
    Ok((socket, SocketFile { path: path.to_owned(), identity, is_continued }))
}

impl SocketFile {
    /// Removes the socket, and then the key, unless clients wait for the next server. `may_return` is called
    /// when no client can connect any more, and returns whether this server leaves clients that may connect
    /// to the next one.
    pub(super) fn remove(self, may_return: impl FnOnce() -> bool) {
        // Without the lock, the next server could write its key before this one removes its own. If the
        // directory cannot be locked, the key stays.
        let alone = lock_directory(&self.path, FlockOperation::NonBlockingLockExclusive);
        // Another process may have put another file there meanwhile; that file stays.
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.identity);
        if ours {
            // If the file cannot be removed, the next start finds that no process listens and replaces it.
            let _ = fs::remove_file(&self.path);
            if !may_return() && !self.is_continued && alone.is_ok() {
                let _ = fs::remove_file(key_path(&self.path));
            }
        }
    }
}

/// Who served at a socket before, and may have left clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormerServer {
    /// No server, or one without a key.
    Unknown,
    /// A server of the same.
    Same,
    /// A server of something else.
    Other,
}

/// Returns the path of the file that identifies what is served at a socket.
fn key_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".disk");
    path.into()
}

fn write_key(socket: &Path, key: Option<DeviceKey>) -> io::Result<()> {
    let Some(key) = key else { return Ok(()) };
    // Whatever was there is replaced, and no link is followed.
    let path = key_path(socket);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(format!("{:016x}\n", key.note()).as_bytes())
}

/// Returns who left a key at the socket.
fn former_server(socket: &Path, key: Option<DeviceKey>) -> io::Result<FormerServer> {
    let text = match fs::read_to_string(key_path(socket)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FormerServer::Unknown),
        other => other?,
    };
    let theirs = u64::from_str_radix(text.trim_end(), 16).ok().map(DeviceKey::of_note);
    let same = theirs.is_some() && key == theirs;
    Ok(if same { FormerServer::Same } else { FormerServer::Other })
}

/// Refuses a path that is not the socket of a process that has ended.
fn refuse_used(path: &Path, address: &SocketAddrUnix) -> Result<(), NbdStartError> {
    let failed = |source: io::Error| NbdStartError::Listen { path: path.to_owned(), source };
    if !fs::symlink_metadata(path).map_err(failed)?.file_type().is_socket() {
        return Err(NbdStartError::NotASocket(path.to_owned()));
    }
    if is_served(path, address)? {
        return Err(NbdStartError::InUse(path.to_owned()));
    }
    Ok(())
}

/// Returns whether a process listens at a socket.
fn is_served(path: &Path, address: &SocketAddrUnix) -> Result<bool, NbdStartError> {
    let failed = |errno: Errno| NbdStartError::Listen { path: path.to_owned(), source: errno.into() };
    let probe = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(failed)?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => Ok(false),
        // The connection was accepted, or the backlog is full: a process listens.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(errno) => Err(failed(errno)),
    }
}

/// Locks the directory of `path` until the result is dropped.
fn lock_directory(path: &Path, how: FlockOperation) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory(path), flags, Mode::empty())?;
    rustix::fs::flock(&directory, how)?;
    Ok(directory)
}

/// Returns the directory of `path`.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
