//! Packet sockets: opening, binding, options, and counters.

#![allow(unsafe_code, reason = "socket options and addresses of AF_PACKET, which no safe interface offers")]

use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::filter::Instruction;
use super::interface::last_error;
use crate::files::Errno;

/// The timer slack in nanoseconds: how much the kernel may delay a timer to bundle it with others. Protocols
/// over frames count in microseconds; the default of the system is fifty of them.
const TIMER_SLACK_NS: libc::c_ulong = 1000;

/// Opens a socket that receives nothing until it is bound.
pub(super) fn open(kind: SocketType) -> Result<OwnedFd, Errno> {
    let socket =
        socket_with(AddressFamily::PACKET, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    // Kernels before 4.20 do not know this option. The filter rejects our own frames as well.
    let _ = set_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1_i32);
    Ok(socket)
}

/// Makes the kernel deliver the time at which it received each frame. Where it cannot, frames count as
/// received when they are read.
pub(super) fn tell_arrivals(socket: &OwnedFd) {
    let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1_i32);
}

/// Makes the socket receive frames of this EtherType from the interface with this index.
pub(super) fn bind(socket: &OwnedFd, index: i32, ether_type: u16) -> Result<(), Errno> {
    let address = address(index, ether_type);
    // SAFETY: `address` exists during the call, and its length is passed.
    let result =
        unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), length_of(&address)) };
    if result < 0 { Err(last_error()) } else { Ok(()) }
}

/// Makes the kernel run `program` on every frame.
pub(super) fn attach_filter(socket: &OwnedFd, program: &[Instruction]) -> Result<(), Errno> {
    let mut program: Vec<libc::sock_filter> = program
        .iter()
        .map(|(code, jt, jf, k)| libc::sock_filter { code: *code, jt: *jt, jf: *jf, k: *k })
        .collect();
    let len = u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?;
    let filter = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    // The kernel copies the program that this points to.
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// Makes the socket receive frames for other stations too.
pub(super) fn be_promiscuous(socket: &OwnedFd, index: i32) -> Result<(), Errno> {
    let request = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: u16::try_from(libc::PACKET_MR_PROMISC).unwrap_or(0),
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Sets the sizes of the receive buffer and of the send buffer, in bytes. Without the privilege to exceed it,
/// the limit of the system applies. Returns the size of the receive buffer, as the kernel counts.
pub(super) fn make_room(socket: &OwnedFd, receive: usize, send: usize) -> usize {
    // The kernel doubles the requested size, since it counts its own overhead as well.
    for (forced, plain, bytes) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive / 2),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send / 2),
    ] {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        if set_option(socket, libc::SOL_SOCKET, forced, &bytes).is_err() {
            // It never fails because the size is too large; the actual size is read below.
            let _ = set_option(socket, libc::SOL_SOCKET, plain, &bytes);
        }
    }
    sockopt::socket_recv_buffer_size(socket).unwrap_or(0)
}

/// Makes frames arrive in a ring of blocks of slots, or in the queue of the socket if there are none. Frames
/// that wait to be received are lost.
pub(super) fn set_receive_ring(
    socket: &OwnedFd,
    block: usize,
    blocks: usize,
    slot: usize,
    slots: usize,
) -> Result<(), Errno> {
    let number = |count| u32::try_from(count).map_err(|_| Errno::INVAL);
    let request = libc::tpacket_req {
        tp_block_size: number(block)?,
        tp_block_nr: number(blocks)?,
        tp_frame_size: number(slot)?,
        tp_frame_nr: number(slots)?,
    };
    if slots > 0 {
        set_option(
            socket,
            libc::SOL_PACKET,
            libc::PACKET_VERSION,
            &(libc::tpacket_versions::TPACKET_V2 as i32),
        )?;
    }
    set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
}

/// Takes the pending error of a socket, if there is one.
pub(super) fn take_error(socket: &OwnedFd) -> Option<Errno> {
    sockopt::socket_error(socket).map_or_else(Some, Result::err)
}

/// Returns how many frames were lost since the last call because the receive buffer was full.
pub(super) fn take_drops(socket: &OwnedFd) -> u32 {
    let mut counts = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = length_of(&counts);
    // SAFETY: the kernel writes at most `len` bytes into `counts`, and their number into `len`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            std::ptr::from_mut(&mut counts).cast(),
            &raw mut len,
        )
    };
    if result < 0 { 0 } else { counts.tp_drops }
}

/// Sets the timer slack of this thread, so that it sleeps no longer than it asks for.
pub(super) fn sleep_exactly() {
    // SAFETY: the call takes a number and accesses no memory. It cannot fail for a number that is not zero.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS) };
}

/// Returns the address of an interface, for frames of an EtherType.
pub(crate) fn address(index: i32, ether_type: u16) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).unwrap_or(0),
        sll_protocol: ether_type.to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0; 8],
    }
}

pub(super) fn length_of<T>(_: &T) -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}

fn set_option<T>(socket: &OwnedFd, level: i32, name: i32, value: &T) -> Result<(), Errno> {
    // SAFETY: the kernel reads `value`, whose length is passed; of the options that are set here, only the
    // filter contains a pointer, and the memory that it points to lives as long as the call.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), length_of(value))
    };
    if result < 0 { Err(last_error()) } else { Ok(()) }
}
