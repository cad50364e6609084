//! Passwords: the record that a target keeps of one, and the key exchange in which both ends prove that they
//! know it (OPAQUE, RFC 9807).
//!
//! ```text
//! initiator                                     target
//!    PendingClientLogin::start    KE1        ──▶
//!                                 KE2, cost  ◀──   PasswordRecord::answer
//!    StretchJob::run              KE3        ──▶   PendingServerLogin::finish
//! ```
//!
//! Neither recorded messages nor probing let an attacker try passwords faster than with one login each. An
//! attacker who steals a target's record must run Argon2 once per guess. The target chooses the parameters of
//! Argon2, since it made the record. It sends them with its message, and an initiator accepts them within
//! upper bounds only. They need no lower bound: an initiator sends nothing that depends on the password
//! before the other end has proven that it knows the password.
//!
//! The transport decides what the context of the exchange is: a hash of everything that both ends said and
//! that must not be changed on the way. It also decides whose password it is: that of a group, or of a user.

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
use sha2::{Digest as _, Sha256};
use sha2_opaque::Sha512;
use zeroize::{Zeroize as _, Zeroizing};

use crate::random::HmacDrbg;

/// The length of OPAQUE's first message, in bytes (RFC 9807 §6.1).
pub const KE1_LEN: usize = 96;
/// The length of OPAQUE's second message, in bytes.
pub const KE2_LEN: usize = 320;
/// The length of OPAQUE's third message, in bytes.
pub const KE3_LEN: usize = 64;

/// The parameters of Argon2id (RFC 9106 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StretchCost {
    /// The memory, in KiB.
    pub memory_kib: u32,
    /// The passes over it.
    pub passes: u32,
    /// The lanes.
    pub lanes: u8,
}

/// A password.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Zeroizing<Vec<u8>>);

/// The error for bytes that cannot be a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a password must have 1 to {} bytes", Password::LEN_MAX)]
pub struct BadPassword;

impl Password {
    /// The longest password in bytes: longer than a person types, and enough for a key file.
    pub const LEN_MAX: usize = 255;

    /// Copies `bytes` if they can be a password.
    ///
    /// # Errors
    /// [`BadPassword`]
    pub fn new(bytes: &[u8]) -> Result<Self, BadPassword> {
        let legal = (1..=Self::LEN_MAX).contains(&bytes.len());
        if legal { Ok(Self(Zeroizing::new(bytes.to_vec()))) } else { Err(BadPassword) }
    }

    /// Returns the bytes of the password. They must never be displayed.
    pub fn secret_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

/// The usual cost of Argon2id in a record that is made from a password: 64 MiB and 3 passes (RFC 9106 §4,
/// second choice), some tenths of a second per guess.
pub const USUAL_COST: StretchCost = StretchCost { memory_kib: 64 << 10, passes: 3, lanes: 1 };

/// The most memory that a peer can make us use, in KiB: four times the usual.
const MEMORY_KIB_MAX: u32 = 256 << 10;
/// The most work that a peer can cause, in KiB times passes: five times the usual.
const WORK_KIB_MAX: u64 = 5 * (192 << 10);

//= hyperscsi#section-6.3
//# An initiator MUST refuse more than 262144 KiB, or more than five times the usual work,
//# or more than 16 lanes
/// Returns whether a peer may ask for this cost.
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
        // The input has its salt already: the blinding key of the record.
        argon2.hash_password_into(&input, &[0; 16], &mut out).map_err(|_| InternalError::KsfError)?;
        Ok(out)
    }
}

/// The secret that a successful exchange gives to both ends, and to no one else. Dropping it erases it.
pub type SessionKey = Zeroizing<[u8; 64]>;

/// The error of a failed key exchange: a message is malformed, or the other end does not know the password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other end does not know the password, or a message was changed")]
pub struct KeyExchangeError;

impl<T> From<ProtocolError<T>> for KeyExchangeError {
    fn from(_: ProtocolError<T>) -> Self {
        Self
    }
}

/// The record that a target keeps of the password of a user: of one initiator, or of a group of them.
#[derive(Clone)]
pub struct PasswordRecord {
    setup: ServerSetup<Suite>,
    file: ServerRegistration<Suite>,
    cost: StretchCost,
    guess_id: [u8; 32],
}

/// The error for a cost with which no record can be made: Argon2 does not allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Argon2id does not accept these parameters")]
pub struct BadCost;

/// The error for stored bytes that are no password record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a password record")]
pub struct BadRecord;

/// The length of [`ServerSetup`] in bytes.
const SETUP_LEN: usize = 128;
/// The length of [`ServerRegistration`] in bytes.
const FILE_LEN: usize = 192;

