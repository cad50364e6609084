//! Asynchronous Message (RFC 7143 §11.9): the target reports an event that no request asked about. For a SCSI
//! event the data segment is a 2-byte length and that many bytes of sense data.

use zerocopy::byteorder::big_endian::{U16, U32, U64};

use super::{Bhs, FINAL, Itt, Malformed, Opcode, PduHeader, TargetSn, expect, first_byte};
use crate::serial::{CmdSn, StatSn};

/// An Asynchronous Message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncMessage {
    /// The logical unit, for events that have one.
    pub lun: u64,
    /// The sequence numbers.
    pub sn: TargetSn,
    /// The event.
    pub event: AsyncEventCode,
    /// The vendor who defined a vendor-specific event.
    pub vendor_code: u8,
    /// For a dropped connection its CID, else defined by the event.
    pub parameter1: u16,
    /// Seconds to wait before logging in again (Time2Wait), for events that define it.
    pub parameter2: u16,
    /// Seconds for which the target keeps tasks (Time2Retain), or within which the initiator must log out,
    /// for events that define it.
    pub parameter3: u16,
}

base::code8! {
    /// The event that the target reports (§11.9.1).
    pub struct AsyncEventCode {
        /// A SCSI asynchronous event, with sense data.
        SCSI = 0;
        /// The initiator must log this connection out within `parameter3` seconds.
        LOGOUT_REQUEST = 1;
        /// The target will drop, or has dropped, connection `parameter1`.
        CONNECTION_DROP = 2;
        /// The target drops every connection of this session.
        SESSION_DROP = 3;
        /// The initiator must start a text negotiation within `parameter3` seconds.
        NEGOTIATION_REQUEST = 4;
        /// All tasks on a logical unit are terminated (FastAbort, §4.2.3.4).
        TASKS_TERMINATED = 5;
        /// Vendor-specific.
        VENDOR = 255;
    }
}

impl PduHeader for AsyncMessage {
    const OPCODE: Opcode = Opcode::ASYNC_MESSAGE;

    fn decode(bhs: &Bhs) -> Result<Self, Malformed> {
        expect(bhs, Self::OPCODE)?;
        let raw: Layout = zerocopy::transmute!(*bhs);
        Ok(Self {
            lun: raw.lun.get(),
            sn: TargetSn {
                stat_sn: StatSn(raw.stat_sn.get()),
                exp_cmd_sn: CmdSn(raw.exp_cmd_sn.get()),
                max_cmd_sn: CmdSn(raw.max_cmd_sn.get()),
            },
            event: AsyncEventCode(raw.event),
            vendor_code: raw.vendor_code,
            parameter1: raw.parameter1.get(),
            parameter2: raw.parameter2.get(),
            parameter3: raw.parameter3.get(),
        })
    }

    fn encode(&self) -> Bhs {
        zerocopy::transmute!(Layout {
            opcode: first_byte(Self::OPCODE, false),
            flags: FINAL,
            reserved: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            itt: Itt::NONE.0.into(),
            reserved2: [0; 4],
            stat_sn: self.sn.stat_sn.0.into(),
            exp_cmd_sn: self.sn.exp_cmd_sn.0.into(),
            max_cmd_sn: self.sn.max_cmd_sn.0.into(),
            event: self.event.0,
            vendor_code: self.vendor_code,
            parameter1: self.parameter1.into(),
            parameter2: self.parameter2.into(),
            parameter3: self.parameter3.into(),
            reserved3: [0; 4],
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
        reserved2: [u8; 4],
        stat_sn: U32,
        exp_cmd_sn: U32,
        max_cmd_sn: U32,
        event: u8,
        vendor_code: u8,
        parameter1: U16,
        parameter2: U16,
        parameter3: U16,
        reserved3: [u8; 4],
    }
}
