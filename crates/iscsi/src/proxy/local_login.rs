//! The login of the initiator: names, stages and digests are handled here. The other operational keys are
//! collected for the target.

use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::mem;

use super::error::LocalLoginError;
use super::stat_sn::StatSnDistance;
use super::texts::limited;
use super::{ProxyError, texts};
use crate::keys::{DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, Key, Role};
use crate::login::initiator::Purpose;
use crate::login::{Stage, Status, VERSION, printable};
use crate::name::{Cid, IscsiName, Isid, Tsih};
use crate::negotiate::negotiator::{LoginContext, Negotiator, answer_unknown};
use crate::negotiate::{ConnectionParameters, KeyPolicy, SessionParameters};
use crate::pdu::login_request::LoginRequest;
use crate::pdu::login_response::LoginResponse;
use crate::pdu::{Itt, TargetSn};
use crate::serial::{CmdSn, StatSn};
use crate::text::value::list;
use crate::text::{Collector, Pair, TextBuilder, parse};

/// The login of the initiator.
#[derive(Debug)]
pub(super) struct LocalLogin {
    fixed: Option<Fixed>,
    identity: Option<Identity>,
    stage: Stage,
    incoming: Collector,
    /// Negotiates the digests.
    negotiator: Negotiator,
    /// The proxy's answers that the next response carries.
    answers: TextBuilder,
    /// The keys for the target.
    forward: TextBuilder,
    /// What the target sent while no text of the operational stage could be answered.
    held: Vec<u8>,
    has_responded: bool,
    /// How many requests the proxy itself has answered: with the StatSNs from 0 on.
    acknowledged: u32,
    /// How far the StatSNs are ahead of those of the target.
    distance: StatSnDistance,
    /// The longest data segment that the initiator receives, if it has declared that.
    declared: Option<u32>,
    /// The request that waits for its response.
    pending: Option<Pending>,
}

/// What all requests of a login have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fixed {
    pub(super) isid: Isid,
    pub(super) tsih: Tsih,
    pub(super) cid: Cid,
    pub(super) itt: Itt,
    pub(super) cmd_sn: CmdSn,
    exp_stat_sn: StatSn,
}

/// The names in the first request.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) initiator: IscsiName,
    pub(super) alias: Option<String>,
    /// The target; `None` for a discovery session.
    target: Option<IscsiName>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    transit: bool,
    is_whole: bool,
}

/// The names in one text.
#[derive(Default)]
struct Names<'a> {
    initiator: Option<&'a [u8]>,
    alias: Option<&'a [u8]>,
    target: Option<&'a [u8]>,
    session_type: Option<&'a [u8]>,
}

impl LocalLogin {
    pub(super) fn new() -> Self {
        let policy = KeyPolicy { aead_digests: &[], ..KeyPolicy::default() };
        Self {
            fixed: None,
            identity: None,
            stage: Stage::SECURITY,
            incoming: Collector::new(),
            negotiator: Negotiator::new(Role::Target, policy, LoginContext::Leading),
            answers: TextBuilder::new(),
            forward: TextBuilder::new(),
            held: Vec::new(),
            has_responded: false,
            acknowledged: 0,
            distance: StatSnDistance::default(),
            declared: None,
            pending: None,
        }
    }

    /// Handles a request. Returns whether the target is known, which then answers every request; a piece of
    /// the first text is for [`Self::acknowledge`].
    pub(super) fn handle(&mut self, request: &LoginRequest, text: &[u8]) -> Result<bool, LocalLoginError> {
        if self.pending.is_some() {
            return Err(LocalLoginError::RequestBeforeResponse);
        }
        self.check_header(request)?;
        self.pending = Some(Pending { transit: request.transit, is_whole: false });
        if let Some(whole) = self.incoming.add(text, request.continues)? {
            self.read(&whole)?;
            if let Some(pending) = &mut self.pending {
                pending.is_whole = true;
            }
        }
        Ok(self.identity.is_some())
    }

    /// Returns the response to a piece of the first text. The text names the target, so the target cannot
    /// answer yet.
    pub(super) fn acknowledge(&mut self) -> Option<LoginResponse> {
        let (_, fixed) = (self.pending.take()?, self.fixed?);
        let stat_sn = StatSn(self.acknowledged);
        self.acknowledged += 1;
        let max_cmd_sn = match fixed.tsih {
            Tsih::NEW => fixed.cmd_sn,
            // The proxy does not know the command window of the session. With such a number the initiator
            // ignores both (RFC 7143 §4.2.2.1).
            _ => CmdSn(fixed.cmd_sn.0.wrapping_sub(2)),
        };
        let sn = TargetSn { stat_sn, exp_cmd_sn: fixed.cmd_sn, max_cmd_sn };
        //= rfc7143#section-6.2
        //# A target receiving a Text or Login Request with the C bit set to 1 MUST answer with a
        //# Text or Login Response with no data segment (DataSegmentLength 0).
        Some(LoginResponse { csg: self.stage.0, ..response(fixed, sn) })
    }

    /// Returns how far the StatSNs are ahead of those of the target.
    pub(super) const fn stat_sn_distance(&self) -> StatSnDistance {
        self.distance
    }

