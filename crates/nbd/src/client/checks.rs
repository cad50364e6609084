//! Which operations the export supports, which need no request, and whether an export is still the same.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use base::buffer::DataList;
use base::int_cast::to_u64;
use store::api::{Durability, Extent, ExtentState, Failure, Fault, OpAction, OpOutput};

use super::job::transfer_len;
use super::{Client, IO_LEN_MAX, Link, unreachable};
use crate::handshake::ExportInfo;
use crate::wire::transmission;

impl Client {
    /// Checks an operation. Returns the output of one that needs no request.
    pub(super) fn checked(&mut self, action: &OpAction) -> Result<Option<OpOutput>, Failure> {
        let (at, len) = action.range();
        if at.checked_add(len).is_none_or(|end| end > self.info.len) {
            return Err(Fault::OutOfRange.into());
        }
        let granule = u64::from(self.info.block_len);
        let is_misshapen = !at.is_multiple_of(granule) || !len.is_multiple_of(granule);
        if is_misshapen || transfer_len(action).is_some_and(|len| len > to_u64(IO_LEN_MAX)) {
            return Err(Fault::Bug.into());
        }
        if action.is_change() && self.info.has(transmission::READ_ONLY) {
            return Err(Fault::ReadOnly.into());
        }
        let (trims, zeroes) =
            (self.info.has(transmission::SEND_TRIM), self.info.has(transmission::SEND_WRITE_ZEROES));
        let unsupported = match action {
            OpAction::CryptoErase | OpAction::Command(_) | OpAction::Reset => true,
            OpAction::WriteZeroes { .. } => !zeroes,
            OpAction::Deallocate { .. } => !trims && !zeroes,
            _ => false,
        };
        if unsupported {
            return Err(Fault::Unsupported.into());
        }
        if self.given_up || matches!(self.link, Link::Withheld | Link::Closed) {
            return Err(unreachable(action));
        }
        Ok(match action {
            OpAction::Read { len: 0, .. } => Some(OpOutput::Data(DataList::new())),
            OpAction::MapStatus { at, len, count_max } => {
                let whole = Extent { at: *at, len: *len, state: ExtentState::Mapped };
                match (len, count_max) {
                    (0, _) | (_, 0) => Some(OpOutput::MapStatus(Vec::new())),
                    _ if self.info.allocation_id.is_none() => Some(OpOutput::MapStatus(vec![whole])),
                    _ => None,
                }
            }
            OpAction::Flush if !self.flushes() => match self.lost_changes.take() {
                Some(fault) => return Err(fault.into()),
                None => Some(OpOutput::Done(DataList::new())),
            },
            action if action.is_change() && len == 0 => Some(OpOutput::Done(DataList::new())),
            _ => None,
        })
    }

    /// Returns whether a change must be durable when it is acknowledged: without a write cache each one is.
    pub(super) fn is_stable(&self, action: &OpAction) -> bool {
        let stable = match action {
            OpAction::Write { durability, .. } | OpAction::WriteZeroes { durability, .. } => {
                *durability == Durability::Stable
            }
            _ => false,
        };
        action.is_change() && (stable || !self.config.write_cache)
    }

    /// Returns how another state of the export differs from what is served.
    pub(super) fn compare(&self, info: &ExportInfo) -> Result<(), String> {
        let was = &self.info;
        if info.len < was.len {
            return Err(format!("it has shrunk to {} bytes; {} are served", info.len, was.len));
        }
        let read_only = |info: &ExportInfo| info.has(transmission::READ_ONLY);
        if read_only(info) && !read_only(was) && !self.config.read_only {
            return Err(String::from("it is read-only now"));
        }
        if info.block_len > self.config.block_len {
            return Err(format!("it must be read and written in blocks of {} bytes now", info.block_len));
        }
        for (flag, name) in [
            (transmission::SEND_FLUSH, "FLUSH"),
            (transmission::SEND_TRIM, "TRIM"),
            (transmission::SEND_WRITE_ZEROES, "WRITE_ZEROES"),
        ] {
            if was.has(flag) && !info.has(flag) && !read_only(was) {
                return Err(format!("it does not support {name} any more"));
            }
        }
        Ok(())
    }
}
