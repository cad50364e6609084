//! The blocks that a command addresses: address and length from the CDB, checked against the medium.

use base::units::{Blocks, Lba};
use scsi::cdb::Cdb;
use scsi::opcode;
use scsi::sense::{Asc, Sense};

use crate::device_server::UnitInfo;

/// A range of logical blocks that lies on the medium, in blocks and in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The first block.
    pub(crate) lba: Lba,
    /// How many.
    pub(crate) blocks: Blocks,
    /// The first byte.
    pub(crate) at: u64,
    /// How many bytes.
    pub(crate) len: u64,
}

/// Reads the address and length fields of a CDB. Their offsets follow from the length of the CDB, because all
/// SBC commands of one length have them at the same offsets (SBC-4 §5). A length of zero in a six-byte CDB
/// means 256 blocks.
pub(crate) fn fields(cdb: &Cdb) -> (Lba, Blocks) {
    let (lba, blocks) = match cdb.len_by_opcode() {
        Some(6) => {
            let blocks = cdb.u8(4);
            (u64::from(cdb.u24(1) & 0x1f_ffff), if blocks == 0 { 256 } else { u32::from(blocks) })
        }
        Some(10) => (u64::from(cdb.u32(2)), u32::from(cdb.u16(7))),
        Some(12) => (u64::from(cdb.u32(2)), cdb.u32(6)),
        Some(16) => (cdb.u64(2), cdb.u32(10)),
        _ => (cdb.u64(12), cdb.u32(28)),
    };
    (Lba(lba), Blocks(u64::from(blocks)))
}

/// Returns the byte of the CDB at which the length begins. In two commands of 16 bytes it is shorter than
/// what [`fields`] reads, and the bytes before it are reserved.
pub(crate) fn length_field(cdb: &Cdb) -> u16 {
    match (cdb.len_by_opcode(), cdb.opcode()) {
        (_, opcode::COMPARE_AND_WRITE) => 13,
        (_, opcode::WRITE_ATOMIC_16) => 12,
        (Some(6), _) => 4,
        (Some(10), _) => 7,
        (Some(12), _) => 6,
        (Some(16), _) => 10,
        _ => 28,
    }
}

/// Returns the byte of the CDB at which [`fields`] finds the address.
pub(crate) fn address_field(cdb: &Cdb) -> u16 {
    match cdb.len_by_opcode() {
        Some(6) => 1,
        Some(10 | 12 | 16) => 2,
        _ => 12,
    }
}

impl Span {
    /// Returns the span that a CDB addresses.
    ///
    /// # Errors
    /// LOGICAL BLOCK ADDRESS OUT OF RANGE when it exceeds the medium; also with a length of zero behind the
    /// end.
    pub(crate) fn of(facts: &UnitInfo, cdb: &Cdb) -> Result<Self, Sense> {
        let (lba, blocks) = fields(cdb);
        Self::new(facts, lba, blocks)
    }

    /// Returns the span for a given address and length.
    ///
    /// # Errors
    /// LOGICAL BLOCK ADDRESS OUT OF RANGE.
    pub(crate) fn new(facts: &UnitInfo, lba: Lba, blocks: Blocks) -> Result<Self, Sense> {
        let size = facts.block_size();
        let fits = lba.after(blocks).is_some_and(|end| end.0 <= facts.capacity().0);
        match (fits, size.offset_of(lba), size.len_of(blocks)) {
            (true, Some(at), Some(len)) => Ok(Self { lba, blocks, at: at.0, len: len.0 }),
            _ => Err(Sense::illegal(Asc::LBA_OUT_OF_RANGE).with_information(lba.0)),
        }
    }

    /// Returns the span that a CDB addresses for a transfer.
    ///
    /// # Errors
    /// Those of [`Self::of`], and INVALID FIELD IN CDB when the span is longer than MAXIMUM TRANSFER LENGTH.
    pub(crate) fn of_transfer(facts: &UnitInfo, cdb: &Cdb) -> Result<Self, Sense> {
        let span = Self::of(facts, cdb)?;
        span.check_length(cdb, u64::from(facts.config.transfer_blocks_max))?;
        Ok(span)
    }

    /// Refuses a span longer than `blocks_max`.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB, pointing at the length.
    pub(crate) fn check_length(&self, cdb: &Cdb, blocks_max: u64) -> Result<(), Sense> {
        if self.blocks.0 <= blocks_max { Ok(()) } else { Err(Sense::invalid_cdb(length_field(cdb), None)) }
    }
}
