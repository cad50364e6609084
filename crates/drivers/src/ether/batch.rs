//! Batches of frames: many frames in one system call.

#![allow(unsafe_code, reason = "recvmmsg and sendmmsg, which no safe interface offers")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, SystemTime};

use base::ether::Mac;

use super::interface::last_error;
use super::rx_timestamp::RxTimestamp;
use super::socket;
use crate::c_types::number;
use crate::files::Errno;

/// How many frames one call receives or sends at most.
pub(super) const FRAMES_MAX: usize = 64;

/// How much memory one receive offers, in bytes: an amount that fits into the cache of a core together with
/// the results of processing it.
const ROOM_BYTES: usize = 128 << 10;

/// The least number of slots that a receive offers. After a receive that found few frames, the next one
/// offers few slots, since each costs time to prepare.
const PLACES_MIN: usize = 8;

/// The memory for receives.
pub(super) struct RxBatch {
    room: Vec<u8>,
    /// The length of the slot of one frame.
    stride: usize,
    names: Vec<libc::sockaddr_ll>,
    arrivals: Vec<RxTimestamp>,
    pieces: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    /// How many slots the next receive offers.
    places: usize,
}

/// A frame that was received.
pub(crate) struct RxFrame<'a> {
    pub(crate) source: Mac,
    /// One of the `PACKET_` types.
    pub(crate) kind: u8,
    /// How long the frame waited until it was received.
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

    /// Enlarges the slots for frames of this length.
    pub(super) fn fit(&mut self, len: usize) {
        if len > self.stride {
            self.stride = len.next_multiple_of(64);
            let frames = (ROOM_BYTES / self.stride).clamp(PLACES_MIN, FRAMES_MAX);
            self.room = vec![0; frames * self.stride];
        }
    }

    /// Receives the frames that wait, and passes each one to `each`. Returns how many there were, and whether
    /// there may be more. Frames longer than a slot are skipped.
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
        // SAFETY: each of the `count` headers refers to one address, one timestamp and one piece of memory of
        // their true lengths; the vectors that hold them are neither changed nor moved until the call
        // returns.
        let result = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count,
                number(libc::MSG_DONTWAIT),
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

    /// Writes the headers for a receive of `count` frames.
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

/// The memory for sends.
pub(super) struct TxBatch {
    names: Vec<libc::sockaddr_ll>,
    pieces: Vec<libc::iovec>,
    /// The index after the last piece of each frame.
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

    /// Sends frames, in order, each given as its destination (none if the frame contains its own header) and
    /// its pieces. Returns how many were sent.
    ///
    /// # Errors
    /// Why the first frame was not sent.
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
            header.msg_hdr.msg_iovlen = number(own.len());
            header.msg_hdr.msg_iov = own.as_mut_ptr();
            self.headers.push(header);
        }
        let count = u32::try_from(self.headers.len()).unwrap_or(0);
        // SAFETY: each of the `count` headers refers to an address, or none, and a list of pieces; all of
        // them, and the frames that the pieces point into, live until the call returns; the kernel writes to
        // none of them but the headers.
        let result = unsafe {
            libc::sendmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), count, number(libc::MSG_DONTWAIT))
        };
        usize::try_from(result).map_err(|_| last_error())
    }
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: the header is plain integers and pointers, for which all bits zero is a valid value: an empty
    // header.
    unsafe { std::mem::zeroed() }
}
