//! Why there is no session, with what the system said of its last attempt.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use iscsi::initiator::contract::{ConnectionDown, Down};

/// Why a session is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionDown {
    /// What the session says.
    pub why: Down,
    /// What the system said when a connection could last not be opened.
    pub system: Option<String>,
}

impl SessionDown {
    /// Returns why the last connection could not be had, if that is the reason.
    pub const fn connection(&self) -> Option<ConnectionDown> {
        match self.why {
            Down::NoPath(why) | Down::Hopeless(why) => Some(why),
            Down::LoggedOut | Down::Closed => None,
        }
    }
}

impl fmt::Display for SessionDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.connection(), &self.system) {
            (Some(ConnectionDown::Unreachable | ConnectionDown::TooSlow), Some(system)) => {
                f.write_str(system)
            }
            (Some(why), _) => write!(f, "{why}"),
            (None, _) => write!(f, "the session is over: {}", self.why),
        }
    }
}

impl std::error::Error for SessionDown {}

/// Says why an address could not be reached.
pub(crate) fn unreachable(address: SocketAddr, why: &io::Error) -> String {
    let text = match why.kind() {
        io::ErrorKind::ConnectionRefused => "nobody listens there (connection refused)".to_owned(),
        io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        _ => why.to_string(),
    };
    format!("cannot connect to {address}: {text}")
}

/// Says why a name could not be resolved.
pub(crate) fn unresolved(name: &str, why: &io::Error) -> String {
    format!("cannot find the host {name}: {why}")
}
