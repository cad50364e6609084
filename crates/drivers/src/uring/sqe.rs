//! Entries of the submission queue, and the memory other than the payload that the kernel accesses through
//! them.

use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, SystemTime};

use base::buffer::Buf;
use base::ether::{FrameBatch, Mac};
use base::state_machine::RxBuffer;
use base::transmit::Transmit;
use io_uring::{opcode, squeue, types};

use super::provided;
use crate::c_types::number;
use crate::ether::{RxTimestamp, address};
use crate::fault_injection::{self, Bug};
use crate::files::{FileOpKind, PendingOp, rest, room};

/// The most pieces that one call takes (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

/// `IORING_RECVSEND_POLL_FIRST` of linux/io_uring.h: wait before the first attempt.
const POLL_FIRST: u16 = 1;

/// A message header with its list of pieces. It must not move (it is boxed) until the operation has ended:
/// the kernel may read the pieces later, and writes flags into the header at the end of a receive.
pub(super) struct MsgHdr {
    header: libc::msghdr,
    pieces: Vec<libc::iovec>,
    /// The length of all pieces of a send, in bytes.
    len: usize,
    /// The sender of a received frame, or the destination of a sent one.
    station: libc::sockaddr_ll,
    /// The time at which a frame was received.
    arrival: RxTimestamp,
}

impl Default for MsgHdr {
    fn default() -> Self {
        let (station, arrival) = (address(0, 0), RxTimestamp::default());
        Self { header: empty_header(), pieces: Vec::new(), len: 0, station, arrival }
    }
}

impl MsgHdr {
    /// Returns the entry that sends the rest of `batch`. With `silently` it skips the completion on success,
    /// see [`super::no_cqe_send`]; otherwise it waits until the socket has space.
    pub(super) fn send_entry(&mut self, socket: RawFd, batch: &Transmit, silently: bool) -> squeue::Entry {
        let entry = self.sendmsg_entry(socket, batch, if silently { libc::MSG_DONTWAIT } else { 0 });
        if silently { entry.flags(squeue::Flags::SKIP_SUCCESS) } else { entry }
    }

    fn sendmsg_entry(&mut self, socket: RawFd, batch: &Transmit, flags: i32) -> squeue::Entry {
        self.pieces.clear();
        self.pieces.extend(batch.pieces().take(PIECES_MAX).map(readable));
        self.len = self.pieces.iter().map(|piece| piece.iov_len).sum();
        // With WAITALL the kernel continues when the socket has space again, or reports that it did not send
        // all.
        let flags = flags | libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        if let [only] = self.pieces.as_slice() {
            let len = u32::try_from(only.iov_len).unwrap_or(u32::MAX);
            return opcode::Send::new(types::Fd(socket), only.iov_base.cast(), len).flags(flags).build();
        }
        self.point();
        opcode::SendMsg::new(types::Fd(socket), &raw const self.header).flags(flags.cast_unsigned()).build()
    }

    /// Returns how many bytes the last send contained.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the entry that receives into the spare capacity of a receive buffer, and the bytes after that
    /// into `behind`.
    pub(super) fn receive_into_entry(
        &mut self,
        socket: RawFd,
        rx_buffer: &mut RxBuffer,
        behind: &mut Buf,
        poll_first: bool,
    ) -> squeue::Entry {
        let want = rx_buffer.len_max;
        self.pieces.clear();
        if let Some(room) = rx_buffer.buf.spare_mut().get_mut(..want) {
            self.pieces.push(writable(room));
        } else {
            self.pieces.push(writable(rx_buffer.buf.spare_mut()));
        }
        self.pieces.push(writable(behind.spare_mut()));
        self.point();
        let priority = if poll_first { POLL_FIRST } else { 0 };
        opcode::RecvMsg::new(types::Fd(socket), &raw mut self.header).ioprio(priority).build()
    }

    /// Returns the entry that waits for a frame and receives it with the address of its sender.
    pub(super) fn receive_frame_entry(&mut self, socket: RawFd, room: &mut [u8]) -> squeue::Entry {
        self.pieces.clear();
        self.pieces.push(writable(room));
        self.point();
        self.point_at_station();
        self.arrival = RxTimestamp::default();
        self.arrival.point(&mut self.header);
        opcode::RecvMsg::new(types::Fd(socket), &raw mut self.header).ioprio(POLL_FIRST).build()
    }

    /// Returns the sender of the received frame, its `PACKET_` type, and how long it waited; `None` if it was
    /// longer than the buffer.
    pub(super) fn frame_source(&self) -> Option<(Mac, u8, Duration)> {
        let [a, b, c, d, e, f, ..] = self.station.sll_addr;
        let whole = self.header.msg_flags & libc::MSG_TRUNC == 0;
        whole.then(|| {
            let age = self.arrival.age(SystemTime::now());
            (Mac([a, b, c, d, e, f]), self.station.sll_pkttype, age)
        })
    }

