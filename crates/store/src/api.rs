//! Operations, completions and capabilities.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use base::buffer::DataList;

/// A medium.
///
/// Operations that are in flight together may take effect in any order; who needs an order waits for the
/// completion. A write is *acknowledged* when its completion is polled, and *durable* when a later `Flush` completes
/// well or when it was submitted with [`Durability::Stable`].
pub trait Store {
    /// Returns what the medium is and can do now. Cheap; a medium that grows answers with its new size.
    fn capabilities(&self) -> Capabilities;

    /// Returns how much storage the medium takes and could take now, if it can tell. Not for every operation: a medium may
    /// have to ask its system, though never its disk.
    fn space(&self) -> Option<Space> {
        None
    }

    /// Starts an operation. Its completion comes from [`Self::poll`], perhaps at once, exactly once, whatever
    /// happens. A range that leaves the medium completes with [`Fault::OutOfRange`].
    fn submit(&mut self, op: Op);

    /// Returns the next completion, if there is one.
    fn poll(&mut self) -> Option<Completion>;
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn space(&self) -> Option<Space> {
        (**self).space()
    }

    fn submit(&mut self, op: Op) {
        (**self).submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        (**self).poll()
    }
}

/// Names an operation; chosen by the submitter and returned with the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// One operation on a medium.
#[derive(Debug)]
pub struct Op {
    /// Returned with the completion.
    pub id: OpId,
    /// What to do.
    pub action: OpAction,
}

/// What an operation does. Offsets and lengths are in bytes and multiples of [`Capabilities::logical_block_len`].
#[derive(Debug)]
pub enum OpAction {
    /// Reads `len` bytes at `at`. Never-written bytes read as zeros.
    Read {
        /// Where to start.
        at: u64,
        /// How many bytes; at most [`Capabilities::io_len_max`].
        len: usize,
    },
    /// Writes `data` at `at`.
    Write {
        /// Where to start.
        at: u64,
        /// The bytes; at most [`Capabilities::io_len_max`] of them.
        data: DataList,
        /// When the write may be acknowledged.
        durability: Durability,
    },
    /// Makes every write acknowledged before this operation was submitted durable.
    Flush,
    /// Frees the storage of a range. Afterwards it reads as zeros if [`Capabilities::deallocated_reads_zero`], else as
    /// anything that once was there.
    Deallocate {
        /// Where to start.
        at: u64,
        /// How many bytes; unbounded.
        len: u64,
    },
    /// Makes a range read as zeros.
    WriteZeroes {
        /// Where to start.
        at: u64,
        /// How many bytes; unbounded.
        len: u64,
        /// Whether the range may lose its storage. If not, it stays (or becomes) allocated.
        may_deallocate: bool,
        /// When the operation may be acknowledged.
        durability: Durability,
    },
    /// Lists which parts of a range have storage.
    MapStatus {
        /// Where to start.
        at: u64,
        /// How many bytes to look at.
        len: u64,
        /// At most this many extents come back; they may then cover less than was asked.
        count_max: usize,
    },
    /// Puts a fresh key in place of the one that everything on the medium is encrypted with, durably: nothing that was
    /// written can be read any more. Submitted while no read or write is under way, and none is until it completes.
    ///
    /// If it fails, either the old key is there still, or the medium answers [`Fault::Gone`] from then on.
    CryptoErase,
}

impl OpAction {
    /// Returns whether the operation changes the medium.
    pub const fn is_change(&self) -> bool {
        matches!(
            self,
            Self::Write { .. } | Self::Deallocate { .. } | Self::WriteZeroes { .. } | Self::CryptoErase
        )
    }

    /// Returns where the operation starts and how many bytes it concerns; nothing for a flush, and for
    /// a key.
    pub fn range(&self) -> (u64, u64) {
        let wide = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
        match self {
            Self::Read { at, len } => (*at, wide(*len)),
            Self::Write { at, data, .. } => (*at, wide(data.len())),
            Self::Deallocate { at, len }
            | Self::WriteZeroes { at, len, .. }
            | Self::MapStatus { at, len, .. } => (*at, *len),
            Self::Flush | Self::CryptoErase => (0, 0),
        }
    }
}

/// When a write may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// As soon as later reads see it.
    Cached,
    /// Only once it survives a loss of power (FUA).
    Stable,
}

