//! Which requests reach the routes: those for a name of this host, from a client whose token allows them, and
//! that no web page of another site made a browser send.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, ORIGIN, TRANSFER_ENCODING};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};

use crate::config::{Http, HttpRole, HttpTokens};
use security::guess_limit::{Account, GuessLimiter, SharedGuessLimit};

/// The longest time that a request waits before its token is looked at. It waits once, right or wrong:
/// meanwhile it holds one of the few connections, which bound how fast tokens can be tried, and the owner of
/// a right token is served in the end. If a right token were answered sooner than a wrong one, the delay
/// would show it.
const DELAY_MAX: Duration = Duration::from_secs(4);

/// The field in which a browser tells which site made it send a request (Fetch Metadata).
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What requests for a path do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// They load what is part of the program, such as the page, and nothing of what this daemon serves.
    Public,
    /// They read.
    Read,
    /// They change something.
    Change,
}

/// The rules for requests.
#[derive(Debug)]
pub struct Access {
    tokens: Option<HttpTokens>,
    hosts: Vec<String>,
    scheme: &'static str,
    /// The limit on guesses of tokens, and the origin of its time if it is this server's own.
    guesses: GuessLimiter,
    began: Instant,
}

/// Who sent a request that is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The name of the client's token, if it sent one.
    pub token: Option<String>,
    /// The client's address.
    pub address: IpAddr,
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The request names no host, several, or one that is not this one.
    Host,
    /// The method is not that of the path.
    Method(&'static str),
    /// The request has a body.
    Body,
    /// The body of a change is not JSON.
    MediaType,
    /// A web page of another site made a browser send the request.
    OtherSite,
    /// The token is missing.
    TokenMissing,
    /// The token is wrong.
    TokenWrong,
    /// The token does not allow changes.
    Role,
    /// No token allows changes.
    NoChanges,
}

impl Rejection {
    /// Returns the status of the response.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Body => StatusCode::PAYLOAD_TOO_LARGE,
            Self::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TokenMissing | Self::TokenWrong => StatusCode::UNAUTHORIZED,
            Self::OtherSite | Self::Role | Self::NoChanges => StatusCode::FORBIDDEN,
        }
    }

    /// Returns the body of the response.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Host => {
                "the Host field of the request must be an IP address, localhost, or a name in \"hosts\" of [http]\n"
            }
            Self::Method(READ_METHODS) => "only GET and HEAD are served here\n",
            Self::Method(_) => "only POST is served here\n",
            Self::Body => "a request has no body here\n",
            Self::MediaType => "the request needs Content-Type: application/json\n",
            Self::OtherSite => "a web page of another site may not change anything here\n",
            Self::TokenMissing => "the request needs a token: Authorization: Bearer TOKEN\n",
            Self::TokenWrong => "the token is wrong\n",
            Self::Role => "the token has the role read; changes need the role admin\n",
            Self::NoChanges => "changes need a token with the role admin in the \"token_file\" of [http]\n",
        }
    }
}

/// The methods of a path that is read.
const READ_METHODS: &str = "GET, HEAD";

impl Access {
    /// Takes the rules of a configuration.
    pub fn new(http: &Http) -> Self {
        let scheme = if http.tls.is_some() { "https" } else { "http" };
        let (tokens, hosts) = (http.tokens.clone(), http.hosts.clone());
        Self { tokens, hosts, scheme, guesses: GuessLimiter::default(), began: Instant::now() }
    }

    /// Takes the rules of another configuration. Wrong tokens stay counted.
    pub fn change(&mut self, http: &Http) {
        let guesses = std::mem::take(&mut self.guesses);
        *self = Self { guesses, began: self.began, ..Self::new(http) };
    }

    /// Uses a limit on guesses that others use too.
    #[must_use]
    pub fn sharing(self, shared: Arc<dyn SharedGuessLimit>) -> Self {
        Self { guesses: GuessLimiter::Shared(shared), ..self }
    }

    /// Returns how long a request with a token waits before [`Self::check`], because clients of its address
    /// have guessed tokens.
    pub fn delay<B>(&mut self, request: &Request<B>, address: IpAddr, now: Instant) -> Option<Duration> {
        let has_token = self.tokens.is_some() && request.headers().contains_key(AUTHORIZATION);
        if !has_token {
            return None;
        }
        let now = now.saturating_duration_since(self.began);
        let wait = self
            .guesses
            .with(now, |limit, now| limit.wait(now, Duration::ZERO, &Account::of_http_tokens(), address));
        wait.filter(|wait| !wait.is_zero()).map(|wait| wait.min(DELAY_MAX))
    }

