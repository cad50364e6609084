//! Connections that initiators make to a portal.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustls::ServerConnection;

use crate::relay::Relay;
use crate::{CONNECTIONS_MAX, ServerSettings, TlsError};

/// How long the portal stops accepting when the system has no descriptor or memory left.
const ACCEPT_REST: Duration = Duration::from_millis(100);

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
    /// Closing it ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Portal {
    /// Accepts connections on `listener`.
    ///
    /// # Errors
    /// The system has no descriptor or no memory left for the thread.
    pub fn start(listener: TcpListener, settings: ServerSettings, deliver: Arc<Deliver>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (stop, stopped) = UnixStream::pair()?;
        let settings = Arc::new(Mutex::new(settings));
        let work = Work { listener, stopped, settings: Arc::clone(&settings), deliver, open: Arc::default() };
        let thread = std::thread::Builder::new().name("tls-portal".to_owned()).spawn(move || work.run())?;
        Ok(Self { settings, stop: Some(stop), thread: Some(thread) })
    }

    /// Uses other settings for the connections that follow.
    pub fn change(&self, settings: ServerSettings) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings;
    }
}

impl Drop for Portal {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

struct Work {
    listener: TcpListener,
    stopped: UnixStream,
    settings: Arc<Mutex<ServerSettings>>,
    deliver: Arc<Deliver>,
    /// How many connections are open.
    open: Arc<AtomicUsize>,
}

impl Work {
    fn run(self) {
        loop {
            let mut fds =
                [PollFd::new(&self.stopped, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
            if poll(&mut fds, None).is_err_and(|why| why != rustix::io::Errno::INTR) {
                std::thread::sleep(ACCEPT_REST);
            }
            let [stopped, _] = &fds;
            if !stopped.revents().is_empty() {
                return;
            }
            match self.listener.accept() {
                Ok((network, peer)) => self.admit(network, peer),
                Err(why) if is_harmless(&why) => {}
                // No descriptor or memory is left. Others may give some back.
                Err(_) => std::thread::sleep(ACCEPT_REST),
            }
        }
    }

    /// Starts the thread of a connection, or closes the connection where there are too many.
    fn admit(&self, network: TcpStream, peer: SocketAddr) {
        let place = Place::take(&self.open);
        let Some(place) = place else { return };
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let deliver = Arc::clone(&self.deliver);
        let serve = move || {
            // It is given back at the end of the thread.
            let _place = place;
            match accept(network, peer, &settings) {
                Ok((relay, accepted, theirs)) => {
                    deliver(Ok(accepted));
                    // The reactor sees its end of the pair close, whatever the reason.
                    drop(relay.run(theirs));
                }
                Err(why) => deliver(Err(Refused { peer, why })),
            }
        };
        if let Err(why) = std::thread::Builder::new().name("tls".to_owned()).spawn(serve) {
            (self.deliver)(Err(Refused { peer, why: why.into() }));
        }
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

/// Returns whether an accept failed because no connection waits any more.
fn is_harmless(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted | ConnectionReset)
}

/// A place among the connections of a portal. Dropping it gives it back.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(open: &Arc<AtomicUsize>) -> Option<Self> {
        // Only the thread that accepts adds connections, so that the count cannot exceed the bound.
        if open.load(Ordering::Acquire) >= CONNECTIONS_MAX {
            return None;
        }
        open.fetch_add(1, Ordering::AcqRel);
        Some(Self(Arc::clone(open)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
