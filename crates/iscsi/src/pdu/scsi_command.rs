//! SCSI Command (RFC 7143 §11.3, with the priority of RFC 7144 §5.1.1). Its data segment is immediate data.
//! Additional header segments hold a CDB longer than 16 bytes and the length of a bidirectional read.

use transport::command::TaskAttribute;
use zerocopy::byteorder::big_endian::{U32, U64};

use super::{Bhs, FINAL, Itt, Malformed, Opcode, PduHeader, bit, expect, first_byte};
use crate::serial::{CmdSn, StatSn};

/// A SCSI Command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiCommand {
    /// Whether the command is delivered immediately and uses no CmdSN.
    pub immediate: bool,
    /// Whether no unsolicited Data-Out follows.
    pub is_final: bool,
    /// Whether the initiator expects to receive data.
    pub read: bool,
    /// Whether the initiator expects to send data.
    pub write: bool,
    /// The task attribute.
    pub attribute: TaskAttribute,
    /// The command priority of RFC 7144, 0 to 15; 0 if that was not negotiated.
    pub priority: u8,
    /// The logical unit.
    pub lun: u64,
    /// Names the task.
    pub itt: Itt,
    /// How many bytes the initiator expects to send, or to receive if the command does not write.
    pub expected_data_transfer_length: u32,
    /// The CmdSN of the command, or the next one if it is immediate.
    pub cmd_sn: CmdSn,
    /// ExpStatSN: all statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
    /// The first 16 bytes of the CDB, padded with zeros.
    pub cdb: [u8; 16],
}

impl PduHeader for ScsiCommand {
    const OPCODE: Opcode = Opcode::SCSI_COMMAND;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        let attribute = TaskAttribute(raw.flags & ATTRIBUTE);
        if attribute.0 > TaskAttribute::ACA.0 {
            return Err(Malformed::ReservedAttribute);
        }
        let (is_final, write) = (raw.flags & FINAL != 0, raw.flags & WRITE != 0);
        //= rfc7143#section-11.3.1
        //# At least one of the W and F bits MUST be set to 1.
        if !is_final && !write {
            return Err(Malformed::UnsolicitedWithoutWrite);
        }
        Ok(Self {
            immediate: bhs.is_immediate(),
            is_final,
            read: raw.flags & READ != 0,
            write,
            attribute,
            priority: raw.priority >> 4,
            lun: raw.lun.get(),
            itt: Itt(raw.itt.get()),
            expected_data_transfer_length: raw.expected_data_transfer_length.get(),
            cmd_sn: CmdSn(raw.cmd_sn.get()),
            exp_stat_sn: StatSn(raw.exp_stat_sn.get()),
            cdb: raw.cdb,
        })
    }

    fn encode(&self) -> Bhs {
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, self.immediate),
            flags: bit(self.is_final, FINAL)
                | bit(self.read, READ)
                | bit(self.write, WRITE)
                | (self.attribute.0 & ATTRIBUTE),
            priority: self.priority << 4,
            reserved: 0,
            lengths: [0; 4],
            lun: self.lun.into(),
            itt: self.itt.0.into(),
            expected_data_transfer_length: self.expected_data_transfer_length.into(),
            cmd_sn: self.cmd_sn.0.into(),
            exp_stat_sn: self.exp_stat_sn.0.into(),
            cdb: self.cdb,
        })
    }
}

const READ: u8 = 0x40;
const WRITE: u8 = 0x20;
const ATTRIBUTE: u8 = 0x07;

layout! {
    struct Layout {
        opcode: u8,
        flags: u8,
        priority: u8,
        reserved: u8,
        lengths: [u8; 4],
        lun: U64,
        itt: U32,
        expected_data_transfer_length: U32,
        cmd_sn: U32,
        exp_stat_sn: U32,
        cdb: [u8; 16],
    }
}
