//! LOAD UNLOAD (SSC-4).

use cartridge::command::{self, Command};
use cartridge::error::Error;
use scsi::cdb::Cdb;
use scsi::sense::Sense;

use super::motion::START;
use super::turn::{TapeCommand, failed, in_turn_or_at_once, run};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{JobStep, Outcome};
use crate::pr::conflict::Conflict;
use crate::tape_drive::{DriveState, NOT_PRESENT};
use crate::task::TaskInfo;

/// IMMED, which has no effect on an unload.
const IMMEDIATE: u8 = 0x01;
/// LOAD, in byte 4.
const LOAD: u8 = 0x01;
/// EOT, in byte 4: unload at the end of the medium.
const END_OF_TAPE: u8 = 0x04;

/// Returns the conflict class: the position and the medium are those of every host.
pub(super) const fn conflict(_: &Cdb) -> Conflict {
    Conflict::Writes
}

pub(super) fn load_unload(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let flags = task.cdb.u8(4);
    if flags & END_OF_TAPE != 0 {
        return Outcome::CheckCondition(Sense::invalid_cdb(4, Some(2)));
    }
    let is_load = flags & LOAD != 0;
    if !is_load && let Some(sense) = server.removal_prevented() {
        return Outcome::CheckCondition(sense);
    }
    // An unload writes what the drive holds. Its host, which may not come back, is told whether that is lost.
    let is_immediate = is_load && task.cdb.u8(1) & IMMEDIATE != 0;
    in_turn_or_at_once(server, task, is_immediate, LoadUnload { is_load })
}

#[derive(Debug)]
struct LoadUnload {
    is_load: bool,
}

impl TapeCommand for LoadUnload {
    const NEEDS_CARTRIDGE: bool = false;

    fn start(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        let is_loaded = server.tape.as_ref().is_some_and(|drive| drive.is_loaded());
        match (self.is_load, is_loaded) {
            (true, true) => run(server, Command::Locate { partition: 0, destination: START }),
            (true, false) if server.tape.as_ref().is_some_and(|drive| drive.state == DriveState::Empty) => {
                JobStep::Done(Outcome::CheckCondition(NOT_PRESENT))
            }
            (true, false) => {
                server.begin_load(Some(task.nexus));
                JobStep::Wait
            }
            (false, true) => {
                // A host may have prevented it, or the cartridge may be another one, since the task arrived.
                if let Some(sense) = server.removal_prevented().or_else(|| server.tape_changed()) {
                    server.tape_attention_reported(task, sense.asc);
                    return JobStep::Done(Outcome::CheckCondition(sense));
                }
                server.demounted(Some(task.nexus));
                run(server, Command::Unload)
            }
            (false, false) => JobStep::Done(Outcome::Good),
        }
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
