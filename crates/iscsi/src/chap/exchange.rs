//! Both sides of a CHAP exchange inside the SecurityNegotiation stage (RFC 7143 §12.1.3, §9.2.1).
//!
//! ```text
//! initiator                        target
//! CHAP_A=8,7,5                →
//!                             ←    CHAP_A=7 CHAP_I=… CHAP_C=…
//! CHAP_N=… CHAP_R=…           →
//!   [CHAP_I=… CHAP_C=…]
//!                             ←    [CHAP_N=… CHAP_R=…]
//! ```
//!
//! The length of a value is checked before the value is decoded. Names are taken literally. A failure does
//! not reveal whether the name or the secret was wrong.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::{Algorithm, Algorithms, Challenge, Credentials, MAX_CHALLENGE, Response, Secret};
use crate::keys::Key;
use crate::text::value::{binary, list, number, to_hex};
use crate::text::{Pair, TextBuilder};

/// The longest user name, in bytes: the limit of any text value (RFC 7143 §6.1).
pub const MAX_USER: usize = 255;

/// The reason for which a CHAP exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChap {
    /// A key was received that is not legal in this step.
    #[error("a CHAP key came out of turn")]
    KeyOutOfTurn,
    /// A key that this step needs is missing.
    #[error("a CHAP key is missing")]
    KeyMissing,
    /// The two sides have no common algorithm, or the chosen algorithm was not offered.
    #[error("no common CHAP algorithm")]
    NoCommonAlgorithm,
    /// CHAP_I is not a number of one byte.
    #[error("CHAP_I is not a number of one byte")]
    Identifier,
    /// CHAP_C is not a binary value of 1 to [`MAX_CHALLENGE`] bytes.
    #[error("CHAP_C is not a binary value of 1 to 1024 bytes")]
    Challenge,
    /// CHAP_R is not a binary value of the algorithm's response length.
    #[error("CHAP_R is not a binary value of the algorithm's length")]
    ResponseForm,
    /// CHAP_N is not a name of 1 to [`MAX_USER`] bytes.
    #[error("CHAP_N is not a name")]
    Name,
    /// The name is unknown, or the response was computed from another secret.
    #[error("unknown name or wrong secret")]
    WrongResponse,
    /// The peer sent this side's challenge back, to get the response from this side (reflection attack).
    #[error("our own challenge was sent back to us")]
    ReflectedChallenge,
    /// The peer's response equals the one that this side would compute: one secret serves both directions.
    #[error("one secret serves both directions")]
    SecretOfBothDirections,
    /// The peer requests authentication of this side, which has no credentials.
    #[error("the peer wants to authenticate us, and we have no credentials")]
    NoOwnCredentials,
    /// The peer did not authenticate itself, although this side requested it.
    #[error("the peer did not authenticate itself")]
    PeerNotAuthenticated,
}

/// The CHAP keys of one text.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChapKeys<'a> {
    algorithms: Option<&'a [u8]>,
    id: Option<&'a [u8]>,
    challenge: Option<&'a [u8]>,
    name: Option<&'a [u8]>,
    response: Option<&'a [u8]>,
}

impl<'a> ChapKeys<'a> {
    /// Stores the pair if its key is a CHAP key, and returns whether it is.
    pub fn take(&mut self, key: Key, pair: &Pair<'a>) -> bool {
        let slot = match key {
            Key::ChapA => &mut self.algorithms,
            Key::ChapI => &mut self.id,
            Key::ChapC => &mut self.challenge,
            Key::ChapN => &mut self.name,
            Key::ChapR => &mut self.response,
            _ => return false,
        };
        *slot = Some(pair.value);
        true
    }