impl PasswordRecord {
    /// Makes a record of the password of `user`. This is slow on purpose, since it runs Argon2 once.
    /// `entropy` must come fresh from the operating system's generator.
    ///
    /// # Errors
    /// [`BadCost`]
    pub fn make(
        password: &Password,
        user: &str,
        cost: StretchCost,
        entropy: [u8; 32],
    ) -> Result<Self, BadCost> {
        if !is_bearable(&cost) {
            return Err(BadCost);
        }
        Self::register(password, user.as_bytes(), cost, &mut HmacDrbg::new(entropy))
            .map_err(|KeyExchangeError| BadCost)
    }

    fn register(
        password: &Password,
        user: &[u8],
        cost: StretchCost,
        random: &mut HmacDrbg,
    ) -> Result<Self, KeyExchangeError> {
        let setup = ServerSetup::<Suite>::new(random);
        let start = ClientRegistration::<Suite>::start(random, &password.0)?;
        let answer = ServerRegistration::<Suite>::start(&setup, start.message, user)?;
        let stretch = Stretch(cost);
        let parameters = ClientRegistrationFinishParameters::new(names(user), Some(&stretch));
        let upload = start.state.finish(random, &password.0, answer.message, parameters)?;
        Ok(Self::new(setup, ServerRegistration::finish(upload.message), cost))
    }

    /// The length of a stored record in bytes, without its cost: the OPRF seed, the target's private key and
    /// a public key without a private one (64, 32 and 32 bytes), then the `RegistrationRecord` of RFC 9807
    /// §5.2 (192 bytes).
    pub const STORED_LEN: usize = SETUP_LEN + FILE_LEN;

    /// Makes a record of a random password, which answers logins of users that do not exist. Nobody can find
    /// out by a login that it is none of a user, if its cost is that of the users.
    ///
    /// # Errors
    /// [`BadCost`]
    pub fn decoy(cost: StretchCost, entropy: [u8; 32]) -> Result<Self, BadCost> {
        if !is_bearable(&cost) || Params::new(cost.memory_kib, cost.passes, cost.lanes.into(), None).is_err()
        {
            return Err(BadCost);
        }
        let mut random = HmacDrbg::new(entropy);
        let password = Zeroizing::new(random.bytes::<32>());
        let password = Password::new(&*password).map_err(|BadPassword| BadCost)?;
        // Nobody opens the envelope of this record, so that it need not be slow to open.
        let cheap = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };
        let made = Self::register(&password, b"", cheap, &mut random).map_err(|KeyExchangeError| BadCost)?;
        Ok(Self { cost, ..made })
    }

    /// Returns what is stored of the record besides its cost. An attacker who knows it can pose as the
    /// target, and try passwords.
    pub fn stored(&self) -> Zeroizing<[u8; Self::STORED_LEN]> {
        let mut stored = Zeroizing::new([0; Self::STORED_LEN]);
        let (mut setup, mut file) = (self.setup.serialize(), self.file.serialize());
        for (to, from) in stored.iter_mut().zip(setup.iter().chain(&file)) {
            *to = *from;
        }
        setup.as_mut_slice().zeroize();
        file.as_mut_slice().zeroize();
        stored
    }

    /// Restores a record.
    ///
    /// # Errors
    /// [`BadRecord`]: these bytes are not what [`Self::stored`] returned, or the cost is refused by
    /// [`is_bearable`].
    pub fn restore(stored: &[u8; Self::STORED_LEN], cost: StretchCost) -> Result<Self, BadRecord> {
        let (setup, file) = stored.split_at_checked(SETUP_LEN).ok_or(BadRecord)?;
        let argon2 = Params::new(cost.memory_kib, cost.passes, cost.lanes.into(), None);
        if !is_bearable(&cost) || argon2.is_err() {
            return Err(BadRecord);
        }
        let setup = ServerSetup::deserialize(setup).map_err(|_| BadRecord)?;
        let file = ServerRegistration::deserialize(file).map_err(|_| BadRecord)?;
        Ok(Self::new(setup, file, cost))
    }

    fn new(setup: ServerSetup<Suite>, file: ServerRegistration<Suite>, cost: StretchCost) -> Self {
        let mut record = Self { setup, file, cost, guess_id: [0; 32] };
        record.guess_id =
            Sha256::new_with_prefix("targe guess id").chain_update(*record.stored()).finalize().into();
        record
    }

    /// Returns what identifies the record where guesses are counted. It shows nothing of the record.
    pub(crate) const fn guess_id(&self) -> &[u8; 32] {
        &self.guess_id
    }

    /// Returns the cost with which an initiator must stretch the password.
    pub const fn cost(&self) -> StretchCost {
        self.cost
    }

    /// Answers the initiator's first message. Returns the state that checks the third message, and the second
    /// message.
    ///
    /// # Errors
    /// [`KeyExchangeError`]: the message is malformed.
    pub fn answer(
        &self,
        user: &str,
        ke1: &[u8; KE1_LEN],
        context: &[u8; 64],
        random: &mut HmacDrbg,
    ) -> Result<(PendingServerLogin, [u8; KE2_LEN]), KeyExchangeError> {
        let request = CredentialRequest::<Suite>::deserialize(ke1)?;
        let parameters =
            ServerLoginParameters { context: Some(context), identifiers: names(user.as_bytes()) };
        let file = Some(self.file.clone());
        let start = ServerLogin::start(random, &self.setup, file, request, user.as_bytes(), parameters)?;
        let ke2 = start.message.serialize().as_slice().try_into().map_err(|_| KeyExchangeError)?;
        Ok((PendingServerLogin { login: start.state, context: *context }, ke2))
    }
}

