//! What a peer, or its host, has acknowledged.

#![allow(unsafe_code, reason = "TCP_INFO, which no safe interface offers as far as it is needed")]

use std::mem::size_of_val;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use base::time::Instant;

/// Offsets in `struct tcp_info` (linux/tcp.h), which begins with eight bytes and 24 words.
/// `tcpi_retransmits` and `tcpi_probes`: how many times in a row data was sent again, and how many probes of
/// a closed window, or of an idle connection, were not answered.
const RETRANSMITS: usize = 2;
const PROBES: usize = 3;
/// `tcpi_unacked`: the segments that are not acknowledged.
const UNACKNOWLEDGED: usize = 8 + 4 * 4;
/// `tcpi_last_data_sent` and `tcpi_last_ack_recv`: the milliseconds since data was sent, or sent again, and
/// since the last acknowledgement was received.
const LAST_SENT: usize = 8 + 9 * 4;
const LAST_ACK: usize = 8 + 12 * 4;
/// `tcpi_bytes_acked`, after two rates.
const BYTES_ACKNOWLEDGED: usize = 8 + 24 * 4 + 2 * 8;

type TcpInfo = [u8; BYTES_ACKNOWLEDGED + 8];

fn tcp_info(socket: &OwnedFd) -> Option<TcpInfo> {
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
    let is_whole = result == 0 && usize::try_from(len).is_ok_and(|len| len >= info.len());
    is_whole.then_some(info)
}

/// Returns how many bytes a peer has acknowledged since its connection began, or `None` where the kernel does
/// not report it.
///
/// A peer whose program reads nothing acknowledges data until its receive buffer is full, and then nothing
/// more.
pub(crate) fn bytes_acked(socket: &OwnedFd) -> Option<u64> {
    tcp_info(socket)?.last_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

/// The kernel counts these times in ticks of up to 10 ms.
const TICK: Duration = Duration::from_millis(10);

/// After so many of them without an answer, a host is silent. Single packets get lost, and hosts limit how
/// many answers they send.
const UNANSWERED: u8 = 3;

/// How long the host of a peer has been silent, as TCP sees it.
///
/// A host whose program reads nothing answers what is sent to it: it acknowledges data until its receive
/// buffer is full. Then it answers the probes of its closed window, and data that is sent again, however
/// seldom that is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HostSilence {
    /// Since when the host owes an acknowledgement and sends none.
    since: Option<Instant>,
}

/// What TCP waits for from the host of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    is_awaiting: bool,
    since_last_ack: Duration,
}

impl Awaited {
    /// Returns what TCP waits for on a socket, or `None` if it is no TCP socket.
    pub(crate) fn on(socket: &OwnedFd) -> Option<Self> {
        let info = tcp_info(socket)?;
        let word = |at: usize| Some(u32::from_ne_bytes(*info.get(at..)?.first_chunk()?));
        let span = |at: usize| Some(Duration::from_millis(word(at)?.into()));
        let (since_last_sent, since_last_ack) = (span(LAST_SENT)?, span(LAST_ACK)?);
        let [retransmits, probes] = [*info.get(RETRANSMITS)?, *info.get(PROBES)?];
        let owes_ack = word(UNACKNOWLEDGED)? > 0 && since_last_ack > since_last_sent + TICK;
        let is_awaiting = owes_ack && retransmits >= UNANSWERED || probes >= UNANSWERED;
        Some(Self { is_awaiting, since_last_ack })
    }
}

impl HostSilence {
    /// Records what TCP waits for now. Returns how long the host has owed an acknowledgement.
    pub(crate) fn observe(&mut self, now: Instant, awaited: Awaited) -> Duration {
        // The time before the first observation does not count: the connection may have been idle until then.
        let last_ack = now.before(awaited.since_last_ack);
        let began = self.since.map_or(now, |since| since.max(last_ack));
        self.since = awaited.is_awaiting.then_some(began);
        self.since.map_or(Duration::ZERO, |since| now.since(since))
    }
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

    #[test]
    fn a_host_is_silent_while_it_owes_an_acknowledgement_and_sends_none() {
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        let awaited =
            |is_awaiting, seconds| Awaited { is_awaiting, since_last_ack: Duration::from_secs(seconds) };
        let mut silence = HostSilence::default();
        // Idle for long, then something was sent.
        assert_eq!(silence.observe(at(1000), awaited(false, 900)), Duration::ZERO);
        assert_eq!(silence.observe(at(1005), awaited(true, 905)), Duration::ZERO);
        assert_eq!(silence.observe(at(1010), awaited(true, 910)), Duration::from_secs(5));
        // It acknowledged something, or answered a probe, and owes more.
        assert_eq!(silence.observe(at(1015), awaited(true, 2)), Duration::from_secs(2));
        assert_eq!(silence.observe(at(1020), awaited(true, 7)), Duration::from_secs(7));
        assert_eq!(silence.observe(at(1025), awaited(false, 1)), Duration::ZERO);
    }

    #[test]
    fn what_tcp_waits_for_is_read_from_the_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let mut ours = OwnedFd::from(ours);
        assert!(!Awaited::on(&ours).unwrap().is_awaiting);
        // From now on, the other end receives nothing, as if its host had vanished.
        let drop_all = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
        let program = libc::sock_fprog { len: 1, filter: (&raw const drop_all).cast_mut() };
        let len = libc::socklen_t::try_from(size_of_val(&program)).unwrap();
        // SAFETY: `program` and its one instruction are alive during the call, which copies them.
        let result = unsafe {
            libc::setsockopt(
                theirs.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                len,
            )
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        let mut stream = TcpStream::from(ours);
        stream.write_all(&[1; 1000]).unwrap();
        ours = stream.into();
        std::thread::sleep(Duration::from_secs(2));
        let awaited = Awaited::on(&ours).unwrap();
        assert!(awaited.is_awaiting && awaited.since_last_ack >= Duration::from_secs(2), "{awaited:?}");
    }
}
