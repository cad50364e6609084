//! Messages from other threads to a reactor.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::ether::EtherPort;
use base::state_machine::{ConnId, MediumId, PortalId};
use base::time::Instant;

use crate::config::Limits;
use crate::ether::PortSocket;
use crate::stats::{Published, Stats};
use crate::waker::Waker;

/// Work for the reactor's thread.
pub type Job<M> = Box<dyn FnOnce(&mut M, Instant) + Send>;

/// Work for the reactor's thread after it has taken over connections: it gets their numbers, in order, or the
/// reason why one of them cannot be used.
pub type TakeOverJob<M> = Box<dyn FnOnce(&mut M, Instant, io::Result<Vec<ConnId>>) + Send>;

/// What receives the sockets of connections.
type SocketsReply = Box<dyn FnOnce(io::Result<Vec<OwnedFd>>) + Send>;

/// The reactor has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reactor has stopped")]
pub struct Stopped;

/// Sends messages to a reactor from any thread. Clones reach the same reactor.
pub struct Handle<M> {
    message_queue: Arc<MessageQueue<M>>,
}

pub(crate) struct MessageQueue<M> {
    messages: Mutex<Option<Vec<Message<M>>>>,
    pub(crate) waker: Arc<Waker>,
    pub(crate) published: Published,
}

pub(crate) enum Message<M> {
    Run(Job<M>),
    Adopt(Adoption),
    TakeOver(Vec<Adoption>, TakeOverJob<M>),
    Accept(bool),
    Park(Job<M>),
    Unpark,
    Sockets(Vec<ConnId>, SocketsReply),
    Listen(TcpListener, PortalId),
    Unlisten(PortalId),
    OpenPort(EtherPort, PortSocket),
    ClosePort(EtherPort),
    Watch(MediumId, OwnedFd),
    Unwatch(MediumId),
    Limit(Limits),
    Stop(Duration),
}

/// A connection that another thread accepted or made: a TCP socket, or a local socket through which another
/// thread relays such a connection.
#[derive(Debug)]
pub struct Adoption {
    /// The socket.
    pub socket: OwnedFd,
    /// The portal that accepted it, or the number that the caller gave to its attempt to connect.
    pub portal: PortalId,
    /// The address of this end of the TCP connection.
    pub local: SocketAddr,
    /// The address of the peer.
    pub peer: SocketAddr,
    /// The bytes that were already received.
    pub bytes: Vec<u8>,
}

impl<M> Handle<M> {
    pub(crate) fn new(message_queue: Arc<MessageQueue<M>>) -> Self {
        Self { message_queue }
    }

    /// Runs `job` on the thread of the reactor, between two events. Then the state machine is drained.
    ///
    /// # Errors
    /// [`Stopped`]; the job is dropped.
    pub fn post(&self, job: impl FnOnce(&mut M, Instant) + Send + 'static) -> Result<(), Stopped> {
        self.message_queue.put(Message::Run(Box::new(job)))
    }

    /// Gives the reactor an open connection. The reactor treats it like one that it accepted or made itself;
    /// its limits apply.
    ///
    /// # Errors
    /// [`Stopped`]; the connection is closed.
    pub fn adopt(&self, adoption: Adoption) -> Result<(), Stopped> {
        self.message_queue.put(Message::Adopt(adoption))
    }

    /// Gives the reactor connections that another process served, and runs `job` on its thread before
    /// anything is received from them. The limits on connections count them and do not end them. The `bytes`
    /// of each must be empty: what the peer sent is in its socket.
    ///
    /// # Errors
    /// [`Stopped`]; the connections are closed and the job is dropped.
    pub fn take_over(
        &self,
        connections: Vec<Adoption>,
        job: impl FnOnce(&mut M, Instant, io::Result<Vec<ConnId>>) + Send + 'static,
    ) -> Result<(), Stopped> {
        self.message_queue.put(Message::TakeOver(connections, Box::new(job)))
    }

