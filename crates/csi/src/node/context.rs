//! What the controller hands to the node of a publication, checked before anything of it becomes an argument
//! of a program or a part of a path or URL.

use std::collections::BTreeMap;

use crate::error::{CsiError, CsiResult};
use crate::protection::Protection;
use crate::publish::{self, context};

/// The most characters of a token.
const TOKEN_LEN_MAX: usize = 128;
/// The longest name of a host.
const HOST_LEN_MAX: usize = 255;
/// How many digits a world-wide name has: NAA 3h and 5h, and NAA 6h.
const NAA_LENS: [usize; 2] = [16, 32];

/// A publish context.
#[derive(Debug)]
pub(super) struct PublishContext {
    pub(super) portal: String,
    pub(super) target: String,
    pub(super) naa: String,
    pub(super) user: String,
    pub(super) secret: String,
    pub(super) read_only: bool,
    /// None with an older controller.
    pub(super) protection: Protection,
    /// Empty with an older controller.
    pub(super) publication: String,
}

impl PublishContext {
    /// Reads a publish context, and the secrets of the call.
    ///
    /// # Errors
    /// Something is missing, or is not what it should be.
    pub(super) fn read(
        published: &BTreeMap<String, String>,
        secrets: &BTreeMap<String, String>,
    ) -> CsiResult<Self> {
        let value = |key: &str| published.get(key).map_or("", String::as_str);
        let read = |key: &str, is_valid: fn(&str) -> bool| match value(key) {
            "" => Err(CsiError::invalid(format!("the publish context has no {key}"))),
            text if is_valid(text) => Ok(text.to_owned()),
            _ => Err(CsiError::invalid(format!("{key} of the publish context is not valid"))),
        };
        let secret = match (secrets.get(publish::SECRET_PASSWORD), published.get(context::SECRET)) {
            (Some(secret), _) | (None, Some(secret)) => publish::password(secret)?.to_owned(),
            (None, None) => {
                return Err(CsiError::invalid(
                    "neither a secret nor the publish context has the CHAP secret",
                ));
            }
        };
        let portals = read(context::PORTALS, |text| text.split(',').all(is_portal))?;
        Ok(Self {
            portal: portals.split(',').next().unwrap_or_default().to_owned(),
            target: read(context::TARGET, |text| publish::initiator_name(text).is_some())?,
            naa: read(context::NAA, is_naa)?,
            user: read(context::USER, publish::is_user)?,
            secret,
            read_only: match value(context::READ_ONLY) {
                "" | "false" => false,
                "true" => true,
                _ => {
                    let key = context::READ_ONLY;
                    return Err(CsiError::invalid(format!("{key} of the publish context is not valid")));
                }
            },
            protection: match value(context::PROTECTION) {
                "" => Protection::None,
                name => Protection::by_name(name).ok_or_else(|| {
                    let key = context::PROTECTION;
                    CsiError::invalid(format!("{key} of the publish context is not valid"))
                })?,
            },
            publication: match value(context::TOKEN) {
                "" => String::new(),
                _ => read(context::TOKEN, is_token)?,
            },
        })
    }
}

/// Returns whether a text is `HOST[:PORT]`, with an IPv6 address in brackets.
fn is_portal(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => {
            let (address, zone) = address.split_once('%').unwrap_or((address, "0"));
            let is_plain = |byte: u8| byte.is_ascii_hexdigit() || b":.".contains(&byte);
            (address.bytes().all(is_plain) && is_name(zone) && !address.is_empty(), port)
        }
        None => match text.split_once(':') {
            Some((host, _)) => (is_name(host), text.get(host.len()..).unwrap_or_default()),
            None => (is_name(text), ""),
        },
    };
    let is_port = |port: &str| {
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        digits && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    host && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

/// Returns whether a text is the name of a host or interface, and no option of a program.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text.len() <= HOST_LEN_MAX
        && text.bytes().all(is_plain)
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
}

fn is_naa(text: &str) -> bool {
    NAA_LENS.contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn is_token(text: &str) -> bool {
    text.len() <= TOKEN_LEN_MAX && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: [(&str, &str); 8] = [
        (context::PORTALS, "san:3260,[fe80::1%eth0]:3260"),
        (context::TARGET, "iqn.2026-11.example:csi:v-15f136e330e8165b416a4888c47275ef"),
        (context::NAA, "315f136e330e8165"),
        (context::USER, "v-15f136e330e8165b416a4888c47275ef"),
        (context::SECRET, "correct horse battery"),
        (context::TOKEN, "0123456789abcdef"),
        (context::READ_ONLY, "true"),
        (context::PROTECTION, "encrypt"),
    ];

    fn with(changed: &str, value: &str) -> CsiResult<PublishContext> {
        let mut published: BTreeMap<String, String> =
            VALID.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        published.insert(changed.to_owned(), value.to_owned());
        PublishContext::read(&published, &BTreeMap::new())
    }

    #[test]
    fn what_a_controller_sends_is_taken() {
        let read = with("unknown", "").unwrap();
        assert_eq!((read.portal.as_str(), read.read_only), ("san:3260", true));
        assert_eq!(with(context::TOKEN, "").unwrap().publication, "");
        assert!(!with(context::READ_ONLY, "").unwrap().read_only);
        assert_eq!(read.protection, Protection::Encrypt);
        // An older controller.
        assert_eq!(with(context::PROTECTION, "").unwrap().protection, Protection::None);
        for portal in ["192.0.2.7", "192.0.2.7:3260", "[2001:db8::7]", "[fe80::a%2]:1", "a_b.example"] {
            assert_eq!(with(context::PORTALS, portal).unwrap().portal, portal);
        }
    }

    #[test]
    fn options_and_parts_of_urls_are_no_names() {
        for (key, value) in [
            (context::PORTALS, ""),
            (context::PORTALS, "-x"),
            (context::PORTALS, "san:3260,"),
            (context::PORTALS, "san:3260,--help"),
            (context::PORTALS, "san:0"),
            (context::PORTALS, "san:65536"),
            (context::PORTALS, "san:+1"),
            (context::PORTALS, "san:3260/x"),
            (context::PORTALS, "me@san"),
            (context::PORTALS, "[::1"),
            (context::PORTALS, "[]:3260"),
            (context::PORTALS, "[::1]3260"),
            (context::PORTALS, "[::1%-x]"),
            (context::TARGET, "--help"),
            (context::TARGET, "iqn.2026-11.example:../../x"),
            (context::TARGET, "iqn.2026-11.example:a?password_file=/etc/shadow"),
            (context::NAA, "315f136e330e816"),
            (context::NAA, "315F136E330E8165"),
            (context::NAA, "../../../../etc/"),
            (context::USER, "-v"),
            (context::USER, "me@other/iqn.2026-11.example:x/0?a"),
            (context::USER, "me%secret"),
            (context::SECRET, "short"),
            (context::SECRET, "correct\nhorse battery"),
            (context::TOKEN, "../x"),
            (context::READ_ONLY, "yes"),
            (context::PROTECTION, "encrypt&protection=none"),
        ] {
            let error = with(key, value).unwrap_err();
            assert_eq!(error.code, tonic::Code::InvalidArgument, "{key} {value}");
        }
    }
}
