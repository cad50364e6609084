//! SCSI Response (RFC 7143 §11.4, with the status qualifier of RFC 7144 §5.2.1). Its data segment is a 2-byte
//! length and that many bytes of sense data, then optionally response data.

use transport::initiator::Residual;
use transport::initiator::ServiceResponse;
use zerocopy::byteorder::big_endian::{U16, U32};

use super::{Bhs, FINAL, Itt, Malformed, Opcode, PduHeader, TargetSn, expect, first_byte};
use super::{read_residual, residual_count, residual_flags};
use crate::serial::{CmdSn, DataSn, StatSn};

/// A SCSI Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiResponse {
    /// Whether the target could execute the command at all.
    pub response: ServiceResponse,
    /// The SCSI status; 0 without [`ServiceResponse::COMPLETED`].
    pub status: u8,
    /// The status qualifier of SAM-5; 0 if RFC 7144 was not negotiated.
    pub status_qualifier: u16,
    /// Names the task.
    pub itt: Itt,
    /// Copied from an R-Data SNACK, else zero.
    pub snack_tag: u32,
    /// The sequence numbers.
    pub sn: TargetSn,
    /// How many Data-In and R2T PDUs the target sent for the command.
    pub exp_data_sn: DataSn,
    /// The residual count of the read data of a bidirectional command; none without
    /// [`ServiceResponse::COMPLETED`], like the other one.
    pub bidirectional_read_residual: Residual,
    /// The residual count of the data.
    pub residual: Residual,
}

impl PduHeader for ScsiResponse {
    const OPCODE: Opcode = Opcode::SCSI_RESPONSE;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        let bidirectional = raw.bidirectional_read_residual.get();
        //= rfc7143#section-11.4.3
        //# A non-zero response field indicates a failure to execute the command, in which case the Status and
        //# Flag fields are undefined and MUST be ignored on reception.
        let completed = raw.response == ServiceResponse::COMPLETED.0;
        let flags = if completed { raw.flags } else { 0 };
        Ok(Self {
            response: ServiceResponse(raw.response),
            status: if completed { raw.status } else { 0 },
            status_qualifier: raw.status_qualifier.get(),
            itt: Itt(raw.itt.get()),
            snack_tag: raw.snack_tag.get(),
            sn: TargetSn {
                stat_sn: StatSn(raw.stat_sn.get()),
                exp_cmd_sn: CmdSn(raw.exp_cmd_sn.get()),
                max_cmd_sn: CmdSn(raw.max_cmd_sn.get()),
            },
            exp_data_sn: DataSn(raw.exp_data_sn.get()),
            bidirectional_read_residual: read_residual(
                flags,
                BIDIRECTIONAL_OVERFLOW,
                BIDIRECTIONAL_UNDERFLOW,
                bidirectional,
            )?,
            residual: read_residual(flags, OVERFLOW, UNDERFLOW, raw.residual.get())?,
        })
    }

    fn encode(&self) -> Bhs {
        let bidirectional = self.bidirectional_read_residual;
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, false),
            flags: FINAL
                | residual_flags(bidirectional, BIDIRECTIONAL_OVERFLOW, BIDIRECTIONAL_UNDERFLOW)
                | residual_flags(self.residual, OVERFLOW, UNDERFLOW),
            response: self.response.0,
            status: self.status,
            lengths: [0; 4],
            status_qualifier: self.status_qualifier.into(),
            reserved: [0; 6],
            itt: self.itt.0.into(),
            snack_tag: self.snack_tag.into(),
            stat_sn: self.sn.stat_sn.0.into(),
            exp_cmd_sn: self.sn.exp_cmd_sn.0.into(),
            max_cmd_sn: self.sn.max_cmd_sn.0.into(),
            exp_data_sn: self.exp_data_sn.0.into(),
            bidirectional_read_residual: residual_count(bidirectional).into(),
            //= rfc7143#section-11.4.5.1
            //# The Residual Count field MUST be valid in the case where either the U bit or the O bit is set.
            residual: residual_count(self.residual).into(),
        })
    }
}

const BIDIRECTIONAL_OVERFLOW: u8 = 0x10;
const BIDIRECTIONAL_UNDERFLOW: u8 = 0x08;
const OVERFLOW: u8 = 0x04;
const UNDERFLOW: u8 = 0x02;

layout! {
    struct Layout {
        opcode: u8,
        flags: u8,
        response: u8,
        status: u8,
        lengths: [u8; 4],
        status_qualifier: U16,
        reserved: [u8; 6],
        itt: U32,
        snack_tag: U32,
        stat_sn: U32,
        exp_cmd_sn: U32,
        max_cmd_sn: U32,
        exp_data_sn: U32,
        bidirectional_read_residual: U32,
        residual: U32,
    }
}
