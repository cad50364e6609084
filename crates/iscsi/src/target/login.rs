//! Logins, and the sessions that successful logins create or join (RFC 7143 §6.3).

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::SocketAddr;

use base::state_machine::{Action, ConnId};
use base::time::Instant;
use security::opaque::PasswordRecord;
use transport::target::SessionId;

use super::arena::Key;
use super::contract::{Event, LoginRejected, SessionEnd, SessionUp};
use super::dispatch::PduContext;
use super::engine::Engine;
use super::initiator_notes::{Deviation, Takeovers};
use super::output::{Body, Control};
use super::protection::Protection;
use super::protocol_error::ProtocolError;
use super::session::Session;
use super::states::{self, ConnectionEvent, SessionEvent};
use super::timer::Timer;
use super::window::Window;
use super::{MAX_CONNECTIONS, MAX_ERROR_RECOVERY_LEVEL};
use crate::framing::{DataSink, ReceivedPdu};
use crate::keys::Role;
use crate::login::directory::{
    ConnectionPath, Directory, DiscoveryAccess, Realm, SendTargetsEntry, SessionInfo, SessionQuery,
    TargetAccess, TargetId, TargetLookup,
};
use crate::login::target::{ClaimedIdentity, TargetLogin};
use crate::login::{self, LoginEffect, LoginOutcome, LoginStep, SessionKind, Stage, Status};
use crate::name::{IscsiName, PortalGroupTag, Tsih};
use crate::negotiate::KeyPolicy;
use crate::pdu::login_request::LoginRequest;
use crate::pdu::login_response::LoginResponse;
use crate::pdu::{Itt, Opcode, PduHeader, TargetSn};
use crate::serial::CmdSn;

impl Engine {
    /// Records a login from `peer` that takes over a session. Two hosts use one name if the session goes back
    /// and forth between addresses.
    fn record_takeover(&mut self, now: Instant, old: Key, peer: SocketAddr) -> Option<Takeovers> {
        let session = self.sessions.get(old)?;
        let known = Takeovers::recent(session.takeovers, now);
        let other = session.first_peer.ip();
        if other == peer.ip() {
            return known;
        }
        let mut takeovers = Takeovers::with_another(known, now);
        if takeovers.is_rivalry() {
            self.stats.rival_logins += 1;
            let of = (&session.initiator, &session.kind, session.isid);
            self.notes.report_takeover(of, (peer, other), &mut takeovers);
        }
        Some(takeovers)
    }

    /// Handles a PDU of a connection that has no session.
    pub(super) fn login_pdu(
        &mut self,
        context: PduContext<'_>,
        segment: ReceivedPdu,
    ) -> Result<(), ProtocolError> {
        let conn = context.conn;
        let (DataSink::Append(data), Some(connection)) = (segment.sink, self.conn_mut(conn)) else {
            return Err(ProtocolError::impossible());
        };
        let Some(mut login) = connection.login.take() else { return Err(ProtocolError::impossible()) };
        let is_early = connection.guess.as_ref().is_some_and(|guess| guess.is_waiting());
        let step = if segment.bhs.opcode() == Opcode::LOGIN_REQUEST {
            let request = LoginRequest::decode(&segment.bhs)?;
            if connection.state == states::Connection::TransportUp {
                connection.on(ConnectionEvent::LoginRequest)?;
                connection.login_cmd_sn = request.cmd_sn;
            }
            let directory = WithSessions { outer: context.directory, engine: self, conn };
            let call = as_request(&request, data.filled());
            let step = if is_early {
                login.handle_early(&call)
            } else {
                login.handle(context.now, &call, &directory)
            };
            let joins = self.joined_by(request.tsih, request.isid, login.claims().initiator.as_ref());
            if let Some(connection) = self.conn_mut(conn) {
                connection.joins = joins;
            }
            step
        } else {
            login.handle_other(segment.bhs.itt().0)
        };
        self.pool.recycle_buf(data);
        if login.has_proven() {
            self.end_guess(context.now, conn, true);
        }
        match step {
            LoginStep::Continue(response) => {
                self.keep_login(conn, login)?;
                self.login_response(conn, response)
            }
            LoginStep::PermitGuess { response, guess } => {
                self.keep_login(conn, login)?;
                self.request_guess(context.now, conn, guess, response)
            }
            LoginStep::Complete { response, outcome } => {
                self.hold_text(conn, 0)?;
                self.complete_login(context, response, *outcome)?;
                for departure in login.take_deviations() {
                    self.record_deviation(conn, Deviation::Login(departure));
                }
                Ok(())
            }
            LoginStep::Fail { response, why } => {
                self.record_failed_login(conn, login.claims().clone(), why.into());
                self.refuse_login(conn, response)
            }
            LoginStep::Drop(why) => {
                self.record_failed_login(conn, login.claims().clone(), why.into());
                Err(ProtocolError::Login(why))
            }
        }
    }

