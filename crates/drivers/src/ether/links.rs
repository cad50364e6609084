//! Reports that an interface changed. What changed must be looked up.

use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::files::Errno;

/// The group of messages about links (`RTMGRP_LINK` of linux/rtnetlink.h).
const LINKS: u32 = 1;

/// How much of a message is read; its contents are not needed.
const SCRATCH_BYTES: usize = 64;

/// Opens a socket that becomes readable when an interface has changed.
pub(super) fn watch() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // The default protocol is the first one, that of links and routes.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, LINKS))?;
    Ok(socket)
}

/// Discards the messages received so far. Messages lost for lack of buffer memory make no difference.
pub(super) fn take(socket: &OwnedFd) {
    let mut scratch = [0_u8; SCRATCH_BYTES];
    loop {
        match recv(socket, &mut scratch[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
