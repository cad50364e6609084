//! The target's half of the login of one connection.
//!
//! [`TargetLogin::handle`] takes one Login Request and returns the next step. A text that is spread over
//! several requests is collected first and answered as a whole; an answer that is too long is sent in pieces.
//! The first text names the initiator and its purpose (`identify`). The stages follow: authentication,
//! operational keys, full feature phase.

mod identify;
mod password;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use base::state_machine::AcceptInfo;
use base::time::Instant;
use security::Level;
use security::guess_limit::Account;
use zeroize::Zeroizing;

use self::identify::{Identity, login_effect};
use self::password::check_joins;
use super::confirmation::{BadConfirmation, Transcript};
use super::deviation::Deviation;
use super::directory::{ConnectionPath, Directory};
use super::{
    LoginEffect, LoginError, LoginOutcome, LoginRequest, LoginResponse, LoginStep, MAX_LOGIN_PDUS,
    MAX_LOGIN_TEXTS, MAX_LOGIN_TIME, PasswordLogin, SessionKind, Stage, Status, VERSION,
};
use crate::aead::AeadDigest;
use crate::chap::exchange::{BadChap, ChapKeys, TargetChap};
use crate::keys::{DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, Key, Role};
use crate::name::{Cid, IscsiName, Isid, Tsih};
use crate::negotiate::key_rules::{BadNegotiation, KeyRules};
use crate::negotiate::negotiator::answer_unknown;
use crate::opaque::{METHOD, OpaqueError, OpaqueKeys, TargetOpaque};
use crate::text::value::list;
use crate::text::{Collector, Pair, TextBuilder, TextSplitter, parse};

/// The login of one connection.
#[derive(Debug)]
pub struct TargetLogin {
    via: ConnectionPath,
    entropy: Zeroizing<[u8; 32]>,
    deadline: Instant,
    pdus: usize,
    texts: usize,
    fixed: Option<Fixed>,
    stage: Stage,
    key_rules: KeyRules,
    incoming: Collector,
    outgoing: TextSplitter,
    /// Whether the target agrees to leave the stage once the outgoing text is sent.
    ready: bool,
    claims: ClaimedIdentity,
    identity: Option<Identity>,
    auth: Auth,
    transcript: Transcript,
    /// The try of a password that the outgoing text permits.
    guess: Option<Account>,
    over: bool,
    /// Whether initiator names without a standard form are accepted.
    lenient: bool,
    /// The deviations from the standard that were tolerated, each once.
    deviations: Vec<Deviation>,
}

/// The fields that every request of a login must repeat (RFC 7143 §11.12.5–8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fixed {
    isid: Isid,
    tsih: Tsih,
    cid: Cid,
    itt: u32,
}

/// The state of the authentication.
#[derive(Debug)]
enum Auth {
    /// No method was chosen.
    Open,
    /// CHAP is under way.
    Chap(TargetChap),
    /// The password login is under way.
    Opaque(TargetOpaque),
    /// The authentication succeeded under this user name, or was not needed.
    Done(Option<String>),
}

/// A login that failed, with a text for the initiator: the new address of the target.
struct Failure {
    why: LoginError,
    text: Vec<u8>,
}

impl<T: Into<LoginError>> From<T> for Failure {
    fn from(why: T) -> Self {
        let (why, mut text) = (why.into(), TextBuilder::new());
        if why == LoginError::NoCommonAuthMethod {
            //= rfc7143#section-6.3.2
            //# unless it does not support any, in which case it MUST answer with "Reject" (see
            //# Section 6.2).
            text.put(Key::AuthMethod.name(), "Reject");
        }
        Self { why, text: text.into_bytes() }
    }
}

/// The claims of an initiator about itself and its purpose, for the log: none of them is verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimedIdentity {
    /// The name that the initiator claims, once it is a legal name.
    pub initiator: Option<IscsiName>,
    /// The target that the initiator asked for, in the initiator's spelling.
    pub target: Option<String>,
    /// The user name of the initiator's authentication, in the initiator's spelling.
    pub user: Option<String>,
}

/// The longest claim that is kept, in bytes: the longest legal name.
const MAX_READABLE: usize = crate::name::MAX_NAME;

