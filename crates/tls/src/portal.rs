//! Connections that initiators make to a portal.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ServerConnection;

use crate::acceptor::Acceptor;
use crate::relay::Relay;
use crate::{ServerSettings, Share, TlsError};

/// A connection whose handshake is complete.
#[derive(Debug)]
pub struct Accepted {
    /// The local socket.
    pub socket: UnixStream,
    /// The address that the initiator connected to.
    pub local: SocketAddr,
    /// The address of the initiator.
    pub peer: SocketAddr,
}

/// A connection that came to nothing.
#[derive(Debug)]
pub struct Refused {
    /// The address of the initiator.
    pub peer: SocketAddr,
    /// The reason.
    pub why: TlsError,
}

/// Takes over connections. Threads of the portal call it, several at a time.
pub type Deliver = dyn Fn(Result<Accepted, Refused>) + Send + Sync;

/// A portal that speaks TLS. Dropping it closes the listening socket; its connections stay.
#[derive(Debug)]
pub struct Portal {
    settings: Arc<Mutex<ServerSettings>>,
    _acceptor: Acceptor,
}

impl Portal {
    /// Accepts connections on `listener`.
    ///
    /// # Errors
    /// The system has no descriptor or no memory left for the thread.
    pub fn start(listener: TcpListener, settings: ServerSettings, deliver: Arc<Deliver>) -> io::Result<Self> {
        let settings = Arc::new(Mutex::new(settings));
        let current = Arc::clone(&settings);
        let serve = move |network: io::Result<TcpStream>, peer| {
            let settings = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match network.map_err(TlsError::from).and_then(|network| accept(network, peer, &settings)) {
                Ok((relay, accepted, theirs)) => {
                    deliver(Ok(accepted));
                    // The reactor sees its end of the pair close, whatever the reason.
                    drop(relay.run(theirs.into()));
                }
                Err(why) => deliver(Err(Refused { peer, why })),
            }
        };
        Ok(Self { settings, _acceptor: Acceptor::start(listener, Share::OF_PORTAL, Arc::new(serve))? })
    }

    /// Uses other settings for the connections that follow.
    pub fn change(&self, settings: ServerSettings) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings;
    }
}

fn accept(
    network: TcpStream,
    peer: SocketAddr,
    settings: &ServerSettings,
) -> Result<(Relay, Accepted, UnixStream), TlsError> {
    let tls = ServerConnection::new(Arc::clone(&settings.config)).map_err(TlsError::Handshake)?;
    let local = network.local_addr()?;
    let mut relay = Relay::new(tls.into(), network)?;
    relay.shake_hands()?;
    let (socket, theirs) = UnixStream::pair()?;
    Ok((relay, Accepted { socket, local, peer }, theirs))
}
