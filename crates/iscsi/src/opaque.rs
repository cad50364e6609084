//! Both sides of the login method `Z-org.targe.opaque` inside the SecurityNegotiation stage, as
//! `docs/iscsi-aead.md` §3 specifies it.
//!
//! ```text
//! initiator                              target
//! user, ke1                           →
//!                                     ←  stretch, ke2
//! ke3                                 →
//! ```
//!
//! The texts are the caller's, and so is the transcript of the login, from which the context of the exchange
//! comes. The length of a value is checked before the value is decoded. A failure does not reveal whether the
//! user or the password was wrong.

use alloc::borrow::ToOwned as _;
use alloc::boxed::Box;
use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use security::opaque::{
    KE1_LEN, KE2_LEN, KE3_LEN, KeyExchangeError, Password, PasswordRecord, PendingClientLogin,
    PendingServerLogin, StretchCost, StretchJob, StretchResult, is_bearable,
};
use security::random::HmacDrbg;
use zeroize::Zeroizing;

use crate::aead::login_keys::LoginKeys;
use crate::text::value::{binary, list, number_in, to_hex};
use crate::text::{Pair, TextBuilder};

/// The name of the method in the lists of `AuthMethod`.
pub const METHOD: &str = "Z-org.targe.opaque";

/// The longest user name, in bytes: the limit of any text value (RFC 7143 §6.1).
pub const USER_LEN_MAX: usize = 255;

const USER: &str = "X-org.targe.user";
const KE1: &str = "X-org.targe.ke1";
const STRETCH: &str = "X-org.targe.stretch";
const KE2: &str = "X-org.targe.ke2";
const KE3: &str = "X-org.targe.ke3";

/// The reason for which an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpaqueError {
    /// A key of the method was received that is not legal in this step.
    #[error("a key of the password login came out of turn")]
    KeyOutOfTurn,
    /// A text of the method has a key that is not one of the method.
    #[error("a text of the password login has a key of something else")]
    OtherKey,
    /// A key that this step needs is missing.
    #[error("a key of the password login is missing")]
    KeyMissing,
    /// A key of the method was received twice in one text.
    #[error("a key of the password login came twice")]
    KeyRepeated,
    /// The initiator's last step does not request the stage LoginOperationalNegotiation.
    #[error("the last step of the password login does not request the operational stage")]
    Stage,
    /// The user's name is not 1 to [`USER_LEN_MAX`] bytes of UTF-8 without control characters.
    #[error("the user's name is not a name")]
    User,
    /// A message is not a binary value of its length, or no message of OPAQUE.
    #[error("a message of the password login is malformed")]
    Message,
    /// The cost of the password's record is malformed, or more than an initiator accepts.
    #[error("the cost of the password's record is malformed or too high")]
    Cost,
    /// The other side does not know the password, or an attacker changed the login.
    #[error("unknown user or wrong password")]
    WrongPassword,
}

/// The keys of the method in one text.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpaqueKeys<'a> {
    user: Option<&'a [u8]>,
    ke1: Option<&'a [u8]>,
    stretch: Option<&'a [u8]>,
    ke2: Option<&'a [u8]>,
    ke3: Option<&'a [u8]>,
}

impl<'a> OpaqueKeys<'a> {
    /// Stores the pair if its key is one of the method, and returns whether it is.
    ///
    /// # Errors
    /// `KeyRepeated`
    pub fn take(&mut self, pair: &Pair<'a>) -> Result<bool, OpaqueError> {
        let slot = match pair.name {
            USER => &mut self.user,
            KE1 => &mut self.ke1,
            STRETCH => &mut self.stretch,
            KE2 => &mut self.ke2,
            KE3 => &mut self.ke3,
            _ => return Ok(false),
        };
        match slot.replace(pair.value) {
            Some(_) => Err(OpaqueError::KeyRepeated),
            None => Ok(true),
        }
    }

    /// Returns whether `name` is a key of the method.
    pub fn is_key(name: &str) -> bool {
        [USER, KE1, STRETCH, KE2, KE3].contains(&name)
    }

    /// Returns the value of the key with the user's name.
    pub const fn user(&self) -> Option<&'a [u8]> {
        self.user
    }

    /// Returns whether the text has no keys of the method.
    pub const fn is_empty(&self) -> bool {
        matches!(self, Self { user: None, ke1: None, stretch: None, ke2: None, ke3: None })
    }

    /// Returns the error of a text that does not have exactly the keys of its step.
    const fn wrong_set(&self, expected: usize) -> OpaqueError {
        let count = self.user.is_some() as usize
            + self.ke1.is_some() as usize
            + self.stretch.is_some() as usize
            + self.ke2.is_some() as usize
            + self.ke3.is_some() as usize;
        if count < expected { OpaqueError::KeyMissing } else { OpaqueError::KeyOutOfTurn }
    }
}

