//! Connections of portals that have come from another process.

use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::mpsc::{Sender, channel};

use crate::moving::{MovingRelay, Registered};
use crate::places::Place;
use crate::relay::Relay;

/// A connection that another process gives up. Dropping this closes its sockets here, and shuts nothing down.
#[derive(Debug)]
pub struct MovedRelay {
    peer: IpAddr,
    begin: Sender<Begin>,
}

/// Lets the thread of a [`MovedRelay`] begin: with its place and its portal, if that is open.
type Begin = Option<(Place, Registered)>;

impl MovedRelay {
    /// Checks the state of a connection, and starts its thread, which waits.
    ///
    /// # Errors
    /// The state is damaged, or the system has no memory left for the thread.
    pub fn new(moving: MovingRelay) -> io::Result<Self> {
        let MovingRelay { state, network, local } = moving;
        let network = TcpStream::from(network);
        // A connection that was lost meanwhile has no address any more; its relay notices that.
        let peer = network.peer_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |peer| peer.ip());
        let relay = Relay::moved(state, network).map_err(io::Error::other)?;
        let (begin, begun) = channel::<Begin>();
        let work = move || {
            let Ok(begin) = begun.recv() else { return };
            let (_place, registered) = begin.unzip();
            // The reactor sees its end of the pair close, whatever the reason.
            drop(relay.run(local, registered.as_ref()));
        };
        std::thread::Builder::new().name("tls".to_owned()).spawn(work)?;
        Ok(Self { peer, begin })
    }

    pub(crate) const fn peer(&self) -> IpAddr {
        self.peer
    }

    pub(crate) fn begin_at(self, place: Place, registered: Registered) {
        // Its thread waits for this.
        let _ = self.begin.send(Some((place, registered)));
    }

    /// Goes on without its portal, which is not open.
    pub fn begin(self) {
        // Its thread waits for this.
        let _ = self.begin.send(None);
    }
}
