//! The interface between state machines that send and receive Ethernet frames and the drivers that transfer
//! the frames.
//!
//! A driver owns *ports*: interfaces on which it sends and receives frames of one EtherType. It informs the
//! state machine of a port with [`FrameMachine::port_up`], again whenever the MTU or address of the port
//! changes, and with [`FrameMachine::port_down`] when the link is down. Frames may be lost at any time
//! without notice. In each wake-up the driver passes every received frame to the state machine. Then it asks
//! [`FrameMachine::poll_port`] which ports have something to send, and calls
//! [`FrameMachine::transmit_frames`] for each until no frame is added to a batch.

use alloc::vec::Vec;
use core::fmt;

use crate::buffer::{Bytes, Pool};
use crate::time::{Duration, Instant};

/// The length of an Ethernet header, in bytes: destination, source, EtherType.
pub const ETHERNET_HEADER_LEN: usize = 14;

/// An IEEE 802 MAC address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address: every station.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns whether the address names a group of stations (the I/G bit), broadcast included.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An interface, as the owner of the driver numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherPort(pub u32);

/// The properties of a port that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortState {
    /// The MAC address of the port.
    pub mac: Mac,
    /// The longest payload of a frame, in bytes, without the Ethernet header.
    pub mtu: usize,
    /// How many frames of that length the port can hold until they are read. Further frames are lost.
    pub receive_slots: usize,
}

/// A received frame.
#[derive(Debug)]
pub struct ReceivedFrame<'a> {
    /// The port that received it.
    pub port: EtherPort,
    /// The source address in the frame. It is not authenticated.
    pub source: Mac,
    /// Whether the destination was a group of stations and not this port alone.
    pub group: bool,
    /// How long the frame waited at the port until it was read; zero if the system does not report it.
    pub age: Duration,
    /// The bytes after the Ethernet header, padding included. The state machine may decrypt them in place.
    pub payload: &'a mut [u8],
}

/// A state machine that communicates in frames. The defaults are for a state machine that does not.
pub trait FrameMachine {
    /// Handles a port that is up, or a change of its state. `entropy` is fresh from the generator of the
    /// operating system.
    fn port_up(&mut self, _now: Instant, _port: EtherPort, _state: &PortState, _entropy: [u8; 32]) {}

    /// Handles a port that cannot send or receive at present.
    fn port_down(&mut self, _now: Instant, _port: EtherPort) {}

    /// Handles a received frame. The state machine handles frames with errors, too.
    fn frame_received(&mut self, _now: Instant, _frame: ReceivedFrame<'_>) {}

    /// Returns a port that has something to send. A port is returned once until `transmit_frames` was called
    /// for it.
    fn poll_port(&mut self) -> Option<EtherPort> {
        None
    }

    /// Appends the frames that the port has to send, until `out` is full or no frame is left. `out` may
    /// contain frames already.
    fn transmit_frames(&mut self, _now: Instant, _port: EtherPort, _out: &mut FrameBatch) {}

    /// Handles `count` frames of the last batch that could not be sent because they were longer than the port
    /// allows at present.
    fn frames_too_long(&mut self, _now: Instant, _port: EtherPort, _count: usize) {}

    /// Handles the loss of `count` more frames on a port, of any session, which arrived while its buffer was
    /// full. The report is a little late, and never includes frames lost before the port was up.
    fn frames_overrun(&mut self, _now: Instant, _port: EtherPort, _count: u32) {}

    /// Returns whether no session uses frames at present. A driver that is asked to stop waits for that,
    /// while it may.
    fn is_frame_idle(&self) -> bool {
        true
    }

    /// Returns how many more blocks of entropy the state machine wants in reserve.
    fn entropy_wanted(&self) -> usize {
        0
    }

    /// Adds a block of entropy, fresh from the generator of the operating system.
    fn add_entropy(&mut self, _entropy: [u8; 32]) {}
}

/// Frames to be sent on one port. As in [`crate::transmit::Transmit`], headers are in a slab and payloads are
/// shared. Unlike there, the boundaries between frames are kept.
#[derive(Debug, Default)]
pub struct FrameBatch {
    slab: Vec<u8>,
    pieces: Vec<Piece>,
    frames: Vec<Frame>,
    bytes: usize,
    /// The frame that is being written: where its pieces and its part of the slab begin.
    open: Option<Open>,
}

#[derive(Debug)]
enum Piece {
    Slab { start: usize, end: usize },
    Shared(Bytes),
}

#[derive(Debug)]
struct Frame {
    to: Mac,
    len: usize,
    pieces_end: usize,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    to: Mac,
    pieces: usize,
    slab: usize,
    len: usize,
}

impl FrameBatch {
    /// How many frames a batch holds: as many as one system call can send.
    pub const FRAMES: usize = 64;

