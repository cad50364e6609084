//! FORMAT MEDIUM and SET CAPACITY (SSC-4): a blank cartridge with other partitions.

use alloc::vec::Vec;

use cartridge::command::{self, Command};
use cartridge::error::Error;
use cartridge::label::PARTITION_LEN_MIN;
use scsi::sense::{Asc, Sense};

use super::turn::{TapeCommand, failed, in_turn_or_at_once, run};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{JobStep, Outcome};
use crate::task::TaskInfo;

/// IMMED.
const IMMEDIATE: u8 = 0x01;
/// CAPACITY PROPORTION VALUE of the whole capacity.
const WHOLE: u16 = 0xffff;

/// The FORMAT field.
mod layout {
    /// One partition.
    pub(super) const DEFAULT: u8 = 0;
    /// As the medium partition page says.
    pub(super) const BY_PAGE: u8 = 1;
    /// The default, then as the page says: the cartridge is blank after that too.
    pub(super) const DEFAULT_THEN_BY_PAGE: u8 = 2;
}

pub(super) fn format_medium(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let division = match task.cdb.u8(2) & 0x0f {
        layout::DEFAULT => Division::One,
        layout::BY_PAGE | layout::DEFAULT_THEN_BY_PAGE => Division::ByPage,
        _ => return Outcome::CheckCondition(Sense::invalid_cdb(2, Some(3))),
    };
    let is_immediate = task.cdb.u8(1) & IMMEDIATE != 0;
    in_turn_or_at_once(server, task, is_immediate, Format { division })
}

pub(super) fn set_capacity(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let division = match task.cdb.u16(3) {
        WHOLE => Division::One,
        proportion => Division::Part(proportion),
    };
    let is_immediate = task.cdb.u8(1) & IMMEDIATE != 0;
    in_turn_or_at_once(server, task, is_immediate, Format { division })
}

/// Into what a cartridge is divided.
#[derive(Clone, Copy, Debug)]
enum Division {
    /// One partition with the whole capacity.
    One,
    /// One partition with so many 65,535ths of it.
    Part(u16),
    /// As a host has set in the medium partition page, or as it is.
    ByPage,
}

#[derive(Debug)]
struct Format {
    division: Division,
}

impl Format {
    /// Returns the capacities of the partitions, if the cartridge may be formatted now.
    fn partitions(&self, server: &DeviceServer) -> Result<Vec<u64>, Sense> {
        let drive = server.tape.as_ref().filter(|drive| drive.is_loaded());
        let Some((drive, label)) = drive.and_then(|drive| Some((drive, drive.cartridge().label()?))) else {
            return Err(crate::tape_drive::NOT_PRESENT);
        };
        server.check_format()?;
        let position = drive.cartridge().position();
        if (position.partition, position.object) != (0, 0) {
            return Err(Sense::illegal(Asc::POSITION_PAST_BEGINNING_OF_MEDIUM));
        }
        match self.division {
            Division::One => Ok(Vec::from([label.capacity])),
            Division::Part(proportion) => {
                let part = u128::from(label.capacity) * u128::from(proportion) / u128::from(WHOLE);
                let part = u64::try_from(part).unwrap_or(label.capacity);
                if part < PARTITION_LEN_MIN {
                    Err(Sense::invalid_cdb(3, None))
                } else {
                    Ok(Vec::from([part]))
                }
            }
            Division::ByPage => match server.settings.stream.partitioning {
                Some(page) => page
                    .capacities(label.capacity)
                    .ok_or(Sense::illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST)),
                None => Ok(label.partitions.iter().map(|part| part.capacity).collect()),
            },
        }
    }
}

impl TapeCommand for Format {
    fn start(&mut self, server: &mut DeviceServer, _: &TaskInfo) -> JobStep {
        let label = server.tape.as_ref().and_then(|drive| drive.cartridge().label());
        if label.is_some_and(|label| label.is_worm) {
            return failed(server, &Error::Worm);
        }
        match self.partitions(server) {
            Ok(partitions) => run(server, Command::Format { partitions }),
            Err(sense) => JobStep::Done(Outcome::CheckCondition(sense)),
        }
    }

    fn ended(
        &mut self,
        server: &mut DeviceServer,
        task: &TaskInfo,
        result: Result<command::Outcome, Error>,
    ) -> JobStep {
        match result {
            Ok(_) => {
                server.settings.stream.partitioning = None;
                // The medium partition page tells what there is now.
                server.nexuses.establish_ua_all(Asc::MODE_PARAMETERS_CHANGED, Some(task.nexus));
                JobStep::Done(Outcome::Good)
            }
            Err(error) => failed(server, &error),
        }
    }
}