    fn keep_login(&mut self, conn: ConnId, login: Box<TargetLogin>) -> Result<(), ProtocolError> {
        let held = login.held();
        if let Some(connection) = self.conn_mut(conn) {
            connection.login = Some(login);
        }
        self.hold_text(conn, held)
    }

    pub(super) fn login_response(
        &mut self,
        conn: ConnId,
        response: login::LoginResponse,
    ) -> Result<(), ProtocolError> {
        let pdu = LoginResponse {
            transit: response.transit,
            continues: response.cont,
            csg: response.csg.0,
            nsg: response.nsg.0,
            version_max: response.version_max,
            version_active: response.version_active,
            isid: response.isid,
            tsih: response.tsih,
            itt: Itt(response.itt),
            sn: TargetSn::default(),
            status: response.status().0,
        };
        self.queue_control(conn, Control::Login(pdu), Body::Text(response.data))
    }

    fn refuse_login(&mut self, conn: ConnId, response: login::LoginResponse) -> Result<(), ProtocolError> {
        self.end_guess(self.now, conn, false);
        self.login_response(conn, response)?;
        if let Some(connection) = self.conn_mut(conn) {
            connection.on(ConnectionEvent::LoginFailed)?;
            connection.closing = true;
            connection.deadlines.clear(Timer::Login);
        }
        //= rfc7143#section-7.12
        //# During login, any failure in negotiation MUST be considered a login process failure; the Login
        //# Phase, along with the connection, MUST be terminated.
        //= rfc7143#section-11.13.5
        //# If the Status-Class is not 0, the initiator and target MUST close the TCP connection.
        self.actions.push_back(Action::Close(conn));
        Ok(())
    }

    /// Creates, joins or reinstates the session of a successful login.
    fn complete_login(
        &mut self,
        context: PduContext<'_>,
        mut response: login::LoginResponse,
        mut outcome: LoginOutcome,
    ) -> Result<(), ProtocolError> {
        let conn = context.conn;
        let record_keys = outcome.record_keys.take();
        let protection = self.protection_of(&context, &outcome);
        let found = match outcome.effect {
            LoginEffect::NewSession => self.new_session(context, &outcome, protection, false),
            //= rfc7143#section-7.15
            //# A target MUST also be prepared to handle a session reinstatement request from the initiator
            //# that may be addressing session errors.
            LoginEffect::ReinstatesSession(old) => {
                let mut rivalry = None;
                let old = self.by_tsih(old, &outcome);
                if let Some(old) = old {
                    let peer = self.conn(conn).map(|connection| connection.via.peer);
                    rivalry = peer.and_then(|peer| self.record_takeover(context.now, old, peer));
                    //= rfc7143#section-7.14
                    //# Either side may choose to escalate to session recovery (via the initiator dropping all
                    //# the connections or via an Async Message that announces the similar intent from a
                    //# target), and the other side MUST give it precedence.
                    self.end_session(old, SessionEnd::Reinstated);
                    self.stats.sessions_reinstated += 1;
                }
                let new = self.new_session(context, &outcome, protection, old.is_some());
                if let Some(session) = new.ok().and_then(|key| self.sessions.get_mut(key)) {
                    session.takeovers = rivalry;
                }
                new
            }
            LoginEffect::AddsConnection(tsih) => self.session_to_join(tsih, &outcome, protection),
            LoginEffect::ReinstatesConnection(tsih) => {
                let session = self.session_to_join(tsih, &outcome, protection);
                session.inspect(|session| self.reinstate(context.now, *session, outcome.cid.0))
            }
        };
        let session = match found {
            Ok(session) => session,
            Err(why) => {
                let claims = ClaimedIdentity {
                    initiator: Some(outcome.initiator),
                    target: match outcome.kind {
                        SessionKind::Normal { name, .. } => Some(name.as_str().into()),
                        SessionKind::Discovery { .. } => None,
                    },
                    user: outcome.user,
                };
                self.record_failed_login(conn, claims, why);
                let status = why.status().unwrap_or(Status::TARGET_ERROR);
                return self.refuse_login(conn, response.refused(status));
            }
        };
        let Some(state) = self.sessions.get_mut(session) else { return Err(ProtocolError::impossible()) };
        let (begins, ends) = match state.state {
            states::Session::Active => (None, SessionEvent::LeadingLoginDone),
            // A login that continues a session without connections changes the session's state only when it
            // is complete.
            _ => (Some(SessionEvent::ContinuingLogin), SessionEvent::ContinuingLoginDone),
        };
        for event in begins.into_iter().chain([ends]) {
            state.on(event)?;
        }
        //= rfc7143#section-4.2.1
        //# iSCSI targets and initiators MUST support at least one TCP connection and MAY support
        //# several connections in a session.
        state.conns.push(conn);
        state.logout_cause.connection_joined();
        state.lost_since = None;
        //= rfc7143#section-6.3.2
        //# If the next stage is FullFeaturePhase, the target MUST reply with a Login Response
        //# with the TSIH value.
        //= rfc7143#section-11.13.3
        //# For a new session, the target MUST generate a non-zero TSIH and ONLY return it in the Login
        //# Final-Response (see Section 6.3).
        response.tsih = state.tsih.0;
        let record_keys = record_keys.map(|seed| seed.derive(Role::Target, state.tsih));
        let announced = state.pending_session_up.take();
        state.is_announced |= announced.is_some();
        let level = state.parameters.error_recovery_level;
        let parameters = outcome.negotiated.connection;
        let pool = self.pool.clone();
        let Some(connection) = self.conn_mut(conn) else { return Err(ProtocolError::impossible()) };
        connection.on(ConnectionEvent::LoginDone)?;
        connection.session = Some(session);
        (connection.cid, connection.protection) = (outcome.cid.0, protection);
        connection.enter_full_feature(parameters, level, record_keys, &pool)?;
        connection.deadlines.clear(Timer::Login);
        self.release_login_slot(conn);
        self.stats.logins += 1;
        self.watch_silence(context.now, conn);
        if !self.traces.is_empty() {
            self.trace_logged_in(conn, protection);
        }
        if let Some(up) = announced {
            self.events.push_back(Event::SessionUp(up));
        }
        self.login_response(conn, response)
    }