/// The target's side of an exchange.
#[derive(Debug, Default)]
pub struct TargetOpaque(TargetState);

#[derive(Debug, Default)]
enum TargetState {
    #[default]
    Start,
    Finish {
        user: String,
        pending: Box<PendingServerLogin>,
        context: [u8; 64],
    },
    Over,
}

impl TargetOpaque {
    /// Returns whether the initiator's first step was handled.
    pub const fn has_begun(&self) -> bool {
        !matches!(self.0, TargetState::Start)
    }

    /// Handles the initiator's first step and appends the answer. `context` is the transcript of the login up
    /// to the request that completed this text. `entropy` must be fresh random bytes.
    ///
    /// `record_of` returns the record of a user's password. For an unknown user it should return the record
    /// of a random password, so that the answer does not show which users exist. Returns the user's name.
    ///
    /// # Errors
    /// The login must fail. An exchange that failed accepts no further step.
    pub fn handle_start(
        &mut self,
        keys: &OpaqueKeys<'_>,
        context: [u8; 64],
        entropy: [u8; 32],
        record_of: &dyn Fn(&str) -> Option<Arc<PasswordRecord>>,
        out: &mut TextBuilder,
    ) -> Result<String, OpaqueError> {
        let TargetState::Start = mem::replace(&mut self.0, TargetState::Over) else {
            return Err(OpaqueError::KeyOutOfTurn);
        };
        let OpaqueKeys { user: Some(user), ke1: Some(ke1), stretch: None, ke2: None, ke3: None } = *keys
        else {
            return Err(keys.wrong_set(2));
        };
        let (user, ke1) = (user_name(user)?, message::<KE1_LEN>(ke1)?);
        let record = record_of(&user).ok_or(OpaqueError::WrongPassword)?;
        let (pending, ke2) = record
            .answer(&user, &ke1, &context, &mut HmacDrbg::new(entropy))
            .map_err(|KeyExchangeError| OpaqueError::Message)?;
        let StretchCost { memory_kib, passes, lanes } = record.cost();
        out.put(STRETCH, [memory_kib, passes, lanes.into()].map(|part| part.to_string()).join(","));
        out.put(KE2, to_hex(&ke2));
        self.0 = TargetState::Finish { user: user.clone(), pending: Box::new(pending), context };
        Ok(user)
    }

    /// Handles the initiator's last step. Returns the name of the user, who has proven the password, and the
    /// keys of the login.
    ///
    /// # Errors
    /// The login must fail. An exchange that failed accepts no further step.
    pub fn handle_finish(&mut self, keys: &OpaqueKeys<'_>) -> Result<(String, LoginKeys), OpaqueError> {
        let TargetState::Finish { user, pending, context } = mem::replace(&mut self.0, TargetState::Over)
        else {
            return Err(OpaqueError::KeyOutOfTurn);
        };
        let OpaqueKeys { user: None, ke1: None, stretch: None, ke2: None, ke3: Some(ke3) } = *keys else {
            return Err(keys.wrong_set(1));
        };
        let ke3 = message::<KE3_LEN>(ke3)?;
        let secret = pending.finish(&ke3).map_err(|KeyExchangeError| OpaqueError::WrongPassword)?;
        Ok((user, LoginKeys::new(&secret, &context)))
    }
}

/// The initiator's side of an exchange.
#[derive(Debug)]
pub struct InitiatorOpaque {
    user: String,
    password: Password,
    random: HmacDrbg,
    state: InitiatorState,
}

#[derive(Debug)]
enum InitiatorState {
    Start,
    Answer(PendingClientLogin),
    Stretching { context: [u8; 64], digest: [u8; 64] },
    Over,
}

impl InitiatorOpaque {
    /// Prepares an exchange. `entropy` must be fresh random bytes.
    ///
    /// # Errors
    /// `User`
    pub fn new(user: &str, password: Password, entropy: [u8; 32]) -> Result<Self, OpaqueError> {
        let (user, random) = (user_name(user.as_bytes())?, HmacDrbg::new(entropy));
        Ok(Self { user, password, random, state: InitiatorState::Start })
    }

