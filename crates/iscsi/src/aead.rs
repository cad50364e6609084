//! Digests that authenticate and encrypt the segments of PDUs, as `docs/iscsi-aead.md` specifies them: the
//! names that `HeaderDigest` and `DataDigest` negotiate, and the records of one direction of a connection.
//!
//! A record is a header segment or a data segment with its padding. It is changed in place, and its tag
//! stands where the digest of the segment would stand. An [`Encryptor`] seals the PDUs that one side sends, a
//! [`Decryptor`] opens those that it receives. Both count PDUs and bytes, and change keys after the same PDU,
//! so that nothing is sent to agree on it. [`login_keys`] derives the keys from the login.

pub mod login_keys;
pub(crate) mod record_state;

use core::mem;

use security::Level;
use security::aead::{Algorithm, Cipher, TAG_LEN};
use security::key_schedule::Secret;

use crate::pdu::{BHS_LEN, Bhs};

/// A digest that is an AEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AeadDigest {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Whether the digest encrypts, or only authenticates.
    pub mode: AeadMode,
}

/// What an AEAD digest does with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AeadMode {
    /// It authenticates the segment, which stays readable.
    Integrity,
    /// It authenticates and encrypts the segment.
    Encrypt,
}

impl AeadDigest {
    /// Every AEAD digest, best first.
    pub const ALL: [Self; 4] = [
        Self { algorithm: Algorithm::Aes256Gcm, mode: AeadMode::Encrypt },
        Self { algorithm: Algorithm::ChaCha20Poly1305, mode: AeadMode::Encrypt },
        Self { algorithm: Algorithm::Aes256Gcm, mode: AeadMode::Integrity },
        Self { algorithm: Algorithm::ChaCha20Poly1305, mode: AeadMode::Integrity },
    ];

    /// Every AEAD digest, those that only authenticate first.
    pub const INTEGRITY_FIRST: [Self; 4] = [Self::ALL[2], Self::ALL[3], Self::ALL[0], Self::ALL[1]];

    /// Returns the name of the digest in the lists of `HeaderDigest` and `DataDigest`.
    pub const fn name(self) -> &'static str {
        match (self.algorithm, self.mode) {
            (Algorithm::Aes256Gcm, AeadMode::Encrypt) => "Y-org.targe.aes-256-gcm",
            (Algorithm::Aes256Gcm, AeadMode::Integrity) => "Y-org.targe.aes-256-gcm.integrity",
            (Algorithm::ChaCha20Poly1305, AeadMode::Encrypt) => "Y-org.targe.chacha20-poly1305",
            (Algorithm::ChaCha20Poly1305, AeadMode::Integrity) => "Y-org.targe.chacha20-poly1305.integrity",
        }
    }

    /// Returns the digest with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|digest| digest.name() == name)
    }

    /// Returns the protection that the digest gives to the PDUs of a connection.
    pub const fn level(self) -> Level {
        match self.mode {
            AeadMode::Integrity => Level::Integrity,
            AeadMode::Encrypt => Level::Encrypt,
        }
    }
}

/// How many bytes of a header segment stay readable in every mode: those that hold the opcode, the flags and
/// the lengths of all segments (RFC 7143 §11.2.1).
pub const READABLE_LEN: usize = 8;

/// A sender cuts data segments at this many bytes, so that it can seal one while the one before is on the
/// wire.
pub const SEGMENT_LEN_MAX: usize = 64 << 10;

/// How much one generation of keys protects. Both ends must have the same limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationLimits {
    /// After so many PDUs keys are changed.
    pub pdus: u64,
    /// After so many bytes of segments keys are changed.
    pub bytes: u64,
}

impl Default for GenerationLimits {
    /// Returns the limits of the specification. With 2^32 blocks of AES-256-GCM under one key, an adversary
    /// has an advantage of about 2^-64; 2^22 PDUs are 2^23 records, as many as RFC 9001 §6.6 allows.
    fn default() -> Self {
        Self { pdus: 1 << 22, bytes: 1 << 36 }
    }
}

