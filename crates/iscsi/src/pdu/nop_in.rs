//! NOP-In (RFC 7143 §11.19): a target's answer to a ping, its own ping, or an update of its sequence numbers.

use zerocopy::byteorder::big_endian::{U32, U64};

use super::{Bhs, FINAL, Itt, Malformed, Opcode, PduHeader, TargetSn, Ttt, expect, first_byte};
use crate::serial::{CmdSn, StatSn};

/// A NOP-In.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NopIn {
    /// Copied from the ping that the PDU answers; in a target's ping, any LUN, to be copied into the answer.
    pub lun: u64,
    /// Copied from the ping that the PDU answers, else [`Itt::NONE`].
    pub itt: Itt,
    /// Names a target's ping; [`Ttt::NONE`] requests no answer.
    pub ttt: Ttt,
    /// The sequence numbers. Only an answer to a ping uses up `stat_sn`.
    pub sn: TargetSn,
}

impl PduHeader for NopIn {
    const OPCODE: Opcode = Opcode::NOP_IN;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        Ok(Self {
            lun: raw.lun.get(),
            itt: Itt(raw.itt.get()),
            ttt: Ttt(raw.ttt.get()),
            sn: TargetSn {
                stat_sn: StatSn(raw.stat_sn.get()),
                exp_cmd_sn: CmdSn(raw.exp_cmd_sn.get()),
                max_cmd_sn: CmdSn(raw.max_cmd_sn.get()),
            },
        })
    }

    fn encode(&self) -> Bhs {
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, false),
            flags: FINAL,
            reserved: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            itt: self.itt.0.into(),
            ttt: self.ttt.0.into(),
            stat_sn: self.sn.stat_sn.0.into(),
            exp_cmd_sn: self.sn.exp_cmd_sn.0.into(),
            max_cmd_sn: self.sn.max_cmd_sn.0.into(),
            reserved2: [0; 12],
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
        reserved2: [u8; 12],
    }
}
