//! Changes of the configuration that clients of the admin socket ask for: the way of a request from the
//! client's thread to the main thread, which alone changes what runs, and the plan in the words of the
//! protocol.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use serde_json::Value;
use shard::losses::SessionLoss;

use super::daemon_event::{ChangeRequest, DaemonEvent, ReloadRequest, UpgradeOrder};
use crate::admin::api::{ErrorKind, Failure};
use crate::admin::change::{Client, Continuation, Peer, PreparedChange};
use crate::admin::change_api::{AffectedSession, Change};
use crate::admin::upgrade_api::{UpgradeRequest, WAIT_MAX_S};
use crate::config;

/// How long the main thread may take to plan or prepare a change. A large configuration takes seconds.
const PREPARE_MAX: Duration = Duration::from_secs(300);

/// Sends a request to the main thread, and returns the plan. With `is_applied`, the prepared change waits for
/// the verdict of the client.
pub(super) fn request(
    events: &Sender<DaemonEvent>,
    change: Option<Change>,
    caller: &mut Client,
    is_applied: bool,
) -> Result<Value, Failure> {
    let unavailable = |message: &str| failure(ErrorKind::Unavailable, message);
    let change = change.ok_or_else(|| failure(ErrorKind::Malformed, "the request has no \"change\""))?;
    if caller.prepared.is_some() {
        return Err(failure(ErrorKind::Refused, "a change is prepared on this connection already"));
    }
    let (reply, outcome) = channel();
    let (verdict, decided) = channel();
    let request =
        ChangeRequest { change, peer: caller.peer.clone(), verdict: is_applied.then_some(decided), reply };
    events.send(DaemonEvent::Change(Box::new(request))).map_err(|_| unavailable("targe is stopping"))?;
    let plan = outcome
        .recv_timeout(PREPARE_MAX)
        .map_err(|_| unavailable("targe is stopping, or another change takes too long"))??;
    if is_applied {
        caller.prepared = Some(PreparedChange { verdict, outcome });
    }
    Ok(plan)
}

/// Has the main thread read the configuration file again, and returns the result.
pub(super) fn reload(events: &Sender<DaemonEvent>, peer: &Peer) -> Result<Value, Failure> {
    let (reply, outcome) = channel();
    let request = ReloadRequest { peer: peer.clone(), reply };
    let stopping = |message: &str| failure(ErrorKind::Unavailable, message);
    let sent = events.send(DaemonEvent::Reload(Some(Box::new(request))));
    sent.map_err(|_| stopping("targe is stopping"))?;
    let outcome = outcome.recv_timeout(PREPARE_MAX);
    outcome.map_err(|_| stopping("targe is stopping, or another change takes too long"))?
}

/// Has the main thread start an upgrade, and returns the result.
pub(super) fn upgrade(
    events: &Sender<DaemonEvent>,
    request: Option<UpgradeRequest>,
    caller: &mut Client,
) -> Result<Value, Failure> {
    let request = request.ok_or_else(|| failure(ErrorKind::Malformed, "the request has no \"upgrade\""))?;
    if request.wait_s.is_some_and(|wait| wait > WAIT_MAX_S) {
        let why = format!("an upgrade waits for at most {WAIT_MAX_S} s");
        return Err(failure(ErrorKind::Malformed, why));
    }
    if caller.prepared.is_some() {
        return Err(failure(ErrorKind::Refused, "a change is prepared on this connection"));
    }
    let (reply, outcome) = channel();
    let (answering, answered) = channel();
    let order = UpgradeOrder { request, peer: caller.peer.clone(), reply, answered };
    let stopping = |_| failure(ErrorKind::Unavailable, "targe is stopping");
    events.send(DaemonEvent::Upgrade(Box::new(order))).map_err(stopping)?;
    let outcome =
        outcome.recv().unwrap_or_else(|_| Err(failure(ErrorKind::Unavailable, "targe is stopping")));
    // It is dropped when the answer is sent, or when the client has gone.
    caller.continuation = Some(Continuation(Box::new(move |_| drop(answering))));
    outcome
}

/// Returns a session that loses something by a change, in the words of the protocol.
pub(super) fn affected(loss: SessionLoss) -> AffectedSession {
    AffectedSession {
        target: loss.target,
        initiator: loss.initiator,
        isid: loss.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
        ends: loss.ends,
        luns: loss.luns,
        login_needs: loss.login_needs.map(|level| level.to_string()),
    }
}

/// Makes a failure.
pub(super) fn failure(kind: ErrorKind, message: impl Into<String>) -> Failure {
    Failure { kind, message: message.into() }
}

/// Returns a difference on one line, for the audit log and for messages.
pub(super) fn on_one_line(change: &config::PlannedChange) -> String {
    let config::PlannedChange { subject, name, what, details, .. } = change;
    let details = if details.is_empty() { String::new() } else { format!(": {}", details.join("; ")) };
    format!("{} {subject} {name}{details}", what.sign())
}