    /// How many bytes a batch holds, more or less by one frame: few enough that they stay in the cache of the
    /// core after the checksum pass, for the system call that copies them.
    pub const BYTES: usize = 128 << 10;

    /// Creates an empty batch.
    pub const fn new() -> Self {
        Self { slab: Vec::new(), pieces: Vec::new(), frames: Vec::new(), bytes: 0, open: None }
    }

    /// Returns whether no more frames should be begun.
    pub const fn is_full(&self) -> bool {
        self.frames.len() >= Self::FRAMES || self.bytes >= Self::BYTES
    }

    /// Returns whether the batch contains no complete frame.
    pub const fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns how many complete frames the batch contains.
    pub const fn len(&self) -> usize {
        self.frames.len()
    }

    /// Begins a frame. A frame that was begun and not ended is dropped.
    pub fn begin_frame(&mut self, to: Mac) {
        self.cancel();
        self.open = Some(Open { to, pieces: self.pieces.len(), slab: self.slab.len(), len: 0 });
    }

    /// Appends a copy of `bytes` to the frame that was begun.
    pub fn put(&mut self, bytes: &[u8]) {
        let Some(open) = &mut self.open else { return };
        let start = self.slab.len();
        self.slab.extend_from_slice(bytes);
        let end = self.slab.len();
        open.len += bytes.len();
        if start == end {
            return;
        }
        let own = self.pieces.len() > open.pieces;
        match self.pieces.last_mut() {
            Some(Piece::Slab { end: last, .. }) if own && *last == start => *last = end,
            _ => self.pieces.push(Piece::Slab { start, end }),
        }
    }

    /// Appends shared bytes to the frame that was begun, without copying them.
    pub fn put_shared(&mut self, bytes: Bytes) {
        let Some(open) = &mut self.open else { return };
        if !bytes.is_empty() {
            open.len += bytes.len();
            self.pieces.push(Piece::Shared(bytes));
        }
    }

    /// Returns all bytes that were `put` into the frame that was begun. That is the whole frame if nothing
    /// was shared. For ciphers that work in place.
    pub fn written(&mut self) -> &mut [u8] {
        let start = self.open.map_or(self.slab.len(), |open| open.slab);
        self.slab.get_mut(start..).unwrap_or_default()
    }

    /// Copies the shared bytes into the frame that was begun, so that [`FrameBatch::written`] is the whole
    /// frame.
    pub fn gather(&mut self) {
        let Some(open) = &mut self.open else { return };
        let pieces = self.pieces.get(open.pieces..).unwrap_or_default();
        if matches!(pieces, [] | [Piece::Slab { .. }]) {
            return;
        }
        let start = self.slab.len();
        for piece in pieces {
            match piece {
                Piece::Slab { start, end } => self.slab.extend_from_within(*start..*end),
                Piece::Shared(bytes) => self.slab.extend_from_slice(bytes),
            }
        }
        self.pieces.truncate(open.pieces);
        self.pieces.push(Piece::Slab { start, end: self.slab.len() });
        open.slab = start;
    }

    /// Returns the pieces of the frame that was begun, in order, for checksums.
    pub fn open_pieces(&self) -> impl Iterator<Item = &[u8]> {
        let start = self.open.map_or(self.pieces.len(), |open| open.pieces);
        self.pieces.get(start..).unwrap_or_default().iter().map(|piece| self.bytes_of(piece))
    }

    /// Ends the frame that was begun.
    pub fn end_frame(&mut self) {
        if let Some(open) = self.open.take() {
            self.bytes += open.len;
            self.frames.push(Frame { to: open.to, len: open.len, pieces_end: self.pieces.len() });
        }
    }

