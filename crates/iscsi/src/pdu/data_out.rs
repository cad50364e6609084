//! SCSI Data-Out (RFC 7143 §11.7): data from the initiator, unsolicited or in answer to an R2T.

use zerocopy::byteorder::big_endian::{U32, U64};

use super::{Bhs, FINAL, Itt, Malformed, Opcode, PduHeader, Ttt, bit, expect, first_byte};
use crate::serial::{DataSn, StatSn};

/// A SCSI Data-Out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOut {
    /// Whether the PDU ends its sequence: the unsolicited data, or the answer to one R2T.
    pub is_final: bool,
    /// Copied from the R2T that the PDU answers; means nothing in unsolicited data.
    pub lun: u64,
    /// Names the task.
    pub itt: Itt,
    /// Copied from the R2T that the PDU answers; [`Ttt::NONE`] in unsolicited data.
    pub ttt: Ttt,
    /// ExpStatSN: all statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
    /// The number of the PDU in its sequence, from 0.
    pub data_sn: DataSn,
    /// The offset of the data from the start of the command's data, in bytes.
    pub buffer_offset: u32,
}

impl PduHeader for DataOut {
    const OPCODE: Opcode = Opcode::DATA_OUT;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        Ok(Self {
            is_final: raw.flags & FINAL != 0,
            lun: raw.lun.get(),
            itt: Itt(raw.itt.get()),
            ttt: Ttt(raw.ttt.get()),
            exp_stat_sn: StatSn(raw.exp_stat_sn.get()),
            data_sn: DataSn(raw.data_sn.get()),
            buffer_offset: raw.buffer_offset.get(),
        })
    }

    fn encode(&self) -> Bhs {
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, false),
            flags: bit(self.is_final, FINAL),
            reserved: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            itt: self.itt.0.into(),
            ttt: self.ttt.0.into(),
            reserved2: [0; 4],
            exp_stat_sn: self.exp_stat_sn.0.into(),
            reserved3: [0; 4],
            data_sn: self.data_sn.0.into(),
            buffer_offset: self.buffer_offset.into(),
            reserved4: [0; 4],
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
        reserved2: [u8; 4],
        exp_stat_sn: U32,
        reserved3: [u8; 4],
        data_sn: U32,
        buffer_offset: U32,
        reserved4: [u8; 4],
    }
}
