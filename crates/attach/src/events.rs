//! Rare events that the program that attached a disk can log.

use std::sync::Arc;

use store::api::{Failure, Fault, OpAction, OpOutput};
use store::shared::{OnComplete, SharedStore};

use crate::nbd::ProtocolError;
use crate::unaligned::UnalignedStore;

/// A rare event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachEvent {
    /// The medium failed a request. The program that made the request receives the error too.
    Failed {
        /// The operation, such as `read`.
        what: &'static str,
        /// The offset in bytes.
        at: u64,
        /// The length in bytes.
        len: u64,
        /// The failure that the medium reported.
        failure: Failure,
    },
    /// The server disconnected a client that broke the protocol.
    Misbehaved(ProtocolError),
    /// The server refused a client because there are too many.
    TooManyClients,
    /// The kernel refused a command of this process: the device serves fewer requests at once from now on.
    Refused {
        /// The error number that the kernel returned.
        errno: i32,
    },
}

/// Handles events. It is called on any thread, and must not block.
pub type EventHandler = Arc<dyn Fn(AttachEvent) + Send + Sync>;

/// Starts `action`, and reports a failure to `watch`.
pub(crate) fn submit(disk: &UnalignedStore, action: OpAction, watch: &EventHandler, done: OnComplete) {
    let what = match action {
        OpAction::Read { .. } => "read",
        OpAction::Write { .. } => "write",
        OpAction::Flush => "flush",
        OpAction::CryptoErase => "crypto erase",
        OpAction::Command(_) | OpAction::Reset => "command",
        OpAction::Deallocate { .. } => "discard",
        OpAction::WriteZeroes { .. } => "write zeroes",
        // Block status is a hint, so a failed query is not worth an event.
        OpAction::MapStatus { .. } => return disk.submit(action, done),
    };
    let (at, len) = action.range();
    let watch = Arc::clone(watch);
    let told = move |result: Result<OpOutput, Failure>| {
        // A change is kept from the medium only when its client has gone.
        if let Err(failure) = &result
            && failure.fault != Fault::NotSubmitted
        {
            watch(AttachEvent::Failed { what, at, len, failure: *failure });
        }
        done(result);
    };
    disk.submit(action, Box::new(told));
}
