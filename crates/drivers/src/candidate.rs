//! A connection that waits for admission, and what the state machine needs to know about it.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use base::state_machine::{AcceptInfo, PortalId};
use rustix::net::{AddressFamily, sockopt};

use crate::files::Errno;
use crate::listener;

/// A connection that waits for admission.
pub(crate) struct Candidate {
    pub(crate) socket: OwnedFd,
    /// The address of this end, where it is not that of the socket.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: SocketAddr,
    pub(crate) portal: PortalId,
    /// The connection was admitted before, by another process: limits count it and do not end it.
    pub(crate) is_taken_over: bool,
}

impl Candidate {
    /// Sets the options of a new socket, and returns what the state machine needs to know about it.
    pub(crate) fn accept_info(&self) -> Result<AcceptInfo, Errno> {
        // A local socket has no options of TCP. The thread that relays has set those of its TCP connection.
        if sockopt::socket_domain(&self.socket)? != AddressFamily::UNIX {
            listener::prepare(&self.socket)?;
        }
        // Each call asks for non-blocking itself where it needs to, and io_uring waits more efficiently on a
        // blocking socket.
        rustix::io::ioctl_fionbio(&self.socket, false)?;
        let local = match self.local {
            Some(local) => local,
            None => SocketAddr::try_from(rustix::net::getsockname(&self.socket)?)?,
        };
        let mut entropy = [0; 32];
        let mut filled = 0;
        while let Some(rest) = entropy.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let fill = || rustix::rand::getrandom(&mut *rest, rustix::rand::GetRandomFlags::empty());
            filled += rustix::io::retry_on_intr(fill)?;
        }
        Ok(AcceptInfo { portal: self.portal, local, peer: self.peer, entropy })
    }
}
