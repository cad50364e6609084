//! The initiator's half of the login of one connection.
//!
//! [`InitiatorLogin::start`] returns the first request; [`InitiatorLogin::handle`] takes each response and
//! returns the next step. The login can take every path through the stages and cut its text into pieces of
//! any size, so that it serves to test targets as well as to use them.

mod error;
pub(crate) mod pdus;
mod plan;
mod relay;
mod request;

use alloc::boxed::Box;
use alloc::vec::Vec;

use security::Level;
use security::opaque::{StretchJob, StretchResult};
use zeroize::Zeroizing;

use super::confirmation::{BadConfirmation, Transcript};
use super::directory::TargetAddress;
use super::{LoginResponse, MAX_LOGIN_PDUS, MAX_LOGIN_TEXTS, Stage, Status, VERSION};
use crate::aead::RecordKeys;
use crate::chap::exchange::{BadChap, ChapKeys, InitiatorChap};
use crate::keys::{Key, Role};
use crate::name::{PortalGroupTag, Tsih};
use crate::negotiate::Negotiated;
use crate::negotiate::key_rules::{BadNegotiation, KeyRules};
use crate::negotiate::negotiator::{LoginContext, Negotiator, answer_unknown};
use crate::opaque::{InitiatorOpaque, METHOD, OpaqueError, OpaqueKeys};
use crate::text::value::number_in;
use crate::text::{Collector, Pair, TextBuilder, TextSplitter, parse};

pub use self::error::InitiatorLoginError;
pub use self::plan::{AuthPlan, LoginPlan, LoginStages, Purpose};
pub use self::request::OwnedLoginRequest;

/// The next step of the initiator's half of a login.
#[derive(Debug)]
pub enum InitiatorLoginStep {
    /// Send the request; the login continues.
    Send(OwnedLoginRequest),
    /// Run the slow step that [`InitiatorLogin::poll_job`] returns where it delays no other work, and pass
    /// its result to [`InitiatorLogin::job_done`].
    Stretch,
    /// Only with [`LoginPlan::relays_keys`]: the target waits for the next text of operational keys. The
    /// owner takes the target's text with [`InitiatorLogin::take_relayed`], and sends the next one with
    /// [`InitiatorLogin::relay`].
    Relay,
    /// The login succeeded. Digests start with the next PDU in each direction.
    Complete(Box<LoggedIn>),
    /// The target moved: close the connection and log in at the new address.
    Redirected {
        /// The new address.
        to: TargetAddress,
        /// Whether to remember the new address.
        permanently: bool,
    },
    /// The target refused the login; close the connection.
    Refused(Status),
    /// Close the connection: the target broke a rule.
    Drop(InitiatorLoginError),
}

/// The result of a successful login.
#[derive(Debug)]
pub struct LoggedIn {
    /// The target's half of the session identifier.
    pub tsih: Tsih,
    /// The negotiated parameters.
    pub negotiated: Negotiated,
    /// The portal group of the portal that the connection uses, if the target stated it.
    pub portal_group: Option<PortalGroupTag>,
    /// Whether the target authenticated itself.
    pub peer_authenticated: bool,
    /// What protects the PDUs of the connection: present exactly if an AEAD digest was negotiated.
    pub record_keys: Option<RecordKeys>,
}

/// The login of one connection.
#[derive(Debug)]
pub struct InitiatorLogin {
    plan: LoginPlan,
    entropy: Zeroizing<[u8; 32]>,
    stage: Stage,
    auth: Auth,
    negotiator: Negotiator,
    key_rules: KeyRules,
    incoming: Collector,
    outgoing: TextSplitter,
    /// Whether the initiator requests the next stage once the outgoing text is sent.
    ready: bool,
    /// The next stage that the last request asked for, if any.
    asked: Option<Stage>,
    portal_group: Option<PortalGroupTag>,
    pdus: usize,
    texts: usize,
    phase: Phase,
    transcript: Transcript,
    /// The context of the password login.
    context: Option<[u8; 64]>,
    /// The slow step of the password login, until it is polled.
    job: Option<StretchJob>,
    /// The keys of the target that the owner relays.
    relayed: TextBuilder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    NotStarted,
    UnderWay,
    Over,
}