    /// Returns the name of the peer's response, in the peer's spelling.
    pub const fn name(&self) -> Option<&'a [u8]> {
        self.name
    }

    /// Returns whether the text has no CHAP keys.
    pub const fn is_empty(&self) -> bool {
        matches!(self, Self { algorithms: None, id: None, challenge: None, name: None, response: None })
    }

    /// Parses the identifier and the challenge. Both must be present, or neither.
    fn challenge(&self) -> Result<Option<(u8, Vec<u8>)>, BadChap> {
        match (self.id, self.challenge) {
            (None, None) => Ok(None),
            (Some(id), Some(challenge)) => {
                let id = number(id).ok().and_then(|id| u8::try_from(id).ok()).ok_or(BadChap::Identifier)?;
                let bytes = binary(challenge, 1..=MAX_CHALLENGE).map_err(|_| BadChap::Challenge)?;
                Ok(Some((id, bytes)))
            }
            _ => Err(BadChap::KeyMissing),
        }
    }

    /// Parses the name and the response. Both must be present, or neither.
    fn proof(&self, algorithm: Algorithm) -> Result<Option<Proof>, BadChap> {
        match (self.name, self.response) {
            (None, None) => Ok(None),
            (Some(name), Some(response)) => {
                let len = algorithm.response_len();
                let response = binary(response, len..=len).map_err(|_| BadChap::ResponseForm)?;
                Ok(Some(Proof { name: user_name(name)?, response }))
            }
            _ => Err(BadChap::KeyMissing),
        }
    }
}

struct Proof {
    name: String,
    response: Vec<u8>,
}

/// Parses a user name. The name is taken literally, also when it looks like a number: `0xuser`, `0buser`.
fn user_name(name: &[u8]) -> Result<String, BadChap> {
    let text = core::str::from_utf8(name).map_err(|_| BadChap::Name)?;
    if text.is_empty() || text.len() > MAX_USER || text.chars().any(char::is_control) {
        return Err(BadChap::Name);
    }
    Ok(text.to_string())
}

/// The challenge that this side sent, and the algorithm of the exchange.
#[derive(Clone, Debug)]
struct IssuedChallenge {
    algorithm: Algorithm,
    challenge: Challenge,
}

impl IssuedChallenge {
    fn put(&self, out: &mut TextBuilder) {
        out.put(Key::ChapI.name(), self.challenge.id.to_string());
        out.put(Key::ChapC.name(), to_hex(&self.challenge.bytes));
    }

    /// Checks a response to this side's challenge against the secret of the user.
    fn check(
        &self,
        proof: &Proof,
        secret: Option<&Secret>,
        own: Option<&Credentials>,
    ) -> Result<(), BadChap> {
        let compute = |secret: &Secret| {
            Response::compute(self.algorithm, self.challenge.id, secret, &self.challenge.bytes)
        };
        //= rfc7143#section-9.2.1
        //# If the CHAP response received by one end of an iSCSI connection is the same as the CHAP response that
        //# the receiving endpoint would have generated for the same CHAP challenge, the response MUST be treated
        //# as an authentication failure
        if own.is_some_and(|own| compute(&own.secret).matches(&proof.response)) {
            return Err(BadChap::SecretOfBothDirections);
        }
        // The check of an unknown name takes the same time as that of a wrong secret.
        let known = compute(secret.unwrap_or(&Secret(Zeroizing::new(Vec::new())))).matches(&proof.response);
        if known && secret.is_some() { Ok(()) } else { Err(BadChap::WrongResponse) }
    }

    /// Answers the peer's challenge with this side's name and secret.
    fn prove(
        &self,
        (id, challenge): (u8, &[u8]),
        own: &Credentials,
        out: &mut TextBuilder,
    ) -> Result<(), BadChap> {
        //= rfc7143#section-9.2.1
        //# Originators MUST NOT reuse the CHAP challenge sent by the responder for the other direction of a
        //# bidirectional authentication.
        if bool::from(challenge.ct_eq(&self.challenge.bytes)) {
            return Err(BadChap::ReflectedChallenge);
        }
        put_proof(self.algorithm, id, challenge, own, out);
        Ok(())
    }
}

