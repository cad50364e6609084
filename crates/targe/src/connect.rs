//! Connects to a LUN, for every command that takes a URL.

use base::ether::Mac;
use initiator::endpoint::Endpoint;
use initiator::{Client, Disk, Error, EscalationStep, Event, OpenOptions, Path, Session, Url, block_on};
use iscsi::chap::{Algorithm, Algorithms};
use iscsi::name::Isid;

use crate::Failure;

/// Parses a URL.
pub(crate) fn url(text: &str) -> Result<Url, Failure> {
    Url::parse(text).map_err(|why| Failure::Misused(why.to_string()))
}

/// Starts the thread that sessions run on.
pub(crate) fn client() -> Result<Client, Failure> {
    Client::new().map_err(|why| failure(&why))
}

/// Logs in and opens the LUN as a disk.
pub(crate) fn disk(client: &Client, url: &Url) -> Result<Disk, Failure> {
    or_with_md5(url, |url| block_on(options(url).open(client, url))).map_err(|why| failure(&why))
}

/// Logs in with an ISID, in a portal group if one is given, and opens the LUN as a disk.
pub(crate) fn disk_as(
    client: &Client,
    url: &Url,
    isid: Isid,
    portal_group: Option<u16>,
) -> Result<Disk, Error> {
    or_with_md5(url, |url| {
        let options = options(url).isid(isid.0);
        let options = match portal_group {
            Some(tag) => options.portal_group(tag),
            None => options,
        };
        block_on(options.open(client, url))
    })
}

/// Logs in to the target of a LUN.
pub(crate) fn session(client: &Client, url: &Url) -> Result<Session, Failure> {
    or_with_md5(url, |url| block_on(options(url).log_in(client, url))).map_err(|why| failure(&why))
}

/// The environment variable by which the user allows CHAP with MD5 alone.
const MD5_VARIABLE: &str = "TARGE_ALLOW_MD5";
/// CHAP with MD5 alone.
const ONLY_MD5: Algorithms = Algorithms::NONE.with(Algorithm::Md5);

/// Logs in by `attempt`. If the target refuses what CHAP proved, the login is repeated with MD5 alone, where
/// the user allows that: some targets choose a hash that they cannot compute.
pub(crate) fn or_with_md5<T>(url: &Url, attempt: impl Fn(&Url) -> Result<T, Error>) -> Result<T, Error> {
    at_or_with_md5(&url.endpoint, |endpoint| attempt(&Url { endpoint: endpoint.clone(), ..url.clone() }))
}

/// Like [`or_with_md5`], for logins that need no URL of a LUN.
pub(crate) fn at_or_with_md5<T>(
    endpoint: &Endpoint,
    attempt: impl Fn(&Endpoint) -> Result<T, Error>,
) -> Result<T, Error> {
    let is_allowed = std::env::var_os(MD5_VARIABLE).is_some_and(|value| value == "yes");
    match attempt(endpoint) {
        Err(why) if why.may_be_refused_authentication() => {
            let Some(weaker) = with_md5(endpoint, is_allowed) else { return Err(why) };
            eprintln!(
                "targe: {endpoint}: the target refused the login with CHAP; the initiator now offers MD5 alone, which is \
                 weak, because you allow it"
            );
            attempt(&weaker)
        }
        done => done,
    }
}

/// Returns the same with CHAP with MD5 alone, if the user allows that: for everything (`is_allowed`), or by
/// naming MD5 among the algorithms of the URL.
fn with_md5(endpoint: &Endpoint, is_allowed: bool) -> Option<Endpoint> {
    let offered = endpoint.options.chap;
    let is_named = offered.is_some_and(|offered| offered.contains(Algorithm::Md5));
    let is_chosen = offered.is_none() && is_allowed;
    if endpoint.login.user.is_none() || offered == Some(ONLY_MD5) || !(is_named || is_chosen) {
        return None;
    }
    let mut weaker = endpoint.clone();
    weaker.options.chap = Some(ONLY_MD5);
    Some(weaker)
}

/// Opens the LUN as a disk, in a session with its target.
pub(crate) fn disk_of(session: Session, url: &Url) -> Result<Disk, Failure> {
    let disk = block_on(Disk::open_unit(session, url.lun));
    disk.map_err(|why| failure(&Error::of_unit(url, why)))
}

/// Returns options that log to stderr the events of a session's network that concern a user of any command.
pub(crate) fn options(url: &Url) -> OpenOptions {
    let url = url.to_string();
    OpenOptions::new().watch(move |news| {
        match news {
            Event::PathMtu { path, status, .. } => eprintln!("targe: {url}: on {path}: {status}"),
            Event::Unanswered { lun, step, .. } => {
                let done = match step {
                    EscalationStep::AbortTask => "the initiator aborts them",
                    EscalationStep::LogicalUnitReset => "the initiator resets the logical unit",
                    EscalationStep::LogIn => "the initiator drops the session and logs in again",
                };
                let lun = lun.number().unwrap_or_default();
                eprintln!("targe: {url}: LUN {lun} does not complete commands in time: {done}");
            }
            Event::OtherServer { path: Path::Ports { interface, peer, .. }, .. } => {
                let peer = Mac(*peer);
                eprintln!(
                    "targe: {url}: two servers with one identity: {peer} on {interface} also announces this target as \
                     its own"
                );
            }
            _ => {}
        }
        true
    })
}

/// Adds to an error why the session was lost, if it was: a medium reports only that it is gone.
pub(crate) fn with_loss(session: &Session, what: String) -> String {
    match block_on(session.loss()) {
        Ok(Some(why)) => format!("{what}; the session was lost: {}", error_chain(&why)),
        _ => what,
    }
}

/// Returns the failure for a target or LUN that cannot be reached.
pub(crate) fn failure(why: &Error) -> Failure {
    if why.is_misuse() { Failure::Misused(error_chain(why)) } else { Failure::Failed(error_chain(why)) }
}

/// Formats an error with its sources. Text from a peer cannot control the terminal.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(behind) = source {
        text = format!("{text}: {behind}");
        source = behind.source();
    }
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn md5_alone_is_offered_only_where_the_user_allows_it() {
        let weaker = |query: &str, is_allowed| {
            let endpoint = Endpoint::parse(&format!("iscsi://me%correct-horse@192.0.2.7{query}")).unwrap();
            with_md5(&endpoint, is_allowed).map(|weaker| weaker.options.chap)
        };
        assert_eq!(weaker("", false), None);
        assert_eq!(weaker("", true), Some(Some(ONLY_MD5)));
        assert_eq!(weaker("?chap=sha256,md5", false), Some(Some(ONLY_MD5)));
        // The user names other algorithms, or the login did not fail by one of them.
        assert_eq!(weaker("?chap=sha256", true), None);
        assert_eq!(weaker("?chap=md5", true), None);
        assert!(with_md5(&Endpoint::parse("iscsi://192.0.2.7").unwrap(), true).is_none());
    }

    #[test]
    fn another_failure_is_not_repeated() {
        let url =
            url("iscsi://me%correct-horse@192.0.2.7/iqn.2026-01.com.example:disk/0?chap=sha256,md5").unwrap();
        let attempts = std::cell::Cell::new(0);
        let done: Result<(), Error> = or_with_md5(&url, |tried| {
            attempts.set(attempts.get() + 1);
            assert_eq!(tried, &url);
            Err(Error::NoUnit(0))
        });
        assert!(matches!(done, Err(Error::NoUnit(0))));
        assert_eq!(attempts.get(), 1);
    }
}
