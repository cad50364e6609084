//! Task Management Function Response (RFC 7143 §11.6). It has no data segment.

use transport::task_management::TmfResult;
use zerocopy::byteorder::big_endian::U32;

use super::{Bhs, FINAL, Itt, Malformed, Opcode, PduHeader, TargetSn, expect, first_byte};
use crate::serial::{CmdSn, StatSn};

/// A Task Management Function Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmfResponse {
    /// The result of the request.
    pub response: TmfResult,
    /// Names the request.
    pub itt: Itt,
    /// The sequence numbers.
    pub sn: TargetSn,
}

impl PduHeader for TmfResponse {
    const OPCODE: Opcode = Opcode::TMF_RESPONSE;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        Ok(Self {
            response: TmfResult(raw.response),
            itt: Itt(raw.itt.get()),
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
            response: self.response.0,
            reserved: 0,
            //= rfc7143#section-11.6.2
            //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
            lengths: [0; 4],
            reserved2: [0; 8],
            itt: self.itt.0.into(),
            reserved3: [0; 4],
            stat_sn: self.sn.stat_sn.0.into(),
            exp_cmd_sn: self.sn.exp_cmd_sn.0.into(),
            max_cmd_sn: self.sn.max_cmd_sn.0.into(),
            reserved4: [0; 12],
        })
    }
}

layout! {
    struct Layout {
        opcode: u8,
        flags: u8,
        response: u8,
        reserved: u8,
        lengths: [u8; 4],
        reserved2: [u8; 8],
        itt: U32,
        reserved3: [u8; 4],
        stat_sn: U32,
        exp_cmd_sn: U32,
        max_cmd_sn: U32,
        reserved4: [u8; 12],
    }
}
