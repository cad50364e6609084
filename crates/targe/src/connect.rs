//! Connects to a LUN, for every command that takes a URL.

use base::ether::Mac;
use initiator::{Client, Disk, Error, EscalationStep, Event, OpenOptions, Path, Session, Url, block_on};

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
    block_on(options(url).open(client, url)).map_err(|why| failure(&why))
}

/// Logs in to the target of a LUN.
pub(crate) fn session(client: &Client, url: &Url) -> Result<Session, Failure> {
    block_on(options(url).log_in(client, url)).map_err(|why| failure(&why))
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
