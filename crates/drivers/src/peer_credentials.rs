//! Who is at the other end of a Unix socket.

#![allow(
    unsafe_code,
    reason = "rustix takes no process ID of 0, and the standard library has no stable function"
)]

use std::io;
use std::num::NonZero;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The process that made the other end of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// Its process ID, unless the process has none in the PID namespace of this one.
    pub pid: Option<NonZero<i32>>,
}

/// Returns who made the other end of `stream`.
///
/// # Errors
/// The error of the system.
pub fn of(stream: &UnixStream) -> io::Result<PeerCredentials> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = libc::socklen_t::try_from(size_of_val(&peer)).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open, and SO_PEERCRED writes one `ucred` of at most `len` bytes, of which
    // every value is valid.
    let outcome = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCredentials { uid: peer.uid, gid: peer.gid, pid: NonZero::new(peer.pid) })
}

/// The most supplementary groups of a process on Linux.
const GROUPS_MAX: usize = 65_536;

/// Returns the supplementary groups of the process that made the other end of `stream` (Linux 4.13).
///
/// # Errors
/// The error of the system.
pub fn groups(stream: &UnixStream) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let room = libc::socklen_t::try_from(size_of_val(groups.as_slice())).map_err(io::Error::other)?;
        let mut len = room;
        // SAFETY: the descriptor is open, and SO_PEERGROUPS writes whole group numbers of at most `len` bytes
        // in all, of which every value is valid. It writes none if there is no room for all.
        let outcome = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let count = usize::try_from(len).map_err(io::Error::other)? / size_of::<libc::gid_t>();
        if outcome == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > GROUPS_MAX {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let PeerCredentials { uid, gid, pid } = of(&ours).unwrap();
        assert_eq!(uid, rustix::process::geteuid().as_raw());
        assert_eq!(gid, rustix::process::getegid().as_raw());
        let own: Vec<u32> =
            rustix::process::getgroups().unwrap().into_iter().map(rustix::process::Gid::as_raw).collect();
        assert_eq!(groups(&ours).unwrap(), own);
        assert_eq!(pid.and_then(|pid| u32::try_from(pid.get()).ok()), Some(std::process::id()));
    }
}
