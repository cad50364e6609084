//! The relay of one connection: two sockets and the link between them, driven by `poll`.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant as Clock};

use base::time::Instant;
use netem::iscsi::Iscsi;
use netem::stream::{Arrived, StreamDirection, StreamLink};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{POLL_INTERVAL, Shared};

/// The relay stops reading a direction while this many bytes of it are under way or wait to be written: about
/// a TCP window.
const IN_FLIGHT_MAX: usize = 4 << 20;

/// The most bytes of one read.
const READ_LEN: usize = 256 << 10;

/// One direction of a connection.
#[derive(Debug, Default)]
struct Direction {
    /// Bytes that have passed the link.
    out: Vec<u8>,
    /// How much of `out` is written.
    written: usize,
    /// The source has closed its side.
    source_ended: bool,
    /// What to do with the destination once `out` is written.
    then: AfterWrite,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AfterWrite {
    #[default]
    Relay,
    /// Shut down the sending side (FIN).
    End,
    /// Reset the connection (RST).
    Cut,
    /// Nothing more to do.
    Done,
}

/// Moves bytes until both directions have ended or the proxy ends, and counts the faults.
pub(super) fn run(initiator: &TcpStream, target: &TcpStream, seed: u64, shared: &Shared) -> io::Result<()> {
    for socket in [initiator, target] {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
    }
    let (generation, faults) = shared.plan();
    let mut link = StreamLink::new(Iscsi::new(), faults.requests, faults.responses, seed);
    let ended = relay(initiator, target, &mut link, generation, shared);
    // What passed before one socket failed has reached the other one.
    shared.happened(&link.take_log());
    ended
}

fn relay(
    initiator: &TcpStream,
    target: &TcpStream,
    link: &mut StreamLink<Iscsi>,
    mut generation: u64,
    shared: &Shared,
) -> io::Result<()> {
    let began = Clock::now();
    let now = || Instant::ORIGIN.after(began.elapsed());
    let mut sides = [Direction::default(), Direction::default()];
    let mut chunk = vec![0; READ_LEN];
    while !shared.ends() {
        let (latest, faults) = shared.plan();
        if latest != generation {
            generation = latest;
            link.replan(StreamDirection::Forward, faults.requests);
            link.replan(StreamDirection::Backward, faults.responses);
        }
        for (side, way) in sides.iter_mut().zip(StreamDirection::BOTH) {
            let (source, destination) = ends(initiator, target, way);
            side.take_arrived(link, now(), way);
            side.write(destination)?;
            if side.wants(link, way) {
                side.read(source, link, &mut chunk, now(), way, shared)?;
            }
            side.take_arrived(link, now(), way);
            side.write(destination)?;
        }
        shared.happened(&link.take_log());
        if sides.iter().all(|side| side.then == AfterWrite::Done) {
            break;
        }
        wait(&sides, link, initiator, target, now())?;
    }
    Ok(())
}

/// Returns the source and the destination of a direction.
const fn ends<'a>(
    initiator: &'a TcpStream,
    target: &'a TcpStream,
    way: StreamDirection,
) -> (&'a TcpStream, &'a TcpStream) {
    match way {
        StreamDirection::Forward => (initiator, target),
        StreamDirection::Backward => (target, initiator),
    }
}

impl Direction {
    fn is_written(&self) -> bool {
        self.written == self.out.len()
    }

    /// Returns whether to read from the source.
    fn wants(&self, link: &StreamLink<Iscsi>, way: StreamDirection) -> bool {
        !self.source_ended
            && self.then == AfterWrite::Relay
            && link.in_flight(way).saturating_add(self.out.len()) < IN_FLIGHT_MAX
    }

    fn take_arrived(&mut self, link: &mut StreamLink<Iscsi>, now: Instant, way: StreamDirection) {
        while self.then == AfterWrite::Relay
            && let Some(arrived) = link.poll(now, way)
        {
            match arrived {
                Arrived::Bytes(bytes) => self.out.extend_from_slice(&bytes),
                Arrived::Closed => self.then = AfterWrite::End,
                Arrived::Cut => self.then = AfterWrite::Cut,
            }
        }
    }

    fn read(
        &mut self,
        mut source: &TcpStream,
        link: &mut StreamLink<Iscsi>,
        chunk: &mut [u8],
        now: Instant,
        way: StreamDirection,
        shared: &Shared,
    ) -> io::Result<()> {
        match source.read(chunk) {
            Ok(0) => {
                self.source_ended = true;
                link.push_end(now, way);
            }
            Ok(len) => {
                let bytes = chunk.get(..len).unwrap_or_default();
                shared.counts.bytes_of(way).fetch_add(u64::try_from(len).unwrap_or(0), Ordering::Relaxed);
                link.push(now, way, bytes);
            }
            Err(error) if is_transient(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                self.source_ended = true;
                link.cut(now);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn write(&mut self, mut destination: &TcpStream) -> io::Result<()> {
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            match destination.write(rest) {
                Ok(len) => self.written += len,
                Err(error) if is_transient(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.written = 0;
        match self.then {
            AfterWrite::End => {
                let _ = destination.shutdown(Shutdown::Write);
                self.then = AfterWrite::Done;
            }
            AfterWrite::Cut => {
                // The relay closes both sockets when it ends; a linger time of zero makes that a reset.
                let _ = rustix::net::sockopt::set_socket_linger(destination, Some(Duration::ZERO));
                self.then = AfterWrite::Done;
            }
            AfterWrite::Relay | AfterWrite::Done => {}
        }
        Ok(())
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Sleeps until a socket is ready, the link delivers something, or [`POLL_INTERVAL`] has passed.
fn wait(
    sides: &[Direction; 2],
    link: &StreamLink<Iscsi>,
    initiator: &TcpStream,
    target: &TcpStream,
    now: Instant,
) -> io::Result<()> {
    let mut interest = [PollFlags::empty(); 2];
    let mut longest = POLL_INTERVAL;
    for (n, (side, way)) in sides.iter().zip(StreamDirection::BOTH).enumerate() {
        // The initiator's socket is the source of the first direction and the destination of the second.
        if side.wants(link, way)
            && let Some(source) = interest.get_mut(n)
        {
            *source |= PollFlags::IN;
        }
        if !side.is_written()
            && let Some(destination) = interest.get_mut(1 - n)
        {
            *destination |= PollFlags::OUT;
        }
        if side.then == AfterWrite::Relay
            && let Some(at) = link.poll_timeout(way)
        {
            longest = longest.min(at.since(now));
        }
    }
    let mut waiting: Vec<PollFd<'_>> = Vec::with_capacity(2);
    for (socket, flags) in [initiator, target].into_iter().zip(interest) {
        // Leave out a socket without events to wait for: `poll` would return at once, for ever, after its
        // peer is gone.
        if !flags.is_empty() {
            waiting.push(PollFd::new(socket, flags));
        }
    }
    sleep(&mut waiting, longest)
}

/// Sleeps until the socket is readable, for `longest` at most.
pub(super) fn wait_readable(socket: &impl AsFd, longest: Duration) {
    let _ = sleep(&mut [PollFd::new(socket, PollFlags::IN)], longest);
}

fn sleep(waiting: &mut [PollFd<'_>], longest: Duration) -> io::Result<()> {
    let longest = Timespec {
        tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: longest.subsec_nanos().into(),
    };
    match poll(waiting, Some(&longest)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
