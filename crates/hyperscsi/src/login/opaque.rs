//! The password: what a target keeps of it, and the key exchange in which both ends show that they know it (OPAQUE,
//! RFC 9807).
//!
//! Nothing that is said, recorded or probed lets anybody try passwords faster than by asking the target for each; who
//! steals a target's record must run Argon2 for each. The parameters of Argon2 are the target's, since it made the
//! record; it tells them in its answer, and an initiator works within bounds only. They need no lower bound: an
//! initiator says nothing that depends on the password before the other end has shown that it knows it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use opaque_ke::errors::{InternalError, ProtocolError};
use opaque_ke::generic_array::{ArrayLength, GenericArray};
use opaque_ke::ksf::Ksf;
use opaque_ke::{
    CipherSuite, ClientLogin, ClientLoginFinishParameters, ClientRegistration,
    ClientRegistrationFinishParameters, CredentialFinalization, CredentialRequest, CredentialResponse,
    Identifiers, Ristretto255, ServerLogin, ServerLoginParameters, ServerRegistration, ServerSetup, TripleDh,
};
use sha2_opaque::Sha512;
use zeroize::Zeroizing;

use crate::pdu::negotiate::{KE1_LEN, KE2_LEN, KE3_LEN, StretchCost};
use crate::random::HmacDrbg;

/// A password.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Zeroizing<Vec<u8>>);

/// Why bytes are no password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a password has 1 to {} bytes", Password::LEN_MAX)]
pub struct BadPassword;

impl Password {
    /// More than anybody types, and as much as a file of keys needs.
    pub const LEN_MAX: usize = 255;

    /// Takes `bytes` if they can be a password.
    ///
    /// # Errors
    /// [`BadPassword`]
    pub fn new(bytes: &[u8]) -> Result<Self, BadPassword> {
        let legal = (1..=Self::LEN_MAX).contains(&bytes.len());
        if legal { Ok(Self(Zeroizing::new(bytes.to_vec()))) } else { Err(BadPassword) }
    }

    /// Returns the bytes: for those who hand them on, and never to be shown.
    pub fn secret_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

/// What Argon2id costs in a record that is made from a password: 64 MiB and 3 passes (RFC 9106 §4, second choice), some
/// tenths of a second for each guess.
pub const USUAL_COST: StretchCost = StretchCost { memory_kib: 64 << 10, passes: 3, lanes: 1 };

/// The most memory that a peer can make us use: four times the usual.
const MEMORY_KIB_MAX: u32 = 256 << 10;
/// The most work that it can: five times the usual.
const WORK_KIB_MAX: u64 = 5 * (192 << 10);

//= hyperscsi#section-6.3
//# An initiator MUST refuse more than 262144 KiB, or more than five times the usual work,
//# or more than 16 lanes
/// Returns whether a peer may ask for this.
pub const fn is_bearable(cost: &StretchCost) -> bool {
    let work = cost.memory_kib as u64 * cost.passes as u64;
    cost.memory_kib <= MEMORY_KIB_MAX && work <= WORK_KIB_MAX && cost.lanes <= 16
}

/// OPAQUE-3DH over ristretto255 with SHA-512, HKDF-SHA-512, HMAC-SHA-512 and Argon2id.
struct Suite;

impl CipherSuite for Suite {
    type OprfCs = Ristretto255;
    type KeyExchange = TripleDh<Ristretto255, Sha512>;
    type Ksf = Stretch;
}

struct Stretch(StretchCost);

impl Default for Stretch {
    fn default() -> Self {
        Self(USUAL_COST)
    }
}

impl Ksf for Stretch {
    fn hash<L: ArrayLength<u8>>(
        &self,
        input: GenericArray<u8, L>,
    ) -> Result<GenericArray<u8, L>, InternalError> {
        let StretchCost { memory_kib, passes, lanes } = self.0;
        let params = Params::new(memory_kib, passes, u32::from(lanes), None);
        let argon2 =
            Argon2::new(Algorithm::Argon2id, Version::V0x13, params.map_err(|_| InternalError::KsfError)?);
        let mut out = GenericArray::default();
        // The password has its salt already: the record's own blinding key.
        argon2.hash_password_into(&input, &[0; 16], &mut out).map_err(|_| InternalError::KsfError)?;
        Ok(out)
    }
}

/// The secret that both ends of a handshake have in the end, and nobody else.
pub(crate) type Secret = Zeroizing<[u8; 64]>;

/// Something of the key exchange did not work: a message is no message, or the other end does not know the password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed;

impl<T> From<ProtocolError<T>> for Failed {
    fn from(_: ProtocolError<T>) -> Self {
        Self
    }
}

/// What a target keeps of the password of a group.
pub struct PasswordRecord {
    setup: ServerSetup<Suite>,
    file: ServerRegistration<Suite>,
    cost: StretchCost,
}

/// A record cannot be made: the cost is not one that Argon2 knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Argon2id has no such parameters")]
pub struct BadCost;

impl PasswordRecord {
    /// Makes a record. Slow, on purpose: it runs Argon2 once. `entropy` is fresh from the operating system's generator.
    ///
    /// # Errors
    /// [`BadCost`]
    pub fn make(
        password: &Password,
        group: &str,
        cost: StretchCost,
        entropy: [u8; 32],
    ) -> Result<Self, BadCost> {
        if !is_bearable(&cost) {
            return Err(BadCost);
        }
        Self::register(password, group.as_bytes(), cost, &mut HmacDrbg::new(entropy))
            .map_err(|Failed| BadCost)
    }

