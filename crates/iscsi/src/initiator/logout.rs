//! Logouts (RFC 7143 §11.14, §11.15): of a connection, of the session, and of a lost connection for recovery.

use alloc::vec::Vec;

use base::time::{Duration, Instant};

use super::connection_slot::{ConnectionSlot, ConnectionState, ControlPdu, RecoveryLogout, Timer};
use super::contract::{ConnectionDown, SessionEnd, Slot};
use super::protocol_error::ProtocolError;
use super::session::{Phase, Session};
use crate::pdu::Itt;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::{LogoutResponse, LogoutResult};
use crate::serial::{CmdSn, StatSn};

impl Session {
    pub(super) fn wait(&mut self, slot: Slot, wait: Duration) {
        if let Some(connection_slot) = self.connection_slot_mut(slot) {
            connection_slot.wait = Some(wait);
        }
    }

    /// Drains a connection for which the target requested a logout, and logs it out in time whether it is
    /// empty or not.
    pub(super) fn handle_logout_request(&mut self, now: Instant, slot: Slot, within: Duration) {
        let Some(connection_slot) = self.connection_slot_mut(slot).filter(|slot| slot.is_up()) else {
            return;
        };
        connection_slot.state = ConnectionState::Draining;
        //= rfc7143#section-11.9.1
        //# The initiator MUST honor this request by issuing a Logout as early as possible but no later than
        //# Parameter3 seconds.
        let at = now.after(within.mul_f32(0.75));
        connection_slot.deadlines.set_earlier(Timer::Drain, at);
    }

    /// Drains connections that are not wanted any more, and logs out those without tasks.
    pub(super) fn drain_connections(&mut self, now: Instant) {
        for slot in (0..super::contract::MAX_CONNECTIONS).map(Slot) {
            let unwanted = slot.0 >= self.connections_wanted;
            let Some(connection_slot) = self.connection_slot_mut(slot) else { return };
            match connection_slot.state {
                ConnectionState::Up if unwanted => connection_slot.state = ConnectionState::Draining,
                ConnectionState::Waiting
                    if unwanted && connection_slot.recovery_logout == RecoveryLogout::None =>
                {
                    connection_slot.state = ConnectionState::Idle;
                    connection_slot.deadlines.clear(Timer::Retry);
                }
                _ => {}
            }
            let empty = connection_slot
                .connection
                .as_ref()
                .is_some_and(|connection| connection.tasks == 0 && connection.to_reassign.is_empty());
            if connection_slot.state == ConnectionState::Draining && empty && !self.is_used(slot) {
                self.log_out_connection(now, slot);
            }
        }
    }

    /// Returns whether a connection carries requests other than tasks.
    fn is_used(&self, slot: Slot) -> bool {
        self.tmfs.iter().any(|(_, tmf)| tmf.slot == slot)
            || self.has_text_on(slot)
            || self
                .slots
                .iter()
                .any(|connection_slot| matches!(connection_slot.recovery_logout, RecoveryLogout::Asked { by, .. } if by == slot))
    }

    /// Logs a connection out. The target ends the tasks that are still open on it.
    pub(super) fn log_out_connection(&mut self, now: Instant, slot: Slot) {
        if !self.connection_slot(slot).is_some_and(ConnectionSlot::is_up) {
            return;
        }
        //= rfc7143#section-11.9.1
        //# The initiator MUST send a Logout with a reason code of "close the connection" OR "close the
        //# session" to close all the connections.
        let itt = self.send_logout(slot, LogoutReason::CloseConnection, slot);
        let within = now.after(self.plan.limits.logout_within);
        if let Some(connection_slot) = self.connection_slot_mut(slot) {
            connection_slot.state = ConnectionState::LoggingOut;
            connection_slot.logout = Some(itt);
            connection_slot.deadlines.clear(Timer::Drain);
            connection_slot.deadlines.set(Timer::Logout, within);
        }
    }

    /// Returns whether a Logout Request was sent for a connection, or for the session. From then on no
    /// requests are sent on the connection. Answers to the target's pings and messages still are.
    pub(super) fn is_closing(&self, slot: Slot) -> bool {
        //= rfc7143#section-11.14
        //# After sending the Logout Request PDU, an initiator MUST NOT send any new iSCSI requests on the
        //# closing connection.
        //= rfc7143#section-11.14
        //# If the Logout Request is intended to close the session, new iSCSI requests MUST NOT be sent on any
        //# of the connections participating in the session.
        let logs_out =
            self.connection_slot(slot).is_some_and(|connection_slot| connection_slot.logout.is_some());
        logs_out || self.session_logout.is_some()
    }

