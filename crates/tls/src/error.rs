//! Why there is no TLS connection.

use std::io;
use std::path::PathBuf;

use rustls::{CertificateError, Error, PeerIncompatible};

use crate::alert;

/// Why settings are refused, or a handshake failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        why: io::Error,
    },
    /// A file contains no certificate in PEM form.
    #[error("{} contains no certificate in PEM form", .0.display())]
    NoCertificate(PathBuf),
    /// A file contains no private key in PEM form.
    #[error("{} contains no private key in PEM form", .0.display())]
    NoKey(PathBuf),
    /// Others than the owner, or root and a group, may read the file of the private key.
    #[error("others than its owner may read {}, which contains a private key; chmod 600 it", .0.display())]
    KeyReadable(PathBuf),
    /// The certificate or the key cannot be used: they do not belong together, or their kind is unknown.
    #[error("the certificate in {} cannot be used with its key: {why}", path.display())]
    Unusable {
        /// The file of the certificate.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The name of the other end is neither a host name nor an address.
    #[error("\"{0}\" is neither a host name nor an IP address that a certificate could name")]
    Name(String),
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The handshake took longer than [`crate::HANDSHAKE_TIMEOUT`].
    #[error("the TLS handshake took too long")]
    Timeout,
    /// The other end closed the connection during the handshake.
    #[error("the other end closed the connection during the TLS handshake")]
    Closed,
    /// An initiator sent nothing before it closed the connection or time was over, as monitoring does that
    /// only looks whether a portal listens.
    #[error("the other end sent nothing")]
    Silent,
    /// The handshake failed.
    #[error("{}", explain(.0))]
    Handshake(Error),
    /// The other end sent an alert after the handshake was complete for this end.
    #[error("the other end ended the TLS connection with the alert {}", alert::describe(*.0))]
    Alert(u8),
}

/// Says that the other end refused this one, by an alert.
fn refused(alert: u8) -> String {
    format!("the other end refused the TLS handshake with the alert {}", alert::describe(alert))
}

/// Says why this end's certificate cannot be used with its key.
pub(crate) fn own_fault(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::Other(why)) => {
            format!("it {}", of_webpki(&why.to_string()))
        }
        Error::InconsistentKeys(_) => "the key belongs to another certificate".to_owned(),
        other => other.to_string(),
    }
}

/// Says what is wrong with a certificate for which rustls has no error of its own: webpki names it by a word.
fn of_webpki(word: &str) -> String {
    match word {
        "UnsupportedCertVersion" => {
            "has X.509 version 1; make one of version 3 (openssl x509 -req does so with -extfile)".to_owned()
        }
        "CaUsedAsEndEntity" => {
            "is that of an authority; make one for this end that the authority signs (CA:FALSE)".to_owned()
        }
        word => format!("is not acceptable: {word}"),
    }
}

/// Says what is wrong and, where this end can do something, what.
fn explain(error: &Error) -> String {
    let certificate = |what: &str| format!("the certificate of the other end {what}");
    match error {
        Error::InvalidCertificate(why) => match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => certificate("has expired"),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                certificate("is not valid yet")
            }
            CertificateError::UnknownIssuer => certificate("is not signed by a trusted authority"),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                certificate("is for another name than that of the host")
            }
            CertificateError::Revoked => certificate("is revoked"),
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                certificate("is not for this end of a connection (extendedKeyUsage)")
            }
            CertificateError::Other(why) => certificate(&of_webpki(&why.to_string())),
            other => certificate(&format!("is not acceptable: {other}")),
        },
        Error::NoCertificatesPresented => "the other end presented no certificate".to_owned(),
        Error::InvalidMessage(_) => "the other end does not speak TLS".to_owned(),
        Error::PeerIncompatible(
            PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls13RequiredForQuic
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled,
        ) => "the other end does not support TLS 1.3".to_owned(),
        Error::PeerIncompatible(_) => "the two ends have no TLS 1.3 parameters in common".to_owned(),
        Error::AlertReceived(alert) => refused(u8::from(*alert)),
        other => format!("the TLS handshake failed: {other}"),
    }
}
