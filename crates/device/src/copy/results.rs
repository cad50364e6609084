//! RECEIVE COPY STATUS, DATA, OPERATING PARAMETERS and FAILURE DETAILS, RECEIVE ROD TOKEN INFORMATION, REPORT
//! ALL ROD TOKENS (SPC-4 §6.20 to §6.31).

use alloc::vec::Vec;

use scsi::copy::results::{
    CopyStatus1, CopyStatus4, ManagerStatus, OperationStatus, TransferUnits, failure_details, held_data,
};
use scsi::copy::{ListId, copy_out};
use scsi::sense::Sense;
use scsi::status::Status;

use super::copy_limits;
use crate::contract::SenseBytes;
use crate::copy_manager::operations::Operation;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::task::TaskInfo;

pub(super) fn operating_parameters(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    answer(task, copy_limits::operating_parameters().to_bytes())
}

/// Answers RECEIVE COPY STATUS(LID1). The operation is discarded after its status was reported if the copy
/// succeeded; if it failed, after RECEIVE COPY FAILURE DETAILS.
pub(super) fn copy_status_lid1(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let list_id = lid1(task);
    let Some(operation) = server.copy_manager.operations.find(task.nexus, list_id) else { return unknown() };
    let end = operation.end();
    let status = match &end {
        None => ManagerStatus::IN_PROGRESS,
        Some(end) if end.status == Status::GOOD => ManagerStatus::COMPLETED,
        Some(_) => ManagerStatus::FAILED,
    };
    let progress = operation.progress();
    let bytes = CopyStatus1::new(status, progress.segments, progress.bytes).to_bytes();
    if status == ManagerStatus::COMPLETED {
        server.copy_manager.operations.forget(task.nexus, list_id);
    }
    answer(task, bytes)
}

/// Answers RECEIVE COPY DATA. No data is ever held for the application client: no supported segment
/// descriptor requests it.
pub(super) fn copy_data_lid1(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match server.copy_manager.operations.find(task.nexus, lid1(task)) {
        Some(_) => answer(task, held_data(&[])),
        None => unknown(),
    }
}

pub(super) fn failure_details_lid1(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let list_id = lid1(task);
    let Some(operation) = server.copy_manager.operations.find(task.nexus, list_id) else { return unknown() };
    let failed = operation.end().filter(|end| end.status != Status::GOOD);
    let Some(end) = failed else { return answer(task, failure_details(None)) };
    let sense = sense_bytes(server, end.sense);
    server.copy_manager.operations.forget(task.nexus, list_id);
    answer(task, failure_details(Some((end.status.0, &sense))))
}

pub(super) fn copy_status_lid4(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match server.copy_manager.operations.find(task.nexus, lid4(task)) {
        Some(operation) => answer(task, status_of(server, operation).to_bytes()),
        None => unknown(),
    }
}

pub(super) fn rod_token_information(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let Some(operation) = server.copy_manager.operations.find(task.nexus, lid4(task)) else {
        return unknown();
    };
    let status = status_of(server, operation);
    let token = operation.end().and_then(|end| end.token);
    answer(task, status.with_tokens(&token.iter().collect::<Vec<_>>()))
}

pub(super) fn all_rod_tokens(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let mut tokens = Vec::new();
    for token in server.copy_manager.tokens.alive(server.now) {
        tokens.extend_from_slice(token.management_part());
    }
    let available = u32::try_from(4 + tokens.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::from(available.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(tokens);
    answer(task, bytes)
}

fn status_of(server: &DeviceServer, operation: &Operation) -> CopyStatus4 {
    let progress = operation.progress();
    let end = operation.end();
    // Copies of ranges count blocks of this unit; copies of segments count bytes, as their units may differ.
    let counts_blocks = [copy_out::POPULATE_TOKEN, copy_out::WRITE_USING_TOKEN]
        .contains(&u16::from(operation.service_action));
    let (units, transfer_count) = if counts_blocks {
        (TransferUnits::LOGICAL_BLOCKS, progress.bytes >> server.info.block_size().shift())
    } else {
        (TransferUnits::BYTES, progress.bytes)
    };
    let (status, completion_status, sense, update_delay_ms) = match end {
        Some(end) => (end.operation, end.status.0, end.sense, CopyStatus4::NO_MORE_UPDATES),
        None if operation.background => (OperationStatus::IN_BACKGROUND, 0, None, UPDATE_DELAY_MS),
        None => (OperationStatus::IN_FOREGROUND, 0, None, UPDATE_DELAY_MS),
    };
    CopyStatus4 {
        service_action: operation.service_action,
        held_data_discarded: false,
        status,
        operation_counter: progress.counter,
        update_delay_ms,
        completion_status,
        units,
        transfer_count,
        segments_processed: progress.segments,
        sense: sense_bytes(server, sense),
    }
}

/// How long an initiator should wait before it queries a running copy again.
const UPDATE_DELAY_MS: u32 = 100;

fn sense_bytes(server: &DeviceServer, sense: Option<Sense>) -> Vec<u8> {
    let encode = |sense: Sense| SenseBytes::new(&sense, server.settings.descriptor_sense).bytes().to_vec();
    sense.map(encode).unwrap_or_default()
}

fn lid1(task: &TaskInfo) -> ListId {
    ListId(u32::from(task.cdb.u8(2)))
}

fn lid4(task: &TaskInfo) -> ListId {
    ListId(task.cdb.u32(2))
}

/// The outcome when no operation of this nexus has the list identifier.
const fn unknown() -> Outcome {
    Outcome::CheckCondition(Sense::invalid_cdb(2, None))
}

fn answer(task: &TaskInfo, bytes: Vec<u8>) -> Outcome {
    Outcome::ParameterData { bytes, allocation: u64::from(task.cdb.u32(10)) }
}
