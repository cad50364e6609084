//! From a state to a session: everything is checked first, and then nothing can fail.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::ops::RangeInclusive;

use base::state_machine::ConnId;
use base::time::{Duration, Instant};
use security::Level;
use transport::target::SessionId;

use super::ResumeError;
use super::state::{ConnectionState, SessionParametersState, SessionState, TLS};
use crate::aead::{AeadDigest, Decryptor, RecordKeys};
use crate::framing::WRONG_TAGS_MAX;
use crate::keys::{Key as TextKey, Kind, MAX_LENGTH_VALUE};
use crate::login::directory::{Directory, TargetId};
use crate::login::{self, PasswordLogin, SessionKind};
use crate::name::{IscsiName, Isid, PortalGroupTag, Tsih};
use crate::negotiate::{ConnectionParameters, Digest, SessionParameters, TaskReporting};
use crate::pdu::nop_in::NopIn;
use crate::pdu::{Itt, TargetSn, Ttt};
use crate::recovery::RecoveryLevel;
use crate::serial::{CmdSn, StatSn};
use crate::target::allegiance::{LostConnectionState, MAX_LOST, retention};
use crate::target::arena::Key;
use crate::target::connection::index;
use crate::target::contract::{Event, Repairs, SessionUp, Traffic};
use crate::target::engine::Engine;
use crate::target::initiator_notes::Takeovers;
use crate::target::logout_cause::LogoutCause;
use crate::target::output::{Body, Control};
use crate::target::protection::Protection;
use crate::target::session::{Request, Session};
use crate::target::states::{self, ConnectionEvent, SessionEvent};
use crate::target::timer::{Owner, Timer};
use crate::target::window::Window;
use crate::target::{MAX_CONNECTIONS, MAX_ERROR_RECOVERY_LEVEL};

/// The highest value of a counter that is accepted, so that it can go on counting.
const COUNTER_MAX: u64 = 1 << 62;

/// A state that was checked.
pub(super) struct Resumed {
    kind: SessionKind,
    target: (TargetId, IscsiName, PortalGroupTag),
    initiator: IscsiName,
    initiator_alias: Option<String>,
    isid: Isid,
    tsih: Tsih,
    user: Option<String>,
    password_login: Option<PasswordLogin>,
    protection: Protection,
    parameters: SessionParameters,
    window: Window<Request>,
    next_ttt: u32,
    age: Duration,
    first_peer: SocketAddr,
    takeovers: Option<Takeovers>,
    traffic: Traffic,
    repairs: Repairs,
    lost: Vec<LostConnectionState>,
    logout_cause: LogoutCause,
    connections: Vec<ResumedConnection>,
}

/// A connection that was checked.
struct ResumedConnection {
    conn: ConnId,
    cid: u16,
    parameters: ConnectionParameters,
    protection: Protection,
    stat_sn: StatSn,
    exp_stat_sn: StatSn,
    record_keys: Option<RecordKeys>,
    wrong_tags: u32,
}

