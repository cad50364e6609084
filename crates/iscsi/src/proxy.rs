//! A proxy between an initiator on the same host, in the clear, and a target over a connection with an AEAD
//! digest (`docs/iscsi-aead.md`). [`ProxyConnection`] is one connection of the initiator and the connection
//! to the target that belongs to it.
//!
//! The proxy has no sessions and no tasks of its own. The login to the target has the names, ISID, TSIH, CID
//! and CmdSN of the initiator's login. In addition it has the password login and the AEAD digests. The texts
//! of all other operational keys pass between the two logins, so both connections have the same parameters:
//!
//! | key | between initiator and proxy | between proxy and target |
//! |---|---|---|
//! | AuthMethod | None | the password login |
//! | HeaderDigest, DataDigest | CRC32C or None, as the initiator prefers | an AEAD digest |
//! | MaxRecvDataSegmentLength | at most 64 KiB in both directions | at most 64 KiB in both directions; half of the initiator's in discovery sessions |
//! | all others | as initiator and target agree | the same |
//!
//! After the login every PDU goes to the other side with the same header: the digest of one side is checked,
//! and that of the other side is made. Tags and sequence numbers mean the same on both sides, so everything
//! that needs a session is between the initiator and the target: ordering, task management, error recovery,
//! session and connection reinstatement. For the same reason the Login Responses to the initiator have the
//! StatSN of those of the target: each response after the first one costs one exchange with the target. Only
//! where the initiator sends its first text in pieces, the StatSNs of the two connections differ
//! (`stat_sn`).
//!
//! The proxy changes the text of two keys in full feature phase: TargetAddress in the answer to
//! SendTargets becomes the address of the proxy, and MaxRecvDataSegmentLength is reduced.
//!
//! The initiator never learns another address than that of the proxy, where it would connect without
//! protection: the proxy itself follows the redirections of a login.
//!
//! A wrong digest on either side closes both connections, because the proxy cannot tell the other side what
//! was damaged. The initiator recovers as its ErrorRecoveryLevel provides for a lost connection.

mod error;
mod local_login;
mod stat_sn;
mod texts;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use core::net::SocketAddr;

use base::buffer::{Bytes, Pool};
use base::transmit::Transmit;
use security::Level;
use security::aead::TAG_LEN;
use security::opaque::{Password, StretchJob, StretchResult};

use self::local_login::LocalLogin;
use self::stat_sn::StatSnDistance;
use self::texts::{SEGMENT_MAX, TextRewriter, reduced_request};
use crate::aead::{AeadDigest, SEGMENT_LEN_MAX};
use crate::framing::{DataSink, Framing, FramingEvent, ReceivedPdu, Receiver};
use crate::keys::{DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, Role};
use crate::login::directory::TargetAddress;
use crate::login::initiator::pdus as login_pdus;
use crate::login::initiator::{
    AuthPlan, InitiatorLogin, InitiatorLoginError, InitiatorLoginStep, LoggedIn, LoginPlan, OwnedLoginRequest,
};
use crate::negotiate::pdu_codec::PduCodec;
use crate::negotiate::{ConnectionParameters, KeyPolicy};
use crate::pdu::{
    BHS_LEN, Bhs, Opcode, PduHeader, TargetSn, Ttt, login_request, login_response, text_request,
    text_response,
};
use crate::pdu_writer::PduWriter;
use crate::recovery::RecoveryLevel;
use crate::serial::StatSn;

pub use self::error::{LocalLoginError, ProxyError};

/// The most redirections of one login.
const MAX_REDIRECTS: u32 = 8;

/// The most memory that is held for the bytes that wait to be sent on one of the two connections, in bytes,
/// whatever the PDUs are. The owner must call [`Transmit::compact`] after [`Transmit::sent`].
pub const UNSENT_MEMORY_MAX: usize = 5 << 20;

