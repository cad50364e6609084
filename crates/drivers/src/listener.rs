//! Listening sockets and the options of connections.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, acceptfrom_with, bind, listen, socket_with, sockopt,
};

/// How many connections can wait to be accepted: enough for a rack of hosts that all log in again after a
/// restart.
const BACKLOG: i32 = 1024;

/// TCP keepalive: a silent peer is probed after this long, four times.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// Opens a listening TCP socket. An IPv6 address accepts IPv6 only, so that IPv4 and IPv6 can use the same
/// port.
///
/// # Errors
/// The error of the system; `AddrInUse` if the port is taken.
pub fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    // Accepted connections inherit the options, whichever thread serves them.
    prepare(&socket)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Sets the options that every connection needs: no delay (TCP_NODELAY), and keepalive probes to silent
/// peers. Accepted sockets inherit them from their listener. A socket that sends probes already keeps its
/// times: its opener knows what its peer needs.
pub(crate) fn prepare(socket: impl AsFd) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    if sockopt::socket_keepalive(&socket)? {
        return Ok(());
    }
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_PROBES)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    Ok(())
}

/// The result of an attempt to accept a connection.
pub(crate) enum Accepted {
    Connection(OwnedFd, SocketAddr),
    /// The connection had already ended.
    Void,
    /// No connection is waiting.
    Nobody,
    /// The process has no descriptor or memory left for the connection.
    Failed,
}

/// Accepts a connection from a non-blocking listener.
pub(crate) fn accept(listener: impl AsFd) -> Accepted {
    match acceptfrom_with(listener, SocketFlags::CLOEXEC) {
        Ok((socket, peer)) => match peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
            Some(peer) => Accepted::Connection(socket, peer),
            None => Accepted::Void,
        },
        Err(Errno::AGAIN) => Accepted::Nobody,
        Err(Errno::INTR | Errno::CONNABORTED) => Accepted::Void,
        Err(_) => Accepted::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_keepalive_times_only_where_the_opener_of_a_connection_set_none() {
        let listener = open("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let own = std::net::TcpStream::connect(address).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert!(sockopt::socket_keepalive(&accepted).unwrap(), "inherited from the listener");
        assert_eq!(sockopt::tcp_keepidle(&accepted).unwrap(), KEEPALIVE_IDLE);
        sockopt::set_tcp_keepidle(&own, Duration::from_secs(5)).unwrap();
        sockopt::set_socket_keepalive(&own, true).unwrap();
        prepare(&own).unwrap();
        assert_eq!(sockopt::tcp_keepidle(&own).unwrap(), Duration::from_secs(5));
        assert!(sockopt::tcp_nodelay(&own).unwrap());
        let plain = std::net::TcpStream::connect(address).unwrap();
        prepare(&plain).unwrap();
        assert!(sockopt::socket_keepalive(&plain).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&plain).unwrap(), KEEPALIVE_IDLE);
    }
}
