//! Text Response (RFC 7143 §11.11). Its data segment is text keys.

use zerocopy::byteorder::big_endian::{U32, U64};

use super::{
    Bhs, CONTINUE, FINAL, Itt, Malformed, Opcode, PduHeader, TargetSn, Ttt, bit, expect, first_byte,
};
use crate::serial::{CmdSn, StatSn};

/// A Text Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextResponse {
    /// Whether the target has no more text to send in this negotiation.
    pub is_final: bool,
    /// Whether the text continues in the next response.
    pub continues: bool,
    /// The LUN to be copied into the next request together with `ttt`.
    pub lun: u64,
    /// Names the text negotiation.
    pub itt: Itt,
    /// The target's name for the text negotiation; [`Ttt::NONE`] once the negotiation is over.
    pub ttt: Ttt,
    /// The sequence numbers.
    pub sn: TargetSn,
}

impl PduHeader for TextResponse {
    const OPCODE: Opcode = Opcode::TEXT_RESPONSE;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        let (is_final, continues) = (raw.flags & FINAL != 0, raw.flags & CONTINUE != 0);
        if is_final && continues {
            return Err(Malformed::FinalAndContinue);
        }
        Ok(Self {
            is_final,
            continues,
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
            flags: bit(self.is_final, FINAL) | bit(self.continues, CONTINUE),
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
