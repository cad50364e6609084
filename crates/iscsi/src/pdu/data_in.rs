//! SCSI Data-In (RFC 7143 §11.7): data for the initiator. The last PDU can carry the status of its command.

use transport::initiator::Residual;
use zerocopy::byteorder::big_endian::{U32, U64};

use super::{Bhs, FINAL, Itt, Malformed, Opcode, PduHeader, TargetSn, Ttt, bit, expect, first_byte};
use super::{read_residual, residual_count, residual_flags};
use crate::serial::{CmdSn, DataSn, StatSn};

/// A SCSI Data-In.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataIn {
    /// Whether the PDU ends its sequence.
    pub is_final: bool,
    /// Whether the target requests a SNACK that acknowledges the data (ErrorRecoveryLevel 1 and up only).
    pub acknowledge: bool,
    /// The status, if the command ends with this PDU: good, condition met, or an intermediate one, never one
    /// that needs sense data.
    pub status: Option<DataInStatus>,
    /// Copied from the command if `acknowledge` is set, else zero.
    pub lun: u64,
    /// Names the task.
    pub itt: Itt,
    /// The tag to be copied into the SNACK if `acknowledge` is set, else [`Ttt::NONE`].
    pub ttt: Ttt,
    /// The sequence numbers. `stat_sn` is valid only with a status, and is written as zero without one.
    pub sn: TargetSn,
    /// The number of the PDU among the Data-In PDUs of its command, from 0.
    pub data_sn: DataSn,
    /// The offset of the data from the start of the command's data, in bytes.
    pub buffer_offset: u32,
}

/// The status that the last Data-In carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataInStatus {
    /// The SCSI status.
    pub status: u8,
    /// The residual count of the data.
    pub residual: Residual,
}

impl PduHeader for DataIn {
    const OPCODE: Opcode = Opcode::DATA_IN;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        let is_final = raw.flags & FINAL != 0;
        let status = if raw.flags & STATUS == 0 {
            None
        } else if is_final {
            let residual = read_residual(raw.flags, OVERFLOW, UNDERFLOW, raw.residual.get())?;
            Some(DataInStatus { status: raw.status, residual })
        } else {
            //= rfc7143#section-11.7.3
            //# If this bit is set to 1, the F bit MUST also be set to 1.
            return Err(Malformed::StatusBeforeFinal);
        };
        Ok(Self {
            is_final,
            acknowledge: raw.flags & ACKNOWLEDGE != 0,
            status,
            lun: raw.lun.get(),
            itt: Itt(raw.itt.get()),
            ttt: Ttt(raw.ttt.get()),
            sn: TargetSn {
                stat_sn: StatSn(raw.stat_sn.get()),
                exp_cmd_sn: CmdSn(raw.exp_cmd_sn.get()),
                max_cmd_sn: CmdSn(raw.max_cmd_sn.get()),
            },
            data_sn: DataSn(raw.data_sn.get()),
            buffer_offset: raw.buffer_offset.get(),
        })
    }

    fn encode(&self) -> Bhs {
        let (mut flags, mut status, mut stat_sn, mut residual) = (0, 0, 0, 0);
        if let Some(end) = self.status {
            flags = STATUS | residual_flags(end.residual, OVERFLOW, UNDERFLOW);
            status = end.status;
            stat_sn = self.sn.stat_sn.0;
            residual = residual_count(end.residual);
        }
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, false),
            flags: flags | bit(self.is_final, FINAL) | bit(self.acknowledge, ACKNOWLEDGE),
            reserved: 0,
            status,
            lengths: [0; 4],
            lun: self.lun.into(),
            itt: self.itt.0.into(),
            ttt: self.ttt.0.into(),
            stat_sn: stat_sn.into(),
            exp_cmd_sn: self.sn.exp_cmd_sn.0.into(),
            max_cmd_sn: self.sn.max_cmd_sn.0.into(),
            data_sn: self.data_sn.0.into(),
            buffer_offset: self.buffer_offset.into(),
            residual: residual.into(),
        })
    }
}

const ACKNOWLEDGE: u8 = 0x40;
const OVERFLOW: u8 = 0x04;
const UNDERFLOW: u8 = 0x02;
const STATUS: u8 = 0x01;

layout! {
    struct Layout {
        opcode: u8,
        flags: u8,
        reserved: u8,
        status: u8,
        lengths: [u8; 4],
        lun: U64,
        itt: U32,
        ttt: U32,
        stat_sn: U32,
        exp_cmd_sn: U32,
        max_cmd_sn: U32,
        data_sn: U32,
        buffer_offset: U32,
        residual: U32,
    }
}
