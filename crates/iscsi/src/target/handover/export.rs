//! From a session to its state: whether the session is idle, and what moves.

use alloc::string::ToString;

use base::state_machine::ConnId;
use base::time::Duration;

use super::BusyReason;
use super::state::{
    ConnectionState, PasswordLoginState, RepairsState, SessionParametersState, SessionState, TLS,
    TrafficState,
};
use crate::aead::record_state::RecordKeysState;
use crate::login::SessionKind;
use crate::negotiate::SessionParameters;
use crate::target::connection::Connection;
use crate::target::contract::{Repairs, Traffic};
use crate::target::engine::Engine;
use crate::target::protection::Protection;
use crate::target::session::Session;
use crate::target::states;

impl Engine {
    /// Returns why a session cannot move now, or `None` if it is idle.
    pub(super) fn busy_reason(&self, session: &Session) -> Option<BusyReason> {
        if session.is_discovery() {
            return Some(BusyReason::Discovery);
        }
        let conns = || session.conns.iter().filter_map(|conn| self.conn(*conn));
        let has_lost_tasks =
            !session.lost.is_empty() && session.tasks(&self.tasks).any(|(_, task)| task.is_detached());
        if session.state != states::Session::LoggedIn || session.conns.is_empty() || has_lost_tasks {
            return Some(BusyReason::LostConnection);
        }
        if !session.logouts.is_empty() {
            return Some(BusyReason::Logout);
        }
        if !session.tmfs.is_empty() {
            return Some(BusyReason::TaskManagement);
        }
        let mut open = session.tasks(&self.tasks).filter(|(_, task)| task.sent_status.is_none());
        if open.any(|(_, task)| task.data_out.is_expecting()) {
            return Some(BusyReason::DataOut);
        }
        if session.window.has_gap() {
            return Some(BusyReason::MissingCommand);
        }
        if session.tasks > session.unacked_tasks || has_open_work(session) {
            return Some(BusyReason::Command);
        }
        if !session.response_fence.is_idle() {
            return Some(BusyReason::ResponseFence);
        }
        let asked = self.now.since(session.last_text_request);
        if let Some(reason) = conns().find_map(|conn| busy_connection(conn, asked)) {
            return Some(reason);
        }
        if session.tasks > 0 {
            return Some(BusyReason::Unacknowledged);
        }
        (!self.events.is_empty() || !session.is_announced).then_some(BusyReason::EventPending)
    }

    /// Returns the state of an idle session. A field of [`Session`] or [`Connection`] that is added does not
    /// compile here before it moves, or stands among those that do not.
    pub(super) fn state_of(&self, session: &Session) -> SessionState {
        let Session {
            kind,
            initiator,
            isid,
            tsih,
            parameters,
            user,
            initiator_alias,
            password_login,
            protection,
            conns,
            lost,
            window,
            traffic,
            repairs,
            began,
            first_peer,
            takeovers,
            logout_cause,
            // The new process has them from its configuration.
            limits: _,
            // They are those of any idle session.
            state: _,
            response_fence: _,
            tags: _,
            tasks: _,
            unacked_tasks: _,
            immediate: _,
            tmfs: _,
            ready: _,
            memory_waiters: _,
            holds_r2ts: _,
            shares: _,
            quota_waiters: _,
            revoked: _,
            overdraft: _,
            lost_since: _,
            last_loss: _,
            logouts: _,
            is_dirty: _,
            pending_session_up: _,
            is_announced: _,
            // They begin anew.
            deprioritized_until: _,
            gap_polls: _,
            deadlines: _,
            last_text_request: _,
        } = session;
        let (target, portal_group) = match kind {
            SessionKind::Normal { name, portal_group, .. } => (name.as_str(), portal_group.0),
            SessionKind::Discovery { .. } => ("", 0),
        };
        SessionState {
            target: target.to_string(),
            portal_group,
            initiator: initiator.as_str().to_string(),
            initiator_alias: initiator_alias.clone(),
            isid: isid.0,
            tsih: tsih.0,
            user: user.clone(),
            password_login: password_login.as_ref().map(|login| PasswordLoginState {
                user: login.user.clone(),
                protection: login.protection as u8,
            }),
            protection: match protection {
                Protection::Digest(digest) => Some(digest.name().to_string()),
                Protection::Tls => Some(TLS.to_string()),
                Protection::None => None,
            },
            parameters: parameters_state(parameters),
            exp_cmd_sn: window.exp_cmd_sn().0,
            max_cmd_sn: window.granted_max().0,
            next_ttt: self.next_ttt,
            age: self.now.since(*began),
            first_peer: *first_peer,
            takeovers: takeovers.map(|takeovers| takeovers.state(self.now)),
            traffic: traffic_state(*traffic),
            repairs: repairs_state(*repairs),
            lost: lost.states().collect(),
            logout_cause: *logout_cause,
            connections: conns.iter().filter_map(|conn| self.connection_state(*conn)).collect(),
        }
    }

