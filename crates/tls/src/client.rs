//! Connections that this end makes.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustls::pki_types::ServerName;

use crate::handshake::Handshake;
use crate::relay::Relay;
use crate::{ClientSettings, TlsError};

/// Connects to `peer`, whose certificate must be for `name`, and starts the thread that relays. `patience`
/// limits the TCP connection. Returns the local socket, and the address of this end of the TCP connection.
/// If the local socket is closed, or this process ends, before the peer has acknowledged every byte, the
/// connection is reset and what is left is dropped: a write that was given up must not reach the peer later.
/// If the peer refuses this end after the handshake, `refused` learns why before the local socket is closed.
/// This waits for the network: it is not for a thread of a reactor.
///
/// # Errors
/// [`TlsError`]
pub fn connect(
    peer: SocketAddr,
    name: &str,
    settings: &ClientSettings,
    patience: Duration,
    refused: impl FnOnce(TlsError) + Send + 'static,
) -> Result<(UnixStream, SocketAddr), TlsError> {
    let (relay, address) = connect_relay(peer, name, settings, patience)?;
    let (ours, theirs) = UnixStream::pair()?;
    // The result is of no interest: the reactor sees its end of the pair close.
    let run = move || drop(relay.run_for_initiator(theirs.into(), |alert| refused(TlsError::Alert(alert))));
    std::thread::Builder::new().name("tls".to_owned()).spawn(run)?;
    Ok((ours, address))
}

/// Connects, and completes the handshake.
pub(crate) fn connect_relay(
    peer: SocketAddr,
    name: &str,
    settings: &ClientSettings,
    patience: Duration,
) -> Result<(Relay, SocketAddr), TlsError> {
    let host = name.trim_start_matches('[').trim_end_matches(']');
    // No certificate names the zone of an address.
    let host = host.split_once('%').map_or(host, |(address, _)| address);
    let server = ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name(name.to_owned()))?;
    let network = TcpStream::connect_timeout(&peer, patience)?;
    let address = network.local_addr()?;
    let relay = Handshake::of_client(&settings.0, server, network)?.complete()?;
    Ok((relay, address))
}