#[derive(Debug)]
enum Auth {
    /// The initiator offered its methods.
    Offered,
    /// CHAP is under way.
    Chap(InitiatorChap),
    /// The password login is under way.
    Opaque(Box<InitiatorOpaque>),
    /// The authentication is complete, or was not needed.
    Done { peer_authenticated: bool },
}

impl InitiatorLogin {
    /// Prepares a login. `entropy` must be fresh random bytes of the operating system's generator; the login
    /// uses them up.
    pub fn new(mut plan: LoginPlan, entropy: [u8; 32]) -> Self {
        if let AuthPlan::Opaque { .. } = plan.auth {
            plan.stages = LoginStages::SecurityAndOperational;
        }
        let setting = match &plan.purpose {
            Purpose::Discovery => LoginContext::Discovery,
            Purpose::NewSession(_) => LoginContext::Leading,
            Purpose::Join { parameters, .. } => LoginContext::Joining(*parameters),
        };
        let stage = match plan.stages {
            LoginStages::OperationalOnly => Stage::OPERATIONAL,
            LoginStages::SecurityAndOperational | LoginStages::SecurityOnly => Stage::SECURITY,
        };
        let auth = match plan.stages {
            LoginStages::OperationalOnly => Auth::Done { peer_authenticated: false },
            LoginStages::SecurityAndOperational | LoginStages::SecurityOnly => Auth::Offered,
        };
        Self {
            entropy: Zeroizing::new(entropy),
            stage,
            auth,
            negotiator: Negotiator::new(Role::Initiator, plan.keys.clone(), setting),
            key_rules: KeyRules::new(Role::Target, !matches!(plan.purpose, Purpose::Join { .. })),
            incoming: Collector::new(),
            outgoing: TextSplitter::default(),
            ready: false,
            asked: None,
            portal_group: None,
            pdus: 0,
            texts: 0,
            phase: Phase::NotStarted,
            transcript: Transcript::default(),
            context: None,
            job: None,
            relayed: TextBuilder::new(),
            plan,
        }
    }

    /// Returns the first request.
    pub fn start(&mut self) -> OwnedLoginRequest {
        let mut out = TextBuilder::new();
        self.phase = Phase::UnderWay;
        //= rfc7143#section-4.2.7.1
        //# Each iSCSI node, whether it is an initiator, a target, or both, MUST have an iSCSI
        //# name.
        //= rfc7143#section-4.4.2
        //# The SCSI device name is defined to be the iSCSI name of the node and MUST be used in
        //# the iSCSI protocol.
        //= rfc7143#section-6.3
        //# The initial Login Request of any connection MUST include the InitiatorName key=value
        //# pair.
        //= rfc7143#section-11.12.10
        //# The initiator MUST provide some basic parameters in order to enable the target to determine if the
        //# initiator may use the target's resources and the initial text parameters for the security
        //# exchange.
        out.put(Key::InitiatorName.name(), self.plan.initiator.as_str());
        if let Some(alias) = &self.plan.initiator_alias {
            out.put(Key::InitiatorAlias.name(), alias);
        }
        match &self.plan.purpose {
            Purpose::Discovery => out.put(Key::SessionType.name(), "Discovery"),
            Purpose::NewSession(target) | Purpose::Join { target, .. } => {
                out.put(Key::SessionType.name(), "Normal");
                //= rfc7143#section-4.2.7.1
                //# The initiator MUST present both its iSCSI Initiator Name and the iSCSI Target Name
                //# to which it wishes to connect in the first Login Request of a new session or
                //# connection.
                //= rfc7143#section-6.3
                //# the first Login Request MUST also include the TargetName key=value pair.
                out.put(Key::TargetName.name(), target.spelling());
            }
        }
        self.ready = true;
        if self.stage == Stage::SECURITY {
            out.put(Key::AuthMethod.name(), self.methods());
            self.ready = matches!(self.plan.auth, AuthPlan::None);
        } else {
            self.negotiator.offer_all(&mut out);
        }
        self.outgoing = TextSplitter::new(out.into_bytes());
        self.next_call()
    }

