//! Moves the bytes of one connection: one thread for each direction, PDU by PDU.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use netem::iscsi::Iscsi;
use netem::stream::{Framing, StreamDirection};

use super::Shared;

/// The most bytes of one read.
const READ_LEN: usize = 256 << 10;

/// What the two directions of a connection share.
struct Connection {
    number: u64,
    /// Sees the PDUs of both directions, and learns from the login whether digests are on.
    framing: Mutex<Iscsi>,
    /// Whether one side has closed the connection. The other one then only follows.
    closed: AtomicBool,
    shared: Arc<Shared>,
}

/// Starts the threads of a connection.
pub(super) fn start(
    number: u64,
    initiator: TcpStream,
    target: TcpStream,
    shared: &Arc<Shared>,
) -> io::Result<Vec<JoinHandle<()>>> {
    for socket in [&initiator, &target] {
        socket.set_nodelay(true)?;
        let kept = socket.try_clone()?;
        let sockets = &mut shared.state().sockets;
        // Sockets whose connection is over are forgotten.
        sockets.retain(|socket| socket.peer_addr().is_ok());
        sockets.push(kept);
    }
    if shared.ends() {
        return Ok(Vec::new());
    }
    let connection = Arc::new(Connection {
        number,
        framing: Mutex::new(Iscsi::new()),
        closed: AtomicBool::new(false),
        shared: Arc::clone(shared),
    });
    let (to_target, to_initiator) = (target.try_clone()?, initiator.try_clone()?);
    let ends =
        [(initiator, to_target, StreamDirection::Forward), (target, to_initiator, StreamDirection::Backward)];
    ends.into_iter().map(|(source, destination, way)| spawn(&connection, source, destination, way)).collect()
}

fn spawn(
    connection: &Arc<Connection>,
    source: TcpStream,
    destination: TcpStream,
    way: StreamDirection,
) -> io::Result<JoinHandle<()>> {
    let connection = Arc::clone(connection);
    std::thread::Builder::new().name("pump".into()).spawn(move || {
        let end = pump(&connection, &source, &destination, way);
        if !connection.closed.swap(true, Ordering::AcqRel) {
            let by = if end == PumpEnd::DestinationGone { way.opposite() } else { way };
            connection.shared.state().note_close(connection.number, by);
        }
        // An end of file is passed on as such; an error ends both directions.
        if end == PumpEnd::SourceClosed {
            let _ = destination.shutdown(Shutdown::Write);
        } else {
            let _ = destination.shutdown(Shutdown::Both);
            let _ = source.shutdown(Shutdown::Both);
        }
    })
}

/// Why a direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PumpEnd {
    /// The source closed its side in order.
    SourceClosed,
    /// The source reset the connection.
    SourceGone,
    /// The destination takes no more bytes.
    DestinationGone,
}

/// Relays until one side ends.
fn pump(
    connection: &Connection,
    mut source: &TcpStream,
    mut destination: &TcpStream,
    way: StreamDirection,
) -> PumpEnd {
    let mut chunk = vec![0; READ_LEN];
    let (mut partial, mut out) = (Vec::new(), Vec::new());
    loop {
        let len = match source.read(&mut chunk) {
            Ok(0) => return PumpEnd::SourceClosed,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return PumpEnd::SourceGone,
        };
        partial.extend_from_slice(chunk.get(..len).unwrap_or_default());
        out.clear();
        let used = connection.pass_whole(way, &partial, &mut out);
        partial.drain(..used);
        if destination.write_all(&out).is_err() {
            return PumpEnd::DestinationGone;
        }
    }
}

impl Connection {
    /// Passes all whole PDUs of `bytes` to `out`. Returns how many bytes they are.
    fn pass_whole(&self, way: StreamDirection, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let mut framing = self.framing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.shared.state();
        let mut used = 0;
        while let Some(rest) = bytes.get(used..) {
            let Some(layout) = framing.pdu_layout(way, rest) else { break };
            let Some(pdu) = rest.get(..layout.len) else { break };
            framing.passed(way, pdu);
            match state.pass(self.number, way, pdu, &layout) {
                Some(damaged) => out.extend_from_slice(&damaged),
                None => out.extend_from_slice(pdu),
            }
            used += pdu.len();
        }
        used
    }
}
