//! A medium that several threads use at once.
//!
//! A [`crate::api::Store`] has one owner, which submits operations and polls for completions. A user of a
//! disk that another thread serves (a logical unit reached over the network, behind an NBD server or FUSE)
//! has no loop to poll from. Here, each operation carries a callback that is called when it completes.

use alloc::boxed::Box;
use alloc::sync::Arc;

use base::buffer::DataList;

use crate::api::{Capabilities, Failure, Fault, OpAction, OpOutput};

/// The callback that gets the result of one operation. The medium calls it exactly once, on any thread,
/// perhaps before [`SharedStore::submit`] returns. It must not block. It may submit further operations: the
/// medium holds no lock of its own while it calls it.
pub type OnComplete = Box<dyn FnOnce(Result<OpOutput, Failure>) + Send>;

/// How a compare-and-write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// The comparison matched, and the data was written.
    Written,
    /// The medium held other data, and nothing was written.
    Differed,
}

/// The callback that gets the result of a compare-and-write, like [`OnComplete`].
pub type OnCompared = Box<dyn FnOnce(Result<Compared, Failure>) + Send>;

/// The losses of acknowledged changes that a medium has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// How many there were so far.
    pub count: u64,
    /// The failure that reports the last one.
    pub last: Option<Failure>,
}

/// A medium that several threads use at once. The rules of [`crate::api::Store`] apply: operations in flight
/// together take effect in any order, and a flush covers the writes that were acknowledged before it was
/// submitted.
pub trait SharedStore: Send + Sync {
    /// Returns what the medium is and can do now.
    fn capabilities(&self) -> Capabilities;

    /// Starts an operation. The number in flight is bounded: a medium that has reached the bound queues the
    /// operation without blocking the caller.
    fn submit(&self, action: OpAction, done: OnComplete);

    /// Returns the losses of changes that the medium had acknowledged. The next flush fails once for those
    /// before it. A medium that serves several clients compares the counts, so that the next flush of each
    /// client fails once.
    fn losses(&self) -> Losses {
        Losses::default()
    }

    /// Returns the most bytes that one [`Self::compare_and_write`] can compare; zero if the medium does not
    /// support it.
    fn compare_and_write_max(&self) -> usize {
        0
    }

    /// Writes the second half of `data` at `at` if the medium holds the first half there, in one atomic step
    /// (COMPARE AND WRITE). It is never executed twice: if it cannot be known whether it was carried out, it
    /// fails with [`Fault::Gone`].
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

    fn losses(&self) -> Losses {
        (**self).losses()
    }

    fn compare_and_write_max(&self) -> usize {
        (**self).compare_and_write_max()
    }

    fn compare_and_write(&self, at: u64, data: DataList, done: OnCompared) {
        (**self).compare_and_write(at, data, done);
    }
}