    /// Returns whether the requests of a caller keep its connection. Where tokens are configured, a request
    /// without one loads only what anybody can load.
    pub const fn keeps_connection(&self, caller: &Caller) -> bool {
        caller.token.is_some() || self.tokens.is_none()
    }

    /// Checks a request of a client at an address.
    ///
    /// # Errors
    /// [`Rejection`]
    pub fn check<B>(
        &mut self,
        request: &Request<B>,
        purpose: Purpose,
        address: IpAddr,
        now: Instant,
    ) -> Result<Caller, Rejection> {
        let authority = request.uri().authority().map(|authority| authority.as_str());
        let headers = request.headers();
        let host = single(headers, &HOST).and_then(|host| host.to_str().ok());
        let host = host.filter(|host| self.is_ours(host)).ok_or(Rejection::Host)?;
        if !authority.is_none_or(|host| self.is_ours(host)) {
            return Err(Rejection::Host);
        }
        match purpose {
            Purpose::Public | Purpose::Read => check_reading(request)?,
            Purpose::Change => self.check_changing(request, host)?,
        }
        let token = match purpose {
            Purpose::Public => None,
            Purpose::Read | Purpose::Change => self.check_token(headers, purpose, address, now)?,
        };
        Ok(Caller { token, address })
    }

    /// Checks that a change comes from a program, or from our own page. A browser sends `Authorization` to
    /// another site only if that site allows it, which this server never does; this is the second lock.
    fn check_changing<B>(&self, request: &Request<B>, host: &str) -> Result<(), Rejection> {
        if request.method() != Method::POST {
            return Err(Rejection::Method("POST"));
        }
        let headers = request.headers();
        let origin = format!("{}://{host}", self.scheme);
        let is_ours = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(origin.as_bytes());
        let is_same_site = |value: &HeaderValue| matches!(value.as_bytes(), b"same-origin" | b"none");
        if !headers.get_all(ORIGIN).iter().all(is_ours)
            || !headers.get_all(SEC_FETCH_SITE).iter().all(is_same_site)
        {
            return Err(Rejection::OtherSite);
        }
        let media = single(headers, &CONTENT_TYPE).and_then(|media| media.to_str().ok()).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim();
        if media.eq_ignore_ascii_case("application/json") { Ok(()) } else { Err(Rejection::MediaType) }
    }

    /// Checks the token of a request; returns its name.
    fn check_token(
        &mut self,
        headers: &HeaderMap,
        purpose: Purpose,
        address: IpAddr,
        now: Instant,
    ) -> Result<Option<String>, Rejection> {
        let Some(tokens) = &self.tokens else {
            return if purpose == Purpose::Change { Err(Rejection::NoChanges) } else { Ok(None) };
        };
        let given = single(headers, &AUTHORIZATION).ok_or(Rejection::TokenMissing)?;
        let given = bearer(given.as_bytes()).ok_or(Rejection::TokenMissing)?;
        let token = tokens.find(given);
        let now = now.saturating_duration_since(self.began);
        self.guesses.with(now, |limit, now| {
            let permit = limit.begin_late(now, &Account::of_http_tokens(), address);
            match token {
                Some(_) => limit.right(now, permit),
                None => limit.wrong(now, &permit),
            }
        });
        let token = token.ok_or(Rejection::TokenWrong)?;
        match purpose {
            Purpose::Change if token.role < HttpRole::Admin => {
                Err(if tokens.has(HttpRole::Admin) { Rejection::Role } else { Rejection::NoChanges })
            }
            _ => Ok(Some(token.name.clone())),
        }
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

/// Checks a request that only reads.
fn check_reading<B>(request: &Request<B>) -> Result<(), Rejection> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return Err(Rejection::Method(READ_METHODS));
    }
    let length = request.headers().get(CONTENT_LENGTH);
    if length.is_some_and(|length| length != "0") || request.headers().contains_key(TRANSFER_ENCODING) {
        return Err(Rejection::Body);
    }
    Ok(())
}

/// Returns whether the text is a colon and a port.
fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Returns the value of a field that is there exactly once.
fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// Returns the token of an `Authorization` field with the scheme `Bearer` (RFC 6750 §2.1).
fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = field.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}
