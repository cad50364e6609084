//! Establishes connections: attempts, logins, redirections, up to full feature phase (RFC 7143 §6.3).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::SocketAddr;

use base::state_machine::{Action, ConnId};
use base::time::{Duration, Instant};
use security::opaque::{StretchJob, StretchResult};

use super::connection_slot::{Connection, ConnectionState, ControlPdu, Timer};
use super::contract::{
    ConnectionDown, Event, MAX_CONNECTIONS, Purpose, SessionEnd, SessionOrigin, SessionUp, Slot,
};
use super::protocol_error::ProtocolError;
use super::session::{FIRST_CMD_SN, Phase, Session};
use crate::framing::{DataSink, ReceivedPdu};
use crate::login::Status;
use crate::login::directory::TargetAddress;
use crate::login::initiator::pdus as login_pdus;
use crate::login::initiator::{
    self as login, InitiatorLogin, InitiatorLoginStep, LoggedIn, LoginPlan, OwnedLoginRequest,
};
use crate::name::Cid;
use crate::pdu::login_response;
use crate::pdu::{PduHeader, TargetSn};
use crate::serial::StatSn;

/// The most redirections of a login before it counts as failed.
const MAX_REDIRECTS: u32 = 8;

/// A connection that was up for this time does not count as a failed attempt.
const STEADY: Duration = Duration::from_secs(5);

impl Session {
    /// Asks the owner to open a connection.
    pub(super) fn start_connecting(&mut self, now: Instant, slot: Slot) {
        let end = now.after(self.plan.limits.login_within);
        let Some(connection_slot) = self.slots.get_mut(usize::from(slot.0)) else { return };
        if connection_slot.connection.is_some()
        //= rfc7143#section-6.3.4
        //# The initiator connection state MUST be CLEANUP_WAIT (Section 8.1.3) when the initiator
        //# attempts a connection reinstatement.
            || !matches!(connection_slot.state, ConnectionState::Idle | ConnectionState::Waiting)
        {
            return;
        }
        let portals = &self.plan.portals;
        let portal = portals.get(connection_slot.portal.checked_rem(portals.len()).unwrap_or(0));
        let Some(to) =
            connection_slot.redirected.clone().or_else(|| portal.map(|portal| portal.address.clone()))
        else {
            return;
        };
        connection_slot.state = ConnectionState::Connecting;
        connection_slot.attempt_end = end;
        connection_slot.deadlines.clear(Timer::Retry);
        connection_slot.deadlines.set(Timer::Login, end);
        let addresses = connection_slot.addresses();
        match to {
            TargetAddress::Socket(address) => {
                addresses.name = None;
                addresses.start([address].into());
                self.connect_next(now, slot);
            }
            TargetAddress::Host { name, port } => {
                addresses.stop();
                addresses.name = Some(name.clone());
                self.events.push_back(Event::Resolve { slot, name, port });
            }
        }
    }

    /// Handles the addresses of the host whose name was to be resolved for `slot`.
    pub fn host_resolved(&mut self, now: Instant, slot: Slot, addresses: Vec<SocketAddr>) {
        if self.connection_state(slot) != ConnectionState::Connecting {
            return;
        }
        if let Some(connection_slot) = self.connection_slot_mut(slot) {
            connection_slot.addresses().start(addresses);
        }
        if !self.connect_next(now, slot) {
            self.connect_failed(now, slot);
        }
    }

    /// Asks the owner to connect to the next address of the present attempt. Returns `false` if there is
    /// none.
    pub(super) fn connect_next(&mut self, now: Instant, slot: Slot) -> bool {
        let Some(connection_slot) = self.connection_slot_mut(slot) else { return false };
        let Some((to, within)) = connection_slot.next_address(now) else { return false };
        let host = connection_slot.addresses().name.clone();
        connection_slot.state = ConnectionState::Connecting;
        connection_slot.deadlines.set(Timer::Login, within);
        self.events.push_back(Event::Connect { slot, to, host });
        true
    }

    /// Handles the failure to open a connection.
    pub fn connect_failed(&mut self, now: Instant, slot: Slot) {
        if self.connection_state(slot) == ConnectionState::Connecting {
            self.connection_lost(now, slot, ConnectionDown::Unreachable);
            self.process_pending(now);
        }
    }

