//! Login Response (RFC 7143 §11.13). Its data segment is text keys.

use zerocopy::byteorder::big_endian::{U16, U32};

use super::{Bhs, CONTINUE, FINAL, Itt, Malformed, Opcode, PduHeader, TargetSn, bit, expect, first_byte};
use crate::serial::{CmdSn, StatSn};

/// The header of a Login Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginResponse {
    /// T: the target is ready for the next stage too.
    pub transit: bool,
    /// C: the text continues in the next response.
    pub continues: bool,
    /// The current stage, 0 to 3.
    pub csg: u8,
    /// The next stage, 0 to 3; means nothing without `transit`.
    pub nsg: u8,
    /// The highest version that the target supports.
    pub version_max: u8,
    /// The version in use.
    pub version_active: u8,
    /// The initiator's half of the session identifier.
    pub isid: [u8; 6],
    /// The target's half, once the session exists.
    pub tsih: u16,
    /// Names the login.
    pub itt: Itt,
    /// The sequence numbers.
    pub sn: TargetSn,
    /// The status: class in the high byte, detail in the low one.
    pub status: u16,
}

impl PduHeader for LoginResponse {
    const OPCODE: Opcode = Opcode::LOGIN_RESPONSE;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        let (transit, continues) = (raw.flags & FINAL != 0, raw.flags & CONTINUE != 0);
        if transit && continues {
            return Err(Malformed::FinalAndContinue);
        }
        Ok(Self {
            transit,
            continues,
            csg: (raw.flags >> 2) & STAGE,
            nsg: raw.flags & STAGE,
            version_max: raw.version_max,
            version_active: raw.version_active,
            isid: raw.isid,
            tsih: raw.tsih.get(),
            itt: Itt(raw.itt.get()),
            sn: TargetSn {
                stat_sn: StatSn(raw.stat_sn.get()),
                exp_cmd_sn: CmdSn(raw.exp_cmd_sn.get()),
                max_cmd_sn: CmdSn(raw.max_cmd_sn.get()),
            },
            status: raw.status.get(),
        })
    }

    fn encode(&self) -> Bhs {
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, false),
            flags: bit(self.transit, FINAL)
                | bit(self.continues, CONTINUE)
                | ((self.csg & STAGE) << 2)
                | (self.nsg & STAGE),
            version_max: self.version_max,
            version_active: self.version_active,
            lengths: [0; 4],
            isid: self.isid,
            tsih: self.tsih.into(),
            itt: self.itt.0.into(),
            reserved: [0; 4],
            stat_sn: self.sn.stat_sn.0.into(),
            exp_cmd_sn: self.sn.exp_cmd_sn.0.into(),
            max_cmd_sn: self.sn.max_cmd_sn.0.into(),
            status: self.status.into(),
            reserved2: [0; 10],
        })
    }
}

const STAGE: u8 = 3;

layout! {
    struct Layout {
        opcode: u8,
        flags: u8,
        version_max: u8,
        version_active: u8,
        lengths: [u8; 4],
        isid: [u8; 6],
        tsih: U16,
        itt: U32,
        reserved: [u8; 4],
        stat_sn: U32,
        exp_cmd_sn: U32,
        max_cmd_sn: U32,
        status: U16,
        reserved2: [u8; 10],
    }
}