fn put_proof(algorithm: Algorithm, id: u8, challenge: &[u8], own: &Credentials, out: &mut TextBuilder) {
    let response = Response::compute(algorithm, id, &own.secret, challenge);
    out.put(Key::ChapN.name(), &own.name);
    out.put(Key::ChapR.name(), to_hex(response.as_bytes()));
}

/// The target's side of a CHAP exchange.
#[derive(Clone, Debug)]
pub struct TargetChap {
    accepted: Algorithms,
    entropy: Zeroizing<[u8; 32]>,
    expect: TargetExpects,
}

#[derive(Clone, Debug)]
enum TargetExpects {
    Algorithms,
    Proof(IssuedChallenge),
    Nothing,
}

impl TargetChap {
    /// Starts an exchange; `entropy` is used for its challenge and nothing else.
    pub fn new(accepted: Algorithms, entropy: [u8; 32]) -> Self {
        Self { accepted, entropy: Zeroizing::new(entropy), expect: TargetExpects::Algorithms }
    }

    /// Handles the initiator's step and appends the answer. Returns the name of the initiator once it is
    /// authenticated.
    ///
    /// # Errors
    /// The login must fail. An exchange that failed or ended accepts no further step.
    pub fn handle(
        &mut self,
        keys: &ChapKeys<'_>,
        secret_of: &dyn Fn(&str) -> Option<Secret>,
        own: Option<&Credentials>,
        out: &mut TextBuilder,
    ) -> Result<Option<String>, BadChap> {
        match core::mem::replace(&mut self.expect, TargetExpects::Nothing) {
            TargetExpects::Algorithms => {
                self.expect = TargetExpects::Proof(self.issue_challenge(keys, out)?);
                Ok(None)
            }
            TargetExpects::Proof(posed) => accept(&posed, keys, secret_of, own, out).map(Some),
            TargetExpects::Nothing => Err(BadChap::KeyOutOfTurn),
        }
    }

    fn issue_challenge(
        &self,
        keys: &ChapKeys<'_>,
        out: &mut TextBuilder,
    ) -> Result<IssuedChallenge, BadChap> {
        let ChapKeys { algorithms: Some(offer), id: None, challenge: None, name: None, response: None } =
            keys
        else {
            return Err(if keys.algorithms.is_none() { BadChap::KeyMissing } else { BadChap::KeyOutOfTurn });
        };
        let algorithm = list(offer)
            .filter_map(|item| Algorithm::by_number(number(item).ok()?))
            .find(|algorithm| self.accepted.contains(*algorithm))
            .ok_or(BadChap::NoCommonAlgorithm)?;
        let posed =
            IssuedChallenge { algorithm, challenge: Challenge::from_entropy(&self.entropy, algorithm) };
        out.put(Key::ChapA.name(), algorithm.number().to_string());
        posed.put(out);
        Ok(posed)
    }
}

fn accept(
    posed: &IssuedChallenge,
    keys: &ChapKeys<'_>,
    secret_of: &dyn Fn(&str) -> Option<Secret>,
    own: Option<&Credentials>,
    out: &mut TextBuilder,
) -> Result<String, BadChap> {
    if keys.algorithms.is_some() {
        return Err(BadChap::KeyOutOfTurn);
    }
    let proof = keys.proof(posed.algorithm)?.ok_or(BadChap::KeyMissing)?;
    let counter = keys.challenge()?;
    posed.check(&proof, secret_of(&proof.name).as_ref(), own)?;
    // The target proves its identity only after the initiator: otherwise it would answer the challenges of
    // unauthenticated initiators (RFC 7143 §9.2.1).
    if let Some((id, challenge)) = counter {
        posed.prove((id, &challenge), own.ok_or(BadChap::NoOwnCredentials)?, out)?;
    }
    Ok(proof.name)
}

/// The initiator's side of a CHAP exchange.
#[derive(Clone, Debug)]
pub struct InitiatorChap {
    offered: Algorithms,
    own: Credentials,
    peer: Option<Credentials>,
    entropy: Zeroizing<[u8; 32]>,
    expect: InitiatorExpects,
}

