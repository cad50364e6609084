//! REPORT and SET IDENTIFYING INFORMATION, REPORT and SET TIMESTAMP.

use alloc::boxed::Box;
use alloc::vec::Vec;

use scsi::sense::Asc;

use super::reservation::not_saved;
use super::{data, data_or, length_error, whole};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::identifying_info::IdentifyingInformation;
use crate::task::TaskInfo;
use crate::timestamp::Timestamp;

pub(super) fn report(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    data_or(server.spc.identifying.report(task.cdb.u8(10) >> 1), task.cdb.u32(6))
}

pub(super) fn set(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let len = task.cdb.u32(6);
    match IdentifyingInformation::check(task.cdb.u8(10) >> 1, len) {
        Ok(()) => Outcome::FetchParameterList { len, then: set_list },
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

fn set_list(_: &mut DeviceServer, task: &TaskInfo, list: &[u8]) -> Outcome {
    match whole(list, task.cdb.u32(6)) {
        Ok(list) => Outcome::QueueStateChange { list: Vec::from(list), then: set_in_turn },
        Err(outcome) => outcome,
    }
}

fn set_in_turn(server: &mut DeviceServer, task: &TaskInfo, list: &[u8]) -> Outcome {
    let mut new = server.spc.identifying.clone();
    match new.set(task.cdb.u8(10) >> 1, list) {
        Ok(false) => return Outcome::Good,
        Ok(true) => {}
        Err(sense) => return Outcome::CheckCondition(sense),
    }
    let state = server.spc.to_save_with_information(&new);
    let then = move |server: &mut DeviceServer, task: &TaskInfo, saved: bool| {
        if !saved {
            return not_saved();
        }
        server.spc.identifying = new;
        server.nexuses.establish_ua_all(Asc::DEVICE_IDENTIFIER_CHANGED, Some(task.nexus));
        Outcome::Good
    };
    Outcome::SaveState { state, then: Box::new(then) }
}

pub(super) fn report_timestamp(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    data(server.spc.timestamp.report(server.now).to_vec(), task.cdb.u32(6))
}

pub(super) fn set_timestamp(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match task.cdb.u32(6) {
        0 => Outcome::Good,
        len if usize::try_from(len) == Ok(Timestamp::LEN) => {
            Outcome::FetchParameterList { len, then: set_timestamp_list }
        }
        _ => length_error(),
    }
}

fn set_timestamp_list(server: &mut DeviceServer, task: &TaskInfo, list: &[u8]) -> Outcome {
    let Some(timestamp) = Timestamp::set(server.now, list) else { return length_error() };
    server.spc.timestamp = timestamp;
    server.nexuses.establish_ua_all(Asc::TIMESTAMP_CHANGED, Some(task.nexus));
    Outcome::Good
}
