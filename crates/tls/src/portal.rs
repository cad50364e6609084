//! Connections that initiators make to a portal.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use crate::acceptor::{Acceptor, Pauser};
use crate::handshake::Handshake;
use crate::moved::MovedRelay;
use crate::moving::{PausedRelays, Relays};
use crate::places::Places;
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
    relays: Arc<Relays>,
    acceptor: Acceptor,
}

/// The settings for new connections.
#[derive(Clone, Debug)]
struct Current {
    settings: ServerSettings,
    /// Increases when the settings change.
    generation: u64,
}

/// Makes a portal pause.
#[derive(Debug)]
pub struct PortalPauser {
    pauser: Pauser,
    places: Places,
    relays: Arc<Relays>,
}

impl PortalPauser {
    /// Stops accepting connections, or goes on, as [`Pauser::pause`].
    pub fn pause(&self, is_paused: bool) {
        self.pauser.pause(is_paused);
    }

    /// Returns how many connections were accepted and are not delivered yet: their handshakes are under way.
    pub fn handshakes(&self) -> usize {
        self.relays.undelivered_of(self.places.count())
    }
}

impl Portal {
    /// Accepts connections on `listener`.
    ///
    /// # Errors
    /// The system has no descriptor or no memory left for the thread.
    pub fn start(listener: TcpListener, settings: ServerSettings, deliver: Arc<Deliver>) -> io::Result<Self> {
        let settings = Arc::new(Mutex::new(Current { settings, generation: 0 }));
        let relays = Arc::new(Relays::new()?);
        let (current, registry) = (Arc::clone(&settings), Arc::clone(&relays));
        let serve = move |network: io::Result<TcpStream>, peer| {
            let settings = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match network.map_err(TlsError::from).and_then(|network| accept(network, peer, &settings)) {
                Ok(Admitted { relay, accepted, theirs, names }) => {
                    let registered = registry.register();
                    deliver(Ok(accepted));
                    registered.delivered();
                    // The reactor sees its end of the pair close, whatever the reason.
                    drop(relay.run(theirs.into(), Some(&registered)));
                    drop(names);
                }
                Err(why) => deliver(Err(Refused { peer, why })),
            }
        };
        Ok(Self { settings, relays, acceptor: Acceptor::start(listener, Share::OF_PORTAL, Arc::new(serve))? })
    }

    /// Returns what makes the portal pause.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn pauser(&self) -> io::Result<PortalPauser> {
        let (places, relays) = (self.acceptor.places().clone(), Arc::clone(&self.relays));
        Ok(PortalPauser { pauser: self.acceptor.pauser()?, places, relays })
    }

    /// Makes the relays of the portal pause, so that their connections can move to another process. The local
    /// sockets keep what is written to them meanwhile.
    pub fn pause_relays(&self) -> PausedRelays {
        self.relays.pause()
    }

    /// Returns how many connections hold a place.
    #[cfg(test)]
    pub(crate) fn connections(&self) -> usize {
        self.acceptor.places().count()
    }

    /// Goes on with a connection that another process gave up.
    pub fn take_over(&self, moved: MovedRelay) {
        let place = self.acceptor.places().take_again(moved.peer());
        let registered = self.relays.register();
        registered.delivered();
        moved.begin_at(place, registered);
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

/// A connection whose handshake is complete, before it is delivered.
struct Admitted {
    relay: Relay,
    accepted: Accepted,
    /// The relay's end of the local socket.
    theirs: UnixStream,
    /// The names in the certificate of the initiator, which are known for as long as this is kept.
    names: Option<Arc<[String]>>,
}

/// Completes the handshake of a connection. The names in the certificate of the initiator come with it, if
/// anyone asks for them.
fn accept(
    network: TcpStream,
    peer: SocketAddr,
    Current { settings, generation }: &Current,
) -> Result<Admitted, TlsError> {
    let local = network.local_addr()?;
    let handshake = Handshake::of_server(&settings.config, network)?;
    let known = settings.client_names();
    let (relay, names) =
        handshake.complete_and(|certificate| known.map(|known| known.record(local, peer, certificate)))?;
    let (socket, theirs) = UnixStream::pair()?;
    let accepted = Accepted { socket, local, peer, generation: *generation };
    Ok(Admitted { relay, accepted, theirs, names })
}