fn readable(word: &[u8]) -> String {
    String::from_utf8_lossy(word.get(..MAX_READABLE).unwrap_or(word)).into_owned()
}

/// One text of the initiator, with its keys sorted by purpose.
#[derive(Default)]
struct Sorted<'a> {
    initiator_name: Option<&'a [u8]>,
    initiator_alias: Option<&'a [u8]>,
    target_name: Option<&'a [u8]>,
    session_type: Option<&'a [u8]>,
    auth_method: Option<&'a [u8]>,
    chap: ChapKeys<'a>,
    opaque: OpaqueKeys<'a>,
    /// Whether there are keys of the password login, which has not begun.
    opaque_too_early: bool,
    operational: Vec<(Key, Pair<'a>)>,
}

impl TargetLogin {
    /// Begins the login of a connection that was just accepted. The login uses up the entropy of `arrival`.
    pub fn new(now: Instant, arrival: &AcceptInfo) -> Self {
        Self {
            via: ConnectionPath::from(arrival),
            entropy: Zeroizing::new(arrival.entropy),
            deadline: now.after(MAX_LOGIN_TIME),
            pdus: 0,
            texts: 0,
            fixed: None,
            stage: Stage::SECURITY,
            key_rules: KeyRules::new(Role::Initiator, true),
            incoming: Collector::new(),
            outgoing: TextSplitter::default(),
            ready: false,
            claims: ClaimedIdentity::default(),
            identity: None,
            auth: Auth::Open,
            transcript: Transcript::default(),
            guess: None,
            over: false,
            lenient: false,
            deviations: Vec::new(),
        }
    }

    /// Accepts initiator names without the form of RFC 7143 §4.2.7, as [`IscsiName::parse_leniently`] does.
    pub const fn take_lenient_names(&mut self) {
        self.lenient = true;
    }

    /// Returns how much memory is held for texts that are spread over several PDUs, in bytes.
    pub const fn held(&self) -> usize {
        self.incoming.held() + self.outgoing.held()
    }

    /// Returns the claims of the initiator so far. They are not verified.
    pub const fn claims(&self) -> &ClaimedIdentity {
        &self.claims
    }

    /// Removes and returns the deviations from the standard that were tolerated.
    pub fn take_deviations(&mut self) -> Vec<Deviation> {
        core::mem::take(&mut self.deviations)
    }

    fn record_deviation(&mut self, departure: Deviation) {
        if !self.deviations.contains(&departure) {
            self.deviations.push(departure);
        }
    }

    /// Returns whether the initiator proved its password in the password login.
    pub const fn has_proven(&self) -> bool {
        self.transcript.is_proven()
    }

    /// Returns the time by which the login must be complete; the owner closes the connection then.
    pub const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Handles a Login Request and returns the next step.
    pub fn handle(
        &mut self,
        now: Instant,
        request: &LoginRequest<'_>,
        directory: &dyn Directory,
    ) -> LoginStep {
        let step = self.step(now, request, directory).unwrap_or_else(|failure| fail(request, failure));
        self.over |= !matches!(step, LoginStep::Continue(_) | LoginStep::PermitGuess { .. });
        step
    }

    /// Handles a Login Request that was received before the response of the last step was sent.
    pub fn handle_early(&mut self, request: &LoginRequest<'_>) -> LoginStep {
        self.over = true;
        //= rfc7143#section-6.3
        //# There MUST NOT be more than one outstanding Login Request or Login Response on an
        //# iSCSI connection.
        fail(request, LoginError::RequestBeforeResponse.into())
    }

    /// Handles a PDU that is not a Login Request; `itt` is its task tag.
    pub fn handle_other(&mut self, itt: u32) -> LoginStep {
        let why =
            if self.fixed.is_some() { LoginError::OtherPduDuringLogin } else { LoginError::FirstIsNoLogin };
        self.over = true;
        let fixed = self.fixed.unwrap_or(Fixed { isid: Isid([0; 6]), tsih: Tsih::NEW, cid: Cid(0), itt });
        let request = LoginRequest {
            transit: false,
            cont: false,
            csg: self.stage,
            nsg: Stage(0),
            version_max: VERSION,
            version_min: VERSION,
            isid: fixed.isid.0,
            tsih: fixed.tsih.0,
            itt: fixed.itt,
            cid: fixed.cid.0,
            cmd_sn: 0,
            exp_stat_sn: 0,
            data: &[],
        };
        fail(&request, why.into())
    }

