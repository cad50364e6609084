//! The keys of TLS 1.3 records in one direction (RFC 8446 §5.2, §5.3, and §7.1 to §7.3), by AWS-LC.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use aws_lc_rs::hkdf::{self, KeyType, Prk};
use rustls::ConnectionTrafficSecrets;
use zeroize::Zeroizing;

/// The length of the header of a record: its type, a version, and the length of what follows.
pub(crate) const HEADER_LEN: usize = 5;

/// The longest content of a record.
pub(crate) const PLAIN_LEN_MAX: usize = 1 << 14;

/// The longest protected content of a record, without its header.
pub(crate) const SEALED_LEN_MAX: usize = PLAIN_LEN_MAX + 256;

/// The content types of records (RFC 8446 §B.1).
pub(crate) const CHANGE_CIPHER_SPEC: u8 = 20;
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

/// The highest sequence number that is used: no connection lasts that long.
pub(crate) const SEQUENCE_MAX: u64 = u64::MAX - 0xffff;

const TAG_LEN: usize = 16;
const IV_LEN: usize = 12;

/// A traffic secret, or what follows from one.
pub(crate) type Secret = Zeroizing<Vec<u8>>;

/// A cipher suite of TLS 1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suite {
    Aes128GcmSha256,
    Aes256GcmSha384,
    Chacha20Poly1305Sha256,
}

impl Suite {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 3] =
        [Self::Aes128GcmSha256, Self::Aes256GcmSha384, Self::Chacha20Poly1305Sha256];

    /// Returns the number that the suite has in TLS.
    pub(crate) const fn code(self) -> u16 {
        match self {
            Self::Aes128GcmSha256 => 0x1301,
            Self::Aes256GcmSha384 => 0x1302,
            Self::Chacha20Poly1305Sha256 => 0x1303,
        }
    }

    /// Returns the suite with this number.
    pub(crate) const fn by_code(code: u16) -> Option<Self> {
        match code {
            0x1301 => Some(Self::Aes128GcmSha256),
            0x1302 => Some(Self::Aes256GcmSha384),
            0x1303 => Some(Self::Chacha20Poly1305Sha256),
            _ => None,
        }
    }

    /// Returns the length of a traffic secret: that of the hash.
    pub(crate) const fn secret_len(self) -> usize {
        match self {
            Self::Aes128GcmSha256 | Self::Chacha20Poly1305Sha256 => 32,
            Self::Aes256GcmSha384 => 48,
        }
    }

    /// Returns how many records may be sealed with one key (RFC 8446 §5.5).
    pub(crate) const fn records_max(self) -> u64 {
        match self {
            // 2^24.5.
            Self::Aes128GcmSha256 | Self::Aes256GcmSha384 => 1 << 24,
            Self::Chacha20Poly1305Sha256 => SEQUENCE_MAX,
        }
    }

    const fn aead(self) -> &'static Algorithm {
        match self {
            Self::Aes128GcmSha256 => &AES_128_GCM,
            Self::Aes256GcmSha384 => &AES_256_GCM,
            Self::Chacha20Poly1305Sha256 => &CHACHA20_POLY1305,
        }
    }

    const fn hkdf(self) -> hkdf::Algorithm {
        match self {
            Self::Aes128GcmSha256 | Self::Chacha20Poly1305Sha256 => hkdf::HKDF_SHA256,
            Self::Aes256GcmSha384 => hkdf::HKDF_SHA384,
        }
    }
}

/// One direction of a connection: the secret, the keys that follow from it, and the number of the next
/// record.
pub(crate) struct Direction {
    suite: Suite,
    secret: Zeroizing<Vec<u8>>,
    key: LessSafeKey,
    iv: Zeroizing<Vec<u8>>,
    sequence: u64,
}

impl Direction {
    /// Returns `None` if the secret has not the length of those of the suite.
    pub(crate) fn new(suite: Suite, secret: Zeroizing<Vec<u8>>, sequence: u64) -> Option<Self> {
        if secret.len() != suite.secret_len() || sequence > SEQUENCE_MAX {
            return None;
        }
        let (key, iv) = key_and_iv(suite, &secret)?;
        let key = LessSafeKey::new(UnboundKey::new(suite.aead(), &key).ok()?);
        Some(Self { suite, secret, key, iv, sequence })
    }

    pub(crate) const fn suite(&self) -> Suite {
        self.suite
    }

    pub(crate) fn secret(&self) -> &Zeroizing<Vec<u8>> {
        &self.secret
    }

    pub(crate) const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns whether no record but one that changes the keys may be sealed before they are changed.
    pub(crate) const fn is_worn(&self) -> bool {
        self.sequence >= self.suite.records_max()
    }

