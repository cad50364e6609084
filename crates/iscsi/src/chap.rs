//! CHAP (RFC 1994 as RFC 7143 §12.1.3 uses it): algorithms, secrets, challenges and responses.
//!
//! [`exchange`] holds the state machines of both sides; this module holds the types that they use.

pub mod exchange;

use alloc::string::String;
use alloc::vec::Vec;

use md5::Digest;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// A digest algorithm of CHAP, by its number in the IANA registry of PPP authentication algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algorithm {
    /// MD5.
    Md5 = 5,
    /// SHA1.
    Sha1 = 6,
    /// SHA-256.
    Sha256 = 7,
    /// SHA3-256.
    Sha3 = 8,
}

impl Algorithm {
    /// All algorithms, strongest first.
    pub const ALL: [Self; 4] = [Self::Sha3, Self::Sha256, Self::Sha1, Self::Md5];

    /// Returns the number of the algorithm on the wire.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the length of a response of the algorithm, in bytes.
    pub const fn response_len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Sha3 => 32,
        }
    }

    /// Returns the algorithm with this number.
    pub fn by_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| u64::from(algorithm.number()) == number)
    }
}

/// A set of algorithms. It is offered strongest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Algorithms(u16);

impl Algorithms {
    /// No algorithm: no CHAP.
    pub const NONE: Self = Self(0);
    /// Every algorithm.
    pub const ALL: Self =
        Self::NONE.with(Algorithm::Md5).with(Algorithm::Sha1).with(Algorithm::Sha256).with(Algorithm::Sha3);

    /// Returns the set with `algorithm` added.
    #[must_use]
    pub const fn with(self, algorithm: Algorithm) -> Self {
        Self(self.0 | 1 << algorithm.number())
    }

    /// Returns whether `algorithm` is in the set.
    pub const fn contains(self, algorithm: Algorithm) -> bool {
        self.0 & (1 << algorithm.number()) != 0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the members of the set, strongest first.
    pub fn iter(self) -> impl Iterator<Item = Algorithm> {
        Algorithm::ALL.into_iter().filter(move |algorithm| self.contains(*algorithm))
    }
}

/// The shortest secret that may be used without IPsec, in bytes: 96 bits (RFC 7143 §9.2.1).
pub const MIN_SECRET: usize = 12;
/// The longest secret, in bytes. RFC 7143 §9.2.1 requires 16; this limit keeps a wrong file from being taken
/// as a secret.
pub const MAX_SECRET: usize = 255;

/// A CHAP secret. It is wiped when dropped and never printed.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

/// The reason why bytes are not a legal secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    /// Fewer than [`MIN_SECRET`] bytes.
    #[error("a CHAP secret has at least 12 bytes")]
    TooShort,
    /// More than [`MAX_SECRET`] bytes.
    #[error("a CHAP secret has at most 255 bytes")]
    TooLong,
}

impl Secret {
    /// Makes a secret of [`MIN_SECRET`] to [`MAX_SECRET`] bytes.
    ///
    /// # Errors
    /// The length is out of this range.
    pub fn new(bytes: &[u8]) -> Result<Self, BadSecret> {
        if bytes.len() < MIN_SECRET { Err(BadSecret::TooShort) } else { Self::of_any_strength(bytes) }
    }

    /// Makes a secret of 1 to [`MAX_SECRET`] bytes. RFC 7143 §9.2.1 allows less than [`MIN_SECRET`] only
    /// under IPsec. This function serves peers that use short secrets anyway, if the operator permits them.
    ///
    /// # Errors
    /// The length is out of this range.
    pub fn of_any_strength(bytes: &[u8]) -> Result<Self, BadSecret> {
        match bytes.len() {
            0 => Err(BadSecret::TooShort),
            1..=MAX_SECRET => Ok(Self(Zeroizing::new(bytes.to_vec()))),
            _ => Err(BadSecret::TooLong),
        }
    }
}

/// Compares in constant time: the time does not depend on the position at which two secrets of one length
/// differ.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Secret {}

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A user name and its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The name, taken literally: `0xuser` is a name, not a number.
    pub name: String,
    /// The secret.
    pub secret: Secret,
}

/// The longest challenge that a peer may send, in bytes (RFC 7143 §12.1.3).
pub const MAX_CHALLENGE: usize = 1024;

/// A challenge that this side sends.
#[derive(Clone, Debug)]
pub struct Challenge {
    /// CHAP_I.
    pub id: u8,
    /// CHAP_C, as long as a response of the negotiated algorithm.
    pub bytes: Vec<u8>,
}

