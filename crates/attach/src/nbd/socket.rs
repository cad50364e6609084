//! The socket file: created with access for its owner only, replaced only when no process listens on it,
//! removed at the end.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::NbdStartError;

/// The most clients that may wait to be accepted.
const BACKLOG: i32 = 64;

/// A listening socket and its file.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// The device and inode numbers of the file that this process created.
    identity: (u64, u64),
}

/// Listens at `path`.
pub(super) fn listen(path: &Path) -> Result<(OwnedFd, SocketFile), NbdStartError> {
    let failed = |source: io::Error| NbdStartError::Listen { path: path.to_owned(), source };
    let address = SocketAddrUnix::new(path).map_err(|_| NbdStartError::PathTooLong(path.to_owned()))?;
    // A process replaces a stale socket under a lock. Otherwise two could each remove the socket that the
    // other just created.
    let _alone = lock_directory(path).map_err(failed)?;
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
    match rustix::net::bind(&socket, &address) {
        Err(rustix::io::Errno::ADDRINUSE) => {
            remove_stale(path, &address)?;
            rustix::net::bind(&socket, &address).map_err(|errno| failed(errno.into()))?;
        }
        other => other.map_err(|errno| failed(errno.into()))?,
    }
    rustix::net::listen(&socket, BACKLOG).map_err(|errno| failed(errno.into()))?;
    let made = fs::symlink_metadata(path).map_err(failed)?;
    Ok((socket, SocketFile { path: path.to_owned(), identity: (made.dev(), made.ino()) }))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have put another file there meanwhile; that file stays.
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.identity);
        if ours {
            // If the file cannot be removed, the next start finds that no process listens and replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the socket of a process that has ended.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), NbdStartError> {
    let failed = |source: io::Error| NbdStartError::Listen { path: path.to_owned(), source };
    if !fs::symlink_metadata(path).map_err(failed)?.file_type().is_socket() {
        return Err(NbdStartError::NotASocket(path.to_owned()));
    }
    let probe = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|errno| failed(errno.into()))?;
    match rustix::net::connect(&probe, address) {
        Err(rustix::io::Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed),
        // The connection was accepted, or the backlog is full: a process listens.
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Err(NbdStartError::InUse(path.to_owned())),
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Locks the directory of `path` until the result is dropped.
fn lock_directory(path: &Path) -> io::Result<OwnedFd> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    rustix::fs::flock(&directory, FlockOperation::LockExclusive)?;
    Ok(directory)
}
