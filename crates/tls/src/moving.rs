//! Connections of portals that move to another process.
//!
//! [`Portal::pause_relays`](crate::Portal::pause_relays) stops the relays of a portal between two records.
//! Each keeps its thread and its state, and tells what another process needs to go on ([`MovingRelay`]). That
//! process makes a [`MovedRelay`](crate::MovedRelay) of it, which does nothing before
//! [`Portal::take_over`](crate::Portal::take_over). Then the relays here end ([`PausedRelays::leave`]), and
//! shut nothing down. If the other process does not take them over, they go on as if nothing had been
//! ([`PausedRelays`] is dropped).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use zeroize::Zeroizing;

use crate::record::RecordState;

/// The state of a relay between two records. It contains the secrets of the connection, so it must not be
/// stored or logged.
#[derive(Clone, PartialEq, Eq)]
pub struct RelayState {
    /// The state of the record layer.
    pub records: RecordState,
    /// Received bytes whose records are not processed.
    pub received: Vec<u8>,
    /// Whether nothing more can be received.
    pub network_ended: bool,
    /// Whether the other end has said that it sends nothing more.
    pub is_closed: bool,
    /// Decrypted bytes that the local end has not taken.
    pub incoming: Zeroizing<Vec<u8>>,
    /// Whether the local end knows that nothing more comes.
    pub incoming_ended: bool,
    /// Bytes of the local end that are not encrypted.
    pub outgoing: Zeroizing<Vec<u8>>,
    /// Whether the local end has ended.
    pub outgoing_ended: bool,
    /// Records that are not sent.
    pub unsent: Vec<u8>,
}

/// A connection that is to move.
pub struct MovingRelay {
    /// Its state.
    pub state: RelayState,
    /// The TCP socket.
    pub network: OwnedFd,
    /// The relay's end of the pair of local sockets.
    pub local: OwnedFd,
}

impl std::fmt::Debug for MovingRelay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MovingRelay").field("network", &self.network).finish_non_exhaustive()
    }
}

/// The relays of a portal.
#[derive(Debug)]
pub(crate) struct Relays {
    /// Is readable while the relays pause or have ended.
    signal: OwnedFd,
    shared: Mutex<Shared>,
    /// A relay has paused or ended.
    arrived: Condvar,
    /// The relays need not pause any more.
    resumed: Condvar,
}

#[derive(Debug)]
struct Shared {
    phase: Phase,
    /// The number of the last pause.
    round: u64,
    /// How many relays there are.
    running: usize,
    /// How many of them have connections that are not passed to a reactor yet.
    undelivered: usize,
    /// How many of them pause.
    parked: usize,
    /// What those have told.
    moving: Vec<io::Result<MovingRelay>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Relaying,
    Paused,
    /// Another process has the connections.
    Left,
}

impl Relays {
    /// # Errors
    /// The system has no descriptor left.
    pub(crate) fn new() -> io::Result<Self> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Shared {
            phase: Phase::Relaying,
            round: 0,
            running: 0,
            undelivered: 0,
            parked: 0,
            moving: Vec::new(),
        };
        Ok(Self { signal, shared: Mutex::new(shared), arrived: Condvar::new(), resumed: Condvar::new() })
    }

    /// Registers the relay of a connection that is delivered next.
    pub(crate) fn register(self: &Arc<Self>) -> Registered {
        let mut shared = self.lock();
        (shared.running, shared.undelivered) = (shared.running + 1, shared.undelivered + 1);
        Registered(Arc::clone(self))
    }

    /// Returns how many of so many connections are not delivered yet.
    pub(crate) fn undelivered_of(&self, connections: usize) -> usize {
        let shared = self.lock();
        connections.saturating_sub(shared.running) + shared.undelivered
    }

    pub(crate) fn pause(self: &Arc<Self>) -> PausedRelays {
        let mut shared = self.lock();
        shared.round += 1;
        (shared.phase, shared.parked) = (Phase::Paused, 0);
        shared.moving.clear();
        // It cannot fail: nobody else writes so much.
        let _ = rustix::io::write(&self.signal, &1_u64.to_ne_bytes());
        PausedRelays { relays: Arc::clone(self), is_left: false }
    }

    fn end_pause(&self, phase: Phase) {
        let mut shared = self.lock();
        shared.phase = phase;
        shared.moving.clear();
        if phase == Phase::Relaying {
            // It fails if nothing was written.
            let _ = rustix::io::read(&self.signal, &mut [0; 8]);
        }
        self.resumed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One relay of a portal. Dropping this says that it has ended.
#[derive(Debug)]
pub(crate) struct Registered(Arc<Relays>);

impl Registered {
    /// Records that the connection was passed to a reactor.
    pub(crate) fn delivered(&self) {
        self.0.lock().undelivered -= 1;
    }

    /// Returns what is readable while the relays are to pause.
    pub(crate) fn signal(&self) -> &OwnedFd {
        &self.0.signal
    }

    /// Pauses, if the relays still are to do so. Returns whether this relay goes on.
    pub(crate) fn park(&self, moving: impl FnOnce() -> io::Result<MovingRelay>) -> bool {
        let mut shared = self.0.lock();
        if shared.phase == Phase::Paused {
            let round = shared.round;
            let told = moving();
            shared.moving.push(told);
            shared.parked += 1;
            self.0.arrived.notify_all();
            while shared.phase == Phase::Paused && shared.round == round {
                shared = self.0.resumed.wait(shared).unwrap_or_else(PoisonError::into_inner);
            }
        }
        shared.phase != Phase::Left
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
        self.0.arrived.notify_all();
    }
}

/// The relays of a portal, which pause. Dropping this makes them go on.
#[derive(Debug)]
pub struct PausedRelays {
    relays: Arc<Relays>,
    is_left: bool,
}

impl PausedRelays {
    /// Waits until every relay pauses, and returns all of them.
    ///
    /// # Errors
    /// The system has no descriptor left, or a relay does not pause before `deadline`.
    pub fn wait(&self, deadline: Instant) -> io::Result<Vec<MovingRelay>> {
        let mut shared = self.relays.lock();
        while shared.parked < shared.running {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let waited = self.relays.arrived.wait_timeout(shared, left);
            shared = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::take(&mut shared.moving).into_iter().collect()
    }

    /// Returns how many relays there are.
    #[cfg(test)]
    pub(crate) fn relays(&self) -> usize {
        self.relays.lock().running
    }

    /// Ends the relays, because another process goes on with their connections.
    pub fn leave(mut self) {
        self.is_left = true;
    }
}

impl Drop for PausedRelays {
    fn drop(&mut self) {
        self.relays.end_pause(if self.is_left { Phase::Left } else { Phase::Relaying });
    }
}
