//! Makes the changes of operators in tape libraries that are served.

use crate::mailbox::{RecvTimeoutError, channel};
use std::time::Duration;

use drivers::message_queue::Handle;

use super::audit::{AuditEntry, AuditLog};
use super::changes::failure;
use super::reactor_shard::ReactorShard;
use super::reactors::ReactorInfo;
use crate::admin::api::{ErrorKind, Failure};
use crate::admin::change::Peer;
use crate::admin::change_api::{LibraryAction, LibraryChanged, LibraryRequest};
use crate::library;

/// How long a change may wait for motions of hosts. It is shorter than the timeout of a client.
const CHANGE_MAX: Duration = Duration::from_secs(25);

/// Makes a change, and records it in the audit log.
pub(super) fn make(
    reactors: &[(Handle<ReactorShard>, ReactorInfo)],
    audit: &AuditLog,
    request: Option<LibraryRequest>,
    peer: &Peer,
) -> Result<LibraryChanged, Failure> {
    let request = request.ok_or_else(|| failure(ErrorKind::Malformed, "the request has no \"library\""))?;
    let result = post(reactors, &request);
    let action = match request.action {
        LibraryAction::Load => "changer load",
        LibraryAction::Eject => "changer eject",
        LibraryAction::Vault => "changer vault",
        LibraryAction::Release => "changer release",
    };
    let names = request.cartridges.join(" ");
    let subject = format!("~ library {}: {} {names}", request.path, request.element).trim_end().to_owned();
    let message = result.as_ref().err().map_or_else(String::new, |failure| failure.message.clone());
    audit.record(&AuditEntry {
        peer: Some(peer),
        action,
        changes: &[subject],
        result: if result.is_ok() { "done" } else { "refused" },
        message: &message,
        ..AuditEntry::default()
    });
    result.map(|()| LibraryChanged { element: request.element })
}

fn post(reactors: &[(Handle<ReactorShard>, ReactorInfo)], request: &LibraryRequest) -> Result<(), Failure> {
    let refused = |why: String| failure(ErrorKind::Refused, why);
    let (path, change) = library::operator_change(request).map_err(refused)?;
    let (answer, answered) = channel();
    for (handle, _) in reactors {
        let (path, change, answer) = (path.clone(), change.clone(), answer.clone());
        let posted = handle.post(move |member: &mut ReactorShard, now| {
            member.operate_library(now, &path, change, answer);
        });
        posted.map_err(|_| failure(ErrorKind::Unavailable, "targe is stopping"))?;
    }
    drop(answer);
    match answered.recv_timeout(CHANGE_MAX) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err(refused(format!("{}: {why}", request.element))),
        Err(RecvTimeoutError::Disconnected) => {
            Err(refused(format!("this targe does not serve the library {}", request.path)))
        }
        Err(RecvTimeoutError::Timeout) => {
            let why = "a motion of a host takes too long; the change is made behind it";
            Err(failure(ErrorKind::Unavailable, why))
        }
    }
}
