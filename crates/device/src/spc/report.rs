//! Commands that only report: existing units, supported commands, pending conditions.

use alloc::vec::Vec;

use base::int_cast::to_u32;
use scsi::log::page;
use scsi::sense::{Asc, Sense, SenseKey};
use scsi::supported::{OneCommand, SupportedCommand, TaskManagement};
use scsi::target_port_groups::Format;

use super::{data, data_or};
use crate::alua;
use crate::contract::SenseBytes;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::device_server::table::Row;
use crate::log::{self, LogRequest, LogSource, Statistics, Storage};
use crate::report_luns;
use crate::sbc::limits;
use crate::self_test::SelfTestResults;
use crate::tape_drive::TransferCounts;
use crate::task::TaskInfo;

/// The sense data of a unit that its operator drains, which answers TEST UNIT READY with BUSY.
const DRAINED: Sense = Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_OPERATION_IN_PROGRESS);

pub(super) fn luns(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let Some(state) = server.nexuses.find_mut(task.nexus) else { return Outcome::Good };
    match report_luns::answer(&task.cdb, &state.nexus.luns) {
        Ok((bytes, allocation)) => {
            // A nexus that reads the list has seen what changed in it (SPC-5 §6.32).
            state.attentions.clear(Asc::REPORTED_LUNS_DATA_HAS_CHANGED);
            Outcome::ParameterData { bytes, allocation }
        }
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

/// TEST UNIT READY: dispatch has already checked that the unit executes commands which use the medium. A
/// medium that is away lets them wait; this command must not.
pub(super) fn test_unit_ready(server: &mut DeviceServer, _: &TaskInfo) -> Outcome {
    server.not_ready().map_or(Outcome::Good, Outcome::CheckCondition)
}

/// REQUEST SENSE: returns the pending unit attention, or why the unit is not ready, or NO SENSE.
pub(super) fn request_sense(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let waiting = server.nexuses.find_mut(task.nexus).and_then(|state| state.attentions.take());
    let nothing = Sense::new(SenseKey::NO_SENSE, Asc::NONE);
    let drained = || server.is_drained().then_some(DRAINED);
    let sense = waiting.or_else(|| server.not_ready()).or_else(drained).unwrap_or(nothing);
    let bytes = SenseBytes::new(&sense, task.cdb.u8(1) & 1 == 1);
    data(Vec::from(bytes.bytes()), u32::from(task.cdb.u8(4)))
}

pub(super) fn target_port_groups(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match Format::from_code(task.cdb.u8(1) >> 5) {
        Some(format) => data(alua::groups(&server.info.config.ports, format).encode(), task.cdb.u32(6)),
        None => Outcome::CheckCondition(Sense::invalid_cdb(1, Some(7))),
    }
}

/// Reports the task management functions that the requesting nexus can use. An auto contingent allegiance
/// never exists (NACA is refused), so CLEAR ACA is not reported.
pub(super) fn supported_task_management(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let newer = server.nexuses.find(task.nexus).is_some_and(|state| state.nexus.rfc_7144_functions);
    let functions = TaskManagement {
        abort_task: true,
        abort_task_set: true,
        clear_aca: false,
        clear_task_set: true,
        logical_unit_reset: true,
        query_task: newer,
        target_reset: true,
        query_asynchronous_event: newer,
        query_task_set: newer,
        nexus_reset: newer,
    };
    data(functions.encode(task.cdb.u8(2) & 0x80 != 0), task.cdb.u32(6))
}

pub(super) fn supported_operation_codes(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    if let Some(outcome) = (server.command_set.ask_operation_codes)(server, task) {
        return outcome;
    }
    let cdb = &task.cdb;
    let timeouts = cdb.u8(2) & 0x80 != 0;
    data_or(operation_codes(server, cdb.u8(2) & 7, cdb.u8(3), cdb.u16(4), timeouts), cdb.u32(6))
}

/// REPORTING OPTIONS (SPC-5 §6.34).
mod options {
    pub(super) const ALL: u8 = 0b000;
    pub(super) const ONE_WITHOUT_ACTION: u8 = 0b001;
    pub(super) const ONE_WITH_ACTION: u8 = 0b010;
    pub(super) const ONE: u8 = 0b011;
}

/// Returns the data for one operation code. The opcode and service action are chosen by the initiator and are
/// only ever compared (CVE-2024-42416 used one as an index).
fn operation_codes(
    server: &DeviceServer,
    option: u8,
    opcode: u8,
    action: u16,
    timeouts: bool,
) -> Result<Vec<u8>, Sense> {
    let enabled = |row: &&'static Row| row.is_enabled(&server.info);
    if option == options::ALL {
        let rows = server.table.rows().filter(enabled);
        return Ok(SupportedCommand::encode_all(rows.map(|row| row.describe(timeouts))));
    }
    let rows: Vec<&Row> = server.table.rows_of(opcode).filter(enabled).collect();
    let has_actions = rows.iter().any(|row| row.service_action.is_some());
    let with_action = || rows.iter().find(|row| row.service_action == Some(action)).copied();
    let row = match option {
        options::ONE_WITHOUT_ACTION if has_actions => return Err(Sense::invalid_cdb(2, Some(2))),
        options::ONE_WITH_ACTION if !rows.is_empty() && !has_actions => {
            return Err(Sense::invalid_cdb(2, Some(2)));
        }
        options::ONE_WITHOUT_ACTION => rows.first().copied(),
        options::ONE_WITH_ACTION => with_action(),
        options::ONE if has_actions => with_action(),
        options::ONE => rows.first().filter(|_| action == 0).copied(),
        _ => return Err(Sense::invalid_cdb(2, Some(2))),
    };
    let one = OneCommand {
        usage: row.map(|row| Vec::from(row.usage)),
        timeouts: row.filter(|_| timeouts).map(Row::timeouts),
    };
    Ok(one.encode())
}

pub(super) fn log_sense(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let request = LogRequest {
        page_control: cdb.u8(2) >> 6,
        code: cdb.u8(2) & 0x3f,
        subpage: cdb.u8(3),
        pointer: cdb.u16(5),
    };
    let of_type = (server.command_set.log_parameters)(server, task.nexus, request.code);
    let statistics = counted(server).since(server.spc.counted_before);
    let minutes = server.spc.uptime(server.now).as_secs() / 60;
    let facts = LogSource {
        statistics,
        self_tests: &server.spc.self_tests,
        storage: storage(server),
        powered_on_minutes: u32::try_from(minutes).unwrap_or(u32::MAX),
        pages: server.command_set.log_pages,
        of_type: &of_type,
    };
    let answer = log::sense(request, facts);
    // Reading the TapeAlert flags clears them, unless the host received only some of them: programs read the
    // header of a page first.
    let room = u32::from(cdb.u16(7)).min(task.data_in_len);
    let is_whole = |answer: &Vec<u8>| to_u32(answer.len()) <= room && request.pointer <= 1;
    if request.code == page::TAPE_ALERT && answer.as_ref().is_ok_and(is_whole) {
        server.nexuses.tape_alerts_read(task.nexus);
    }
    data_or(answer, u32::from(cdb.u16(7)))
}

/// LOG SELECT: parameters cannot be set, only reset to their initial values (PCR).
pub(super) fn log_select(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    if cdb.u16(7) != 0 {
        return Outcome::CheckCondition(Sense::invalid_cdb(7, None));
    }
    if cdb.u8(1) & 0x02 == 0 {
        return Outcome::Good;
    }
    if cdb.u8(2) & 0x3f != 0 || cdb.u8(3) != 0 {
        return Outcome::CheckCondition(Sense::invalid_cdb(2, Some(5)));
    }
    server.spc.counted_before = counted(server);
    server.spc.self_tests = SelfTestResults::default();
    if let Some(drive) = &mut server.tape {
        drive.counts = TransferCounts::default();
    }
    server.nexuses.establish_ua_all(Asc::LOG_PARAMETERS_CHANGED, Some(task.nexus));
    Outcome::Good
}

/// Returns how much storage a thin unit uses: a threshold set that is partly used counts as used, one that is
/// partly available does not count as available.
fn storage(server: &DeviceServer) -> Option<Storage> {
    let shift = server.info.block_size().shift() + u32::from(limits::threshold_exponent(&server.info)?);
    let space = server.medium.space()?;
    let round = (1 << shift) - 1;
    let count = |bytes: u64| u32::try_from(bytes >> shift).unwrap_or(u32::MAX);
    Some(Storage {
        available: count(space.available),
        used: count(space.used.saturating_add(round)),
        dedicated: !space.shared,
    })
}

fn counted(server: &DeviceServer) -> Statistics {
    let shift = server.info.block_size().shift();
    Statistics {
        read_commands: server.stats.reads,
        write_commands: server.stats.writes,
        blocks_received: server.stats.write_bytes >> shift,
        blocks_transmitted: server.stats.read_bytes >> shift,
        read_bytes: server.stats.read_bytes,
        written_bytes: server.stats.write_bytes,
        errors: server.errors,
        idle_ms: u64::try_from(server.idle_time().as_millis()).unwrap_or(u64::MAX),
    }
}
