//! The relay between a TCP connection with TLS and a local socket in the clear.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send, sockopt};
use zeroize::Zeroizing;

use crate::chunk::{CHUNK_LEN, Chunk, Taken, write_from};
use crate::keys::PLAIN_LEN_MAX;
use crate::moving::{MovingRelay, Registered, RelayState};
use crate::record::{Received, RecordLayer, Violation, first_record};

/// The longest records of a whole chunk, a change of keys and the end: each record has 22 bytes more than its
/// content.
pub(crate) const UNSENT_MAX: usize = CHUNK_LEN + 1024;

/// How long the last bytes to a peer may take after the local end closed.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(10);

/// How often what the other end still sent is read for its alert, a chunk at a time.
const LAST_LOOKS: u8 = 16;

/// A connection whose handshake is complete.
pub(crate) struct Relay {
    layer: RecordLayer,
    network: TcpStream,
    /// Received bytes whose records are not processed.
    records: Chunk,
    network_ended: bool,
    /// Whether the other end has said that it sends nothing more.
    is_closed: bool,
    /// The alert by which it ended the connection.
    alert: Option<u8>,
    /// Decrypted bytes for the local end.
    incoming: Chunk,
    incoming_ended: bool,
    /// Bytes of the local end that are not encrypted.
    outgoing: Chunk,
    outgoing_ended: bool,
    /// Records that are not sent, from this index on.
    unsent: Vec<u8>,
    unsent_at: usize,
    /// Whether the end of the local connection drops what the other end has not acknowledged.
    drops_at_end: bool,
}

/// Why a relay that another process gave up cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its state is damaged")]
pub(crate) struct Damaged;

/// What the records that were received led to.
enum Opened {
    Data,
    Nothing,
    Closed,
}

impl Relay {
    /// Goes on with a connection after its handshake, with the bytes that were received after that.
    pub(crate) fn new(layer: RecordLayer, network: TcpStream, records: Chunk, network_ended: bool) -> Self {
        Self {
            layer,
            network,
            records,
            network_ended,
            is_closed: false,
            alert: None,
            incoming: Chunk::new(),
            incoming_ended: false,
            outgoing: Chunk::new(),
            outgoing_ended: false,
            unsent: Vec::new(),
            unsent_at: 0,
            drops_at_end: false,
        }
    }

    /// Goes on with the connection of a portal that another process gave up. Does nothing with the sockets.
    pub(crate) fn moved(state: RelayState, network: TcpStream) -> Result<Self, Damaged> {
        if state.unsent.len() > UNSENT_MAX || state.outgoing_ended && !state.outgoing.is_empty() {
            return Err(Damaged);
        }
        let chunk = |bytes: &[u8]| Chunk::of(bytes).ok_or(Damaged);
        Ok(Self {
            layer: RecordLayer::of_server(state.records).ok_or(Damaged)?,
            network,
            records: chunk(&state.received)?,
            network_ended: state.network_ended,
            is_closed: state.is_closed,
            alert: None,
            incoming: chunk(&state.incoming)?,
            incoming_ended: state.incoming_ended,
            outgoing: chunk(&state.outgoing)?,
            outgoing_ended: state.outgoing_ended,
            unsent: state.unsent,
            unsent_at: 0,
            drops_at_end: false,
        })
    }

    /// Returns what another process needs to go on with this connection.
    fn moving(&self, local: &Local) -> io::Result<MovingRelay> {
        let state = RelayState {
            records: self.layer.state(),
            received: self.records.bytes().to_vec(),
            network_ended: self.network_ended,
            is_closed: self.is_closed,
            incoming: Zeroizing::new(self.incoming.bytes().to_vec()),
            incoming_ended: self.incoming_ended,
            outgoing: Zeroizing::new(self.outgoing.bytes().to_vec()),
            outgoing_ended: self.outgoing_ended,
            unsent: self.unsent().to_vec(),
        };
        let network = self.network.try_clone()?.into();
        Ok(MovingRelay { state, network, local: local.0.try_clone()? })
    }

    /// Relays until both directions have ended, or one failed, or another process has the connection of
    /// `registered`.
    ///
    /// # Errors
    /// The error of a socket, or of a record that is not authentic.
    pub(crate) fn run(mut self, local: OwnedFd, registered: Option<&Registered>) -> io::Result<()> {
        self.relay(&Local(local), registered)
    }

