//! Outgoing connections: from `connect` until the peer accepts, refuses, or does not answer in time.
//!
//! The engine reports once that the connect of a socket has finished; the socket itself holds the result.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use base::state_machine::PortalId;
use base::time::Instant;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, getsockname, socket_with, sockopt};

use crate::candidate::Candidate;
use crate::engine::StreamEngine;

#[derive(Default)]
pub(crate) struct Connecting {
    table: BTreeMap<u32, ConnectAttempt>,
    deadlines: BTreeSet<(Instant, u32)>,
    failures: VecDeque<(PortalId, io::Error)>,
    /// Numbers are never reused, so that a late event from the kernel cannot concern a newer attempt.
    next: u32,
}

/// The peer to connect to, and the deadline.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) peer: SocketAddr,
    pub(crate) portal: PortalId,
    pub(crate) deadline: Instant,
}

struct ConnectAttempt {
    socket: Rc<OwnedFd>,
    peer: SocketAddr,
    portal: PortalId,
    deadline: Instant,
}

impl Connecting {
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns the time at which [`Self::end_overdue`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Returns the next connection attempt that failed.
    pub(crate) fn next_failure(&mut self) -> Option<(PortalId, io::Error)> {
        self.failures.pop_front()
    }

    pub(crate) fn failed(&mut self, portal: PortalId, why: io::Error) {
        self.failures.push_back((portal, why));
    }

    /// Starts a connection attempt.
    pub(crate) fn start(&mut self, engine: &mut dyn StreamEngine, call: Call) {
        if let Err(why) = self.try_start(engine, call) {
            self.failed(call.portal, why);
        }
    }

    fn try_start(&mut self, engine: &mut dyn StreamEngine, call: Call) -> io::Result<()> {
        let Call { peer, portal, deadline } = call;
        let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = Rc::new(socket_with(family, SocketType::STREAM, flags, None)?);
        match connect(&socket, &peer) {
            // A peer on this host may have accepted already; then the engine reports it at once.
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let number = self.next;
        engine.watch_connect(number, Rc::clone(&socket))?;
        self.next = self.next.wrapping_add(1);
        self.deadlines.insert((deadline, number));
        self.table.insert(number, ConnectAttempt { socket, peer, portal, deadline });
        Ok(())
    }

    /// Handles the end of a connection attempt. Returns the connection if it succeeded.
    pub(crate) fn over(&mut self, number: u32) -> Option<Candidate> {
        let attempt = self.take(number)?;
        match sockopt::socket_error(&attempt.socket) {
            // No process listens on the port, and the system chose that very port as our own: the socket is
            // connected to itself.
            Ok(Ok(())) if is_own(&attempt) => {
                self.failed(attempt.portal, io::ErrorKind::ConnectionRefused.into());
                None
            }
            // The engine has dropped its reference, so this is the only one.
            Ok(Ok(())) => match Rc::try_unwrap(attempt.socket) {
                Ok(socket) => {
                    let (peer, portal) = (attempt.peer, attempt.portal);
                    Some(Candidate { socket, local: None, peer, portal, is_taken_over: false })
                }
                Err(_) => {
                    self.failed(attempt.portal, io::Error::other("the socket is still in use"));
                    None
                }
            },
            Ok(Err(errno)) | Err(errno) => {
                self.failed(attempt.portal, errno.into());
                None
            }
        }
    }

    /// Ends the attempts that were not answered in time.
    pub(crate) fn end_overdue(&mut self, engine: &mut dyn StreamEngine, now: Instant) {
        while let Some((_, number)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            engine.unwatch_connect(number);
            if let Some(attempt) = self.take(number) {
                self.failed(attempt.portal, io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Ends every attempt without reporting a failure.
    pub(crate) fn end_all(&mut self, engine: &mut dyn StreamEngine) {
        for number in std::mem::take(&mut self.table).into_keys() {
            engine.unwatch_connect(number);
        }
        self.deadlines.clear();
        self.failures.clear();
    }

    fn take(&mut self, number: u32) -> Option<ConnectAttempt> {
        let attempt = self.table.remove(&number)?;
        self.deadlines.remove(&(attempt.deadline, number));
        Some(attempt)
    }
}

/// Returns whether a socket is connected to itself.
fn is_own(attempt: &ConnectAttempt) -> bool {
    getsockname(&attempt.socket).is_ok_and(|own| SocketAddr::try_from(own) == Ok(attempt.peer))
}
