//! A medium that several threads use at once.
//!
//! [`crate::api::Store`] is a medium as its one owner sees it: it submits, and polls what is done. Who serves
//! a disk that lives on another thread (a logical unit reached over the network, behind an NBD server or FUSE) has
//! no loop to poll from, so here each operation brings along what to do when it is done.

use alloc::boxed::Box;
use alloc::sync::Arc;

use base::buffer::DataList;

use crate::api::{Capabilities, Failure, Fault, OpAction, OpOutput};

/// What to do with the result of one operation. Called exactly once, on whatever thread knows first, perhaps before
/// [`SharedStore::submit`] returns; it must not block. It may submit further operations: a medium calls it while it holds
/// no lock of its own.
pub type OnComplete = Box<dyn FnOnce(Result<OpOutput, Failure>) + Send>;

/// What became of a write on a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// The condition held, and it was written.
    Written,
    /// Something else was found, and nothing was written.
    Differed,
}

/// What to do with the result of a write on a condition, as [`OnComplete`].
pub type OnCompared = Box<dyn FnOnce(Result<Compared, Failure>) + Send>;

/// A medium that several threads use at once. The rules of [`crate::api::Store`] hold: operations in flight
/// together take effect in any order, and a flush covers what was acknowledged before it was submitted.
pub trait SharedStore: Send + Sync {
    /// Returns what the medium is and can do now.
    fn capabilities(&self) -> Capabilities;

    /// Starts an operation. Bounded: a medium that has too much in flight makes it wait its turn, without blocking
    /// the caller.
    fn submit(&self, action: OpAction, done: OnComplete);

    /// Returns how many bytes one [`Self::compare_and_write`] may be about; zero where the medium knows no such thing.
    fn compare_and_write_max(&self) -> usize {
        0
    }

    /// Writes the second half of `data` at `at` if the first half is found there, in one indivisible step. Never begun
    /// twice: where nobody can tell whether it was carried out, it fails with [`Fault::Gone`].
    fn compare_and_write(&self, at: u64, data: DataList, done: OnCompared) {
        let _ = (at, data);
        done(Err(Fault::Unsupported.into()));
    }
}

impl<S: SharedStore + ?Sized> SharedStore for Arc<S> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn submit(&self, action: OpAction, done: OnComplete) {
        (**self).submit(action, done);
    }

    fn compare_and_write_max(&self) -> usize {
        (**self).compare_and_write_max()
    }

    fn compare_and_write(&self, at: u64, data: DataList, done: OnCompared) {
        (**self).compare_and_write(at, data, done);
    }
}
