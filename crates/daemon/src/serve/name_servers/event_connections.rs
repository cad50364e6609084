//! The connections through which a name server inquires and reports changes.
//!
//! They come from any address: a server with a virtual address, or with several interfaces, connects from
//! another address than the one that it is reached at, and deregisters the targets if it is refused. iSNS
//! proves no identity in any case. An answer only says whether what is asked is registered, and a
//! notification makes the client check its registration, at most every 5 s.
//!
//! So no peer can make the thread wait: sockets do not block, a peer that has not received an answer is read
//! no further, and a connection with a request that is not complete, or an answer that is not received, is
//! closed in the end.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use isns::inquiry;
use isns::message::{HEADER_LEN, Message, PAYLOAD_LEN_MAX};
use isns::registration::Registration;
use rustix::event::PollFlags;

/// How long a peer may take from the first byte of a request until it has received the answer.
const EXCHANGE_MAX: Duration = Duration::from_secs(5);

/// The most connections that are open. A server uses one at a time; the others are for the members of a
/// cluster, and for hosts that are no servers.
const EVENT_CONNECTIONS_MAX: usize = 8;

/// The most bytes that one call receives from a connection, so that all have their turn.
const CHUNK_LEN: usize = 4096;

/// The open connections, the oldest first.
#[derive(Debug, Default)]
pub(super) struct EventConnections(Vec<EventConnection>);

#[derive(Debug)]
struct EventConnection {
    socket: TcpStream,
    peer: IpAddr,
    received: Vec<u8>,
    /// The rest of an answer that the peer has not accepted yet.
    unsent: Vec<u8>,
    /// Since when a request is not complete, or its answer is not sent.
    pending_since: Option<Instant>,
}

/// The end of a connection.
struct End;

impl EventConnections {
    /// Returns the sockets with what each waits for, in the order that [`Self::serve`] expects.
    pub(super) fn sockets(&self) -> impl ExactSizeIterator<Item = (&TcpStream, PollFlags)> {
        let awaited = |one: &EventConnection| match one.unsent.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::OUT,
        };
        self.0.iter().map(move |one| (&one.socket, awaited(one)))
    }

    /// Adds a connection. If there are too many, the oldest connection of the address with the most makes
    /// room, so that no address can displace the connections of the others.
    ///
    /// # Errors
    /// The socket cannot be set up.
    pub(super) fn admit(&mut self, socket: TcpStream, peer: IpAddr) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let (received, unsent) = (Vec::new(), Vec::new());
        self.0.push(EventConnection { socket, peer, received, unsent, pending_since: None });
        if self.0.len() > EVENT_CONNECTIONS_MAX {
            let count = |peer| self.0.iter().filter(|one| one.peer == peer).count();
            // `max_by_key` returns the last maximum, which is the oldest one in this order.
            let oldest = self.0.iter().enumerate().rev().max_by_key(|(_, one)| count(one.peer));
            if let Some((at, _)) = oldest {
                self.0.remove(at);
            }
        }
        Ok(())
    }

    /// Answers what has arrived through the connections that are ready, and closes those that have taken too
    /// long. Returns whether a peer reported a change.
    pub(super) fn serve(&mut self, now: Instant, ready: &[bool], registered: Option<&Registration>) -> bool {
        let mut is_change = false;
        let mut ready = ready.iter();
        self.0.retain_mut(|one| {
            if ready.next() == Some(&true) {
                match one.serve(now, registered) {
                    Ok(change) => is_change |= change,
                    Err(End) => return false,
                }
            }
            one.deadline().is_none_or(|deadline| now < deadline)
        });
        is_change
    }

    /// Returns when the first connection will have taken too long.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.iter().filter_map(EventConnection::deadline).min()
    }
}

impl EventConnection {
    fn deadline(&self) -> Option<Instant> {
        self.pending_since.map(|since| since + EXCHANGE_MAX)
    }

    /// Sends the rest of an answer, receives what has arrived and answers it, as far as that is possible
    /// without waiting. Returns whether the peer reported a change.
    fn serve(&mut self, now: Instant, registered: Option<&Registration>) -> Result<bool, End> {
        let mut is_change = false;
        self.send()?;
        if self.unsent.is_empty() {
            self.receive()?;
        }
        while self.unsent.is_empty()
            && let Some(request) = Message::take(&mut self.received).map_err(|_| End)?
        {
            let answer = inquiry::answer(&request, registered).map_err(|_| End)?;
            is_change |= answer.is_change;
            self.unsent = answer.bytes;
            self.send()?;
        }
        let is_pending = !self.unsent.is_empty() || !self.received.is_empty();
        self.pending_since = is_pending.then(|| self.pending_since.unwrap_or(now));
        // A message is complete before it is longer than the longest one.
        debug_assert!(self.received.len() <= HEADER_LEN + PAYLOAD_LEN_MAX + CHUNK_LEN);
        Ok(is_change)
    }

    fn receive(&mut self) -> Result<(), End> {
        let mut chunk = [0; CHUNK_LEN];
        match self.socket.read(&mut chunk) {
            Ok(0) => Err(End),
            Ok(count) => {
                self.received.extend_from_slice(chunk.get(..count).unwrap_or_default());
                Ok(())
            }
            Err(why) if is_temporary(&why) => Ok(()),
            Err(_) => Err(End),
        }
    }