// No PDU is handled while the batch is full, so one PDU may exceed its limits. At most each second piece is a
// data segment, and a block is either of the smallest size or holds less than four times its segment. The
// slab holds the headers that wait and at most as many, or 64 KiB, that were sent; a vector that grew has
// room for twice as many.
const _: () = assert!(
    (Transmit::BATCH_PIECES / 2 + 1) * base::buffer::PAGE
        + 4 * (Transmit::BATCH_BYTES + PDU_LEN_MAX)
        + 2 * Transmit::SLAB_KEPT
        <= UNSENT_MEMORY_MAX
);

/// The longest PDU: header, additional header segments, data, padding and two tags.
const PDU_LEN_MAX: usize = BHS_LEN + 255 * 4 + SEGMENT_LEN_MAX + 3 + 2 * TAG_LEN;

/// How a proxy logs in to targets.
#[derive(Clone, Debug)]
pub struct ProxyPlan {
    /// The name of the user.
    pub user: String,
    /// The password of the user.
    pub password: Password,
    /// The AEAD digests that the proxy offers, best first.
    pub aead_digests: &'static [AeadDigest],
    /// The least protection of a connection. [`Level::None`] counts as [`Level::Integrity`].
    pub min_protection: Level,
}

/// One of the two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// To the initiator, in the clear.
    Local,
    /// To the target.
    Remote,
}

impl Side {
    /// Returns the other connection.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Local => Self::Remote,
            Self::Remote => Self::Local,
        }
    }
}

/// What the owner of a [`ProxyConnection`] must do next.
#[derive(Debug)]
pub enum ProxyEvent {
    /// Close the connection to a target if there is one, open another one, and call
    /// [`ProxyConnection::connected`] or [`ProxyConnection::connect_failed`]. The address is that of a
    /// redirection; `None` is the configured one.
    Connect(Option<TargetAddress>),
    /// Run the slow step of the password login, and pass the result to [`ProxyConnection::stretched`].
    Stretch(Box<StretchJob>),
    /// Send what waits to be sent, and close both connections.
    Close(ProxyError),
}

/// A connection of an initiator, and the one to the target.
#[derive(Debug)]
pub struct ProxyConnection {
    plan: ProxyPlan,
    pool: Pool,
    /// The address of the proxy that the initiator uses.
    own_address: SocketAddr,
    local: Leg,
    remote: Leg,
    state: State,
    events: VecDeque<ProxyEvent>,
}

/// The PDUs of one of the two connections.
#[derive(Debug)]
struct Leg {
    receiver: Receiver,
    writer: PduWriter,
    transmit: Transmit,
}

#[derive(Debug)]
enum State {
    LoggingIn(Box<Login>),
    Relaying(Box<Relaying>),
    Over,
}

/// What changes in PDUs after the logins.
#[derive(Debug)]
struct Relaying {
    rewriter: TextRewriter,
    distance: StatSnDistance,
}

/// The two logins.
#[derive(Debug)]
struct Login {
    local: LocalLogin,
    remote: Option<InitiatorLogin>,
    /// The address of the target's end of the connection.
    peer: Option<SocketAddr>,
    /// Whether the initiator has received a response.
    has_answered: bool,
    /// The numbers of the last response of the target.
    sn: TargetSn,
    /// The ExpStatSN of the next request to the target.
    exp_stat_sn: StatSn,
    redirects: u32,
}

impl Leg {
    fn new() -> Self {
        let framing = Framing {
            header_digest: false,
            data_digest: false,
            data_len_max: DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH,
            resync: false,
        };
        Self { receiver: Receiver::new(framing), writer: PduWriter::default(), transmit: Transmit::new() }
    }

    fn enter_full_feature(&mut self, codec: PduCodec) {
        self.receiver.set_framing(codec.framing);
        if let Some(decryptor) = codec.decryptor {
            self.receiver.set_decryptor(*decryptor);
        }
        self.writer = codec.writer;
    }

    /// Sends a PDU of a login.
    fn send(&mut self, header: Bhs, text: &[u8]) {
        self.writer.header(&header.with_data_len(text.len()), &mut self.transmit);
        self.writer.copied(text, &mut self.transmit);
    }
}