    fn step(
        &mut self,
        now: Instant,
        request: &LoginRequest<'_>,
        directory: &dyn Directory,
    ) -> Result<LoginStep, Failure> {
        self.pdus += 1;
        if self.over {
            return Err(LoginError::AfterTheEnd.into());
        }
        if now > self.deadline {
            return Err(LoginError::TooSlow.into());
        }
        if self.pdus > MAX_LOGIN_PDUS {
            return Err(LoginError::TooManyPdus.into());
        }
        self.check_header(request)?;
        //= iscsi-aead#section-4.1
        //# A side MUST hash every Login PDU of the connection from the first one on, including those without
        //# text.
        let data = self.transcript.receive_request(request)?;
        if !self.outgoing.is_done() {
            if !data.is_empty() || request.cont {
                return Err(LoginError::TextAmidAnswer.into());
            }
            return self.emit(request, directory);
        }
        let Some(text) = self.incoming.add(data, request.cont)? else {
            //= rfc7143#section-6.2
            //# A target receiving a Text or Login Request with the C bit set to 1 MUST answer with a
            //# Text or Login Response with no data segment (DataSegmentLength 0).
            let mut response = response_to(request);
            self.transcript.send_response(&mut response);
            return Ok(LoginStep::Continue(response));
        };
        self.texts += 1;
        if self.texts > MAX_LOGIN_TEXTS {
            return Err(LoginError::TooManyTexts.into());
        }
        let mut out = TextBuilder::new();
        self.ready = self.answer(request, &text, directory, &mut out)?;
        if out.has_overflowed() {
            return Err(BadNegotiation::TooManyAnswers.into());
        }
        self.outgoing = TextSplitter::new(out.into_bytes());
        self.emit(request, directory)
    }

    fn check_header(&mut self, request: &LoginRequest<'_>) -> Result<(), LoginError> {
        let fixed = Fixed {
            isid: Isid(request.isid),
            tsih: Tsih(request.tsih),
            cid: Cid(request.cid),
            itt: request.itt,
        };
        match self.fixed {
            Some(known) if known != fixed => return Err(LoginError::IdentityChanged),
            Some(_) => {}
            None => {
                //= rfc7143#section-11.12.4.1
                //# The target MUST use the value presented with the first Login Request.
                //= rfc7143#section-11.12.4.2
                //# The target MUST use the value presented with the first Login Request.
                //= rfc7143#section-11.12.7
                //# The target MUST use the value presented with the first Login Request.
                self.fixed = Some(fixed);
                if request.version_min > VERSION {
                    return Err(LoginError::NoCommonVersion);
                }
                self.key_rules.set_leading(fixed.tsih == Tsih::NEW);
                // A login may skip the security stage.
                if request.csg == Stage::OPERATIONAL {
                    self.stage = Stage::OPERATIONAL;
                }
            }
        }
        if request.csg != self.stage {
            //= rfc7143#section-6.3
            //# and MUST include at least one of them, but the included stage MAY be empty except for
            //# the mandatory names.
            return Err(LoginError::StageNotCurrent);
        }
        if request.transit {
            if request.cont {
                //= rfc7143#section-6.2
                //# As negotiation text may span PDU boundaries, a Text or Login Request or a Text or
                //# Login Response PDU that has the C bit set to 1 MUST NOT have the F bit or T bit set
                //# to 1.
                return Err(LoginError::TransitWithContinue);
            }
            let follows = match request.nsg {
                //= rfc7143#section-6.3
                //# If both stages are used, the SecurityNegotiation MUST precede the
                //# LoginOperationalNegotiation.
                Stage::OPERATIONAL => self.stage == Stage::SECURITY,
                Stage::FULL_FEATURE => true,
                _ => false,
            };
            if !follows {
                return Err(LoginError::StageDoesNotFollow);
            }
        }
        Ok(())
    }

