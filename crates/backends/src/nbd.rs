//! Connects to an NBD server and negotiates an export. This blocks: it is for the threads that open media and
//! that wait for a server to come back, not for a reactor.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ::nbd::handshake::{ExportInfo, Handshake, HandshakeError};
use ::nbd::uri::{NbdUri, ServerAddress};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};

/// TCP keepalive: a silent server's host is probed after this long, and as often again.
const KEEPALIVE_TIME: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 4;

/// The largest receive of a negotiation.
const RECEIVE_LEN: usize = 4096;

/// A connection whose negotiation is complete: the next bytes are those of requests and replies.
#[derive(Debug)]
pub struct NbdConnection {
    /// The socket.
    pub socket: OwnedFd,
    /// What was negotiated.
    pub info: ExportInfo,
}

/// An export cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// The name of the host is not known.
    #[error("cannot resolve the host of {uri}")]
    Resolve {
        /// The export.
        uri: NbdUri,
        /// The error of the system.
        source: io::Error,
    },
    /// The server does not accept the connection.
    #[error("cannot connect to {uri}")]
    Connect {
        /// The export.
        uri: NbdUri,
        /// The error of the system.
        source: io::Error,
    },
    /// The connection broke in the negotiation.
    #[error("the connection to {uri} failed in the negotiation")]
    Lost {
        /// The export.
        uri: NbdUri,
        /// The error of the system.
        source: io::Error,
    },
    /// The server refused the export, or broke the protocol.
    #[error("{uri}: {why}")]
    Negotiation {
        /// The export.
        uri: NbdUri,
        /// What is wrong.
        why: HandshakeError,
    },
}

impl NbdError {
    /// Returns whether the server cannot be reached or does not answer, so that it may answer later.
    pub const fn is_unreachable(&self) -> bool {
        !matches!(self, Self::Negotiation { .. })
    }
}

/// Connects to the server of an export and negotiates. Gives up after `patience`; resolving a name can take
/// longer.
///
/// # Errors
/// [`NbdError`]
pub fn open(uri: &NbdUri, patience: Duration) -> Result<NbdConnection, NbdError> {
    let deadline = Instant::now() + patience;
    let failed = |source| NbdError::Connect { uri: uri.clone(), source };
    let socket = match &uri.server {
        ServerAddress::Unix(path) => connect_unix(path, deadline).map_err(failed)?,
        ServerAddress::Tcp(host, port) => {
            let addresses = (host.as_str(), *port).to_socket_addrs();
            let addresses = addresses.map_err(|source| NbdError::Resolve { uri: uri.clone(), source })?;
            connect_tcp(addresses, deadline).map_err(failed)?
        }
    };
    let lost = |source| NbdError::Lost { uri: uri.clone(), source };
    let info = negotiate(&socket, &uri.export, deadline).map_err(|error| match error {
        Failed::Io(source) => lost(source),
        Failed::Negotiation(why) => NbdError::Negotiation { uri: uri.clone(), why },
    })?;
    for direction in [Timeout::Recv, Timeout::Send] {
        sockopt::set_socket_timeout(&socket, direction, None).map_err(|errno| lost(errno.into()))?;
    }
    Ok(NbdConnection { socket, info })
}

/// Connects to a Unix socket.
pub(crate) fn connect_unix(path: &str, deadline: Instant) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The queue of a server that accepts nothing is full at some time.
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(left(deadline)?))?;
    match connect(&socket, &address) {
        Ok(()) => Ok(socket),
        Err(Errno::AGAIN) => Err(ErrorKind::TimedOut.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// Connects to the first address that answers. One that does not answer leaves the others their share of the
/// time, and gets what they leave.
fn connect_tcp(addresses: impl Iterator<Item = SocketAddr>, deadline: Instant) -> io::Result<OwnedFd> {
    let mut failure = io::Error::from(ErrorKind::NotFound);
    let mut waiting: Vec<SocketAddr> = addresses.collect();
    while !waiting.is_empty() {
        let mut silent = Vec::new();
        let shares = (1..=u32::try_from(waiting.len()).unwrap_or(u32::MAX)).rev();
        for (address, share) in waiting.into_iter().zip(shares) {
            match TcpStream::connect_timeout(&address, left(deadline)? / share) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    detect_lost_host(&stream)?;
                    return Ok(stream.into());
                }
                Err(error) => {
                    if error.kind() == ErrorKind::TimedOut {
                        silent.push(address);
                    }
                    failure = error;
                }
            }
        }
        waiting = silent;
    }
    Err(failure)
}

/// Lets the system end an idle connection when the host of the server is gone. While data is not
/// acknowledged, the system sends no keepalive probes, and the reactor ends the connection
/// (`drivers::config::Config::host_silence_max`). A client never ends one with an unfinished change.
fn detect_lost_host(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_TIME)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_TIME)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

enum Failed {
    Io(io::Error),
    Negotiation(HandshakeError),
}

impl<E: Into<io::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Io(error.into())
    }
}

fn negotiate(socket: &OwnedFd, export: &str, deadline: Instant) -> Result<ExportInfo, Failed> {
    let mut handshake = Handshake::new(export);
    let mut room = [0; RECEIVE_LEN];
    loop {
        let len = handshake.wanted().min(RECEIVE_LEN);
        sockopt::set_socket_timeout(socket, Timeout::Recv, Some(left(deadline)?))?;
        let Some(part) = room.get_mut(..len) else { return Err(Failed::Io(ErrorKind::InvalidInput.into())) };
        let got = match retry_on_intr(|| recv(socket, &mut *part, RecvFlags::empty())) {
            Ok((_, 0)) => return Err(Failed::Io(ErrorKind::UnexpectedEof.into())),
            Ok((_, got)) => got,
            Err(Errno::AGAIN) => return Err(Failed::Io(ErrorKind::TimedOut.into())),
            Err(errno) => return Err(errno.into()),
        };
        let received = handshake.received(part.get(..got).unwrap_or_default());
        if let Some(info) = received.map_err(Failed::Negotiation)? {
            return Ok(info);
        }
        let output = handshake.take_output();
        let mut unsent = output.as_slice();
        while !unsent.is_empty() {
            sockopt::set_socket_timeout(socket, Timeout::Send, Some(left(deadline)?))?;
            let sent = retry_on_intr(|| send(socket, unsent, SendFlags::NOSIGNAL))?;
            unsent = unsent.get(sent..).unwrap_or_default();
        }
    }
}

/// Returns the time that is left.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Serves one connection with what a server says, and returns the address.
    fn server(says: Vec<u8>) -> NbdUri {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&says).unwrap();
            // The client ends the connection.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        NbdUri::parse(&format!("nbd://127.0.0.1:{port}/disk")).unwrap()
    }

    #[test]
    fn a_server_that_is_absent_refuses_or_says_nothing_is_named_with_its_address() {
        let gone = "nbd+unix:///disk?socket=/nonexistent/socket";
        let error = open(&NbdUri::parse(gone).unwrap(), Duration::from_secs(30)).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot connect to {gone}"));

        let uri = server(b"220 mail.example.org ESMTP\r\n".to_vec());
        let error = open(&uri, Duration::from_secs(30)).unwrap_err();
        let why = "the peer is not an NBD server with the newstyle negotiation";
        assert_eq!(error.to_string(), format!("{uri}: {why}"));

        let uri = server(b"NBDMAGIC".to_vec());
        let error = open(&uri, Duration::from_secs(2)).unwrap_err();
        assert!(matches!(error, NbdError::Lost { source, .. } if source.kind() == ErrorKind::TimedOut));
    }
}