impl Engine {
    /// Checks a state and the connections that were given for it.
    pub(super) fn check_state(
        &self,
        state: SessionState,
        target: TargetId,
        conns: &[ConnId],
        directory: &dyn Directory,
    ) -> Result<Resumed, ResumeError> {
        let name = state.target().ok_or(ResumeError::Name("target"))?;
        let initiator = state.initiator().ok_or(ResumeError::Name("initiator"))?;
        let portal_group = PortalGroupTag(state.portal_group);
        let kind = SessionKind::Normal { target, name: name.clone(), portal_group };
        let (isid, tsih) = (Isid(state.isid), Tsih(state.tsih));
        self.check_identity(&kind, &initiator, isid, tsih)?;
        let parameters = session_parameters(&state.parameters)?;
        let limits = self.limits_for(&kind);
        let window = Window::resumed(CmdSn(state.exp_cmd_sn), CmdSn(state.max_cmd_sn), limits.queue_depth);
        let protection = match state.protection.as_deref() {
            None => Protection::None,
            Some(TLS) => Protection::Tls,
            Some(digest) => {
                let digest = AeadDigest::by_name(digest).ok_or(ResumeError::Protection)?;
                Protection::Digest(Digest::Aead(digest))
            }
        };
        let password_login = match &state.password_login {
            None => None,
            Some(login) => Some(PasswordLogin {
                user: display_text(Some(&login.user), "user name")?.unwrap_or_default(),
                protection: Level::from_code(login.protection).ok_or(ResumeError::Protection)?,
            }),
        };
        let keeps_lost = parameters.error_recovery_level.reassigns_tasks();
        if state.lost.len() > if keeps_lost { MAX_LOST } else { 0 } {
            return Err(ResumeError::LostConnections);
        }
        Ok(Resumed {
            connections: self.check_connections(
                &state.connections,
                &parameters,
                protection,
                (conns, directory),
            )?,
            kind,
            target: (target, name, portal_group),
            initiator,
            initiator_alias: display_text(state.initiator_alias.as_deref(), "InitiatorAlias")?,
            isid,
            tsih,
            user: display_text(state.user.as_deref(), "user name")?,
            password_login,
            protection,
            parameters,
            window: window.ok_or(ResumeError::Window)?,
            next_ttt: state.next_ttt,
            age: state.age,
            first_peer: state.first_peer,
            takeovers: match &state.takeovers {
                None => None,
                Some(takeovers) => {
                    let of = Takeovers::of_state(takeovers, self.now, COUNTER_MAX);
                    Some(of.ok_or(ResumeError::Counter("takeovers"))?)
                }
            },
            traffic: traffic(&state)?,
            repairs: repairs(&state)?,
            lost: state.lost,
            logout_cause: state.logout_cause,
        })
    }

    /// Checks that the session can be told from all others.
    fn check_identity(
        &self,
        kind: &SessionKind,
        initiator: &IscsiName,
        isid: Isid,
        tsih: Tsih,
    ) -> Result<(), ResumeError> {
        if tsih == Tsih::NEW {
            return Err(ResumeError::NoTsih);
        }
        for (_, other) in self.sessions.iter() {
            if other.tsih == tsih {
                return Err(ResumeError::TsihInUse(tsih.0));
            }
            if other.kind == *kind && other.is_of_port(initiator, isid) {
                return Err(ResumeError::SessionExists);
            }
        }
        Ok(())
    }

    fn check_connections(
        &self,
        states: &[ConnectionState],
        parameters: &SessionParameters,
        protection: Protection,
        (conns, directory): (&[ConnId], &dyn Directory),
    ) -> Result<Vec<ResumedConnection>, ResumeError> {
        let max = usize::from(parameters.max_connections);
        if states.len() != conns.len() || states.is_empty() || states.len() > max {
            return Err(ResumeError::ConnectionCount { state: states.len(), given: conns.len(), max });
        }
        let mut checked: Vec<ResumedConnection> = Vec::with_capacity(states.len());
        for (state, conn) in states.iter().zip(conns) {
            if checked.iter().any(|other| other.conn == *conn) {
                return Err(ResumeError::NotNew(*conn));
            }
            if checked.iter().any(|other| other.cid == state.cid) {
                return Err(ResumeError::DuplicateCid(state.cid));
            }
            checked.push(self.check_connection(state, parameters, protection, (*conn, directory))?);
        }
        Ok(checked)
    }

