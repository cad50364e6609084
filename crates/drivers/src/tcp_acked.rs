//! The number of bytes that a peer has acknowledged.

#![allow(unsafe_code, reason = "TCP_INFO, which no safe interface offers as far as it is needed")]

use std::mem::size_of_val;
use std::os::fd::{AsRawFd, OwnedFd};

/// The offset of `tcpi_bytes_acked` in `struct tcp_info` (linux/tcp.h): after eight bytes, 24 words and two
/// rates.
const BYTES_ACKNOWLEDGED: usize = 8 + 24 * 4 + 2 * 8;

/// Returns how many bytes a peer has acknowledged since its connection began, or `None` where the kernel does
/// not report it.
///
/// A peer whose program reads nothing acknowledges data until its receive buffer is full, and then nothing
/// more.
pub(crate) fn bytes_acked(socket: &OwnedFd) -> Option<u64> {
    let mut info = [0_u8; BYTES_ACKNOWLEDGED + 8];
    let mut len = libc::socklen_t::try_from(size_of_val(&info)).ok()?;
    // SAFETY: the kernel writes at most `len` bytes into `info`, and how many those were into `len`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let whole = result == 0 && usize::try_from(len).is_ok_and(|len| len >= info.len());
    info.last_chunk().filter(|_| whole).map(|bytes| u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_a_peer_acknowledged_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        ours.write_all(&[1; 1000]).unwrap();
        theirs.read_exact(&mut [0; 1000]).unwrap();
        // The answer of the peer carries the acknowledgement.
        theirs.write_all(&[2]).unwrap();
        ours.read_exact(&mut [0]).unwrap();
        let ours = OwnedFd::from(ours);
        // Linux includes the SYN of the handshake in its count.
        assert!(matches!(bytes_acked(&ours), Some(1000 | 1001)), "{:?}", bytes_acked(&ours));
    }

    #[test]
    fn what_is_no_tcp_says_nothing() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(bytes_acked(&one.into()), None);
    }
}
