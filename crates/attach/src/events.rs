//! What whoever attached a disk should hear of.

use std::sync::Arc;

use store::api::{Failure, OpAction};
use store::shared::{OnComplete, SharedStore};

use crate::nbd::ProtocolError;
use crate::unaligned::UnalignedStore;

/// Something rare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachEvent {
    /// The medium failed a request; the program that made it is told so too.
    Failed {
        /// What was asked.
        what: &'static str,
        /// Where.
        at: u64,
        /// Of how many bytes.
        len: u64,
        /// What the medium said.
        failure: Failure,
    },
    /// A client was cut off.
    Misbehaved(ProtocolError),
    /// A client was turned away: there are too many.
    TooManyClients,
    /// The kernel refused a command of ours: the device serves fewer requests at once from now on.
    Refused {
        /// With which error.
        errno: i32,
    },
}

/// Hears of them, on any thread; must not block.
pub type EventHandler = Arc<dyn Fn(AttachEvent) + Send + Sync>;

/// Starts `action`, and tells `watch` if it fails.
pub(crate) fn submit(disk: &UnalignedStore, action: OpAction, watch: &EventHandler, done: OnComplete) {
    let what = match action {
        OpAction::Read { .. } => "read",
        OpAction::Write { .. } => "write",
        OpAction::Flush => "flush",
        OpAction::CryptoErase => "forget the key",
        OpAction::Deallocate { .. } => "discard",
        OpAction::WriteZeroes { .. } => "write zeroes",
        // Whether a part is allocated is a question that may go unanswered.
        OpAction::MapStatus { .. } => return disk.submit(action, done),
    };
    let (at, len) = action.range();
    let watch = Arc::clone(watch);
    let told = move |result| {
        if let Err(failure) = &result {
            watch(AttachEvent::Failed { what, at, len, failure: *failure });
        }
        done(result);
    };
    disk.submit(action, Box::new(told));
}