    /// Handles a complete text and appends the answers; returns whether the target agrees to leave the stage.
    fn answer(
        &mut self,
        request: &LoginRequest<'_>,
        text: &[u8],
        directory: &dyn Directory,
        out: &mut TextBuilder,
    ) -> Result<bool, Failure> {
        let sorted = self.sort(text, out)?;
        if self.identity.is_none() {
            let parse_name = if self.lenient { IscsiName::parse_leniently } else { IscsiName::parse };
            self.claims.initiator = sorted.initiator_name.and_then(|name| parse_name(name).ok());
            self.claims.target = sorted.target_name.map(readable);
            let fixed = self.fixed.ok_or(LoginError::AfterTheEnd)?;
            let identity = Identity::establish(&sorted, (fixed, parse_name), &self.via, directory, out)?;
            if let Some(departure) = Deviation::of_name(&identity.initiator) {
                self.record_deviation(departure);
            }
            self.identity = Some(identity);
        }
        let Some(identity) = &mut self.identity else { return Err(LoginError::AfterTheEnd.into()) };
        if let Some(alias) = sorted.initiator_alias {
            identity.set_alias(alias);
        }
        if let Auth::Opaque(_) = self.auth {
            self.prove(&sorted, request, directory, out).map_err(Failure::from)
        } else if self.stage == Stage::SECURITY {
            self.authenticate(&sorted, request.transit, directory, out).map_err(Failure::from)
        } else {
            self.operate(&sorted, request.transit, out).map_err(Failure::from)
        }
    }

