//! Socket activation: listening sockets that the service manager opened before it started this process
//! (`sd_listen_fds(3)`). A portal with the address of such a socket uses it instead of opening its own.

use std::env;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use drivers::inherited;
use rustix::net::sockopt;

use super::portals::{self, PortalError};
use crate::config::Portal;

/// The number of the first inherited descriptor.
const FIRST: RawFd = 3;
/// The most sockets that are inherited: more than a service has socket units for.
const INHERITED_MAX: u16 = 64;

/// Why inherited sockets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// The environment does not say how many sockets there are.
    #[error("LISTEN_FDS is {0:?}, not a number from 0 to {INHERITED_MAX}")]
    Count(String),
    /// A descriptor is no listening TCP socket.
    #[error(
        "descriptor {descriptor} ({name}), which the service manager passed, is no listening TCP socket: {source}"
    )]
    NoListener {
        /// Its number.
        descriptor: RawFd,
        /// What the service manager calls it.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// An IPv6 socket accepts IPv4 too, which no portal does.
    #[error(
        "the socket {address} ({name}), which the service manager passed, accepts IPv4 too; set BindIPv6Only=ipv6-only in \
         its unit"
    )]
    DualStack {
        /// Its address.
        address: SocketAddr,
        /// What the service manager calls it.
        name: String,
    },
    /// No portal has the address of a socket.
    #[error(
        "the service manager passed a socket that listens on {address} ({name}), but no portal of the configuration has \
         that address"
    )]
    NoPortal {
        /// Its address.
        address: SocketAddr,
        /// What the service manager calls it.
        name: String,
    },
}

/// The inherited sockets. They stay open as long as the daemon runs, as they do in the service manager: a
/// portal that a reload removes and another one adds again gets the same socket.
#[derive(Debug, Default)]
pub(super) struct InheritedSockets {
    sockets: Vec<InheritedSocket>,
}

#[derive(Debug)]
struct InheritedSocket {
    listener: TcpListener,
    address: SocketAddr,
    name: String,
}

impl InheritedSockets {
    /// Takes the sockets that this process inherited.
    pub(super) fn from_process() -> Result<Self, ActivationError> {
        let variable =
            |name| env::var_os(name).and_then(|value| value.into_string().ok()).unwrap_or_default();
        let names = variable("LISTEN_FDNAMES");
        // The variables of another process may have been passed on.
        if variable("LISTEN_PID").parse() != Ok(std::process::id()) {
            return Ok(Self::default());
        }
        let count = count(&variable("LISTEN_FDS"))?;
        let mut names = names.split(':').filter(|name| !name.is_empty());
        let sockets = (FIRST..FIRST + RawFd::from(count)).map(|descriptor| {
            let name = names.next().unwrap_or("without a name").to_owned();
            match inherited::take(descriptor).and_then(listening) {
                Ok((listener, address)) => InheritedSocket { listener, address, name }.checked(),
                Err(source) => Err(ActivationError::NoListener { descriptor, name, source }),
            }
        });
        Ok(Self { sockets: sockets.collect::<Result<_, _>>()? })
    }

    /// Returns the sockets of the service manager that another process got, with their names.
    ///
    /// # Errors
    /// A descriptor is no listening TCP socket.
    pub(super) fn handed_over(sockets: Vec<(TcpListener, String)>) -> Result<Self, ActivationError> {
        let sockets = sockets.into_iter().map(|(listener, name)| {
            let descriptor = listener.as_raw_fd();
            match listening(listener.into()) {
                Ok((listener, address)) => InheritedSocket { listener, address, name }.checked(),
                Err(source) => Err(ActivationError::NoListener { descriptor, name, source }),
            }
        });
        Ok(Self { sockets: sockets.collect::<Result<_, _>>()? })
    }

    /// Returns the sockets and their names.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (&TcpListener, &str)> {
        self.sockets.iter().map(|socket| (&socket.listener, socket.name.as_str()))
    }

    /// Checks that each socket has a portal.
    pub(super) fn check(&self, portals: &[Portal]) -> Result<(), ActivationError> {
        let unused =
            |socket: &&InheritedSocket| !portals.iter().any(|portal| portal.listen == socket.address);
        self.sockets.iter().find(unused).map_or(Ok(()), |socket| {
            Err(ActivationError::NoPortal { address: socket.address, name: socket.name.clone() })
        })
    }

    /// Returns a warning for each socket whose portal is in `old` and not in `new`: the service manager still
    /// listens on it, so that connections to it wait for an answer.
    pub(super) fn left_without_portal(&self, old: &[Portal], new: &[Portal]) -> Vec<String> {
        let has = |portals: &[Portal], socket: &InheritedSocket| {
            portals.iter().any(|portal| portal.listen == socket.address)
        };
        let left = self.sockets.iter().filter(|socket| has(old, socket) && !has(new, socket));
        left.map(|InheritedSocket { address, name, .. }| {
            format!(
                "portal {address} is removed, but the service manager still listens there ({name}): connections to \
                 it wait without an answer until that socket unit is stopped"
            )
        })
        .collect()
    }

    /// Returns the listener of a portal and its actual address: an inherited one, or a new one.
    pub(super) fn open(&self, address: SocketAddr) -> Result<(TcpListener, SocketAddr), PortalError> {
        let Some(socket) = self.sockets.iter().find(|socket| socket.address == address) else {
            return portals::open(address);
        };
        let listener = socket.listener.try_clone().map_err(|source| PortalError::new(address, source))?;
        Ok((listener, address))
    }
}