    fn check_connection(
        &self,
        state: &ConnectionState,
        session: &SessionParameters,
        protection: Protection,
        (conn, directory): (ConnId, &dyn Directory),
    ) -> Result<ResumedConnection, ResumeError> {
        let connection = self.conn(conn).ok_or(ResumeError::NotNew(conn))?;
        let receiver = connection.receiver.as_deref().ok_or(ResumeError::NotNew(conn))?;
        if connection.state != states::Connection::TransportUp
            || connection.session.is_some()
            || !connection.is_reading()
            || !receiver.is_between_pdus()
        {
            return Err(ResumeError::NotNew(conn));
        }
        // A connection that the peer has reset has no peer address any more. Its session learns of the reset
        // when it goes on.
        let has_peer = !connection.via.peer.ip().is_unspecified();
        if has_peer && connection.via.peer != state.peer {
            return Err(ResumeError::Peer(conn));
        }
        let parameters = connection_parameters(state)?;
        let record_keys = record_keys(state, &parameters)?;
        let own = Protection::of_connection(directory.is_tls(connection.via.portal), &parameters);
        if own.level() < protection.level() {
            return Err(ResumeError::Protection);
        }
        let (stat_sn, exp_stat_sn) = (StatSn(state.stat_sn), StatSn(state.exp_stat_sn));
        if session.error_recovery_level.retains_statuses() && stat_sn != exp_stat_sn {
            return Err(ResumeError::Unacknowledged(state.cid));
        }
        // At such a sum the session would have ended.
        if state.wrong_tags >= WRONG_TAGS_MAX {
            return Err(ResumeError::RecordKeys(state.cid));
        }
        let (cid, wrong_tags) = (state.cid, state.wrong_tags);
        Ok(ResumedConnection {
            conn,
            cid,
            parameters,
            protection: own,
            stat_sn,
            exp_stat_sn,
            record_keys,
            wrong_tags,
        })
    }

    /// Creates a session from a state that was checked.
    pub(super) fn insert_resumed(&mut self, now: Instant, resumed: Resumed) -> SessionId {
        let Resumed { kind, initiator, isid, tsih, parameters, protection, first_peer, window, .. } = resumed;
        let limits = self.limits_for(&kind);
        // What initiators were granted bounds the statuses that are retained.
        self.depth_max = self.depth_max.max(window.granted());
        if self.sessions.is_empty() || before(self.next_ttt, resumed.next_ttt) {
            self.next_ttt = resumed.next_ttt;
        }
        let conns: Vec<ConnId> = resumed.connections.iter().map(|connection| connection.conn).collect();
        let key = self.sessions.insert_with(|_| {
            let mut session = Session::new(
                now,
                kind,
                first_peer,
                (initiator.clone(), isid, tsih),
                (parameters, protection),
                limits,
                window,
            );
            session.conns = conns.iter().copied().collect();
            session.user.clone_from(&resumed.user);
            session.initiator_alias.clone_from(&resumed.initiator_alias);
            session.password_login = resumed.password_login;
            session.began = now.before(resumed.age);
            session.takeovers = resumed.takeovers;
            session.logout_cause = resumed.logout_cause;
            session.traffic = resumed.traffic;
            session.repairs = resumed.repairs;
            session.is_announced = true;
            session
        });
        let session = self.sessions.get_mut(key);
        let moved = session.map(|session| session.on(SessionEvent::LeadingLoginDone));
        self.expect_legal(moved.unwrap_or(Ok(())));
        self.resume_lost(now, key, &resumed.lost);
        for connection in resumed.connections {
            self.resume_connection(now, key, connection, parameters.error_recovery_level);
        }
        let first = conns.first().copied();
        let portal = first.and_then(|conn| self.conn(conn)).map(|connection| connection.via.portal);
        let (target, target_name, portal_group) = resumed.target;
        if let Some(portal) = portal {
            self.events.push_back(Event::SessionUp(Box::new(SessionUp {
                session: SessionId(key),
                target,
                target_name,
                portal_group,
                portal,
                initiator,
                initiator_alias: resumed.initiator_alias,
                isid,
                tsih,
                user: resumed.user,
                parameters,
                protection,
            })));
        }
        if let Some(conn) = first {
            self.tell_window(conn);
        }
        SessionId(key)
    }

