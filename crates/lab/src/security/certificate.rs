//! A certificate that signs itself (RFC 5280), for a target that lives as long as an experiment.

use std::net::Ipv4Addr;

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};

/// A certificate and its private key, each in PEM form.
#[derive(Clone)]
pub(super) struct SelfSigned {
    pub(super) certificate: String,
    pub(super) key: String,
}

impl SelfSigned {
    /// Makes a key on P-256 and a certificate for an address. The certificate is valid until 2049: its key is
    /// removed with the experiment.
    pub(super) fn create(address: Ipv4Addr) -> Result<Self, Unspecified> {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random)?;
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref())
            .map_err(|_| Unspecified)?;
        let content = certificate_content(pair.public_key().as_ref(), address);
        let signature = pair.sign(&random, &content)?;
        let certificate = sequence(&[&content, &signature_algorithm(), &bit_string(signature.as_ref())]);
        Ok(Self { certificate: pem("CERTIFICATE", &certificate), key: pem("PRIVATE KEY", pkcs8.as_ref()) })
    }
}

impl std::fmt::Debug for SelfSigned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SelfSigned(…)")
    }
}

// Tags of ASN.1 (X.690 §8).
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// The alternative `iPAddress` of a general name.
const IP_ADDRESS: u8 = 0x87;

const ECDSA_WITH_SHA256: [u8; 8] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const EC_PUBLIC_KEY: [u8; 7] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const PRIME256V1: [u8; 8] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const COMMON_NAME: [u8; 3] = [0x55, 4, 3];
const SUBJECT_ALT_NAME: [u8; 3] = [0x55, 0x1d, 0x11];

const NOT_BEFORE: &[u8] = b"250101000000Z";
const NOT_AFTER: &[u8] = b"491231235959Z";

/// Returns what is signed (`TBSCertificate`).
fn certificate_content(public_key: &[u8], address: Ipv4Addr) -> Vec<u8> {
    let common_name = [tlv(OBJECT_IDENTIFIER, &COMMON_NAME), tlv(UTF8_STRING, b"targe lab")].concat();
    let name = sequence(&[&tlv(SET, &tlv(SEQUENCE, &common_name))]);
    let validity = sequence(&[&tlv(UTC_TIME, NOT_BEFORE), &tlv(UTC_TIME, NOT_AFTER)]);
    let algorithm =
        sequence(&[&tlv(OBJECT_IDENTIFIER, &EC_PUBLIC_KEY), &tlv(OBJECT_IDENTIFIER, &PRIME256V1)]);
    let names = sequence(&[&tlv(IP_ADDRESS, &address.octets())]);
    let extension = sequence(&[&tlv(OBJECT_IDENTIFIER, &SUBJECT_ALT_NAME), &tlv(OCTET_STRING, &names)]);
    sequence(&[
        &tlv(VERSION, &tlv(INTEGER, &[2])),
        &tlv(INTEGER, &[1]),
        &signature_algorithm(),
        &name,
        &validity,
        &name,
        &sequence(&[&algorithm, &bit_string(public_key)]),
        &tlv(EXTENSIONS, &sequence(&[&extension])),
    ])
}

fn signature_algorithm() -> Vec<u8> {
    sequence(&[&tlv(OBJECT_IDENTIFIER, &ECDSA_WITH_SHA256)])
}

fn bit_string(bytes: &[u8]) -> Vec<u8> {
    // No bit of the last byte is unused.
    tlv(BIT_STRING, &[&[0], bytes].concat())
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    tlv(SEQUENCE, &parts.concat())
}

/// Returns a value with its tag and its length in the shortest form. A certificate has less than 64 KiB.
fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).unwrap_or(u16::MAX).to_be_bytes();
    let header = match (high, low) {
        (0, 0..0x80) => vec![tag, low],
        (0, _) => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    [header.as_slice(), content].concat()
}

/// Returns bytes in the textual encoding of RFC 7468.
fn pem(label: &str, bytes: &[u8]) -> String {
    let text = base64(bytes);
    let mut lines = format!("-----BEGIN {label}-----\n");
    for (at, letter) in text.chars().enumerate() {
        if at > 0 && at.is_multiple_of(LINE_LEN) {
            lines.push('\n');
        }
        lines.push(letter);
    }
    lines + &format!("\n-----END {label}-----\n")
}

const LINE_LEN: usize = 64;

fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0_u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let digit = usize::try_from(group >> (18 - 6 * at) & 63).unwrap_or(0);
            let letter = BASE64.get(digit).copied().unwrap_or(b'=');
            text.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::target_process::PrivateDirectory;

    #[test]
    fn a_client_that_trusts_the_certificate_accepts_its_address_and_no_other() {
        let directory = PrivateDirectory::create().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        let [ours, other] = [0; 2].map(|_| SelfSigned::create(Ipv4Addr::LOCALHOST).unwrap());
        let (certificate, key) = (write("a.crt", &ours.certificate), write("a.key", &ours.key));
        let stranger = write("b.crt", &other.certificate);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = tls::ServerSettings::read(&certificate, &key, None).unwrap();
        let _portal = tls::Portal::start(listener, server, Arc::new(drop)).unwrap();
        for (trusted, name, is_accepted) in [
            (&certificate, "127.0.0.1", true),
            (&certificate, "127.0.0.2", false),
            (&stranger, "127.0.0.1", false),
        ] {
            let client = tls::ClientSettings::read(Some(trusted), None).unwrap();
            let made = tls::connect(address, name, &client, Duration::from_secs(60), drop);
            assert_eq!(made.is_ok(), is_accepted, "{name}: {made:?}");
        }
    }

    #[test]
    fn base64_is_that_of_the_standard() {
        // RFC 4648 §10.
        for (plain, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), text);
        }
    }

    #[test]
    fn lengths_have_the_shortest_form() {
        assert_eq!(tlv(4, &[7; 2]), [4, 2, 7, 7]);
        assert_eq!(tlv(4, &[7; 200])[..3], [4, 0x81, 200]);
        assert_eq!(tlv(4, &[7; 300])[..4], [4, 0x82, 1, 44]);
    }
}
