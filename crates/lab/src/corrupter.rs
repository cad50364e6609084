//! A relay between an initiator and a target that damages exactly one PDU at a time, after TCP has checked
//! it, and knows exactly what it did.
//!
//! [`Corrupter::arm`] arms one [`Fault`]. The next PDU that fits is damaged, and all others pass unchanged.
//! [`Corrupter::disarm`] returns the ground truth: the bytes before and after, and what the corrupter saw on
//! the wire since: Reject PDUs with their reasons, SNACK Requests, PDUs that were sent again, and connections
//! that were closed. It finds the PDUs with [`netem::iscsi`].

pub mod fault;
mod pump;

use std::collections::BTreeSet;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use netem::stream::{PduLayout, StreamDirection};

use fault::{Fault, Injection};

/// A running corrupter. Dropping it closes its connections and ends its threads.
#[derive(Debug)]
pub struct Corrupter {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

/// The ground truth of the time between [`Corrupter::arm`] and [`Corrupter::disarm`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passage {
    /// What was damaged; `None` if no PDU fitted.
    pub injection: Option<Injection>,
    /// What was seen on the wire.
    pub seen: Seen,
}

/// What a corrupter saw on the wire while it was armed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The reasons of the Reject PDUs (RFC 7143 §11.17.1), in order.
    pub rejects: Vec<u8>,
    /// SNACK Requests.
    pub snacks: u32,
    /// PDUs with commands, data or statuses that their sender sent again.
    pub resent: u32,
    /// Connections that the initiator closed first.
    pub closed_by_initiator: u32,
    /// Connections that the target closed first.
    pub closed_by_target: u32,
    /// Connections that the initiator opened.
    pub opened: u32,
}

impl Seen {
    /// Returns whether one of the ends reacted to an error.
    pub fn is_reaction(&self) -> bool {
        let Self { rejects, snacks, resent, closed_by_initiator, closed_by_target, opened } = self;
        !rejects.is_empty() || snacks + resent + closed_by_initiator + closed_by_target + opened > 0
    }
}

/// What the threads of a corrupter share.
#[derive(Debug, Default)]
struct Shared {
    ends: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    fault: Option<Fault>,
    /// How many fitting PDUs still pass before the fault.
    skip: u32,
    passage: Passage,
    /// How many connections there were, and the number of the newest one when the corrupter was armed. Older
    /// ones belong to passages before this one: their ends may be seen late.
    connections: u64,
    armed_at: u64,
    /// The identity of every PDU since the corrupter was armed, by which a repetition is detected.
    identities: BTreeSet<[u8; 16]>,
    /// The open sockets, to be shut down at the end.
    sockets: Vec<TcpStream>,
}

/// The time limit for connecting to the target. A target with a short queue of connections leaves those
/// beyond it without an answer until it has accepted others: istgt has a queue of two and takes seconds for
/// each.
const CONNECT_MAX: Duration = Duration::from_secs(30);

impl Corrupter {
    /// Listens on a free port of 127.0.0.1 and relays every connection to `target`.
    ///
    /// # Errors
    /// When no port can be bound or no thread can be started.
    pub fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let acceptor = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("corrupter".into())
                .spawn(move || accept(&listener, target, &shared))?
        };
        Ok(Self { shared, address, acceptor: Some(acceptor) })
    }

    /// Returns the address that the initiator connects to.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts a new passage with one fault, or with none, which only observes.
    pub fn arm(&self, fault: Option<Fault>) {
        self.shared.state().arm(fault);
    }

    /// Ends the passage.
    pub fn disarm(&self) -> Passage {
        let mut state = self.shared.state();
        state.fault = None;
        std::mem::take(&mut state.passage)
    }
}

impl Drop for Corrupter {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        // A connection wakes the acceptor.
        let _ = TcpStream::connect_timeout(&self.address, CONNECT_MAX);
        for socket in std::mem::take(&mut self.shared.state().sockets) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }
}

