//! The relay between a TCP connection with TLS and a local socket in the clear.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send, sockopt};
use rustls::Connection;

use crate::{HANDSHAKE_TIMEOUT, TlsError};

/// How many bytes are read and written at a time: four of the longest records.
const CHUNK_LEN: usize = 64 << 10;

/// How many bytes of records may wait to be sent.
const UNSENT_MAX: usize = 256 << 10;

/// How long the last bytes to a peer may take after the local end closed.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection and its local socket.
pub(crate) struct Relay {
    tls: Connection,
    network: TcpStream,
    /// Received records that TLS has not processed.
    records: Chunk,
    network_ended: bool,
    /// Decrypted bytes for the local end.
    incoming: Chunk,
    incoming_ended: bool,
    /// Bytes of the local end that are not encrypted.
    outgoing: Chunk,
    outgoing_ended: bool,
    /// Whether the end of the local connection drops what the network has not taken.
    drops_at_end: bool,
}

impl Relay {
    /// Prepares a connection whose TCP handshake is complete.
    pub(crate) fn new(mut tls: Connection, network: TcpStream) -> io::Result<Self> {
        network.set_nonblocking(true)?;
        network.set_nodelay(true)?;
        tls.set_buffer_limit(Some(UNSENT_MAX));
        Ok(Self {
            tls,
            network,
            records: Chunk::new(),
            network_ended: false,
            incoming: Chunk::new(),
            incoming_ended: false,
            outgoing: Chunk::new(),
            outgoing_ended: false,
            drops_at_end: false,
        })
    }

    /// Completes the handshake.
    ///
    /// # Errors
    /// [`TlsError`]. The other end has received an alert, if there is one for the error.
    pub(crate) fn shake_hands(&mut self) -> Result<(), TlsError> {
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        // The last flight of a server is only sent after its handshake is complete.
        while self.tls.is_handshaking() || self.tls.wants_write() {
            self.send_records()?;
            if self.tls.is_handshaking() && self.tls.wants_read() {
                self.receive_records()?;
                if self.network_ended && self.records.is_empty() {
                    return Err(TlsError::Closed);
                }
                if let Err(why) = self.process_records() {
                    // The alert says more than a closed connection. If it cannot be sent, nothing is lost.
                    let _ = self.send_records();
                    return Err(TlsError::Handshake(why));
                }
            }
            let left = deadline.checked_duration_since(Instant::now()).ok_or(TlsError::Timeout)?;
            if self.records.is_empty() {
                self.wait_for_network(left)?;
            }
        }
        Ok(())
    }

