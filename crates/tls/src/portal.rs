//! Connections that initiators make to a portal.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ServerConnection;

use crate::acceptor::{Acceptor, Pauser};
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
    /// The generation of the settings of its handshake.
    pub generation: u64,
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
    settings: Arc<Mutex<Current>>,
    acceptor: Acceptor,
}

/// The settings for new connections.
#[derive(Clone, Debug)]
struct Current {
    settings: ServerSettings,
    /// Increases when the settings change.
    generation: u64,
}

impl Portal {
    /// Accepts connections on `listener`.
    ///
    /// # Errors
    /// The system has no descriptor or no memory left for the thread.
    pub fn start(listener: TcpListener, settings: ServerSettings, deliver: Arc<Deliver>) -> io::Result<Self> {
        let settings = Arc::new(Mutex::new(Current { settings, generation: 0 }));
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
        Ok(Self { settings, acceptor: Acceptor::start(listener, Share::OF_PORTAL, Arc::new(serve))? })
    }

    /// Returns what makes the portal pause.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn pauser(&self) -> io::Result<Pauser> {
        self.acceptor.pauser()
    }

    /// Uses these settings for the connections that follow. Returns their generation, which is the one before
    /// if the settings are equal.
    pub fn change(&self, settings: ServerSettings) -> u64 {
        let mut current = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        current.generation += u64::from(current.settings != settings);
        current.settings = settings;
        current.generation
    }
}

fn accept(
    network: TcpStream,
    peer: SocketAddr,
    Current { settings, generation }: &Current,
) -> Result<(Relay, Accepted, UnixStream), TlsError> {
    let tls = ServerConnection::new(Arc::clone(&settings.config)).map_err(TlsError::Handshake)?;
    let local = network.local_addr()?;
    let mut relay = Relay::new(tls.into(), network)?;
    relay.shake_hands()?;
    let (socket, theirs) = UnixStream::pair()?;
    Ok((relay, Accepted { socket, local, peer, generation: *generation }, theirs))
}