impl InheritedSocket {
    fn checked(self) -> Result<Self, ActivationError> {
        // A socket that cannot tell is none of IPv6.
        if self.address.is_ipv6() && !sockopt::ipv6_v6only(&self.listener).unwrap_or(true) {
            return Err(ActivationError::DualStack { address: self.address, name: self.name });
        }
        Ok(self)
    }
}

fn count(text: &str) -> Result<u16, ActivationError> {
    let count = text.parse().ok().filter(|count| *count <= INHERITED_MAX);
    count.ok_or_else(|| ActivationError::Count(text.to_owned()))
}

/// Returns a socket as a listener, with its address.
fn listening(socket: OwnedFd) -> io::Result<(TcpListener, SocketAddr)> {
    let wrong = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    let listener = TcpListener::from(socket);
    let address = listener.local_addr()?;
    if sockopt::socket_type(&listener)? != rustix::net::SocketType::STREAM {
        return Err(wrong("not a stream"));
    }
    if !sockopt::socket_acceptconn(&listener)? {
        return Err(wrong("it does not listen"));
    }
    Ok((listener, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(address: &str) -> InheritedSocket {
        let (listener, address) = portals::open(address.parse().unwrap()).unwrap();
        InheritedSocket { listener, address, name: "targe.socket".to_owned() }
    }

    #[test]
    fn a_portal_gets_the_socket_of_its_address_each_time_and_others_a_new_one() {
        let inherited = InheritedSockets { sockets: vec![socket("127.0.0.1:0")] };
        let address = inherited.sockets[0].address;
        for _ in 0..2 {
            let (listener, told) = inherited.open(address).unwrap();
            assert_eq!((listener.local_addr().unwrap(), told), (address, address));
        }
        let (_, other) = inherited.open("127.0.0.1:0".parse().unwrap()).unwrap();
        assert_ne!(other, address);
    }

    #[test]
    fn a_socket_that_loses_its_portal_is_named() {
        let inherited = InheritedSockets { sockets: vec![socket("127.0.0.1:0")] };
        let portal = |listen| Portal { listen, announce: None, name: None, tag: 1, tls: None };
        let with = [portal(inherited.sockets[0].address)];
        let without = [portal("127.0.0.1:1".parse().unwrap())];
        let warnings = inherited.left_without_portal(&with, &without);
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("(targe.socket)"), "{warnings:?}");
        for (old, new) in [(&with, &with), (&without, &with), (&without, &without)] {
            assert!(inherited.left_without_portal(old, new).is_empty());
        }
    }

    #[test]
    fn the_number_of_sockets_is_bounded() {
        assert!(matches!((count("0"), count("64")), (Ok(0), Ok(64))));
        for text in ["", "-1", "65", "4294967296", "two"] {
            assert_eq!(
                count(text).unwrap_err().to_string(),
                format!("LISTEN_FDS is {text:?}, not a number from 0 to 64")
            );
        }
    }

    #[test]
    fn only_listening_tcp_sockets_are_accepted() {
        use std::net::UdpSocket;
        use std::os::unix::net::UnixListener;

        use rustix::net::{AddressFamily, SocketType, socket};

        let idle = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        assert_eq!(listening(idle).unwrap_err().to_string(), "it does not listen");
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(listening(datagrams.into()).unwrap_err().to_string(), "not a stream");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(listening(file.into()).is_err());
        let path = env::temp_dir().join(format!("targe-activation-{}", std::process::id()));
        let local = UnixListener::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(listening(local.into()).is_err());
    }

    #[test]
    fn a_socket_that_accepts_ipv4_and_ipv6_is_refused() {
        // The standard library leaves the choice to the system.
        let listener = TcpListener::bind("[::]:0").unwrap();
        let address = listener.local_addr().unwrap();
        let both = InheritedSocket { listener, address, name: "targe.socket".to_owned() };
        let expected = format!(
            "the socket {address} (targe.socket), which the service manager passed, accepts IPv4 too; set \
             BindIPv6Only=ipv6-only in its unit"
        );
        assert_eq!(both.checked().unwrap_err().to_string(), expected);
        assert!(socket("[::1]:0").checked().is_ok());
    }
}