impl PartialEq for PasswordRecord {
    fn eq(&self, other: &Self) -> bool {
        self.cost == other.cost && *self.stored() == *other.stored()
    }
}

impl Eq for PasswordRecord {}

impl fmt::Debug for PasswordRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("cost", &self.cost).finish_non_exhaustive()
    }
}

/// Returns the identities of both ends as the record knows them. The target's name and everything else is in
/// the context.
fn names(user: &[u8]) -> Identifiers<'_> {
    Identifiers { client: Some(user), server: None }
}

/// The target's key exchange, which waits for the initiator's last message.
#[derive(Clone)]
pub struct PendingServerLogin {
    login: ServerLogin<Suite>,
    context: [u8; 64],
}

impl PendingServerLogin {
    /// Checks the initiator's last message.
    ///
    /// # Errors
    /// [`KeyExchangeError`]
    pub fn finish(&self, ke3: &[u8; KE3_LEN]) -> Result<SessionKey, KeyExchangeError> {
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

/// The initiator's key exchange, which waits for the target's message.
#[derive(Clone)]
pub struct PendingClientLogin(Box<ClientLogin<Suite>>);

impl PendingClientLogin {
    /// Begins a key exchange. Returns its state and the first message.
    ///
    /// # Errors
    /// [`KeyExchangeError`], for no password that [`Password::new`] accepts.
    pub fn start(
        password: &Password,
        random: &mut HmacDrbg,
    ) -> Result<(Self, [u8; KE1_LEN]), KeyExchangeError> {
        let start = ClientLogin::<Suite>::start(random, &password.0)?;
        let ke1 = start.message.serialize().as_slice().try_into().map_err(|_| KeyExchangeError)?;
        Ok((Self(Box::new(start.state)), ke1))
    }

    /// Returns the blind and the ephemeral private key, which only test vectors may print.
    pub fn secret_values(&self) -> ([u8; 32], [u8; 32]) {
        // They stand around the first message.
        let state = self.0.serialize();
        let at = |start| core::array::from_fn(|index| state.get(start + index).copied().unwrap_or_default());
        (at(0), at(32 + KE1_LEN))
    }
}

impl fmt::Debug for PendingClientLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attempt")
    }
}

/// The slow step of an initiator: it stretches the password and decrypts the target's answer with it. With a
/// usual record that takes some tenths of a second and 64 MiB, so the owner of the state machine should run
/// it on a thread that no I/O waits for.
pub struct StretchJob {
    /// The key exchange.
    pub attempt: PendingClientLogin,
    /// The password.
    pub password: Password,
    /// The user whose password it is.
    pub user: Vec<u8>,
    /// The cost that the target's record was made at. The caller has checked that it [`is_bearable`].
    pub cost: StretchCost,
    /// The target's message.
    pub ke2: [u8; KE2_LEN],
    /// The context that both ends bind the exchange to.
    pub context: [u8; 64],
    /// Random bytes, fresh from a generator for secrets.
    pub entropy: Zeroizing<[u8; 32]>,
    /// A digest of the message that brought `ke2`. The result repeats it, so that the owner can tell which
    /// job it belongs to.
    pub digest: [u8; 64],
}

/// The result of a [`StretchJob`].
pub struct StretchResult {
    /// The digest of the job.
    pub digest: [u8; 64],
    /// The last message, if the target knows the password.
    pub result: Result<Proof, KeyExchangeError>,
}

/// The initiator's last message, and the shared secret.
pub struct Proof {
    /// The last message of the exchange.
    pub ke3: [u8; KE3_LEN],
    /// The shared secret.
    pub secret: SessionKey,
}

impl StretchJob {
    /// Runs the job.
    pub fn run(self) -> StretchResult {
        StretchResult { digest: self.digest, result: self.open() }
    }