    /// Records the lost connections of a session. Their retention time starts anew.
    fn resume_lost(&mut self, now: Instant, key: Key, lost: &[LostConnectionState]) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let parameters = &session.parameters;
        let retention = retention(parameters.default_time2wait, parameters.default_time2retain);
        for LostConnectionState { cid, logged_out } in lost {
            session.lost.insert((*cid, *logged_out), now, retention, &[]);
        }
        if let Some(next) = session.lost.next_expiry() {
            self.timers.set(Owner::Session(key), &mut session.deadlines, Timer::Retain, next);
        }
    }

    /// Turns a new connection into one of a session, as its login did in the other engine.
    fn resume_connection(
        &mut self,
        now: Instant,
        session: Key,
        resumed: ResumedConnection,
        level: RecoveryLevel,
    ) {
        let ResumedConnection { conn, cid, parameters, protection, stat_sn, exp_stat_sn, .. } = resumed;
        let pool = self.pool.clone();
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut) else {
            return self.impossible(None);
        };
        let events = [ConnectionEvent::LoginRequest, ConnectionEvent::LoginDone];
        let moved = events.into_iter().try_for_each(|event| connection.on(event));
        (connection.login, connection.session) = (None, Some(session));
        (connection.cid, connection.protection) = (cid, protection);
        connection.stat_sn = stat_sn;
        let entered = connection.enter_full_feature(parameters, level, resumed.record_keys, &pool);
        connection.exp_stat_sn = exp_stat_sn;
        let decryptor: Option<Box<Decryptor>> = connection.decryptor.take();
        if let Some(receiver) = &mut connection.receiver {
            receiver.set_framing(connection.framing);
            if let Some(decryptor) = decryptor {
                receiver.resume_decryptor(*decryptor, resumed.wrong_tags);
            }
        }
        connection.deadlines.clear(Timer::Login);
        self.release_login_slot(conn);
        self.expect_legal(moved.and(entered));
        self.watch_silence(now, conn);
        if !self.traces.is_empty() {
            self.trace_logged_in(conn, protection);
        }
    }

    /// Queues a NOP-In that shows the initiator its command window: it may have waited for it to open.
    fn tell_window(&mut self, conn: ConnId) {
        //= rfc7143#section-11.19.1
        //# If the target is initiating a NOP-In without wanting to receive a corresponding NOP-Out, this
        //# field MUST hold the reserved value 0xffffffff.
        let shown = NopIn { lun: 0, itt: Itt::NONE, ttt: Ttt::NONE, sn: TargetSn::default() };
        if let Err(why) = self.queue_control(conn, Control::NopIn(shown), Body::Empty) {
            self.drop_connection(conn, why);
        }
    }
}

/// Returns whether one target transfer tag was handed out before another: they wrap around.
const fn before(tag: u32, other: u32) -> bool {
    let ahead = other.wrapping_sub(tag);
    ahead != 0 && ahead < 1 << 31
}

/// Returns a text that was made printable when it was received, if it is such a text.
fn display_text(text: Option<&str>, what: &'static str) -> Result<Option<String>, ResumeError> {
    match text.map(|text| (text, login::printable(text.as_bytes()))) {
        None => Ok(None),
        Some((text, printable)) if printable == text => Ok(Some(printable)),
        Some(_) => Err(ResumeError::Text(what)),
    }
}

/// Returns a number, if it is in the range of its key and at most `max`.
fn number<T: Copy + Into<u32>>(key: TextKey, value: T, max: u32) -> Result<T, ResumeError> {
    let range: RangeInclusive<u32> = match key.spec().kind {
        Kind::Number { min, max: most, .. } | Kind::DeclaredNumber { min, max: most, .. } => {
            min..=most.min(max)
        }
        _ => 0..=max,
    };
    if range.contains(&value.into()) { Ok(value) } else { Err(ResumeError::Parameter(key.name())) }
}

