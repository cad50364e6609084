//! Tells when something about an interface changed, not what: that is looked up.

use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::files::Errno;

/// The group of messages about links (`RTMGRP_LINK` of linux/rtnetlink.h).
const LINKS: u32 = 1;

/// So much of a message is looked at: nothing in it is needed.
const SCRATCH_BYTES: usize = 64;

/// Opens a socket that becomes readable when an interface changed.
pub(super) fn watch() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Its first protocol, which is the default, is that of links and routes.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, LINKS))?;
    Ok(socket)
}

/// Takes what was told so far; that some of it may have been lost for lack of room makes no difference.
pub(super) fn take(socket: &OwnedFd) {
    let mut scratch = [0_u8; SCRATCH_BYTES];
    loop {
        match recv(socket, &mut scratch[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
