//! Connections that we ask for: from the call to the moment the peer takes it, refuses it, or keeps silent too long.
//!
//! The engine says once that a socket's connecting is over; what came of it the socket knows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use base::state_machine::PortalId;
use base::time::Instant;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, getsockname, socket_with, sockopt};

use crate::connections::Candidate;
use crate::engine::Engine;

#[derive(Default)]
pub(crate) struct Connecting {
    table: BTreeMap<u32, ConnectAttempt>,
    deadlines: BTreeSet<(Instant, u32)>,
    failures: VecDeque<(PortalId, io::Error)>,
    /// Numbers are not used again, so that a late word of the kernel about one concerns nobody else.
    next: u32,
}

/// Whom to call, and for how long.
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

    /// Returns when [`Self::end_overdue`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Returns the next call that came to nothing.
    pub(crate) fn next_failure(&mut self) -> Option<(PortalId, io::Error)> {
        self.failures.pop_front()
    }

    pub(crate) fn failed(&mut self, portal: PortalId, why: io::Error) {
        self.failures.push_back((portal, why));
    }

    /// Starts a call.
    pub(crate) fn start(&mut self, engine: &mut dyn Engine, call: Call) {
        if let Err(why) = self.try_start(engine, call) {
            self.failed(call.portal, why);
        }
    }

    fn try_start(&mut self, engine: &mut dyn Engine, call: Call) -> io::Result<()> {
        let Call { peer, portal, deadline } = call;
        let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = Rc::new(socket_with(family, SocketType::STREAM, flags, None)?);
        match connect(&socket, &peer) {
            // A peer on this host may have taken it already; the engine will say so at once.
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

    /// Takes note that a call is over. Returns the connection if there is one.
    pub(crate) fn over(&mut self, number: u32) -> Option<Candidate> {
        let attempt = self.take(number)?;
        match sockopt::socket_error(&attempt.socket) {
            // Nobody listens, and the system gave us the very port that we called: we are talking to ourselves.
            Ok(Ok(())) if is_own(&attempt) => {
                self.failed(attempt.portal, io::ErrorKind::ConnectionRefused.into());
                None
            }
            // The engine has let go of it, so that nobody else holds it.
            Ok(Ok(())) => match Rc::try_unwrap(attempt.socket) {
                Ok(socket) => Some(Candidate { socket, peer: attempt.peer, portal: attempt.portal }),
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

    /// Gives up the calls that nobody answered in time.
    pub(crate) fn end_overdue(&mut self, engine: &mut dyn Engine, now: Instant) {
        while let Some((_, number)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            engine.unwatch_connect(number);
            if let Some(attempt) = self.take(number) {
                self.failed(attempt.portal, io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Gives every call up, without a word.
    pub(crate) fn end_all(&mut self, engine: &mut dyn Engine) {
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

/// Returns whether both ends of a connection are the same.
fn is_own(attempt: &ConnectAttempt) -> bool {
    getsockname(&attempt.socket).is_ok_and(|own| SocketAddr::try_from(own) == Ok(attempt.peer))
}
