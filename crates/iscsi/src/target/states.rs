//! The states of a connection and of a session, and their transitions, as the target sees them (RFC 7143 §8).
//!
//! A connection's resources depend on its state: before `LoggedIn` it has no session, and after it no new
//! task. All transitions are looked up here. A transition that the tables do not have is an internal error,
//! never the peer's.

/// The state of a transport connection (§8.1.1, the S states).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// S1: there is no connection.
    Free,
    /// S3: the transport is up and nothing was received yet.
    TransportUp,
    /// S4: the login is under way.
    InLogin,
    /// S5: full feature phase.
    LoggedIn,
    /// S6: a logout was received and is not finished.
    InLogout,
    /// S7: the target asked for a logout.
    LogoutRequested,
    /// S8: the connection is lost, and its resources are being cleaned up.
    CleanupWait,
}

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// T3: the transport connected.
    Connected,
    /// T4: the first Login Request was received.
    LoginRequest,
    /// T5: the last Login Response reports success.
    LoginDone,
    /// T6, T7: the login failed or took too long, or the transport was lost before it was over.
    LoginFailed,
    /// T11, T12: the target asked for a logout.
    AskLogout,
    /// T9, T10: a Logout Request for this connection was received.
    LogoutRequest,
    /// T13: a logout was answered with success, on this connection or, for the whole session, on another one
    /// (T8, T18).
    LoggedOut,
    /// T15 to T17: the transport was lost, or the connection is dropped.
    Lost,
    /// M1 to M4: the resources of the connection are cleaned up.
    CleanedUp,
}

impl Connection {
    /// Every state, in the standard's order.
    pub const ALL: [Self; 7] = [
        Self::Free,
        Self::TransportUp,
        Self::InLogin,
        Self::LoggedIn,
        Self::InLogout,
        Self::LogoutRequested,
        Self::CleanupWait,
    ];

    /// Returns the state that `event` leads to, or `None` if it cannot happen in this state.
    #[must_use]
    pub const fn on(self, event: ConnectionEvent) -> Option<Self> {
        use ConnectionEvent as E;
        Some(match (self, event) {
            (Self::Free, E::Connected) => Self::TransportUp,
            (Self::TransportUp, E::LoginRequest) => Self::InLogin,
            (Self::TransportUp | Self::InLogin, E::LoginFailed) => Self::Free,
            (Self::InLogin, E::LoginDone) => Self::LoggedIn,
            (Self::LoggedIn | Self::LogoutRequested, E::AskLogout) => Self::LogoutRequested,
            (Self::LoggedIn | Self::LogoutRequested, E::LogoutRequest) => Self::InLogout,
            (Self::LoggedIn | Self::LogoutRequested | Self::InLogout, E::LoggedOut) => Self::Free,
            (Self::LoggedIn | Self::LogoutRequested | Self::InLogout, E::Lost) => Self::CleanupWait,
            (Self::CleanupWait, E::CleanedUp) => Self::Free,
            _ => return None,
        })
    }
}

impl ConnectionEvent {
    /// Every event.
    pub const ALL: [Self; 9] = [
        Self::Connected,
        Self::LoginRequest,
        Self::LoginDone,
        Self::LoginFailed,
        Self::AskLogout,
        Self::LogoutRequest,
        Self::LoggedOut,
        Self::Lost,
        Self::CleanedUp,
    ];
}

/// The state of a session (§8.3.2, §8.3.3, the Q states).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session {
    /// Q1: there is no session.
    Free,
    /// Q2: its first connection logs in.
    Active,
    /// Q3: at least one connection is logged in.
    LoggedIn,
    /// Q4: every connection was lost, and the session may still be continued.
    Failed,
    /// Q5: a connection logs in to continue the session.
    InContinue,
}

/// An event of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// N1: a leading login began.
    LeadingLogin,
    /// N2: that login succeeded.
    LeadingLoginDone,
    /// N9: that login failed.
    LeadingLoginFailed,
    /// N3: the last connection logged out, or the session was closed or reinstated.
    Closed,
    /// N5: the last connection was lost.
    ConnectionsLost,
    /// N6: no initiator continued the session in time. At ErrorRecoveryLevel 0 there is nothing to continue,
    /// so this happens at once.
    TimedOut,
    /// N7: a login that continues the session began.
    ContinuingLogin,
    /// N10: that login succeeded.
    ContinuingLoginDone,
    /// N8: that login failed.
    ContinuingLoginFailed,
}

impl Session {
    /// Every state, in the standard's order.
    pub const ALL: [Self; 5] = [Self::Free, Self::Active, Self::LoggedIn, Self::Failed, Self::InContinue];

    /// Returns the state that `event` leads to, or `None` if it cannot happen in this state.
    #[must_use]
    pub const fn on(self, event: SessionEvent) -> Option<Self> {
        use SessionEvent as E;
        Some(match (self, event) {
            (Self::Free, E::LeadingLogin) => Self::Active,
            (Self::Active, E::LeadingLoginDone) => Self::LoggedIn,
            (Self::Active, E::LeadingLoginFailed) => Self::Free,
            (Self::LoggedIn | Self::Failed | Self::InContinue, E::Closed) => Self::Free,
            (Self::LoggedIn, E::ConnectionsLost) => Self::Failed,
            (Self::Failed | Self::InContinue, E::TimedOut) => Self::Free,
            (Self::Failed, E::ContinuingLogin) => Self::InContinue,
            (Self::InContinue, E::ContinuingLoginDone) => Self::LoggedIn,
            (Self::InContinue, E::ContinuingLoginFailed) => Self::Failed,
            // Another connection joins or is replaced while one is logged in.
            (Self::LoggedIn, E::ContinuingLogin | E::ContinuingLoginDone | E::ContinuingLoginFailed) => {
                Self::LoggedIn
            }
            _ => return None,
        })
    }
}

impl SessionEvent {
    /// Every event.
    pub const ALL: [Self; 9] = [
        Self::LeadingLogin,
        Self::LeadingLoginDone,
        Self::LeadingLoginFailed,
        Self::Closed,
        Self::ConnectionsLost,
        Self::TimedOut,
        Self::ContinuingLogin,
        Self::ContinuingLoginDone,
        Self::ContinuingLoginFailed,
    ];
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;

    use super::*;

    /// Prints every (state, event) pair. A pair that is not listed cannot happen.
    fn table() -> String {
        let mut out = String::new();
        for state in Connection::ALL {
            for event in ConnectionEvent::ALL {
                if let Some(next) = state.on(event) {
                    out += &format!("{state:?} --{event:?}--> {next:?}\n");
                }
            }
        }
        out += "\n";
        for state in Session::ALL {
            for event in SessionEvent::ALL {
                if let Some(next) = state.on(event) {
                    out += &format!("{state:?} --{event:?}--> {next:?}\n");
                }
            }
        }
        out
    }

    #[test]
    fn the_transitions_are_those_of_the_committed_table() {
        let table = table();
        assert_eq!(table, include_str!("states.snap"), "the table is now:\n{table}");
    }

    #[test]
    fn every_state_can_be_left_and_leads_back_to_free() {
        for state in Connection::ALL {
            let mut reached = alloc::vec![state];
            while let Some(more) = reached.iter().find_map(|from| {
                ConnectionEvent::ALL.iter().filter_map(|e| from.on(*e)).find(|to| !reached.contains(to))
            }) {
                reached.push(more);
            }
            assert!(reached.contains(&Connection::Free), "{state:?}");
        }
    }
}
