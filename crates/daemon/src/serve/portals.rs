//! Opens the listening addresses. The errors say what to do.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use drivers::listener;

use crate::os_error;

/// Ports below this one are privileged.
const FREE_PORTS: u16 = 1024;

/// A portal cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("portal {address}: {}", told(*address, source))]
pub struct PortalError {
    address: SocketAddr,
    source: io::Error,
}

impl PortalError {
    pub(super) const fn new(address: SocketAddr, source: io::Error) -> Self {
        Self { address, source }
    }
}

fn told(address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::AddrInUse => "another program listens there".to_owned(),
        ErrorKind::AddrNotAvailable => "this host has no such address".to_owned(),
        ErrorKind::PermissionDenied if address.port() < FREE_PORTS => {
            format!("ports below {FREE_PORTS} need root or CAP_NET_BIND_SERVICE; take a higher one")
        }
        _ => os_error(error),
    }
}

/// Opens an address. Returns the listener and its actual address, which differs when any free port was
/// requested.
pub(super) fn open(address: SocketAddr) -> Result<(TcpListener, SocketAddr), PortalError> {
    let open = || -> io::Result<_> {
        let listener = listener::open(address)?;
        let local = listener.local_addr()?;
        Ok((listener, local))
    };
    let mut opened = open();
    for _ in 0..TRIES {
        match &opened {
            Err(error) if error.kind() == ErrorKind::AddrInUse => std::thread::sleep(PAUSE),
            _ => break,
        }
        opened = open();
    }
    opened.map_err(|source| PortalError { address, source })
}

/// The number of attempts for a port that is in use, and the pause between them: one second in all. The
/// kernel closes the sockets of a killed daemon's ring a moment after the daemon ended, and an operator who
/// restarts the daemon at once must not get the error that another program listens.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_told_as_such() {
        let (_taken, address) = open("127.0.0.1:0".parse().unwrap()).unwrap();
        assert_ne!(address.port(), 0);
        assert_eq!(
            open(address).unwrap_err().to_string(),
            format!("portal {address}: another program listens there")
        );
    }

    #[test]
    fn a_port_that_is_freed_in_a_moment_is_waited_for() {
        let (taken, address) = open("127.0.0.1:0".parse().unwrap()).unwrap();
        let other = std::thread::spawn(move || {
            std::thread::sleep(PAUSE * 2);
            drop(taken);
        });
        assert_eq!(open(address).map(|(_, local)| local).map_err(|error| error.to_string()), Ok(address));
        other.join().unwrap();
    }

    #[test]
    fn errors_say_what_to_do() {
        let at = |address: &str, kind: ErrorKind| {
            PortalError { address: address.parse().unwrap(), source: kind.into() }.to_string()
        };
        assert_eq!(
            at("0.0.0.0:860", ErrorKind::PermissionDenied),
            "portal 0.0.0.0:860: ports below 1024 need root or CAP_NET_BIND_SERVICE; take a higher one"
        );
        assert_eq!(
            at("192.0.2.1:3260", ErrorKind::AddrNotAvailable),
            "portal 192.0.2.1:3260: this host has no such address"
        );
        assert_eq!(at("[::1]:3260", ErrorKind::PermissionDenied), "portal [::1]:3260: permission denied");
    }
}