    fn sort<'a>(&mut self, text: &'a [u8], out: &mut TextBuilder) -> Result<Sorted<'a>, LoginError> {
        let mut sorted = Sorted::default();
        for pair in parse(text)? {
            if self.transcript.is_misplaced(pair.name) {
                return Err(BadConfirmation::Misplaced.into());
            }
            if let Auth::Opaque(_) = self.auth {
                //= iscsi-aead#section-3.1
                //# Each text of steps 3 to 5 MUST hold exactly the keys shown.
                if !sorted.opaque.take(&pair)? {
                    return Err(OpaqueError::OtherKey.into());
                }
                continue;
            }
            if OpaqueKeys::is_key(pair.name) {
                if self.has_proven() {
                    return Err(OpaqueError::KeyOutOfTurn.into());
                }
                sorted.opaque_too_early = true;
            }
            //= rfc7143#section-6.2
            //# An iSCSI implementation MUST comprehend all text keys defined in this document.
            //= rfc7143#section-6.2
            //# All keys in this document MUST be supported by iSCSI initiators and targets when used
            //# as specified here.
            //= rfc7143#section-6.2
            //# If used as specified, these keys MUST NOT be answered with NotUnderstood.
            let Some(key) = Key::by_name(pair.name.as_bytes()) else {
                answer_unknown(&pair, out)?;
                continue;
            };
            if let Some(identity) = &self.identity
                && let Some(same) = identity.repeats(key, pair.value)
            {
                if same {
                    self.record_deviation(Deviation::NameRepeated(key));
                    continue;
                }
                return Err(LoginError::IdentityTooLate(key));
            }
            // Several initiators that have nothing to authenticate with state so in the operational stage
            // (see `operate`).
            let says_none = key == Key::AuthMethod && self.stage == Stage::OPERATIONAL;
            self.key_rules.admit(key, if says_none { Stage::SECURITY } else { self.stage })?;
            match key {
                Key::InitiatorName => sorted.initiator_name = Some(pair.value),
                Key::InitiatorAlias => sorted.initiator_alias = Some(pair.value),
                Key::TargetName => sorted.target_name = Some(pair.value),
                Key::SessionType => sorted.session_type = Some(pair.value),
                Key::AuthMethod => sorted.auth_method = Some(pair.value),
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
        transit: bool,
        directory: &dyn Directory,
        out: &mut TextBuilder,
    ) -> Result<bool, LoginError> {
        let Some(identity) = &self.identity else { return Err(LoginError::AuthenticationSkipped) };
        let policy = &identity.auth;
        let chap_here = !sorted.chap.is_empty();
        match (&mut self.auth, sorted.auth_method) {
            (Auth::Open, Some(offer)) if !chap_here => {
                //= rfc7143#section-6.3.2
                //# The target MUST reply with the first option in the list it supports and is allowed
                //# to use for the specific initiator
                let (auth, method) = match list(offer).find(|method| policy.takes(method)) {
                    Some(b"None") => (Auth::Done(None), "None"),
                    Some(b"CHAP") => (Auth::Chap(TargetChap::new(policy.chap, *self.entropy)), "CHAP"),
                    Some(_) if sorted.opaque_too_early => return Err(OpaqueError::KeyOutOfTurn.into()),
                    Some(_) => (Auth::Opaque(TargetOpaque::default()), METHOD),
                    None => return Err(LoginError::NoCommonAuthMethod),
                };
                self.auth = auth;
                out.put(Key::AuthMethod.name(), method);
            }
            (Auth::Open, None) if !chap_here => {
                // A peer that offers no method asks to log in without authentication; it may still offer one
                // before it requests the next stage.
                if transit {
                    self.auth = Auth::Done(policy.without_proof()?);
                }
            }
            (Auth::Chap(chap), None) => {
                if let Some(name) = sorted.chap.name() {
                    self.claims.user = Some(readable(name));
                }
                let secret_of = |user: &str| directory.chap_secret(identity.realm, &identity.initiator, user);
                let user = chap.handle(&sorted.chap, &secret_of, policy.own.as_ref(), out)?;
                if user.is_some() {
                    self.auth = Auth::Done(user);
                }
            }
            (Auth::Done(_), None) if !chap_here => {}
            _ => return Err(BadChap::KeyOutOfTurn.into()),
        }
        Ok(transit && matches!(self.auth, Auth::Done(_)))
    }

    /// Handles a text of the LoginOperationalNegotiation stage.
    fn operate(
        &mut self,
        sorted: &Sorted<'_>,
        transit: bool,
        out: &mut TextBuilder,
    ) -> Result<bool, LoginError> {
        let Some(identity) = &self.identity else { return Err(LoginError::AuthenticationSkipped) };
        if let Some(offer) = sorted.auth_method {
            // This offer only states that the initiator will not authenticate itself, which is harmless where
            // no authentication is required.
            let only_none = list(offer).all(|method| method == b"None");
            if !only_none || !identity.auth.allows_none {
                return Err(BadNegotiation::KeyInWrongStage(Key::AuthMethod).into());
            }
            out.put(Key::AuthMethod.name(), "None");
            self.record_deviation(Deviation::AuthMethodInOperationalStage);
        }
        let Some(identity) = &mut self.identity else { return Err(LoginError::AuthenticationSkipped) };
        if matches!(self.auth, Auth::Open) {
            self.auth = Auth::Done(identity.auth.without_proof()?);
        }
        let is_discovery = matches!(identity.kind, SessionKind::Discovery { .. });
        let asked = identity.negotiator.has_unanswered_offer();
        identity.negotiator.receive(&sorted.operational, out)?;
        if asked && identity.negotiator.has_unanswered_offer() {
            identity.negotiator.finish()?;
        }
        identity.negotiator.declare(out);
        // The target makes its offers only when the initiator has no more to offer: two offers of one key
        // must not cross.
        if transit {
            identity.negotiator.offer_unacceptable(out);
        }
        //= rfc7143#section-6.3
        //# Targets MUST NOT submit parameters that require an additional initiator Login Request
        //# in a Login Response with the T bit set to 1.
        //= rfc7143#section-11.13.6
        //# A Login Response with the T bit set to 1 MUST NOT contain key=value pairs that may require
        //# additional answers from the initiator within the same stage.
        let agreed = transit && !identity.negotiator.has_unanswered_offer();
        for (key, pair) in &sorted.operational {
            if let Some(departure) = Deviation::of_key(*key, pair, is_discovery) {
                self.record_deviation(departure);
            }
        }
        Ok(agreed)
    }

    /// Sends the next piece of the outgoing text, and leaves the stage after the last piece if both sides
    /// agree.
    fn emit(&mut self, request: &LoginRequest<'_>, directory: &dyn Directory) -> Result<LoginStep, Failure> {
        let declared = self.identity.as_ref().map(|identity| identity.negotiator.peer_max_recv());
        let limit = declared.unwrap_or(u32::MAX).min(DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH);
        let mut response = response_to(request);
        let tail = self.transcript.tail_len(self.ready && request.transit, request.nsg);
        (response.data, response.cont) =
            self.outgoing.next_piece_before(usize::try_from(limit).unwrap_or(512), tail);
        //= rfc7143#section-11.13.6
        //# If the Status-Class is 0, the T bit MUST NOT be set to 1 if the T bit in the request was set to 0.
        //= rfc7143#section-11.13.7
        //# A Login Response with the C bit set to 1 MUST have the T bit set to 0.
        if response.cont || !self.ready || !request.transit {
            self.transcript.send_response(&mut response);
            return Ok(match self.guess.take() {
                Some(guess) => LoginStep::PermitGuess { response, guess },
                None => LoginStep::Continue(response),
            });
        }
        //= rfc7143#section-6.3
        //# The selected NSG MUST NOT exceed the value stated by the initiator.
        //= rfc7143#section-6.3
        //# both the request and response MUST indicate FullFeaturePhase as the next phase via the
        //# NSG field.
        (response.transit, response.nsg) = (true, request.nsg);
        self.transcript.send_response(&mut response);
        self.stage = request.nsg;
        self.ready = false;
        if self.stage != Stage::FULL_FEATURE {
            return Ok(LoginStep::Continue(response));
        }
        let outcome = Box::new(self.conclude(request, directory)?);
        Ok(LoginStep::Complete { response, outcome })
    }

    fn conclude(
        &mut self,
        request: &LoginRequest<'_>,
        directory: &dyn Directory,
    ) -> Result<LoginOutcome, LoginError> {
        let (Some(identity), Some(fixed), Auth::Done(user)) = (&self.identity, self.fixed, &self.auth) else {
            return Err(LoginError::AuthenticationSkipped);
        };
        //= rfc7143#section-6.2
        //# An iSCSI target MUST perform integrity checking before the new parameters take effect.
        let negotiated = identity.negotiator.finish()?;
        let query = identity.query(fixed);
        let effect = login_effect(&query, directory)?;
        let digest = negotiated.connection.header_digest.aead();
        let password_login = user.clone().filter(|_| self.transcript.is_proven());
        let password_login = password_login.map(|user| {
            let protection = digest.map_or(Level::None, AeadDigest::level);
            PasswordLogin { user, protection }
        });
        if let LoginEffect::AddsConnection(_) | LoginEffect::ReinstatesConnection(_) = effect {
            let session = directory.find_session(&query).ok_or(LoginError::NoSuchSession)?;
            check_joins(password_login.as_ref(), session.password_login.as_ref())?;
        }
        Ok(LoginOutcome {
            kind: identity.kind.clone(),
            initiator: identity.initiator.clone(),
            initiator_alias: identity.alias.clone(),
            isid: fixed.isid,
            tsih: fixed.tsih,
            cid: fixed.cid,
            cmd_sn: request.cmd_sn,
            effect,
            negotiated,
            user: user.clone(),
            password_login,
            record_keys: self.transcript.finish(digest),
        })
    }
}

/// Makes a response without text that stays in the stage.
fn response_to(request: &LoginRequest<'_>) -> LoginResponse {
    LoginResponse {
        transit: false,
        cont: false,
        csg: request.csg,
        nsg: Stage(0),
        //= rfc7143#section-11.13.1
        //# All Login Responses within the Login Phase MUST carry the same Version-max.
        version_max: VERSION,
        //= rfc7143#section-11.13.2
        //# All Login Responses within the Login Phase MUST carry the same Version-active.
        version_active: VERSION,
        isid: request.isid,
        tsih: request.tsih,
        itt: request.itt,
        status_class: Status::SUCCESS.class(),
        status_detail: Status::SUCCESS.detail(),
        data: Vec::new(),
    }
}

fn fail(request: &LoginRequest<'_>, failure: Failure) -> LoginStep {
    let Failure { why, text } = failure;
    match why.status() {
        Some(status) => {
            let mut response = response_to(request).refused(status);
            response.data = text;
            LoginStep::Fail { response, why }
        }
        None => LoginStep::Drop(why),
    }
}

#[cfg(test)]
mod tests;
