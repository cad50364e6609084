//! What the other threads tell the main thread of the daemon.

use crate::mailbox::{Receiver, Sender};

use serde_json::Value;
use target::units::UnitId;

use super::media::{FileRollback, OpenMedium};
use crate::admin::api::Failure;
use crate::admin::change::{Peer, Verdict};
use crate::admin::change_api::{Change, SessionSelector};
use crate::admin::upgrade_api::UpgradeRequest;
use crate::config::Unit;

/// An event that the main thread handles.
#[derive(Debug)]
pub(super) enum DaemonEvent {
    /// The configuration is to be read again, because of a signal, or because a client asks for it.
    Reload(Option<Box<ReloadRequest>>),
    /// A client of the admin socket wants to change the configuration, or to know what a change would do.
    Change(Box<ChangeRequest>),
    /// A client of the admin socket wants another process to take over.
    Upgrade(Box<UpgradeOrder>),
    /// The daemon is to stop.
    Stop,
    /// The thread of this reactor has ended.
    ReactorEnded(usize),
    /// This unit is removed, and its medium holds everything that hosts wrote.
    UnitClosed(UnitId),
    /// This says which writes of hosts may be missing on the server of a unit that is closed.
    ExportLost(String),
    /// A medium is open that was not there when the daemon started.
    MediumArrived(Box<ArrivedMedium>),
    /// A thread has panicked.
    ThreadPanicked,
    /// An operator wants nexus bindings to be forgotten.
    Forget(Box<ForgetRequest>),
    /// A reactor made or forgot nexus bindings.
    BindingsChanged,
    /// The limit on guesses is to be stored.
    GuessesChanged,
}

impl DaemonEvent {
    /// Returns which writes of hosts may be missing on a server, if it says that.
    pub(super) fn lost_at_server(&self) -> Option<String> {
        match self {
            Self::ExportLost(sentence) => Some(sentence.clone()),
            _ => None,
        }
    }
}

/// A medium that has come.
#[derive(Debug)]
pub(super) struct ArrivedMedium {
    pub(super) id: UnitId,
    /// The unit as it was configured when the medium was opened.
    pub(super) unit: Unit,
    /// Undoes what opening has changed, unless the medium is served. It is dropped before the lock.
    pub(super) provisional: FileRollback,
    pub(super) medium: OpenMedium,
}

/// A request of a client to read the configuration again.
#[derive(Debug)]
pub(super) struct ReloadRequest {
    pub(super) peer: Peer,
    /// Takes the result.
    pub(super) reply: Sender<Result<Value, Failure>>,
}

/// A request of a client to forget nexus bindings.
#[derive(Debug)]
pub(super) struct ForgetRequest {
    pub(super) selector: SessionSelector,
    pub(super) peer: Peer,
    /// Takes the result.
    pub(super) reply: Sender<Result<Value, Failure>>,
}

/// A request of a client that another process takes over.
#[derive(Debug)]
pub(super) struct UpgradeOrder {
    pub(super) request: UpgradeRequest,
    pub(super) peer: Peer,
    /// Takes the result.
    pub(super) reply: Sender<Result<Value, Failure>>,
    /// Its sender is dropped when the client has the answer.
    pub(super) answered: Receiver<()>,
}

/// A request of a client, for the main thread.
#[derive(Debug)]
pub(super) struct ChangeRequest {
    pub(super) change: Change,
    pub(super) peer: Peer,
    /// Brings the verdict of the client; `None` if the client only wants to see the plan.
    pub(super) verdict: Option<Receiver<Verdict>>,
    /// Takes the plan, and then the result if the change was prepared.
    pub(super) reply: Sender<Result<Value, Failure>>,
}
