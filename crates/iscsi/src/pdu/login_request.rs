//! Login Request (RFC 7143 §11.12). Its data segment is text keys; [`crate::login`] interprets it.

use zerocopy::byteorder::big_endian::{U16, U32};

use super::{Bhs, CONTINUE, FINAL, Itt, Malformed, Opcode, PduHeader, bit, expect, first_byte};
use crate::serial::{CmdSn, StatSn};

/// The header of a Login Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginRequest {
    /// T: the initiator is ready for the next stage.
    pub transit: bool,
    /// C: the text continues in the next request.
    pub continues: bool,
    /// The current stage, 0 to 3.
    pub csg: u8,
    /// The next stage, 0 to 3; means nothing without `transit`.
    pub nsg: u8,
    /// The highest version that the initiator supports.
    pub version_max: u8,
    /// The lowest version that the initiator supports.
    pub version_min: u8,
    /// The initiator's half of the session identifier.
    pub isid: [u8; 6],
    /// The target's half; zero for a new session.
    pub tsih: u16,
    /// Names the login; the same in all its requests.
    pub itt: Itt,
    /// The connection's number in its session.
    pub cid: u16,
    /// The first CmdSN on a leading login, else the next one.
    pub cmd_sn: CmdSn,
    /// ExpStatSN: all statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
}

impl PduHeader for LoginRequest {
    const OPCODE: Opcode = Opcode::LOGIN_REQUEST;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        Ok(Self {
            // T and C together are illegal too, but the login answers that error (§11.12.2).
            transit: raw.flags & FINAL != 0,
            continues: raw.flags & CONTINUE != 0,
            csg: (raw.flags >> 2) & STAGE,
            nsg: raw.flags & STAGE,
            version_max: raw.version_max,
            version_min: raw.version_min,
            isid: raw.isid,
            tsih: raw.tsih.get(),
            itt: Itt(raw.itt.get()),
            cid: raw.cid.get(),
            cmd_sn: CmdSn(raw.cmd_sn.get()),
            exp_stat_sn: StatSn(raw.exp_stat_sn.get()),
        })
    }

    fn encode(&self) -> Bhs {
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, true),
            flags: bit(self.transit, FINAL)
                | bit(self.continues, CONTINUE)
                | ((self.csg & STAGE) << 2)
                | (self.nsg & STAGE),
            version_max: self.version_max,
            version_min: self.version_min,
            lengths: [0; 4],
            isid: self.isid,
            tsih: self.tsih.into(),
            itt: self.itt.0.into(),
            cid: self.cid.into(),
            reserved: [0; 2],
            cmd_sn: self.cmd_sn.0.into(),
            exp_stat_sn: self.exp_stat_sn.0.into(),
            reserved2: [0; 16],
        })
    }
}

const STAGE: u8 = 3;

layout! {
    struct Layout {
        opcode: u8,
        flags: u8,
        version_max: u8,
        version_min: u8,
        lengths: [u8; 4],
        isid: [u8; 6],
        tsih: U16,
        itt: U32,
        cid: U16,
        reserved: [u8; 2],
        cmd_sn: U32,
        exp_stat_sn: U32,
        reserved2: [u8; 16],
    }
}