impl ProxyConnection {
    /// Begins with a connection that was accepted at `own_address`. Buffers come from `pool`.
    pub fn new(plan: ProxyPlan, own_address: SocketAddr, pool: Pool) -> Self {
        let login = Login {
            local: LocalLogin::new(),
            remote: None,
            peer: None,
            has_answered: false,
            sn: TargetSn::default(),
            exp_stat_sn: StatSn(0),
            redirects: 0,
        };
        Self {
            plan,
            pool,
            own_address,
            local: Leg::new(),
            remote: Leg::new(),
            state: State::LoggingIn(Box::new(login)),
            events: VecDeque::new(),
        }
    }

    /// Returns what to do next. Poll it after every call until it returns `None`.
    pub fn poll_event(&mut self) -> Option<ProxyEvent> {
        self.events.pop_front()
    }

    /// Returns the bytes to send on one of the connections. Call [`Transmit::sent`] of it for those that were
    /// sent.
    pub const fn transmit(&mut self, side: Side) -> &mut Transmit {
        match side {
            Side::Local => &mut self.local.transmit,
            Side::Remote => &mut self.remote.transmit,
        }
    }

    /// Returns whether [`Self::handle_bytes`] takes bytes of this connection: the other connection has sent
    /// enough of those before.
    pub fn can_receive(&self, side: Side) -> bool {
        let other = match side {
            Side::Local => &self.remote,
            Side::Remote => &self.local,
        };
        let is_open = match (&self.state, side) {
            (State::Over, _) => false,
            // After a redirection, bytes of the connection before are not read.
            (State::LoggingIn(login), Side::Remote) => login.remote.is_some(),
            _ => true,
        };
        is_open && !other.transmit.is_full()
    }

    /// Returns whether both logins are complete.
    pub const fn is_logged_in(&self) -> bool {
        matches!(self.state, State::Relaying(_))
    }

    /// Handles bytes that were received, and moves `bytes` past those that were handled. Bytes are left where
    /// the other connection must send first; [`Self::can_receive`] tells when they can be handled.
    pub fn handle_bytes(&mut self, side: Side, bytes: &mut &[u8]) {
        while self.can_receive(side) {
            let handled = match self.read_pdu(side, bytes) {
                Ok(Some(pdu)) => self.handle_pdu(side, pdu),
                Ok(None) => return,
                Err(why) => Err(why),
            };
            if let Err(why) = handled {
                self.fail(why);
            }
        }
    }

    /// Handles the connection that [`ProxyEvent::Connect`] asked for. `peer` is the address of the target.
    /// `entropy` must be fresh random bytes of the operating system's generator.
    pub fn connected(&mut self, peer: SocketAddr, entropy: [u8; 32]) {
        self.remote = Leg::new();
        let State::LoggingIn(login) = &mut self.state else { return };
        let plan = login.local.purpose().map(|(purpose, identity, fixed)| LoginPlan {
            initiator_alias: identity.alias.clone(),
            cid: fixed.cid,
            itt: fixed.itt.0,
            cmd_sn: fixed.cmd_sn.0,
            relays_keys: true,
            ..LoginPlan::new(
                identity.initiator.clone(),
                purpose,
                fixed.isid,
                AuthPlan::Opaque { user: self.plan.user.clone(), password: self.plan.password.clone() },
                KeyPolicy {
                    aead_digests: self.plan.aead_digests,
                    min_protection: self.plan.min_protection.max(Level::Integrity),
                    ..KeyPolicy::default()
                },
            )
        });
        let Some(plan) = plan else { return self.fail(ProxyError::Bug) };
        let mut remote = InitiatorLogin::new(plan, entropy);
        let request = remote.start();
        login.exp_stat_sn = login.local.exp_stat_sn();
        (login.remote, login.peer) = (Some(remote), Some(peer));
        self.send_request(&request);
    }