impl Challenge {
    /// Makes a challenge from fresh random bytes of the operating system's generator. The challenge uses
    /// these bytes up: they must not be used for anything else.
    pub fn from_entropy(entropy: &Zeroizing<[u8; 32]>, algorithm: Algorithm) -> Self {
        let derive = |label: &[u8]| {
            let mut digest = sha2::Sha256::new();
            digest.update(label);
            digest.update(entropy.as_slice());
            digest.finalize()
        };
        // Hashing keeps the output of the generator itself off the wire.
        let bytes = derive(b"challenge").iter().copied().take(algorithm.response_len()).collect();
        let id = derive(b"identifier").first().copied().unwrap_or_default();
        Self { id, bytes }
    }
}

/// The longest response, in bytes: that of SHA-256 and SHA3-256.
pub const MAX_RESPONSE: usize = 32;

/// The proof that a side knows a secret.
#[derive(Clone, Copy)]
pub struct Response {
    bytes: [u8; MAX_RESPONSE],
    len: usize,
}

impl Response {
    /// Computes the response to a challenge: the digest over identifier, secret and challenge (RFC 1994
    /// §4.1).
    pub fn compute(algorithm: Algorithm, id: u8, secret: &Secret, challenge: &[u8]) -> Self {
        let parts: [&[u8]; 3] = [&[id], &secret.0, challenge];
        match algorithm {
            Algorithm::Md5 => Self::digest::<md5::Md5>(&parts),
            Algorithm::Sha1 => Self::digest::<sha1::Sha1>(&parts),
            Algorithm::Sha256 => Self::digest::<sha2::Sha256>(&parts),
            Algorithm::Sha3 => Self::digest::<sha3::Sha3_256>(&parts),
        }
    }

    fn digest<D: Digest>(parts: &[&[u8]]) -> Self {
        let mut digest = D::new();
        for part in parts {
            digest.update(part);
        }
        let mut out = Self { bytes: [0; MAX_RESPONSE], len: 0 };
        for (to, from) in out.bytes.iter_mut().zip(digest.finalize()) {
            *to = from;
            out.len += 1;
        }
        out
    }

    /// Returns the bytes of the response, of [`Algorithm::response_len`].
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Returns whether `claimed` is this response, in constant time: the time does not reveal at which byte
    /// they differ.
    pub fn matches(&self, claimed: &[u8]) -> bool {
        self.as_bytes().ct_eq(claimed).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::value::{binary, to_hex};

    /// Known answers, computed with another implementation (Python's hashlib): digest over id, secret,
    /// challenge.
    #[test]
    fn computes_the_known_responses() {
        let challenge = binary(b"0x000102030405060708090a0b0c0d0e0f", 16..=16).unwrap();
        let secret = Secret::new(b"supersecretpassword").unwrap();
        for (algorithm, want) in [
            (Algorithm::Md5, "0xba1a42eacce4e0686f34e33774fc88d7"),
            (Algorithm::Sha1, "0x6913e7268bfcf3f105f4d69f7413c55dcec5a49b"),
            (Algorithm::Sha256, "0xa435aefa5baec3422843f16752f09f94ec6e5622fd76791ef1391d40dea16eaa"),
            (Algorithm::Sha3, "0xc3fe9734d04fa1c66c486784ead2c574ef4ef9a49ec1aed5e17aac8064bafdda"),
        ] {
            let response = Response::compute(algorithm, 0x2a, &secret, &challenge);
            assert_eq!(to_hex(response.as_bytes()), want, "{algorithm:?}");
            assert_eq!(response.as_bytes().len(), algorithm.response_len());
            assert!(response.matches(&binary(want.as_bytes(), 1..=32).unwrap()));
            assert!(!response.matches(&[]));
            assert!(!response.matches(&[0; 32]));
        }
    }

    #[test]
    fn a_secret_has_the_length_that_it_must_have_and_never_shows() {
        assert_eq!(Secret::new(&[b'a'; 11]).err(), Some(BadSecret::TooShort));
        assert_eq!(Secret::new(&[b'a'; 256]).err(), Some(BadSecret::TooLong));
        assert_eq!(Secret::of_any_strength(b"").err(), Some(BadSecret::TooShort));
        assert!(Secret::of_any_strength(b"short").is_ok());
        let shown = alloc::format!("{:?}", Secret::new(&[b'a'; 12]).unwrap());
        assert_eq!(shown, "Secret(…)");
    }

    #[test]
    fn algorithms_are_offered_strongest_first() {
        let numbers: Vec<u8> = Algorithms::ALL.iter().map(Algorithm::number).collect();
        assert_eq!(numbers, [8, 7, 6, 5]);
        assert!(Algorithms::NONE.is_empty());
        assert_eq!(Algorithm::by_number(9), None);
    }
}