/// The keys of a connection with an AEAD digest, as one side has them when the login is complete.
#[derive(Debug)]
pub struct RecordKeys {
    /// The digest that was negotiated.
    pub digest: AeadDigest,
    /// Seals the PDUs that this side sends.
    pub encryptor: Encryptor,
    /// Opens the PDUs that this side receives.
    pub decryptor: Decryptor,
}

/// Seals the PDUs of one direction of a connection.
#[derive(Debug)]
pub struct Encryptor(Direction);

/// Opens the PDUs of one direction of a connection.
#[derive(Debug)]
pub struct Decryptor(Direction);

impl Encryptor {
    /// Seals the header segment of the next PDU in place: the basic header and the additional segments.
    /// Returns its tag.
    ///
    /// Returns `None`, and seals nothing, if `header` is not as long as its basic header says.
    pub fn seal_header(&mut self, header: &mut [u8]) -> Option<[u8; TAG_LEN]> {
        let direction = &mut self.0;
        let bytes = pdu_len(header)?;
        direction.begin_pdu(bytes);
        direction.seal(2 * direction.pdu, READABLE_LEN, header)
    }

    /// Seals the data segment of the PDU whose header was sealed last, with its padding, in place. Returns
    /// its tag.
    ///
    /// Returns `None`, and seals nothing, if that PDU has no data segment or its data segment was already
    /// sealed: a record number must not be used twice.
    pub fn seal_data(&mut self, data: &mut [u8]) -> Option<[u8; TAG_LEN]> {
        let direction = &mut self.0;
        let number = direction.take_data_number()?;
        direction.seal(number, 0, data)
    }

    /// Encrypts the data segment of the PDU whose header was sealed last from one place to another: `front`
    /// into `out`, which is as long, and then `rest` into `rest_and_tag`, which is as long as `rest` and a
    /// tag. The segment, with its padding, is `front` and `rest`.
    ///
    /// Returns `None`, and seals nothing, as [`Self::seal_data`] does; also if a length is wrong, or if the
    /// digest does not encrypt.
    pub fn encrypt_data(
        &mut self,
        (front, out): (&[u8], &mut [u8]),
        (rest, rest_and_tag): (&[u8], &mut [u8]),
    ) -> Option<()> {
        let direction = &mut self.0;
        if direction.digest.mode != AeadMode::Encrypt {
            return None;
        }
        let number = direction.take_data_number()?;
        direction.cipher.seal_into(number, &[], (front, out), (rest, rest_and_tag))
    }

    /// Returns the tag of the data segment of the PDU whose header was sealed last, with its padding. The
    /// segment stays as it is.
    ///
    /// Returns `None`, and seals nothing, as [`Self::seal_data`] does; also if the digest encrypts.
    pub fn authenticate_data(&mut self, segment: &[u8]) -> Option<[u8; TAG_LEN]> {
        let direction = &mut self.0;
        if direction.digest.mode != AeadMode::Integrity {
            return None;
        }
        let number = direction.take_data_number()?;
        direction.cipher.seal(number, segment, &mut [])
    }

    /// Returns the digest.
    pub const fn digest(&self) -> AeadDigest {
        self.0.digest
    }
}

impl Decryptor {
    /// Checks the tag of the header segment of the next PDU, and decrypts the segment in place.
    ///
    /// Returns `None` if the tag does not match. No later PDU of the connection can be opened then, because
    /// the length of this one is not known.
    pub fn open_header(&mut self, header: &mut [u8], tag: &[u8]) -> Option<()> {
        let direction = &mut self.0;
        let bytes = pdu_len(header)?;
        direction.begin_pdu(bytes);
        direction.open(2 * direction.pdu, READABLE_LEN, header, tag)
    }

    /// Checks the tag of the data segment of the PDU whose header was opened last, and decrypts the segment
    /// with its padding in place.
    ///
    /// Returns `None` if the tag does not match, or if that PDU has no data segment, or one that was opened
    /// before. The contents of `data` are lost then; later PDUs can be opened all the same.
    pub fn open_data(&mut self, data: &mut [u8], tag: &[u8]) -> Option<()> {
        let direction = &mut self.0;
        let number = direction.take_data_number()?;
        direction.open(number, 0, data, tag)
    }

