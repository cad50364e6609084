//! Connections in the clear on this host, each carried over TLS to a portal.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use crate::acceptor::Acceptor;
use crate::client::connect_relay;
use crate::{ClientSettings, Refused, Share, TlsError};

/// Where a proxy carries connections.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// The host name or address of the portal. It is resolved for each connection.
    pub host: String,
    /// The port of the portal.
    pub port: u16,
    /// The name in the portal's certificate.
    pub name: String,
    /// What is trusted, and our certificate if there is one.
    pub settings: ClientSettings,
    /// How long the TCP connection to one address may take.
    pub patience: Duration,
}

/// A proxy. Dropping it closes the listening socket; its connections stay.
#[derive(Debug)]
pub struct Proxy {
    _acceptor: Acceptor,
}

impl Proxy {
    /// Accepts connections on `listener`. `refused` learns of those that could not be carried; threads of
    /// the proxy call it, several at a time.
    ///
    /// # Errors
    /// The system has no descriptor or no memory left for the thread.
    pub fn start(
        listener: TcpListener,
        upstream: Upstream,
        refused: impl Fn(Refused) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let serve = move |near: io::Result<TcpStream>, peer| {
            if let Err(why) = near.map_err(TlsError::from).and_then(|near| carry(near, &upstream)) {
                refused(Refused { peer, why });
            }
        };
        // All initiators have addresses of this host.
        Ok(Self { _acceptor: Acceptor::start(listener, Share::ALL, Arc::new(serve))? })
    }
}

/// Carries a connection until its end. Only what happens before its first byte is an error, and an alert by
/// which the portal ends it.
fn carry(near: TcpStream, upstream: &Upstream) -> Result<(), TlsError> {
    near.set_nodelay(true)?;
    let addresses: Vec<SocketAddr> = (upstream.host.as_str(), upstream.port).to_socket_addrs()?.collect();
    let mut last = TlsError::Io(io::Error::other(format!("{} has no address", upstream.host)));
    for address in addresses {
        match connect_relay(address, &upstream.name, &upstream.settings, upstream.patience) {
            Ok((relay, _)) => {
                // The initiator sees its connection close, whatever the reason.
                let mut refusal = None;
                let _ = relay.run_for_initiator(near.into(), |alert| refusal = Some(TlsError::Alert(alert)));
                return refusal.map_or(Ok(()), Err);
            }
            Err(why) => last = why,
        }
    }
    Err(last)
}