    /// Sends what the peer accepts now. The next request has its own time.
    fn send(&mut self) -> Result<(), End> {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(0) => return Err(End),
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(why) if is_temporary(&why) => return Ok(()),
                Err(_) => return Err(End),
            }
            if self.unsent.is_empty() {
                self.pending_since = None;
            }
        }
        Ok(())
    }
}

/// Returns whether an operation can succeed later.
fn is_temporary(why: &io::Error) -> bool {
    matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use isns::message::{AttributeWriter, function, tag};

    use super::*;

    /// Returns a connection of a peer, and its other end.
    fn connected(events: &mut EventConnections, listener: &TcpListener, last: u8) -> TcpStream {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        events.admit(listener.accept().unwrap().0, IpAddr::from([192, 0, 2, last])).unwrap();
        client
    }

    /// Returns an inquiry whose answer is as long: its timestamp comes back.
    fn inquiry(transaction: u16, len: usize) -> Vec<u8> {
        let mut attributes = AttributeWriter::default();
        attributes.raw(tag::TIMESTAMP, &vec![7; len]);
        let payload = attributes.bytes();
        let len = u16::try_from(payload.len()).unwrap();
        // The flags of a message of a server in one PDU.
        let header = [1, function::INQUIRY, len, 0x4c00, transaction, 0].map(u16::to_be_bytes);
        [header.as_flattened(), payload].concat()
    }

    /// A slow reader.
    #[test]
    fn a_peer_that_receives_no_answers_holds_up_nobody_and_is_closed() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (mut events, start) = (EventConnections::default(), Instant::now());
        let mut silent = connected(&mut events, &listener, 1);
        silent.set_nonblocking(true).unwrap();
        let request = inquiry(1, 60_000);
        let mut rest: &[u8] = &[];
        while events.0[0].unsent.is_empty() {
            rest = if rest.is_empty() { &request } else { rest };
            if let Ok(count) = silent.write(rest) {
                rest = &rest[count..];
            }
            events.serve(start, &[true], None);
            assert_eq!(events.0.len(), 1);
        }
        // A busy machine delays some calls, and one that waits for the peer delays all of them.
        let returns_soon = (0..20).any(|_| {
            let began = Instant::now();
            events.serve(start, &[true], None);
            began.elapsed() < Duration::from_millis(300)
        });
        assert!(returns_soon, "it waits for the peer");
        assert_eq!(events.sockets().next().unwrap().1, PollFlags::OUT);
        let mut other = connected(&mut events, &listener, 2);
        other.write_all(&inquiry(2, 8)).unwrap();
        let mut answer = [0; 12];
        other.set_nonblocking(true).unwrap();
        while other.read_exact(&mut answer).is_err() {
            events.serve(start, &[true, true], None);
        }
        assert_eq!(answer[8..10], [0, 2]);
        let deadline = events.next_deadline().unwrap();
        assert_eq!(deadline, start + EXCHANGE_MAX);
        events.serve(deadline, &[false, false], None);
        assert_eq!(events.0.iter().map(|one| one.peer).collect::<Vec<_>>(), [IpAddr::from([192, 0, 2, 2])]);
    }

    #[test]
    fn a_request_that_is_not_complete_in_time_ends_its_connection_and_an_idle_one_stays() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (mut events, start) = (EventConnections::default(), Instant::now());
        let mut slow = connected(&mut events, &listener, 1);
        let mut idle = connected(&mut events, &listener, 2);
        idle.write_all(&inquiry(1, 8)).unwrap();
        let mut now = start;
        for byte in &inquiry(2, 8)[..9] {
            slow.write_all(&[*byte]).unwrap();
            while events.0[0].pending_since.is_none() || events.0[1].pending_since.is_some() {
                events.serve(now, &[true, true], None);
            }
            now += EXCHANGE_MAX / 10;
            events.serve(now, &[true, true], None);
        }
        idle.read_exact(&mut [0; 12]).unwrap();
        assert_eq!((events.0.len(), events.next_deadline()), (2, Some(start + EXCHANGE_MAX)));
        slow.write_all(&[0]).unwrap();
        events.serve(start + EXCHANGE_MAX, &[false, false], None);
        assert_eq!(events.0.len(), 1);
        events.serve(start + Duration::from_secs(3600), &[false], None);
        assert_eq!((events.0.len(), events.next_deadline()), (1, None));
    }

    #[test]
    fn an_address_that_opens_many_connections_displaces_its_own() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut events = EventConnections::default();
        let mut clients = Vec::new();
        let mut open = |last: u8| {
            clients.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            let socket = listener.accept().unwrap().0;
            events.admit(socket, IpAddr::from([192, 0, 2, last])).unwrap();
            events.0.iter().map(|one| one.peer).collect::<Vec<_>>()
        };
        open(1);
        open(2);
        for _ in 0..3 * EVENT_CONNECTIONS_MAX {
            open(9);
        }
        let peers = open(3);
        assert_eq!(peers.len(), EVENT_CONNECTIONS_MAX);
        for last in [1, 2, 3] {
            assert!(peers.contains(&IpAddr::from([192, 0, 2, last])), "{peers:?}");
        }
        // Addresses with one connection each: the oldest makes room.
        for last in 100..100 + u8::try_from(EVENT_CONNECTIONS_MAX).unwrap() {
            open(last);
        }
        assert!(!open(200).contains(&IpAddr::from([192, 0, 2, 100])));
    }
}