    /// Waits until handshake messages can be received or sent.
    fn wait_for_network(&self, left: Duration) -> io::Result<()> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, self.tls.is_handshaking() && self.tls.wants_read());
        events.set(PollFlags::OUT, self.tls.wants_write());
        if events.is_empty() {
            return Ok(());
        }
        wait(&mut [PollFd::new(&self.network, events)], Some(left))
    }

    /// Relays until both directions have ended, or one failed.
    ///
    /// # Errors
    /// The error of a socket, or of a record that is not authentic.
    pub(crate) fn run(mut self, local: OwnedFd) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&local, true)?;
        let local = Local(local);
        let mut deadline = None;
        loop {
            self.move_incoming(&local)?;
            self.move_outgoing(&local)?;
            if self.outgoing_ended {
                if !self.tls.wants_write() {
                    return self.network.shutdown(Shutdown::Write);
                }
                deadline = deadline.or_else(|| Some(Instant::now() + CLOSING_TIMEOUT));
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(ErrorKind::TimedOut.into());
            }
            self.wait(&local, left)?;
        }
    }

    /// Relays for an initiator. When it resets its connection, or closes it while bytes for the target are
    /// held here, the connection to the target is reset: a write of an initiator that has gone must not reach
    /// the target later, when another path may have written there.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(crate) fn run_for_initiator(mut self, local: OwnedFd) -> io::Result<()> {
        self.drops_at_end = true;
        let network = self.network.try_clone()?;
        let ended = self.run(local);
        if matches!(&ended, Err(why) if why.kind() == ErrorKind::ConnectionReset) {
            // If the option cannot be set, the connection closes in order.
            let _ = sockopt::set_socket_linger(&network, Some(Duration::ZERO));
        }
        ended
    }

    /// Sleeps until a socket is ready for what this relay can do.
    ///
    /// # Errors
    /// That of `poll`. `ConnectionReset` if the local end has gone and what it sent is to be dropped.
    fn wait(&self, local: &Local, left: Option<Duration>) -> io::Result<()> {
        let (mut ours, mut theirs) = (PollFlags::empty(), PollFlags::empty());
        theirs.set(PollFlags::IN, !self.network_ended && self.records.is_empty() && self.incoming.is_empty());
        theirs.set(PollFlags::OUT, self.tls.wants_write());
        ours.set(PollFlags::IN, !self.outgoing_ended && self.outgoing.is_empty());
        ours.set(PollFlags::OUT, !self.incoming.is_empty());
        let holds = !self.outgoing.is_empty() || self.tls.wants_write();
        ours.set(PollFlags::RDHUP, self.drops_at_end && holds);
        // A socket that nothing is wanted of would end the sleep by its hang-up.
        let mut fds = Vec::with_capacity(2);
        if !ours.is_empty() {
            fds.push(PollFd::new(&local.0, ours));
        }
        if !theirs.is_empty() {
            fds.push(PollFd::new(&self.network, theirs));
        }
        wait(&mut fds, left)?;
        let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let is_gone = !ours.is_empty() && fds.first().is_some_and(|local| local.revents().intersects(ends));
        if is_gone && holds && self.drops_at_end {
            return Err(ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }

    /// Moves bytes from the network to the local end, as far as is possible without waiting.
    fn move_incoming(&mut self, local: &Local) -> io::Result<()> {
        loop {
            if !self.incoming.write_to(local)? || self.incoming_ended {
                return Ok(());
            }
            match self.tls.reader().read(self.incoming.space()) {
                Ok(0) => self.end_incoming(local)?,
                Ok(len) => self.incoming.filled(len),
                Err(why) if why.kind() == ErrorKind::WouldBlock => {
                    if self.records.is_empty() {
                        self.receive_records()?;
                    }
                    if self.records.is_empty() {
                        if self.network_ended {
                            self.end_incoming(local)?;
                        }
                        return Ok(());
                    }
                    if let Err(why) = self.process_records() {
                        let _ = self.send_records();
                        return Err(io::Error::new(ErrorKind::InvalidData, why));
                    }
                }
                // The other end closed the connection without saying so. iSCSI knows where its PDUs end.
                Err(why) if why.kind() == ErrorKind::UnexpectedEof => self.end_incoming(local)?,
                Err(why) => return Err(why),
            }
        }
    }

    fn end_incoming(&mut self, local: &Local) -> io::Result<()> {
        self.incoming_ended = true;
        match rustix::net::shutdown(&local.0, rustix::net::Shutdown::Write) {
            Ok(()) | Err(Errno::NOTCONN) => Ok(()),
            Err(why) => Err(why.into()),
        }
    }

    /// Moves bytes from the local end to the network, as far as is possible without waiting.
    fn move_outgoing(&mut self, local: &Local) -> io::Result<()> {
        loop {
            if self.outgoing.is_empty() && !self.outgoing_ended {
                match self.outgoing.read_from(local)? {
                    Received::Bytes | Received::Nothing => {}
                    Received::End => {
                        self.outgoing_ended = true;
                        self.tls.send_close_notify();
                    }
                }
            }
            let taken = self.tls.writer().write(self.outgoing.bytes())?;
            self.outgoing.consumed(taken);
            self.send_records()?;
            if self.tls.wants_write() || self.outgoing.is_empty() {
                return Ok(());
            }
        }
    }

    fn receive_records(&mut self) -> io::Result<()> {
        if self.records.is_empty() && !self.network_ended {
            self.network_ended = matches!(self.records.read_from(&mut self.network)?, Received::End);
        }
        Ok(())
    }

    fn process_records(&mut self) -> Result<(), rustls::Error> {
        let mut bytes = self.records.bytes();
        if bytes.is_empty() {
            // TLS takes a read of nothing for the end of the connection.
            return Ok(());
        }
        let before = bytes.len();
        // It reads from memory, and the plain text before was taken, so that it cannot fail.
        let _ = self.tls.read_tls(&mut bytes);
        let taken = before - bytes.len();
        self.records.consumed(taken);
        self.tls.process_new_packets().map(|_| ())
    }

    fn send_records(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.network) {
                Ok(_) => {}
                Err(why) if why.kind() == ErrorKind::WouldBlock => break,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }
}

/// The socket in the clear: of a pair, or of a TCP connection on this host.
struct Local(OwnedFd);

impl Read for &Local {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, buf)?)
    }
}

impl Write for &Local {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits for events of sockets, at most so long.
fn wait(fds: &mut [PollFd<'_>], left: Option<Duration>) -> io::Result<()> {
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(why) => Err(why.into()),
    }
}

/// What a read from a socket brought.
enum Received {
    Bytes,
    Nothing,
    End,
}

/// Bytes on their way: filled when it is empty, and consumed from its start.
struct Chunk {
    space: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Chunk {
    fn new() -> Self {
        Self { space: vec![0; CHUNK_LEN].into_boxed_slice(), start: 0, end: 0 }
    }

    const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn bytes(&self) -> &[u8] {
        self.space.get(self.start..self.end).unwrap_or_default()
    }

    /// Returns the space of an empty chunk.
    fn space(&mut self) -> &mut [u8] {
        &mut self.space
    }

    fn filled(&mut self, len: usize) {
        (self.start, self.end) = (0, len.min(self.space.len()));
    }

    fn consumed(&mut self, len: usize) {
        self.start = self.start.saturating_add(len).min(self.end);
    }

    /// Fills an empty chunk.
    fn read_from(&mut self, mut source: impl Read) -> io::Result<Received> {
        loop {
            match source.read(&mut self.space) {
                Ok(0) => return Ok(Received::End),
                Ok(len) => {
                    self.filled(len);
                    return Ok(Received::Bytes);
                }
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(Received::Nothing),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// Writes what the chunk holds. Returns whether it is empty now.
    fn write_to(&mut self, mut sink: impl Write) -> io::Result<bool> {
        while !self.is_empty() {
            match sink.write(self.bytes()) {
                Ok(len) => self.consumed(len),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(true)
    }
}