    /// Handles a connection that was opened for `slot`. `entropy` must be fresh random bytes of the operating
    /// system's generator.
    ///
    /// A connection that the session no longer waits for is aborted.
    pub fn connected(&mut self, now: Instant, conn: ConnId, slot: Slot, entropy: [u8; 32]) {
        if self.connection_state(slot) != ConnectionState::Connecting {
            self.actions.push_back(Action::Abort(conn));
            return;
        }
        let itt = self.next_tag();
        //= rfc7143#section-11.12.6
        //# The reserved value 0 MUST be used on the first connection for a new session.
        //= rfc7143#section-11.12.6
        //# Otherwise, the TSIH sent by the target at the conclusion of the successful login of the first
        //# connection for this session MUST be used.
        let purpose = match (&self.plan.purpose, self.tsih) {
            (Purpose::Discovery, _) => login::Purpose::Discovery,
            //= rfc7143#section-6.3.5
            //# the TSIH in the Login PDU MUST be zero to signal session reinstatement.
            (Purpose::Target(target), None) => login::Purpose::NewSession(target.clone()),
            (Purpose::Target(target), Some(tsih)) => {
                login::Purpose::Join { target: target.clone(), tsih, parameters: self.parameters }
            }
        };
        if self.tsih.is_none() {
            self.cmd_sn = FIRST_CMD_SN;
        }
        let plan = LoginPlan {
            initiator_alias: self.plan.alias.clone(),
            portal_group: self.portal_group,
            cid: Cid(slot.0),
            itt: itt.0,
            cmd_sn: self.cmd_sn.0,
            ..LoginPlan::new(
                self.plan.initiator.clone(),
                purpose,
                self.plan.isid,
                self.plan.auth.clone(),
                self.plan.keys.clone(),
            )
        };
        let mut login = InitiatorLogin::new(plan, entropy);
        //= rfc7143#section-11.12
        //# After establishing a TCP connection between an initiator and a target, the initiator MUST start a
        //# Login Phase to gain further access to the target's resources.
        let call = login.start();
        if let Some(connection_slot) = self.connection_slot_mut(slot) {
            connection_slot.state = ConnectionState::LoggingIn;
            connection_slot.connection = Some(Box::new(Connection::new(now, conn, login)));
        }
        //= rfc7143#section-4.2.4
        //# On any connection, the Login Phase MUST immediately follow TCP connection
        //# establishment
        self.send_login_request(slot, call);
    }

    fn send_login_request(&mut self, slot: Slot, call: OwnedLoginRequest) {
        let request = login_pdus::header(&call, StatSn(0));
        self.queue_control(slot, ControlPdu::Login(request), call.data);
    }

    /// Handles a PDU of a login.
    pub(super) fn handle_login_response(
        &mut self,
        now: Instant,
        slot: Slot,
        segment: ReceivedPdu,
    ) -> Result<(), ProtocolError> {
        let ReceivedPdu { bhs, sink, .. } = segment;
        let DataSink::Append(buf) = sink else { return Err(ProtocolError::Bug) };
        let pdu = login_response::LoginResponse::decode(&bhs);
        let data = buf.filled().to_vec();
        self.pool.recycle_buf(buf);
        let pdu = pdu?;
        let response = login_pdus::response(&pdu, data);
        let Some(connection) = self.connection_mut(slot) else { return Err(ProtocolError::Bug) };
        connection.exp_stat_sn = pdu.sn.stat_sn.next();
        let Some(login) = connection.login.as_mut() else { return Err(ProtocolError::Bug) };
        let step = login.handle(&response);
        self.follow_login(now, slot, step, Some(pdu.sn))
    }

    /// Returns the slow step of a password login when one is due. The owner runs it where it delays no other
    /// work, and passes the result to [`Self::job_done`].
    pub fn poll_job(&mut self) -> Option<StretchJob> {
        self.slots.iter_mut().find_map(|slot| slot.connection.as_mut()?.login.as_mut()?.poll_job())
    }

    /// Handles the result of the slow step. The result for a connection that was lost is discarded.
    pub fn job_done(&mut self, now: Instant, result: StretchResult) {
        for slot in (0..MAX_CONNECTIONS).map(Slot) {
            let login = self.connection_mut(slot).and_then(|connection| connection.login.as_mut());
            let Some(login) = login.filter(|login| login.awaits(&result)) else { continue };
            let step = login.job_done(result);
            if self.follow_login(now, slot, step, None).is_err() {
                self.stats.bugs += 1;
                self.connection_lost(now, slot, ConnectionDown::ProtocolError(ProtocolError::Bug));
            }
            break;
        }
        self.process_pending(now);
    }

