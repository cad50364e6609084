//! What was sent through a stream socket and has not arrived yet.

#![allow(unsafe_code, reason = "an ioctl that no library has a safe function for")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Returns 0 if everything that was sent through `stream` has arrived. Of a Unix socket, it returns the
/// memory in bytes of what the program at the other end has not received yet; of a TCP socket, how many bytes
/// the other end has not acknowledged.
///
/// # Errors
/// The error of the system.
pub fn bytes(stream: &impl AsFd) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: the descriptor is open, and TIOCOUTQ, which sockets know as SIOCOUTQ, writes one integer.
    if unsafe { libc::ioctl(stream.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut count) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_count_until_the_other_end_has_received_the_last_one() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        assert_eq!(bytes(&ours).unwrap(), 0);
        ours.write_all(b"ab").unwrap();
        assert!(bytes(&ours).unwrap() > 0);
        theirs.read_exact(&mut [0]).unwrap();
        assert!(bytes(&ours).unwrap() > 0);
        theirs.read_exact(&mut [0]).unwrap();
        assert_eq!(bytes(&ours).unwrap(), 0);
    }
}
