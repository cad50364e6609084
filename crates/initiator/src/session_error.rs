//! Says why there is no session, with the system error of the last attempt.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use hyperscsi::initiator::contract as ether;
use iscsi::initiator::contract::{ConnectionDown, SessionEnd};

use crate::future::Stopped;

/// Why a session is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionError {
    /// The reason that the protocol reports.
    pub(crate) why: ProtocolEndReason,
    /// The system error of the last failed attempt to open a connection or an interface, or the TLS alert by
    /// which the target ended the last connection.
    pub(crate) system: Option<String>,
}

/// The reason that a session of either protocol reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolEndReason {
    /// A reason of an iSCSI session.
    Iscsi(SessionEnd),
    /// A reason of a HyperSCSI session.
    HyperScsi(ether::SessionEnd),
}

/// Why a session was lost, whether it recovers or not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct SessionLoss(#[from] pub(crate) LossReason);

/// The reason that a session of either protocol reports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LossReason {
    /// Why its last connection ended.
    #[error("{0}")]
    Iscsi(ConnectionDown),
    /// Why a HyperSCSI session ended.
    #[error("{0}")]
    HyperScsi(ether::LossReason),
    /// The system error of an interface, or of the last attempt to connect.
    #[error("{0}")]
    System(String),
}

/// Returns the reason in parentheses, to follow "the session was lost"; empty if it is unknown.
pub(crate) fn because(loss: Option<&SessionLoss>) -> String {
    loss.map_or_else(String::new, |why| format!(" ({why})"))
}

/// Returns the text of [`crate::command::CommandError::Down`]. It is the same whether the session was lost
/// before or after the command was submitted.
pub(crate) fn ended(down: &SessionError) -> String {
    if down.is_given_up() {
        return format!("the session was lost ({down}); the command was not executed");
    }
    down.to_string()
}

impl SessionError {
    /// Returns why the last connection could not be opened, if that is why the session ended.
    pub(crate) const fn connection(&self) -> Option<ConnectionDown> {
        match self.why {
            ProtocolEndReason::Iscsi(SessionEnd::RetriesExhausted(why) | SessionEnd::Permanent(why)) => {
                Some(why)
            }
            ProtocolEndReason::Iscsi(SessionEnd::LoggedOut | SessionEnd::Closed)
            | ProtocolEndReason::HyperScsi(_) => None,
        }
    }

    /// Makes the error for a session that the library itself ended.
    pub(crate) fn stopped(why: &str) -> Self {
        Self { why: ProtocolEndReason::Iscsi(SessionEnd::Closed), system: Some(why.to_owned()) }
    }

    #[cfg(test)]
    pub(crate) const fn refused_for_test(status: iscsi::login::Status) -> Self {
        let why = SessionEnd::Permanent(ConnectionDown::Refused(status));
        Self { why: ProtocolEndReason::Iscsi(why), system: None }
    }

    /// Returns whether every further attempt would fail likewise: the target refused the login for good.
    pub const fn is_permanent(&self) -> bool {
        matches!(
            self.why,
            ProtocolEndReason::Iscsi(SessionEnd::Permanent(_))
                | ProtocolEndReason::HyperScsi(ether::SessionEnd::Permanent(_))
        )
    }

    /// Returns whether the session was logged out, so that the target has ended all its tasks.
    pub const fn is_logged_out(&self) -> bool {
        match self.why {
            ProtocolEndReason::Iscsi(why) => matches!(why, SessionEnd::LoggedOut),
            ProtocolEndReason::HyperScsi(why) => matches!(why, ether::SessionEnd::LoggedOut),
        }
    }

    /// Returns whether the session was given up, rather than ended by its owner.
    pub const fn is_given_up(&self) -> bool {
        match self.why {
            ProtocolEndReason::Iscsi(_) => self.connection().is_some(),
            ProtocolEndReason::HyperScsi(why) => {
                matches!(why, ether::SessionEnd::RetriesExhausted(_) | ether::SessionEnd::Permanent(_))
            }
        }
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let down: &dyn fmt::Display = match (&self.why, self.connection(), &self.system) {
            (
                _,
                Some(ConnectionDown::Unreachable | ConnectionDown::TooSlow | ConnectionDown::Lost(_)),
                Some(system),
            ) => return f.write_str(system),
            (_, Some(why), _) => return write!(f, "{why}"),
            (ProtocolEndReason::HyperScsi(_), _, Some(system)) => return f.write_str(system),
            (
                ProtocolEndReason::HyperScsi(
                    why @ (ether::SessionEnd::RetriesExhausted(_) | ether::SessionEnd::Permanent(_)),
                ),
                ..,
            ) => {
                return write!(f, "{why}");
            }
            (ProtocolEndReason::Iscsi(why), ..) => why,
            (ProtocolEndReason::HyperScsi(why), ..) => why,
        };
        write!(f, "the session has ended: {down}")
    }
}

impl std::error::Error for SessionError {}

/// Makes the error for a client whose thread has ended.
impl From<Stopped> for SessionError {
    fn from(stopped: Stopped) -> Self {
        Self::stopped(&stopped.to_string())
    }
}

/// Returns the text for an address that could not be reached.
pub(crate) fn unreachable(address: SocketAddr, why: &io::Error) -> String {
    let text = match why.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused (no process listens there)".to_owned(),
        io::ErrorKind::TimedOut => "timed out".to_owned(),
        _ => why.to_string(),
    };
    format!("cannot connect to {address}: {text}")
}

/// Returns the text for a name that could not be resolved.
pub(crate) fn unresolved(name: &str, why: &io::Error) -> String {
    format!("cannot resolve the host name {name}: {why}")
}

#[cfg(test)]
mod tests {
    use hyperscsi::pdu::disconnect::DisconnectReason;
    use iscsi::initiator::contract::ConnectionLoss;

    use super::*;
    use crate::command::CommandError;

    #[test]
    fn who_was_replaced_reads_by_whom() {
        let replaced = ether::LossReason::Ended(DisconnectReason::REPLACED);
        let why = "another initiator with the same name and ISID took the place of this session";
        let down = SessionError {
            why: ProtocolEndReason::HyperScsi(ether::SessionEnd::Permanent(replaced)),
            system: None,
        };
        assert_eq!(down.to_string(), why);
        let lost = CommandError::Lost(Some(LossReason::HyperScsi(replaced).into())).to_string();
        let unknown = "it is unknown whether the command was executed";
        assert_eq!(lost, format!("the session was lost ({why}); {unknown}"));
        assert_eq!(CommandError::Lost(None).to_string(), format!("the session was lost; {unknown}"));
    }
    #[test]
    fn a_command_after_the_loss_reads_as_one_before() {
        let down = |why| {
            CommandError::Down(SessionError { why: ProtocolEndReason::Iscsi(why), system: None }).to_string()
        };
        assert_eq!(
            down(SessionEnd::RetriesExhausted(ConnectionDown::Lost(ConnectionLoss::Reset))),
            "the session was lost (the connection was lost: connection reset by peer); the command was not executed"
        );
        assert!(down(SessionEnd::LoggedOut).starts_with("the session has ended: "));
    }
}
