//! Accepts TCP connections, each for a thread of its own.

use std::io::{self, ErrorKind};
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

/// A listening socket and its thread. Dropping it closes the socket; connections stay.
#[derive(Debug)]
pub struct Acceptor {
    /// Closing it ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Accepts connections on `listener`. One address may hold its `share` of the connections.
    ///
    /// # Errors
    /// The system has no descriptor or no memory left for the thread.
    pub fn start(listener: TcpListener, share: Share, serve: Arc<Serve>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (stop, stopped) = UnixStream::pair()?;
        let work = Work { listener, stopped, serve, share, places: Places::default() };
        let thread = std::thread::Builder::new().name("tls-accept".to_owned()).spawn(move || work.run())?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Acceptor {
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
    serve: Arc<Serve>,
    share: Share,
    places: Places,
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
