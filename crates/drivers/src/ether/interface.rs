//! The properties of a network interface, as the system reports them.

#![allow(
    unsafe_code,
    reason = "the ioctls about interfaces, which no safe interface offers as far as they are needed"
)]

use std::os::fd::{AsRawFd, OwnedFd};

use base::ether::Mac;

use crate::c_types::number;
use crate::files::Errno;

/// The state of an interface at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    /// Its index in the system. An interface that vanished and came back has a new one.
    pub(super) index: i32,
    pub(super) mac: Mac,
    pub(super) mtu: usize,
    /// Whether it is switched on and has a link.
    pub(super) up: bool,
    /// The link type, an `ARPHRD_` number.
    pub(super) kind: u16,
}

impl Interface {
    /// Looks an interface up. Any socket will do.
    ///
    /// # Errors
    /// `ENODEV` when there is no interface with this name.
    pub(super) fn look_up(socket: &OwnedFd, name: &str) -> Result<Self, Errno> {
        let mut request = request(name).ok_or(Errno::NODEV)?;
        ask(socket, number(libc::SIOCGIFINDEX), &mut request)?;
        // SAFETY: the kernel has just filled this member of the union, and any bits are a valid number.
        let index = unsafe { request.ifr_ifru.ifru_ifindex };
        ask(socket, number(libc::SIOCGIFMTU), &mut request)?;
        // SAFETY: as above.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        ask(socket, number(libc::SIOCGIFFLAGS), &mut request)?;
        // SAFETY: as above.
        let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
        ask(socket, number(libc::SIOCGIFHWADDR), &mut request)?;
        // SAFETY: as above.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        let mut mac = Mac::default();
        for (byte, from) in mac.0.iter_mut().zip(address.sa_data) {
            *byte = from.to_ne_bytes()[0];
        }
        let needed = libc::IFF_UP | libc::IFF_RUNNING;
        Ok(Self {
            index,
            mac,
            mtu: usize::try_from(mtu).unwrap_or(0),
            up: flags & needed == needed,
            kind: address.sa_family,
        })
    }

    /// Returns whether the interface carries Ethernet frames.
    pub(super) const fn is_ethernet(&self) -> bool {
        matches!(self.kind, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK)
    }
}

/// Returns an empty request about an interface, or `None` if no interface can have this name.
fn request(name: &str) -> Option<libc::ifreq> {
    // SAFETY: a request is bytes, integers and pointers, for which all bits zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    Some(request)
}

fn ask(socket: &OwnedFd, what: libc::Ioctl, request: &mut libc::ifreq) -> Result<(), Errno> {
    // SAFETY: these requests read the name in `request` and write one member of its union; both are within
    // `request`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), what, std::ptr::from_mut(request)) };
    if result < 0 { Err(last_error()) } else { Ok(()) }
}

/// Returns why the last system call failed.
pub(super) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_known_and_others_are_not() {
        let socket = OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        let lo = Interface::look_up(&socket, "lo").unwrap();
        assert!(lo.up && lo.is_ethernet() && lo.index > 0 && lo.mtu >= 1500, "{lo:?}");
        assert_eq!(lo.mac, Mac::default());
        for name in ["", "a-name-that-is-too-long", "no\0ne", "absent0"] {
            assert_eq!(Interface::look_up(&socket, name), Err(Errno::NODEV), "{name:?}");
        }
    }
}
