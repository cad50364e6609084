//! A medium that several threads use at once.
//!
//! [`crate::contract::Store`] is a medium as its one owner sees it: it submits, and polls what is done. Who serves
//! a disk that lives on another thread (a logical unit reached over the network, behind an NBD server or FUSE) has
//! no loop to poll from, so here each operation brings along what to do when it is done.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::contract::{Failure, OpAction, Outcome, Profile};

/// What to do with the result of one operation. Called exactly once, on whatever thread knows first, perhaps before
/// [`SharedStore::submit`] returns; it must not block. It may submit further operations: a medium calls it while it holds
/// no lock of its own.
pub type Done = Box<dyn FnOnce(Result<Outcome, Failure>) + Send>;

/// A medium that several threads use at once. The rules of [`crate::contract::Store`] hold: operations in flight
/// together take effect in any order, and a flush covers what was acknowledged before it was submitted.
pub trait SharedStore: Send + Sync {
    /// Returns what the medium is and can do now.
    fn profile(&self) -> Profile;

    /// Starts an operation. Bounded: a medium that has too much in flight makes it wait its turn, without blocking
    /// the caller.
    fn submit(&self, action: OpAction, done: Done);
}

impl<S: SharedStore + ?Sized> SharedStore for Arc<S> {
    fn profile(&self) -> Profile {
        (**self).profile()
    }

    fn submit(&self, action: OpAction, done: Done) {
        (**self).submit(action, done);
    }
}
