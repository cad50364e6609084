//! Logout Response (RFC 7143 §11.15).

use zerocopy::byteorder::big_endian::{U16, U32};

use super::{Bhs, FINAL, Itt, Malformed, Opcode, PduHeader, TargetSn, expect, first_byte};
use crate::serial::{CmdSn, StatSn};

/// A Logout Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutResponse {
    /// The result of the request.
    pub response: LogoutResult,
    /// Names the request.
    pub itt: Itt,
    /// The sequence numbers.
    pub sn: TargetSn,
    /// Seconds to wait before logging in again.
    pub time2wait: u16,
    /// Seconds after `time2wait` for which tasks can be reassigned.
    pub time2retain: u16,
}

base::code8! {
    /// The result of a logout (§11.15.1).
    pub struct LogoutResult {
        /// The connection or session is closed.
        CLOSED = 0;
        /// The CID names no connection.
        NO_CID = 1;
        /// The target does not support connection recovery.
        NO_RECOVERY = 2;
        /// The cleanup failed.
        CLEANUP_FAILED = 3;
    }
}

impl PduHeader for LogoutResponse {
    const OPCODE: Opcode = Opcode::LOGOUT_RESPONSE;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        Ok(Self {
            response: LogoutResult(raw.response),
            itt: Itt(raw.itt.get()),
            sn: TargetSn {
                stat_sn: StatSn(raw.stat_sn.get()),
                exp_cmd_sn: CmdSn(raw.exp_cmd_sn.get()),
                max_cmd_sn: CmdSn(raw.max_cmd_sn.get()),
            },
            time2wait: raw.time2wait.get(),
            time2retain: raw.time2retain.get(),
        })
    }

    fn encode(&self) -> Bhs {
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, false),
            flags: FINAL,
            response: self.response.0,
            reserved: 0,
            //= rfc7143#section-11.15.2
            //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
            lengths: [0; 4],
            reserved2: [0; 8],
            itt: self.itt.0.into(),
            reserved3: [0; 4],
            stat_sn: self.sn.stat_sn.0.into(),
            exp_cmd_sn: self.sn.exp_cmd_sn.0.into(),
            max_cmd_sn: self.sn.max_cmd_sn.0.into(),
            reserved4: [0; 4],
            time2wait: self.time2wait.into(),
            time2retain: self.time2retain.into(),
            reserved5: [0; 4],
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
        reserved4: [u8; 4],
        time2wait: U16,
        time2retain: U16,
        reserved5: [u8; 4],
    }
}
