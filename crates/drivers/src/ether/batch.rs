//! Many frames in one system call.

#![allow(unsafe_code, reason = "recvmmsg and sendmmsg, which no safe interface offers")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, SystemTime};

use base::ether::Mac;

use super::interface::last_error;
use super::rx_timestamp::RxTimestamp;
use super::socket;
use crate::files::Errno;

/// How many frames one call moves at most.
pub(super) const FRAMES_MAX: usize = 64;

/// How many bytes of room one receive offers: what a core's cache holds well beside what is made of it.
const ROOM_BYTES: usize = 128 << 10;

/// A receive that finds little offers so many places next time; each costs something to prepare.
const PLACES_MIN: usize = 8;

/// What is received into.
pub(super) struct RxBatch {
    room: Vec<u8>,
    /// The room of one frame.
    stride: usize,
    names: Vec<libc::sockaddr_ll>,
    arrivals: Vec<RxTimestamp>,
    pieces: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    /// How many places the next receive offers.
    places: usize,
}

/// A frame that was received.
pub(crate) struct RxFrame<'a> {
    pub(crate) source: Mac,
    /// One of the `PACKET_` kinds.
    pub(crate) kind: u8,
    /// How long it waited until it was received.
    pub(crate) age: Duration,
    pub(crate) bytes: &'a mut [u8],
}

impl RxBatch {
    pub(super) fn new() -> Self {
        Self {
            room: Vec::new(),
            stride: 0,
            names: Vec::with_capacity(FRAMES_MAX),
            arrivals: Vec::with_capacity(FRAMES_MAX),
            pieces: Vec::with_capacity(FRAMES_MAX),
            headers: Vec::with_capacity(FRAMES_MAX),
            places: PLACES_MIN,
        }
    }

    /// Makes room for frames of this length.
    pub(super) fn fit(&mut self, len: usize) {
        if len > self.stride {
            self.stride = len.next_multiple_of(64);
            let frames = (ROOM_BYTES / self.stride).clamp(PLACES_MIN, FRAMES_MAX);
            self.room = vec![0; frames * self.stride];
        }
    }

    /// Receives what is there, and hands each frame over. Returns how many there were, and whether there may be more.
    /// Frames that are longer than the room for one are left out.
    pub(super) fn receive(
        &mut self,
        socket: &OwnedFd,
        mut each: impl FnMut(RxFrame<'_>),
    ) -> Result<(usize, bool), Errno> {
        if self.stride == 0 {
            return Ok((0, false));
        }
        let offered = self.places.min(self.room.len() / self.stride);
        self.prepare(offered);
        let count = u32::try_from(offered).unwrap_or(0);
        // SAFETY: each of the `count` headers names one address, one arrival and one piece of memory of their true lengths; the
        // vectors they are in are neither touched nor moved until the call returns.
        let result = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let Ok(taken) = usize::try_from(result) else {
            self.places = PLACES_MIN;
            return match last_error() {
                Errno::AGAIN | Errno::INTR => Ok((0, false)),
                errno => Err(errno),
            };
        };
        self.places = if taken == offered { (offered * 2).min(FRAMES_MAX) } else { PLACES_MIN.max(taken) };
        let now = SystemTime::now();
        let parts = self.room.chunks_exact_mut(self.stride);
        let told = self.names.iter().zip(&self.arrivals);
        for ((header, (name, arrival)), room) in self.headers.iter().zip(told).zip(parts).take(taken) {
            let whole = header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            let len = usize::try_from(header.msg_len).unwrap_or(0);
            if let (true, Some(bytes)) = (whole, room.get_mut(..len)) {
                let [a, b, c, d, e, f, ..] = name.sll_addr;
                let (source, kind) = (Mac([a, b, c, d, e, f]), name.sll_pkttype);
                each(RxFrame { source, kind, age: arrival.age(now), bytes });
            }
        }
        Ok((taken, taken == offered))
    }

    /// Writes the headers of a receive of so many frames.
    fn prepare(&mut self, count: usize) {
        self.names.clear();
        self.names.resize(count, socket::address(0, 0));
        self.arrivals.clear();
        self.arrivals.resize(count, RxTimestamp::default());
        self.pieces.clear();
        for room in self.room.chunks_exact_mut(self.stride).take(count) {
            self.pieces.push(libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() });
        }
        self.headers.clear();
        let told = self.names.iter_mut().zip(&mut self.arrivals);
        for ((name, arrival), piece) in told.zip(&mut self.pieces) {
            let mut header = empty_header();
            arrival.point(&mut header.msg_hdr);
            header.msg_hdr.msg_namelen = socket::length_of(name);
            header.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
            header.msg_hdr.msg_iov = std::ptr::from_mut(piece);
            header.msg_hdr.msg_iovlen = 1;
            self.headers.push(header);
        }
    }
}

/// What is sent from.
pub(super) struct TxBatch {
    names: Vec<libc::sockaddr_ll>,
    pieces: Vec<libc::iovec>,
    /// Where the pieces of each frame end.
    ends: Vec<usize>,
    headers: Vec<libc::mmsghdr>,
}

impl TxBatch {
    pub(super) fn new() -> Self {
        Self {
            names: Vec::with_capacity(FRAMES_MAX),
            pieces: Vec::with_capacity(4 * FRAMES_MAX),
            ends: Vec::with_capacity(FRAMES_MAX),
            headers: Vec::with_capacity(FRAMES_MAX),
        }
    }

    /// Sends frames, in order: to whom (nobody, if the frame has its own header) and of which pieces. Returns how many
    /// went.
    ///
    /// # Errors
    /// Why the first did not.
    pub(super) fn send<'a, P: Iterator<Item = &'a [u8]>>(
        &mut self,
        socket: &OwnedFd,
        from: (i32, u16),
        frames: impl Iterator<Item = (Option<Mac>, P)>,
    ) -> Result<usize, Errno> {
        self.names.clear();
        self.pieces.clear();
        self.ends.clear();
        self.headers.clear();
        let (index, ether_type) = from;
        for (to, pieces) in frames.take(FRAMES_MAX) {
            let mut name = socket::address(index, ether_type);
            match to {
                Some(Mac(to)) => {
                    let (address, _) = name.sll_addr.split_at_mut(to.len());
                    address.copy_from_slice(&to);
                }
                None => name.sll_halen = 0,
            }
            self.names.push(name);
            for piece in pieces {
                self.pieces
                    .push(libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() });
            }
            self.ends.push(self.pieces.len());
        }
        let mut rest = self.pieces.as_mut_slice();
        let mut start = 0;
        for (name, end) in self.names.iter_mut().zip(&self.ends) {
            let (own, behind) = rest.split_at_mut_checked(end - start).unwrap_or_default();
            (rest, start) = (behind, *end);
            let mut header = empty_header();
            if name.sll_halen > 0 {
                header.msg_hdr.msg_namelen = socket::length_of(name);
                header.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
            }
            header.msg_hdr.msg_iovlen = own.len();
            header.msg_hdr.msg_iov = own.as_mut_ptr();
            self.headers.push(header);
        }
        let count = u32::try_from(self.headers.len()).unwrap_or(0);
        // SAFETY: each of the `count` headers names an address, or none, and a list of pieces, all of which live, with the
        // frames that the pieces point into, until the call returns; the kernel writes to none of them but the headers.
        let result = unsafe {
            libc::sendmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), count, libc::MSG_DONTWAIT)
        };
        usize::try_from(result).map_err(|_| last_error())
    }
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: the header is plain integers and pointers, for which all bits zero is a value: nothing.
    unsafe { std::mem::zeroed() }
}
