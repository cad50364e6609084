//! Which requests reach the routes: those for a name of this host, with the token if there is one, and that
//! only read.

use std::net::IpAddr;

use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Method, Request, StatusCode};

use crate::config::{Http, HttpToken};

/// The rules for requests.
#[derive(Clone, Debug)]
pub struct Access {
    token: Option<HttpToken>,
    hosts: Vec<String>,
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The request names no host, several, or one that is not this one.
    Host,
    /// The method would change something.
    Method,
    /// The request has a body.
    Body,
    /// The token is missing.
    TokenMissing,
    /// The token is wrong.
    TokenWrong,
}

impl Rejection {
    /// Returns the status of the response.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Body => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TokenMissing | Self::TokenWrong => StatusCode::UNAUTHORIZED,
        }
    }

    /// Returns the body of the response.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Host => {
                "the Host field of the request must be an IP address, localhost, or a name in \"hosts\" of [http]\n"
            }
            Self::Method => "only GET and HEAD are served\n",
            Self::Body => "a request has no body here\n",
            Self::TokenMissing => "the request needs the token: Authorization: Bearer TOKEN\n",
            Self::TokenWrong => "the token is wrong\n",
        }
    }
}

impl Access {
    /// Takes the rules of a configuration.
    pub fn new(http: &Http) -> Self {
        Self { token: http.token.clone(), hosts: http.hosts.clone() }
    }

    /// Checks a request.
    ///
    /// # Errors
    /// [`Rejection`]
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), Rejection> {
        let authority = request.uri().authority().map(|authority| authority.as_str());
        let named = single(request.headers(), &HOST).and_then(|host| host.to_str().ok());
        if !named.is_some_and(|host| self.is_ours(host)) || !authority.is_none_or(|host| self.is_ours(host)) {
            return Err(Rejection::Host);
        }
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return Err(Rejection::Method);
        }
        let length = request.headers().get(CONTENT_LENGTH);
        if length.is_some_and(|length| length != "0") || request.headers().contains_key(TRANSFER_ENCODING) {
            return Err(Rejection::Body);
        }
        let Some(token) = &self.token else { return Ok(()) };
        let given = single(request.headers(), &AUTHORIZATION).ok_or(Rejection::TokenMissing)?;
        let given = bearer(given.as_bytes()).ok_or(Rejection::TokenMissing)?;
        if token.matches(given) { Ok(()) } else { Err(Rejection::TokenWrong) }
    }

    /// Returns whether a `Host` field names this host. An attacker can give a name of his own the address of
    /// this host, so that the browser of a visitor sends requests here (DNS rebinding); an address in the
    /// field is none of such names.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => {
                let Some((ip, port)) = rest.split_once(']') else { return false };
                return matches!(ip.parse(), Ok(IpAddr::V6(_))) && (port.is_empty() || is_port(port));
            }
            None => match host.split_once(':') {
                Some((name, _)) if !is_port(host.get(name.len()..).unwrap_or_default()) => return false,
                Some((name, _)) => name,
                None => host,
            },
        };
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        matches!(name.parse(), Ok(IpAddr::V4(_))) || name == "localhost" || self.hosts.contains(&name)
    }
}

/// Returns whether the text is a colon and a port.
fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Returns the value of a field that is there exactly once.
fn single<'h>(headers: &'h HeaderMap, name: &axum::http::HeaderName) -> Option<&'h axum::http::HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// Returns the token of an `Authorization` field with the scheme `Bearer` (RFC 6750 §2.1).
fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = field.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}
