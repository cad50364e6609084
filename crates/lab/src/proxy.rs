//! A fault-injecting proxy for iSCSI connections. It damages data above TCP: it flips bits in headers, data
//! and digests, drops or duplicates PDUs, and stalls, silences or cuts connections.
//!
//! A [`netem::stream::StreamPlan`] for each direction says which faults happen, in the notation of
//! [`faults`]; the simulator runs the same plans. Each connection has its own thread, which moves bytes
//! between two sockets and a [`netem::stream::StreamLink`]. The n-th connection of a proxy has a random
//! generator seeded from the proxy's seed and n, and draws once for each PDU. So a seed injects the same
//! faults into the same PDUs, however TCP segments the stream.

pub mod faults;
mod relay;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use base::rng::Rng;
use netem::stream::{FaultKind, InjectedFault, StreamDirection};
use serde::Serialize;

use faults::Faults;

/// How often waiting threads check whether the proxy ends; a new plan takes effect within this time.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The most connections at a time; the proxy closes further ones as soon as it accepts them.
pub const CONNECTIONS_MAX: usize = 1024;

/// A callback that receives each fault.
pub type FaultHandler = fn(&InjectedFault);

/// A running proxy. Dropping it ends the proxy.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

/// The state that the threads of a proxy share.
#[derive(Debug)]
struct Shared {
    ends: AtomicBool,
    /// [`Proxy::replan`] increments this generation, by which connections detect that their plan is old.
    plan_generation: AtomicU64,
    faults: Mutex<Faults>,
    counts: Counts,
    watch: Option<FaultHandler>,
}

/// The counters of a proxy.
#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    open: AtomicU64,
    refused: AtomicU64,
    /// By direction, then by kind, in the order of [`FaultKind::ALL`].
    faults: [[AtomicU64; FaultKind::ALL.len()]; 2],
    bytes: [AtomicU64; 2],
    /// PDUs by direction, then by what is damaged: headers, data.
    damaged: [[AtomicU64; 2]; 2],
}

/// The counters of a proxy, as a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProxyReport {
    /// Connections accepted.
    pub connections: u64,
    /// Connections closed because the target could not be reached, or because too many were open.
    pub refused: u64,
    /// From initiator to target.
    pub requests: DirectionCounts,
    /// From target to initiator.
    pub responses: DirectionCounts,
}

/// The counters of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DirectionCounts {
    /// Bytes received, before any fault.
    pub bytes: u64,
    /// PDUs with flipped bits in the header.
    pub header: u64,
    /// PDUs with flipped bits in the header digest.
    pub header_digest: u64,
    /// PDUs with flipped bits in the data.
    pub data: u64,
    /// PDUs with flipped bits in the data digest.
    pub data_digest: u64,
    /// PDUs dropped.
    pub drop: u64,
    /// PDUs duplicated.
    pub duplicate: u64,
    /// Stalls: times that the proxy delivered nothing for a while.
    pub stall: u64,
    /// Connections cut.
    pub cut: u64,
    /// Connections silenced: the proxy delivers nothing more and leaves them open.
    pub silence: u64,
    /// PDUs with flipped bits in the header, its digest or both: the number of damaged headers that the
    /// receiver can detect.
    pub damaged_headers: u64,
    /// PDUs with flipped bits in the data, its digest or both.
    pub damaged_data: u64,
}

impl DirectionCounts {
    /// Returns the number of faults of all kinds.
    pub const fn total(&self) -> u64 {
        self.header
            + self.header_digest
            + self.data
            + self.data_digest
            + self.drop
            + self.duplicate
            + self.stall
            + self.cut
            + self.silence
    }
}

