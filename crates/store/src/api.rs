//! Operations, completions and capabilities.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use base::buffer::DataList;

/// A medium.
///
/// Operations that are in flight together may take effect in any order. A caller that needs an order waits
/// for the completion of the first before it submits the second. A write is *acknowledged* when its
/// completion is polled. It is *durable* when a `Flush` submitted later succeeds, or when it was submitted
/// with [`Durability::Stable`] and completed.
pub trait Store {
    /// Returns what the medium is and can do now. The call is cheap. A medium that has grown returns its new
    /// size.
    fn capabilities(&self) -> Capabilities;

    /// Returns how much storage the medium occupies and could still occupy, if the medium knows. Do not call
    /// this for every operation: a medium may have to ask the operating system, though never its disk.
    fn space(&self) -> Option<Space> {
        None
    }

    /// Returns what the medium is if it is a device with commands of its own, which carries out
    /// [`OpAction::Command`] and [`OpAction::Reset`] and nothing else.
    fn device(&self) -> Option<DeviceInfo> {
        None
    }

    /// Returns, once, that the device was away and is there again. A device that was removed executes no
    /// command after its return before the caller has taken it, so that the caller can tell every host first.
    fn take_return(&mut self) -> Option<DeviceReturn> {
        None
    }

    /// Returns the bytes that the image of a writable disc ended with when it was opened, if the medium is
    /// one: the record of what is on the disc.
    fn trailer(&self) -> Option<Vec<u8>> {
        None
    }

    /// Returns whether the medium does not answer now: its server or process is gone, so that operations wait
    /// for it or fail. A filter returns what the medium below it returns.
    fn is_away(&self) -> bool {
        false
    }

    /// Returns whether the medium keeps every acknowledged change until a flush has made it durable, and
    /// repeats the changes before the next flush, so that a flush that fails loses nothing. A filter returns
    /// what the medium below it returns.
    fn keeps_changes(&self) -> bool {
        false
    }

    /// Starts an operation. [`Self::poll`] returns its completion exactly once, whatever happens, perhaps
    /// immediately. A range that extends beyond the medium completes with [`Fault::OutOfRange`].
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

    fn device(&self) -> Option<DeviceInfo> {
        (**self).device()
    }

    fn take_return(&mut self) -> Option<DeviceReturn> {
        (**self).take_return()
    }

    fn trailer(&self) -> Option<Vec<u8>> {
        (**self).trailer()
    }

    fn is_away(&self) -> bool {
        (**self).is_away()
    }

    fn keeps_changes(&self) -> bool {
        (**self).keeps_changes()
    }

    fn submit(&mut self, op: Op) {
        (**self).submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        (**self).poll()
    }
}

/// Identifies an operation. The submitter chooses it, and the completion returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// One operation on a medium.
#[derive(Debug)]
pub struct Op {
    /// The identifier that the completion returns.
    pub id: OpId,
    /// The action to carry out.
    pub action: OpAction,
}

