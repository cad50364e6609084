//! Secrets and what follows from them: HKDF (RFC 5869) with SHA-512. Each protocol has a name, and each
//! purpose a label; HKDF's `info` is the name and then the label.

use core::fmt;

use hkdf::Hkdf;
use sha2::Sha512;
use zeroize::{Zeroize, Zeroizing};

/// The length of a secret, in bytes: that of a SHA-512 hash.
pub const SECRET_LEN: usize = 64;

/// A secret from which keys and further secrets are derived. Dropping it erases it.
#[derive(Clone)]
pub struct Secret {
    protocol: &'static str,
    bytes: Zeroizing<[u8; SECRET_LEN]>,
}

impl Secret {
    /// Extracts a secret (RFC 5869 §2.2) from `input`, which is as hard to guess as a key. All labels derived
    /// from it begin with `protocol`.
    pub fn extract(protocol: &'static str, salt: &[u8], input: &[u8]) -> Self {
        let (mut prk, _) = Hkdf::<Sha512>::extract(Some(salt), input);
        let mut bytes = Zeroizing::new([0; SECRET_LEN]);
        for (to, from) in bytes.iter_mut().zip(&prk) {
            *to = *from;
        }
        prk.as_mut_slice().zeroize();
        Self { protocol, bytes }
    }

    /// Returns the secret with the bytes that [`Self::secret_bytes`] returned, in this process or in the one
    /// that handed its sessions over to it.
    pub const fn from_secret_bytes(protocol: &'static str, bytes: Zeroizing<[u8; SECRET_LEN]>) -> Self {
        Self { protocol, bytes }
    }

    /// Returns the secret that follows from this one for `label`.
    #[must_use]
    pub fn expand(&self, label: &str) -> Self {
        Self { protocol: self.protocol, bytes: self.derive(label) }
    }

    /// Returns the `N` bytes that follow from this secret for `label` (RFC 5869 §2.3).
    #[allow(clippy::expect_used, reason = "64 bytes are enough for a PRK, and few enough to expand")]
    pub fn derive<const N: usize>(&self, label: &str) -> Zeroizing<[u8; N]> {
        const { assert!(N <= SECRET_LEN) }
        let mut out = Zeroizing::new([0; N]);
        let hkdf = Hkdf::<Sha512>::from_prk(&*self.bytes).expect("64 bytes");
        hkdf.expand_multi_info(&[self.protocol.as_bytes(), label.as_bytes()], &mut *out)
            .expect("64 bytes at most");
        out
    }

    /// Returns the bytes of the secret. They must never be displayed.
    pub fn secret_bytes(&self) -> &[u8; SECRET_LEN] {
        &self.bytes
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_protocols_salts_and_inputs_give_different_bytes() {
        let first = *Secret::extract("a ", b"salt", b"input").derive::<32>("label");
        for (protocol, salt, input, label) in [
            ("b ", "salt", "input", "label"),
            ("a ", "sale", "input", "label"),
            ("a ", "salt", "inputs", "label"),
            ("a ", "salt", "input", "labels"),
        ] {
            let other = Secret::extract(protocol, salt.as_bytes(), input.as_bytes());
            assert_ne!(*other.derive::<32>(label), first, "{protocol} {salt} {input} {label}");
        }
        assert_eq!(alloc::format!("{:?}", Secret::extract("a ", b"", b"")), "Secret(…)");
    }

    #[test]
    fn the_bytes_of_a_secret_make_the_same_secret() {
        let secret = Secret::extract("a ", b"salt", b"input").expand("next");
        let again = Secret::from_secret_bytes("a ", Zeroizing::new(*secret.secret_bytes()));
        assert_eq!(*again.derive::<32>("label"), *secret.derive::<32>("label"));
        assert_eq!(again.expand("next").secret_bytes(), secret.expand("next").secret_bytes());
    }
}