    /// Returns the entry that sends the only frame of `batch` without a completion on success, see
    /// [`super::no_cqe_send`]; `None` if the batch has no frame or several.
    pub(super) fn send_frame_entry(
        &mut self,
        socket: RawFd,
        (index, ether_type): (i32, u16),
        batch: &FrameBatch,
    ) -> Option<squeue::Entry> {
        let mut frames = batch.frames();
        let (Some((Mac(to), _, pieces)), None) = (frames.next(), frames.next()) else { return None };
        self.station = address(index, ether_type);
        let (own, _) = self.station.sll_addr.split_at_mut(to.len());
        own.copy_from_slice(&to);
        self.pieces.clear();
        self.pieces.extend(pieces.map(readable));
        self.point();
        self.point_at_station();
        let flags = libc::MSG_DONTWAIT.cast_unsigned();
        let entry = opcode::SendMsg::new(types::Fd(socket), &raw const self.header).flags(flags).build();
        Some(entry.flags(squeue::Flags::SKIP_SUCCESS))
    }

    /// Returns the entry for the next part of a file operation. Returns the entry of a file operation. The
    /// file queues give only operations to the ring that the kernel begins without waiting.
    pub(super) fn file_entry(&mut self, work: &mut PendingOp) -> squeue::Entry {
        let done = work.done;
        let file = types::Fd(work.op.file.file().as_raw_fd());
        self.pieces.clear();
        match &mut work.op.kind {
            FileOpKind::Read { at, len, bufs } => {
                let slices = room(bufs, len.saturating_sub(done));
                self.pieces.extend(slices.into_iter().map(|mut slice| writable(&mut slice)));
                let at = offset(*at, done);
                if let [only] = self.pieces.as_slice() {
                    let len = u32::try_from(only.iov_len).unwrap_or(u32::MAX);
                    return opcode::Read::new(file, only.iov_base.cast(), len).offset(at).build();
                }
                opcode::Readv::new(file, self.pieces.as_ptr(), self.count()).offset(at).build()
            }
            FileOpKind::Write { at, data, stable } => {
                self.pieces.extend(rest(data, done).iter().map(|slice| readable(slice)));
                let at = offset(*at, done);
                let stable = *stable && !fault_injection::is_injected(Bug::FilesDropDsync);
                let flags = if stable { libc::RWF_DSYNC } else { 0 };
                if let [only] = self.pieces.as_slice() {
                    let len = u32::try_from(only.iov_len).unwrap_or(u32::MAX);
                    return opcode::Write::new(file, only.iov_base.cast(), len)
                        .offset(at)
                        .rw_flags(flags)
                        .build();
                }
                opcode::Writev::new(file, self.pieces.as_ptr(), self.count())
                    .offset(at)
                    .rw_flags(flags)
                    .build()
            }
            // These are never passed to the ring: threads do them.
            FileOpKind::Sync { .. }
            | FileOpKind::Fallocate { .. }
            | FileOpKind::Extents { .. }
            | FileOpKind::Discard { .. }
            | FileOpKind::ZeroOut { .. }
            | FileOpKind::CloneTo { .. }
            | FileOpKind::Call(_) => opcode::Nop::new().build(),
        }
    }

    /// Makes the header refer to the pieces.
    fn point(&mut self) {
        self.header = empty_header();
        self.header.msg_iov = self.pieces.as_mut_ptr();
        self.header.msg_iovlen = number(self.pieces.len());
    }

    fn point_at_station(&mut self) {
        self.header.msg_namelen = u32::try_from(size_of_val(&self.station)).unwrap_or(0);
        self.header.msg_name = (&raw mut self.station).cast();
    }

    fn count(&self) -> u32 {
        u32::try_from(self.pieces.len()).unwrap_or(u32::MAX)
    }
}

/// Returns the entry that receives into a provided buffer, which the kernel picks when bytes arrive.
pub(super) fn receive_entry(socket: RawFd, poll_first: bool) -> squeue::Entry {
    let priority = if poll_first { POLL_FIRST } else { 0 };
    opcode::Recv::new(types::Fd(socket), std::ptr::null_mut(), 0)
        .buf_group(provided::GROUP)
        .ioprio(priority)
        .build()
        .flags(squeue::Flags::BUFFER_SELECT)
}

/// Returns the entry that completes when a descriptor can be read or accepted from.
pub(super) fn poll_entry(file: RawFd) -> squeue::Entry {
    opcode::PollAdd::new(types::Fd(file), u32::from(libc::POLLIN.cast_unsigned())).build()
}

/// Returns the entry that completes when the connect of a socket has finished, with success or not.
pub(super) fn poll_out_entry(socket: RawFd) -> squeue::Entry {
    opcode::PollAdd::new(types::Fd(socket), u32::from(libc::POLLOUT.cast_unsigned())).build()
}

fn offset(at: u64, done: usize) -> u64 {
    at.saturating_add(u64::try_from(done).unwrap_or(u64::MAX))
}

fn readable(piece: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() }
}

fn writable(piece: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() }
}

#[allow(unsafe_code, reason = "the header has padding fields that only zeroing can set")]
fn empty_header() -> libc::msghdr {
    // SAFETY: the header is plain integers and pointers, for which all bits zero is a valid value: an empty
    // header.
    unsafe { std::mem::zeroed() }
}
