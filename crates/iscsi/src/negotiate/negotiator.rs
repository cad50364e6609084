//! One negotiation of operational keys, for either role: offers, answers, and results.
//!
//! The negotiator processes the key table. Only three keys have code of their own: MaxRecvDataSegmentLength,
//! which each side declares for itself; FirstBurstLength, which MaxBurstLength bounds and which can be
//! irrelevant; ErrorRecoveryLevel, which is zero in discovery sessions.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::key_rules::BadNegotiation;
use super::{ConnectionParameters, Digest, KeyPolicy, Negotiated, SessionParameters, TaskReporting, Want};
use crate::aead::AeadDigest;
use crate::keys::{BooleanResult, Key, Kind, NumberResult, Role, TABLE, Usage};
use crate::recovery::RecoveryLevel;
use crate::text::value::{boolean, boolean_text, list, number_in};
use crate::text::{Pair, TextBuilder};

/// The kind of the session that is being negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginContext {
    /// The first connection of a normal session.
    Leading,
    /// A further connection of a session that negotiated these parameters.
    Joining(SessionParameters),
    /// A discovery session, which has one connection.
    Discovery,
}

/// The state of one login's negotiation of operational keys.
#[derive(Clone, Debug)]
pub struct Negotiator {
    role: Role,
    policy: KeyPolicy,
    setting: LoginContext,
    slots: [KeyState; Key::COUNT],
    own_declared: bool,
    /// Whether the connection has keys for an AEAD digest.
    has_keys: bool,
    /// The AEAD digest that answers the offers of both digests in the text that is being received.
    joint_aead: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyState {
    /// Neither side sent the key.
    Untouched,
    /// This side offered the key and waits for the answer.
    Offered,
    /// The key has a value; `None` when its negotiation failed and the default stays.
    Settled(Option<Value>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Number(u32),
    Flag(bool),
    Name(&'static str),
}

/// The values that are legal answers for every key (RFC 7143 §6.2).
const REJECT: &str = "Reject";
const IRRELEVANT: &str = "Irrelevant";
const NOT_UNDERSTOOD: &str = "NotUnderstood";

/// Returns whether `value` is `Reject`, `Irrelevant` or `NotUnderstood`.
pub fn is_refusal(value: &[u8]) -> bool {
    [REJECT, IRRELEVANT, NOT_UNDERSTOOD].iter().any(|word| word.as_bytes() == value)
}

/// Answers a key that is not in the table.
///
/// # Errors
/// `AnswerWithoutOffer` when the value is itself such an answer: two sides that answer each other's answers
/// would never end.
pub fn answer_unknown(pair: &Pair<'_>, out: &mut TextBuilder) -> Result<(), BadNegotiation> {
    if is_refusal(pair.value) {
        //= rfc7143#section-6.2
        //# The constants "None", "Reject", "Irrelevant", and "NotUnderstood" are reserved and
        //# MUST ONLY be used as described here.
        return Err(BadNegotiation::AnswerWithoutOffer);
    }
    //= rfc7143#section-6.2
    //# the answer for a key that is not understood MUST be key=NotUnderstood
    out.put(pair.name, NOT_UNDERSTOOD);
    Ok(())
}

impl Negotiator {
    /// Starts a negotiation in which no key was sent yet.
    pub const fn new(role: Role, policy: KeyPolicy, setting: LoginContext) -> Self {
        Self {
            role,
            policy,
            setting,
            slots: [KeyState::Untouched; Key::COUNT],
            own_declared: false,
            has_keys: false,
            joint_aead: None,
        }
    }

    /// Permits AEAD digests: the login gave the connection keys.
    pub const fn permit_aead(&mut self) {
        self.has_keys = true;
    }

    /// Offers every key that this side has a policy for and that neither side has sent (used by the
    /// initiator).
    pub fn offer_all(&mut self, out: &mut TextBuilder) {
        for spec in &TABLE {
            if self.is_open(spec.key) {
                self.offer(spec.key, out);
            }
        }
        self.declare(out);
    }

    /// Offers both digests, unless either side has sent them (used by an initiator that relays the other
    /// keys).
    pub fn offer_digests(&mut self, out: &mut TextBuilder) {
        for key in [Key::HeaderDigest, Key::DataDigest] {
            if self.is_open(key) {
                self.offer(key, out);
            }
        }
    }

    /// Offers the keys whose value would otherwise be unacceptable to this side (used by the target).
    pub fn offer_unacceptable(&mut self, out: &mut TextBuilder) {
        for spec in &TABLE {
            if self.is_open(spec.key) && !self.is_acceptable(spec.key) {
                self.offer(spec.key, out);
            }
        }
    }

    /// Handles the peer's pairs, which [`KeyRules`](super::key_rules::KeyRules) permitted, and appends the
    /// answers that are due, in their order.
    ///
    /// # Errors
    /// The rule that the peer broke.
    pub fn receive(
        &mut self,
        pairs: &[(Key, Pair<'_>)],
        out: &mut TextBuilder,
    ) -> Result<(), BadNegotiation> {
        self.joint_aead = self.joint_aead_of(pairs);
        let mut order: Vec<usize> = (0..pairs.len()).collect();
        // The values of these keys depend on keys that may follow them in the text.
        let dependent = |key: &Key| matches!(key, Key::FirstBurstLength | Key::MaxOutstandingR2T);
        order.sort_by_key(|at| pairs.get(*at).is_some_and(|(key, _)| dependent(key)));
        let mut answers: Vec<(usize, Key, String)> = Vec::new();
        for at in order {
            let Some((key, pair)) = pairs.get(at) else { continue };
            if let Some(answer) = self.receive_one(*key, pair.value)? {
                answers.push((at, *key, answer));
            }
        }
        answers.sort_by_key(|(at, ..)| *at);
        for (_, key, answer) in answers {
            //= rfc7143#section-6.2.2
            //# For simple-value negotiations, the accepting party MUST answer with the same key.
            out.put(key.name(), answer);
        }
        Ok(())
    }

    /// Returns the longest data segment that the peer receives, or the default if the peer declared none.
    pub fn peer_max_recv(&self) -> u32 {
        self.number(Key::MaxRecvDataSegmentLength)
    }

    /// Returns whether an offer of this side still waits for its answer.
    pub fn has_unanswered_offer(&self) -> bool {
        TABLE.iter().any(|spec| self.is_unanswered(spec.key))
    }

    /// Ends the negotiation.
    ///
    /// # Errors
    /// An offer was not answered, or the result is not acceptable to this side.
    pub fn finish(&self) -> Result<Negotiated, BadNegotiation> {
        for spec in &TABLE {
            if self.is_unanswered(spec.key) {
                //= rfc7143#section-6.2.2
                //# Responses are REQUIRED in all other cases, and the value chosen and sent by the
                //# acceptor becomes the outcome of the negotiation.
                return Err(BadNegotiation::Unanswered(spec.key));
            }
            if self.concerns(spec.key) && !self.is_acceptable(spec.key) {
                return Err(BadNegotiation::NoAgreement(spec.key));
            }
        }
        let connection = self.connection();
        //= iscsi-aead#section-5
        //# HeaderDigest and DataDigest MUST end as the same AEAD digest, or neither as one.
        if connection.header_digest.aead() != connection.data_digest.aead() {
            return Err(BadNegotiation::AeadDigestsDiffer);
        }
        Ok(Negotiated { session: self.session(), connection })
    }

    /// Chooses the AEAD digest that answers the offers of HeaderDigest and DataDigest in one text.
    fn joint_aead_of(&self, pairs: &[(Key, Pair<'_>)]) -> Option<&'static str> {
        let offer_of = |wanted: Key| {
            let (_, pair) = pairs.iter().find(|(key, _)| *key == wanted)?;
            (self.slot(wanted) == KeyState::Untouched).then_some(pair.value)
        };
        let (header, data) = (offer_of(Key::HeaderDigest)?, offer_of(Key::DataDigest)?);
        let Some(Want::Names(ours)) = self.want(Key::HeaderDigest) else { return None };
        let supported = |name: &[u8]| ours.iter().copied().find(|own| own.as_bytes() == name);
        //= iscsi-aead#section-5
        //# A target takes the first AEAD digest of HeaderDigest that it supports and that
        //# DataDigest offers too, for both keys
        list(header)
            .filter_map(supported)
            .find(|name| is_aead(name) && list(data).any(|other| other == name.as_bytes()))
    }

    /// Appends the answer to an offer of the peer, or handles the answer to an offer of this side.
    fn receive_one(&mut self, key: Key, value: &[u8]) -> Result<Option<String>, BadNegotiation> {
        match key.spec().kind {
            Kind::Obsolete { boolean } => {
                // RFC 7143 §13.25 prefers `Reject`, and permits to agree to `No`, which RFC 3720 peers
                // expect.
                let answer = if boolean && value == b"No" { "No" } else { REJECT };
                return Ok(Some(answer.to_string()));
            }
            Kind::DeclaredNumber { min, max, .. } => {
                let number = number_in(value, min..=max).map_err(|_| BadNegotiation::DeclaredIllegal(key))?;
                self.settle(key, Some(Value::Number(number)));
                return Ok(None);
            }
            Kind::Declared | Kind::Special => return Ok(None),
            Kind::List { .. } | Kind::Number { .. } | Kind::Boolean { .. } => {}
        }
        if self.slot(key) == KeyState::Offered {
            self.take_answer(key, value)?;
            return Ok(None);
        }
        if is_refusal(value) {
            return Err(BadNegotiation::AnswerWithoutOffer);
        }
        if self.is_irrelevant(key) {
            self.settle(key, None);
            return Ok(Some(IRRELEVANT.to_string()));
        }
        let result = self.result_of(key, value);
        //= rfc7143#section-6.2
        //# All negotiations are explicit (i.e., the result MUST only be based on newly exchanged
        //# or declared values).
        self.settle(key, result);
        //= rfc7143#section-6.2.2
        //# Proposing a value not admissible (e.g., not within the specified bounds) MAY be
        //# answered with the constant "Reject"; otherwise, the acceptor MUST select an admissible
        //# value.
        //= rfc7143#section-6.2.2
        //# For Boolean negotiations (i.e., keys taking the values "Yes" or "No"), the accepting
        //# party MUST answer with the same key and the result of the negotiation when the
        //# received value does not determine that result by itself.
        Ok(Some(result.map_or_else(|| REJECT.to_string(), Value::spelled)))
    }

    /// Handles the answer to an offer of this side.
    fn take_answer(&mut self, key: Key, value: &[u8]) -> Result<(), BadNegotiation> {
        if is_refusal(value) {
            //= rfc7143#section-6.2
            //# A proposer of an iSCSI key, negotiated or declarative, in a text key exchange MUST
            //# thus be able to properly handle a NotUnderstood response.
            self.settle(key, None);
            return Ok(());
        }
        // The answer must be the result already: applying the result function to the answer and the offer
        // must not change it.
        let result = self.result_of(key, value).ok_or(BadNegotiation::AnswerNotOffered(key))?;
        let one_of_ours = match result {
            Value::Name(name) => value == name.as_bytes(),
            Value::Number(number) => self.number_from(key, value) == Some(number),
            Value::Flag(flag) => boolean(value) == Ok(flag),
        };
        if !one_of_ours {
            //= rfc7143#section-6.2.1
            //# The selection of a value not proposed MUST be handled by the originator as a protocol
            //# error.
            return Err(BadNegotiation::AnswerNotOffered(key));
        }
        self.settle(key, Some(result));
        Ok(())
    }

    /// Computes the result of this side's policy and the peer's value; `None` when the value is not legal or
    /// no common value exists.
    fn result_of(&self, key: Key, value: &[u8]) -> Option<Value> {
        let is_answer = self.slot(key) == KeyState::Offered;
        match (key.spec().kind, self.want(key)?) {
            (Kind::List { .. }, Want::Names(_))
                if !is_answer && self.joint_aead.is_some() && is_digest(key) =>
            {
                self.joint_aead.map(Value::Name)
            }
            (Kind::List { .. }, Want::Names(ours)) => list(value)
                //= rfc7143#section-6.2.1
                //# The responding party MUST respond with the same key and the first value that it
                //# supports (and is allowed to use for the specific originator) selected from the
                //# originator list.
                //= rfc7143#section-6.2.1
                //# If an acceptor does not understand any particular value in a list, it MUST ignore
                //# it.
                .find_map(|name| {
                    //= iscsi-aead#section-5
                    //# if there is none, it MUST choose for each key as if the AEAD digests were not offered.
                    let may_be = |own: &&str| is_answer || !is_digest(key) || !is_aead(own);
                    ours.iter().copied().find(|own| own.as_bytes() == name && may_be(own))
                })
                .map(Value::Name),
            (Kind::Number { result, .. }, Want::Number(own)) => {
                let theirs = self.number_from(key, value)?;
                Some(Value::Number(match result {
                    NumberResult::Min => theirs.min(own),
                    NumberResult::Max => theirs.max(own),
                }))
            }
            (Kind::Boolean { result, .. }, Want::Flag(own)) => {
                let theirs = boolean(value).ok()?;
                Some(Value::Flag(match result {
                    BooleanResult::And => theirs && own,
                    BooleanResult::Or => theirs || own,
                }))
            }
            _ => None,
        }
    }

    fn number_from(&self, key: Key, value: &[u8]) -> Option<u32> {
        match key.spec().kind {
            Kind::Number { min, max, .. } => number_in(value, min..=max).ok(),
            _ => None,
        }
    }

    /// Returns the policy for `key`, moved into the legal range and adapted to the values that are settled.
    fn want(&self, key: Key) -> Option<Want> {
        let want = self.policy.want(key, self.has_keys)?;
        let (&Want::Number(number), Kind::Number { min, max, .. } | Kind::DeclaredNumber { min, max, .. }) =
            (&want, key.spec().kind)
        else {
            return Some(want);
        };
        Some(Want::Number(match key {
            //= rfc7143#section-7.4.1
            //# When such a negotiation attempt is made by the remote side, a compliant iSCSI implementation
            //# MUST propose a value of 0 (zero) in response.
            //= rfc7143#section-7.4.1
            //# The operational ErrorRecoveryLevel for Discovery sessions thus MUST be 0.
            Key::ErrorRecoveryLevel if self.setting == LoginContext::Discovery => 0,
            Key::MaxConnections if self.setting == LoginContext::Discovery => 1,
            //= rfc7143#section-13.14
            //# FirstBurstLength MUST NOT exceed MaxBurstLength.
            Key::FirstBurstLength => {
                let burst = match self.slot(Key::FirstBurstLength) {
                    // This side states its FirstBurstLength only together with its own MaxBurstLength, and
                    // holds the peer to the stated value.
                    KeyState::Offered | KeyState::Settled(_) => self.policy.max_burst_length,
                    KeyState::Untouched if self.slot(Key::MaxBurstLength) == KeyState::Offered => {
                        self.policy.max_burst_length
                    }
                    KeyState::Untouched => self.number(Key::MaxBurstLength),
                };
                number.min(burst).clamp(min, max)
            }
            //= rfc7143#section-13.19
            //# if ErrorRecoveryLevel is not 0 and DataSequenceInOrder is set to Yes,
            //# then MaxOutstandingR2T MUST be set to 1.
            Key::MaxOutstandingR2T
                if self.role == Role::Target
                    && self.number(Key::ErrorRecoveryLevel) > 0
                    && self.flag(Key::DataSequenceInOrder) =>
            {
                1
            }
            _ => number.clamp(min, max),
        }))
    }

    fn offer(&mut self, key: Key, out: &mut TextBuilder) {
        let value = match self.want(key) {
            Some(Want::Number(number)) => number.to_string(),
            Some(Want::Flag(flag)) => boolean_text(flag).to_string(),
            Some(Want::Names(names)) if !names.is_empty() => names.join(","),
            Some(Want::Names(_)) | None => return,
        };
        out.put(key.name(), value);
        self.set(key, KeyState::Offered);
    }

    /// Declares MaxRecvDataSegmentLength of this side, once.
    pub fn declare(&mut self, out: &mut TextBuilder) {
        if let (false, Some(Want::Number(number))) =
            (self.own_declared, self.want(Key::MaxRecvDataSegmentLength))
        {
            out.put(Key::MaxRecvDataSegmentLength.name(), number.to_string());
            self.own_declared = true;
        }
    }

    /// Returns whether this side could offer `key`: it is negotiated in this setting, and neither side has
    /// sent it.
    fn is_open(&self, key: Key) -> bool {
        self.concerns(key) && self.slot(key) == KeyState::Untouched
    }

    /// Returns whether `key` is negotiated (not declared) in this setting.
    fn concerns(&self, key: Key) -> bool {
        let spec = key.spec();
        let negotiated = matches!(spec.kind, Kind::List { .. } | Kind::Number { .. } | Kind::Boolean { .. });
        let here = match self.setting {
            LoginContext::Leading => true,
            LoginContext::Joining(_) => spec.usage != Usage::LeadingOnly,
            LoginContext::Discovery => !spec.irrelevant_in_discovery,
        };
        negotiated && here
    }

    /// Returns whether an offer of `key` is answered with `Irrelevant`. The RFC also permits that answer for
    /// FirstBurstLength without unsolicited data (§13.14) and for MaxConnections in a discovery session
    /// (§13.2), but some initiators accept only a number.
    fn is_irrelevant(&self, key: Key) -> bool {
        self.setting == LoginContext::Discovery
            && key.spec().irrelevant_in_discovery
            && key != Key::MaxConnections
    }

    /// Returns whether any unsolicited data is permitted by the values that are settled so far.
    fn has_unsolicited_data(&self) -> bool {
        let settled = |key| matches!(self.slot(key), KeyState::Settled(_));
        let none = settled(Key::InitialR2T)
            && settled(Key::ImmediateData)
            && self.flag(Key::InitialR2T)
            && !self.flag(Key::ImmediateData);
        !none
    }

    /// Returns whether this side offered `key`, received no answer, and needs one.
    fn is_unanswered(&self, key: Key) -> bool {
        // A `No` of one side decides an AND and a `Yes` of one side an OR; such an offer needs no answer
        // (§6.2.2).
        let decided = match (key.spec().kind, self.want(key)) {
            (Kind::Boolean { result: BooleanResult::And, .. }, Some(Want::Flag(own))) => !own,
            (Kind::Boolean { result: BooleanResult::Or, .. }, Some(Want::Flag(own))) => own,
            _ => false,
        };
        self.slot(key) == KeyState::Offered && !decided
    }

    /// Returns whether the present value of `key` is acceptable to this side.
    fn is_acceptable(&self, key: Key) -> bool {
        match (key.spec().kind, self.want(key)) {
            (Kind::List { .. }, Some(Want::Names(ours))) => ours.contains(&self.named(key)),
            (Kind::Number { result: NumberResult::Min, .. }, Some(Want::Number(own))) => {
                let moot = key == Key::FirstBurstLength && !self.has_unsolicited_data();
                moot || self.number(key) <= own
            }
            (Kind::Number { result: NumberResult::Max, .. }, Some(Want::Number(own))) => {
                self.number(key) >= own
            }
            (Kind::Boolean { result: BooleanResult::And, .. }, Some(Want::Flag(own))) => {
                own || !self.flag(key)
            }
            (Kind::Boolean { result: BooleanResult::Or, .. }, Some(Want::Flag(own))) => {
                !own || self.flag(key)
            }
            _ => true,
        }
    }

    fn session(&self) -> SessionParameters {
        if let LoginContext::Joining(parameters) = self.setting {
            return parameters;
        }
        let short = |key| u16::try_from(self.number(key)).unwrap_or(u16::MAX);
        let tiny = |key| u8::try_from(self.number(key)).unwrap_or(u8::MAX);
        let max_burst_length = self.number(Key::MaxBurstLength);
        SessionParameters {
            max_connections: short(Key::MaxConnections),
            initial_r2t: self.flag(Key::InitialR2T),
            immediate_data: self.flag(Key::ImmediateData),
            max_burst_length,
            first_burst_length: self.number(Key::FirstBurstLength).min(max_burst_length),
            default_time2wait: short(Key::DefaultTime2Wait),
            default_time2retain: short(Key::DefaultTime2Retain),
            max_outstanding_r2t: short(Key::MaxOutstandingR2T),
            data_pdu_in_order: self.flag(Key::DataPduInOrder),
            data_sequence_in_order: self.flag(Key::DataSequenceInOrder),
            error_recovery_level: RecoveryLevel::new(self.number(Key::ErrorRecoveryLevel)),
            task_reporting: TaskReporting::by_name(self.named(Key::TaskReporting)),
            protocol_level: tiny(Key::ProtocolLevel),
        }
    }

    fn connection(&self) -> ConnectionParameters {
        let theirs = self.number(Key::MaxRecvDataSegmentLength);
        let ours = match self.want(Key::MaxRecvDataSegmentLength) {
            Some(Want::Number(number)) if self.own_declared => number,
            _ => crate::keys::DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH,
        };
        let (initiator_max_recv, target_max_recv) = match self.role {
            Role::Initiator => (ours, theirs),
            Role::Target => (theirs, ours),
        };
        ConnectionParameters {
            header_digest: Digest::by_name(self.named(Key::HeaderDigest)),
            data_digest: Digest::by_name(self.named(Key::DataDigest)),
            initiator_max_recv,
            target_max_recv,
        }
    }

    fn number(&self, key: Key) -> u32 {
        match (self.slot(key), key.spec().kind) {
            (KeyState::Settled(Some(Value::Number(number))), _) => number,
            (_, Kind::Number { default, .. }) => default,
            (_, Kind::DeclaredNumber { default, .. }) => default.unwrap_or(0),
            _ => 0,
        }
    }

    fn flag(&self, key: Key) -> bool {
        match (self.slot(key), key.spec().kind) {
            (KeyState::Settled(Some(Value::Flag(flag))), _) => flag,
            // An offer that decides the result alone needs no answer.
            (KeyState::Offered, Kind::Boolean { default, .. }) => match self.want(key) {
                Some(Want::Flag(own)) => own,
                _ => default,
            },
            (_, Kind::Boolean { default, .. }) => default,
            _ => false,
        }
    }

    fn named(&self, key: Key) -> &'static str {
        match (self.slot(key), key.spec().kind) {
            (KeyState::Settled(Some(Value::Name(name))), _) => name,
            (_, Kind::List { default, .. }) => default,
            _ => "",
        }
    }

    fn slot(&self, key: Key) -> KeyState {
        self.slots.get(key.index()).copied().unwrap_or(KeyState::Untouched)
    }

    fn settle(&mut self, key: Key, value: Option<Value>) {
        self.set(key, KeyState::Settled(value));
    }

    fn set(&mut self, key: Key, to: KeyState) {
        if let Some(slot) = self.slots.get_mut(key.index()) {
            *slot = to;
        }
    }
}

const fn is_digest(key: Key) -> bool {
    matches!(key, Key::HeaderDigest | Key::DataDigest)
}

fn is_aead(name: &str) -> bool {
    AeadDigest::by_name(name).is_some()
}

impl Value {
    fn spelled(self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Flag(flag) => boolean_text(flag).to_string(),
            Self::Name(name) => name.to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
