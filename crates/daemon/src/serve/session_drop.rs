//! Ends sessions at the request of a client of the admin socket.

use crate::mailbox::channel;
use std::time::{Duration, Instant};

use drivers::message_queue::Handle;

use super::audit::{AuditEntry, AuditLog};
use super::changes::failure;
use super::reactor_shard::ReactorShard;
use super::reactors::{REACTOR_REPLY_TIMEOUT, ReactorInfo};
use crate::admin::api::{ErrorKind, Failure};
use crate::admin::change::Peer;
use crate::admin::change_api::{DroppedSessions, SessionSelector};

/// The time that a session has to log out before its connections are closed. RFC 7143 §11.9.1 specifies whole
/// seconds.
const LOGOUT_WITHIN_S: u32 = 3;

/// Ends the sessions that the selector describes; an unknown initiator has none.
pub(super) fn drop_sessions(
    reactors: &[(Handle<ReactorShard>, ReactorInfo)],
    audit: &AuditLog,
    selector: Option<SessionSelector>,
    peer: &Peer,
) -> Result<DroppedSessions, Failure> {
    let selector =
        selector.ok_or_else(|| failure(ErrorKind::Malformed, "the request has no \"sessions\""))?;
    let isid = selector.isid.as_deref().map(parse_isid).transpose()?;
    let SessionSelector { initiator, target, .. } = selector;
    let (initiator, target) = (initiator.to_lowercase(), target.map(|target| target.to_lowercase()));
    let dropped = post(reactors, &initiator, target.as_deref(), isid);
    let subject = match &target {
        Some(target) => format!("- sessions of {initiator} with {target}"),
        None => format!("- sessions of {initiator}"),
    };
    let message = match &dropped {
        Ok(sessions) => format!("{sessions} sessions end"),
        Err(failure) => failure.message.clone(),
    };
    audit.record(&AuditEntry {
        peer: Some(peer),
        action: "session drop",
        changes: &[subject],
        result: if dropped.is_ok() { "done" } else { "refused" },
        message: &message,
        ..AuditEntry::default()
    });
    Ok(DroppedSessions { sessions: dropped?, within_s: LOGOUT_WITHIN_S })
}

/// Ends the sessions on every reactor; returns their number.
fn post(
    reactors: &[(Handle<ReactorShard>, ReactorInfo)],
    initiator: &str,
    target: Option<&str>,
    isid: Option<[u8; 6]>,
) -> Result<u32, Failure> {
    let (sender, receiver) = channel();
    for (handle, _) in reactors {
        let sender = sender.clone();
        let (initiator, target) = (initiator.to_owned(), target.map(str::to_owned));
        let posted = handle.post(move |member: &mut ReactorShard, now| {
            let within = Duration::from_secs(LOGOUT_WITHIN_S.into());
            let dropped = member.drop_sessions(now, within, |of, by, id| {
                by == initiator
                    && target.as_deref().is_none_or(|target| target == of)
                    && isid.is_none_or(|isid| isid == id)
            });
            let _ = sender.send(dropped);
        });
        posted.map_err(|_| failure(ErrorKind::Unavailable, "targe is stopping"))?;
    }
    let deadline = Instant::now() + REACTOR_REPLY_TIMEOUT;
    let mut sessions = 0;
    for _ in reactors {
        let left = deadline.saturating_duration_since(Instant::now());
        let dropped = receiver.recv_timeout(left);
        sessions += dropped.map_err(|_| failure(ErrorKind::Unavailable, "a reactor does not answer"))?;
    }
    Ok(u32::try_from(sessions).unwrap_or(u32::MAX))
}

/// Parses 12 hexadecimal digits.
pub(super) fn parse_isid(text: &str) -> Result<[u8; 6], Failure> {
    let is_hex = text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(text, 16).ok().filter(|_| is_hex);
    let wrong =
        || failure(ErrorKind::Malformed, format!("\"{text}\" is not an ISID of 12 hexadecimal digits"));
    let [_, _, isid @ ..] = number.ok_or_else(wrong)?.to_be_bytes();
    Ok(isid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_isid_is_read_as_it_is_shown() {
        assert_eq!(parse_isid("00023d000001").unwrap(), [0, 2, 0x3d, 0, 0, 1]);
        for text in ["", "00023d00000", "00023d0000011", "00023d00000g", "+0023d000001", "é23d00000"] {
            assert!(parse_isid(text).is_err(), "{text}");
        }
    }
}
