//! Logout Request (RFC 7143 §11.14): ends a session or a connection, or prepares a connection for recovery.

use zerocopy::byteorder::big_endian::{U16, U32};

use super::{Bhs, FINAL, Itt, Malformed, Opcode, PduHeader, expect, first_byte};
use crate::serial::{CmdSn, StatSn};

/// A Logout Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutRequest {
    /// Whether the request is delivered immediately and uses no CmdSN.
    pub immediate: bool,
    /// What the request ends.
    pub reason: LogoutReason,
    /// Names this request.
    pub itt: Itt,
    /// The connection to end; means nothing if the session is to end.
    pub cid: u16,
    /// The CmdSN of the request, or the next one if it is immediate.
    pub cmd_sn: CmdSn,
    /// ExpStatSN: all statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
}

/// The reason of a logout: what it ends (§11.14.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogoutReason {
    /// Every connection of the session, and the session.
    CloseSession,
    /// One connection.
    CloseConnection,
    /// One connection, whose tasks another connection will take over.
    RemoveForRecovery,
}

impl PduHeader for LogoutRequest {
    const OPCODE: Opcode = Opcode::LOGOUT_REQUEST;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        Ok(Self {
            immediate: bhs.is_immediate(),
            reason: match raw.reason & REASON {
                0 => LogoutReason::CloseSession,
                1 => LogoutReason::CloseConnection,
                2 => LogoutReason::RemoveForRecovery,
                _ => return Err(Malformed::ReservedLogoutReason),
            },
            itt: Itt(raw.itt.get()),
            cid: raw.cid.get(),
            cmd_sn: CmdSn(raw.cmd_sn.get()),
            exp_stat_sn: StatSn(raw.exp_stat_sn.get()),
        })
    }

    fn encode(&self) -> Bhs {
        let reason = match self.reason {
            LogoutReason::CloseSession => 0,
            LogoutReason::CloseConnection => 1,
            LogoutReason::RemoveForRecovery => 2,
        };
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, self.immediate),
            reason: FINAL | reason,
            reserved: [0; 2],
            //= rfc7143#section-11.14.2
            //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
            lengths: [0; 4],
            reserved2: [0; 8],
            itt: self.itt.0.into(),
            cid: self.cid.into(),
            reserved3: [0; 2],
            cmd_sn: self.cmd_sn.0.into(),
            exp_stat_sn: self.exp_stat_sn.0.into(),
            reserved4: [0; 16],
        })
    }
}

const REASON: u8 = 0x7f;

layout! {
    struct Layout {
        opcode: u8,
        reason: u8,
        reserved: [u8; 2],
        lengths: [u8; 4],
        reserved2: [u8; 8],
        itt: U32,
        cid: U16,
        reserved3: [u8; 2],
        cmd_sn: U32,
        exp_stat_sn: U32,
        reserved4: [u8; 16],
    }
}