    fn open(self) -> Result<Proof, KeyExchangeError> {
        let mut random = HmacDrbg::new(*self.entropy);
        let answer = CredentialResponse::<Suite>::deserialize(&self.ke2)?;
        let stretch = Stretch(self.cost);
        let parameters =
            ClientLoginFinishParameters::new(Some(&self.context), names(&self.user), Some(&stretch));
        let end = self.attempt.0.finish(&mut random, &self.password.0, answer, parameters)?;
        let ke3 = end.message.serialize().as_slice().try_into().map_err(|_| KeyExchangeError)?;
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

fn secret(key: &[u8]) -> Result<SessionKey, KeyExchangeError> {
    key.try_into().map(Zeroizing::new).map_err(|_| KeyExchangeError)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP: StretchCost = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };

    fn exchange(
        ours: &str,
        theirs: &str,
        context: u8,
    ) -> (Result<[u8; 64], KeyExchangeError>, Result<[u8; 64], KeyExchangeError>) {
        let password = |text: &str| Password::new(text.as_bytes()).unwrap();
        let record = PasswordRecord::make(&password(theirs), "backup", CHEAP, [7; 32]).unwrap();
        let mut random = HmacDrbg::new([9; 32]);
        let (attempt, ke1) = PendingClientLogin::start(&password(ours), &mut random).unwrap();
        let (pending, ke2) = record.answer("backup", &ke1, &[1; 64], &mut random).unwrap();
        let done = StretchJob {
            attempt,
            password: password(ours),
            user: b"backup".to_vec(),
            cost: record.cost(),
            ke2,
            context: [context; 64],
            entropy: Zeroizing::new([3; 32]),
            digest: [0; 64],
        };
        match done.run().result {
            Ok(proof) => (Ok(*proof.secret), pending.finish(&proof.ke3).map(|secret| *secret)),
            Err(KeyExchangeError) => {
                (Err(KeyExchangeError), pending.finish(&[0; KE3_LEN]).map(|secret| *secret))
            }
        }
    }

    #[test]
    fn both_ends_have_one_secret_if_they_know_one_password_and_said_the_same() {
        let (ours, theirs) = exchange("correct horse", "correct horse", 1);
        assert!(ours.is_ok());
        assert_eq!(ours, theirs);
        assert_eq!(
            exchange("correct horse", "battery staple", 1),
            (Err(KeyExchangeError), Err(KeyExchangeError))
        );
        assert_eq!(
            exchange("correct horse", "correct horse", 2),
            (Err(KeyExchangeError), Err(KeyExchangeError))
        );
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
    fn a_stored_record_is_the_same_record() {
        let password = Password::new(b"correct horse").unwrap();
        let record = PasswordRecord::make(&password, "backup", CHEAP, [7; 32]).unwrap();
        let again = PasswordRecord::restore(&record.stored(), record.cost()).unwrap();
        assert_eq!(again, record);
        let mut random = HmacDrbg::new([9; 32]);
        let (_, ke1) = PendingClientLogin::start(&password, &mut random).unwrap();
        let ke2 = |record: &PasswordRecord| {
            record.answer("backup", &ke1, &[1; 64], &mut HmacDrbg::new([5; 32])).unwrap().1
        };
        assert_eq!(ke2(&again), ke2(&record));
        let mut damaged = *record.stored();
        damaged[SETUP_LEN - 1] = 0xff;
        assert_eq!(PasswordRecord::restore(&damaged, CHEAP), Err(BadRecord));
        let costly = StretchCost { memory_kib: u32::MAX, ..CHEAP };
        assert_eq!(PasswordRecord::restore(&record.stored(), costly), Err(BadRecord));
        let nothing = StretchCost { passes: 0, ..CHEAP };
        assert_eq!(PasswordRecord::restore(&record.stored(), nothing), Err(BadRecord));
    }

    #[test]
    fn a_decoy_answers_each_user_alike_and_admits_none() {
        let decoy = PasswordRecord::decoy(USUAL_COST, [4; 32]).unwrap();
        assert_eq!(decoy.cost(), USUAL_COST);
        let password = Password::new(b"correct horse").unwrap();
        let (_, ke1) = PendingClientLogin::start(&password, &mut HmacDrbg::new([9; 32])).unwrap();
        // The first 32 bytes are the evaluated element, which is the same for one user as with a real record.
        let evaluated = |user: &str, entropy| {
            let (_, ke2) = decoy.answer(user, &ke1, &[1; 64], &mut HmacDrbg::new([entropy; 32])).unwrap();
            ke2[..32].to_vec()
        };
        assert_eq!(evaluated("alice", 1), evaluated("alice", 2));
        assert_ne!(evaluated("alice", 1), evaluated("bob", 1));
        assert_eq!(PasswordRecord::decoy(StretchCost { passes: 0, ..CHEAP }, [4; 32]), Err(BadCost));
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
