//! How traffic can be protected, and how an initiator reaches the target through each protection.

use std::net::Ipv4Addr;

use iscsi::aead::{AeadDigest, AeadMode};
use security::aead::Algorithm;

use crate::bed::TARGET_ADDRESS;

/// How traffic is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Not at all.
    Plain,
    /// TLS 1.3.
    Tls,
    /// Records of AES-256-GCM that the storage protocol itself makes (AEAD digests), encrypted.
    AeadEncrypt,
    /// The same without encryption: the records are authenticated and stay readable.
    AeadIntegrity,
    /// The same as [`Self::AeadEncrypt`] for an initiator that has no digest: a proxy on its host has it.
    AeadProxy,
    /// IPsec ESP with AES-256-GCM.
    Ipsec,
    /// IPsec ESP with 3DES and HMAC-SHA-1, as the published measurements had it. Nobody should use it.
    Ipsec3Des,
}

/// The ports of the target: iSCSI in the clear, and iSCSI over TLS.
pub(super) const PORT: u16 = 3260;
pub(super) const TLS_PORT: u16 = 3261;

/// The port of the proxy on the loopback interface of the initiator's host.
pub(super) const PROXY_PORT: u16 = 3262;

/// The names of the two targets that export the disk: without a login, and with a password.
pub(super) const TARGET_NAME: &str = "iqn.2026-01.com.example:lab";
pub(super) const PASSWORD_TARGET_NAME: &str = "iqn.2026-01.com.example:lab-password";

/// The user whose password the second target knows.
pub(super) const USER: &str = "lab";

/// The addresses at the ends of a tunnel: the initiator's and the target's.
pub(super) type TunnelEnds = [Ipv4Addr; 2];

/// How an initiator reaches the target through a protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) address: Ipv4Addr,
    pub(super) port: u16,
    pub(super) target: &'static str,
    pub(super) user: Option<&'static str>,
    /// Keys of the URL. `{ca}` stands for the file with the target's certificate, `{password}` for the file
    /// with the user's password.
    pub(super) query: &'static str,
    /// The AEAD digests that the initiator offers. If there is one, a session without it fails.
    pub(super) digests: &'static [AeadDigest],
}

pub(super) const ENCRYPT: &[AeadDigest] =
    &[AeadDigest { algorithm: Algorithm::Aes256Gcm, mode: AeadMode::Encrypt }];
const INTEGRITY: &[AeadDigest] = &[AeadDigest { algorithm: Algorithm::Aes256Gcm, mode: AeadMode::Integrity }];

impl Protection {
    /// All protections, in the order of a report.
    pub const ALL: [Self; 7] = [
        Self::Plain,
        Self::Tls,
        Self::AeadEncrypt,
        Self::AeadIntegrity,
        Self::AeadProxy,
        Self::Ipsec,
        Self::Ipsec3Des,
    ];

    /// The protections of the built-in plans: without the proxy, which is for initiators of others.
    pub const STANDARD: [Self; 6] =
        [Self::Plain, Self::Tls, Self::AeadEncrypt, Self::AeadIntegrity, Self::Ipsec, Self::Ipsec3Des];

    /// Returns the name in plans and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Tls => "tls",
            Self::AeadEncrypt => "aead-encrypt",
            Self::AeadIntegrity => "aead-integrity",
            Self::AeadProxy => "aead-proxy",
            Self::Ipsec => "ipsec",
            Self::Ipsec3Des => "ipsec-3des",
        }
    }

    /// Returns the name in sentences and headings.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Tls => "TLS 1.3",
            Self::AeadEncrypt => "AEAD digest, encrypted",
            Self::AeadIntegrity => "AEAD digest, integrity only",
            Self::AeadProxy => "AEAD digest, encrypted by a proxy",
            Self::Ipsec => "IPsec",
            Self::Ipsec3Des => "IPsec, 3DES",
        }
    }

    pub(super) fn parse(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|protection| protection.name() == word);
        found.ok_or_else(|| format!("expected one of {}", Self::ALL.map(Self::name).join(", ")))
    }

    /// Returns whether an attacker on the path can neither read nor change anything, by the state of the art.
    pub(super) const fn is_advisable(self) -> bool {
        matches!(self, Self::Tls | Self::AeadEncrypt | Self::Ipsec)
    }

    /// Returns whether the protection is one of iSCSI alone.
    pub(super) const fn is_of_iscsi(self) -> bool {
        matches!(self, Self::AeadProxy)
    }

    /// Returns the addresses of the tunnel, if the protection is one.
    pub(super) const fn tunnel(self) -> Option<TunnelEnds> {
        match self {
            Self::Ipsec => Some([Ipv4Addr::new(10, 1, 0, 2), Ipv4Addr::new(10, 1, 0, 1)]),
            Self::Ipsec3Des => Some([Ipv4Addr::new(10, 2, 0, 2), Ipv4Addr::new(10, 2, 0, 1)]),
            Self::Plain | Self::Tls | Self::AeadEncrypt | Self::AeadIntegrity | Self::AeadProxy => None,
        }
    }

    /// Returns the address of the target's host through this protection.
    pub(super) fn target_address(self) -> Ipv4Addr {
        self.tunnel().map_or(TARGET_ADDRESS, |[_, target]| target)
    }

    /// Returns how an initiator logs in.
    pub(super) fn login(self) -> Login {
        let address = self.target_address();
        let open = Login { address, port: PORT, target: TARGET_NAME, user: None, query: "", digests: &[] };
        let with_password =
            |query, digests| Login { target: PASSWORD_TARGET_NAME, user: Some(USER), query, digests, ..open };
        match self {
            Self::Plain | Self::Ipsec | Self::Ipsec3Des => open,
            Self::Tls => Login { port: TLS_PORT, query: "tls_ca={ca}", ..open },
            Self::AeadEncrypt => {
                with_password("auth=opaque&protection=encrypt&password_file={password}", ENCRYPT)
            }
            Self::AeadIntegrity => {
                with_password("auth=opaque&protection=integrity&password_file={password}", INTEGRITY)
            }
            Self::AeadProxy => {
                Login { address: Ipv4Addr::LOCALHOST, port: PROXY_PORT, target: PASSWORD_TARGET_NAME, ..open }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_protection_has_its_own_name_and_path() {
        for (at, protection) in Protection::ALL.into_iter().enumerate() {
            assert_eq!(Protection::parse(protection.name()), Ok(protection));
            for other in Protection::ALL.iter().skip(at + 1) {
                assert_ne!(protection.title(), other.title());
                assert_ne!(protection.login(), other.login());
            }
        }
        assert!(Protection::parse("none").is_err());
    }
}