/// The action of an operation. Offsets and lengths are in bytes and are multiples of
/// [`Capabilities::logical_block_len`].
#[derive(Debug)]
pub enum OpAction {
    /// Reads `len` bytes at `at`. Bytes that were never written read as zeros.
    Read {
        /// The offset of the first byte.
        at: u64,
        /// The number of bytes, at most [`Capabilities::io_len_max`].
        len: usize,
    },
    /// Writes `data` at `at`.
    Write {
        /// The offset of the first byte.
        at: u64,
        /// The bytes to write, at most [`Capabilities::io_len_max`] of them.
        data: DataList,
        /// When the write may be acknowledged.
        durability: Durability,
    },
    /// Makes durable every write that was acknowledged before this operation was submitted.
    Flush,
    /// Deallocates (unmaps) a range: its storage is freed. The range then reads as zeros if
    /// [`Capabilities::deallocated_reads_zero`] is set, otherwise as any data that it held before.
    Deallocate {
        /// The offset of the first byte.
        at: u64,
        /// The number of bytes, without an upper bound.
        len: u64,
    },
    /// Makes a range read as zeros.
    WriteZeroes {
        /// The offset of the first byte.
        at: u64,
        /// The number of bytes, without an upper bound.
        len: u64,
        /// Whether the medium may deallocate the range. If not, the range stays or becomes allocated.
        may_deallocate: bool,
        /// When the operation may be acknowledged.
        durability: Durability,
    },
    /// Reports which parts of a range have storage (GET LBA STATUS).
    MapStatus {
        /// The offset of the first byte.
        at: u64,
        /// The number of bytes to report on.
        len: u64,
        /// The most extents to return. The extents may then cover less than the range.
        count_max: usize,
    },
    /// Replaces the key that encrypts the whole medium by a fresh one, durably: no data written before can be
    /// read any more (CRYPTOGRAPHIC ERASE). The caller submits this while no read or write is under way, and
    /// submits none until it completes.
    ///
    /// If it fails, either the medium still has the old key, or it returns [`Fault::Gone`] from then on.
    CryptoErase,
    /// Sends a command to a medium that is a device ([`Store::device`]). Commands reach the device in the
    /// order in which they are submitted.
    Command(Box<DeviceCommand>),
    /// Resets the device: it ends the commands that it executes, and those that have not reached it end with
    /// [`Fault::Aborted`]. A process that may not reset the device ends only the latter.
    Reset,
}

/// A command for a device, whose bytes the store passes on.
#[derive(Debug)]
pub struct DeviceCommand {
    /// The bytes of the command.
    pub bytes: Vec<u8>,
    /// The data that belongs to it.
    pub transfer: Transfer,
    /// After how many seconds the system aborts the command.
    pub timeout_s: u32,
}

/// The data of a command for a device.
#[derive(Debug)]
pub enum Transfer {
    /// None.
    Nothing,
    /// The device sends up to this many bytes.
    In(usize),
    /// The device receives these bytes.
    Out(DataList),
}

impl Transfer {
    /// Returns how many bytes are transferred at most.
    pub fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::In(len) => *len,
            Self::Out(data) => data.len(),
        }
    }

    /// Returns whether no byte is transferred.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a device answered to a command.
#[derive(Debug)]
pub struct DeviceResponse {
    /// The status byte.
    pub status: u8,
    /// What the device says about the status, as it sent it.
    pub sense: Vec<u8>,
    /// The bytes that the device sent. For a command that sends bytes to the device: those bytes, so that the
    /// caller can recycle the buffers or send the command again.
    pub data: DataList,
    /// How many bytes were transferred.
    pub transferred: usize,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its type, as the device reports it.
    pub kind: u8,
    /// The length of its blocks in bytes, if it had blocks when it was opened.
    pub block_len: Option<u32>,
    /// The most bytes that one command can transfer.
    pub transfer_max: u32,
}

/// How a device is there again that was away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceReturn {
    /// It was removed from this host, and was opened again. What it reported at its start is lost: the system
    /// has read it.
    Restarted,
    /// The connection to its process was lost, and there is another one. The device itself reports what it
    /// has forgotten.
    Reconnected,
}

impl OpAction {
    /// Returns whether the operation changes the medium.
    pub const fn is_change(&self) -> bool {
        matches!(
            self,
            Self::Write { .. } | Self::Deallocate { .. } | Self::WriteZeroes { .. } | Self::CryptoErase
        )
    }

    /// Returns the offset of the operation and its length in bytes; (0, 0) for those without a range.
    pub fn range(&self) -> (u64, u64) {
        let wide = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
        match self {
            Self::Read { at, len } => (*at, wide(*len)),
            Self::Write { at, data, .. } => (*at, wide(data.len())),
            Self::Deallocate { at, len }
            | Self::WriteZeroes { at, len, .. }
            | Self::MapStatus { at, len, .. } => (*at, *len),
            Self::Flush | Self::CryptoErase | Self::Command(_) | Self::Reset => (0, 0),
        }
    }
}

/// When a write may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// As soon as later reads return it.
    Cached,
    /// Only once it survives a loss of power (FUA).
    Stable,
}

/// How an operation ended.
#[derive(Debug)]
pub struct Completion {
    /// The identifier of the operation.
    pub id: OpId,
    /// The result.
    pub result: Result<OpOutput, Failure>,
}