    fn register(
        password: &Password,
        group: &[u8],
        cost: StretchCost,
        random: &mut HmacDrbg,
    ) -> Result<Self, Failed> {
        let setup = ServerSetup::<Suite>::new(random);
        let start = ClientRegistration::<Suite>::start(random, &password.0)?;
        let answer = ServerRegistration::<Suite>::start(&setup, start.message, group)?;
        let stretch = Stretch(cost);
        let parameters = ClientRegistrationFinishParameters::new(names(group), Some(&stretch));
        let upload = start.state.finish(random, &password.0, answer.message, parameters)?;
        Ok(Self { setup, file: ServerRegistration::finish(upload.message), cost })
    }

    /// Returns what an initiator must know to stretch the password as the record has it.
    pub const fn cost(&self) -> StretchCost {
        self.cost
    }

    /// Answers the first message of an initiator: gives the second, and what to check the third with.
    pub(crate) fn answer(
        &self,
        group: &str,
        ke1: &[u8; KE1_LEN],
        context: &[u8; 64],
        random: &mut HmacDrbg,
    ) -> Result<(PendingServerLogin, [u8; KE2_LEN]), Failed> {
        let request = CredentialRequest::<Suite>::deserialize(ke1)?;
        let parameters =
            ServerLoginParameters { context: Some(context), identifiers: names(group.as_bytes()) };
        let file = Some(self.file.clone());
        let start = ServerLogin::start(random, &self.setup, file, request, group.as_bytes(), parameters)?;
        let ke2 = start.message.serialize().as_slice().try_into().map_err(|_| Failed)?;
        Ok((PendingServerLogin { login: start.state, context: *context }, ke2))
    }
}

impl fmt::Debug for PasswordRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("cost", &self.cost).finish_non_exhaustive()
    }
}

/// Who takes part, as the record knows it. The target's name and all else is in the context.
fn names(group: &[u8]) -> Identifiers<'_> {
    Identifiers { client: Some(group), server: None }
}

/// A key exchange that waits for the initiator's last message.
#[derive(Clone)]
pub(crate) struct PendingServerLogin {
    login: ServerLogin<Suite>,
    context: [u8; 64],
}

impl PendingServerLogin {
    /// Checks the initiator's last message.
    pub(crate) fn finish(&self, ke3: &[u8; KE3_LEN]) -> Result<Secret, Failed> {
        let message = CredentialFinalization::<Suite>::deserialize(ke3)?;
        let parameters =
            ServerLoginParameters { context: Some(&self.context), identifiers: Identifiers::default() };
        secret(&self.login.clone().finish(message, parameters)?.session_key)
    }
}

impl fmt::Debug for PendingServerLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}

/// An initiator's key exchange that waits for the target's message.
#[derive(Clone)]
pub(crate) struct PendingClientLogin(Box<ClientLogin<Suite>>);

impl PendingClientLogin {
    /// Begins: gives the first message.
    pub(crate) fn start(password: &Password, random: &mut HmacDrbg) -> Result<(Self, [u8; KE1_LEN]), Failed> {
        let start = ClientLogin::<Suite>::start(random, &password.0)?;
        let ke1 = start.message.serialize().as_slice().try_into().map_err(|_| Failed)?;
        Ok((Self(Box::new(start.state)), ke1))
    }

    /// Returns what it keeps to itself: the blind and the ephemeral private key, around the first message.
    #[cfg(test)]
    pub(crate) fn secrets(&self) -> ([u8; 32], [u8; 32]) {
        let state = self.0.serialize();
        let at = |start| core::array::from_fn(|index| state[start + index]);
        (at(0), at(32 + KE1_LEN))
    }
}

impl fmt::Debug for PendingClientLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attempt")
    }
}

