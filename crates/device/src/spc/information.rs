//! REPORT and SET IDENTIFYING INFORMATION, REPORT and SET TIMESTAMP.

use alloc::boxed::Box;
use alloc::vec::Vec;

use scsi::sense::Asc;

use super::reservation::not_saved;
use super::{data, data_or, length_error, whole};
use crate::identifying::IdentifyingInformation;
use crate::server::Core;
use crate::task::TaskInfo;
use crate::timestamp::Timestamp;
use crate::verdict::Verdict;

pub(super) fn report(core: &mut Core, task: &TaskInfo) -> Verdict {
    data_or(core.spc.identifying.report(task.cdb.u8(10) >> 1), task.cdb.u32(6))
}

pub(super) fn set(_: &mut Core, task: &TaskInfo) -> Verdict {
    let len = task.cdb.u32(6);
    match IdentifyingInformation::check(task.cdb.u8(10) >> 1, len) {
        Ok(()) => Verdict::Parameters { len, then: set_list },
        Err(sense) => Verdict::Check(sense),
    }
}

fn set_list(_: &mut Core, task: &TaskInfo, list: &[u8]) -> Verdict {
    match whole(list, task.cdb.u32(6)) {
        Ok(list) => Verdict::InTurn { list: Vec::from(list), then: set_in_turn },
        Err(verdict) => verdict,
    }
}

fn set_in_turn(core: &mut Core, task: &TaskInfo, list: &[u8]) -> Verdict {
    let mut new = core.spc.identifying.clone();
    match new.set(task.cdb.u8(10) >> 1, list) {
        Ok(false) => return Verdict::Good,
        Ok(true) => {}
        Err(sense) => return Verdict::Check(sense),
    }
    let state = core.spc.to_save_with_information(&new);
    let then = move |core: &mut Core, task: &TaskInfo, saved: bool| {
        if !saved {
            return not_saved();
        }
        core.spc.identifying = new;
        core.nexuses.attend_all(Asc::DEVICE_IDENTIFIER_CHANGED, Some(task.nexus));
        Verdict::Good
    };
    Verdict::Save { state, then: Box::new(then) }
}

pub(super) fn report_timestamp(core: &mut Core, task: &TaskInfo) -> Verdict {
    data(core.spc.timestamp.report(core.now).to_vec(), task.cdb.u32(6))
}

pub(super) fn set_timestamp(_: &mut Core, task: &TaskInfo) -> Verdict {
    match task.cdb.u32(6) {
        0 => Verdict::Good,
        len if usize::try_from(len) == Ok(Timestamp::LEN) => {
            Verdict::Parameters { len, then: set_timestamp_list }
        }
        _ => length_error(),
    }
}

fn set_timestamp_list(core: &mut Core, task: &TaskInfo, list: &[u8]) -> Verdict {
    let Some(timestamp) = Timestamp::set(core.now, list) else { return length_error() };
    core.spc.timestamp = timestamp;
    core.nexuses.attend_all(Asc::TIMESTAMP_CHANGED, Some(task.nexus));
    Verdict::Good
}