impl Proxy {
    /// Starts to listen on `listen`, and relays each connection to `upstream`. Calls `watch` with each fault.
    ///
    /// # Errors
    /// When binding to the address fails.
    pub fn start(
        listen: SocketAddr,
        upstream: SocketAddr,
        faults: Faults,
        seed: u64,
        watch: Option<FaultHandler>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            ends: AtomicBool::new(false),
            plan_generation: AtomicU64::new(0),
            faults: Mutex::new(faults),
            counts: Counts::default(),
            watch,
        });
        let acceptor = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("proxy".into())
                .spawn(move || accept(&listener, upstream, seed, &shared))?
        };
        Ok(Self { shared, address, acceptor: Some(acceptor) })
    }

    /// Returns the address that initiators connect to.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the plan, also for open connections, within 100 ms.
    pub fn replan(&self, faults: Faults) {
        *self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
        self.shared.plan_generation.fetch_add(1, Ordering::Release);
    }

    /// Returns the counters so far.
    pub fn report(&self) -> ProxyReport {
        let counts = &self.shared.counts;
        let lane = |way: StreamDirection| {
            let (row, [damaged_headers, damaged_data]) = (counts.row(way), counts.damaged_of(way));
            let count = |kind| {
                place(kind).and_then(|at| row.get(at)).map_or(0, |count| count.load(Ordering::Relaxed))
            };
            DirectionCounts {
                bytes: counts.bytes_of(way).load(Ordering::Relaxed),
                header: count(FaultKind::Header),
                header_digest: count(FaultKind::HeaderDigest),
                data: count(FaultKind::Data),
                data_digest: count(FaultKind::DataDigest),
                drop: count(FaultKind::Drop),
                duplicate: count(FaultKind::Duplicate),
                stall: count(FaultKind::Stall),
                cut: count(FaultKind::Cut),
                silence: count(FaultKind::Silence),
                damaged_headers: damaged_headers.load(Ordering::Relaxed),
                damaged_data: damaged_data.load(Ordering::Relaxed),
            }
        };
        ProxyReport {
            connections: counts.connections.load(Ordering::Relaxed),
            refused: counts.refused.load(Ordering::Relaxed),
            requests: lane(StreamDirection::Forward),
            responses: lane(StreamDirection::Backward),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Counts {
    const fn row(&self, way: StreamDirection) -> &[AtomicU64; FaultKind::ALL.len()] {
        let [forward, backward] = &self.faults;
        match way {
            StreamDirection::Forward => forward,
            StreamDirection::Backward => backward,
        }
    }

    const fn bytes_of(&self, way: StreamDirection) -> &AtomicU64 {
        let [forward, backward] = &self.bytes;
        match way {
            StreamDirection::Forward => forward,
            StreamDirection::Backward => backward,
        }
    }

    const fn damaged_of(&self, way: StreamDirection) -> &[AtomicU64; 2] {
        let [forward, backward] = &self.damaged;
        match way {
            StreamDirection::Forward => forward,
            StreamDirection::Backward => backward,
        }
    }
}

impl Shared {
    fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    fn plan(&self) -> (u64, Faults) {
        let generation = self.plan_generation.load(Ordering::Acquire);
        (generation, self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Counts the faults of one connection, in their order.
    fn happened(&self, faults: &[InjectedFault]) {
        for injected in faults {
            if let Some(count) = place(injected.kind).and_then(|at| self.counts.row(injected.way).get(at)) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(watch) = self.watch {
                watch(injected);
            }
        }
        // Faults in the data and in its digest damage one PDU.
        for pdu in faults.chunk_by(|one, other| (one.way, one.unit) == (other.way, other.unit)) {
            let Some(way) = pdu.first().map(|injected| injected.way) else { continue };
            let [headers, data] = self.counts.damaged_of(way);
            let is_hit = |kinds: [FaultKind; 2]| pdu.iter().any(|injected| kinds.contains(&injected.kind));
            for (count, kinds) in [
                (headers, [FaultKind::Header, FaultKind::HeaderDigest]),
                (data, [FaultKind::Data, FaultKind::DataDigest]),
            ] {
                count.fetch_add(u64::from(is_hit(kinds)), Ordering::Relaxed);
            }
        }
    }
}

fn place(kind: FaultKind) -> Option<usize> {
    FaultKind::ALL.iter().position(|other| *other == kind)
}

/// Accepts connections until the proxy ends, then waits for their threads.
fn accept(listener: &TcpListener, upstream: SocketAddr, seed: u64, shared: &Arc<Shared>) {
    let mut seeds = Rng::from_seed(seed);
    let mut relays: Vec<JoinHandle<()>> = Vec::new();
    while !shared.ends() {
        relays.retain(|relay| !relay.is_finished());
        let Ok((initiator, _)) = listener.accept() else {
            relay::wait_readable(listener, POLL_INTERVAL);
            continue;
        };
        shared.counts.connections.fetch_add(1, Ordering::Relaxed);
        let seed = seeds.next_u64();
        let target = if relays.len() < CONNECTIONS_MAX { reach(upstream).ok() } else { None };
        let Some(target) = target else {
            shared.counts.refused.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let shared = Arc::clone(shared);
        let started = std::thread::Builder::new().name("relay".into()).spawn(move || {
            shared.counts.open.fetch_add(1, Ordering::Relaxed);
            // A socket error ends the connection, as it would without a proxy.
            let _ = relay::run(&initiator, &target, seed, &shared);
            shared.counts.open.fetch_sub(1, Ordering::Relaxed);
        });
        relays.extend(started.ok());
    }
    for relay in relays {
        let _ = relay.join();
    }
}

/// The time limit for connecting to the target.
const REACH_MAX: Duration = Duration::from_secs(5);

fn reach(upstream: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&upstream, REACH_MAX)
}

#[cfg(test)]
mod tests;
