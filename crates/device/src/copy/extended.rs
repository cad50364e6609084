//! EXTENDED COPY(LID1) and (LID4), and COPY OPERATION ABORT (SPC-4 §6.3 to §6.5).

use alloc::boxed::Box;

use scsi::copy::list::{CopyList, CscdFields, Format, Limits, ListIdUsage};
use scsi::copy::{CopyError, ListId};
use scsi::sense::{Asc, Sense};

use super::page::LIMITS;
use super::program::Program;
use super::{Named, register, start};
use crate::contract::Level;
use crate::server::Core;
use crate::task::TaskInfo;
use crate::verdict::Verdict;

pub(super) fn extended_copy_lid1(_: &mut Core, task: &TaskInfo) -> Verdict {
    parameters(task, |core, task, list| {
        let cscd_fields = match core.facts.config.claims.level {
            Level::Spc3 => CscdFields::Spc3,
            Level::Spc4 | Level::Spc5 => CscdFields::Spc4,
        };
        let list = CopyList::parse_lid1(list, &Limits { cscd_fields, ..LIMITS });
        begin(core, task, list)
    })
}

pub(super) fn extended_copy_lid4(_: &mut Core, task: &TaskInfo) -> Verdict {
    parameters(task, |core, task, list| begin(core, task, CopyList::parse_lid4(list, &LIMITS)))
}

/// Fetches the parameter list. Not to send one is no error.
fn parameters(task: &TaskInfo, then: fn(&mut Core, &TaskInfo, &[u8]) -> Verdict) -> Verdict {
    match task.cdb.u32(10) {
        0 => Verdict::Good,
        len if len > LIMITS.list_len_max() => {
            Verdict::Check(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR))
        }
        len => Verdict::Parameters { len, then },
    }
}

fn begin(core: &mut Core, task: &TaskInfo, list: Result<CopyList, CopyError>) -> Verdict {
    let list = match list {
        Ok(list) => list,
        Err(refusal) => return Verdict::Check(refusal.into()),
    };
    let immediate = matches!(list.format, Format::Lid4 { immediate: true, .. });
    if immediate && list.usage == ListIdUsage::Unnamed {
        // Nobody could ever ask how it went. IMMED stands in byte 15.
        return Verdict::Check(Sense::invalid_parameter(15, Some(0)));
    }
    let named = Named { list_id: list.list_id, usage: list.usage, immediate };
    match register(core, task, named) {
        Ok(running) => {
            let program = Program::new(running, list, &core.facts.config);
            start(core, task, named, Box::new(program))
        }
        Err(verdict) => verdict,
    }
}

/// COPY OPERATION ABORT: answered when nothing more of the copy can happen.
pub(super) fn copy_operation_abort(core: &mut Core, task: &TaskInfo) -> Verdict {
    let Some(operation) = core.copies.operations.find(task.nexus, ListId(task.cdb.u32(2))) else {
        return Verdict::Check(Sense::invalid_cdb(2, None));
    };
    match operation.task().filter(|_| operation.goes_on()) {
        Some(other) => Verdict::AbortTask { task: other, then: Box::new(Verdict::Good) },
        None => Verdict::Good,
    }
}