    /// Appends the first step.
    ///
    /// # Errors
    /// `KeyOutOfTurn` if the exchange has begun.
    pub fn start(&mut self, out: &mut TextBuilder) -> Result<(), OpaqueError> {
        let InitiatorState::Start = mem::replace(&mut self.state, InitiatorState::Over) else {
            return Err(OpaqueError::KeyOutOfTurn);
        };
        let (attempt, ke1) = PendingClientLogin::start(&self.password, &mut self.random)
            .map_err(|KeyExchangeError| OpaqueError::Message)?;
        out.put(USER, &self.user);
        out.put(KE1, to_hex(&ke1));
        self.state = InitiatorState::Answer(attempt);
        Ok(())
    }

    /// Handles the target's step. Returns the slow step, which the owner runs where no I/O waits for it and
    /// whose result it passes to [`Self::job_done`]. `context` is the transcript of the login up to the
    /// request that completed the text of [`Self::start`].
    ///
    /// # Errors
    /// The connection must be dropped.
    pub fn handle_answer(
        &mut self,
        keys: &OpaqueKeys<'_>,
        context: [u8; 64],
    ) -> Result<StretchJob, OpaqueError> {
        let InitiatorState::Answer(attempt) = mem::replace(&mut self.state, InitiatorState::Over) else {
            return Err(OpaqueError::KeyOutOfTurn);
        };
        let OpaqueKeys { user: None, ke1: None, stretch: Some(stretch), ke2: Some(ke2), ke3: None } = *keys
        else {
            return Err(keys.wrong_set(2));
        };
        let (cost, ke2) = (stretch_cost(stretch)?, message::<KE2_LEN>(ke2)?);
        let (entropy, digest) = (Zeroizing::new(self.random.bytes()), self.random.bytes());
        self.state = InitiatorState::Stretching { context, digest };
        let (password, user) = (self.password.clone(), self.user.as_bytes().to_vec());
        Ok(StretchJob { attempt, password, user, cost, ke2, context, entropy, digest })
    }

    /// Returns whether the exchange waits for the result of a slow step.
    pub const fn is_stretching(&self) -> bool {
        matches!(self.state, InitiatorState::Stretching { .. })
    }

    /// Returns whether the result is that of the exchange's own slow step.
    pub fn awaits(&self, result: &StretchResult) -> bool {
        matches!(self.state, InitiatorState::Stretching { digest, .. } if digest == result.digest)
    }

    /// Handles the result of the slow step and appends the last step. Returns the keys of the login: the
    /// target has proven that it knows the password's record.
    ///
    /// # Errors
    /// The connection must be dropped.
    pub fn job_done(
        &mut self,
        result: StretchResult,
        out: &mut TextBuilder,
    ) -> Result<LoginKeys, OpaqueError> {
        match mem::replace(&mut self.state, InitiatorState::Over) {
            InitiatorState::Stretching { context, digest } if digest == result.digest => {
                let proof = result.result.map_err(|KeyExchangeError| OpaqueError::WrongPassword)?;
                out.put(KE3, to_hex(&proof.ke3));
                Ok(LoginKeys::new(&proof.secret, &context))
            }
            _ => Err(OpaqueError::KeyOutOfTurn),
        }
    }
}

fn user_name(name: &[u8]) -> Result<String, OpaqueError> {
    let text = core::str::from_utf8(name).map_err(|_| OpaqueError::User)?;
    let legal = (1..=USER_LEN_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    if legal { Ok(text.to_owned()) } else { Err(OpaqueError::User) }
}

fn message<const N: usize>(value: &[u8]) -> Result<[u8; N], OpaqueError> {
    let bytes = binary(value, N..=N).map_err(|_| OpaqueError::Message)?;
    bytes.try_into().map_err(|_| OpaqueError::Message)
}

fn stretch_cost(value: &[u8]) -> Result<StretchCost, OpaqueError> {
    let parts =
        list(value).map(|part| number_in(part, 0..=u32::MAX)).take(4).collect::<Result<Vec<u32>, _>>();
    let Ok([memory_kib, passes, lanes]) = parts.as_deref() else { return Err(OpaqueError::Cost) };
    let lanes = u8::try_from(*lanes).map_err(|_| OpaqueError::Cost)?;
    let cost = StretchCost { memory_kib: *memory_kib, passes: *passes, lanes };
    if is_bearable(&cost) { Ok(cost) } else { Err(OpaqueError::Cost) }
}

#[cfg(test)]
mod tests;