    /// Makes the reactor stop accepting connections, or accept them again. Connections that peers make
    /// meanwhile wait in the kernel. Those that the kernel has accepted already may still be admitted.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn accept(&self, accepts: bool) -> Result<(), Stopped> {
        self.message_queue.put(Message::Accept(accepts))
    }

    /// Makes the reactor stop using its sockets and driving its state machine, and runs `job` on its thread
    /// once no operation is under way. Messages are still handled. Connections that peers make meanwhile wait
    /// in the kernel; frames are lost.
    ///
    /// A peer that accepts no data, or a medium that is slow, delays the job without limit:
    /// [`Self::unpark`] then drops it.
    ///
    /// # Errors
    /// [`Stopped`]; the job is dropped.
    pub fn park(&self, job: impl FnOnce(&mut M, Instant) + Send + 'static) -> Result<(), Stopped> {
        self.message_queue.put(Message::Park(Box::new(job)))
    }

    /// Makes the reactor go on after [`Self::park`].
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn unpark(&self) -> Result<(), Stopped> {
        self.message_queue.put(Message::Unpark)
    }

    /// Gives another descriptor of the socket of each of these connections to `reply`, on the thread of the
    /// reactor. While the reactor is parked, it does not use the sockets itself.
    ///
    /// # Errors
    /// [`Stopped`]; `reply` is dropped.
    pub fn sockets(
        &self,
        connections: Vec<ConnId>,
        reply: impl FnOnce(io::Result<Vec<OwnedFd>>) + Send + 'static,
    ) -> Result<(), Stopped> {
        self.message_queue.put(Message::Sockets(connections, Box::new(reply)))
    }

    /// Makes the reactor accept connections from `listener`.
    ///
    /// # Errors
    /// [`Stopped`]; the listener is closed.
    pub fn listen(&self, listener: TcpListener, portal: PortalId) -> Result<(), Stopped> {
        self.message_queue.put(Message::Listen(listener, portal))
    }

    /// Makes the reactor close every listener of `portal`. Its connections stay.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn unlisten(&self, portal: PortalId) -> Result<(), Stopped> {
        self.message_queue.put(Message::Unlisten(portal))
    }

    /// Gives the reactor an Ethernet port.
    ///
    /// # Errors
    /// [`Stopped`]; the port is closed.
    pub fn open_port(&self, port: EtherPort, socket: PortSocket) -> Result<(), Stopped> {
        self.message_queue.put(Message::OpenPort(port, socket))
    }

    /// Makes the reactor close a port.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn close_port(&self, port: EtherPort) -> Result<(), Stopped> {
        self.message_queue.put(Message::ClosePort(port))
    }

    /// Makes the reactor call [`base::state_machine::StreamMachine::medium_ready`] whenever a process signals
    /// the eventfd, which does not block. It replaces the one that was given for this medium before.
    ///
    /// # Errors
    /// [`Stopped`]; the eventfd is closed.
    pub fn watch(&self, medium: MediumId, event: OwnedFd) -> Result<(), Stopped> {
        self.message_queue.put(Message::Watch(medium, event))
    }

    /// Makes the reactor close the eventfd of a medium.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn unwatch(&self, medium: MediumId) -> Result<(), Stopped> {
        self.message_queue.put(Message::Unwatch(medium))
    }

    /// Makes the reactor apply other limits from now on. No connection is ended because of them.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn limit(&self, limits: Limits) -> Result<(), Stopped> {
        self.message_queue.put(Message::Limit(limits))
    }

    /// Makes the reactor close its listeners, wait until all connections have ended, and return from `run`.
    /// Connections that are still open when `drain` has passed are ended with
    /// [`base::state_machine::DisconnectReason::Shutdown`]. To end sessions in order, tell the state machine
    /// first, with [`Self::post`].
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn stop(&self, drain: Duration) -> Result<(), Stopped> {
        self.message_queue.put(Message::Stop(drain))
    }

    /// Returns the reactor's counters as of its last turn.
    pub fn stats(&self) -> Stats {
        self.message_queue.published.load()
    }
}

impl<M> Clone for Handle<M> {
    fn clone(&self) -> Self {
        Self { message_queue: Arc::clone(&self.message_queue) }
    }
}

impl<M> std::fmt::Debug for Handle<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}

impl<M> MessageQueue<M> {
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        Self { messages: Mutex::new(Some(Vec::new())), waker, published: Published::default() }
    }

    /// Returns the messages that were queued since the last call.
    pub(crate) fn take(&self) -> Vec<Message<M>> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Refuses messages from now on, and drops those that are queued.
    pub(crate) fn close(&self) {
        let waiting = self.messages.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(waiting);
    }

    fn put(&self, message: Message<M>) -> Result<(), Stopped> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.as_mut().ok_or(Stopped)?.push(message);
        drop(messages);
        self.waker.wake();
        Ok(())
    }
}