/// The result of an operation that succeeded.
#[derive(Debug)]
pub enum OpOutput {
    /// The bytes of a `Read`: exactly as many as it asked for.
    Data(DataList),
    /// A `Write`, `Flush`, `Deallocate`, `WriteZeroes` or `CryptoErase` is done. A write returns its data, so
    /// that the caller can recycle the buffers.
    Done(DataList),
    /// The extents of a `MapStatus`: in order, without gaps, the first at its `at`.
    MapStatus(Vec<Extent>),
    /// The answer to a `Command`.
    Response(Box<DeviceResponse>),
}

/// A run of bytes with one allocation state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The offset of the first byte.
    pub at: u64,
    /// The length in bytes.
    pub len: u64,
    /// Whether the run has storage.
    pub state: ExtentState,
}

/// Whether a run of bytes has storage (mapped, deallocated or anchored).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentState {
    /// The run has storage.
    Mapped,
    /// The run has no storage and reads as zeros.
    Hole,
    /// The run has storage reserved for it and reads as zeros.
    Anchored,
}

/// How an operation failed. A failed write may have changed any part of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind of failure.
    pub fault: Fault,
    /// The first byte that could not be read or written, if the medium knows it.
    pub at: Option<u64>,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self { fault, at: None }
    }
}

/// The kinds of failure. A device server returns different sense data for different kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The medium could not deliver or keep the data (EIO).
    Medium,
    /// No storage is left (ENOSPC, EDQUOT).
    NoSpace,
    /// The medium cannot be written (EROFS, EPERM, EBADF of a read-only open).
    ReadOnly,
    /// The medium is gone (ENODEV, ENXIO, or the file was truncated below the size of the device).
    Gone,
    /// The range extends beyond the medium.
    OutOfRange,
    /// The medium does not support the operation at all.
    Unsupported,
    /// The hardware that drives the medium is broken.
    Hardware,
    /// Another user of the medium holds a reservation on it.
    Reserved,
    /// The caller may not use the medium, or may not use it in this way.
    Forbidden,
    /// The medium was overloaded, or not ready, for longer than the timeout.
    Busy,
    /// Another party aborted the operation before it completed.
    Aborted,
    /// The operation was never submitted to the medium. A flush that fails this way loses no data.
    NotSubmitted,
    /// The caller broke the rules of [`Store`]: a bug in targe.
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

/// How much storage a medium occupies, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The storage that is allocated to the medium.
    pub used: u64,
    /// The storage that can still be allocated to it: at most as much as the medium has deallocated blocks.
    pub available: u64,
    /// Whether other media compete for the same free storage.
    pub shared: bool,
}

/// What a medium is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The size in bytes.
    pub len: u64,
    /// Offsets and lengths must be multiples of this many bytes (512 or more for O_DIRECT, else 1).
    pub logical_block_len: u32,
    /// The preferred granularity of writes in bytes, a power of two (a page, a physical sector).
    pub preferred_block_len: u32,
    /// The longest read or write in bytes, a multiple of 1 MiB.
    pub io_len_max: usize,
    /// The longest atomic write in bytes: neither the end of the process nor a loss of power tears a write of
    /// this length. Zero if the medium promises no atomic writes.
    pub atomic_len_max: usize,
    /// Whether the medium refuses every change.
    pub read_only: bool,
    /// Whether a loss of power before a flush can lose acknowledged writes (a volatile write cache).
    pub volatile_cache: bool,
    /// Whether the medium can deallocate storage (thin provisioning).
    pub thin: bool,
    /// Whether deallocated ranges read as zeros.
    pub deallocated_reads_zero: bool,
    /// Whether [`OpAction::WriteZeroes`] deallocates whole blocks where it may, and writes no zeros for them.
    pub zeroes_by_deallocating: bool,
    /// Whether what a deallocated range held can never be read again, whatever it reads as.
    pub deallocated_is_gone: bool,
    /// Whether the medium is a rotating disk.
    pub rotational: bool,
    /// Whether the medium is encrypted under a key that it can replace ([`OpAction::CryptoErase`]).
    pub crypto_erase: bool,
}