/// What came of an operation.
#[derive(Debug)]
pub struct Completion {
    /// The operation's name.
    pub id: OpId,
    /// The result.
    pub result: Result<OpOutput, Failure>,
}

/// A success.
#[derive(Debug)]
pub enum OpOutput {
    /// The bytes of a `Read`: exactly as many as were asked for.
    Data(DataList),
    /// A `Write`, `Flush`, `Deallocate`, `WriteZeroes` or `CryptoErase` is done. A write gives its data back for recycling.
    Done(DataList),
    /// The extents of an `MapStatus`, in order, without gaps, starting at its `at`.
    MapStatus(Vec<Extent>),
}

/// A run of bytes that has storage, or has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it starts.
    pub at: u64,
    /// How long it is.
    pub len: u64,
    /// Whether it has storage.
    pub state: ExtentState,
}

/// Whether a run of bytes has storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentState {
    /// It has.
    Mapped,
    /// It has none and reads as zeros.
    Hole,
    /// It has storage reserved for it and reads as zeros.
    Anchored,
}

/// A failed operation. A failed write may have changed any part of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong.
    pub fault: Fault,
    /// The first byte that could not be read or written, where the medium can tell.
    pub at: Option<u64>,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self { fault, at: None }
    }
}

/// The kinds of failure that a device server answers differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The medium could not deliver or keep the data (EIO).
    Medium,
    /// No room is left (ENOSPC, EDQUOT).
    NoSpace,
    /// The medium cannot be written (EROFS, EPERM, EBADF of a read-only open).
    ReadOnly,
    /// The medium is gone (ENODEV, ENXIO, a file cut shorter than the device).
    Gone,
    /// The range leaves the medium.
    OutOfRange,
    /// The medium cannot do this at all.
    Unsupported,
    /// What drives the medium is broken.
    Hardware,
    /// Another user of the medium holds a reservation of it.
    Reserved,
    /// Whoever asks may not use the medium, or not in this way.
    Forbidden,
    /// The medium had too much to do, or was not ready, for longer than was waited.
    Busy,
    /// Somebody ended the operation before it was done.
    Aborted,
    /// The operation was kept from the medium, which knows nothing of it: a flush that is refused loses nothing.
    NotSubmitted,
    /// The operation broke the contract: our own error.
    Bug,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Medium => "medium error",
            Self::NoSpace => "no space left on the medium",
            Self::ReadOnly => "medium is read-only",
            Self::Gone => "medium is gone",
            Self::OutOfRange => "range beyond the end of the medium",
            Self::Unsupported => "operation not supported by the medium",
            Self::Hardware => "hardware error",
            Self::Reserved => "reservation conflict: somebody else has reserved the medium",
            Self::Forbidden => "not authorized to use the medium like this",
            Self::Busy => "medium is busy or not ready",
            Self::Aborted => "operation was aborted",
            Self::NotSubmitted => "operation was kept from the medium",
            Self::Bug => "operation broke the contract",
        })
    }
}

/// How much storage a medium takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What it has been given.
    pub used: u64,
    /// What it could still be given: no more than it has blocks without storage.
    pub available: u64,
    /// Whether others may be given the same.
    pub shared: bool,
}

/// What a medium is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its size in bytes.
    pub len: u64,
    /// Offsets and lengths must be multiples of this many bytes (512 or more for O_DIRECT, else 1).
    pub logical_block_len: u32,
    /// The size in bytes in which it prefers to be written; a power of two (a page, a physical sector).
    pub preferred_block_len: u32,
    /// The longest read or write it takes, in bytes; a multiple of 1 MiB.
    pub io_len_max: usize,
    /// The longest write that is never torn, not by an end of the process nor of the power, in bytes; zero if the
    /// medium makes no such promise.
    pub atomic_len_max: usize,
    /// Whether it refuses every change.
    pub read_only: bool,
    /// Whether acknowledged writes can be lost with the power before a flush.
    pub volatile_cache: bool,
    /// Whether it can free storage.
    pub thin: bool,
    /// Whether freed ranges read as zeros.
    pub deallocated_reads_zero: bool,
    /// Whether it is a spinning disk.
    pub rotational: bool,
    /// Whether it is encrypted under a key that it can forget ([`OpAction::CryptoErase`]).
    pub crypto_erase: bool,
}