    fn new_session(
        &mut self,
        context: PduContext<'_>,
        outcome: &LoginOutcome,
        protection: Protection,
        replaces_session: bool,
    ) -> Result<Key, LoginRejected> {
        // A new session takes the slot of the session that it replaces. A limit that is lower than the
        // present number of sessions is no reason to end one of them.
        if !replaces_session {
            self.make_room_for_session(context, outcome).map_err(LoginRejected::Status)?;
        }
        let via = self.conn(context.conn).map(|connection| connection.via);
        let via = via.ok_or(LoginRejected::Status(Status::TARGET_ERROR))?;
        let tsih = self.new_tsih().ok_or(LoginRejected::Status(Status::OUT_OF_RESOURCES))?;
        let limits = self.limits_for(&outcome.kind);
        //= rfc7143#section-11.12.8
        //# If the Login Request is a leading Login Request, the target MUST use the value presented in the
        //# CmdSN as the target value for the ExpCmdSN.
        let first = CmdSn(outcome.cmd_sn);
        let is_closed = self.is_frozen && matches!(outcome.kind, SessionKind::Normal { .. });
        let window = if is_closed { Window::closed } else { Window::new }(first, limits.queue_depth);
        let names = (outcome.initiator.clone(), outcome.isid, tsih);
        let parameters = outcome.negotiated.session;
        let agreed = (parameters, protection);
        let key = self.sessions.insert_with(|_| {
            Session::new(context.now, outcome.kind.clone(), via.peer, names, agreed, limits, window)
        });
        self.watch_discovery(key);
        if let Some(state) = self.sessions.get_mut(key) {
            state.password_login.clone_from(&outcome.password_login);
            state.user.clone_from(&outcome.user);
            state.initiator_alias.clone_from(&outcome.initiator_alias);
        }
        if let (SessionKind::Normal { target, name, portal_group }, Some(state)) =
            (&outcome.kind, self.sessions.get_mut(key))
        {
            state.pending_session_up = Some(Box::new(SessionUp {
                session: SessionId(key),
                target: *target,
                target_name: name.clone(),
                portal_group: *portal_group,
                portal: via.portal,
                initiator: outcome.initiator.clone(),
                initiator_alias: outcome.initiator_alias.clone(),
                isid: outcome.isid,
                tsih,
                user: outcome.user.clone(),
                parameters,
                protection,
            }));
        }
        Ok(key)
    }