    /// Takes the next step of a login. `sn` are the numbers of the response that led to it.
    fn follow_login(
        &mut self,
        now: Instant,
        slot: Slot,
        step: InitiatorLoginStep,
        sn: Option<TargetSn>,
    ) -> Result<(), ProtocolError> {
        match step {
            //= rfc7143#section-6.3
            //# There MUST NOT be more than one outstanding Login Request or Login Response on an
            //# iSCSI connection.
            InitiatorLoginStep::Send(call) => self.send_login_request(slot, call),
            InitiatorLoginStep::Stretch => {}
            // Only the login of a proxy relays.
            InitiatorLoginStep::Relay => return Err(ProtocolError::Bug),
            InitiatorLoginStep::Complete(done) => {
                self.logged_in(now, slot, *done, sn.ok_or(ProtocolError::Bug)?);
            }
            //= rfc7143#section-11.13.5
            //# A redirection SHOULD be accepted by an initiator, even without having the target complete a
            //# security negotiation if any security negotiation is required, and MUST be accepted by the
            //# initiator after the completion of the security negotiation if any security negotiation is
            //# required.
            InitiatorLoginStep::Redirected { to, permanently } => self.redirect(now, slot, to, permanently),
            InitiatorLoginStep::Refused(status) => {
                //= rfc7143#section-11.13.5
                //# If the Status-Class is not 0, the initiator and target MUST close the TCP connection.
                self.connection_lost(now, slot, ConnectionDown::Refused(status))
            }
            //= rfc7143#section-6.3
            //# the target MUST respond with a Login reject (initiator error); if detected by the
            //# initiator, the initiator MUST drop the connection.
            //= rfc7143#section-7.12
            //# During login, any failure in negotiation MUST be considered a login process failure; the Login
            //# Phase, along with the connection, MUST be terminated.
            InitiatorLoginStep::Drop(why) => self.connection_lost(now, slot, ConnectionDown::Login(why)),
        }
        Ok(())
    }

    fn logged_in(&mut self, now: Instant, slot: Slot, done: LoggedIn, sn: TargetSn) {
        let joins = self.tsih.is_some();
        let parameters = done.negotiated.connection;
        self.stats.logins += 1;
        if !joins {
            self.tsih = Some(done.tsih);
            self.parameters = done.negotiated.session;
            self.portal_group = done.portal_group;
            (self.cmd_sn, self.exp_cmd_sn) = (FIRST_CMD_SN, FIRST_CMD_SN);
            self.max_cmd_sn = FIRST_CMD_SN.minus(1);
        }
        self.note_window(sn);
        let level = self.level();
        let silence = self.plan.limits.ping_after;
        let pool = self.pool.clone();
        let Some(connection_slot) = self.connection_slot_mut(slot) else { return };
        connection_slot.state = ConnectionState::Up;
        connection_slot.up_since = now;
        connection_slot.redirects = 0;
        connection_slot.addresses().note_working();
        connection_slot.stop_attempt();
        connection_slot.deadlines.clear_all();
        if !silence.is_zero() {
            connection_slot.deadlines.set(Timer::Silence, now.after(silence));
        }
        let Some(connection) = connection_slot.connection.as_deref_mut() else { return };
        if let Err(why) = connection.enter_full_feature(parameters, level, done.record_keys, &pool) {
            self.bug();
            return self.connection_lost(now, slot, ConnectionDown::ProtocolError(why));
        }
        if self.phase != Phase::Up {
            self.come_up(done.peer_authenticated, joins);
        }
        self.events.push_back(Event::ConnectionUp { slot, parameters });
        self.reassign_to_successor(now, slot);
        self.log_out_lost_connections(now);
        self.want_connections(now);
        self.watch_request(now, slot);
    }

    /// Records that the session has a connection again.
    fn come_up(&mut self, peer_authenticated: bool, continued: bool) {
        self.phase = Phase::Up;
        (self.retry_deadline, self.retain_deadline) = (None, None);
        let since = match (self.was_up, continued) {
            (false, _) => SessionOrigin::First,
            (true, false) => SessionOrigin::Rebuilt,
            (true, true) => SessionOrigin::Continued,
        };
        match since {
            SessionOrigin::First => {}
            SessionOrigin::Rebuilt => {
                self.stats.sessions_rebuilt += 1;
                // The LUN may lead to another device now.
                self.identity_checks.restart();
            }
            SessionOrigin::Continued => self.stats.sessions_continued += 1,
        }
        self.origin = since;
        self.was_up = true;
        self.events.push_back(Event::Up(Box::new(SessionUp {
            tsih: self.tsih.unwrap_or_default(),
            parameters: self.parameters,
            portal_group: self.portal_group,
            peer_authenticated,
            origin: since,
        })));
    }

    /// Starts the connections that the owner wants and the target permits.
    pub(super) fn want_connections(&mut self, now: Instant) {
        if self.phase != Phase::Up || self.logout_requested {
            return;
        }
        for slot in (0..self.connections_wanted.min(self.parameters.max_connections)).map(Slot) {
            if self.connection_state(slot) == ConnectionState::Idle {
                if let Some(connection_slot) = self.connection_slot_mut(slot) {
                    connection_slot.portal = usize::from(slot.0);
                }
                self.start_connecting(now, slot);
            }
        }
    }