    /// Handles the failure to open a connection to the target.
    pub fn connect_failed(&mut self) {
        self.fail(ProxyError::Unreachable);
    }

    /// Handles the end of the connection to the target, if the logins are not complete.
    pub fn disconnected(&mut self) {
        if let State::LoggingIn(_) = self.state {
            self.fail(ProxyError::Disconnected);
        }
    }

    /// Handles the result of the slow step of the password login.
    pub fn stretched(&mut self, result: StretchResult) {
        let State::LoggingIn(login) = &mut self.state else { return };
        let Some(remote) = login.remote.as_mut().filter(|remote| remote.awaits(&result)) else { return };
        let step = remote.job_done(result);
        if let Err(why) = self.follow(step) {
            self.fail(why);
        }
    }

    /// Reads to the end of a PDU; returns `None` if more bytes are needed.
    fn read_pdu(&mut self, side: Side, bytes: &mut &[u8]) -> Result<Option<ReceivedPdu>, ProxyError> {
        let receiver = match side {
            Side::Local => &mut self.local.receiver,
            Side::Remote => &mut self.remote.receiver,
        };
        loop {
            match receiver.advance(bytes) {
                Ok(FramingEvent::NeedMoreBytes) => return Ok(None),
                Ok(FramingEvent::Header(bhs)) => {
                    let len = usize::try_from(bhs.data_len()).unwrap_or(usize::MAX);
                    receiver.set_sink(match len {
                        0 => DataSink::Discard,
                        // An AEAD digest opens the padding behind the data.
                        _ => DataSink::Append(self.pool.take(len.next_multiple_of(4))),
                    });
                }
                Ok(FramingEvent::Pdu(pdu)) => return Ok(Some(pdu)),
                // Nothing is skipped: `resync` is off.
                Ok(FramingEvent::Damaged) => return Err(ProxyError::Bug),
                Err(why) => return Err(ProxyError::Stream(side, why)),
            }
        }
    }

    fn handle_pdu(&mut self, side: Side, pdu: ReceivedPdu) -> Result<(), ProxyError> {
        if !pdu.digest_ok {
            return Err(ProxyError::DataDigest(side));
        }
        let data = match pdu.sink {
            DataSink::Append(buf) => Some(buf.freeze()),
            _ => None,
        };
        match (&self.state, side) {
            (State::LoggingIn(_), Side::Local) => {
                self.handle_request(&pdu.bhs, data.as_deref().unwrap_or_default())
            }
            (State::LoggingIn(_), Side::Remote) => {
                self.handle_response(&pdu.bhs, data.as_deref().unwrap_or_default())
            }
            (State::Relaying(_), _) => self.relay(side, pdu.bhs, data),
            (State::Over, _) => Ok(()),
        }
    }