    fn new_tsih(&mut self) -> Option<Tsih> {
        // Of one TSIH more than there are sessions, at least one is free.
        for _ in 0..=self.sessions.len() {
            let tsih = Tsih(self.next_tsih);
            self.next_tsih = self
                .next_tsih
                .checked_add(self.limits.tsih_step.max(1))
                .unwrap_or(self.limits.tsih_first.max(1));
            if self.sessions.iter().all(|(_, session)| session.tsih != tsih) {
                return Some(tsih);
            }
        }
        None
    }

    /// Returns the protection of a connection whose login is complete.
    fn protection_of(&self, context: &PduContext<'_>, outcome: &LoginOutcome) -> Protection {
        let via = self.conn(context.conn).map(|connection| connection.via);
        let has_tls = via.is_some_and(|via| context.directory.is_tls(via.portal));
        Protection::of_connection(has_tls, &outcome.negotiated.connection)
    }

    /// Returns the session that a connection with this protection joins.
    ///
    /// # Errors
    /// Why it joins none. The commands of a session can come on each of its connections, so that one with a
    /// lower protection would give away what the others protect.
    fn session_to_join(
        &self,
        tsih: Tsih,
        outcome: &LoginOutcome,
        protection: Protection,
    ) -> Result<Key, LoginRejected> {
        let gone = LoginRejected::Status(Status::SESSION_DOES_NOT_EXIST);
        let key = self.by_tsih(tsih, outcome).ok_or(gone)?;
        let state = self.sessions.get(key).ok_or(gone)?;
        let (connection, session) = (protection.level(), state.protection.level());
        if connection < session {
            return Err(LoginRejected::LowerProtection { connection, session });
        }
        Ok(key)
    }

    fn by_tsih(&self, tsih: Tsih, outcome: &LoginOutcome) -> Option<Key> {
        let own =
            |session: &Session| session.tsih == tsih && session.is_of_port(&outcome.initiator, outcome.isid);
        self.sessions.iter().find(|(_, session)| own(session)).map(|(key, _)| key)
    }

    /// Removes a connection from its session because a new connection replaces it (connection reinstatement,
    /// §6.3.4). At level 2 its tasks can then be reassigned; below, they end.
    fn reinstate(&mut self, now: Instant, session: Key, cid: u16) {
        self.stats.connections_reinstated += 1;
        self.mark_recovery_logout(now, session, cid);
        if let Some(old) = self.member(session, cid) {
            self.replace_connection(now, session, old);
        }
    }
}

/// The owner's directory, extended by the sessions that the engine knows.
struct WithSessions<'a> {
    outer: &'a dyn Directory,
    engine: &'a Engine,
    /// The connection that logs in.
    conn: ConnId,
}

impl Directory for WithSessions<'_> {
    fn certifies(&self, via: &ConnectionPath, initiator: &IscsiName) -> bool {
        self.outer.certifies(via, initiator)
    }

    fn find_target(&self, via: &ConnectionPath, initiator: &IscsiName, name: &IscsiName) -> TargetLookup {
        match self.outer.find_target(via, initiator, name) {
            TargetLookup::Found(access) => {
                TargetLookup::Found(TargetAccess { keys: as_served(access.keys), ..access })
            }
            // The login may join or replace a session of the same initiator, or replace a silent one. Whether
            // it does is known when it is complete.
            TargetLookup::AtSessionLimit(access)
                if self.engine.sessions_of(access.target, |session| session.initiator == *initiator) > 0
                    || self.engine.may_evict(access.target) =>
            {
                TargetLookup::Found(TargetAccess { keys: as_served(access.keys), ..access })
            }
            other => other,
        }
    }

    fn discovery(&self, via: &ConnectionPath, initiator: &IscsiName) -> DiscoveryAccess {
        match self.outer.discovery(via, initiator) {
            DiscoveryAccess::Granted { auth, keys } => {
                DiscoveryAccess::Granted { auth, keys: as_served(keys) }
            }
            other => other,
        }
    }

    fn portal_group(&self, via: &ConnectionPath) -> PortalGroupTag {
        self.outer.portal_group(via)
    }

    fn chap_secret(&self, realm: Realm, initiator: &IscsiName, user: &str) -> Option<crate::chap::Secret> {
        self.outer.chap_secret(realm, initiator, user)
    }

    fn password_record(
        &self,
        realm: Realm,
        initiator: &IscsiName,
        user: &str,
    ) -> Option<Arc<PasswordRecord>> {
        self.outer.password_record(realm, initiator, user)
    }

    fn find_session(&self, query: &SessionQuery<'_>) -> Option<SessionInfo> {
        let fits = |session: &&Session| {
            self.is_same_nexus(session, query)
                && session.is_of_port(query.initiator, query.isid)
                && (query.tsih == Tsih::NEW || session.tsih == query.tsih && !session.is_discovery())
        };
        let sessions = || self.engine.sessions.iter().map(|(_, session)| session).filter(fits);
        let found = sessions().find(|session| !session.is_discovery()).or_else(|| sessions().next());
        let Some(session) = found else { return self.outer.find_session(query) };
        let cid_of = |conn: &ConnId| Some(self.engine.conn(*conn)?.cid);
        Some(SessionInfo {
            tsih: session.tsih,
            portal_group: target_of(session).1,
            parameters: session.parameters,
            connections: u16::try_from(session.conns.len()).unwrap_or(u16::MAX),
            has_cid: session.conns.iter().any(|conn| cid_of(conn) == Some(query.cid.0))
                || session.lost.has_cid(query.cid.0),
            password_login: session.password_login.clone(),
        })
    }

    fn next_target(
        &self,
        via: &ConnectionPath,
        initiator: &IscsiName,
        after: Option<&IscsiName>,
    ) -> Option<SendTargetsEntry> {
        self.outer.next_target(via, initiator, after)
    }

    fn target_named(
        &self,
        via: &ConnectionPath,
        initiator: &IscsiName,
        name: &IscsiName,
    ) -> Option<SendTargetsEntry> {
        self.outer.target_named(via, initiator, name)
    }
}

