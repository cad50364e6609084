//! Commands that move the medium: REWIND, SPACE and LOCATE (SSC-4); and ERASE, which ends the
//! data at the position.

use cartridge::command::{self, Command, Destination, SpaceUnit, Stop};
use cartridge::error::Error;
use scsi::cdb::Cdb;
use scsi::opcode as op;
use scsi::sense::{Asc, Sense, SenseKey, stream_bits};

use super::transfer::stream_sense;
use super::turn::{TapeCommand, failed, in_turn, in_turn_or_at_once, run};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{JobStep, Outcome};
use crate::task::TaskInfo;

/// IMMED of REWIND and LOCATE.
const IMMEDIATE: u8 = 0x01;
/// IMMED of ERASE.
const ERASE_IMMEDIATE: u8 = 0x02;
/// CP of LOCATE: the position may be in another partition.
const CHANGE_PARTITION: u8 = 0x02;

/// CODE of SPACE.
pub(super) mod space_code {
    pub(super) const LOGICAL_BLOCKS: u8 = 0;
    pub(super) const FILEMARKS: u8 = 1;
    pub(in crate::ssc) const END_OF_DATA: u8 = 3;
}

/// DEST_TYPE of LOCATE(16).
mod destination_type {
    pub(super) const LOGICAL_OBJECT: u8 = 0;
    pub(super) const LOGICAL_FILE: u8 = 1;
    pub(super) const END_OF_DATA: u8 = 3;
}

pub(super) fn rewind(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let is_immediate = task.cdb.u8(1) & IMMEDIATE != 0;
    in_turn_or_at_once(server, task, is_immediate, Locate { partition: None, destination: START })
}

pub(super) fn erase(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let is_immediate = task.cdb.u8(1) & ERASE_IMMEDIATE != 0;
    in_turn_or_at_once(server, task, is_immediate, Erase)
}

pub(super) fn space(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let (code, count) = match cdb.opcode() {
        op::SPACE_16 => (cdb.u8(1) & 0x0f, cdb.u64(4).cast_signed()),
        // 24 bits with a sign.
        _ => (cdb.u8(1) & 0x07, i64::from((cdb.u24(2) << 8).cast_signed() >> 8)),
    };
    let unit = match code {
        space_code::LOGICAL_BLOCKS => SpaceUnit::Records,
        space_code::FILEMARKS => SpaceUnit::Filemarks,
        space_code::END_OF_DATA => SpaceUnit::EndOfData,
        _ => return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(3))),
    };
    if count == 0 && unit != SpaceUnit::EndOfData {
        return Outcome::Good;
    }
    in_turn(Space { unit, count })
}

pub(super) fn locate(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let destination = match destination(cdb) {
        Ok(destination) => destination,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    let at: u8 = if cdb.opcode() == op::LOCATE_16 { 3 } else { 8 };
    let partition = (cdb.u8(1) & CHANGE_PARTITION != 0).then(|| cdb.u8(usize::from(at)));
    let cartridge = server.tape.as_ref().map(|drive| drive.cartridge());
    let exists = |partition| cartridge.is_some_and(|cartridge| cartridge.partition(partition).is_some());
    if partition.is_some_and(|partition| !exists(partition)) {
        return Outcome::CheckCondition(Sense::invalid_cdb(u16::from(at), None));
    }
    let is_immediate = cdb.u8(1) & IMMEDIATE != 0;
    in_turn_or_at_once(server, task, is_immediate, Locate { partition, destination })
}

fn destination(cdb: &Cdb) -> Result<Destination, Sense> {
    if cdb.opcode() == op::LOCATE_10 {
        return Ok(Destination::Object(u64::from(cdb.u32(3))));
    }
    match cdb.u8(1) >> 3 & 7 {
        destination_type::LOGICAL_OBJECT => Ok(Destination::Object(cdb.u64(4))),
        destination_type::LOGICAL_FILE => Ok(Destination::Filemark(cdb.u64(4))),
        destination_type::END_OF_DATA => Ok(Destination::EndOfData),
        _ => Err(Sense::invalid_cdb(1, Some(5))),
    }
}

/// The start of a partition.
pub(super) const START: Destination = Destination::Object(0);

#[derive(Debug)]
struct Space {
    unit: SpaceUnit,
    count: i64,
}

impl TapeCommand for Space {
    fn start(&mut self, server: &mut DeviceServer, _: &TaskInfo) -> JobStep {
        run(server, Command::Space { unit: self.unit, count: self.count })
    }

    fn ended(
        &mut self,
        server: &mut DeviceServer,
        _: &TaskInfo,
        result: Result<command::Outcome, Error>,
    ) -> JobStep {
        match result {
            Ok(command::Outcome::Moved { stop: Some(stop), left }) => stopped(stop, left),
            Ok(_) => JobStep::Done(Outcome::Good),
            Err(error) => failed(server, &error),
        }
    }
}

/// Ends a movement over less than the command said.
fn stopped(stop: Stop, left: u64) -> JobStep {
    let (key, asc, bits) = match stop {
        Stop::Filemark => (SenseKey::NO_SENSE, Asc::FILEMARK_DETECTED, stream_bits::FILEMARK),
        Stop::EndOfData => (SenseKey::BLANK_CHECK, Asc::END_OF_DATA, 0),
        Stop::Start => (SenseKey::NO_SENSE, Asc::BEGINNING_OF_PARTITION, stream_bits::EOM),
    };
    JobStep::Done(Outcome::CheckCondition(stream_sense(key, asc, bits, left)))
}

/// A movement to a place: `None` for the partition of the position.
#[derive(Debug)]
pub(super) struct Locate {
    pub(super) partition: Option<u8>,
    pub(super) destination: Destination,
}

impl TapeCommand for Locate {
    fn start(&mut self, server: &mut DeviceServer, _: &TaskInfo) -> JobStep {
        let position = server.tape.as_ref().map(|drive| drive.cartridge().position());
        let partition = self.partition.or(position.map(|position| position.partition)).unwrap_or(0);
        run(server, Command::Locate { partition, destination: self.destination })
    }

    fn ended(
        &mut self,
        server: &mut DeviceServer,
        _: &TaskInfo,
        result: Result<command::Outcome, Error>,
    ) -> JobStep {
        match result {
            Ok(command::Outcome::Moved { stop: Some(_), .. }) => {
                let sense = Sense::new(SenseKey::BLANK_CHECK, Asc::END_OF_DATA);
                JobStep::Done(Outcome::CheckCondition(sense))
            }
            Ok(_) => JobStep::Done(Outcome::Good),
            Err(error) => failed(server, &error),
        }
    }
}

#[derive(Debug)]
struct Erase;

impl TapeCommand for Erase {
    fn start(&mut self, server: &mut DeviceServer, _: &TaskInfo) -> JobStep {
        if let Err(sense) = server.check_append() {
            return JobStep::Done(Outcome::CheckCondition(sense));
        }
        run(server, Command::Erase)
    }

    fn ended(
        &mut self,
        server: &mut DeviceServer,
        _: &TaskInfo,
        result: Result<command::Outcome, Error>,
    ) -> JobStep {
        match result {
            Ok(_) => JobStep::Done(Outcome::Good),
            Err(error) => failed(server, &error),
        }
    }
}