    /// Sends a PDU of one side to the other.
    fn relay(&mut self, from: Side, bhs: Bhs, data: Option<Bytes>) -> Result<(), ProxyError> {
        let State::Relaying(relaying) = &mut self.state else { return Err(ProxyError::Bug) };
        let (source, sink) = match from {
            Side::Local => (&self.local, &mut self.remote),
            Side::Remote => (&self.remote, &mut self.local),
        };
        let (bhs, data) = match from {
            Side::Local => relaying.for_target(bhs, data)?,
            Side::Remote => relaying.for_initiator(bhs, data)?,
        };
        match source.receiver.ahs() {
            [] => sink.writer.header(&bhs, &mut sink.transmit),
            ahs => sink.writer.long_header(&bhs, ahs, &mut sink.transmit),
        }
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            sink.writer.shared(data.len(), [data], &mut sink.transmit);
        }
        Ok(())
    }

    /// Handles a Login Request of the initiator.
    fn handle_request(&mut self, bhs: &Bhs, text: &[u8]) -> Result<(), ProxyError> {
        let State::LoggingIn(login) = &mut self.state else { return Err(ProxyError::Bug) };
        let Ok(request) = login_request::LoginRequest::decode(bhs) else {
            return Err(LocalLoginError::NoLogin.into());
        };
        if !login.local.handle(&request, text)? {
            let header = login.local.acknowledge().ok_or(ProxyError::Bug)?;
            self.local.send(header.encode(), &[]);
            return Ok(());
        }
        if login.remote.is_some() {
            return self.exchange();
        }
        self.events.push_back(ProxyEvent::Connect(None));
        Ok(())
    }

    /// Sends the initiator's text to the target, or an empty one so that the target's StatSN advances.
    fn exchange(&mut self) -> Result<(), ProxyError> {
        let State::LoggingIn(login) = &mut self.state else { return Err(ProxyError::Bug) };
        let (text, transit) = login.local.next_text();
        let request = login.remote.as_mut().ok_or(ProxyError::Bug)?.relay(text, transit)?;
        self.send_request(&request);
        Ok(())
    }

    fn send_request(&mut self, request: &OwnedLoginRequest) {
        let State::LoggingIn(login) = &self.state else { return };
        self.remote.send(login_pdus::header(request, login.exp_stat_sn).encode(), &request.data);
    }

    /// Handles a Login Response of the target.
    fn handle_response(&mut self, bhs: &Bhs, text: &[u8]) -> Result<(), ProxyError> {
        let State::LoggingIn(login) = &mut self.state else { return Err(ProxyError::Bug) };
        let response = login_response::LoginResponse::decode(bhs)
            .map_err(|why| ProxyError::Malformed(Side::Remote, why))?;
        (login.sn, login.exp_stat_sn) = (response.sn, response.sn.stat_sn.next());
        let remote = login.remote.as_mut().ok_or(ProxyError::Bug)?;
        let step = remote.handle(&login_pdus::response(&response, text.to_vec()));
        self.follow(step)
    }

    /// Takes the next step of the login to the target.
    fn follow(&mut self, step: InitiatorLoginStep) -> Result<(), ProxyError> {
        let State::LoggingIn(login) = &mut self.state else { return Err(ProxyError::Bug) };
        match step {
            InitiatorLoginStep::Send(request) => self.send_request(&request),
            InitiatorLoginStep::Stretch => {
                let job = login.remote.as_mut().and_then(InitiatorLogin::poll_job);
                self.events.push_back(ProxyEvent::Stretch(Box::new(job.ok_or(ProxyError::Bug)?)));
            }
            InitiatorLoginStep::Relay => {
                let is_first = !core::mem::replace(&mut login.has_answered, true);
                if is_first && login.local.has_operational_text() {
                    return self.exchange();
                }
                self.respond()?;
            }
            InitiatorLoginStep::Complete(done) => self.complete(*done)?,
            InitiatorLoginStep::Redirected { to, .. } => {
                login.redirects += 1;
                if login.has_answered {
                    return Err(ProxyError::MovedInLogin);
                }
                if login.redirects > MAX_REDIRECTS {
                    return Err(ProxyError::MovedTooOften);
                }
                login.remote = None;
                self.events.push_back(ProxyEvent::Connect(Some(to)));
            }
            InitiatorLoginStep::Refused(status) => return Err(ProxyError::Refused(status)),
            InitiatorLoginStep::Drop(why) => return Err(why.into()),
        }
        Ok(())
    }

    /// Answers the initiator with what the target answered.
    fn respond(&mut self) -> Result<(), ProxyError> {
        let State::LoggingIn(login) = &mut self.state else { return Err(ProxyError::Bug) };
        let relayed = login.remote.as_mut().ok_or(ProxyError::Bug)?.take_relayed();
        let (header, text) = login.local.respond(login.sn, &relayed, None)?;
        self.local.send(header.encode(), &text);
        Ok(())
    }

    /// Completes the initiator's login, and relays PDUs from now on.
    fn complete(&mut self, done: LoggedIn) -> Result<(), ProxyError> {
        let State::LoggingIn(login) = &mut self.state else { return Err(ProxyError::Bug) };
        let relayed = login.remote.as_mut().ok_or(ProxyError::Bug)?.take_relayed();
        let (header, text) = login.local.respond(login.sn, &relayed, Some(done.tsih))?;
        let negotiated = login.local.negotiated()?;
        let rewriter = TextRewriter::new(self.own_address, login.peer, login.local.max_recv());
        let distance = login.local.stat_sn_distance();
        let with_limit = |parameters| ConnectionParameters {
            initiator_max_recv: SEGMENT_MAX,
            target_max_recv: SEGMENT_MAX,
            ..parameters
        };
        let codec = |role, parameters, keys| {
            // A wrong header digest closes the connection, as at level 0.
            let level = RecoveryLevel::SessionRecovery;
            PduCodec::new(role, &with_limit(parameters), level, keys, &self.pool).ok_or(ProxyError::Bug)
        };
        let local = codec(Role::Target, negotiated, None)?;
        let remote = codec(Role::Initiator, done.negotiated.connection, done.record_keys)?;
        self.local.send(header.encode(), &text);
        self.local.enter_full_feature(local);
        self.remote.enter_full_feature(remote);
        self.state = State::Relaying(Box::new(Relaying { rewriter, distance }));
        Ok(())
    }

    /// Ends both connections. An initiator that is logging in gets a response that says why.
    fn fail(&mut self, why: ProxyError) {
        if let (State::LoggingIn(login), Some(status)) = (&mut self.state, why.login_status())
            && let Some(header) = login.local.refuse(login.sn, status)
        {
            self.local.send(header.encode(), &[]);
        }
        self.state = State::Over;
        self.events.push_back(ProxyEvent::Close(why));
    }
}