/// The slow step of an initiator: it stretches the password and opens the target's answer with it. Some tenths of a
/// second and 64 MiB with a usual record, so whoever owns the machine runs it where nobody waits.
pub struct StretchJob {
    pub(crate) attempt: PendingClientLogin,
    pub(crate) password: Password,
    pub(crate) group: Vec<u8>,
    pub(crate) cost: StretchCost,
    pub(crate) ke2: [u8; KE2_LEN],
    pub(crate) context: [u8; 64],
    pub(crate) entropy: Zeroizing<[u8; 32]>,
    /// Which answer it is about.
    pub(crate) digest: [u8; 64],
}

/// What a [`StretchJob`] came to.
pub struct StretchResult {
    pub(crate) digest: [u8; 64],
    pub(crate) result: Result<Proof, Failed>,
}

/// The initiator's last message, and the secret.
pub(crate) struct Proof {
    pub(crate) ke3: [u8; KE3_LEN],
    pub(crate) secret: Secret,
}

impl StretchJob {
    /// Does it.
    pub fn run(self) -> StretchResult {
        StretchResult { digest: self.digest, result: self.open() }
    }

    fn open(self) -> Result<Proof, Failed> {
        let mut random = HmacDrbg::new(*self.entropy);
        let answer = CredentialResponse::<Suite>::deserialize(&self.ke2)?;
        let stretch = Stretch(self.cost);
        let parameters =
            ClientLoginFinishParameters::new(Some(&self.context), names(&self.group), Some(&stretch));
        let end = self.attempt.0.finish(&mut random, &self.password.0, answer, parameters)?;
        let ke3 = end.message.serialize().as_slice().try_into().map_err(|_| Failed)?;
        Ok(Proof { ke3, secret: secret(&end.session_key)? })
    }
}

impl fmt::Debug for StretchJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("cost", &self.cost).finish_non_exhaustive()
    }
}

impl fmt::Debug for StretchResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Done")
    }
}

fn secret(key: &[u8]) -> Result<Secret, Failed> {
    key.try_into().map(Zeroizing::new).map_err(|_| Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP: StretchCost = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };

    fn exchange(
        ours: &str,
        theirs: &str,
        context: u8,
    ) -> (Result<[u8; 64], Failed>, Result<[u8; 64], Failed>) {
        let password = |text: &str| Password::new(text.as_bytes()).unwrap();
        let record = PasswordRecord::make(&password(theirs), "backup", CHEAP, [7; 32]).unwrap();
        let mut random = HmacDrbg::new([9; 32]);
        let (attempt, ke1) = PendingClientLogin::start(&password(ours), &mut random).unwrap();
        let (pending, ke2) = record.answer("backup", &ke1, &[1; 64], &mut random).unwrap();
        let done = StretchJob {
            attempt,
            password: password(ours),
            group: b"backup".to_vec(),
            cost: record.cost(),
            ke2,
            context: [context; 64],
            entropy: Zeroizing::new([3; 32]),
            digest: [0; 64],
        };
        match done.run().result {
            Ok(proof) => (Ok(*proof.secret), pending.finish(&proof.ke3).map(|secret| *secret)),
            Err(Failed) => (Err(Failed), pending.finish(&[0; KE3_LEN]).map(|secret| *secret)),
        }
    }

    #[test]
    fn both_ends_have_one_secret_if_they_know_one_password_and_said_the_same() {
        let (ours, theirs) = exchange("correct horse", "correct horse", 1);
        assert!(ours.is_ok());
        assert_eq!(ours, theirs);
        assert_eq!(exchange("correct horse", "battery staple", 1), (Err(Failed), Err(Failed)));
        assert_eq!(exchange("correct horse", "correct horse", 2), (Err(Failed), Err(Failed)));
    }

    #[test]
    fn a_peer_cannot_make_us_work_without_bound() {
        assert!(is_bearable(&USUAL_COST));
        for (memory_kib, passes) in [(u32::MAX, 1), (8, u32::MAX), (256 << 10, 4), ((256 << 10) + 1, 1)] {
            assert!(!is_bearable(&StretchCost { memory_kib, passes, lanes: 1 }), "{memory_kib} {passes}");
        }
        let password = Password::new(b"x").unwrap();
        for cost in [StretchCost { memory_kib: 0, ..CHEAP }, StretchCost { lanes: 0, ..CHEAP }] {
            assert_eq!(PasswordRecord::make(&password, "g", cost, [1; 32]).map(|_| ()), Err(BadCost));
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let password = Password::new(b"correct horse").unwrap();
        let record = PasswordRecord::make(&password, "g", CHEAP, [1; 32]).unwrap();
        assert_eq!(alloc::format!("{password:?}"), "Password");
        assert!(!alloc::format!("{record:?}").contains("setup"));
        assert_eq!(Password::new(b""), Err(BadPassword));
        assert_eq!(Password::new(&[0; 256]), Err(BadPassword));
    }
}