    /// As [`Self::open_data`], but from `segment` to `out`, which is as long: one pass over the data where
    /// the bytes must be moved anyway.
    ///
    /// Returns `None` as [`Self::open_data`] does. The contents of `out` must not be used then.
    pub fn open_data_into(&mut self, segment: &[u8], tag: &[u8], out: &mut [u8]) -> Option<()> {
        let direction = &mut self.0;
        if segment.len() != out.len() {
            return None;
        }
        let number = direction.take_data_number()?;
        match direction.digest.mode {
            AeadMode::Encrypt => direction.cipher.open_into(number, &[], tag, (segment, out)),
            AeadMode::Integrity => {
                direction.cipher.open(number, segment, tag, &mut [])?;
                out.copy_from_slice(segment);
                Some(())
            }
        }
    }
}

/// The keys and counters of one direction of a connection.
#[derive(Debug)]
struct Direction {
    digest: AeadDigest,
    limits: GenerationLimits,
    /// The secret of the present generation.
    secret: Secret,
    cipher: Cipher,
    /// The number of the present PDU.
    pdu: u64,
    /// Whether a PDU has begun.
    begun: bool,
    /// How many PDUs and bytes the present generation has protected.
    used: GenerationLimits,
    /// Whether the data segment of the present PDU is still to come.
    expects_data: bool,
}

impl Direction {
    fn new(secret: Secret, digest: AeadDigest, limits: GenerationLimits) -> Self {
        let cipher = cipher(&secret, digest.algorithm);
        let used = GenerationLimits { pdus: 0, bytes: 0 };
        Self { digest, limits, secret, cipher, pdu: 0, begun: false, used, expects_data: false }
    }

    /// Begins the next PDU, with the next generation of keys if the present one is used up.
    fn begin_pdu(&mut self, len: PduLen) {
        if mem::replace(&mut self.begun, true) {
            self.pdu += 1;
        }
        if self.used.pdus >= self.limits.pdus || self.used.bytes >= self.limits.bytes {
            self.secret = self.secret.expand(UPDATE);
            self.cipher = cipher(&self.secret, self.digest.algorithm);
            self.used = GenerationLimits { pdus: 0, bytes: 0 };
        }
        self.used.pdus += 1;
        self.used.bytes += len.header + len.data;
        self.expects_data = len.data > 0;
    }

    /// Returns the record number of the data segment of the present PDU, once.
    fn take_data_number(&mut self) -> Option<u64> {
        mem::take(&mut self.expects_data).then_some(2 * self.pdu + 1)
    }

    fn seal(&self, number: u64, readable: usize, segment: &mut [u8]) -> Option<[u8; TAG_LEN]> {
        match self.digest.mode {
            AeadMode::Integrity => self.cipher.seal(number, segment, &mut []),
            AeadMode::Encrypt => {
                let (readable, content) = segment.split_at_mut_checked(readable)?;
                self.cipher.seal(number, readable, content)
            }
        }
    }

    fn open(&self, number: u64, readable: usize, segment: &mut [u8], tag: &[u8]) -> Option<()> {
        match self.digest.mode {
            AeadMode::Integrity => self.cipher.open(number, segment, tag, &mut []),
            AeadMode::Encrypt => {
                let (readable, content) = segment.split_at_mut_checked(readable)?;
                self.cipher.open(number, readable, tag, content)
            }
        }
    }
}

/// The lengths of the segments of a PDU, in bytes.
#[derive(Clone, Copy, Debug)]
struct PduLen {
    /// The header segment.
    header: u64,
    /// The data segment with its padding.
    data: u64,
}

/// Returns the lengths that a header segment states, if the segment itself has the length that it states.
fn pdu_len(header: &[u8]) -> Option<PduLen> {
    let bhs = Bhs::from_bytes(*header.first_chunk::<BHS_LEN>()?);
    let header_len = BHS_LEN + bhs.ahs_len();
    (header.len() == header_len).then_some(())?;
    let data = u64::from(bhs.data_len()).next_multiple_of(4);
    Some(PduLen { header: u64::try_from(header_len).ok()?, data })
}

fn cipher(secret: &Secret, algorithm: Algorithm) -> Cipher {
    Cipher::derive(algorithm, secret, "key", "iv")
}

/// The label of the secret of the next generation.
const UPDATE: &str = "update";

#[cfg(test)]
mod tests;
