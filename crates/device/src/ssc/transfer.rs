//! What READ, WRITE and VERIFY have in common: the transfer in fixed-length or variable-length blocks.

use cartridge::layout::RECORD_LEN_MAX;
use scsi::cdb::Cdb;
use scsi::opcode as op;
use scsi::sense::{Sense, SenseKey};

use crate::contract::TAPE_TRANSFER_MAX;
use crate::device_server::DeviceServer;
use crate::settings::StreamSettings;
use crate::task::TaskInfo;

/// FIXED: the transfer length counts blocks.
const FIXED: u8 = 0x01;

/// The longest block in bytes.
pub(super) const BLOCK_LEN_MAX: u32 = StreamSettings::BLOCK_LEN_MAX;
const _: () = assert!(BLOCK_LEN_MAX as usize == RECORD_LEN_MAX);

/// The most bytes of fixed-length blocks that a command transfers: a transport holds the Data-In of a command
/// until it is sent, and a command keeps its turn until its end.
pub(super) const TRANSFER_LEN_MAX: u32 = TAPE_TRANSFER_MAX;
const _: () = assert!(TRANSFER_LEN_MAX == BLOCK_LEN_MAX);

/// What a command transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    /// The length of each block in bytes.
    pub(super) block_len: u32,
    /// The number of blocks.
    pub(super) blocks: u32,
    /// Whether the block length is that of the mode parameters.
    pub(super) is_fixed: bool,
}

impl Transfer {
    /// Returns what a CDB transfers. It can be more than any block has, or than there is: READ and VERIFY end
    /// with what they find.
    ///
    /// # Errors
    /// FIXED without a block length.
    pub(super) fn of(server: &DeviceServer, task: &TaskInfo) -> Result<Self, Sense> {
        let cdb = &task.cdb;
        let (_, len) = transfer_length(cdb);
        if cdb.u8(1) & FIXED == 0 {
            return Ok(Self { block_len: len, blocks: u32::from(len > 0), is_fixed: false });
        }
        let block_len = server.nexuses.settings(task.nexus).block_len;
        if block_len == 0 {
            return Err(Sense::invalid_cdb(1, Some(0)));
        }
        Ok(Self { block_len, blocks: len, is_fixed: true })
    }

    /// Returns what a CDB writes.
    ///
    /// # Errors
    /// FIXED without a block length, or a length that no block or no command can have.
    pub(super) fn to_write(server: &DeviceServer, task: &TaskInfo) -> Result<Self, Sense> {
        let transfer = Self::of(server, task)?;
        if transfer.len() > TRANSFER_LEN_MAX {
            return Err(too_long(&task.cdb));
        }
        Ok(transfer)
    }

    /// Returns the length of the whole transfer in bytes, or the largest number if it is longer.
    pub(super) const fn len(self) -> u32 {
        self.block_len.saturating_mul(self.blocks)
    }

    /// Returns what INFORMATION tells of a transfer that ended after `done` blocks: the blocks that are left,
    /// or the length of the block that was requested.
    pub(super) fn left(self, done: u32) -> u64 {
        u64::from(if self.is_fixed { self.blocks.saturating_sub(done) } else { self.block_len })
    }
}

/// Returns the sense data for a transfer length that is too long.
pub(super) fn too_long(cdb: &Cdb) -> Sense {
    Sense::invalid_cdb(transfer_length(cdb).0, None)
}

/// Returns the TRANSFER LENGTH or VERIFICATION LENGTH field, and where it is.
pub(super) fn transfer_length(cdb: &Cdb) -> (u16, u32) {
    match cdb.opcode() {
        op::READ_16 | op::WRITE_16 | op::VERIFY_16 => (12, cdb.u24(12)),
        _ => (2, cdb.u24(2)),
    }
}

/// Returns sense data of a stream with the INFORMATION field.
pub(super) const fn stream_sense(key: SenseKey, asc: scsi::sense::Asc, bits: u8, information: u64) -> Sense {
    Sense::new(key, asc).with_stream_bits(bits).with_information(information)
}
