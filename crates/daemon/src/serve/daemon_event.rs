//! What the other threads tell the main thread of the daemon.

use std::sync::mpsc::{Receiver, Sender};

use serde_json::Value;
use target::units::UnitId;

use crate::admin::api::Failure;
use crate::admin::change::{Peer, Verdict};
use crate::admin::change_api::Change;
use crate::admin::upgrade_api::UpgradeRequest;

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
    /// A thread has panicked.
    ThreadPanicked,
    /// A reactor made or forgot nexus bindings.
    BindingsChanged,
}

/// A request of a client to read the configuration again.
#[derive(Debug)]
pub(super) struct ReloadRequest {
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
