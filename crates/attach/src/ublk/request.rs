//! Maps each request of the kernel to an operation on the medium, and tracks which tags may have a request.
//! It owns no file and no medium.

use store::api::{Durability, Failure, OpAction, OpOutput};

use super::params::DeviceParams;
use super::wire::{ABORTED, Descriptor, IoCommand, REQUEST_FUA, REQUEST_NOUNMAP, RequestOp, SECTOR};
use crate::errno;
use base::int_cast::to_usize;

/// A parsed request.
#[derive(Debug)]
pub(super) enum Request {
    /// The medium reads; its data are the payload.
    Read { at: u64, len: usize },
    /// The payload is copied from the kernel, and the medium writes it.
    Write { at: u64, len: usize, durability: Durability },
    /// The medium executes the operation; there is no payload.
    Plain(OpAction),
}

/// Parses a request, or returns the error to answer with: EIO for a request that no correct kernel sends,
/// EOPNOTSUPP for an unknown operation.
pub(super) fn parse_request(request: &Descriptor, told: &DeviceParams) -> Result<Request, i32> {
    if request.op() == RequestOp::FLUSH {
        return Ok(Request::Plain(OpAction::Flush));
    }
    let (at, len) = range(request, told).ok_or(libc::EIO)?;
    // The kernel marks the writes that must be durable only if it was told that the others are not. Otherwise
    // every write must be durable: the cache may be switched on at any time, also while the write is under
    // way.
    let durable = request.has(REQUEST_FUA) || !told.cache;
    let durability = if durable { Durability::Stable } else { Durability::Cached };
    match request.op() {
        RequestOp::READ | RequestOp::WRITE if len > told.io_len_max => Err(libc::EIO),
        RequestOp::READ => Ok(Request::Read { at, len: to_usize(len) }),
        RequestOp::WRITE => Ok(Request::Write { at, len: to_usize(len), durability }),
        RequestOp::DISCARD => Ok(Request::Plain(OpAction::Deallocate { at, len })),
        RequestOp::WRITE_ZEROES => {
            let may_deallocate = !request.has(REQUEST_NOUNMAP);
            Ok(Request::Plain(OpAction::WriteZeroes { at, len, may_deallocate, durability }))
        }
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// Returns the range of a request in bytes, if it consists of whole blocks of the device.
fn range(request: &Descriptor, told: &DeviceParams) -> Option<(u64, u64)> {
    let at = request.start.checked_mul(SECTOR)?;
    let len = u64::from(request.sectors) * SECTOR;
    let end = at.checked_add(len)?;
    // A block length of zero never matches.
    let whole = told.block > 0 && at.is_multiple_of(told.block) && len.is_multiple_of(told.block);
    (whole && len > 0 && end <= told.len).then_some((at, len))
}

/// Returns the result with which to answer a request with a payload of `len` bytes (or none).
pub(super) fn result(len: usize, outcome: &Result<OpOutput, Failure>) -> i32 {
    match outcome {
        Err(failure) => -errno::of_fault(failure.fault),
        // The result is of another kind than the operation.
        Ok(OpOutput::Data(data)) if data.len() != len => -libc::EIO,
        Ok(OpOutput::MapStatus(_) | OpOutput::Response(_)) => -libc::EIO,
        Ok(_) => i32::try_from(len).unwrap_or(-libc::EIO),
    }
}

/// The state of each tag.
#[derive(Debug)]
pub(super) struct Tags {
    tags: Vec<Tag>,
    ended: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    /// Its command waits in the kernel.
    Fetching,
    /// Its request is being served.
    Serving,
    /// It gets no more requests.
    Ended,
}

/// The meaning of a command's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TagCompletion {
    /// The tag has a request.
    Request(u16),
    /// The tag gets no more requests; the device ends, so no other tag will either.
    Ended,
    /// The kernel refused the command with this error: a bug of this process, and the tag is lost.
    Refused(i32),
    /// No command of this tag was in the kernel.
    Unasked,
}

impl Tags {
    /// Starts with the command of each tag waiting in the kernel.
    pub(super) fn new(depth: u16) -> Self {
        Self { tags: vec![Tag::Fetching; depth.into()], ended: 0 }
    }

    /// Handles the completion of a command.
    pub(super) fn arrived(&mut self, name: u64, result: i32) -> TagCompletion {
        let Ok(number) = u16::try_from(name) else { return TagCompletion::Unasked };
        match self.tags.get_mut(usize::from(number)) {
            Some(tag) if *tag == Tag::Fetching => {
                if result >= 0 {
                    *tag = Tag::Serving;
                    return TagCompletion::Request(number);
                }
                *tag = Tag::Ended;
                self.ended += 1;
                if result == ABORTED { TagCompletion::Ended } else { TagCompletion::Refused(-result) }
            }
            _ => TagCompletion::Unasked,
        }
    }

    /// Returns the command that answers the request of a tag, if the tag has one.
    pub(super) fn answer(&mut self, number: u16, result: i32) -> Option<IoCommand> {
        let tag = self.tags.get_mut(usize::from(number)).filter(|tag| **tag == Tag::Serving)?;
        *tag = Tag::Fetching;
        Some(IoCommand::commit(number, result))
    }

    /// Returns whether no tag has a request, or gets one any more.
    pub(super) fn are_ended(&self) -> bool {
        self.ended == self.tags.len()
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "the numbers of these tests are random")]
mod tests;
