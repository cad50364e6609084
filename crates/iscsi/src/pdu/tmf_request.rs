//! Task Management Function Request (RFC 7143 §11.5, with the functions of RFC 7144). It has no data segment.

use transport::task_management::TmfFunction;
use zerocopy::byteorder::big_endian::{U32, U64};

use super::{Bhs, FINAL, Itt, Malformed, Opcode, PduHeader, expect, first_byte};
use crate::serial::{CmdSn, DataSn, StatSn};

/// A Task Management Function Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmfRequest {
    /// Whether the request is delivered immediately and uses no CmdSN, as nearly all of them do.
    pub immediate: bool,
    /// The function to execute.
    pub function: TmfFunction,
    /// The logical unit, for functions that have one.
    pub lun: u64,
    /// Names this request.
    pub itt: Itt,
    /// The task to abort, query or reassign, else [`Itt::NONE`].
    pub referenced_task_tag: Itt,
    /// The CmdSN of the request, or the next one if it is immediate.
    pub cmd_sn: CmdSn,
    /// ExpStatSN: all statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
    /// The CmdSN of the task to abort.
    pub ref_cmd_sn: CmdSn,
    /// For a reassignment: the next DataSN or R2TSN that the initiator expects.
    pub exp_data_sn: DataSn,
}

impl PduHeader for TmfRequest {
    const OPCODE: Opcode = Opcode::TMF_REQUEST;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        Ok(Self {
            immediate: bhs.is_immediate(),
            function: TmfFunction(raw.function & FUNCTION),
            lun: raw.lun.get(),
            itt: Itt(raw.itt.get()),
            referenced_task_tag: Itt(raw.referenced_task_tag.get()),
            cmd_sn: CmdSn(raw.cmd_sn.get()),
            exp_stat_sn: StatSn(raw.exp_stat_sn.get()),
            ref_cmd_sn: CmdSn(raw.ref_cmd_sn.get()),
            exp_data_sn: DataSn(raw.exp_data_sn.get()),
        })
    }

    fn encode(&self) -> Bhs {
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, self.immediate),
            function: FINAL | (self.function.0 & FUNCTION),
            reserved: [0; 2],
            //= rfc7143#section-11.5.2
            //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
            lengths: [0; 4],
            lun: self.lun.into(),
            itt: self.itt.0.into(),
            referenced_task_tag: self.referenced_task_tag.0.into(),
            cmd_sn: self.cmd_sn.0.into(),
            exp_stat_sn: self.exp_stat_sn.0.into(),
            ref_cmd_sn: self.ref_cmd_sn.0.into(),
            exp_data_sn: self.exp_data_sn.0.into(),
            reserved2: [0; 8],
        })
    }
}

const FUNCTION: u8 = 0x7f;

layout! {
    struct Layout {
        opcode: u8,
        function: u8,
        reserved: [u8; 2],
        lengths: [u8; 4],
        lun: U64,
        itt: U32,
        referenced_task_tag: U32,
        cmd_sn: U32,
        exp_stat_sn: U32,
        ref_cmd_sn: U32,
        exp_data_sn: U32,
        reserved2: [u8; 8],
    }
}