impl WithSessions<'_> {
    /// Returns whether a session is with the same target port as the login, so that a login of the same
    /// initiator port replaces it.
    fn is_same_nexus(&self, session: &Session, query: &SessionQuery<'_>) -> bool {
        let (target, group) = target_of(session);
        if target.is_some() || query.target.is_some() {
            // A discovery session that names a target never replaces a normal session: its initiator may have
            // had to prove less. A normal session replaces both.
            let group_fits = query.tsih != Tsih::NEW || group == query.portal_group;
            return target == query.target && group_fits && (session.is_discovery() || !query.is_discovery);
        }
        //= rfc7143#section-7.4.2.1
        //# UNNAMED ISID RULE: Targets MUST enforce the uniqueness of the following 4-tuple for Unnamed
        //# Discovery sessions: <InitiatorName, ISID, NULL, TargetAddress>.
        //= rfc7143#section-7.4.2.1
        //# A new Unnamed Discovery session that has a matching <InitiatorName, ISID, NULL, TargetAddress>
        //# to an existing Discovery session MUST reinstate the existing Unnamed Discovery session.
        //= rfc7143#section-7.4.2.1
        //# Each of the concurrent Discovery sessions, if established by the same initiator port to other
        //# Network Portals, MUST be treated as independent sessions -- i.e., one session MUST NOT reinstate
        //# the other.
        let address_of = |conn| self.engine.conn(conn).map(|connection| connection.via.local);
        session.conns.iter().any(|conn| address_of(*conn) == address_of(self.conn))
    }
}

/// Returns the key policy, reduced to the maxima that this role supports.
fn as_served(keys: KeyPolicy) -> KeyPolicy {
    KeyPolicy {
        //= rfc7143#section-7.1.5
        //# When a defined value of ErrorRecoveryLevel is returned by a responder in a text negotiation, the
        //# responder MUST support the functionality corresponding to the ErrorRecoveryLevel it is accepting.
        error_recovery_level: keys.error_recovery_level.min(MAX_ERROR_RECOVERY_LEVEL),
        max_connections: keys.max_connections.min(MAX_CONNECTIONS),
        ..keys
    }
}

/// Returns the target that a session is with or named, and the portal group that it uses.
fn target_of(session: &Session) -> (Option<TargetId>, PortalGroupTag) {
    match session.kind {
        SessionKind::Normal { target, portal_group, .. }
        | SessionKind::Discovery { named: Some((target, portal_group)) } => (Some(target), portal_group),
        SessionKind::Discovery { named: None } => (None, PortalGroupTag(0)),
    }
}

fn as_request<'a>(pdu: &LoginRequest, data: &'a [u8]) -> login::LoginRequest<'a> {
    login::LoginRequest {
        transit: pdu.transit,
        cont: pdu.continues,
        csg: Stage(pdu.csg),
        nsg: Stage(pdu.nsg),
        version_max: pdu.version_max,
        version_min: pdu.version_min,
        isid: pdu.isid,
        tsih: pdu.tsih,
        itt: pdu.itt.0,
        cid: pdu.cid,
        cmd_sn: pdu.cmd_sn.0,
        exp_stat_sn: pdu.exp_stat_sn.0,
        data,
    }
}