impl State {
    fn arm(&mut self, fault: Option<Fault>) {
        self.skip = fault.as_ref().map_or(0, |fault| fault.skip);
        self.fault = fault;
        self.passage = Passage::default();
        self.armed_at = self.connections;
        self.identities.clear();
    }

    /// Counts a connection. Returns its number.
    fn note_open(&mut self) -> u64 {
        self.connections += 1;
        self.passage.seen.opened += 1;
        self.connections
    }

    /// Returns whether an event of a connection belongs to this passage.
    const fn is_of_passage(&self, connection: u64) -> bool {
        connection >= self.armed_at
    }

    /// Returns the bytes to send for a PDU, after recording it.
    fn pass(
        &mut self,
        connection: u64,
        way: StreamDirection,
        pdu: &[u8],
        layout: &PduLayout,
    ) -> Option<Vec<u8>> {
        if !self.is_of_passage(connection) {
            return None;
        }
        if !layout.is_login {
            self.observe(pdu);
        }
        let fault = self.fault.as_ref().filter(|fault| fault.concerns(way, pdu, layout))?;
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        let (bytes, injection) = fault.inject(pdu, layout)?;
        self.fault = None;
        self.passage.injection = Some(injection);
        Some(bytes)
    }

    fn observe(&mut self, pdu: &[u8]) {
        let Some(bhs) = pdu.first_chunk::<48>() else { return };
        let seen = &mut self.passage.seen;
        match bhs[0] & 0x3f {
            REJECT => seen.rejects.push(bhs[2]),
            SNACK => seen.snacks += 1,
            _ => {}
        }
        if let Some(identity) = identity(bhs)
            && !self.identities.insert(identity)
        {
            seen.resent += 1;
        }
    }

    fn note_close(&mut self, connection: u64, by: StreamDirection) {
        if !self.is_of_passage(connection) {
            return;
        }
        match by {
            StreamDirection::Forward => self.passage.seen.closed_by_initiator += 1,
            StreamDirection::Backward => self.passage.seen.closed_by_target += 1,
        }
    }
}

const REJECT: u8 = 0x3f;
const SNACK: u8 = 0x10;

/// Returns what is the same in two PDUs only if one is a repetition of the other: the opcode, the task tag,
/// and the CmdSN, the StatSN, or the DataSN with the buffer offset. `None` for PDUs that carry no command,
/// data or status.
fn identity(bhs: &[u8; 48]) -> Option<[u8; 16]> {
    let opcode = bhs[0] & 0x3f;
    let numbers = match opcode {
        0x01 | 0x21 => 24..32,
        0x05 | 0x25 => 36..44,
        _ => return None,
    };
    let mut identity = [opcode; 16];
    // A command's second number is ExpStatSN, and a response's is ExpCmdSN, which may differ when it is sent
    // again.
    let kept = if matches!(opcode, 0x01 | 0x21) { 4 } else { 8 };
    identity.get_mut(4..8)?.copy_from_slice(bhs.get(16..20)?);
    identity.get_mut(8..8 + kept)?.copy_from_slice(bhs.get(numbers)?.get(..kept)?);
    Some(identity)
}

/// Accepts connections until the corrupter ends, then waits for their threads.
fn accept(listener: &TcpListener, target: SocketAddr, shared: &Arc<Shared>) {
    let mut pumps: Vec<JoinHandle<()>> = Vec::new();
    while let Ok((initiator, _)) = listener.accept() {
        if shared.ends() {
            break;
        }
        pumps.retain(|pump| !pump.is_finished());
        if let Ok(target) = TcpStream::connect_timeout(&target, CONNECT_MAX) {
            let number = shared.state().note_open();
            pumps.extend(pump::start(number, initiator, target, shared).unwrap_or_default());
        }
    }
    for pump in pumps {
        let _ = pump.join();
    }
}

#[cfg(test)]
mod tests;