    /// Handles a Login Response and returns the next step.
    pub fn handle(&mut self, response: &LoginResponse) -> InitiatorLoginStep {
        let step = self.step(response);
        self.concluded(step)
    }

    /// Returns the slow step of the password login when one is due.
    pub const fn poll_job(&mut self) -> Option<StretchJob> {
        self.job.take()
    }

    /// Returns whether the result is that of the slow step that the login waits for.
    pub fn awaits(&self, result: &StretchResult) -> bool {
        matches!(&self.auth, Auth::Opaque(opaque) if opaque.awaits(result))
    }

    /// Handles the result of the slow step and returns the next step.
    pub fn job_done(&mut self, result: StretchResult) -> InitiatorLoginStep {
        let step = self.stretched(result);
        self.concluded(step)
    }

    /// Ends the login unless it goes on after this step.
    fn concluded(&mut self, step: Result<InitiatorLoginStep, InitiatorLoginError>) -> InitiatorLoginStep {
        let step = step.unwrap_or_else(InitiatorLoginStep::Drop);
        let goes_on = matches!(
            step,
            InitiatorLoginStep::Send(_) | InitiatorLoginStep::Stretch | InitiatorLoginStep::Relay
        );
        if !goes_on {
            self.phase = Phase::Over;
        }
        step
    }

    fn step(&mut self, response: &LoginResponse) -> Result<InitiatorLoginStep, InitiatorLoginError> {
        self.pdus += 1;
        let is_stretching = matches!(&self.auth, Auth::Opaque(opaque) if opaque.is_stretching());
        if self.phase != Phase::UnderWay || is_stretching {
            return Err(InitiatorLoginError::OutOfTurn);
        }
        if self.plan.keys.min_protection > Level::None && !matches!(self.plan.auth, AuthPlan::Opaque { .. }) {
            return Err(InitiatorLoginError::ProtectionWithoutPassword);
        }
        if self.pdus > MAX_LOGIN_PDUS {
            return Err(InitiatorLoginError::TooManyPdus);
        }
        // Some targets refuse with a header of zeros. A response with a failure status counts as a refusal
        // whatever else is wrong with it.
        if response.status() != Status::SUCCESS && response.itt == self.plan.itt {
            return turned_away(response);
        }
        if response.isid != self.plan.isid.0 || response.itt != self.plan.itt {
            return Err(InitiatorLoginError::IdentityChanged);
        }
        self.check_header(response)?;
        //= iscsi-aead#section-4.2
        //# MUST NOT enter full feature phase without a matching one.
        let data = self.transcript.receive_response(response)?;
        if !self.outgoing.is_done() {
            if !data.is_empty() || response.cont || response.transit {
                return Err(InitiatorLoginError::TextAmidRequest);
            }
            return Ok(InitiatorLoginStep::Send(self.next_call()));
        }
        let Some(text) = self.incoming.add(data, response.cont)? else {
            //= rfc7143#section-6.2
            //# An initiator receiving a Text or Login Response with the C bit set to 1 MUST answer
            //# with a Text or Login Request with no data segment (DataSegmentLength 0).
            return Ok(InitiatorLoginStep::Send(self.call(false, false, Vec::new())));
        };
        self.texts += 1;
        if self.texts > MAX_LOGIN_TEXTS {
            return Err(InitiatorLoginError::TooManyTexts);
        }
        self.answer(response, &text)
    }

