//! Connects to a LUN, for every command that takes a URL.

use drivers::config::Config;
use initiator::client::{Client, Session, Watcher};
use initiator::disk::RemoteDisk;
use initiator::future::block_on;
use initiator::open::{OpenError, open_disk_watched, open_session_watched};
use initiator::sessions::{EscalationStep, SessionEvent};
use initiator::url::{EnvSecrets, Url};

use crate::Failure;

/// Parses a URL.
pub(crate) fn url(text: &str) -> Result<Url, Failure> {
    Url::parse(text).map_err(|why| Failure::Misused(why.to_string()))
}

/// Starts the thread that sessions run on.
pub(crate) fn client() -> Result<Client, Failure> {
    Client::start(&Config::default()).map_err(|why| Failure::Failed(error_chain(&why)))
}

/// Logs in and opens the LUN as a disk.
pub(crate) fn disk(client: &Client, url: &Url) -> Result<RemoteDisk, Failure> {
    block_on(open_disk_watched(client, url, &EnvSecrets, vec![network_logger(url)]))
        .map_err(|why| failure(&why))
}

/// Logs in to the target of a LUN.
pub(crate) fn session(client: &Client, url: &Url) -> Result<Session, Failure> {
    block_on(open_session_watched(client, url, &EnvSecrets, vec![network_logger(url)]))
        .map_err(|why| failure(&why))
}

/// Opens the LUN as a disk, in a session with its target.
pub(crate) fn disk_of(session: Session, url: &Url) -> Result<RemoteDisk, Failure> {
    let disk = block_on(RemoteDisk::open(session, url.lun));
    disk.map_err(|why| failure(&OpenError::Unit { at: url.to_string(), why }))
}

/// Returns a watcher that logs to stderr the events of a session's network that concern a user of any
/// command.
pub(crate) fn network_logger(url: &Url) -> Watcher {
    let url = url.to_string();
    Box::new(move |news| {
        match news {
            SessionEvent::PathMtuStatus { interface, peer, width } => {
                eprintln!("targe: {url}: on {interface} to {peer}: {width}");
            }
            SessionEvent::Unanswered { lun, step } => {
                let done = match step {
                    EscalationStep::AbortTask => "the initiator aborts them",
                    EscalationStep::LogicalUnitReset => "the initiator resets the logical unit",
                    EscalationStep::LogIn => "the initiator drops the session and logs in again",
                };
                let lun = lun.number().unwrap_or_default();
                eprintln!("targe: {url}: LUN {lun} does not complete commands in time: {done}");
            }
            SessionEvent::OtherServer { interface, peer } => {
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
pub(crate) fn failure(why: &OpenError) -> Failure {
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
