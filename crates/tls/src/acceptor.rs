//! Accepts TCP connections, each for a thread of its own.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::places::{Places, Share};

/// How long no connection is accepted when the system has no descriptor or memory left.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Serves a connection until its end, or says why it has no thread: the system has no memory for one, or
/// there are too many connections. An error comes from the thread that accepts, which must not wait.
pub type Serve = dyn Fn(io::Result<TcpStream>, SocketAddr) + Send + Sync;

/// What the thread of an acceptor is told, one byte each.
const PAUSE: u8 = b'p';
const GO_ON: u8 = b'g';
const END: u8 = b'e';

/// A listening socket and its thread. Dropping it closes the socket; connections stay.
#[derive(Debug)]
pub struct Acceptor {
    orders: UnixStream,
    places: Places,
    thread: Option<JoinHandle<()>>,
}

/// Makes an acceptor pause.
#[derive(Debug)]
pub struct Pauser(UnixStream);

impl Pauser {
    /// Stops accepting connections, or goes on. Connections that peers make meanwhile wait in the kernel,
    /// also for another process that accepts on the same socket. Handshakes under way go on.
    pub fn pause(&self, is_paused: bool) {
        // It fails if the thread has ended.
        let _ = (&self.0).write_all(&[if is_paused { PAUSE } else { GO_ON }]);
    }
}

impl Acceptor {
    /// Accepts connections on `listener`. One address may hold its `share` of the connections.
    ///
    /// # Errors
    /// The system has no descriptor or no memory left for the thread.
    pub fn start(listener: TcpListener, share: Share, serve: Arc<Serve>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (orders, ordered) = UnixStream::pair()?;
        let places = Places::default();
        let work = Work { listener, ordered, serve, share, places: places.clone() };
        let thread = std::thread::Builder::new().name("tls-accept".to_owned()).spawn(move || work.run())?;
        Ok(Self { orders, places, thread: Some(thread) })
    }

    /// Returns what makes the acceptor pause.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn pauser(&self) -> io::Result<Pauser> {
        self.orders.try_clone().map(Pauser)
    }

    /// Returns where connections are counted.
    pub(crate) const fn places(&self) -> &Places {
        &self.places
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // It fails if the thread has ended.
        let _ = self.orders.write_all(&[END]);
        if let Some(thread) = self.thread.take() {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

struct Work {
    listener: TcpListener,
    ordered: UnixStream,
    serve: Arc<Serve>,
    share: Share,
    places: Places,
}

impl Work {
    fn run(self) {
        let mut is_paused = false;
        loop {
            let mut fds = vec![PollFd::new(&self.ordered, PollFlags::IN)];
            if !is_paused {
                fds.push(PollFd::new(&self.listener, PollFlags::IN));
            }
            if poll(&mut fds, None).is_err_and(|why| why != rustix::io::Errno::INTR) {
                std::thread::sleep(ACCEPT_REST);
            }
            if fds.first().is_some_and(|ordered| !ordered.revents().is_empty()) {
                let mut order = [0];
                match (&self.ordered).read(&mut order) {
                    Ok(1) if order == [PAUSE] => is_paused = true,
                    Ok(1) if order == [GO_ON] => is_paused = false,
                    Err(why) if why.kind() == ErrorKind::Interrupted => {}
                    // The acceptor was dropped.
                    _ => return,
                }
            }
            if is_paused {
                continue;
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
        let place = match self.places.take(peer.ip(), self.share) {
            Ok(place) => place,
            Err(why) => return (self.serve)(Err(io::Error::other(why)), peer),
        };
        let serve = Arc::clone(&self.serve);
        let work = move || {
            // It is given back at the end of the thread.
            let _place = place;
            serve(Ok(network), peer);
        };
        if let Err(why) = std::thread::Builder::new().name("tls".to_owned()).spawn(work) {
            (self.serve)(Err(why), peer);
        }
    }
}

/// Returns whether an accept failed because no connection waits any more.
fn is_harmless(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted | ConnectionReset)
}
