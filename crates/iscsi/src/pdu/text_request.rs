//! Text Request (RFC 7143 §11.10). Its data segment is text keys.

use zerocopy::byteorder::big_endian::{U32, U64};

use super::{Bhs, CONTINUE, FINAL, Itt, Malformed, Opcode, PduHeader, Ttt, bit, expect, first_byte};
use crate::serial::{CmdSn, StatSn};

/// A Text Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextRequest {
    /// Whether the request is delivered immediately and uses no CmdSN.
    pub immediate: bool,
    /// Whether the initiator has no more text to send in this negotiation.
    pub is_final: bool,
    /// Whether the text continues in the next request.
    pub continues: bool,
    /// Copied from the response that the request continues, else zero.
    pub lun: u64,
    /// Names the text negotiation.
    pub itt: Itt,
    /// Copied from the response that the request continues, else [`Ttt::NONE`].
    pub ttt: Ttt,
    /// The CmdSN of the request, or the next one if it is immediate.
    pub cmd_sn: CmdSn,
    /// ExpStatSN: all statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
}

impl PduHeader for TextRequest {
    const OPCODE: Opcode = Opcode::TEXT_REQUEST;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        let (is_final, continues) = (raw.flags & FINAL != 0, raw.flags & CONTINUE != 0);
        //= rfc7143#section-11.10.2
        //# A Text Request with the C bit set to 1 MUST have the F bit set to 0.
        if is_final && continues {
            return Err(Malformed::FinalAndContinue);
        }
        Ok(Self {
            immediate: bhs.is_immediate(),
            is_final,
            continues,
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
            flags: bit(self.is_final, FINAL) | bit(self.continues, CONTINUE),
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
