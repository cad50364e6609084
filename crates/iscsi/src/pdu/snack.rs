//! SNACK Request (RFC 7143 §11.16): requests PDUs again, or acknowledges data. Used only at
//! ErrorRecoveryLevel 1 and up.

use zerocopy::byteorder::big_endian::{U32, U64};

use super::{Bhs, FINAL, Itt, Malformed, Opcode, PduHeader, expect, first_byte};
use crate::serial::StatSn;

/// A SNACK Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snack {
    /// The kind of the request.
    pub kind: SnackKind,
    /// Copied from the Data-In that the PDU acknowledges, else zero.
    pub lun: u64,
    /// Names the task; [`Itt::NONE`] for statuses and acknowledgements.
    pub itt: Itt,
    /// The transfer tag of the data that the PDU acknowledges, the tag of an R-Data SNACK, or
    /// [`super::Ttt::NONE`]'s value.
    pub tag: u32,
    /// ExpStatSN: all statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
    /// The first number that is missing.
    pub beg_run: u32,
    /// How many numbers are missing; 0 for all from `beg_run` on.
    pub run_length: u32,
}

base::code8! {
    /// The kind of a SNACK (§11.16.1).
    pub struct SnackKind {
        /// Requests Data-In or R2T PDUs, exactly as they were.
        DATA_OR_R2T = 0;
        /// Requests statuses.
        STATUS = 1;
        /// Requests nothing: acknowledges Data-In PDUs.
        DATA_ACK = 2;
        /// Requests Data-In PDUs, resegmented.
        R_DATA = 3;
    }
}

impl PduHeader for Snack {
    const OPCODE: Opcode = Opcode::SNACK;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        Ok(Self {
            kind: SnackKind(raw.kind & KIND),
            lun: raw.lun.get(),
            itt: Itt(raw.itt.get()),
            tag: raw.tag.get(),
            exp_stat_sn: StatSn(raw.exp_stat_sn.get()),
            beg_run: raw.beg_run.get(),
            run_length: raw.run_length.get(),
        })
    }

    fn encode(&self) -> Bhs {
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, false),
            kind: FINAL | (self.kind.0 & KIND),
            reserved: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            itt: self.itt.0.into(),
            tag: self.tag.into(),
            reserved2: [0; 4],
            exp_stat_sn: self.exp_stat_sn.0.into(),
            reserved3: [0; 8],
            beg_run: self.beg_run.into(),
            run_length: self.run_length.into(),
        })
    }
}

const KIND: u8 = 0x0f;

layout! {
    struct Layout {
        opcode: u8,
        kind: u8,
        reserved: [u8; 2],
        lengths: [u8; 4],
        lun: U64,
        itt: U32,
        tag: U32,
        reserved2: [u8; 4],
        exp_stat_sn: U32,
        reserved3: [u8; 8],
        beg_run: U32,
        run_length: U32,
    }
}