    fn check_header(&self, response: &LoginResponse) -> Result<(), InitiatorLoginError> {
        //= rfc7143#section-11.13.2
        //# The initiator MUST use the value presented as a response to the first Login Request.
        if response.version_active != VERSION {
            return Err(InitiatorLoginError::OtherVersion);
        }
        if response.csg != self.stage {
            return Err(InitiatorLoginError::StageNotCurrent);
        }
        if response.transit {
            if response.cont {
                return Err(InitiatorLoginError::TransitWithContinue);
            }
            // The target may move to an earlier stage than the requested one.
            let ours = self.asked.is_some_and(|asked| {
                response.nsg == asked
                    || (asked == Stage::FULL_FEATURE
                        && self.stage == Stage::SECURITY
                        && response.nsg == Stage::OPERATIONAL)
            });
            if !ours {
                //= rfc7143#section-6.3
                //# The selected NSG MUST NOT exceed the value stated by the initiator.
                return Err(InitiatorLoginError::StageNotAsked);
            }
        }
        let last = response.transit && response.nsg == Stage::FULL_FEATURE;
        match self.tsih() {
            Tsih::NEW if last && response.tsih == 0 => Err(InitiatorLoginError::NoTsih),
            Tsih::NEW => Ok(()),
            tsih if response.tsih == tsih.0 => Ok(()),
            _ => Err(InitiatorLoginError::IdentityChanged),
        }
    }

    /// Handles a complete text, and sends the next one or ends the login.
    fn answer(
        &mut self,
        response: &LoginResponse,
        text: &[u8],
    ) -> Result<InitiatorLoginStep, InitiatorLoginError> {
        if self.plan.relays_keys && self.stage == Stage::OPERATIONAL {
            return self.receive_relayed(response, text);
        }
        let mut out = TextBuilder::new();
        let sorted = self.sort(text, &mut out)?;
        if self.stage == Stage::SECURITY {
            self.authenticate(&sorted, &mut out)?;
        }
        let mut answers = TextBuilder::new();
        self.negotiator.receive(&sorted.operational, &mut answers)?;
        if response.transit {
            if !answers.is_empty() {
                return Err(InitiatorLoginError::OfferAtTheEnd);
            }
            return self.enter(response);
        }
        // The answers come last in the text: the target may make offers only after it has received all offers
        // of the initiator.
        out.append(answers);
        self.ready = match &self.auth {
            Auth::Offered => false,
            // The initiator sends its proof together with the request for the next stage; the target's proof
            // arrives with the response that moves to it.
            Auth::Chap(chap) => chap.has_proved(),
            Auth::Opaque(opaque) if opaque.is_stretching() => return Ok(InitiatorLoginStep::Stretch),
            Auth::Opaque(_) => false,
            Auth::Done { .. } => true,
        };
        self.send(out)
    }

    /// Handles the result of the slow step: the target knows the password's record, and the initiator proves
    /// that it knows the password.
    fn stretched(&mut self, result: StretchResult) -> Result<InitiatorLoginStep, InitiatorLoginError> {
        let Auth::Opaque(opaque) = &mut self.auth else { return Err(InitiatorLoginError::OutOfTurn) };
        let mut out = TextBuilder::new();
        //= iscsi-aead#section-3.1
        //# An initiator that OPAQUE refuses closes the connection.
        let keys = opaque.job_done(result, &mut out)?;
        self.transcript.prove(keys);
        self.negotiator.permit_aead();
        self.auth = Auth::Done { peer_authenticated: true };
        self.ready = true;
        self.send(out)
    }

    /// Enters the stage that the target moved to.
    fn enter(&mut self, response: &LoginResponse) -> Result<InitiatorLoginStep, InitiatorLoginError> {
        let Auth::Done { peer_authenticated } = self.auth else {
            return Err(BadChap::PeerNotAuthenticated.into());
        };
        self.stage = response.nsg;
        if self.stage == Stage::FULL_FEATURE {
            let is_new = matches!(self.plan.purpose, Purpose::NewSession(_));
            if is_new && self.plan.portal_group.is_some() && self.portal_group.is_none() {
                return Err(InitiatorLoginError::OtherPortalGroup);
            }
            let (tsih, negotiated) = (Tsih(response.tsih), self.negotiator.finish()?);
            let seed = self.transcript.finish(negotiated.connection.header_digest.aead());
            return Ok(InitiatorLoginStep::Complete(Box::new(LoggedIn {
                tsih,
                negotiated,
                portal_group: self.portal_group,
                peer_authenticated,
                record_keys: seed.map(|seed| seed.derive(Role::Initiator, tsih)),
            })));
        }
        if self.plan.relays_keys {
            return Ok(InitiatorLoginStep::Relay);
        }
        let mut out = TextBuilder::new();
        self.negotiator.offer_all(&mut out);
        self.ready = true;
        self.send(out)
    }