    /// Drops the frame that was begun.
    pub fn cancel(&mut self) {
        if let Some(open) = self.open.take() {
            self.pieces.truncate(open.pieces);
            self.slab.truncate(open.slab);
        }
    }

    /// Returns the frames, in order, each with its destination, length and pieces.
    pub fn frames(&self) -> impl Iterator<Item = (Mac, usize, impl Iterator<Item = &[u8]>)> {
        let mut start = 0;
        self.frames.iter().map(move |frame| {
            let pieces = self.pieces.get(start..frame.pieces_end).unwrap_or_default();
            start = frame.pieces_end;
            (frame.to, frame.len, pieces.iter().map(|piece| self.bytes_of(piece)))
        })
    }

    /// Empties the batch; shared blocks are returned to `pool`.
    pub fn clear(&mut self, pool: &Pool) {
        self.open = None;
        for piece in self.pieces.drain(..) {
            if let Piece::Shared(bytes) = piece {
                pool.recycle(bytes);
            }
        }
        self.frames.clear();
        self.slab.clear();
        self.bytes = 0;
    }

    fn bytes_of<'a>(&'a self, piece: &'a Piece) -> &'a [u8] {
        match piece {
            Piece::Slab { start, end } => self.slab.get(*start..*end).unwrap_or_default(),
            Piece::Shared(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(batch: &FrameBatch) -> Vec<(Mac, usize, Vec<u8>)> {
        batch.frames().map(|(to, len, pieces)| (to, len, pieces.flatten().copied().collect())).collect()
    }

    #[test]
    fn frames_keep_their_boundaries_and_an_unfinished_one_leaves_no_trace() {
        let (a, pool) = (Mac([2, 0, 0, 0, 0, 1]), Pool::new(1 << 20));
        let mut batch = FrameBatch::new();
        batch.begin_frame(a);
        batch.put(b"head");
        batch.put_shared(Bytes::copied_from(b"payload"));
        batch.put(b"crc");
        batch.end_frame();
        batch.begin_frame(a);
        batch.put(b"dropped");
        batch.begin_frame(Mac::BROADCAST);
        batch.put(b"ab");
        batch.put(b"cd");
        batch.written().reverse();
        assert!(batch.open_pieces().eq([b"dcba"]));
        batch.end_frame();
        let want = [(a, 14, b"headpayloadcrc".to_vec()), (Mac::BROADCAST, 4, b"dcba".to_vec())];
        assert_eq!(content(&batch), want);
        batch.clear(&pool);
        assert!(batch.is_empty() && content(&batch).is_empty() && pool.kept_bytes() > 0);
    }

    #[test]
    fn a_frame_that_is_gathered_is_written_as_a_whole() {
        let mut batch = FrameBatch::new();
        batch.gather();
        batch.begin_frame(Mac::BROADCAST);
        batch.put(b"before");
        batch.end_frame();
        batch.begin_frame(Mac::BROADCAST);
        batch.put(b"head");
        batch.put_shared(Bytes::copied_from(b"one"));
        batch.put(b"between");
        batch.put_shared(Bytes::copied_from(b"two"));
        batch.gather();
        assert_eq!(batch.written(), b"headonebetweentwo");
        batch.put(b"tag");
        batch.gather();
        batch.end_frame();
        let whole = b"headonebetweentwotag".to_vec();
        assert_eq!(content(&batch), [(Mac::BROADCAST, 6, b"before".to_vec()), (Mac::BROADCAST, 20, whole)]);
    }

    #[test]
    fn a_batch_is_full_by_frames_or_by_bytes() {
        let mut batch = FrameBatch::new();
        for _ in 0..FrameBatch::FRAMES {
            assert!(!batch.is_full());
            batch.begin_frame(Mac::BROADCAST);
            batch.end_frame();
        }
        assert!(batch.is_full() && batch.len() == FrameBatch::FRAMES);
        batch.clear(&Pool::new(0));
        batch.begin_frame(Mac::BROADCAST);
        batch.put_shared(Bytes::copied_from(&alloc::vec![0; FrameBatch::BYTES]));
        batch.end_frame();
        assert!(batch.is_full());
    }
}