impl Relaying {
    /// Changes a PDU of the initiator for the target.
    fn for_target(&mut self, bhs: Bhs, data: Option<Bytes>) -> Result<(Bhs, Option<Bytes>), ProxyError> {
        let bhs = self.distance.header_for_target(bhs);
        if bhs.opcode() != Opcode::TEXT_REQUEST {
            return Ok((bhs, data));
        }
        let malformed = |why| ProxyError::Malformed(Side::Local, why);
        if text_request::TextRequest::decode(&bhs).map_err(malformed)?.ttt == Ttt::NONE {
            self.rewriter.restart();
        }
        Ok(match data.as_deref().and_then(reduced_request) {
            Some(text) => with_data(bhs, &text),
            None => (bhs, data),
        })
    }

    /// Changes a PDU of the target for the initiator.
    fn for_initiator(&mut self, bhs: Bhs, data: Option<Bytes>) -> Result<(Bhs, Option<Bytes>), ProxyError> {
        let bhs = self.distance.header_for_initiator(bhs);
        match bhs.opcode() {
            Opcode::TEXT_RESPONSE => {
                let malformed = |why| ProxyError::Malformed(Side::Remote, why);
                let response = text_response::TextResponse::decode(&bhs).map_err(malformed)?;
                let text = self.rewriter.rewrite(data.as_deref().unwrap_or_default(), response.is_final)?;
                Ok(with_data(bhs, &text))
            }
            Opcode::LOGIN_RESPONSE => Err(ProxyError::LoginResponseAfterLogin),
            Opcode::REJECT => {
                let rejected = data.as_deref().and_then(|data| self.distance.rejected_for_initiator(data));
                Ok(rejected.map_or((bhs, data), |rejected| with_data(bhs, &rejected)))
            }
            _ => Ok((bhs, data)),
        }
    }
}

fn with_data(bhs: Bhs, data: &[u8]) -> (Bhs, Option<Bytes>) {
    (bhs.with_data_len(data.len()), Some(Bytes::copied_from(data)))
}

impl From<InitiatorLoginError> for ProxyError {
    fn from(why: InitiatorLoginError) -> Self {
        Self::RemoteLogin(why)
    }
}

#[cfg(test)]
mod tests;
