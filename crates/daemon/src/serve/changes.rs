//! Changes of the configuration that clients of the admin socket ask for: the way of a request from the
//! client's thread to the main thread, which alone changes what runs, and the plan in the words of the
//! protocol.

use crate::mailbox::{Sender, channel};
use std::time::Duration;

use serde_json::Value;
use shard::losses::{SessionLoss, WithheldLun};

use super::daemon_event::{ChangeRequest, DaemonEvent, ForgetRequest, ReloadRequest, UpgradeOrder};
use crate::admin::api::{ErrorKind, Failure};
use crate::admin::change::{Client, Continuation, Peer, PreparedChange};
use crate::admin::change_api::{AffectedSession, Change, SessionSelector};
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

/// Has the main thread forget nexus bindings, and returns the result.
pub(super) fn forget(
    events: &Sender<DaemonEvent>,
    selector: Option<SessionSelector>,
    peer: &Peer,
) -> Result<Value, Failure> {
    let selector =
        selector.ok_or_else(|| failure(ErrorKind::Malformed, "the request has no \"sessions\""))?;
    let (reply, outcome) = channel();
    let request = ForgetRequest { selector, peer: peer.clone(), reply };
    let stopping = |message: &str| failure(ErrorKind::Unavailable, message);
    let sent = events.send(DaemonEvent::Forget(Box::new(request)));
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

/// Returns an ISID as 12 hexadecimal digits.
pub(super) fn isid_text(isid: [u8; 6]) -> String {
    isid.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a session that loses something by a change, in the words of the protocol.
pub(super) fn affected(loss: SessionLoss) -> AffectedSession {
    AffectedSession {
        target: loss.target,
        initiator: loss.initiator,
        isid: isid_text(loss.isid),
        logged_in: loss.lost_for.is_none(),
        ends: loss.ends,
        luns: loss.luns,
        login_needs: loss.login_needs.map(|level| level.to_string()),
        other_tag: loss.other_tag,
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

/// How long an initiator port that lost its session counts like one with a session: long compared with the
/// time for which hosts keep requests and try to log in again (multipath-tools and open-iscsi: two minutes by
/// default). Later, a change only warns about the port.
pub(super) const REMEMBERED_AS_SESSION: Duration = Duration::from_secs(600);

/// Returns a sentence about an initiator port that lost its session long ago.
pub(super) fn note_of_loss(loss: &SessionLoss) -> String {
    let SessionLoss { target, initiator, isid, luns, .. } = loss;
    let luns: Vec<String> = luns.iter().map(ToString::to_string).collect();
    format!(
        "{initiator} (port {}) has used LUN {} of {target} and has not logged out since: it will not find its disk \
         there when it logs in again",
        isid_text(*isid),
        luns.join(", ")
    )
}

/// Returns a sentence about a LUN that will be withheld.
pub(super) fn note_of_withheld(lun: &WithheldLun) -> String {
    let WithheldLun { target, initiator, isid, lun, .. } = lun;
    format!(
        "LUN {lun} of {target} will be withheld from {initiator} (port {}), which has used another disk there, until it \
         has logged out and in again",
        isid_text(*isid)
    )
}
