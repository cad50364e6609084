//! Commands that only report: existing units, supported commands, pending conditions.

use alloc::vec::Vec;

use scsi::sense::{Asc, Sense, SenseKey};
use scsi::supported::{OneCommand, SupportedCommand, TaskManagement, Timeouts};
use scsi::target_port_groups::Format;

use super::{data, data_or};
use crate::alua;
use crate::contract::SenseBytes;
use crate::device_server::DeviceServer;
use crate::log::{self, LogRequest, LogSource, Statistics, Storage};
use crate::outcome::Outcome;
use crate::report_luns;
use crate::sbc::limits;
use crate::self_test::SelfTestResults;
use crate::table::Row;
use crate::task::TaskInfo;

pub(super) fn luns(core: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let Some(state) = core.nexuses.find_mut(task.nexus) else { return Outcome::Good };
    match report_luns::answer(&task.cdb, &state.nexus.luns) {
        Ok((bytes, allocation)) => {
            // A nexus that reads the list has seen what changed in it (SPC-5 §6.33).
            state.attentions.clear(Asc::REPORTED_LUNS_DATA_HAS_CHANGED);
            Outcome::ParameterData { bytes, allocation }
        }
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

/// REQUEST SENSE: returns the pending unit attention, or why the unit is not ready, or NO SENSE.
pub(super) fn request_sense(core: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let waiting = core.nexuses.find_mut(task.nexus).and_then(|state| state.attentions.take());
    let nothing = Sense::new(SenseKey::NO_SENSE, Asc::NONE);
    let sense = waiting.or_else(|| core.not_ready()).unwrap_or(nothing);
    let bytes = SenseBytes::new(&sense, task.cdb.u8(1) & 1 == 1);
    data(Vec::from(bytes.bytes()), u32::from(task.cdb.u8(4)))
}

pub(super) fn target_port_groups(core: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match Format::from_code(task.cdb.u8(1) >> 5) {
        Some(format) => data(alua::groups(&core.info.config.ports, format).encode(), task.cdb.u32(6)),
        None => Outcome::CheckCondition(Sense::invalid_cdb(1, Some(7))),
    }
}

/// Reports the task management functions that the requesting nexus can use. An auto contingent allegiance
/// never exists (NACA is refused), so CLEAR ACA is not reported.
pub(super) fn supported_task_management(core: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let newer = core.nexuses.find(task.nexus).is_some_and(|state| state.nexus.rfc_7144_functions);
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

pub(super) fn supported_operation_codes(core: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let timeouts = cdb.u8(2) & 0x80 != 0;
    data_or(operation_codes(core, cdb.u8(2) & 7, cdb.u8(3), cdb.u16(4), timeouts), cdb.u32(6))
}

/// REPORTING OPTIONS (SPC-5 table 276).
mod options {
    pub(super) const ALL: u8 = 0b000;
    pub(super) const ONE_WITHOUT_ACTION: u8 = 0b001;
    pub(super) const ONE_WITH_ACTION: u8 = 0b010;
    pub(super) const ONE: u8 = 0b011;
}

/// Returns the data for one operation code. The opcode and service action are chosen by the initiator and are
/// only ever compared (CVE-2024-42416 used one as an index).
fn operation_codes(
    core: &DeviceServer,
    option: u8,
    opcode: u8,
    action: u16,
    timeouts: bool,
) -> Result<Vec<u8>, Sense> {
    let enabled = |row: &&'static Row| row.is_enabled(&core.info);
    if option == options::ALL {
        let rows = core.table.rows().filter(enabled);
        return Ok(SupportedCommand::encode_all(rows.map(|row| command(row, timeouts))));
    }
    let rows: Vec<&Row> = core.table.rows_of(opcode).filter(enabled).collect();
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
        timeouts: row.filter(|_| timeouts).map(timeouts_of),
    };
    Ok(one.encode())
}

fn command(row: &Row, timeouts: bool) -> SupportedCommand {
    SupportedCommand {
        opcode: row.opcode,
        service_action: row.service_action,
        cdb_len: u16::try_from(row.usage.len()).unwrap_or(u16::MAX),
        timeouts: timeouts.then(|| timeouts_of(row)),
    }
}

const fn timeouts_of(row: &Row) -> Timeouts {
    Timeouts { nominal_s: 0, recommended_s: row.timeout_s }
}

pub(super) fn log_sense(core: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let request = LogRequest {
        page_control: cdb.u8(2) >> 6,
        code: cdb.u8(2) & 0x3f,
        subpage: cdb.u8(3),
        pointer: cdb.u16(5),
    };
    let statistics = counted(core).since(core.spc.counted_before);
    let minutes = core.now.since(core.spc.started).as_secs() / 60;
    let facts = LogSource {
        statistics,
        self_tests: &core.spc.self_tests,
        storage: storage(core),
        powered_on_minutes: u32::try_from(minutes).unwrap_or(u32::MAX),
    };
    data_or(log::sense(request, facts), u32::from(cdb.u16(7)))
}

/// LOG SELECT: parameters cannot be set, only reset to their initial values (PCR).
pub(super) fn log_select(core: &mut DeviceServer, task: &TaskInfo) -> Outcome {
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
    core.spc.counted_before = counted(core);
    core.spc.self_tests = SelfTestResults::default();
    core.nexuses.establish_ua_all(Asc::LOG_PARAMETERS_CHANGED, Some(task.nexus));
    Outcome::Good
}

/// Returns how much storage a thin unit uses: a threshold set that is partly used counts as used, one that is
/// partly available does not count as available.
fn storage(core: &DeviceServer) -> Option<Storage> {
    let shift = core.info.block_size().shift() + u32::from(limits::threshold_exponent(&core.info)?);
    let space = core.medium.space()?;
    let round = (1 << shift) - 1;
    let count = |bytes: u64| u32::try_from(bytes >> shift).unwrap_or(u32::MAX);
    Some(Storage {
        available: count(space.available),
        used: count(space.used.saturating_add(round)),
        dedicated: !space.shared,
    })
}

fn counted(core: &DeviceServer) -> Statistics {
    let shift = core.info.block_size().shift();
    Statistics {
        read_commands: core.stats.reads,
        write_commands: core.stats.writes,
        blocks_received: core.stats.write_bytes >> shift,
        blocks_transmitted: core.stats.read_bytes >> shift,
        read_bytes: core.stats.read_bytes,
        written_bytes: core.stats.write_bytes,
        errors: core.errors,
        idle_ms: u64::try_from(core.idle_time().as_millis()).unwrap_or(u64::MAX),
    }
}