    fn sort<'a>(&mut self, text: &'a [u8], out: &mut TextBuilder) -> Result<Sorted<'a>, InitiatorLoginError> {
        let mut sorted = Sorted::default();
        for pair in parse(text)? {
            if self.transcript.is_misplaced(pair.name) {
                return Err(BadConfirmation::Misplaced.into());
            }
            if let Auth::Opaque(_) = self.auth {
                if !sorted.opaque.take(&pair)? {
                    return Err(OpaqueError::OtherKey.into());
                }
                continue;
            }
            if OpaqueKeys::is_key(pair.name) && matches!(self.plan.auth, AuthPlan::Opaque { .. }) {
                return Err(OpaqueError::KeyOutOfTurn.into());
            }
            let Some(key) = Key::by_name(pair.name.as_bytes()) else {
                answer_unknown(&pair, out)?;
                continue;
            };
            self.key_rules.admit(key, self.stage)?;
            self.note_for_relay(key, &pair);
            match key {
                Key::AuthMethod => sorted.auth_method = Some(pair.value),
                Key::TargetPortalGroupTag => {
                    let tag = number_in(pair.value, 0..=u32::from(u16::MAX)).ok();
                    let tag = tag.and_then(|tag| u16::try_from(tag).ok());
                    let tag = PortalGroupTag(tag.ok_or(BadNegotiation::DeclaredIllegal(key))?);
                    if self.plan.portal_group.is_some_and(|group| group != tag) {
                        return Err(InitiatorLoginError::OtherPortalGroup);
                    }
                    self.portal_group = Some(tag);
                }
                key if sorted.chap.take(key, &pair) => {}
                key => sorted.operational.push((key, pair)),
            }
        }
        Ok(sorted)
    }

    /// Handles a text of the SecurityNegotiation stage.
    fn authenticate(
        &mut self,
        sorted: &Sorted<'_>,
        out: &mut TextBuilder,
    ) -> Result<(), InitiatorLoginError> {
        match (&mut self.auth, sorted.auth_method) {
            (Auth::Offered, method) if sorted.chap.is_empty() => match (&self.plan.auth, method) {
                (AuthPlan::None, Some(b"None") | None)
                | (AuthPlan::Chap { or_none: true, peer: None, .. }, Some(b"None")) => {
                    self.auth = Auth::Done { peer_authenticated: false };
                }
                (AuthPlan::Chap { algorithms, own, peer, .. }, Some(b"CHAP")) => {
                    let chap = InitiatorChap::new(*algorithms, own.clone(), peer.clone(), *self.entropy);
                    chap.start(out);
                    self.auth = Auth::Chap(chap);
                }
                (AuthPlan::Opaque { user, password }, Some(method)) if method == METHOD.as_bytes() => {
                    let mut opaque = InitiatorOpaque::new(user, password.clone(), *self.entropy)?;
                    opaque.start(out)?;
                    self.auth = Auth::Opaque(Box::new(opaque));
                }
                _ => return Err(InitiatorLoginError::MethodNotOffered),
            },
            (Auth::Chap(chap), None) => {
                if chap.handle(&sorted.chap, out)? {
                    let peer_authenticated = chap.authenticates_peer();
                    self.auth = Auth::Done { peer_authenticated };
                }
            }
            (Auth::Opaque(opaque), None) => {
                let context = self.context.ok_or(OpaqueError::KeyOutOfTurn)?;
                self.job = Some(opaque.handle_answer(&sorted.opaque, context)?);
            }
            (Auth::Done { .. }, None) if sorted.chap.is_empty() => {}
            _ => return Err(BadChap::KeyOutOfTurn.into()),
        }
        Ok(())
    }

    /// Returns the authentication methods that the initiator offers, best first.
    const fn methods(&self) -> &'static str {
        match &self.plan.auth {
            //= rfc7143#section-6.2.1
            //# The constant "None" MUST always be used to indicate a missing function.
            AuthPlan::None => "None",
            AuthPlan::Chap { or_none: true, peer: None, .. } => "CHAP,None",
            AuthPlan::Chap { .. } => "CHAP",
            //= iscsi-aead#section-9
            //# Fall back to another AuthMethod when this one failed.
            // The initiator offers no other method that the target could choose.
            AuthPlan::Opaque { .. } => METHOD,
        }
    }

    fn send(&mut self, out: TextBuilder) -> Result<InitiatorLoginStep, InitiatorLoginError> {
        if out.has_overflowed() {
            return Err(BadNegotiation::TooManyAnswers.into());
        }
        self.outgoing = TextSplitter::new(out.into_bytes());
        Ok(InitiatorLoginStep::Send(self.next_call()))
    }

    /// Makes a request of the next piece of the outgoing text.
    fn next_call(&mut self) -> OwnedLoginRequest {
        let tail = self.transcript.tail_len(self.ready, self.next_stage());
        let (data, cont) = self.outgoing.next_piece_before(self.plan.piece_max, tail);
        //= rfc7143#section-6.3.3
        //# The initiator MUST indicate its intent to terminate the negotiation by setting the T
        //# bit to 1; the target sets the T bit to 1 on the last response.
        //= rfc7143#section-11.12.2
        //# A Login Request with the C bit set to 1 MUST have the T bit set to 0.
        self.call(self.ready && !cont, cont, data)
    }

    fn call(&mut self, transit: bool, cont: bool, data: Vec<u8>) -> OwnedLoginRequest {
        let next = self.next_stage();
        self.asked = transit.then_some(next);
        let mut request = OwnedLoginRequest {
            transit,
            cont,
            csg: self.stage,
            nsg: if transit { next } else { Stage(0) },
            isid: self.plan.isid,
            tsih: self.tsih(),
            itt: self.plan.itt,
            cid: self.plan.cid,
            cmd_sn: self.plan.cmd_sn,
            data,
        };
        if let Some(pair) = self.transcript.pair_for_request(&request.as_request(0)) {
            request.data.extend_from_slice(&pair.into_bytes());
        }
        self.transcript.add_request(&request.as_request(0));
        if self.context.is_none() && !cont && matches!(self.auth, Auth::Opaque(_)) {
            self.context = Some(self.transcript.digest());
        }
        request
    }

    /// Returns the stage that follows the current one.
    const fn next_stage(&self) -> Stage {
        match (self.stage, self.plan.stages) {
            (Stage::SECURITY, LoginStages::SecurityAndOperational) => Stage::OPERATIONAL,
            _ => Stage::FULL_FEATURE,
        }
    }

    const fn tsih(&self) -> Tsih {
        match self.plan.purpose {
            //= rfc7143#section-4.4.3
            //# the same TSIH value MUST be used whenever the initiator or target refers to the
            //# session and a TSIH is required.
            //= rfc7143#section-6.3.4
            //# the TSIH in the Login Request PDU MUST be non-zero, and the CID does not change during
            //# a connection reinstatement.
            Purpose::Join { tsih, .. } => tsih,
            Purpose::Discovery | Purpose::NewSession(_) => Tsih::NEW,
        }
    }
}

/// One text of the target, with its keys sorted by purpose.
#[derive(Default)]
struct Sorted<'a> {
    auth_method: Option<&'a [u8]>,
    chap: ChapKeys<'a>,
    opaque: OpaqueKeys<'a>,
    operational: Vec<(Key, Pair<'a>)>,
}

/// Reads a response that ends the login without a session: a redirection or a refusal.
fn turned_away(response: &LoginResponse) -> Result<InitiatorLoginStep, InitiatorLoginError> {
    let status = response.status();
    if status.class() != Status::MOVED_TEMPORARILY.class() {
        return Ok(InitiatorLoginStep::Refused(status));
    }
    let pairs = parse(&response.data)?;
    let to = pairs
        .iter()
        .filter(|pair| pair.name == Key::TargetAddress.name())
        .find_map(|pair| TargetAddress::parse(pair.value))
        .ok_or(InitiatorLoginError::MovedNowhere)?;
    Ok(InitiatorLoginStep::Redirected { to: to.0, permanently: status == Status::MOVED_PERMANENTLY })
}