    fn connection_state(&self, conn: ConnId) -> Option<ConnectionState> {
        let Connection {
            via,
            receiver,
            writer,
            cid,
            parameters,
            stat_sn,
            exp_stat_sn,
            // They follow from the session, or from the portal.
            state: _,
            framing: _,
            session: _,
            protection: _,
            level: _,
            // A connection in full feature phase that is between two PDUs, with nothing to send, has none.
            decryptor: _,
            incoming: _,
            reserved: _,
            login: _,
            guess: _,
            login_cmd_sn: _,
            joins: _,
            logs_in_from: _,
            status_log: _,
            ack_ping: _,
            first_unacked_at_poll: _,
            send_queue: _,
            control_queued: _,
            control_bytes: _,
            text_bytes: _,
            transmit_requested: _,
            closing: _,
            logging_out: _,
            text: _,
            // They begin anew: the time in which the peer has to be heard, and what it owes.
            deadlines: _,
            last_heard: _,
            bytes_since_heard: _,
            data_out_bytes: _,
            data_out_bytes_at_poll: _,
            data_idle_since: _,
            data_timed_out: _,
            command_since_timeout: _,
            data_idle_polls: _,
            ping: _,
            ping_overdue: _,
        } = self.conn(conn)?;
        let receiver = receiver.as_deref()?;
        let keys = writer.encryptor().zip(receiver.decryptor());
        Some(ConnectionState {
            peer: via.peer,
            cid: *cid,
            header_digest: parameters.header_digest.name().to_string(),
            data_digest: parameters.data_digest.name().to_string(),
            initiator_max_recv: parameters.initiator_max_recv,
            target_max_recv: parameters.target_max_recv,
            stat_sn: stat_sn.0,
            exp_stat_sn: exp_stat_sn.0,
            record_keys: keys.map(|(encryptor, decryptor)| RecordKeysState::of(encryptor, decryptor)),
            wrong_tags: receiver.wrong_tags(),
        })
    }
}

/// Returns whether a session holds something that only an open command or task management request explains.
fn has_open_work(session: &Session) -> bool {
    let shares = [&session.shares.unsolicited, &session.shares.solicited, &session.shares.data_in];
    let holds_memory = shares.iter().any(|share| share.held() > 0) || !session.quota_waiters.is_empty();
    session.has_undelivered()
        || !session.window.is_idle()
        || session.immediate > 0
        || session.holds_r2ts
        || session.revoked > 0
        || session.overdraft > 0
        || session.tasks == 0 && holds_memory
}

/// How long ago the last Text Request of a session was if its text negotiation is abandoned. Such a
/// negotiation does not move: a request that continues it after all is rejected.
const TEXT_ABANDONED: Duration = Duration::from_secs(3);

/// Returns why a connection cannot move now, if it cannot. The last Text Request of its session was `asked`
/// ago.
fn busy_connection(connection: &Connection, asked: Duration) -> Option<BusyReason> {
    if connection.state != states::Connection::LoggedIn || !connection.is_reading() {
        return Some(BusyReason::Logout);
    }
    let is_between_pdus = connection.receiver.as_ref().is_some_and(|receiver| receiver.is_between_pdus());
    if !is_between_pdus || connection.incoming.is_some() || connection.decryptor.is_some() {
        return Some(BusyReason::PartialPdu);
    }
    if !connection.send_queue.is_empty() {
        return Some(BusyReason::SendQueue);
    }
    if connection.text.is_negotiating() && asked < TEXT_ABANDONED {
        return Some(BusyReason::TextNegotiation);
    }
    (connection.status_log.len() > 0).then_some(BusyReason::Unacknowledged)
}

fn parameters_state(parameters: &SessionParameters) -> SessionParametersState {
    SessionParametersState {
        max_connections: parameters.max_connections,
        initial_r2t: parameters.initial_r2t,
        immediate_data: parameters.immediate_data,
        max_burst_length: parameters.max_burst_length,
        first_burst_length: parameters.first_burst_length,
        default_time2wait: parameters.default_time2wait,
        default_time2retain: parameters.default_time2retain,
        max_outstanding_r2t: parameters.max_outstanding_r2t,
        data_pdu_in_order: parameters.data_pdu_in_order,
        data_sequence_in_order: parameters.data_sequence_in_order,
        error_recovery_level: parameters.error_recovery_level.number(),
        task_reporting: parameters.task_reporting.name().to_string(),
        protocol_level: parameters.protocol_level,
    }
}

const fn traffic_state(traffic: Traffic) -> TrafficState {
    let Traffic { commands, data_in_bytes, data_out_bytes } = traffic;
    TrafficState { commands, data_in_bytes, data_out_bytes }
}

const fn repairs_state(repairs: Repairs) -> RepairsState {
    let Repairs { header_digest_errors, data_digest_errors, snacks, recovery_r2ts, reassigns } = repairs;
    RepairsState { header_digest_errors, data_digest_errors, snacks, recovery_r2ts, reassigns }
}