    /// Changes the number of connections of the session; the target's MaxConnections is a limit. Surplus
    /// connections are drained and logged out.
    pub fn set_connections(&mut self, now: Instant, count: u16) {
        self.connections_wanted = count.clamp(1, MAX_CONNECTIONS);
        if self.plan.purpose == Purpose::Discovery {
            self.connections_wanted = 1;
        }
        self.want_connections(now);
        self.process_pending(now);
    }

    fn redirect(&mut self, now: Instant, slot: Slot, to: TargetAddress, permanently: bool) {
        let Some(connection_slot) = self.slots.get_mut(usize::from(slot.0)) else { return };
        connection_slot.redirects += 1;
        if connection_slot.redirects > MAX_REDIRECTS {
            connection_slot.redirected = None;
            let status = if permanently { Status::MOVED_PERMANENTLY } else { Status::MOVED_TEMPORARILY };
            return self.connection_lost(now, slot, ConnectionDown::Refused(status));
        }
        connection_slot.redirected = Some(to.clone());
        if let Some(connection) = connection_slot.connection.take() {
            self.actions.push_back(Action::Abort(connection.conn));
        }
        connection_slot.state = ConnectionState::Idle;
        self.events.push_back(Event::Redirected { slot, to, permanently });
        self.start_connecting(now, slot);
    }

    pub(super) fn login_too_slow(&mut self, now: Instant, slot: Slot) {
        if self.connection_state(slot) == ConnectionState::Connecting {
            self.events.push_back(Event::CancelConnect { slot });
        }
        self.connection_lost(now, slot, ConnectionDown::TooSlow);
    }

    /// Schedules the next attempt for a slot after a failed one, or after a lost connection; or gives up.
    pub(super) fn try_again(
        &mut self,
        now: Instant,
        slot: Slot,
        why: ConnectionDown,
        was_up: bool,
        wait: Duration,
    ) {
        let (retry, first) = (self.plan.retry, !self.was_up);
        let steady = self
            .connection_slot(slot)
            .is_some_and(|connection_slot| was_up && now.since(connection_slot.up_since) >= STEADY);
        let alone = self.phase != Phase::Up;
        let others = self.slots.iter().any(|connection_slot| {
            matches!(connection_slot.state, ConnectionState::Connecting | ConnectionState::LoggingIn)
        });
        let Some(connection_slot) = self.connection_slot_mut(slot) else { return };
        connection_slot.attempts = if steady { 0 } else { connection_slot.attempts.saturating_add(1) };
        let attempts = connection_slot.attempts;
        connection_slot.state = ConnectionState::Waiting;
        connection_slot.stop_attempt();
        if !was_up {
            // Another portal may work; a redirection is used only while it leads to a target.
            connection_slot.portal = connection_slot.portal.wrapping_add(1);
            connection_slot.redirected = None;
        }
        connection_slot.redirects = 0;
        let portals = self.plan.portals.len();
        let more_portals = usize::try_from(attempts).unwrap_or(usize::MAX) < portals;
        if first && alone && !more_portals && !(retry.first && may_pass(why)) {
            return self.end_session(if may_pass(why) {
                SessionEnd::RetriesExhausted(why)
            } else {
                SessionEnd::Permanent(why)
            });
        }
        let too_many = retry.attempts > 0 && attempts >= retry.attempts && !more_portals;
        if alone && !others && (too_many || retry.timeout.is_zero()) && !first {
            return self.end_session(SessionEnd::RetriesExhausted(why));
        }
        if alone && self.retry_deadline.is_none() && !first {
            self.retry_deadline = Some(now.after(retry.timeout));
        }
        // The first attempt is made immediately, or as soon as the target allows (Time2Wait).
        let backoff = match attempts.checked_sub(1) {
            None => Duration::ZERO,
            Some(0) if was_up => Duration::ZERO,
            Some(_) if first && more_portals => Duration::ZERO,
            Some(doublings) => retry.backoff.saturating_mul(1 << doublings.min(16)).min(retry.backoff_max),
        };
        if let Some(connection_slot) = self.connection_slot_mut(slot) {
            connection_slot.deadlines.set(Timer::Retry, now.after(backoff.max(wait)));
        }
    }
}

/// Returns whether a failure may disappear at the next attempt, or at another address, without intervention.
pub(super) fn may_pass(why: ConnectionDown) -> bool {
    match why {
        ConnectionDown::Unreachable | ConnectionDown::TooSlow | ConnectionDown::Lost(_) => true,
        ConnectionDown::Refused(status) => status.class() == Status::TARGET_ERROR.class(),
        _ => false,
    }
}
