//! NOP-Out (RFC 7143 §11.18): a ping from the initiator, or its answer to a target's ping. Its data segment
//! is the data that the ping wants echoed.

use zerocopy::byteorder::big_endian::{U32, U64};

use super::{Bhs, FINAL, Itt, Malformed, Opcode, PduHeader, Ttt, expect, first_byte};
use crate::serial::{CmdSn, StatSn};

/// A NOP-Out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NopOut {
    /// Whether the PDU is delivered immediately and uses no CmdSN.
    pub immediate: bool,
    /// Copied from the ping that the PDU answers, else zero.
    pub lun: u64,
    /// Names the ping; [`Itt::NONE`] requests no answer.
    pub itt: Itt,
    /// Copied from the target's ping that the PDU answers, else [`Ttt::NONE`].
    pub ttt: Ttt,
    /// The CmdSN of the PDU, or the next one if it is immediate.
    pub cmd_sn: CmdSn,
    /// ExpStatSN: all statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
}

impl PduHeader for NopOut {
    const OPCODE: Opcode = Opcode::NOP_OUT;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        Ok(Self {
            immediate: bhs.is_immediate(),
            lun: raw.lun.get(),
            itt: Itt(raw.itt.get()),
            ttt: Ttt(raw.ttt.get()),
            cmd_sn: CmdSn(raw.cmd_sn.get()),
            exp_stat_sn: StatSn(raw.exp_stat_sn.get()),
        })
    }

    fn encode(&self) -> Bhs {
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, self.immediate),
            flags: FINAL,
            reserved: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            itt: self.itt.0.into(),
            ttt: self.ttt.0.into(),
            cmd_sn: self.cmd_sn.0.into(),
            exp_stat_sn: self.exp_stat_sn.0.into(),
            reserved2: [0; 16],
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
        cmd_sn: U32,
        exp_stat_sn: U32,
        reserved2: [u8; 16],
    }
}
