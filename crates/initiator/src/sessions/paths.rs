//! The paths of a session, and what their events mean in both protocols.

use std::collections::BTreeSet;
use std::fmt;

use base::ether::Mac;
use iscsi::initiator::contract::{ConnectionDown, ConnectionLoss, Slot};

use super::Event;

/// A path from this host to a target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Path {
    /// A TCP connection of an iSCSI session.
    #[non_exhaustive]
    Connection {
        /// The CID, which is also the number of the connection in its session, from 0.
        cid: u16,
    },
    /// A pair of Ethernet ports of a HyperSCSI session.
    #[non_exhaustive]
    Ports {
        /// Our interface.
        interface: String,
        /// The Ethernet address of the target.
        peer: [u8; 6],
    },
}

impl Path {
    pub(super) const fn of_connection(slot: Slot) -> Self {
        Self::Connection { cid: slot.0 }
    }

    /// Returns whether this is the path between an interface and an Ethernet address.
    pub(super) fn is_between(&self, name: &str, mac: Mac) -> bool {
        matches!(self, Self::Ports { interface, peer } if interface == name && *peer == mac.0)
    }

    pub(super) const fn of_ports(interface: String, peer: Mac) -> Self {
        Self::Ports { interface, peer: peer.0 }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection { cid } => write!(f, "connection {cid}"),
            Self::Ports { interface, peer } => write!(f, "{interface} to {}", Mac(*peer)),
        }
    }
}

/// Why a path is not up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// No connection could be opened; the text has the error of the system.
    #[error("{0}")]
    Unreachable(String),
    /// Connecting or logging in took too long.
    #[error("the login took too long")]
    TimedOut,
    /// The login failed, or the target refused it.
    #[error("{0}")]
    LoginFailed(String),
    /// The connection was lost.
    #[error("the connection was lost: {0}")]
    Lost(ConnectionLoss),
    /// Nothing was received from the target for too long, or a port has no link.
    #[error("the path carries no frames")]
    Silent,
    /// One of its two Ethernet ports was removed, or has another address.
    #[error("a port of the path was removed")]
    PortGone,
    /// The target violated the protocol.
    #[error("{0}")]
    ProtocolViolation(String),
    /// The target announced that it drops the connection.
    #[error("the target closed the connection")]
    Dropped,
    /// The initiator dropped the path because the target did not answer commands.
    #[error("the target did not answer commands in time")]
    Unanswered,
    /// The initiator logged the path out.
    #[error("the initiator logged out")]
    LoggedOut,
    /// The session ended, or was lost, and its paths with it.
    #[error("the session ended")]
    SessionEnded,
}

impl PathError {
    /// Converts the reason of an iSCSI session. `system` is the error of the last attempt to connect.
    pub(super) fn of_connection(why: ConnectionDown, system: Option<&String>) -> Self {
        match why {
            ConnectionDown::Unreachable => {
                Self::Unreachable(system.cloned().unwrap_or_else(|| why.to_string()))
            }
            ConnectionDown::TooSlow => Self::TimedOut,
            ConnectionDown::Lost(how) => Self::Lost(how),
            ConnectionDown::Refused(_) | ConnectionDown::Login(_) => Self::LoginFailed(why.to_string()),
            ConnectionDown::ProtocolError(_) => Self::ProtocolViolation(why.to_string()),
            ConnectionDown::LoggedOut => Self::LoggedOut,
            ConnectionDown::Dropped => Self::Dropped,
            ConnectionDown::Unanswered => Self::Unanswered,
            ConnectionDown::SessionEnded => Self::SessionEnded,
        }
    }
}

/// The paths of a session that are up.
#[derive(Debug, Default)]
pub(super) struct PathsUp {
    paths: BTreeSet<Path>,
}

impl PathsUp {
    /// Records that a path is up. Returns the event, unless the path was up before.
    pub(super) fn add(&mut self, path: Path) -> Option<Event> {
        self.paths.insert(path.clone()).then_some(Event::PathUp { path })
    }

    /// Records that a path is not up. Returns the event: a path that was up is down, and an attempt to open
    /// another connection failed. HyperSCSI makes no such attempts.
    pub(super) fn remove(&mut self, path: Path, why: PathError) -> Option<Event> {
        if self.paths.remove(&path) {
            return Some(Event::PathDown { path, why });
        }
        matches!(path, Path::Connection { .. }).then_some(Event::PathFailed { path, why })
    }

    /// Returns the paths that are up, in order.
    pub(super) fn list(&self) -> Vec<Path> {
        self.list_unless(|_| false)
    }

    /// Returns the paths that are up, except some.
    pub(super) fn list_unless(&self, skip: impl Fn(&Path) -> bool) -> Vec<Path> {
        self.paths.iter().filter(|path| !skip(path)).cloned().collect()
    }

    /// Returns whether one of the paths that are up is of a kind.
    pub(super) fn has(&self, kind: impl Fn(&Path) -> bool) -> bool {
        self.paths.iter().any(kind)
    }

    /// Records that the session has no path. Returns the events of the paths that were up.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Event> {
        let paths = std::mem::take(&mut self.paths).into_iter();
        paths.map(|path| Event::PathDown { path, why: PathError::SessionEnded })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_events_of_a_path_alternate_in_both_protocols() {
        let connection = Path::of_connection(Slot(1));
        let ports = Path::of_ports("eth0".to_owned(), Mac([2, 0, 0, 0, 0, 7]));
        assert_eq!(
            [&connection, &ports].map(ToString::to_string),
            ["connection 1", "eth0 to 02:00:00:00:00:07"]
        );
        let mut up = PathsUp::default();
        for path in [connection, ports.clone()] {
            let failed = up.remove(path.clone(), PathError::TimedOut);
            match &failed {
                Some(Event::PathFailed { path: of, why: PathError::TimedOut })
                    if *of == path && path != ports => {}
                None if path == ports => {}
                _ => panic!("{failed:?}"),
            }
            assert!(matches!(up.add(path.clone()), Some(Event::PathUp { path: of }) if of == path));
            assert!(up.add(path.clone()).is_none(), "{path} came up twice");
            let down = up.remove(path.clone(), PathError::Lost(ConnectionLoss::Reset));
            assert!(matches!(down, Some(Event::PathDown { why: PathError::Lost(_), .. })), "{down:?}");
        }
        up.add(ports.clone());
        let downs: Vec<Event> = up.clear().collect();
        assert!(matches!(&downs[..], [Event::PathDown { path, .. }] if *path == ports), "{downs:?}");
        assert_eq!(up.clear().count(), 0);
    }
}
