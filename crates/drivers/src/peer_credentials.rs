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
    Ok(PeerCredentials { uid: peer.uid, pid: NonZero::new(peer.pid) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let PeerCredentials { uid, pid } = of(&ours).unwrap();
        assert_eq!(uid, rustix::process::geteuid().as_raw());
        assert_eq!(pid.and_then(|pid| u32::try_from(pid.get()).ok()), Some(std::process::id()));
    }
}