#[derive(Clone, Debug)]
enum InitiatorExpects {
    Challenge,
    Proof(IssuedChallenge),
    Nothing,
}

impl InitiatorChap {
    /// Prepares an exchange as `own`. With `peer` the initiator requests that the target authenticates itself
    /// as `peer`. `entropy` is used for its challenge and nothing else.
    pub fn new(offered: Algorithms, own: Credentials, peer: Option<Credentials>, entropy: [u8; 32]) -> Self {
        let expect = InitiatorExpects::Challenge;
        Self { offered, own, peer, entropy: Zeroizing::new(entropy), expect }
    }

    /// Appends the first step: the algorithms, strongest first.
    pub fn start(&self, out: &mut TextBuilder) {
        let numbers: Vec<String> =
            self.offered.iter().map(|algorithm| algorithm.number().to_string()).collect();
        out.put(Key::ChapA.name(), numbers.join(","));
    }

    /// Handles the target's step and appends the answer. Returns whether the exchange is complete on the
    /// initiator's side; the target then decides on the initiator's response.
    ///
    /// # Errors
    /// The connection must be dropped.
    pub fn handle(&mut self, keys: &ChapKeys<'_>, out: &mut TextBuilder) -> Result<bool, BadChap> {
        match core::mem::replace(&mut self.expect, InitiatorExpects::Nothing) {
            InitiatorExpects::Challenge => {
                let posed = self.answer(keys, out)?;
                let complete = posed.is_none();
                self.expect = posed.map_or(InitiatorExpects::Nothing, InitiatorExpects::Proof);
                Ok(complete)
            }
            InitiatorExpects::Proof(posed) => {
                if keys.algorithms.is_some() || keys.id.is_some() || keys.challenge.is_some() {
                    return Err(BadChap::KeyOutOfTurn);
                }
                let proof = keys.proof(posed.algorithm)?.ok_or(BadChap::PeerNotAuthenticated)?;
                let secret = self.peer.as_ref().filter(|peer| peer.name == proof.name);
                posed.check(&proof, secret.map(|peer| &peer.secret), Some(&self.own))?;
                Ok(true)
            }
            InitiatorExpects::Nothing => Err(BadChap::KeyOutOfTurn),
        }
    }

    /// Returns whether the target must still send a challenge or a response.
    pub const fn is_waiting(&self) -> bool {
        !matches!(self.expect, InitiatorExpects::Nothing)
    }

    /// Returns whether the initiator has sent its response.
    pub const fn has_proved(&self) -> bool {
        !matches!(self.expect, InitiatorExpects::Challenge)
    }

    /// Returns whether the target must authenticate itself (mutual CHAP).
    pub const fn authenticates_peer(&self) -> bool {
        self.peer.is_some()
    }

    fn answer(&self, keys: &ChapKeys<'_>, out: &mut TextBuilder) -> Result<Option<IssuedChallenge>, BadChap> {
        if keys.name.is_some() || keys.response.is_some() {
            return Err(BadChap::KeyOutOfTurn);
        }
        let chosen = keys.algorithms.ok_or(BadChap::KeyMissing)?;
        let algorithm = number(chosen)
            .ok()
            .and_then(Algorithm::by_number)
            .filter(|algorithm| self.offered.contains(*algorithm))
            .ok_or(BadChap::NoCommonAlgorithm)?;
        let (id, challenge) = keys.challenge()?.ok_or(BadChap::KeyMissing)?;
        put_proof(algorithm, id, &challenge, &self.own, out);
        if self.peer.is_none() {
            return Ok(None);
        }
        let posed =
            IssuedChallenge { algorithm, challenge: Challenge::from_entropy(&self.entropy, algorithm) };
        posed.put(out);
        Ok(Some(posed))
    }
}

#[cfg(test)]
mod tests;