    fn check_header(&mut self, request: &LoginRequest) -> Result<(), LocalLoginError> {
        let fixed = Fixed {
            isid: Isid(request.isid),
            tsih: Tsih(request.tsih),
            cid: Cid(request.cid),
            itt: request.itt,
            cmd_sn: request.cmd_sn,
            exp_stat_sn: request.exp_stat_sn,
        };
        let first = *self.fixed.get_or_insert_with(|| {
            if request.csg == Stage::OPERATIONAL.0 {
                self.stage = Stage::OPERATIONAL;
            }
            fixed
        });
        if first != (Fixed { exp_stat_sn: first.exp_stat_sn, cmd_sn: first.cmd_sn, ..fixed }) {
            return Err(LocalLoginError::IdentityChanged);
        }
        if request.version_min > VERSION {
            return Err(LocalLoginError::Version);
        }
        let nsg = Stage(request.nsg);
        let follows = match self.stage {
            Stage::SECURITY => nsg == Stage::OPERATIONAL || nsg == Stage::FULL_FEATURE,
            _ => nsg == Stage::FULL_FEATURE,
        };
        let is_legal = Stage(request.csg) == self.stage
            && (!request.transit || follows)
            && !(request.transit && request.continues);
        if is_legal { Ok(()) } else { Err(LocalLoginError::Stage) }
    }

    /// Reads a whole text.
    fn read(&mut self, text: &[u8]) -> Result<(), LocalLoginError> {
        let (pairs, mut digests) = (parse(text)?, Vec::new());
        if self.identity.is_none() {
            self.identity = Some(Names::of(&pairs).identity()?);
        }
        for pair in pairs {
            match Key::by_name(pair.name.as_bytes()) {
                Some(Key::InitiatorName | Key::InitiatorAlias | Key::TargetName | Key::SessionType) => {}
                Some(Key::AuthMethod) => self.answer_method(pair.value)?,
                Some(Key::ChapA | Key::ChapI | Key::ChapC | Key::ChapN | Key::ChapR) => {
                    return Err(LocalLoginError::Authentication);
                }
                Some(Key::MaxRecvDataSegmentLength) => self.declare(&pair),
                None if self.stage == Stage::SECURITY => answer_unknown(&pair, &mut self.answers)?,
                Some(_) if self.stage == Stage::SECURITY => return Err(LocalLoginError::Stage),
                Some(digest @ (Key::HeaderDigest | Key::DataDigest)) => digests.push((digest, pair)),
                _ => self.forward.put(pair.name, pair.value),
            }
        }
        self.negotiator.receive(&digests, &mut self.answers)?;
        if self.answers.has_overflowed() || self.forward.has_overflowed() {
            return Err(LocalLoginError::Text(crate::text::BadText::TooLong));
        }
        Ok(())
    }

    fn answer_method(&mut self, offer: &[u8]) -> Result<(), LocalLoginError> {
        if !list(offer).any(|method| method == b"None") {
            return Err(LocalLoginError::Authentication);
        }
        self.answers.put(Key::AuthMethod.name(), "None");
        Ok(())
    }

    /// Forwards the declaration of the longest data segment, reduced. A value that is not legal is for the
    /// target to refuse.
    fn declare(&mut self, pair: &Pair<'_>) {
        let Some(limit) = limited(pair.value) else { return self.forward.put(pair.name, pair.value) };
        self.declared = Some(limit);
        self.forward.put(pair.name, self.limit_for_target(limit).to_string());
    }

    /// Returns the limit for what the target sends. The answer to SendTargets can grow when the addresses in
    /// it are replaced: a name and an address have at least 49 bytes, and grow by at most 19.
    fn limit_for_target(&self, limit: u32) -> u32 {
        if self.is_discovery() { (limit / 2).max(512) } else { limit }
    }

    fn is_discovery(&self) -> bool {
        self.identity.as_ref().is_some_and(|identity| identity.target.is_none())
    }

    /// Returns the purpose of the login to the target.
    pub(super) fn purpose(&self) -> Option<(Purpose, &Identity, Fixed)> {
        let (identity, fixed) = (self.identity.as_ref()?, self.fixed?);
        let purpose = match (&identity.target, fixed.tsih) {
            (None, _) => Purpose::Discovery,
            (Some(target), Tsih::NEW) => Purpose::NewSession(target.clone()),
            // The parameters of the session are for initiator and target to know.
            (Some(target), tsih) => {
                Purpose::Join { target: target.clone(), tsih, parameters: SessionParameters::default() }
            }
        };
        Some((purpose, identity, fixed))
    }

    /// Returns the ExpStatSN of the first request.
    pub(super) fn exp_stat_sn(&self) -> StatSn {
        self.fixed.map_or(StatSn(0), |fixed| fixed.exp_stat_sn)
    }

    /// Returns whether the pending request is one of the operational stage.
    pub(super) fn has_operational_text(&self) -> bool {
        self.stage == Stage::OPERATIONAL
    }

