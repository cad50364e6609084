//! Both sides of a CHAP conversation inside the SecurityNegotiation stage (RFC 7143 §12.1.3, §9.2.1).
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
//! Nothing is decoded before its length is known to be right, names are taken literally, and a failure says nothing
//! about which part of name and secret was wrong.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::{Algorithm, Algorithms, Challenge, Credentials, MAX_CHALLENGE, Response, Secret};
use crate::keys::Key;
use crate::text::value::{binary, list, number, to_hex};
use crate::text::{Pair, TextBuilder};

/// The longest name, in bytes: that of any text value (RFC 7143 §6.1).
pub const MAX_USER: usize = 255;

/// Why a conversation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChap {
    /// A key came that has no place in this step.
    #[error("a CHAP key came out of turn")]
    KeyOutOfTurn,
    /// A key that this step needs did not come.
    #[error("a CHAP key is missing")]
    KeyMissing,
    /// Both sides know no common algorithm, or the answer is one that was not offered.
    #[error("no common CHAP algorithm")]
    NoCommonAlgorithm,
    /// CHAP_I is no number of one byte.
    #[error("CHAP_I is not a number of one byte")]
    Identifier,
    /// CHAP_C is not a binary value of 1 to [`MAX_CHALLENGE`] bytes.
    #[error("CHAP_C is not a binary value of 1 to 1024 bytes")]
    Challenge,
    /// CHAP_R is not a binary value of the length that the algorithm gives.
    #[error("CHAP_R is not a binary value of the algorithm's length")]
    ResponseForm,
    /// CHAP_N is no name of 1 to [`MAX_USER`] bytes.
    #[error("CHAP_N is not a name")]
    Name,
    /// The name is not known, or the secret behind the response is another.
    #[error("unknown name or wrong secret")]
    WrongResponse,
    /// The peer sent our challenge back to have it answered for it.
    #[error("our own challenge was sent back to us")]
    ReflectedChallenge,
    /// The peer's response is the one that we would have given: one secret serves both directions.
    #[error("one secret serves both directions")]
    SecretOfBothDirections,
    /// The peer wants a proof of who we are, and we have none.
    #[error("the peer wants to authenticate us, and we have no credentials")]
    NoOwnCredentials,
    /// The peer did not prove who it is, though we asked.
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
    /// Takes the pair if it is one of CHAP's, and says whether it was.
    pub fn take(&mut self, key: Key, pair: &Pair<'a>) -> bool {
        let place = match key {
            Key::ChapA => &mut self.algorithms,
            Key::ChapI => &mut self.id,
            Key::ChapC => &mut self.challenge,
            Key::ChapN => &mut self.name,
            Key::ChapR => &mut self.response,
            _ => return false,
        };
        *place = Some(pair.value);
        true
    }

    /// Returns the name under which the peer wants to prove itself, as it wrote it.
    pub const fn name(&self) -> Option<&'a [u8]> {
        self.name
    }

    /// Returns whether there are none.
    pub const fn is_empty(&self) -> bool {
        matches!(self, Self { algorithms: None, id: None, challenge: None, name: None, response: None })
    }

    /// Reads the identifier and the challenge, which come together or not at all.
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

    /// Reads the name and the response, which come together or not at all.
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

/// A name is text as it stands, also when it looks like a number: `0xuser`, `0buser`.
fn user_name(name: &[u8]) -> Result<String, BadChap> {
    let text = core::str::from_utf8(name).map_err(|_| BadChap::Name)?;
    if text.is_empty() || text.len() > MAX_USER || text.chars().any(char::is_control) {
        return Err(BadChap::Name);
    }
    Ok(text.to_string())
}

/// The challenges and algorithm of a conversation whose challenger is us.
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

    /// Checks a response to our challenge against the secret that it should come from.
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
        // A name that nobody has costs the same time as a wrong secret.
        let known = compute(secret.unwrap_or(&Secret(Zeroizing::new(Vec::new())))).matches(&proof.response);
        if known && secret.is_some() { Ok(()) } else { Err(BadChap::WrongResponse) }
    }

    /// Answers the peer's challenge with our own name and secret.
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

/// The target's side.
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
    /// Starts a conversation; `entropy` is used for its challenge and nothing else.
    pub fn new(accepted: Algorithms, entropy: [u8; 32]) -> Self {
        Self { accepted, entropy: Zeroizing::new(entropy), expect: TargetExpects::Algorithms }
    }

    /// Takes the initiator's step and appends ours. Returns the name that the initiator proved to own, once it has.
    ///
    /// # Errors
    /// The login must fail. A conversation that failed or ended takes no further step.
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
    // Only now: a target that proved itself first would answer challenges for anybody (RFC 7143 §9.2.1).
    if let Some((id, challenge)) = counter {
        posed.prove((id, &challenge), own.ok_or(BadChap::NoOwnCredentials)?, out)?;
    }
    Ok(proof.name)
}

/// The initiator's side.
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
    /// Prepares a conversation as `own`; with `peer` it asks the target to prove that it is that one. `entropy` is
    /// used for its challenge and nothing else.
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

    /// Takes the target's step and appends ours. Returns whether the conversation is complete on our side, which
    /// then leaves the verdict on us to the target.
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

    /// Returns whether the target still owes us a challenge or a proof.
    pub const fn is_waiting(&self) -> bool {
        !matches!(self.expect, InitiatorExpects::Nothing)
    }

    /// Returns whether our proof is out.
    pub const fn has_proved(&self) -> bool {
        !matches!(self.expect, InitiatorExpects::Challenge)
    }

    /// Returns whether the target must prove who it is.
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
