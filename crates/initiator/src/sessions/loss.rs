//! Records why sessions were lost, for the errors of their commands.

use iscsi::initiator::contract::{ConnectionDown, SessionEnd};

use super::{SessionEntry, SessionId, Sessions};
use crate::protocol::ProtocolSession;
use crate::session_error::{LossReason, ProtocolEndReason, SessionError, SessionLoss};

/// The facts about iSCSI connections that ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parted {
    /// Why the last one ended.
    why: Option<ConnectionDown>,
    /// Whether there was a time without any connection.
    was_away: bool,
}

impl Sessions {
    /// Returns why a session was last lost, if it was lost and its owner did not end it.
    pub(crate) fn loss(&self, id: SessionId) -> Option<SessionLoss> {
        self.entries.get(&id).filter(|entry| entry.was_lost()).and_then(SessionEntry::loss)
    }

    /// Returns why a session ended.
    pub(crate) fn down(&self, id: SessionId) -> Option<SessionError> {
        self.entries.get(&id)?.down.clone()
    }

    /// Records that an iSCSI connection ended.
    pub(super) fn note_parted(&mut self, id: SessionId, why: ConnectionDown) {
        // Connections that end with their session do not show why the session ended.
        let own = matches!(why, ConnectionDown::LoggedOut | ConnectionDown::SessionEnded);
        if let Some(entry) = self.entry(id).filter(|_| !own) {
            entry.parted.why = Some(why);
        }
    }

    /// Records that an iSCSI session has no connection.
    pub(super) fn note_away(&mut self, id: SessionId) {
        if let Some(entry) = self.entry(id) {
            entry.parted.was_away = true;
        }
    }
}

impl SessionEntry {
    /// Returns why commands that are lost now are lost.
    pub(super) fn loss(&self) -> Option<SessionLoss> {
        let ended = self.down.as_ref().and_then(|down| down.system.as_ref());
        let system = || self.system.as_ref().or(ended).cloned().map(|text| LossReason::System(text).into());
        match &self.session {
            ProtocolSession::HyperScsi(ether) => {
                system().or_else(|| ether.session.loss().map(|why| LossReason::HyperScsi(why).into()))
            }
            ProtocolSession::Iscsi(_) => match self.parted.why? {
                why @ (ConnectionDown::Unreachable | ConnectionDown::TooSlow) => {
                    system().or(Some(LossReason::Iscsi(why).into()))
                }
                why @ ConnectionDown::Lost(_) => {
                    let refusal = self.refusal.text().map(LossReason::System);
                    Some(refusal.unwrap_or(LossReason::Iscsi(why)).into())
                }
                why => Some(LossReason::Iscsi(why).into()),
            },
        }
    }

    /// Returns why an iSCSI session ended, with what the system or TLS said of its last connection.
    pub(super) fn iscsi_down(&mut self, why: SessionEnd) -> SessionError {
        let last = self.system.take();
        let mut down = SessionError { why: ProtocolEndReason::Iscsi(why), system: None };
        down.system = match down.connection() {
            Some(ConnectionDown::Lost(_)) => self.refusal.text(),
            _ => last,
        };
        down
    }

    /// Returns whether the session was lost, whether it recovered or not, in contrast to a session that its
    /// owner ended.
    fn was_lost(&self) -> bool {
        let given_up = self.down.as_ref().map(|down| down.is_given_up() || down.system.is_some());
        given_up.unwrap_or(self.parted.was_away || self.session.is_hyperscsi())
    }
}
