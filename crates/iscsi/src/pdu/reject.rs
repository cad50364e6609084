//! Reject (RFC 7143 §11.17): the target refuses a PDU. The data segment is the header of that PDU.

use zerocopy::byteorder::big_endian::U32;

use super::{Bhs, FINAL, Itt, Malformed, Opcode, PduHeader, TargetSn, expect, first_byte};
use crate::serial::{CmdSn, DataSn, StatSn};

/// A Reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The reason of the refusal.
    pub reason: RejectReason,
    /// The sequence numbers.
    pub sn: TargetSn,
    /// The next number of the task's Data-In or R2T PDUs, if a SNACK for them was refused as a protocol error
    /// (§11.17.2), else zero.
    pub data_sn: DataSn,
}

base::code8! {
    /// The reason why a PDU is refused (§11.17.1).
    pub struct RejectReason {
        /// The digest of the PDU's data segment was wrong.
        DATA_DIGEST_ERROR = 0x02;
        /// The SNACK cannot be served.
        SNACK_REJECT = 0x03;
        /// The PDU is not allowed in this state.
        PROTOCOL_ERROR = 0x04;
        /// The opcode is not supported.
        COMMAND_NOT_SUPPORTED = 0x05;
        /// Too many immediate requests are open.
        TOO_MANY_IMMEDIATE = 0x06;
        /// A task with the PDU's tag exists.
        TASK_IN_PROGRESS = 0x07;
        /// The PDU acknowledges data that needs no acknowledgement.
        INVALID_DATA_ACK = 0x08;
        /// A field of the PDU is illegal.
        INVALID_PDU_FIELD = 0x09;
        /// The target has no transfer tag left for a long text negotiation.
        LONG_OPERATION_REJECT = 0x0a;
        /// The connection is being logged out.
        WAITING_FOR_LOGOUT = 0x0c;
    }
}

impl PduHeader for Reject {
    const OPCODE: Opcode = Opcode::REJECT;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        Ok(Self {
            reason: RejectReason(raw.reason),
            sn: TargetSn {
                stat_sn: StatSn(raw.stat_sn.get()),
                exp_cmd_sn: CmdSn(raw.exp_cmd_sn.get()),
                max_cmd_sn: CmdSn(raw.max_cmd_sn.get()),
            },
            data_sn: DataSn(raw.data_sn.get()),
        })
    }

    fn encode(&self) -> Bhs {
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, false),
            flags: FINAL,
            reason: self.reason.0,
            reserved: 0,
            lengths: [0; 4],
            reserved2: [0; 8],
            itt: Itt::NONE.0.into(),
            reserved3: [0; 4],
            stat_sn: self.sn.stat_sn.0.into(),
            exp_cmd_sn: self.sn.exp_cmd_sn.0.into(),
            max_cmd_sn: self.sn.max_cmd_sn.0.into(),
            data_sn: self.data_sn.0.into(),
            reserved4: [0; 8],
        })
    }
}

layout! {
    struct Layout {
        opcode: u8,
        flags: u8,
        reason: u8,
        reserved: u8,
        lengths: [u8; 4],
        reserved2: [u8; 8],
        itt: U32,
        reserved3: [u8; 4],
        stat_sn: U32,
        exp_cmd_sn: U32,
        max_cmd_sn: U32,
        data_sn: U32,
        reserved4: [u8; 8],
    }
}