fn session_parameters(state: &SessionParametersState) -> Result<SessionParameters, ResumeError> {
    const ANY: u32 = u32::MAX;
    let level =
        number(TextKey::ErrorRecoveryLevel, state.error_recovery_level, MAX_ERROR_RECOVERY_LEVEL.into())?;
    let max_burst_length = number(TextKey::MaxBurstLength, state.max_burst_length, ANY)?;
    let reporting = TaskReporting::named(&state.task_reporting);
    Ok(SessionParameters {
        max_connections: number(TextKey::MaxConnections, state.max_connections, MAX_CONNECTIONS.into())?,
        initial_r2t: state.initial_r2t,
        immediate_data: state.immediate_data,
        max_burst_length,
        first_burst_length: number(TextKey::FirstBurstLength, state.first_burst_length, max_burst_length)?,
        default_time2wait: number(TextKey::DefaultTime2Wait, state.default_time2wait, ANY)?,
        default_time2retain: number(TextKey::DefaultTime2Retain, state.default_time2retain, ANY)?,
        max_outstanding_r2t: number(TextKey::MaxOutstandingR2T, state.max_outstanding_r2t, ANY)?,
        data_pdu_in_order: state.data_pdu_in_order,
        data_sequence_in_order: state.data_sequence_in_order,
        error_recovery_level: RecoveryLevel::new(level.into()),
        task_reporting: reporting.ok_or(ResumeError::Parameter(TextKey::TaskReporting.name()))?,
        protocol_level: number(TextKey::ProtocolLevel, state.protocol_level, ANY)?,
    })
}

fn connection_parameters(state: &ConnectionState) -> Result<ConnectionParameters, ResumeError> {
    let digest = |key: TextKey, name: &str| Digest::named(name).ok_or(ResumeError::Parameter(key.name()));
    let max_recv = |max| number(TextKey::MaxRecvDataSegmentLength, max, MAX_LENGTH_VALUE);
    Ok(ConnectionParameters {
        header_digest: digest(TextKey::HeaderDigest, &state.header_digest)?,
        data_digest: digest(TextKey::DataDigest, &state.data_digest)?,
        initiator_max_recv: max_recv(state.initiator_max_recv)?,
        target_max_recv: max_recv(state.target_max_recv)?,
    })
}

/// Returns the keys of a connection: of exactly the AEAD digest that was negotiated, if one was.
fn record_keys(
    state: &ConnectionState,
    parameters: &ConnectionParameters,
) -> Result<Option<RecordKeys>, ResumeError> {
    let refused = ResumeError::RecordKeys(state.cid);
    // docs/iscsi-aead.md §5: an AEAD digest is that of headers and of data.
    let (header, data) = (parameters.header_digest.aead(), parameters.data_digest.aead());
    if header != data {
        return Err(refused);
    }
    let keys = match &state.record_keys {
        None => None,
        Some(keys) => Some(keys.keys().ok_or(refused)?),
    };
    // The keys of a test, or of the simulator, come from no login.
    let has_no_digest = [parameters.header_digest, parameters.data_digest] == [Digest::None; 2];
    let may_be_injected = cfg!(any(test, feature = "injected-keys")) && has_no_digest;
    let is_legal = match &keys {
        None => header.is_none(),
        Some(keys) => header == Some(keys.digest) || may_be_injected,
    };
    if is_legal { Ok(keys) } else { Err(refused) }
}

/// Returns a counter, if it can go on counting.
const fn counter(value: u64, name: &'static str) -> Result<u64, ResumeError> {
    if value <= COUNTER_MAX { Ok(value) } else { Err(ResumeError::Counter(name)) }
}

fn traffic(state: &SessionState) -> Result<Traffic, ResumeError> {
    Ok(Traffic {
        commands: counter(state.traffic.commands, "commands")?,
        data_in_bytes: counter(state.traffic.data_in_bytes, "data_in_bytes")?,
        data_out_bytes: counter(state.traffic.data_out_bytes, "data_out_bytes")?,
    })
}

fn repairs(state: &SessionState) -> Result<Repairs, ResumeError> {
    Ok(Repairs {
        header_digest_errors: counter(state.repairs.header_digest_errors, "header_digest_errors")?,
        data_digest_errors: counter(state.repairs.data_digest_errors, "data_digest_errors")?,
        snacks: counter(state.repairs.snacks, "snacks")?,
        recovery_r2ts: counter(state.repairs.recovery_r2ts, "recovery_r2ts")?,
        reassigns: counter(state.repairs.reassigns, "reassigns")?,
    })
}
