//! EXTENDED COPY(LID1) and (LID4), and COPY OPERATION ABORT (SPC-4 §6.3 to §6.5).

use alloc::boxed::Box;

use scsi::copy::list::{CopyList, CscdFields, Format, Limits, ListIdUsage};
use scsi::copy::{CopyError, ListId};
use scsi::sense::{Asc, Sense};

use super::copy_limits::LIMITS;
use super::executor::Executor;
use super::{CopyIdentifier, register, start};
use crate::contract::SpcLevel;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::task::TaskInfo;

pub(super) fn extended_copy_lid1(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    parameters(task, |server, task, list| {
        let cscd_fields = match server.info.config.overrides.level {
            SpcLevel::Spc3 => CscdFields::Spc3,
            SpcLevel::Spc4 | SpcLevel::Spc5 => CscdFields::Spc4,
        };
        let list = CopyList::parse_lid1(list, &Limits { cscd_fields, ..LIMITS });
        begin(server, task, list)
    })
}

pub(super) fn extended_copy_lid4(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    parameters(task, |server, task, list| begin(server, task, CopyList::parse_lid4(list, &LIMITS)))
}

/// Fetches the parameter list. A missing list is no error.
fn parameters(task: &TaskInfo, then: fn(&mut DeviceServer, &TaskInfo, &[u8]) -> Outcome) -> Outcome {
    match task.cdb.u32(10) {
        0 => Outcome::Good,
        len if len > LIMITS.list_len_max() => {
            Outcome::CheckCondition(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR))
        }
        len => Outcome::FetchParameterList { len, then },
    }
}

fn begin(server: &mut DeviceServer, task: &TaskInfo, list: Result<CopyList, CopyError>) -> Outcome {
    let list = match list {
        Ok(list) => list,
        Err(refusal) => return Outcome::CheckCondition(refusal.into()),
    };
    let immediate = matches!(list.format, Format::Lid4 { immediate: true, .. });
    if immediate && list.usage == ListIdUsage::Unnamed {
        // Without a list identifier, no initiator could query the result. IMMED is in byte 15.
        return Outcome::CheckCondition(Sense::invalid_parameter(15, Some(0)));
    }
    let named = CopyIdentifier { list_id: list.list_id, usage: list.usage, immediate };
    match register(server, task, named) {
        Ok(running) => {
            let program = Executor::new(running, list, &server.info.config);
            start(server, task, named, Box::new(program))
        }
        Err(outcome) => outcome,
    }
}

/// COPY OPERATION ABORT: answered when all calls and operations of the copy have ended.
pub(super) fn copy_operation_abort(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let Some(operation) = server.copy_manager.operations.find(task.nexus, ListId(task.cdb.u32(2))) else {
        return Outcome::CheckCondition(Sense::invalid_cdb(2, None));
    };
    match operation.task().filter(|_| operation.is_running()) {
        Some(other) => Outcome::AbortTask { task: other, then: Box::new(Outcome::Good) },
        None => Outcome::Good,
    }
}