    /// Returns the text that the target gets now, and whether the initiator requests full feature phase.
    pub(super) fn next_text(&mut self) -> (TextBuilder, bool) {
        let is_due = self.stage == Stage::OPERATIONAL && self.pending.is_some_and(|pending| pending.is_whole);
        if !is_due {
            return (TextBuilder::new(), false);
        }
        let transit = self.pending.is_some_and(|pending| pending.transit);
        if transit && self.is_discovery() && self.declared.is_none() {
            self.declared = Some(DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH);
            let limit = self.limit_for_target(DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH);
            self.forward.put(Key::MaxRecvDataSegmentLength.name(), limit.to_string());
        }
        (mem::take(&mut self.forward), transit)
    }

    /// Returns the response to the pending request. `relayed` is the text of the target, and `complete` the
    /// TSIH of the session when the login is complete.
    pub(super) fn respond(
        &mut self,
        sn: TargetSn,
        relayed: &[u8],
        complete: Option<Tsih>,
    ) -> Result<(LoginResponse, Vec<u8>), ProxyError> {
        let (Some(pending), Some(fixed)) = (self.pending.take(), self.fixed) else {
            return Err(ProxyError::Bug);
        };
        let texts_max = usize::try_from(DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH).unwrap_or(512);
        // The first text of the target is about itself. The others have operational keys, and a response
        // within a text of the initiator has no text (RFC 7143 §6.2).
        let is_first = !mem::replace(&mut self.has_responded, true);
        if is_first && self.acknowledged > 0 {
            self.distance = StatSnDistance::between(StatSn(self.acknowledged), sn.stat_sn);
        }
        let sn = TargetSn { stat_sn: self.distance.for_initiator(sn.stat_sn), ..sn };
        self.held.extend_from_slice(relayed);
        let mut text = Vec::new();
        if pending.is_whole {
            text = mem::take(&mut self.answers).into_bytes();
            if is_first || self.stage == Stage::OPERATIONAL {
                let held = mem::take(&mut self.held);
                text.extend_from_slice(&texts::reduced_request(&held).unwrap_or(held));
            }
        }
        if text.len() > texts_max || self.held.len() > texts_max {
            return Err(ProxyError::AnswerTooLong);
        }
        let csg = self.stage;
        let nsg = match (csg, complete) {
            (_, Some(_)) => Some(Stage::FULL_FEATURE),
            (Stage::SECURITY, None) if pending.transit => Some(Stage::OPERATIONAL),
            _ => None,
        };
        self.stage = nsg.unwrap_or(csg);
        let header = LoginResponse {
            transit: nsg.is_some(),
            continues: false,
            csg: csg.0,
            nsg: nsg.map_or(0, |nsg| nsg.0),
            tsih: complete.unwrap_or(fixed.tsih).0,
            ..response(fixed, sn)
        };
        Ok((header, text))
    }

    /// Returns the response that refuses the login, if there is a request that it could answer.
    pub(super) fn refuse(&self, sn: TargetSn, status: Status) -> Option<LoginResponse> {
        // The numbers of the target begin with the first response that comes from it.
        let is_first = self.acknowledged > 0 && !self.has_responded;
        let stat_sn =
            if is_first { StatSn(self.acknowledged) } else { self.distance.for_initiator(sn.stat_sn) };
        let sn = TargetSn { stat_sn, ..sn };
        Some(LoginResponse { csg: self.stage.0, status: status.0, ..response(self.fixed?, sn) })
    }

    /// Returns the digests of the connection.
    pub(super) fn negotiated(&self) -> Result<ConnectionParameters, LocalLoginError> {
        Ok(self.negotiator.finish()?.connection)
    }

    /// Returns the longest data segment that the initiator receives, in bytes.
    pub(super) fn max_recv(&self) -> usize {
        let limit = self.declared.unwrap_or(DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH);
        usize::try_from(limit).unwrap_or(512)
    }
}

const fn response(fixed: Fixed, sn: TargetSn) -> LoginResponse {
    LoginResponse {
        transit: false,
        continues: false,
        csg: 0,
        nsg: 0,
        version_max: VERSION,
        version_active: VERSION,
        isid: fixed.isid.0,
        tsih: fixed.tsih.0,
        itt: fixed.itt,
        sn,
        status: 0,
    }
}

impl<'a> Names<'a> {
    fn of(pairs: &[Pair<'a>]) -> Self {
        let value = |key: Key| pairs.iter().find(|pair| pair.name == key.name()).map(|pair| pair.value);
        Self {
            initiator: value(Key::InitiatorName),
            alias: value(Key::InitiatorAlias),
            target: value(Key::TargetName),
            session_type: value(Key::SessionType),
        }
    }

    fn identity(&self) -> Result<Identity, LocalLoginError> {
        let named = |name: Option<&[u8]>| {
            let name = name.ok_or(LocalLoginError::NameMissing)?;
            IscsiName::parse_leniently(name).map_err(|_| LocalLoginError::Name)
        };
        let target = match self.session_type {
            Some(b"Discovery") => None,
            Some(b"Normal") | None => Some(named(self.target)?),
            Some(_) => return Err(LocalLoginError::Name),
        };
        Ok(Identity { initiator: named(self.initiator)?, alias: self.alias.map(printable), target })
    }
}