    /// Returns whether another implementation has derived the same keys.
    pub(crate) fn has_keys_of(&self, other: &ConnectionTrafficSecrets) -> bool {
        use ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
        let (suite, key, iv) = match other {
            Aes128Gcm { key, iv } => (Suite::Aes128GcmSha256, key, iv),
            Aes256Gcm { key, iv } => (Suite::Aes256GcmSha384, key, iv),
            Chacha20Poly1305 { key, iv } => (Suite::Chacha20Poly1305Sha256, key, iv),
            _ => return false,
        };
        // Both are secrets of this process, so the time of the comparison tells nobody anything.
        let own = key_and_iv(self.suite, &self.secret);
        suite == self.suite
            && own.is_some_and(|(own, own_iv)| **own == *key.as_ref() && **own_iv == *iv.as_ref())
    }

    /// Appends a record to `out`. The content has [`PLAIN_LEN_MAX`] bytes at most. Returns `None`, and seals
    /// nothing, if it is longer or no number is left.
    pub(crate) fn seal(&mut self, kind: u8, content: &[u8], out: &mut Vec<u8>) -> Option<()> {
        if content.len() > PLAIN_LEN_MAX || self.sequence > SEQUENCE_MAX {
            return None;
        }
        let len = u16::try_from(content.len() + 1 + TAG_LEN).ok()?;
        let header = header(len);
        let begin = out.len();
        // A vector that grows would leave a copy of the content behind.
        out.reserve(HEADER_LEN + content.len() + 1 + TAG_LEN);
        out.extend_from_slice(&header);
        out.extend_from_slice(content);
        out.push(kind);
        let nonce = self.nonce()?;
        let inner = out.get_mut(begin + HEADER_LEN..)?;
        match self.key.seal_in_place_separate_tag(nonce, Aad::from(header), inner) {
            Ok(tag) => out.extend_from_slice(tag.as_ref()),
            Err(_) => {
                out.truncate(begin);
                return None;
            }
        }
        self.sequence += 1;
        Some(())
    }

    /// Opens the protected part of a record in place. Returns what it protects: the content, its type, and
    /// padding. Returns `None` if the record is not authentic.
    pub(crate) fn open<'a>(&mut self, sealed: &'a mut [u8]) -> Option<&'a mut [u8]> {
        if self.sequence > SEQUENCE_MAX {
            return None;
        }
        let header = header(u16::try_from(sealed.len()).ok()?);
        let nonce = self.nonce()?;
        let inner = self.key.open_in_place(nonce, Aad::from(header), sealed).ok()?;
        self.sequence += 1;
        Some(inner)
    }

    /// Changes to the secret and the keys of the next generation (RFC 8446 §7.2).
    pub(crate) fn change_keys(&mut self) -> Option<()> {
        let mut next = Zeroizing::new(vec![0; self.suite.secret_len()]);
        expand_label(self.suite, &self.secret, b"tls13 traffic upd", &mut next)?;
        *self = Self::new(self.suite, next, 0)?;
        Some(())
    }

    fn nonce(&self) -> Option<Nonce> {
        let mut nonce: [u8; IV_LEN] = self.iv.as_slice().try_into().ok()?;
        for (byte, number) in nonce.iter_mut().rev().zip(self.sequence.to_be_bytes().iter().rev()) {
            *byte ^= number;
        }
        Some(Nonce::assume_unique_for_key(nonce))
    }
}

/// Returns the header of a record with so many protected bytes. A receiver ignores the version of others.
const fn header(len: u16) -> [u8; HEADER_LEN] {
    let [high, low] = len.to_be_bytes();
    [APPLICATION_DATA, 3, 3, high, low]
}

/// Returns the write key and the write IV of a traffic secret.
fn key_and_iv(suite: Suite, secret: &[u8]) -> Option<(Secret, Secret)> {
    let mut key = Zeroizing::new(vec![0; suite.aead().key_len()]);
    let mut iv = Zeroizing::new(vec![0; IV_LEN]);
    expand_label(suite, secret, b"tls13 key", &mut key)?;
    expand_label(suite, secret, b"tls13 iv", &mut iv)?;
    Some((key, iv))
}

/// HKDF-Expand-Label with an empty context.
fn expand_label(suite: Suite, secret: &[u8], label: &[u8], out: &mut [u8]) -> Option<()> {
    struct Len(usize);

    impl KeyType for Len {
        fn len(&self) -> usize {
            self.0
        }
    }

    let len = u16::try_from(out.len()).ok()?.to_be_bytes();
    let label_len = [u8::try_from(label.len()).ok()?];
    let info = [&len[..], &label_len, label, &[0]];
    let key = Prk::new_less_safe(suite.hkdf(), secret);
    let expanded = key.expand(&info, Len(out.len())).ok()?;
    expanded.fill(out).ok()
}
