//! READ POSITION (SSC-4).

use alloc::vec::Vec;

use cartridge::command::{self, Position};
use cartridge::error::Error;
use scsi::opcode::read_position as form;

use super::drive::EarlyWarning;
use super::turn::{TapeCommand, in_turn};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{JobStep, Outcome};
use crate::task::TaskInfo;

/// The flags of byte 0.
mod flag {
    /// BOP: at the beginning of the partition.
    pub(super) const BEGINNING: u8 = 0x80;
    /// EOP: between the early warning and the end of the partition.
    pub(super) const END: u8 = 0x40;
    /// LOCU: how many objects the buffer holds is not known.
    pub(super) const OBJECT_COUNT_UNKNOWN: u8 = 0x20;
    /// BYCU: how many bytes the buffer holds is not known.
    pub(super) const BYTE_COUNT_UNKNOWN: u8 = 0x10;
    /// PERR: a number does not fit into its field.
    pub(super) const OVERFLOW: u8 = 0x02;
    /// BPEW: in the programmable early warning zone, or behind it.
    pub(super) const PROGRAMMABLE_END: u8 = 0x01;
}

pub(super) fn read_position(_: &mut DeviceServer, _: &TaskInfo) -> Outcome {
    // A position is told when no command before this one is still moving it.
    in_turn(ReadPosition)
}

#[derive(Debug)]
struct ReadPosition;

impl TapeCommand for ReadPosition {
    fn start(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        let Some(drive) = &server.tape else { return JobStep::unexpected_input() };
        let space = drive.cartridge().space();
        let place = Place {
            position: drive.cartridge().position(),
            is_at_end: space.is_some_and(|space| space.is_early_warning),
            is_at_programmable_end: space.is_some_and(|space| EarlyWarning::new(server).is_behind(space)),
            is_unsynced: drive.is_unsynced(),
        };
        let (bytes, allocation) = match u16::from(task.cdb.u8(1) & 0x1f) {
            form::LONG => (place.long(), u64::MAX),
            form::EXTENDED => (place.extended(), u64::from(task.cdb.u16(7))),
            // Linux sends the vendor-specific form, and expects it to be the short one.
            _ => (place.short(), u64::MAX),
        };
        JobStep::Done(Outcome::ParameterData { bytes, allocation })
    }

    fn ended(&mut self, _: &mut DeviceServer, _: &TaskInfo, _: Result<command::Outcome, Error>) -> JobStep {
        JobStep::unexpected_input()
    }
}

struct Place {
    position: Position,
    is_at_end: bool,
    is_at_programmable_end: bool,
    is_unsynced: bool,
}

impl Place {
    fn flags(&self) -> u8 {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        bit(self.position.object == 0, flag::BEGINNING)
            | bit(self.is_at_end, flag::END)
            | bit(self.is_at_programmable_end, flag::PROGRAMMABLE_END)
    }

    /// The flags of the forms that tell what the buffer holds.
    fn buffer_flags(&self) -> u8 {
        let unknown = flag::OBJECT_COUNT_UNKNOWN | flag::BYTE_COUNT_UNKNOWN;
        self.flags() | if self.is_unsynced { unknown } else { 0 }
    }

    fn short(&self) -> Vec<u8> {
        let object = u32::try_from(self.position.object);
        let overflow = if object.is_err() { flag::OVERFLOW } else { 0 };
        let object = object.unwrap_or(0).to_be_bytes();
        let mut bytes = Vec::from([self.buffer_flags() | overflow, self.position.partition, 0, 0]);
        bytes.extend_from_slice(&object);
        bytes.extend_from_slice(&object);
        bytes.extend_from_slice(&[0; 8]);
        bytes
    }

    fn long(&self) -> Vec<u8> {
        let mut bytes = Vec::from([self.flags(), 0, 0, 0, 0, 0, 0, self.position.partition]);
        bytes.extend_from_slice(&self.position.object.to_be_bytes());
        bytes.extend_from_slice(&self.position.filemarks.to_be_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes
    }

    fn extended(&self) -> Vec<u8> {
        let object = self.position.object.to_be_bytes();
        let mut bytes = Vec::from([self.buffer_flags(), self.position.partition, 0, 0x1c, 0, 0, 0, 0]);
        bytes.extend_from_slice(&object);
        bytes.extend_from_slice(&object);
        bytes.extend_from_slice(&[0; 8]);
        bytes
    }
}
