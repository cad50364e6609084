//! Translates requests of copy managers into the equivalent commands, so that every check of a command
//! applies.

use alloc::boxed::Box;
use core::cell::RefCell;

use base::buffer::DataList;
use base::units::{Blocks, Lba};
use scsi::cdb::Cdb;
use scsi::opcode;
use scsi::sense::{Asc, Sense};
use scsi::status::Status;

use crate::contract::{
    NexusId, ThirdPartyCaller, ThirdPartyError, ThirdPartyReply, ThirdPartyRequest, ThirdPartyResult,
};
use crate::device_server::DeviceServer;
use crate::task::{Origin, TaskInfo, ThirdPartyTask};

/// Returns the task for a request.
///
/// # Errors
/// The answer, where no task is needed or none is possible.
pub(crate) fn task_of(
    server: &mut DeviceServer,
    caller: ThirdPartyCaller,
    nexus: NexusId,
    request: ThirdPartyRequest,
) -> Result<TaskInfo, ThirdPartyResult> {
    let has_blocks = server.pass_through.is_none() && is_block_device(server.command_set.device_type.0);
    let is_described = server.pass_through.is_none() && matches!(request, ThirdPartyRequest::Describe);
    if !has_blocks && !is_described {
        // A copy manager reads and writes blocks, which this unit knows nothing of. For a tape drive the same
        // bytes of the CDB mean another length.
        return Err(Err(ThirdPartyError::NotReachable));
    }
    let mut redeemed = None;
    let request = match request {
        ThirdPartyRequest::ReadToken { token, offset, blocks } => {
            let range = server.resolve_token(&token, offset, blocks).map_err(refused)?;
            redeemed = Some(token);
            ThirdPartyRequest::Read { lba: range.lba, blocks: range.blocks }
        }
        other => other,
    };
    let facts = &server.info;
    let block = u64::from(facts.block_size().bytes());
    let bytes = |blocks: Blocks| {
        let len = blocks.0.checked_mul(block).and_then(|len| u32::try_from(len).ok());
        len.ok_or_else(|| refused(Sense::invalid_cdb(10, None)))
    };
    let count = |blocks: Blocks| u32::try_from(blocks.0).map_err(|_| refused(Sense::invalid_cdb(10, None)));
    let mut data_out = DataList::new();
    let (cdb, data_in_len) = match request {
        ThirdPartyRequest::Describe => {
            return Err(match server.not_ready() {
                Some(sense) => refused(sense),
                None => Ok(ThirdPartyReply::Description {
                    blocks: facts.capacity(),
                    block_size: facts.block_size(),
                    device_type: server.command_set.device_type.0,
                }),
            });
        }
        ThirdPartyRequest::Read { lba, blocks } => {
            (cdb_16(opcode::READ_16, 0, lba, count(blocks)?), bytes(blocks)?)
        }
        ThirdPartyRequest::Write { lba, data } => {
            let len = u64::try_from(data.len()).unwrap_or(u64::MAX);
            let blocks = count(Blocks(len / block))?;
            data_out = data;
            (cdb_16(opcode::WRITE_16, 0, lba, blocks), 0)
        }
        ThirdPartyRequest::Zero { lba, blocks } => {
            // UNMAP if the unit is thin, and no Data-Out buffer: the blocks read as zeros.
            let flags = if facts.is_thin() { 0x09 } else { 0x01 };
            (cdb_16(opcode::WRITE_SAME_16, flags, lba, count(blocks)?), 0)
        }
        ThirdPartyRequest::Flush => (cdb_16(opcode::SYNCHRONIZE_CACHE_16, 0, Lba(0), 0), 0),
        ThirdPartyRequest::ReadToken { .. } => return Err(refused(Sense::illegal(Asc::TOKEN_UNKNOWN))),
    };
    let data_out_len = u32::try_from(data_out.len()).unwrap_or(u32::MAX);
    let peer = ThirdPartyTask { caller, data_out, data_in: RefCell::new(DataList::new()), token: redeemed };
    Ok(TaskInfo::new(Origin::ThirdParty(Box::new(peer)), nexus, cdb).with_lengths(data_in_len, data_out_len))
}

/// Returns whether units of a device type are block devices, which the segment descriptors for blocks require
/// (SPC-4 §6.4.6).
pub(crate) const fn is_block_device(device_type: u8) -> bool {
    matches!(device_type, 0x00 | 0x04 | 0x05 | 0x07 | 0x0e)
}

fn refused(sense: Sense) -> ThirdPartyResult {
    Err(ThirdPartyError::Status(Status::CHECK_CONDITION, Some(sense)))
}

/// Returns a 16-byte CDB with an address and a count at the offsets that all these commands share.
fn cdb_16(code: u8, flags: u8, lba: Lba, count: u32) -> Cdb {
    let mut bytes = [0; 16];
    let [first, second, rest @ ..] = &mut bytes;
    (*first, *second) = (code, flags);
    let (address, rest) = rest.split_at_mut(8);
    address.copy_from_slice(&lba.0.to_be_bytes());
    if let Some((length, _)) = rest.split_at_mut_checked(4) {
        length.copy_from_slice(&count.to_be_bytes());
    }
    Cdb::from_16(bytes)
}