    /// Sends a Logout Request on `by` for the connection in slot `about`.
    pub(super) fn send_logout(&mut self, by: Slot, reason: LogoutReason, about: Slot) -> Itt {
        let itt = self.next_tag();
        let request = LogoutRequest {
            immediate: true,
            reason,
            itt,
            cid: about.0,
            cmd_sn: CmdSn(0),
            exp_stat_sn: StatSn(0),
        };
        self.queue_control(by, ControlPdu::Logout(request), Vec::new());
        itt
    }

    /// Returns whether a logout was requested and no request is open.
    pub(super) fn is_ready_to_log_out(&self) -> bool {
        self.logout_requested && self.tasks.is_empty() && self.tmfs.is_empty() && !self.has_text()
    }

    /// Logs out if a logout was requested and no request is open.
    pub(super) fn log_out_if_done(&mut self, now: Instant) {
        if self.phase == Phase::Down || !self.is_ready_to_log_out() || self.session_logout.is_some() {
            return;
        }
        let last = self.any_up(None);
        for slot in (0..super::contract::MAX_CONNECTIONS).map(Slot).filter(|slot| Some(*slot) != last) {
            if matches!(self.connection_state(slot), ConnectionState::Up | ConnectionState::Draining) {
                self.log_out_connection(now, slot);
            }
        }
        if self.slots.iter().any(|connection_slot| connection_slot.state == ConnectionState::LoggingOut) {
            return;
        }
        match last {
            Some(slot) => {
                let itt = self.send_logout(slot, LogoutReason::CloseSession, slot);
                self.session_logout = Some((itt, now.after(self.plan.limits.logout_within)));
            }
            None => self.end_session(SessionEnd::LoggedOut),
        }
    }

    pub(super) fn logout_response(
        &mut self,
        now: Instant,
        slot: Slot,
        pdu: &LogoutResponse,
    ) -> Result<(), ProtocolError> {
        if !self.take_status(now, slot, pdu.sn)? {
            return Ok(());
        }
        if self.session_logout.is_some_and(|(itt, _)| itt == pdu.itt) {
            self.end_session(SessionEnd::LoggedOut);
            return Ok(());
        }
        let wait = Duration::from_secs(pdu.time2wait.into());
        if self.connection_slot(slot).is_some_and(|connection_slot| connection_slot.logout == Some(pdu.itt)) {
            self.wait(slot, wait);
            if pdu.response == LogoutResult::CLOSED {
                self.end_terminated_tasks(slot);
            }
            //= rfc7143#section-11.14
            //# After receiving the Logout Response and attempting to receive the FIN (if still possible), the
            //# initiator MUST completely close the logging-out connection.
            self.connection_lost(now, slot, ConnectionDown::LoggedOut);
            return Ok(());
        }
        let asked = |connection_slot: &ConnectionSlot| matches!(connection_slot.recovery_logout, RecoveryLogout::Asked { by, itt } if by == slot && itt == pdu.itt);
        let Some(connection_slot) = self.slots.iter_mut().find(|connection_slot| asked(connection_slot))
        else {
            // A request that was sent twice, or arrived twice, is answered twice.
            return if self.stale_tags.contains(&pdu.itt) { Ok(()) } else { Err(ProtocolError::UnknownTask) };
        };
        connection_slot.deadlines.clear(Timer::Logout);
        //= rfc7143#section-7.2.2
        //# Before the allegiance reassignment is attempted for a task, an implicit or explicit Logout with
        //# the reason code "remove the connection for recovery" (see Section 11.14.1) MUST be successfully
        //# completed for the previous connection to which the task was allegiant.
        if matches!(pdu.response, LogoutResult::CLOSED | LogoutResult::NO_CID) {
            connection_slot.recovery_logout = RecoveryLogout::Time2Wait;
            connection_slot.deadlines.set(Timer::Reassign, now.after(wait));
        } else {
            self.lose_session(now, ConnectionDown::ProtocolError(ProtocolError::NotRecoverable), wait);
        }
        self.remember(pdu.itt);
        Ok(())
    }

    pub(super) fn logout_too_slow(&mut self, now: Instant, slot: Slot) {
        let Some(connection_slot) = self.connection_slot_mut(slot) else { return };
        if connection_slot.logout.is_some() {
            return self.connection_lost(now, slot, ConnectionDown::LoggedOut);
        }
        if let RecoveryLogout::Asked { itt, .. } = connection_slot.recovery_logout {
            connection_slot.recovery_logout = RecoveryLogout::None;
            self.remember(itt);
            self.log_out_lost_connections(now);
        }
    }
}