    fn relay(&mut self, local: &Local, registered: Option<&Registered>) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&local.0, true)?;
        let mut deadline = None;
        loop {
            self.move_incoming(local)?;
            self.move_outgoing(local)?;
            if self.outgoing_ended {
                if self.unsent().is_empty() {
                    return self.network.shutdown(Shutdown::Write);
                }
                deadline = deadline.or_else(|| Some(Instant::now() + CLOSING_TIMEOUT));
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(ErrorKind::TimedOut.into());
            }
            let (is_paused, has_gone) = self.wait(local, left, registered)?;
            if has_gone {
                deadline = deadline.or_else(|| Some(Instant::now() + CLOSING_TIMEOUT));
            }
            if let Some(registered) = registered.filter(|_| is_paused)
                && !registered.park(|| self.moving(local))
            {
                // Another process has both sockets: they are closed here, and not shut down.
                return Ok(());
            }
        }
    }

    /// Relays for an initiator. The connection to the target is reset however it ends, also with this
    /// process, unless the initiator closes it after the target has acknowledged every byte: a write of an
    /// initiator that has gone must not reach the target later, when another path may have written there.
    ///
    /// If the target ends the connection with an alert, it is passed to `report` before the initiator sees
    /// its connection close. In TLS 1.3 the handshake of a client is complete before the server has judged
    /// its certificate, so that a refusal arrives here.
    ///
    /// # Errors
    /// As [`Self::run`], and `ConnectionReset` if bytes for the target are dropped.
    pub(crate) fn run_for_initiator(mut self, local: OwnedFd, report: impl FnOnce(u8)) -> io::Result<()> {
        self.drops_at_end = true;
        // From here on, whatever closes the connection resets it.
        sockopt::set_socket_linger(&self.network, Some(Duration::ZERO))?;
        let local = Local(local);
        let ended = self.relay(&local, None);
        match ended {
            Ok(()) => sockopt::set_socket_linger(&self.network, None)?,
            Err(_) => {
                if let Some(alert) = self.alert() {
                    report(alert);
                }
            }
        }
        ended
    }

    /// Returns the alert with which the other end ended the connection, if it sent one. A target that
    /// refuses an initiator resets the connection after the alert, because it does not read the login
    /// request: sending can fail before the alert was read.
    fn alert(&mut self) -> Option<u8> {
        for _ in 0..LAST_LOOKS {
            if self.alert.is_some() {
                break;
            }
            self.incoming.consumed(CHUNK_LEN);
            match self.open_records() {
                Ok(Opened::Data) => {}
                Ok(Opened::Closed) | Err(_) => break,
                Ok(Opened::Nothing) => match self.records.read_from(&mut self.network) {
                    Ok(Taken::Bytes) => {}
                    Ok(Taken::Nothing | Taken::End) | Err(_) => break,
                },
            }
        }
        self.alert
    }

    /// Returns the socket of the network, to look at its queue.
    #[cfg(test)]
    pub(crate) fn network_for_tests(&self) -> TcpStream {
        self.network.try_clone().unwrap()
    }

    /// Fails if the end of the local connection drops what the target has not acknowledged.
    fn check_acknowledged(&self) -> io::Result<()> {
        if self.drops_at_end && drivers::unreceived::bytes(&self.network)? > 0 {
            return Err(ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }

    /// Sleeps until a socket is ready for what this relay can do, or it is to pause. Returns whether it is,
    /// and whether the local end has gone while bytes for the peer are held. `left` limits the sleep.
    ///
    /// # Errors
    /// That of `poll`. `ConnectionReset` if the local end has gone and what it sent is to be dropped.
    fn wait(
        &self,
        local: &Local,
        left: Option<Duration>,
        registered: Option<&Registered>,
    ) -> io::Result<(bool, bool)> {
        let (mut ours, mut theirs) = (PollFlags::empty(), PollFlags::empty());
        let receives = !self.network_ended && !self.incoming_ended && self.incoming.is_empty();
        theirs.set(PollFlags::IN, receives);
        theirs.set(PollFlags::OUT, !self.unsent().is_empty());
        ours.set(PollFlags::IN, !self.outgoing_ended && self.outgoing.is_empty());
        ours.set(PollFlags::OUT, !self.incoming.is_empty());
        let holds = !self.outgoing.is_empty() || !self.unsent().is_empty();
        ours.set(PollFlags::RDHUP, self.drops_at_end && holds);
        // A socket that nothing is wanted of still ends the sleep by its hang-up. That is wanted once: a peer
        // that takes nothing must not keep a connection whose local end has gone.
        let is_watched = !ours.is_empty() || left.is_none();
        let mut fds = Vec::with_capacity(3);
        if is_watched {
            fds.push(PollFd::new(&local.0, ours));
        }
        if !theirs.is_empty() {
            fds.push(PollFd::new(&self.network, theirs));
        }
        if let Some(registered) = registered {
            fds.push(PollFd::new(registered.signal(), PollFlags::IN));
        }
        wait(&mut fds, left)?;
        let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let is_gone = is_watched && fds.first().is_some_and(|local| local.revents().intersects(ends));
        if is_gone && holds && self.drops_at_end {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let is_paused = registered.is_some() && fds.last().is_some_and(|signal| !signal.revents().is_empty());
        Ok((is_paused, is_gone && holds))
    }

    /// Moves bytes from the network to the local end, as far as is possible without waiting.
    fn move_incoming(&mut self, local: &Local) -> io::Result<()> {
        loop {
            if !self.incoming.write_to(local)? || self.incoming_ended {
                return Ok(());
            }
            match self.open_records() {
                Ok(Opened::Data) => {}
                Ok(Opened::Closed) => return self.end_incoming(local),
                Ok(Opened::Nothing) => {
                    // The other end may close the connection without saying so. iSCSI knows where its PDUs
                    // end.
                    if self.network_ended {
                        return self.end_incoming(local);
                    }
                    match self.records.read_from(&mut self.network)? {
                        Taken::Bytes => {}
                        Taken::Nothing => return Ok(()),
                        Taken::End => self.network_ended = true,
                    }
                }
                Err(why) => {
                    self.layer.seal_alert(why, &mut self.unsent);
                    // The alert says more than a closed connection. If it cannot be sent, nothing is lost.
                    let _ = self.send_unsent();
                    return Err(io::Error::new(ErrorKind::InvalidData, why));
                }
            }
        }
    }

    /// Opens the records that were received, as far as there is room for their content.
    fn open_records(&mut self) -> Result<Opened, Violation> {
        while !self.is_closed && self.incoming.has_room(PLAIN_LEN_MAX) {
            let Some(len) = first_record(self.records.bytes())? else { break };
            match self.layer.receive(self.records.first_mut(len)) {
                Ok(Received::Data(bytes)) => self.incoming.add(bytes),
                Ok(Received::Nothing) => {}
                Ok(Received::Closed) => self.is_closed = true,
                Err(why) => {
                    if let Violation::AlertReceived(alert) = why {
                        self.alert = Some(alert);
                    }
                    return Err(why);
                }
            }
            self.records.consumed(len);
        }
        Ok(match () {
            () if !self.incoming.is_empty() => Opened::Data,
            () if self.is_closed => Opened::Closed,
            () => Opened::Nothing,
        })
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
        let failed = |why: Violation| io::Error::new(ErrorKind::InvalidData, why);
        loop {
            if self.outgoing.is_empty() && !self.outgoing_ended {
                match self.outgoing.read_from(local)? {
                    Taken::Bytes | Taken::Nothing => {}
                    Taken::End => {
                        self.check_acknowledged()?;
                        self.outgoing_ended = true;
                        self.layer.seal_close_notify(&mut self.unsent).map_err(failed)?;
                    }
                }
            }
            if self.unsent().is_empty() && !self.outgoing_ended {
                if self.layer.owes_key_update() {
                    self.layer.seal_key_update(&mut self.unsent).map_err(failed)?;
                }
                self.layer.seal_data(self.outgoing.bytes(), &mut self.unsent).map_err(failed)?;
                self.outgoing.consumed(CHUNK_LEN);
            }
            self.send_unsent()?;
            if !self.unsent().is_empty() || self.outgoing.is_empty() {
                return Ok(());
            }
        }
    }

    fn unsent(&self) -> &[u8] {
        self.unsent.get(self.unsent_at..).unwrap_or_default()
    }

    fn send_unsent(&mut self) -> io::Result<()> {
        let (written, result) = write_from(self.unsent(), &self.network);
        self.unsent_at += written;
        if self.unsent_at >= self.unsent.len() {
            self.unsent.clear();
            self.unsent_at = 0;
        }
        result
    }
}

/// The socket in the clear: of a pair, or of a TCP connection on this host.
pub(crate) struct Local(OwnedFd);

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
pub(crate) fn wait(fds: &mut [PollFd<'_>], left: Option<Duration>) -> io::Result<()> {
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(why) => Err(why.into()),
    }
}
