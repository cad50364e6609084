//! Ready To Transfer (RFC 7143 §11.8): the target requests a range of a command's data.

use zerocopy::byteorder::big_endian::{U32, U64};

use super::{Bhs, FINAL, Itt, Malformed, Opcode, PduHeader, TargetSn, Ttt, expect, first_byte};
use crate::serial::{CmdSn, R2tSn, StatSn};

/// A Ready To Transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    /// Copied from the command.
    pub lun: u64,
    /// Names the task.
    pub itt: Itt,
    /// Names this R2T; never [`Ttt::NONE`].
    pub ttt: Ttt,
    /// The sequence numbers; `stat_sn` is the next StatSN and is not used up.
    pub sn: TargetSn,
    /// The number of the R2T among the R2Ts of its command, from 0.
    pub r2t_sn: R2tSn,
    /// The offset of the requested range from the start of the command's data, in bytes.
    pub buffer_offset: u32,
    /// The length of the range, in bytes: 1 to MaxBurstLength.
    pub desired_data_transfer_length: u32,
}

impl PduHeader for R2t {
    const OPCODE: Opcode = Opcode::R2T;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        if raw.desired_data_transfer_length.get() == 0 {
            return Err(Malformed::EmptyR2t);
        }
        Ok(Self {
            lun: raw.lun.get(),
            itt: Itt(raw.itt.get()),
            ttt: Ttt(raw.ttt.get()),
            sn: TargetSn {
                stat_sn: StatSn(raw.stat_sn.get()),
                exp_cmd_sn: CmdSn(raw.exp_cmd_sn.get()),
                max_cmd_sn: CmdSn(raw.max_cmd_sn.get()),
            },
            r2t_sn: R2tSn(raw.r2t_sn.get()),
            buffer_offset: raw.buffer_offset.get(),
            desired_data_transfer_length: raw.desired_data_transfer_length.get(),
        })
    }

    fn encode(&self) -> Bhs {
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, false),
            flags: FINAL,
            reserved: [0; 2],
            //= rfc7143#section-11.8.1
            //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
            lengths: [0; 4],
            lun: self.lun.into(),
            itt: self.itt.0.into(),
            ttt: self.ttt.0.into(),
            stat_sn: self.sn.stat_sn.0.into(),
            exp_cmd_sn: self.sn.exp_cmd_sn.0.into(),
            max_cmd_sn: self.sn.max_cmd_sn.0.into(),
            r2t_sn: self.r2t_sn.0.into(),
            buffer_offset: self.buffer_offset.into(),
            desired_data_transfer_length: self.desired_data_transfer_length.into(),
        })
    }
}

layout! {
    struct Layout {
        opcode: u8,
        flags: u8,
        reserved: [u8; 2],
        lengths: [u8; 4],
        lun: U64,
        itt: U32,
        ttt: U32,
        stat_sn: U32,
        exp_cmd_sn: U32,
        max_cmd_sn: U32,
        r2t_sn: U32,
        buffer_offset: U32,
        desired_data_transfer_length: U32,
    }
}
